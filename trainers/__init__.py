"""Trainers: the only rooms that know JAX. They import stations, errors and plan arithmetic."""
