"""Explain room: a spec worked out by the book's arithmetic. Pure; reads nothing but the catalog."""

from orchestrator.explain.sheet import answer_sheet

__all__ = ["answer_sheet"]
