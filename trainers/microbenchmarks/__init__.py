"""Ceilings: what the devices at hand reach, timed with the trainer's own pieces. Knows JAX."""
