"""Object storage: buckets whose objects are created once, and copies of runs that are made here.

A run on `gs://bucket/runs` or `s3://bucket/runs` is its objects. Whatever decides something is an
object that is created if it is absent. This machine reads a run from a copy of its folder, which
is brought up to date before each look. The package knows nothing of runs.
"""

from orchestrator.storage.addresses import SCHEMES, address, folder, is_address, is_copy

__all__ = ["SCHEMES", "address", "folder", "is_address", "is_copy"]
