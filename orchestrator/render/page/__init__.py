"""a report as one HTML file that needs nothing else, with drawings in SVG."""

from orchestrator.render.page.run_page import run_page
from orchestrator.render.page.shown import RunPage
from orchestrator.render.page.study_page import study_page

__all__ = ["RunPage", "run_page", "study_page"]
