"""Compile a plan's step with the real TPU compiler, and compare it with the Forecast.

`verdict` has the functions to call. Only `compile_process`, which runs in a process of its own,
imports JAX and the trainers. `hlo` reads the text of the compiled program.
"""
