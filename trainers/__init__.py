"""Trainers, and what is the same for all of them: loop, data, checkpoints, metering.

`contract` says what a trainer is. Only trainers and the processes that start them import JAX. They
import types, errors and plan arithmetic from `orchestrator`.
"""
