"""Trainers, and what is the same for all of them; `contract` says what a trainer is. Only they
import JAX. They import values, errors and plan arithmetic from `orchestrator`.
"""
