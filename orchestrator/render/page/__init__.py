"""HTML pages of runs, studies and proofs. Each is one file with its style and its charts inside."""

from orchestrator.render.page.offers_page import offers_page
from orchestrator.render.page.run_page import RunPage, run_page
from orchestrator.render.page.schedule_page import schedule_page
from orchestrator.render.page.study_page import study_page

__all__ = ["RunPage", "offers_page", "run_page", "schedule_page", "study_page"]
