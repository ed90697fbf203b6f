"""Writes specs: a loaded one as YAML, a commented one to start from, the examples, the schemas. A
new spec names the JSON Schema next to it by a relative path, so that editors check it offline.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from msgspec import NODEFAULT, structs

from orchestrator import catalog
from orchestrator.errors import OrchError, SpecError, UnknownName, Usage
from orchestrator.processes import resource
from orchestrator.reading import nodes
from orchestrator.reading import schema as schemas
from orchestrator.reading.checks import SCHEDULE, SECTIONS
from orchestrator.reading.expectations import is_legal, must
from orchestrator.reading.load import files_named, is_serving, load
from orchestrator.reading.load_serving import load_serving
from orchestrator.reading.nodes import NO_NAMES, NULLS, ambiguous
from orchestrator.reading.problems import SpecText
from orchestrator.storage.addresses import is_address
from orchestrator.values.model import Model
from orchestrator.values.serving import ServingSpec
from orchestrator.values.spec import Pods, Spec, TrainingStage

_SCHEMA, _STUDY_SCHEMA = ".orch/spec.schema.json", ".orch/study.schema.json"
_SERVING_SCHEMA = ".orch/serving.schema.json"
_HEAD = re.compile(r"^# yaml-language-server:.*\n")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")  # of a key of a ConfigMap
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")  # of TOML
_LINE = 10_000  # a text is never wrapped
_COMPUTED_KEYS = ("chip_definition", "overrides")


def spec_text(spec: Spec | ServingSpec, chip_file: str | None = None) -> str:
    """Return a spec as YAML without defaults, which names the file of a chip of one's own."""
    section = _section(spec)
    if spec.resources.chip_definition is not None:
        if chip_file is None:
            why = "is a chip of a file of your own, which the new text would not name"
            raise SpecError(
                f"resources.chip: {spec.resources.chip} {why}: change the spec's own text"
            )
        section["resources"]["chip"] = {"file": chip_file}
    return yaml_text([section])


def chip_files(spec: Spec) -> dict[str, str]:
    """Return the text of the file that has the chip, by its name; none for one of the catalog."""
    definition, name = spec.resources.chip_definition, f"{spec.resources.chip}.toml"
    if definition is None:
        return {}
    if not _PLAIN_NAME.fullmatch(name):
        raise SpecError(
            f"resources.chip: {name} cannot go along with the spec: name the file with letters,"
            " digits, . _ and - only"
        )
    lines = (f"{key} = {_toml(value)}\n" for key, value in definition.items())
    return {name: "".join(lines)}


def _toml(value: Any) -> str:
    """Return a value of TOML on one line; its texts and numbers are those of JSON."""
    if isinstance(value, dict):
        keys = {key: key if _PLAIN_KEY.fullmatch(key) else json.dumps(key) for key in value}
        pairs = (f"{keys[key]} = {_toml(inside)}" for key, inside in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


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

    def default(key: structs.FieldInfo) -> Any:
        return key.default if key.default_factory is NODEFAULT else key.default_factory()

    return {
        schemas.KEYS_IN_FILES.get(key.name, key.name): _written(key.name, getattr(value, key.name))
        for key in structs.fields(value)
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
        return [_written(key, item) for item in value]
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
    """Write the starter, an example or another spec as a spec of that name, with its schema. It
    keeps the comments, has the overrides, and finds its files from its new place. An existing spec
    is never overwritten. Without a path it is named after its example.
    """
    if path is None and example is None:
        raise Usage("name the file to write, for example my-run.yaml")
    path, known = path or Path(f"{example}.yaml"), examples()
    if example is None:
        source, mentioned = resource("reading", "starter.yaml"), "my-run.yaml"
    elif example in known:
        source, mentioned = resource("examples", f"{example}.yaml"), f"specs/{example}.yaml"
    elif example.endswith((".yaml", ".yml")):
        source, mentioned = Path(example), example
    else:
        raise UnknownName("example", example, list(known))
    # Overrides of what travels with orch name files as seen from the new spec.
    base = source.parent if source == Path(example or "") else path.parent
    text = _changed(source, path, base, overrides).replace(mentioned, str(path))
    schemas_written = {
        _SCHEMA: schemas.spec_schema,
        _STUDY_SCHEMA: schemas.study_schema,
        _SERVING_SCHEMA: schemas.serving_schema,
    }
    try:
        for name, make in schemas_written.items():
            file = path.parent / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(schemas.schema_text(make()), encoding="utf-8")
        with path.open("x", encoding="utf-8") as output:
            schema = _SERVING_SCHEMA if is_serving(source) else _SCHEMA
            output.write(f"# yaml-language-server: $schema={schema}\n{text.rstrip()}\n")
    except FileExistsError:
        raise OrchError(f"{path}: exists already; name another file") from None
    except OSError as error:
        raise OrchError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def _changed(source: Path, path: Path, base: Path, overrides: Sequence[str]) -> str:
    """Return the text of a spec, whose files are named as seen from `base`, for its new place."""
    read: Any = load_serving if is_serving(source) else load
    spec, text = read(source, overrides, base), "\n".join(nodes.read(source).lines)
    for override in overrides:
        key, _, value = override.partition("=")
        text = _edited(text, key.split("."), value)
    if getattr(spec, "choice", None) is None:  # overrides leave out what the compiler chose
        text = re.sub(r"(?m)^choice:.*\n?", "", text)
    written = SpecText(str(path), tuple(text.splitlines()))
    if read(written, (), base) != replace(spec, overrides=()):
        text = spec_text(spec)  # without comments, rather than another spec
    for keys, file in files_named(nodes.parse(written)[0]):
        if base != path.parent and not is_address(file) and not Path(file).is_absolute():
            there = Path(os.path.relpath(base / file, path.parent))
            text = _edited(text, [str(key) for key in keys], there.as_posix())
    return _named(_HEAD.sub("", text, count=1), path)


def _named(text: str, path: Path) -> str:
    name, wanted = path.stem.replace("_", "-"), schemas.schema_field("name")
    if not is_legal(name, wanted):
        raise SpecError(f"{path.stem!r} cannot name a spec: it must be {must(wanted)}")
    quoted = ambiguous(name, name) or name in NO_NAMES
    return _edited(text, ["name"], f'"{name}"' if quoted else name)


# Changes of a text that leave its comments where they are.


def _edited(text: str, keys: Sequence[str], value: str) -> str:
    """Return YAML with a value under a path of keys, or without it where the value is null."""
    node: Any = yaml.compose(text, Loader=yaml.BaseLoader)
    holder, pair, rest, unset = node, None, list(keys), value.strip() in NULLS
    while rest and (found := _entry(node, rest[0])):
        holder, pair, node, rest = node, found, found[1], rest[1:]
    if rest and unset:
        return text
    if unset and pair and len(holder.value) > 1:
        return _without(text, holder, pair)
    if unset:  # the section stays, and has nothing
        return _edited(text, keys[:-1], "{}")
    if rest and isinstance(node, yaml.MappingNode):  # a key that is new
        entry = _flow(rest, value)
        if not node.value:
            return f"{text[: node.start_mark.index]}{{{entry}}}{text[node.end_mark.index :]}"
        end = _end(text, node.value[-1][1])
        if node.flow_style:
            return f"{text[:end]}, {entry}{text[end:]}"
        end = _line_end(text, end)
        return f"{text[:end]}\n{' ' * node.start_mark.column}{entry}{text[end:]}"
    assert pair is not None
    key = pair[0].value
    entry = _flow([key, *rest], value)
    start = pair[0].start_mark.index
    if isinstance(holder, yaml.SequenceNode):
        entry = entry.partition(": ")[2]
    return f"{text[:start]}{entry}{text[_end(text, node) :]}"


def _entry(node: yaml.Node, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return a key of a mapping with its value, or an item of a list in both places."""
    if isinstance(node, yaml.SequenceNode):
        return (node.value[int(key)],) * 2 if key.isdigit() else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((pair for pair in pairs if pair[0].value == key), None)


def _without(text: str, mapping: Any, pair: tuple[yaml.Node, yaml.Node]) -> str:
    start, end = pair[0].start_mark.index, _end(text, pair[1])
    if not mapping.flow_style:
        start = text.rfind("\n", 0, start) + 1
        return text[:start] + text[_line_end(text, end) + 1 :]
    number = mapping.value.index(pair)
    if number + 1 < len(mapping.value):
        end = mapping.value[number + 1][0].start_mark.index
    else:
        start = _end(text, mapping.value[number - 1][1])
    return text[:start] + text[end:]


def _end(text: str, node: yaml.Node) -> int:
    """Return where a value ends; that of a block ends with its last value."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(node, yaml.MappingNode) else last
    return len(text[: node.end_mark.index].rstrip()) if node.value else node.end_mark.index


def _line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def _flow(keys: Sequence[str], value: str) -> str:
    """Return `key: value` on one line, with braces around inner keys."""
    node = yaml.compose(value, Loader=yaml.BaseLoader)
    inner = [node]
    while inner:
        part = inner.pop()
        if isinstance(part, yaml.CollectionNode):
            part.flow_style = True
            pairs = part.value if isinstance(part, yaml.MappingNode) else [part.value]
            inner += [child for pair in pairs for child in pair]
    for key in reversed(keys):
        name = yaml.ScalarNode("tag:yaml.org,2002:str", key)
        node = yaml.MappingNode("tag:yaml.org,2002:map", [(name, node)], flow_style=True)
    return yaml.serialize(node, Dumper=yaml.BaseDumper, width=_LINE).strip()[1:-1]
