"""The keys that a study varies: their values in its file, and the points that they make."""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from orchestrator.spec.instance import SpecInstance
from orchestrator.spec.nodes import Entry, Mapping, Node, Sequence
from orchestrator.spec.problem import Problem, SpecPosition
from orchestrator.spec.random_values import RandomKey, drawn, random_key, text_of

MOST_TRIALS = 1_000
SECTIONS = ("experiment", "resources", "run")
FIXED = {"run.storage": "their runs lie beside the study"}


@dataclass(frozen=True)
class VariedKey:
    """A key that is varied, where it stands, and its values, or how they are drawn."""

    key: str
    place: SpecPosition
    values: tuple[Node, ...] = ()
    random: RandomKey | None = None

    def is_of_key(self, problem: Problem) -> bool:
        """Whether it is the key that is wrong, and not a value of it."""
        col = problem.col - self.place.col
        return problem.line == self.place.line and 0 <= col < len(self.key)


Point = list[tuple[VariedKey, Node]]  # the keys of a trial with their values


def varied_keys(vary: Entry) -> tuple[list[VariedKey], list[Problem]]:
    """The keys with their values, and what is wrong with their form."""
    if not isinstance(vary.node, Mapping) or not vary.node.entries:
        return [], [vary.key_place.problem("vary-form", "study.vary")]
    varied, faults = [], []
    for key, entry in vary.node.entries.items():
        place, node = entry.key_place, entry.node
        if key in FIXED:
            faults.append(place.problem("vary-fixed", f"study.vary.{key}", reason=FIXED[key]))
        elif not all(key.split(".")) or key.split(".")[0] not in SECTIONS:
            sections = ", ".join(SECTIONS)
            faults.append(place.problem("vary-key", f"study.vary.{key}", expected=sections))
        elif isinstance(node, Sequence) and node.items:
            faults += _repeated(key, tuple(node.items))
            varied.append(VariedKey(key, place, tuple(node.items)))
        elif isinstance(found := random_key(key, node), RandomKey):
            varied.append(VariedKey(key, place, random=found))
        else:
            faults.append(found)
    trials = prod(len(one.values) for one in varied if not one.random)
    if trials > MOST_TRIALS:
        faults.append(_too_many(vary.key_place, trials))
        return [], faults
    return varied, faults


def _too_many(place: SpecPosition, trials: int) -> Problem:
    return place.problem("too-many-trials", "study.vary", trials=trials, most=MOST_TRIALS)


def points_of(varied: list[VariedKey], file: SpecInstance) -> tuple[list[Point], list[Problem]]:
    """The values of every trial: each combination of the lists, with each draw of the others."""
    section, random = file.value["study"], [one.random for one in varied if one.random]
    if bool(random) != ("draws" in section):
        place = file.fields["study", "draws"] if not random else file.fields[("study",)]
        code = "draws-missing" if random else "draws-without-random-values"
        return [], [place.key_place.problem(code, "study.draws")]
    grid = list(product(*(one.values for one in varied if not one.random)))
    draws = section.get("draws") or 1
    if len(grid) * draws > MOST_TRIALS:
        return [], [_too_many(file.fields["study", "draws"].key_place, len(grid) * draws)]
    values = drawn(random, draws, section.get("seed") or 0) if random else [()]
    if len(values) < draws:
        place = file.fields["study", "draws"]
        fields: dict[str, Any] = {"draws": draws, "most": len(values)}
        return [], [place.node.place.problem("too-many-draws", "study.draws", **fields)]
    return [_point(varied, listed, draw) for listed in grid for draw in values], []


def _point(varied: list[VariedKey], listed: tuple[Node, ...], draw: tuple[Node, ...]) -> Point:
    """The values of one trial, in the order of the file."""
    from_grid, from_draw = iter(listed), iter(draw)
    return [(one, next(from_draw) if one.random else next(from_grid)) for one in varied]


def _repeated(key: str, values: tuple[Node, ...]) -> list[Problem]:
    texts = [text_of(value) for value in values]
    return [
        value.place.problem("repeated-value", f"study.vary.{key}", value=text)
        for i, (value, text) in enumerate(zip(values, texts, strict=True))
        if text in texts[:i]
    ]
