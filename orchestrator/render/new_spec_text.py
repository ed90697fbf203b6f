"""Say which specs one can start from, and what an import leaves to its reader."""

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.render.screen_parts import Screen, Table, next_step, screen

LEADING = "llama3_8b_v6e_2slice"  # the README's example


def examples_screen(examples: Mapping[str, str]) -> Screen:
    """Return the examples, each with what it is about."""
    copied = next_step(f"orch init --from {LEADING} my-run.yaml")
    return screen([Table(rows=list(examples.items()), columns="<w")], copied)


def import_lines(notes: Sequence[str], irrelevant: Sequence[str]) -> Iterator[str]:
    """Return where an imported spec differs from its source, then the keys that do not matter."""
    for note in notes:
        yield f"note: {note}"
    if irrelevant:
        yield f"not needed for a plan: {', '.join(irrelevant)}"
