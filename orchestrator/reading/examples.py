"""Writes specs: a loaded one as YAML, a commented one to start from, the examples, the schemas. A
new spec names the JSON Schema next to it by a relative path, so that editors check it offline.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from orchestrator import catalog
from orchestrator.errors import OrchError, SpecError, UnknownName, Usage, refuse_options
from orchestrator.processes import resource
from orchestrator.reading import schema as schemas
from orchestrator.reading.checks import SCHEDULE, SECTIONS
from orchestrator.reading.expectations import is_legal, must
from orchestrator.reading.load import load
from orchestrator.reading.nodes import NO_NAMES, ambiguous
from orchestrator.storage.addresses import is_address
from orchestrator.values.model import Model
from orchestrator.values.spec import Pods, Spec, TrainingStage

_SCHEMA, _STUDY_SCHEMA = ".orch/spec.schema.json", ".orch/study.schema.json"
_NAME = re.compile(r"^name: (\S+)$", re.MULTILINE)
_LINE = 10_000  # a text is never wrapped
_COMPUTED_KEYS = ("chip_definition", "overrides")


def spec_text(spec: Spec) -> str:
    """Return a spec as YAML without defaults. A chip of one's own has a file of its own."""
    if spec.resources.chip_definition is not None:
        raise SpecError(f"resources.chip: {spec.resources.chip} is a chip of a file of your own")
    return yaml_text([_section(spec)])


def yaml_text(documents: Sequence[Mapping[str, Any]]) -> str:
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=_LINE)


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, and a text of many lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _section(value: Any) -> dict[str, Any]:
    """Return the keys of a section that are not its defaults."""

    def default(key: Field[Any]) -> Any:
        return key.default if key.default_factory is MISSING else key.default_factory()

    return {
        schemas.KEYS_IN_FILES.get(key.name, key.name): _written(key.name, getattr(value, key.name))
        for key in fields(value)
        if key.name not in _COMPUTED_KEYS and getattr(value, key.name) != default(key)
    }


def _stage(stage: TrainingStage, before: TrainingStage) -> dict[str, Any]:
    """Return a stage with what changes in it; the first is as the experiment."""
    written: dict[str, Any] = {"tokens": stage.tokens}
    for section in SECTIONS:
        now, earlier = getattr(stage, section), getattr(before, section)
        keys = [
            key.name for key in fields(now) if getattr(now, key.name) != getattr(earlier, key.name)
        ]
        if section == "optimizer" and stage.restarts_schedule:
            keys += [key for key in SCHEDULE if key not in keys]
        if section == "data" and keys:
            keys = [key.name for key in fields(now) if getattr(now, key.name) is not None]
        if keys:
            written[section] = {key: _written(key, getattr(now, key)) for key in keys}
    return written


def _written(key: str, value: Any) -> Any:
    if isinstance(value, Model) and value.name in catalog.models():
        known = catalog.model(value.name)
        return value.name if known == value else _section(value)
    if isinstance(value, Pods) and value == Pods(min=value.max, max=value.max):
        return value.max
    if is_dataclass(value):
        return _section(value)
    if key == "stages":
        return [_stage(stage, value[max(n - 1, 0)]) for n, stage in enumerate(value)]
    if value is None:  # a default is left out: only what a plan chooses is written so
        return schemas.AUTO
    if isinstance(value, tuple):
        return list(value)
    return f"{value:g}s" if key in schemas.KEYS_IN_FILES else value


# Specs to start from: a commented one, and the examples that travel with orch.


def examples() -> dict[str, str]:
    """Return the examples by name, each with the first sentence of its opening comment."""
    summaries = {}
    for path in sorted(resource("examples").glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        opening = " ".join(line.strip("# ") for line in takewhile(lambda line: line != "#", lines))
        summaries[path.stem] = opening.removesuffix(".")
    return summaries


def create(
    path: Path | None = None, example: str | None = None, overrides: Sequence[str] = ()
) -> Path:
    """Write the starter, an example or another spec under that name, or its example's, with its
    schema. Overrides lose comments; an existing spec is never overwritten.
    """
    if path is None and example is None:
        raise Usage("name the file to write, for example my-run.yaml")
    path = path or Path(f"{example}.yaml")
    if example is None:
        refuse_options({"--set": overrides}, "--from")
        text = _starter(path)
    elif example not in examples() and not example.endswith((".yaml", ".yml")):
        raise UnknownName("example", example, list(examples()))
    elif example not in examples():
        text = _changed(Path(example), path, overrides)
    elif overrides:
        text = _changed(resource("examples", f"{example}.yaml"), path, overrides)
    else:
        text = resource("examples", f"{example}.yaml").read_text(encoding="utf-8")
        text = _named(text, path).replace(f"specs/{example}.yaml", str(path))
    try:
        _write_schema(path.parent)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OrchError(f"{path}: exists already; name another file") from None
    except OSError as error:
        raise OrchError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def _write_schema(folder: Path) -> None:
    """Write the schemas that the specs and studies of a folder name in their first line."""
    for name, schema in {_SCHEMA: schemas.spec_schema, _STUDY_SCHEMA: schemas.study_schema}.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(schemas.schema_text(schema()), encoding="utf-8")


def _starter(path: Path) -> str:
    """Return a small commented spec, named after its file, that loads and plans as it stands."""
    text = resource("reading", "starter.yaml").read_text(encoding="utf-8")
    return _named(text, path).replace("my-run.yaml", str(path))


def _changed(source: Path, path: Path, overrides: Sequence[str]) -> str:
    """Return the text of a spec with overrides, whose path of data is found from its new place."""
    spec = load(source, overrides)
    data = spec.experiment.data
    if data.path and not is_address(data.path) and not Path(data.path).is_absolute():
        there = Path(os.path.relpath(source.parent / data.path, path.parent))
        moved = replace(data, path=there.as_posix())
        spec = replace(spec, experiment=replace(spec.experiment, data=moved))
    made_by = " ".join(["from", source.name, *(f"--set {override}" for override in overrides)])
    head = f"# yaml-language-server: $schema={_SCHEMA}\n# {made_by}\n"
    return head + _named(spec_text(spec), path)


def _named(text: str, path: Path) -> str:
    name, wanted = path.stem.replace("_", "-"), schemas.schema_field("name")
    if not is_legal(name, wanted):
        raise SpecError(f"{path.stem!r} cannot name a spec: it must be {must(wanted)}")
    quoted = ambiguous(name, name) or name in NO_NAMES
    return _NAME.sub(f'name: "{name}"' if quoted else f"name: {name}", text, count=1)
