"""Batches of token ids, each a pure function of (seed, step). Knows numpy and files, no JAX."""
