"""HTML pages of runs, studies and proofs. Each is one file with its style and its charts inside."""

from orchestrator.show.page.plan_pages import offers_page, schedule_page
from orchestrator.show.page.run_page import RunPage, run_page
from orchestrator.show.page.study_pages import scaling_page, sweep_page

__all__ = ["RunPage", "offers_page", "run_page", "scaling_page", "schedule_page", "sweep_page"]
