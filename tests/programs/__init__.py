"""Small programs as the TPU compiler writes them, cut down by hand to what a test needs."""

from pathlib import Path

from orchestrator.proving.hlo.program import HloProgram, program_of


def program(name: str) -> HloProgram:
    """The program of that name."""
    path = Path(__file__).parent / f"{name}.txt"
    return program_of(path.read_text(encoding="utf-8"))
