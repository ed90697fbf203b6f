"""Small programs as the TPU compiler writes them, cut down by hand to what a test needs."""

from pathlib import Path

from orchestrator.prove.hlo.program import Program, program_of


def program(name: str) -> Program:
    """The program of that name."""
    path = Path(__file__).parent / f"{name}.txt"
    return program_of(path.read_text(encoding="utf-8"))
