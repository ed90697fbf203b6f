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

TYPE_CHECKING = False  # `typing` is slow to import, and until then Ctrl-C is a traceback
if TYPE_CHECKING:
    from orchestrator.errors import OrchError as OrchError
    from orchestrator.reading.examples import examples as examples
    from orchestrator.run.calibrate import calibrate as calibrate
    from orchestrator.run.calibrate import own_run_row as own_run_row
    from orchestrator.run.calibrate import score_own as score_own
    from orchestrator.run.doctor import doctor as doctor
    from orchestrator.run.doctor import doctor_run as doctor_run
    from orchestrator.run.exports import export as export
    from orchestrator.run.exports import export_maxtext as export_maxtext
    from orchestrator.run.exports import export_slurm as export_slurm
    from orchestrator.run.exports import export_weights as export_weights
    from orchestrator.run.exports import import_maxtext as import_maxtext
    from orchestrator.run.exports import pack as pack
    from orchestrator.run.exports import schema as schema
    from orchestrator.run.profile import profile as profile
    from orchestrator.run.proofs import compare as compare
    from orchestrator.run.proofs import explain as explain
    from orchestrator.run.proofs import is_gpu as is_gpu
    from orchestrator.run.proofs import prove as prove
    from orchestrator.run.proofs import prove_diff as prove_diff
    from orchestrator.run.proofs import prove_less_recompute as prove_less_recompute
    from orchestrator.run.proofs import prove_search as prove_search
    from orchestrator.run.proofs import prove_serving as prove_serving
    from orchestrator.run.proofs import prove_stages as prove_stages
    from orchestrator.run.proofs import report as report
    from orchestrator.run.proofs import score as score
    from orchestrator.run.proofs import score_gpus as score_gpus
    from orchestrator.run.proofs import write_choice as write_choice
    from orchestrator.run.records import sync as sync
    from orchestrator.run.records import ui as ui
    from orchestrator.run.runs import cancel as cancel
    from orchestrator.run.runs import follow as follow
    from orchestrator.run.runs import follow_logs as follow_logs
    from orchestrator.run.runs import logs as logs
    from orchestrator.run.runs import remove as remove
    from orchestrator.run.runs import runs as runs
    from orchestrator.run.runs import status as status
    from orchestrator.run.runs import studies as studies
    from orchestrator.run.serving import explain_serving as explain_serving
    from orchestrator.run.serving import load_serving as load_serving
    from orchestrator.run.serving import plan_serving as plan_serving
    from orchestrator.run.serving import plan_serving_of as plan_serving_of
    from orchestrator.run.serving import score_serving as score_serving
    from orchestrator.run.serving import serving_frontier as serving_frontier
    from orchestrator.run.serving import serving_load as serving_load
    from orchestrator.run.serving import serving_offers as serving_offers
    from orchestrator.run.specs import create_spec as create_spec
    from orchestrator.run.specs import deadline_odds as deadline_odds
    from orchestrator.run.specs import diff as diff
    from orchestrator.run.specs import is_serving as is_serving
    from orchestrator.run.specs import is_study as is_study
    from orchestrator.run.specs import key_help as key_help
    from orchestrator.run.specs import known_proof as known_proof
    from orchestrator.run.specs import line_cut as line_cut
    from orchestrator.run.specs import load as load
    from orchestrator.run.specs import offers as offers
    from orchestrator.run.specs import plan as plan
    from orchestrator.run.specs import plans as plans
    from orchestrator.run.specs import with_proof as with_proof
    from orchestrator.run.studies import study as study
    from orchestrator.run.studies import submit_study as submit_study
    from orchestrator.run.submit import preflight as preflight
    from orchestrator.run.submit import resume as resume
    from orchestrator.run.submit import submit as submit
    from orchestrator.show.pages import write_forecast as write_forecast
    from orchestrator.show.pages import write_frontier as write_frontier
    from orchestrator.show.pages import write_offers as write_offers
    from orchestrator.show.pages import write_report as write_report
    from orchestrator.show.pages import write_schedule as write_schedule
    from orchestrator.values.spec import SubmitOptions as SubmitOptions

_MODULES = {
    "errors": "OrchError",
    "reading.examples": "examples",
    "run.calibrate": "calibrate own_run_row score_own",
    "run.doctor": "doctor doctor_run",
    "run.exports": "export export_maxtext export_slurm export_weights import_maxtext pack schema",
    "run.profile": "profile",
    "run.proofs": "compare explain is_gpu prove prove_diff prove_less_recompute prove_search"
    " prove_serving prove_stages report score score_gpus write_choice",
    "run.records": "sync ui",
    "run.runs": "cancel follow follow_logs logs remove runs status studies",
    "run.serving": "explain_serving load_serving plan_serving plan_serving_of score_serving"
    " serving_frontier serving_load serving_offers",
    "run.specs": "create_spec deadline_odds diff is_serving is_study key_help known_proof line_cut"
    " load offers plan plans with_proof",
    "run.studies": "study submit_study",
    "run.submit": "preflight resume submit",
    "show.pages": "write_forecast write_frontier write_offers write_report write_schedule",
    "values.spec": "SubmitOptions",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
