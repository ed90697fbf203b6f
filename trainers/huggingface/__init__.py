"""Weights as Hugging Face has them: read into a plan's shards, written from a checkpoint."""
