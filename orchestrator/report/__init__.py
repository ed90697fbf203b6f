"""Report room: arithmetic on a run's journal against its plan. Knows no clock and no terminal."""

from orchestrator.report.make import proof_of, report, reported

__all__ = ["proof_of", "report", "reported"]
