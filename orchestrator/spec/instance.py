"""Reads nodes as JSON values by their schema, as an editor with the same schema does."""

from dataclasses import dataclass, field
from typing import Any

from orchestrator.spec import schema as schemas
from orchestrator.spec.expectations import likely, may_mean_either, must, shown, suggestion
from orchestrator.spec.nodes import Broken, Mapping, Node, Scalar, Sequence
from orchestrator.spec.problem import Correction, Problem, SpecPosition
from orchestrator.spec.scalars import Value, ambiguous, as_written
from orchestrator.spec.schema import Schema

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Field:
    """One key of a file: its place, its node, and the schema of its value (None: unknown)."""

    key_place: SpecPosition
    node: Node
    schema: Schema | None


@dataclass
class SpecInstance:
    """A file as JSON values; `rejected` are the paths whose values are wrong, and None here."""

    value: Any = None
    fields: dict[Path, Field] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    rejected: set[Path] = field(default_factory=set)

    def is_rejected(self, path: Path) -> bool:
        return any(path[:length] in self.rejected for length in range(len(path) + 1))

    def reject(self, path: Path, problem: Problem) -> None:
        """Report what is wrong with a value, which counts as absent from then on."""
        self.rejected.add(path)
        here = self.fields.get(path)
        if here and isinstance(here.node, Scalar) and (here.schema or {}).get("writeOnly"):
            place, quotes = here.node.place, 0 if here.node.plain else 2
            place.source.hidden.append((place.line, place.col, len(here.node.text) + quotes))
        self.problems.append(problem)


def instance_of(root: Node, root_schema: Schema | None = None) -> SpecInstance:
    """The values of a file, key by key; it is a spec unless another schema is given."""
    instance = SpecInstance()
    schema = schemas.spec_schema() if root_schema is None else root_schema
    instance.value = _value(instance, (), Field(root.place, root, schema))
    return instance


def _value(instance: SpecInstance, path: Path, here: Field) -> Any:
    instance.fields[path] = here
    node, schema = here.node, here.schema
    if isinstance(node, Broken):
        instance.rejected.add(path)
    if isinstance(node, Broken) or schema is None:
        return None
    if isinstance(node, Scalar):
        return _scalar(instance, path, here, node)
    index = schemas.chosen(schema, node)
    if index is None:
        return [] if isinstance(node, Sequence) else {}
    inside = schemas.alternatives(schema)[index]
    if isinstance(node, Mapping):
        return _members(instance, path, node, inside)
    item = schemas.resolved(inside["items"])
    fields = [Field(one.place, one, item) for one in node.items]
    return [_value(instance, (*path, i), one) for i, one in enumerate(fields)]


def _members(instance: SpecInstance, path: Path, node: Mapping, inside: Schema) -> dict[str, Any]:
    return {
        key: _value(
            instance,
            (*path, key),
            Field(entry.key_place, entry.node, schemas.member(inside, key)),
        )
        for key, entry in node.entries.items()
    }


def _scalar(instance: SpecInstance, path: Path, here: Field, node: Scalar) -> Value | None:
    schema = here.schema or {}
    types = schemas.scalar_types(schema)
    value = as_written(node.text, types) if node.plain else node.text
    if node.empty or not node.text.isprintable():
        code, fields = "empty-value" if node.empty else "unprintable", {}
        meant: Correction | None = suggestion(path, schema, node)
    elif node.plain and may_mean_either(types) and ambiguous(node.text, value):
        code, meant = "ambiguous", None
        alternative = "".join(f"{one}, or " for one in likely(schema, node)[:1])
        fields = {"value": shown(node, schema), "text": node.text, "alternative": alternative}
    else:
        return value
    problem = node.place.problem(code, dotted(path), meant, expected=must(schema), **fields)
    instance.reject(path, problem)
    return None


def dotted(path: Path) -> str:
    """A path as people write it."""
    return ".".join(map(str, path))
