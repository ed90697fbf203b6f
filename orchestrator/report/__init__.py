"""Reports: what a run measured, compared with its forecast.

`make_report(journal)` reads a run; `compare_run` works on values alone. The package imports
`journal` and `types`; it knows no clock and no terminal.
"""

from orchestrator.report.run_report import compare_run, make_report, report_and_steps

__all__ = ["compare_run", "make_report", "report_and_steps"]
