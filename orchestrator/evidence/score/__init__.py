"""Holds the forecast to training runs that others published.

It plans each published run as it was run and compares the expected step with the measured one. The
constants behind `expected` are learned here too. It imports the planner and nothing above it; scipy
is imported only where constants are learned.
"""

from orchestrator.evidence.score.evaluate import cross_validated, with_catalog_constants
from orchestrator.evidence.score.published_runs import PUBLISHED

__all__ = ["PUBLISHED", "cross_validated", "with_catalog_constants"]
