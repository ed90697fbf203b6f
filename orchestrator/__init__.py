"""orch: from one YAML spec to a predicted, proven, measured JAX training run."""
