"""Checkpoints: written by Orbax, summed and verified by us. The only room that knows Orbax."""
