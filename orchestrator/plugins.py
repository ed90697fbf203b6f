"""Finds trackers, backends and other parts by name: built in, installed, or of one's own."""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from orchestrator.errors import SpecError


def find(group: str, name: str, built_in: Mapping[str, str]) -> Any:
    """The object that a name stands for.

    The name is built in, an entry point of any installed package in this `group`, or the dotted
    name `package.module:attribute` of an importable object.
    """
    installed = {one.name: one.value for one in entry_points(group=group)}
    known = {**installed, **built_in}
    target = known.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        listed = ", ".join(sorted(known))
        raise SpecError(
            f"{name!r} is unknown: use one of {listed}, or the dotted name package.module:attribute"
        )
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{name!r} cannot be imported: {error}") from error
