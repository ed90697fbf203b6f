"""Object storage: buckets whose objects are created once, which decides things, and copies of runs
on this machine, brought up to date before each look.
"""

from orchestrator.storage.addresses import SCHEMES, address, folder, is_address, is_copy

__all__ = ["SCHEMES", "address", "folder", "is_address", "is_copy"]
