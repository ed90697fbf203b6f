"""Loads trackers and backends by name: built in, installed, or of one's own."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from orchestrator.errors import SpecError, UnknownName


def load(kind: str, name: str, built_in: Mapping[str, str]) -> Any:
    """The object that a name stands for, imported.

    A name is built in, or an entry point in the group `orch.KINDs` of an installed package, or a
    dotted name `package.module:attribute`.
    """
    group = f"orch.{kind}s"
    references = {one.name: one for one in entry_points(group=group)}
    references |= {known: EntryPoint(known, value, group) for known, value in built_in.items()}
    if name not in references and ":" not in name:
        raise UnknownName(kind, name, list(references))
    try:
        return references.get(name, EntryPoint(name, name, group)).load()
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{kind} {name!r} cannot be imported: {error}") from error
