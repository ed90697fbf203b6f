"""Explains a forecast by the arithmetic of a book on scaling, with its published figures.

It works out a spec by hand, compares that with the plan, and imports the planner and the catalog.
"""

from orchestrator.evidence.explain.assemble import explain

__all__ = ["explain"]
