"""Turns a plan into running processes, on slices that are emulated here or on a named cluster.

`backend` defines what a backend does, and `launch.ray` does it on Ray. This package may import the
journal, the catalog and planned values.
"""
