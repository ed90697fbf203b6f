"""The Python API: what the command line calls, and what a notebook calls.

Every function takes plain arguments and returns a plain value. It raises `OrchError`, whose
`exit_code` is what the command would exit with. It prints nothing: whoever wants to see progress
passes a function that takes events (`orchestrator.types.progress_events`).

Imports stand inside the functions, so that `import orchestrator` stays light.
"""

from orchestrator.api.looking import (
    compare,
    doctor,
    doctor_run,
    follow_logs,
    logs,
    report,
    runs,
    status,
    studies,
    sync,
    ui,
    write_report,
)
from orchestrator.api.planning import (
    calibrate,
    deadline_odds,
    diff,
    explain,
    export,
    export_maxtext,
    import_maxtext,
    is_study,
    known_proof,
    load,
    offers,
    plan,
    plans,
    prove,
    prove_diff,
    prove_less_recompute,
    prove_stages,
    score,
    study,
    write_offers,
    write_schedule,
)
from orchestrator.api.running import (
    cancel,
    export_weights,
    pack,
    remove,
    resume,
    submit,
    submit_study,
)
from orchestrator.errors import OrchError
from orchestrator.types.submit_options import SubmitOptions

__all__ = [
    "OrchError",
    "SubmitOptions",
    "calibrate",
    "cancel",
    "compare",
    "deadline_odds",
    "diff",
    "doctor",
    "doctor_run",
    "explain",
    "export",
    "export_maxtext",
    "export_weights",
    "follow_logs",
    "import_maxtext",
    "is_study",
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
