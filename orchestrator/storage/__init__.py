"""Object storage: buckets whose objects are created once, and copies of runs that are made here.

Whatever decides something is an object that is created if it is absent. This machine reads from a
copy, which is brought up to date before each look.
"""

from orchestrator.storage.addresses import SCHEMES, address, folder, is_address, is_copy

__all__ = ["SCHEMES", "address", "folder", "is_address", "is_copy"]
