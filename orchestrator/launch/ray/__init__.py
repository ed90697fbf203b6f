"""Runs attempts on Ray: on a named cluster, or on a private one that emulates slices here.

No other package imports Ray.
"""
