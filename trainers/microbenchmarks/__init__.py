"""Microbenchmarks: times single operations of the trainer on the devices at hand. Knows JAX."""
