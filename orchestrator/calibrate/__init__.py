"""Calibrate room: what the machine at hand reaches, measured, kept, and named by its digest."""

from orchestrator.calibrate.measure import for_plan, of_machine
from orchestrator.calibrate.shelf import find

__all__ = ["find", "for_plan", "of_machine"]
