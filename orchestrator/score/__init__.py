"""Score room: predictions held against runs that others published."""

from orchestrator.score.runs import PUBLISHED
from orchestrator.score.verdicts import as_shipped, without

__all__ = ["PUBLISHED", "as_shipped", "without"]
