"""The values that travel through orch: frozen dataclasses. They import nothing of the project."""
