"""Spec to Plan, by arithmetic only: reads no file and no clock, and knows neither JAX nor Ray."""
