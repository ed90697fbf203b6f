"""HTML pages of runs, studies and proofs. Each is one file with its style and its charts inside."""

from orchestrator.render.page.offers_page import offers_page
from orchestrator.render.page.run_page import RunPage, run_page
from orchestrator.render.page.scaling_page import scaling_page
from orchestrator.render.page.schedule_page import schedule_page
from orchestrator.render.page.sweep_page import sweep_page

__all__ = ["RunPage", "offers_page", "run_page", "scaling_page", "schedule_page", "sweep_page"]
