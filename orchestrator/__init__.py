"""orch: from one YAML spec to a predicted, proven, measured JAX training run.

    import orchestrator as orch
    plan = orch.plan("specs/llama3_70b_4pod.yaml")
    plan.forecast.step_s.expected

Every function takes plain arguments, returns a plain value and raises `OrchError`. It prints
nothing: pass `progress`, a function that takes events (`orchestrator.run.progress`), to see what it
does. docs/api.md shows them all. Each is imported when it is first used, so that
`import orchestrator` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.errors import OrchError as OrchError
    from orchestrator.run.looking import compare as compare
    from orchestrator.run.looking import doctor as doctor
    from orchestrator.run.looking import doctor_run as doctor_run
    from orchestrator.run.looking import follow_logs as follow_logs
    from orchestrator.run.looking import logs as logs
    from orchestrator.run.looking import report as report
    from orchestrator.run.looking import runs as runs
    from orchestrator.run.looking import status as status
    from orchestrator.run.looking import studies as studies
    from orchestrator.run.looking import sync as sync
    from orchestrator.run.looking import ui as ui
    from orchestrator.run.running import cancel as cancel
    from orchestrator.run.running import export_weights as export_weights
    from orchestrator.run.running import pack as pack
    from orchestrator.run.running import remove as remove
    from orchestrator.run.running import resume as resume
    from orchestrator.run.running import submit as submit
    from orchestrator.run.running import submit_study as submit_study
    from orchestrator.run.specs import calibrate as calibrate
    from orchestrator.run.specs import create_spec as create_spec
    from orchestrator.run.specs import deadline_odds as deadline_odds
    from orchestrator.run.specs import diff as diff
    from orchestrator.run.specs import examples as examples
    from orchestrator.run.specs import explain as explain
    from orchestrator.run.specs import export as export
    from orchestrator.run.specs import export_maxtext as export_maxtext
    from orchestrator.run.specs import import_maxtext as import_maxtext
    from orchestrator.run.specs import is_study as is_study
    from orchestrator.run.specs import key_help as key_help
    from orchestrator.run.specs import known_proof as known_proof
    from orchestrator.run.specs import load as load
    from orchestrator.run.specs import offers as offers
    from orchestrator.run.specs import plan as plan
    from orchestrator.run.specs import plans as plans
    from orchestrator.run.specs import prove as prove
    from orchestrator.run.specs import prove_diff as prove_diff
    from orchestrator.run.specs import prove_less_recompute as prove_less_recompute
    from orchestrator.run.specs import prove_stages as prove_stages
    from orchestrator.run.specs import schema as schema
    from orchestrator.run.specs import score as score
    from orchestrator.run.specs import study as study
    from orchestrator.show.pages import write_offers as write_offers
    from orchestrator.show.pages import write_report as write_report
    from orchestrator.show.pages import write_schedule as write_schedule
    from orchestrator.values.run_options import SubmitOptions as SubmitOptions

_MODULES = {
    "errors": ("OrchError",),
    "run.looking": (
        "compare",
        "doctor",
        "doctor_run",
        "follow_logs",
        "logs",
        "report",
        "runs",
        "status",
        "studies",
        "sync",
        "ui",
    ),
    "run.running": (
        "cancel",
        "export_weights",
        "pack",
        "remove",
        "resume",
        "submit",
        "submit_study",
    ),
    "run.specs": (
        "calibrate",
        "create_spec",
        "deadline_odds",
        "diff",
        "examples",
        "explain",
        "export",
        "export_maxtext",
        "import_maxtext",
        "is_study",
        "key_help",
        "known_proof",
        "load",
        "offers",
        "plan",
        "plans",
        "prove",
        "prove_diff",
        "prove_less_recompute",
        "prove_stages",
        "schema",
        "score",
        "study",
    ),
    "show.pages": (
        "write_offers",
        "write_report",
        "write_schedule",
    ),
    "values.run_options": ("SubmitOptions",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "OrchError",
    "SubmitOptions",
    "calibrate",
    "cancel",
    "compare",
    "create_spec",
    "deadline_odds",
    "diff",
    "doctor",
    "doctor_run",
    "examples",
    "explain",
    "export",
    "export_maxtext",
    "export_weights",
    "follow_logs",
    "import_maxtext",
    "is_study",
    "key_help",
    "known_proof",
    "load",
    "logs",
    "offers",
    "pack",
    "plan",
    "plans",
    "prove",
    "prove_diff",
    "prove_less_recompute",
    "prove_stages",
    "remove",
    "report",
    "resume",
    "runs",
    "schema",
    "score",
    "status",
    "studies",
    "study",
    "submit",
    "submit_study",
    "sync",
    "ui",
    "write_offers",
    "write_report",
    "write_schedule",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
