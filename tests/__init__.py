"""Tests: one module per room, and those of the whole program."""
