"""Says what this machine can do for orch. It changes nothing; JAX runs in a process of its own.

It imports `types`, `extras` and `errors`.
"""
