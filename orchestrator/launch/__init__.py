"""Turns a plan into running processes: `backend` says how, `ray` and `hosts` do it."""
