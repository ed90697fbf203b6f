"""Spec to Plan: search, feasibility, memory, time, forecast. Only arithmetic.

Imports `network`, `catalog` and `types`; reads no file and no clock, and knows neither JAX nor Ray.
"""
