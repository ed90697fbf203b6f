"""Trainers: the only rooms that know JAX. Each imports stations, errors and plan arithmetic alone."""
