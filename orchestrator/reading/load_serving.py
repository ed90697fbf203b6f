"""Loads a file as a ServingSpec, with its `--set` overrides and the files that it names."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.catalog.chips import Chip
from orchestrator.catalog.serving import learned
from orchestrator.reading import nodes
from orchestrator.reading import schema as schemas
from orchestrator.reading.checks import check_model
from orchestrator.reading.instance import SpecInstance
from orchestrator.reading.load import apply, chip_and_model, model_values
from orchestrator.reading.problems import Problem, SpecProblems, SpecText
from orchestrator.values.model import Model
from orchestrator.values.serving import ANY_ENGINE, ServingSpec

_MODEL, _LENGTHS, _WISHES = "serve.model", ("prompt", "output"), ("ttft", "tpot")


def load_serving(
    source: Path | SpecText, overrides: Sequence[str] = (), base: Path | None = None
) -> ServingSpec:
    """Return the serving spec of a file or text with `--set` overrides; `SpecProblems` has all that
    is wrong. The files that it names are found from `base`, by default its folder.
    """
    text = nodes.read(source) if isinstance(source, Path) else source
    root, problems = nodes.parse(text)
    problems += apply(root, overrides)
    file = SpecInstance(root, schemas.serving_schema)
    check_model(file, _MODEL)
    chip, definition, model, elsewhere = chip_and_model(
        file, base or Path(text.name).parent, _MODEL
    )
    if everything := [*problems, *file.problems, *elsewhere]:
        raise SpecProblems(everything)
    assert chip is not None
    # Lengths as lists with shares, and wishes as mappings.
    serve = dict(file.values["serve"])
    for key in _LENGTHS:
        if isinstance(serve[key], int):
            serve[key] = [{"tokens": serve[key], "share": 1.0}]
    for key in _WISHES:
        if isinstance(serve.get(key), float):
            serve[key] = {"time": serve[key]}
    serve["model"] = model_values(model)
    shape = msgspec.convert(serve["model"], Model)
    if wrong := [*_problems(file, serve, chip, shape)]:
        raise SpecProblems(wrong)
    resources = {**file.values["resources"], "chip": chip.name, "chip_definition": definition}
    mesh = resources.get("mesh", schemas.AUTO)
    sizes = {} if mesh == schemas.AUTO else mesh
    resources["mesh"] = {axis: size for axis, size in sizes.items() if size != schemas.AUTO}
    if "topology" in resources:
        resources["topology"] = str(resources["topology"])
    values = {key: value for key, value in file.values.items() if key != "schema"}
    return msgspec.convert(
        {**values, "serve": serve, "resources": resources, "overrides": tuple(overrides)},
        ServingSpec,
    )


def _problems(
    file: SpecInstance, serve: dict[str, Any], chip: Chip, model: Model
) -> Iterator[Problem]:
    """Yield what is wrong with keys together."""
    for key in _LENGTHS:
        total = sum(length["share"] for length in serve[key])
        if abs(total - 1) > 1e-6:
            message = f"has shares of {100 * total:g} % in all, must add up to 100 %"
            place = file.place(f"serve.{key}")
            hint = (
                f"for example {key}: [{{tokens: 1024, share: 80%}}, {{tokens: 8192, share: 20%}}]"
            )
            yield place.problem("shares", f"serve.{key}", message, hint)
    if "requests_per_s" in serve and "concurrency" in serve:
        message = "is given with serve.requests_per_s, must be left out: one follows from the other"
        key = "serve.concurrency"
        yield file.place(key).problem("rate-and-concurrency", key, message, "remove one of the two")
    if "tpot" in serve and all(length["tokens"] == 1 for length in serve["output"]):
        message = "is given for answers of one token, must be left out: nothing is between tokens"
        key = "serve.tpot"
        yield file.place(key).problem("tpot-of-one-token", key, message, "wish for serve.ttft")
    engine = serve.get("engine", ANY_ENGINE)
    known = learned().constants
    if engine != ANY_ENGINE and chip.name not in known[engine]:
        runs = sorted(name for name in known if chip.name in known[name] and name != ANY_ENGINE)
        message = f"is {engine}, of which no run on {chip.name} is published"
        hint = f"with runs on {chip.name}: {', '.join(runs)}" if runs else f"write {ANY_ENGINE}"
        yield file.place("serve.engine").problem("unknown-engine", "serve.engine", message, hint)
    positions = model.learned_positions
    longest = sum(max(length["tokens"] for length in serve[key]) for key in _LENGTHS)
    if positions and longest > positions:
        message = (
            f"and serve.output come to {longest:,} tokens, must be at most the {positions:,}"
            " positions that are learned"
        )
        place = file.place("serve.prompt")
        yield place.problem("too-few-positions", "serve.prompt", message, "shorten one of them")
