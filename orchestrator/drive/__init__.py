"""Drives a run inside its job: attempt after attempt, until it has ended."""
