"""The plan room: arithmetic only, Spec to Plan. No input or output, no jax, no ray."""
