"""The folder of compiled programs. It is light to import: `orch plan` looks into it each time."""

from pathlib import Path

import platformdirs

from orchestrator.values.plan import Plan


def folder() -> Path:
    return platformdirs.user_cache_path("orch") / "proofs"


def has_plan(plan: Plan) -> bool:
    """Whether any compiler's result for a plan is there: to know which is current takes longer."""
    return any(folder().glob(f"{plan.digest}.*"))
