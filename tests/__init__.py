"""Tests: a module for each package or feature, and those of the whole program."""
