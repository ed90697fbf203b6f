"""What a spec means, key by key: base units, defaults filled in, wrong values absent."""

from typing import Any

from orchestrator.spec import schema as schemas
from orchestrator.spec.expectations import suggestion
from orchestrator.spec.instance import Path, SpecInstance, dotted
from orchestrator.spec.notation import meaning
from orchestrator.spec.problem import SpecPosition
from orchestrator.spec.scalars import Misread
from orchestrator.spec.schema import Schema

ABSENT = object()


class ResolvedSpec:
    """A validated spec, in meanings. Checks read it, and report problems at their place."""

    def __init__(self, spec: SpecInstance) -> None:
        self._spec = spec
        self.values = _meanings(spec, spec.value, ())

    def __getitem__(self, key: str) -> Any:
        """The value of a dotted key, or its default; None where it is wrong or has neither."""
        path = tuple(key.split("."))
        if self._spec.is_rejected(path):
            return None
        value = self.values
        for part in path:
            value = value.get(part, ABSENT) if isinstance(value, dict) else ABSENT
        return default(schemas.field(path) or {}) if value is ABSENT else value

    def report(self, key: str, code: str, **fields: Any) -> None:
        """Add a problem of a dotted key."""
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        self._spec.reject(path, self.place(path).problem(code, key, **fields))

    def place(self, path: Path) -> SpecPosition:
        """Where a value stands, or would stand: at the nearest key above it."""
        fields = self._spec.fields
        if path in fields:
            return fields[path].node.place
        above = next(path[:n] for n in range(len(path) - 1, -1, -1) if path[:n] in fields)
        return fields[above].key_place


def default(schema: Schema) -> Any:
    """What a key means that is left out; None when it has no default."""
    value = schema.get("default")
    return meaning(value, schemas.kind(schema)) if isinstance(value, str) else value


def _meanings(spec: SpecInstance, value: Any, path: Path) -> Any:
    """A value without its rejected parts, every number and share as a number."""
    if isinstance(value, dict):
        inside = {key: (*path, key) for key in value}
        return {
            key: _meanings(spec, value[key], inside[key])
            for key in value
            if not spec.is_rejected(inside[key])
        }
    if isinstance(value, list):
        return [_meanings(spec, one, (*path, i)) for i, one in enumerate(value)]
    return _meaning(spec, value, path)


def _meaning(spec: SpecInstance, value: Any, path: Path) -> Any:
    here = spec.fields[path]
    schema = here.schema or {}
    try:
        return meaning(value, schemas.kind(schema))
    except Misread as error:
        hint = suggestion(path, schema)
        problem = here.node.place.problem(error.code, dotted(path), hint, **error.fields)
        spec.reject(path, problem)
        return None
