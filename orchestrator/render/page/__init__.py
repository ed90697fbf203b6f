"""Render room, pages: a report as one HTML file that needs nothing else, with drawings in SVG."""

from orchestrator.render.page.run import Shown, run_page

__all__ = ["Shown", "run_page"]
