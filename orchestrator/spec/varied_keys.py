"""The keys that a study varies, and their values in its file."""

from dataclasses import dataclass
from math import prod
from typing import Any

from orchestrator.spec.nodes import Entry, Mapping, Node, Scalar, Sequence
from orchestrator.spec.problem import Problem, SpecPosition

MOST_TRIALS = 1_000
SECTIONS = ("experiment", "resources", "run")
FIXED = {"run.storage": "their runs lie beside the study"}


@dataclass(frozen=True)
class VariedKey:
    """A key that is varied, where it stands, and its values."""

    key: str
    place: SpecPosition
    values: tuple[Node, ...]

    def is_of_key(self, problem: Problem) -> bool:
        """Whether it is the key that is wrong, and not a value of it."""
        col = problem.col - self.place.col
        return problem.line == self.place.line and 0 <= col < len(self.key)


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
        else:
            faults.append(node.place.problem("vary-values", f"study.vary.{key}"))
    trials = prod(len(one.values) for one in varied)
    if trials > MOST_TRIALS:
        fields: dict[str, Any] = {"trials": trials, "most": MOST_TRIALS}
        faults.append(vary.key_place.problem("too-many-trials", "study.vary", **fields))
        return [], faults
    return varied, faults


def _repeated(key: str, values: tuple[Node, ...]) -> list[Problem]:
    texts = [text_of(value) for value in values]
    return [
        value.place.problem("repeated-value", f"study.vary.{key}", value=text)
        for i, (value, text) in enumerate(zip(values, texts, strict=True))
        if text in texts[:i]
    ]


def text_of(node: Node) -> str:
    """A value as it is written on one line."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Mapping):
        inside = (f"{key}: {text_of(entry.node)}" for key, entry in node.entries.items())
        return f"{{{', '.join(inside)}}}"
    return f"[{', '.join(map(text_of, node.items))}]" if isinstance(node, Sequence) else ""
