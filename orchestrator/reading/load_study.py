"""Loads a study. A varied value enters the base spec's nodes with its place in the study."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

from orchestrator.reading.instance import SpecInstance
from orchestrator.reading.load import apply, load, put, spec_of
from orchestrator.reading.nodes import FLAG, Entry, Mapping, Node, Scalar, SequenceNode, parse, read
from orchestrator.reading.problems import Problem, SpecPosition, SpecProblems, SpecText, named_by
from orchestrator.reading.schema import study_schema
from orchestrator.values.codec import StudyKind
from orchestrator.values.spec import Spec
from orchestrator.values.study import Study, Trial

_MOST_TRIALS = 1_000
_SECTIONS = ("experiment", "resources", "run")
_FIXED = {"run.storage": "their runs lie next to the study"}
_PODS, _SEQUENCES = "resources.pods", "experiment.batch.sequences"
# Keys that make a trial larger: a study that varies one of them is about scaling.
_SIZES = (_PODS, "resources.topology")
_EXAMPLE = "for example vary: {resources.pods: [1, 2, 4]}"


@dataclass(frozen=True)
class _VariedKey:
    key: str
    place: SpecPosition
    values: tuple[Node, ...]


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """Return the study of a file, its base changed by `--set`; `SpecProblems` has all problems."""
    applied = tuple(overrides)
    root, problems = parse(read(path))
    varied, form_problems = _take_varied(root)
    file = SpecInstance(root, study_schema)
    problems += [*form_problems, *file.problems]
    # What `--set` would change, every trial then sets.
    source, hint = SpecText(FLAG, applied), "change its values in the study's vary"
    for line, text in enumerate(applied, start=1):
        key, message = text.partition("=")[0], "is varied, must be left to the study"
        if any(f"{key}.".startswith(f"{varied_key.key}.") for varied_key in varied):
            place = SpecPosition(source, line, 1)
            problems.append(place.problem("override-of-varied", key, message, hint))
    base, spec = _load_base(file, path.parent, applied, problems)
    section = file.value["study"]
    # The kind is given, or follows from the keys that are given and varied.
    has_size = any(varied_key.key in _SIZES for varied_key in varied)
    is_scaling = "scaling" in section or has_size
    kind: StudyKind = section.get("kind") or ("scaling" if is_scaling else "sweep")
    scaling = section.get("scaling", "strong") if kind == "scaling" else None
    if kind == "sweep" and "scaling" in section:
        message = "goes with a study of scaling, must be left out of a sweep"
        place = file.fields["study", "scaling"].key_place
        problems.append(place.problem("of-scaling", "study.scaling", message, "remove it"))
    if kind == "scaling" and scaling != "weak" and not form_problems and not has_size:
        sizes = " or ".join(_SIZES)
        message = f"compares trials of different sizes, must go with {sizes}"
        place = file.place("study.scaling" if "scaling" in section else "study.kind")
        hint = "write kind: sweep to compare losses"
        problems.append(place.problem("scaling-without-size", "study.scaling", message, hint))
    weak_problems = _weak_problems(file, varied, spec) if scaling == "weak" else []
    grown = spec if scaling == "weak" and not weak_problems else None
    grid = [] if form_problems else product(*(varied_key.values for varied_key in varied))
    points = [list(zip(varied, values, strict=True)) for values in grid]
    trials, trial_problems = _trials(base, applied, points, grown)
    is_misspelt = any(
        problem.line == varied_key.place.line
        and 0 <= problem.col - varied_key.place.col < len(varied_key.key)
        for problem in trial_problems
        for varied_key in varied
    )
    if not form_problems and not is_misspelt:
        problems += weak_problems  # a misspelt key may be the one for weak scaling
    if found := [*problems, *trial_problems]:
        raise SpecProblems(found)
    return Study(
        name=file.value.get("name", f"{spec.name[:56]}-{scaling or kind}"),
        scaling=scaling,
        vary=tuple(varied_key.key for varied_key in varied),
        repeats=section.get("repeats", 1),
        after_failure=section.get("after_failure", "stop"),
        trials=trials,
        base=section["base"],
    )


def _take_varied(root: Node) -> tuple[list[_VariedKey], list[Problem]]:
    """Return the varied keys and what is wrong with their form; a legal value replaces them."""
    study = root.entries.get("study") if isinstance(root, Mapping) else None
    if study is None or not isinstance(study.node, Mapping) or "vary" not in study.node.entries:
        return [], []
    vary = study.node.entries["vary"]
    at = vary.key_place
    legal = SequenceNode(at, [Scalar(at, "0", plain=True)])
    study.node.entries["vary"] = Entry(at, Mapping(at, {"any": Entry(at, legal)}))
    if not isinstance(vary.node, Mapping) or not vary.node.entries:
        message = "must be a mapping of dotted keys to lists of values"
        return [], [at.problem("vary-form", "study.vary", message, _EXAMPLE)]
    varied, faults = [], []
    for name, entry in vary.node.entries.items():
        place, node, key = entry.key_place, entry.node, f"study.vary.{name}"
        if name in _FIXED:
            message = f"cannot be varied, must be the same for all trials: {_FIXED[name]}"
            faults.append(place.problem("vary-fixed", key, message, _EXAMPLE))
        elif not all(name.split(".")) or name.split(".")[0] not in _SECTIONS:
            message = f"cannot be varied, must begin with one of {', '.join(_SECTIONS)}"
            faults.append(place.problem("vary-key", key, message, _EXAMPLE))
        elif isinstance(node, SequenceNode) and node.items:
            texts = [_text_of(value) for value in node.items]
            for number, text in enumerate(texts):
                if text in texts[:number]:
                    place, message = node.items[number].place, f"is {text}, must be given once"
                    faults.append(place.problem("repeated-value", key, message, "remove it"))
            varied.append(_VariedKey(name, entry.key_place, tuple(node.items)))
        else:
            message = "must be a list of at least one value"
            hint = f"{_EXAMPLE}; docs/studies.md shows random values"
            faults.append(node.place.problem("vary-values", key, message, hint))
    trials = prod(len(varied_key.values) for varied_key in varied)
    if trials > _MOST_TRIALS:
        message = f"makes {trials:,} trials, must make at most {_MOST_TRIALS:,}"
        hint = "give fewer values"
        faults.append(at.problem("too-many-trials", "study.vary", message, hint))
        return [], faults
    return varied, faults


def _text_of(node: Node) -> str:
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Mapping):
        inside = (f"{key}: {_text_of(entry.node)}" for key, entry in node.entries.items())
        return f"{{{', '.join(inside)}}}"
    return f"[{', '.join(map(_text_of, node.items))}]" if isinstance(node, SequenceNode) else ""


def _load_base(
    file: SpecInstance, folder: Path, overrides: tuple[str, ...], problems: list[Problem]
) -> tuple[Path, Spec]:
    """Return the base and its spec; an error holds the problems of the study and of the base."""
    study = file.value.get("study") if isinstance(file.value, dict) else None
    has_base = isinstance(study, dict) and study.get("base") is not None
    if not has_base or file.is_rejected(("study", "base")):
        raise SpecProblems(problems)
    base = folder / file.value["study"]["base"]
    try:
        return base, load(base, overrides)
    except SpecProblems as error:
        inside = [problem for problem in error.problems if problem.file == str(base)]
        others = [problem for problem in error.problems if problem.file != str(base)]
        named = named_by(file.place("study.base"), "study.base", inside)
        raise SpecProblems([*problems, *named, *others]) from None


def _weak_problems(file: SpecInstance, varied: list[_VariedKey], base: Spec) -> list[Problem]:
    """Return what is wrong with weak scaling: the batch follows the pods, and only them."""
    keys, pods = [varied_key.key for varied_key in varied], base.resources.pods
    place, found = file.place("study.scaling"), []
    if _PODS not in keys:
        message = f"is weak, must go with {_PODS} among the keys that are varied"
        found.append(place.problem("weak-without-pods", "study.scaling", message, _EXAMPLE))
    if _SEQUENCES in keys:
        message, hint = f"is weak, must leave {_SEQUENCES} to follow the pods", "or write strong"
        found.append(place.problem("weak-with-sequences", "study.scaling", message, hint))
    if pods.min != pods.max:
        message = "is weak, must have a base with one number of pods: its batch belongs to that"
        hint = "for example resources.pods: 4"
        found.append(place.problem("weak-with-a-range", "study.scaling", message, hint))
    return found


def _trials(
    base: Path, overrides: tuple[str, ...], points: list[list[tuple[_VariedKey, Node]]],
    weak: Spec | None,
) -> tuple[tuple[Trial, ...], list[Problem]]:  # fmt: skip
    """Return every trial as a spec, and all problems of all of them, each once."""
    source = read(base)
    trials: list[Trial] = []
    problems: dict[tuple[str, int, int, str, str], Problem] = {}
    for number, point in enumerate(points, start=1):
        settings = {varied_key.key: _text_of(value) for varied_key, value in point}
        root, wrong = parse(source)
        wrong += apply(root, overrides)
        for varied_key, value in point:
            if weak and varied_key.key == _PODS:
                # The batch of so many pods, each with as many sequences as a pod of the base.
                text, key = value.text if isinstance(value, Scalar) else "", f"study.vary.{_PODS}"
                sequences, base_pods = weak.experiment.batch.sequences, weak.resources.pods.max
                if not text.isdecimal() or int(text) < 1:
                    message = "must be a whole number of pods in weak scaling"
                    hint = "for example 4"
                    wrong.append(value.place.problem("weak-pods", key, message, hint))
                    continue
                if sequences * int(text) % base_pods:
                    grown = f"{sequences * int(text) / base_pods:,g} on {text}"
                    reason = f"{sequences:,} sequences on {base_pods} pods are {grown}"
                    message = f"is {text}, must give a whole batch: {reason}"
                    hint = "change the batch of the base with --set"
                    wrong.append(value.place.problem("weak-batch", key, message, hint))
                    continue
                batch = Scalar(value.place, str(sequences * int(text) // base_pods), plain=True)
                settings[_SEQUENCES] = batch.text
                wrong += put(root, _SEQUENCES.split("."), varied_key.place, batch)
            wrong += put(root, varied_key.key.split("."), varied_key.place, value)
        try:
            applied = (*overrides, *(f"{key}={text}" for key, text in settings.items()))
            spec = spec_of(root, wrong, base.parent, applied)
            trials.append(Trial(number=number, settings=settings, spec=spec))
        except SpecProblems as error:
            for found in error.problems:
                problems[found.file, found.line, found.col, found.key, found.message] = found
    return tuple(trials), list(problems.values())
