"""Doctor room: what this machine can do. It looks, and changes nothing; devices in a child."""

from orchestrator.doctor.checks import checkup

__all__ = ["checkup"]
