"""Random values of a sweep's keys: drawn from a seed, the same on every machine.

A draw depends on the seed, its key and its number alone, so more draws keep the earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from random import Random
from typing import Literal, get_args

from orchestrator.spec import nodes
from orchestrator.spec import schema as schemas
from orchestrator.spec.nodes import Mapping, Node, Scalar
from orchestrator.spec.problem import Problem, SpecPosition
from orchestrator.spec.scalars import NUMBER

Distribution = Literal["uniform", "log_uniform", "choice"]
MOST_TRIES = 1_000  # for a draw that differs from those before it


@dataclass(frozen=True)
class RandomKey:
    """A key with random values: between bounds, or one of the choices."""

    key: str
    place: SpecPosition
    distribution: Distribution
    bounds: tuple[float, float] = (0.0, 0.0)
    choices: tuple[Node, ...] = ()

    def draw(self, random: Random) -> Node:
        if self.distribution == "choice":
            return self.choices[int(random.random() * len(self.choices))]
        (low, high), whole = self.bounds, is_whole(self.key)
        if self.distribution == "log_uniform":
            value = exp(log(low) + random.random() * (log(high) - log(low)))
        else:
            value = low + random.random() * (high - low)
        text = str(round(value)) if whole else f"{value:.4g}"  # few digits, which people can copy
        return Scalar(self.place, text, plain=True)


def is_whole(key: str) -> bool:
    """Whether a key of a spec takes whole numbers alone."""
    field = schemas.field(tuple(key.split(".")))
    types = schemas.scalar_types(field) if field else set()
    return "integer" in types and "number" not in types


def random_key(key: str, node: Node) -> RandomKey | Problem:
    """A key with random values as the file has them, or what is wrong with their form."""
    entries = node.entries if isinstance(node, Mapping) else {}
    fault = node.place.problem("vary-values", f"study.vary.{key}")
    if len(entries) != 1:
        return fault
    [(name, entry)] = entries.items()
    items = entry.node.items if isinstance(entry.node, nodes.Sequence) else ()
    for distribution in get_args(Distribution):
        if name == distribution == "choice" and items:
            return RandomKey(key, entry.node.place, distribution, choices=tuple(items))
        if name == distribution and (bounds := _bounds(items)):
            if bounds[0] < bounds[1] and (name == "uniform" or bounds[0] > 0):
                return RandomKey(key, entry.node.place, distribution, bounds)
            return entry.node.place.problem("random-bounds", f"study.vary.{key}.{name}")
    return fault


def _bounds(items: Sequence[Node]) -> tuple[float, float] | None:
    texts = [one.text for one in items if isinstance(one, Scalar) and NUMBER.fullmatch(one.text)]
    return (float(texts[0]), float(texts[1])) if len(texts) == len(items) == 2 else None


def drawn(keys: Sequence[RandomKey], draws: int, seed: int) -> list[tuple[Node, ...]]:
    """Values for all keys, so many times, no two alike; fewer where there are no more."""
    values: dict[tuple[str, ...], tuple[Node, ...]] = {}
    for number in range(draws):
        for again in range(MOST_TRIES):
            point = tuple(one.draw(Random(f"{seed} {number} {again} {one.key}")) for one in keys)
            if (texts := tuple(map(text_of, point))) not in values:
                values[texts] = point
                break
    return list(values.values())


def text_of(node: Node) -> str:
    """A value as it is written on one line."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Mapping):
        inside = (f"{key}: {text_of(entry.node)}" for key, entry in node.entries.items())
        return f"{{{', '.join(inside)}}}"
    return f"[{', '.join(map(text_of, node.items))}]" if isinstance(node, nodes.Sequence) else ""
