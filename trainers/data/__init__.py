"""Where batches come from: pure functions of (seed, step), in numpy. This room knows no JAX."""
