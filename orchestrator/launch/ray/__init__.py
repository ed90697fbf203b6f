"""Runs attempts on Ray, which no other package imports: on a named or on a private cluster."""
