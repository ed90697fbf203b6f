"""Microbenchmarks: times operations and steps of a trainer on the devices at hand. Knows JAX."""
