"""The values that travel through orch. They import nothing of the project."""
