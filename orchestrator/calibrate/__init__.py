"""Measures how fast this machine's devices are, and stores the result as chip profiles.

It starts processes that load JAX and the trainers, and knows neither itself.
"""

from orchestrator.calibrate.measure import measure_devices, measure_plan, stored_profile
from orchestrator.calibrate.profile_store import StoredProfile, find

__all__ = ["StoredProfile", "find", "measure_devices", "measure_plan", "stored_profile"]
