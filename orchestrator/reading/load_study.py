"""Loads a study. Each varied value is put into the nodes of the base spec.

A value keeps its place in the study's text, where its problems are reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from orchestrator.reading import schema as schemas
from orchestrator.reading.instance import SpecInstance, instance_of, validate
from orchestrator.reading.load import load, spec_of
from orchestrator.reading.nodes import Entry, Mapping, Node, Scalar, SequenceNode, parse, read
from orchestrator.reading.overrides import FLAG, apply, put
from orchestrator.reading.problems import (
    FileReference,
    Problem,
    SpecPosition,
    SpecProblems,
    SpecText,
    named_by,
)
from orchestrator.values.spec import Spec
from orchestrator.values.study import Study, StudyKind, Trial

# The keys that a study varies, and their values in its file.


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
        elif isinstance(node, SequenceNode) and node.items:
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
    return f"[{', '.join(map(text_of, node.items))}]" if isinstance(node, SequenceNode) else ""


PODS, SEQUENCES = "resources.pods", "experiment.batch.sequences"
# What makes a trial larger: a study that varies one of these is about scaling.
SIZES = (PODS, "resources.topology")
Point = list[tuple[VariedKey, Node]]  # the keys of a trial with their values
# A legal value in place of the keys to vary, which are validated as keys of a spec.
PLACEHOLDER = {"any": [0]}


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """The study of a file, its base changed by `--set`; `SpecProblems` has all that is wrong."""
    applied = tuple(overrides)
    root, problems = parse(read(path))
    vary = _take_vary(root)
    varied, form_problems = varied_keys(vary) if vary else ([], [])
    file = _validated(root, vary)
    problems += [*form_problems, *file.problems, *_overridden(varied, applied)]
    base, spec = _load_base(file, path.parent, applied, problems)
    section, kind = file.value["study"], _kind(file, varied)
    problems += _of_another_kind(file, varied, kind, form_problems)
    weak_problems: list[Problem] = []
    if weak := kind == "scaling" and section.get("scaling") == "weak":
        place = file.fields["study", "scaling"].node.place
        weak_problems = _weak_problems(varied, spec, place)
    grown = spec if weak and not weak_problems else None
    grid = [] if form_problems else product(*(one.values for one in varied))
    points = [list(zip(varied, values, strict=True)) for values in grid]
    trials, trial_problems = _trials(base, applied, points, grown)
    if not form_problems and not _wrong_keys(varied, trial_problems):
        problems += weak_problems  # else the misspelt key may be the one for weak scaling
    if found := [*problems, *trial_problems]:
        raise SpecProblems(found)
    scaling = section.get("scaling", "strong") if kind == "scaling" else None
    return Study(
        name=file.value.get("name", f"{spec.name[:56]}-{scaling or kind}"),
        scaling=scaling,
        vary=tuple(one.key for one in varied),
        repeats=section.get("repeats", 1),
        after_failure=section.get("after_failure", "stop"),
        trials=trials,
        base=section["base"],
    )


def _kind(file: SpecInstance, varied: list[VariedKey]) -> StudyKind:
    """What the study compares: as it says, or as the keys that are given and varied show."""
    section = file.value["study"]
    is_scaling = "scaling" in section or any(one.key in SIZES for one in varied)
    kind: StudyKind = section.get("kind") or ("scaling" if is_scaling else "sweep")
    return kind


def _of_another_kind(
    file: SpecInstance, varied: list[VariedKey], kind: StudyKind, form_problems: list[Problem]
) -> list[Problem]:
    """The keys that go with the other kind of study, and scaling without a size that varies."""
    is_given = "scaling" in file.value["study"]
    if kind == "sweep":
        place = file.fields["study", "scaling"].key_place if is_given else None
        return [place.problem("of-scaling", "study.scaling")] if place else []
    weak = file.value["study"].get("scaling") == "weak"
    if not weak and not form_problems and not any(one.key in SIZES for one in varied):
        place = file.fields["study", "scaling" if is_given else "kind"].node.place
        return [place.problem("scaling-without-size", "study.scaling")]
    return []


def _take_vary(root: Node) -> Entry | None:
    """The keys to vary, taken out of the file: the schema of a spec applies to their values."""
    study = root.entries.get("study") if isinstance(root, Mapping) else None
    inside = study.node if study else None
    return inside.entries.pop("vary", None) if isinstance(inside, Mapping) else None


def _validated(root: Node, vary: Entry | None) -> SpecInstance:
    """The rest of the file, checked against the schema of a study."""
    file = instance_of(root, schemas.study_schema())
    if vary and "study" in file.value:
        file.value["study"]["vary"] = PLACEHOLDER
    validate(file, schemas.study_validator())
    return file


def _load_base(
    file: SpecInstance, folder: Path, overrides: tuple[str, ...], problems: list[Problem]
) -> tuple[Path, Spec]:
    """The base and its spec; an error holds the problems of the study with those of the base."""
    study = file.value.get("study") if isinstance(file.value, dict) else None
    named = isinstance(study, dict) and study.get("base") is not None
    if not named or file.is_rejected(("study", "base")):
        raise SpecProblems(problems)
    base = folder / file.value["study"]["base"]
    reference = FileReference(file.fields["study", "base"].node.place, "study.base")
    try:
        return base, load(base, overrides)
    except SpecProblems as error:
        inside = [one for one in error.problems if one.file == str(base)]
        others = [one for one in error.problems if one.file != str(base)]
        raise SpecProblems([*problems, *named_by(reference, inside), *others]) from None


def _wrong_keys(varied: list[VariedKey], problems: list[Problem]) -> bool:
    """Whether a key to vary is wrong, and not only one of its values."""
    return any(one.is_of_key(problem) for one in varied for problem in problems)


def _overridden(varied: list[VariedKey], overrides: tuple[str, ...]) -> list[Problem]:
    """What `--set` would change and every trial then sets otherwise."""
    source = SpecText(FLAG, overrides)
    keys = [(line, text.partition("=")[0]) for line, text in enumerate(overrides, start=1)]
    return [
        SpecPosition(source, line, 1).problem("override-of-varied", key)
        for line, key in keys
        if any(f"{key}.".startswith(f"{one.key}.") for one in varied)
    ]


def _weak_problems(varied: list[VariedKey], base: Spec, place: SpecPosition) -> list[Problem]:
    """In weak scaling the batch follows the pods, and only them."""
    keys, pods = [one.key for one in varied], base.resources.pods
    faults = {
        "weak-without-pods": PODS not in keys,
        "weak-with-sequences": SEQUENCES in keys,
        "weak-with-a-range": pods.min != pods.max,
    }
    return [place.problem(code, "study.scaling") for code, holds in faults.items() if holds]


def _trials(
    base: Path,
    overrides: tuple[str, ...],
    points: list[Point],
    weak: Spec | None,
) -> tuple[tuple[Trial, ...], list[Problem]]:
    """Every trial as a spec, and all problems of all of them, each once."""
    source = read(base)
    trials: list[Trial] = []
    problems: dict[tuple[str, int, int, str, str], Problem] = {}
    for number, point in enumerate(points, start=1):
        try:
            trials.append(_trial(number, base.parent, source, overrides, point, weak))
        except SpecProblems as error:
            problems |= {_identity(problem): problem for problem in error.problems}
    return tuple(trials), list(problems.values())


def _identity(problem: Problem) -> tuple[str, int, int, str, str]:
    return problem.file, problem.line, problem.col, problem.key, problem.message


def _trial(
    number: int,
    folder: Path,
    source: SpecText,
    overrides: tuple[str, ...],
    point: Point,
    weak: Spec | None,
) -> Trial:
    root, problems = parse(source)
    problems += apply(root, overrides)
    settings = {one.key: text_of(value) for one, value in point}
    for one, value in point:
        if weak and one.key == PODS:
            try:
                batch = _grown(value, weak)
            except SpecProblems as error:
                problems += error.problems
                continue
            settings[SEQUENCES] = batch.text
            problems += put(root, SEQUENCES.split("."), one.place, batch)
        problems += put(root, one.key.split("."), one.place, value)
    applied = (*overrides, *(f"{key}={text}" for key, text in settings.items()))
    return Trial(number=number, settings=settings, spec=spec_of(root, problems, folder, applied))


def _grown(pods: Node, base: Spec) -> Scalar:
    """The batch of so many pods, each with as many sequences as a pod of the base."""
    text = pods.text if isinstance(pods, Scalar) else ""
    section, of = base.experiment.batch.sequences, base.resources.pods.max
    if not text.isdecimal() or int(text) < 1:
        raise SpecProblems([pods.place.problem("weak-pods", f"study.vary.{PODS}")])
    if section * int(text) % of:
        fields: dict[str, Any] = {"pods": text, "sequences": section, "base_pods": of}
        fields["batch"] = section * int(text) / of
        raise SpecProblems([pods.place.problem("weak-batch", f"study.vary.{PODS}", **fields)])
    return Scalar(pods.place, str(section * int(text) // of), plain=True)
