"""Checkpoints: Orbax writes them; checksums verify them. No other package saves."""
