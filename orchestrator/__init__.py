"""orch: from one YAML spec to a predicted, proven, measured JAX training run.

    import orchestrator as orch
    plan = orch.plan("specs/llama3_70b_4pod.yaml")
    plan.forecast.step_s.expected

`orchestrator/api/` defines every name; docs/api.md shows them. Importing this package loads
nothing else: each function imports what it needs when it is called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.api import OrchError as OrchError
    from orchestrator.api import calibrate as calibrate
    from orchestrator.api import cancel as cancel
    from orchestrator.api import compare as compare
    from orchestrator.api import diff as diff
    from orchestrator.api import doctor as doctor
    from orchestrator.api import explain as explain
    from orchestrator.api import follow_logs as follow_logs
    from orchestrator.api import is_study as is_study
    from orchestrator.api import known_proof as known_proof
    from orchestrator.api import load as load
    from orchestrator.api import logs as logs
    from orchestrator.api import plan as plan
    from orchestrator.api import plans as plans
    from orchestrator.api import prove as prove
    from orchestrator.api import prove_less_recompute as prove_less_recompute
    from orchestrator.api import remove as remove
    from orchestrator.api import report as report
    from orchestrator.api import resume as resume
    from orchestrator.api import runs as runs
    from orchestrator.api import score as score
    from orchestrator.api import status as status
    from orchestrator.api import studies as studies
    from orchestrator.api import study as study
    from orchestrator.api import submit as submit
    from orchestrator.api import submit_study as submit_study
    from orchestrator.api import sync as sync
    from orchestrator.api import ui as ui
    from orchestrator.api import write_report as write_report

__all__ = [
    "OrchError",
    "calibrate",
    "cancel",
    "compare",
    "diff",
    "doctor",
    "explain",
    "follow_logs",
    "is_study",
    "known_proof",
    "load",
    "logs",
    "plan",
    "plans",
    "prove",
    "prove_less_recompute",
    "remove",
    "report",
    "resume",
    "runs",
    "score",
    "status",
    "studies",
    "study",
    "submit",
    "submit_study",
    "sync",
    "ui",
    "write_report",
]


class _Api(ModuleType):
    """Keeps `orch.plan` a function after the package `orchestrator.plan` is imported.

    Python assigns an imported package to its parent, under the name that the function has.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        if name in __all__:
            return getattr(import_module("orchestrator.api"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _Api
