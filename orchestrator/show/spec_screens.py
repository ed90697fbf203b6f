"""Say which specs one can start from, and what an import leaves to its reader."""

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.reading.expectations import KeyHelp
from orchestrator.show.parts import (
    Part,
    Screen,
    Table,
    heading,
    indent,
    next_step,
    paragraph,
    screen,
)

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


# The keys of a spec as text, to read beside an editor.


MANY = 12  # keys that a person reads one by one


def key_help_screen(keys: Sequence[KeyHelp], next_command: str) -> Screen:
    """Return what each key means, must be, and is when it is left out; of many keys, what each
    below the first means.
    """
    if len(keys) <= MANY:
        return screen(*map(key_help, keys), next_step(next_command))
    whole, below = ([keys[0]], keys[1:]) if is_above(keys[0], keys[1]) else ([], keys)
    rows = Table(rows=[(one.key, one.about) for one in below], columns="<w")
    return screen(*map(key_help, whole), [rows], next_step(f"orch schema --key {below[0].key}"))


def is_above(key: KeyHelp, other: KeyHelp) -> bool:
    return other.key.startswith(f"{key.key}.")


def key_help(one: KeyHelp) -> list[Part]:
    absent = "required" if one.required else f"default: {one.default or 'none'}"
    texts = (one.about, f"must be: {one.must}", absent)
    return [heading(one.key), *indent(map(paragraph, texts))]
