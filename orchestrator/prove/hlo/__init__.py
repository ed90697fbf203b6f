"""Prove room: the text of a compiled program, read without jax."""
