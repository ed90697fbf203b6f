"""The keys of a spec as text, to read beside an editor."""

from collections.abc import Sequence

from orchestrator.render.screen_parts import (
    Part,
    Screen,
    heading,
    indent,
    next_step,
    paragraph,
    screen,
)
from orchestrator.spec.key_help import KeyHelp


def key_help_screen(keys: Sequence[KeyHelp], next_command: str) -> Screen:
    """Return what each key means, must be, and is when it is left out."""
    return screen(*map(key_help, keys), next_step(next_command))


def key_help(one: KeyHelp) -> list[Part]:
    absent = "required" if one.required else f"default: {one.default or 'none'}"
    texts = (one.about, f"must be: {one.must}", absent)
    return [heading(one.key), *indent(map(paragraph, texts))]
