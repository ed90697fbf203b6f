"""orch: from one YAML spec to a predicted, proven, measured JAX training run."""

__version__ = "0.1.0"
