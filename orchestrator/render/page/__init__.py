"""Render room, pages: a report as one HTML file that needs nothing else, with drawings in SVG."""

from orchestrator.render.page.run import run_page
from orchestrator.render.page.shown import Shown
from orchestrator.render.page.study import study_page

__all__ = ["Shown", "run_page", "study_page"]
