"""Small programs as the TPU compiler writes them, cut down by hand to what a test needs."""

from pathlib import Path

from orchestrator.proving.hlo.program import HloProgram, program_of


def program(name: str) -> HloProgram:
    """The program of that name."""
    return program_of(program_text(name))


def program_text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8")
