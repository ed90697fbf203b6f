"""The keys of a spec as text, to read beside an editor."""

from collections.abc import Sequence

from orchestrator.render.screen_parts import (
    Part,
    Screen,
    Table,
    heading,
    indent,
    next_step,
    paragraph,
    screen,
)
from orchestrator.spec.key_help import KeyHelp

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
