"""Serving: what a model costs to serve, by ledgers like training's; reads and writes nothing."""
