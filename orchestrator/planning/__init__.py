"""Spec to Plan: search, feasibility, memory, time, forecast. Arithmetic alone.

Imports `network`, `catalog` and `types`; reads no file and no clock, and knows neither JAX nor Ray.
"""
