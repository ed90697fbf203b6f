"""Prove: compile a plan's step with the real TPU compiler, and compare it with the Forecast.

`verdict` has the functions to call. `compile_process` runs in a process of its own; it alone
imports JAX and the trainers. `hlo` reads the text of the compiled program.
"""
