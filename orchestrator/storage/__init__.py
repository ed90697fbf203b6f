"""Object storage: buckets whose objects are created once, and copies of runs made here."""

from orchestrator.storage.addresses import SCHEMES, address, folder, is_address, is_copy

__all__ = ["SCHEMES", "address", "folder", "is_address", "is_copy"]
