"""Loads a file as a Spec, with its `--set` overrides and the files that it names."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.network.decoder import decoder
from orchestrator.reading import huggingface, nodes
from orchestrator.reading import schema as schemas
from orchestrator.reading.checks import SECTIONS, check, check_topology, has_scheme, written_out
from orchestrator.reading.expectations import shown
from orchestrator.reading.instance import KeyPath, SpecInstance, dotted
from orchestrator.reading.nodes import FLAG, Mapping, Node, Scalar, SequenceNode
from orchestrator.reading.problems import Problem, SpecPosition, SpecProblems, SpecText, named_by
from orchestrator.storage.addresses import has_input, input_path, is_address
from orchestrator.values.spec import AUTO_TOPOLOGY, DataSource, Spec

_T = TypeVar("_T")
_EXAMPLE = "for example --set experiment.batch.sequences=2048"
# Sections that make a file another than a spec: code, message, hint.
_OTHER_FILES = {
    "study": (
        "is-a-study", "makes it a study, must be a spec",
        "orch plan, orch submit and orch report take studies",
    ),
    "serve": (
        "is-serving", "makes it a serving spec, must be a spec of training",
        "orch plan, orch explain and orch prove take serving specs",
    ),
    "vary": (
        "study-without-study", "belongs to a study, must be below study",
        "for example study: {kind: sweep, base: my-run.yaml, vary: ...}",
    ),
}  # fmt: skip
_START = "experiment.start.huggingface"


def load(path: Path | SpecText, overrides: Sequence[str] = (), folder: Path | None = None) -> Spec:
    """Return the spec of a file with `--set` overrides; `SpecProblems` has all that is wrong. The
    files that it names are found from its folder, or from another.
    """
    source = nodes.read(path) if isinstance(path, Path) else path
    root, problems = nodes.parse(source)
    if isinstance(root, Mapping):  # a study, a model, or one without its section, is one mistake
        if model := root.entries.get("architectures") or root.entries.get("model_type"):
            message = "has the keys of a model of Hugging Face, must be a spec"
            hint = f"{model_command(source.name)} makes a spec that trains it"
            raise SpecProblems([model.key_place.problem("is-a-model", "", message, hint)])
        for key, (code, message, hint) in _OTHER_FILES.items():
            if entry := root.entries.get(key):
                raise SpecProblems([entry.key_place.problem(code, key, message, hint)])
    problems += apply(root, overrides)
    return spec_of(root, problems, folder or Path(source.name).parent, tuple(overrides))


def model_command(config: str) -> str:
    setting = f"experiment.model={{huggingface: {config}}}"
    return shlex.join(["orch", "init", "my-run.yaml", FLAG, setting])


def is_study(path: Path) -> bool:
    return _has_section(path, "study")


def is_serving(path: Path) -> bool:
    return _has_section(path, "serve")


def _has_section(path: Path, section: str) -> bool:
    try:
        root, _ = nodes.parse(nodes.read(path))
    except SpecProblems:  # for the loader to refuse
        return False
    return isinstance(root, Mapping) and section in root.entries


def spec_of(
    root: Node, problems: Sequence[Problem], folder: Path, overrides: tuple[str, ...]
) -> Spec:
    """Return the spec of nodes, whose paths are relative to the folder, or raise `SpecProblems`."""
    file = SpecInstance(root, schemas.spec_schema)
    check(file)
    chip, definition, named_model, elsewhere = chip_and_model(file, folder, "experiment.model")
    if everything := [*problems, *file.problems, *elsewhere]:
        raise SpecProblems(everything)
    assert chip is not None
    file.values["resources"] |= {"chip": chip.name, "chip_definition": definition}
    spec = _spec(file.values, model_values(named_model), overrides)
    experiment, key = spec.experiment, "experiment.batch.length"
    batches = (experiment.batch, *(stage.batch for stage in experiment.stages))
    longest = max(batch.length for batch in batches)
    model, start = experiment.model, experiment.start
    positions = model.learned_positions
    if positions is not None and longest > positions:
        message = f"is {longest:,}, must be at most the {positions:,} positions that are learned"
        hint = f"for example length: {positions}"
        raise SpecProblems([file.place(key).problem("too-few-positions", key, message, hint)])
    # Hosts that train find the files that this machine lacks, and those in buckets.
    if start and not is_address(start.huggingface) and (folder / start.huggingface).exists():
        place, config = file.place(_START), folder / start.huggingface / "config.json"
        try:
            theirs = huggingface.model_of(config, model.name)
        except SpecProblems as error:
            raise SpecProblems(named_by(place, _START, error.problems)) from None
        if not any(config.parent.glob("*.safetensors")):
            message = "has no safetensors, must be a folder with the weights of a model"
            raise SpecProblems([place.problem("no-weights", _START, message)])
        if decoder(theirs) != decoder(model):
            ours = asdict(model)
            names = ", ".join(key for key, value in asdict(theirs).items() if value != ours[key])
            message = f"has weights of another model, must be this one's: {names} differ"
            hint = f"for example model: {{huggingface: {start.huggingface}/config.json}}"
            raise SpecProblems([place.problem("other-model", _START, message, hint)])
    if wrong := [*_data_problems(spec, file, folder, longest)]:
        raise SpecProblems(wrong)
    return spec


def chip_and_model(
    file: SpecInstance, folder: Path, key: str
) -> tuple[Chip | None, dict[str, Any] | None, Any, list[Problem]]:
    """Return the chip, its definition where it is not of the catalog, and the model under a key, or
    what is wrong with the files that they name. What is wrong in the file itself is reported there.
    """
    named, chip, definition = file["resources.chip"], None, None
    elsewhere: list[Problem] = []  # problems of the files that the spec names
    if isinstance(named, str):
        chip = catalog.chip(named)
    elif isinstance(named, dict) and "file" in named:
        key_of_file = "resources.chip.file"
        found, elsewhere = _named_file(file, key_of_file, lambda path: _read_chip(folder / path))
        chip, definition = found or (None, None)
    if chip:
        check_topology(file, chip)
    model = file[key]
    if isinstance(model, dict) and "huggingface" in model:
        name = model.get("name")
        model, wrong = _named_file(
            file, f"{key}.huggingface", lambda path: huggingface.model_of(folder / path, name)
        )
        elsewhere = [*wrong, *elsewhere]
    if isinstance(model, str) and model in catalog.models():
        model = catalog.model(model)
    return chip, definition, model, elsewhere


def model_values(model: Any) -> dict[str, Any]:
    """Return a model's keys with its name, and the two sizes that follow from latent attention."""
    keys: dict[str, Any] = msgspec.to_builtins(model)
    name = schemas.default_of(schemas.schema_field("experiment", "model", "name"))
    if latent := keys.get("latent"):
        head_dim = latent["nope_dim"] + latent["rope_dim"]
        keys = {"kv_heads": keys["heads"], "head_dim": head_dim} | keys
    return {"name": name, **keys}


def _named_file(
    file: SpecInstance, key: str, reader: Callable[[str], _T]
) -> tuple[_T | None, list[Problem]]:
    """Return what a file is that a key names, or what is wrong with it."""
    path, place = file[key], file.place(key)
    if has_scheme(path):
        reason = "it is read when the spec is, which opens no connection"
        message, hint = f"is an address, must be a path: {reason}", "copy the file next to the spec"
        return None, [place.problem("no-file-system", key, message, hint)]
    try:
        return reader(path), []
    except SpecProblems as error:
        return None, named_by(place, key, error.problems)


def _spec(values: dict[str, Any], model: dict[str, Any], overrides: tuple[str, ...]) -> Spec:
    """Return legal values as a Spec, with what the file abbreviates written out."""
    experiment, resources = dict(values["experiment"]), dict(values["resources"])
    experiment["model"] = model
    if "stages" in experiment:  # the experiment's own sections are those of the first
        stages = written_out(experiment)
        experiment |= {name: stages[0][name] for name in SECTIONS} | {"stages": stages}
        experiment["tokens"] = sum(stage["tokens"] for stage in stages)
    auto = schemas.AUTO
    pods, mesh = resources.get("pods"), resources.get("mesh", auto)
    if isinstance(pods, int):
        resources["pods"] = {"min": pods, "max": pods}
    sizes = {} if mesh == auto else mesh
    resources["mesh"] = {axis: None if size == auto else size for axis, size in sizes.items()}
    resources["topology"] = str(resources.get("topology", AUTO_TOPOLOGY))
    keys = {in_file: key for key, in_file in schemas.KEYS_IN_FILES.items()}
    failures, run = (
        {keys.get(key, key): value for key, value in section.items()}
        for section in (resources.get("failures", {}), values.get("run", {}))
    )
    resources["failures"] = failures
    sections = {"experiment": experiment, "resources": resources, "run": run}
    given = {key: value for key, value in values.items() if key != "schema"}
    # A choice that leaves the mesh to the search is about the spec as it is written.
    if mesh == auto and any(text.startswith(("experiment.", "resources.")) for text in overrides):
        given.pop("choice", None)
    return msgspec.convert({**given, **sections, "overrides": overrides}, Spec)


# Puts `--set key=value` into the nodes of a file before anything is checked.


def apply(root: Node, overrides: Sequence[str]) -> list[Problem]:
    """Set each override in turn. Together they are one source, one per line."""
    source = SpecText(FLAG, tuple(overrides))
    problems: list[Problem] = []
    for line, text in enumerate(overrides, start=1):
        start = SpecPosition(source, line, 1)
        path, equals, value = text.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            message = "must be KEY=VALUE, with dots between the keys"
            problems.append(start.problem("override-form", "", message, _EXAMPLE))
        elif not text.isprintable():
            message = "is not plain text, must be on one line and printable"
            problems.append(start.problem("override-text", "", message, _EXAMPLE))
        else:
            try:
                place = SpecPosition(source, line, len(path) + 2)
                node, wrong = nodes.parse_value(place, value, keys)
                problems += wrong or put(root, keys, start, node)
            except SpecProblems as error:
                problems += error.problems
    return problems


def put(root: Node, keys: Sequence[str], start: SpecPosition, value: Node) -> list[Problem]:
    """Put a value under a dotted key, which is written from `start` on."""
    inside, place = root, start
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(inside, nodes.Broken):
            return []
        if isinstance(inside, SequenceNode) and key.isdigit() and int(key) < len(inside.items):
            if last:
                inside.items[int(key)] = value
            inside = inside.items[int(key)]
            continue
        if not isinstance(inside, Mapping):
            name = ".".join(keys[:depth])
            message = f"is {shown(inside, {})}, must be a mapping for a key of it to be set"
            hint = f"set the whole: --set '{name}={{...}}'"
            return [place.problem("override-inside-value", name, message, hint)]
        offset = len(".".join(keys[:depth])) + (depth > 0)
        place = SpecPosition(start.source, start.line, start.col + offset)
        found = inside.entries.get(key)
        is_auto = found and isinstance(found.node, Scalar) and found.node.text == "auto"
        if last or (found is None and nodes.unsets(value)):  # no section for what is not to be
            inside.entries[key] = nodes.Entry(place, value)
            break
        if is_auto and nodes.unsets(value):
            break
        if found is None or is_auto:  # `auto` gives way to a mapping
            inside.entries[key] = nodes.Entry(place, Mapping(place))
        inside = inside.entries[key].node
    return []


def places(path: Path, overrides: Sequence[str] = ()) -> Callable[[str], str]:
    """Return a function that says where a key or its section stands, such as a.yaml:7:3."""
    root, _ = nodes.parse(nodes.read(path))
    apply(root, overrides)

    def place_of(key: str) -> str:
        node: Node = root
        place = root.place
        for name in key.split("."):
            if not isinstance(node, Mapping) or name not in node.entries:
                break
            place, node = node.entries[name].key_place, node.entries[name].node
        return place.text

    return place_of


# The files that a run reads: checks of those that this machine has, and which are missing.


def _data_problems(spec: Spec, file: SpecInstance, folder: Path, length: int) -> Iterator[Problem]:
    """Yield paths of data that are no manifest of a token set, separators that are no token, and a
    held-out set with too few sequences.
    """
    vocab, evaluation = spec.experiment.model.vocab, spec.run.evaluation
    for section, data in _data_sources(spec).items():
        key, separator = f"{section}.separator", data.separator
        if separator is not None and separator >= vocab:
            message = f"is {separator:,}, must be a token of the vocabulary of {vocab:,}"
            yield file.place(key).problem("no-such-token", key, message, f"at most {vocab - 1}")
    if evaluation and evaluation.path and not is_address(evaluation.path):
        held = 0
        with suppress(OSError, ValueError, TypeError, KeyError):  # the path's own problem, below
            shards = json.loads((folder / evaluation.path).read_bytes())["shards"]
            held = (sum(int(shard["tokens"]) for shard in shards) - 1) // length
        if 0 < held < evaluation.sequences:
            key = "run.evaluation.sequences"
            message = f"is {evaluation.sequences:,}, must be at most the {held:,} of that length"
            hint = f"for example sequences: {held}"
            yield file.place(key).problem("few-held-out", key, f"{message} in the set", hint)
    for key, path in _data_paths(spec):
        found, manifest = folder / path, Path(path) / "manifest.json"
        is_text = found.is_file() and found.suffix != ".json"
        if is_address(path) or not (found.is_dir() or is_text):
            continue
        if (folder / manifest).is_file():
            code = "folder-of-a-set"
            message = "is the folder of a token set, must be its manifest"
            hint = f"for example path: {manifest}"
        else:
            code = "no-token-set"
            message = f"is {path}, which holds text, must be the manifest of a token set"
            pack = f"orch data pack tokens {found} --tokenizer tokenizer.json makes one"
            hint = f"{pack}; then write path: tokens/manifest.json"
        yield file.place(key).problem(code, key, message, hint, found=found)


def _data_sources(spec: Spec) -> dict[str, DataSource]:
    if stages := spec.experiment.stages:
        return {f"experiment.stages.{n}.data": stage.data for n, stage in enumerate(stages)}
    return {"experiment.data": spec.experiment.data}


def _data_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    sources = _data_sources(spec).items()
    yield from ((f"{key}.path", data.path) for key, data in sources if data.path)
    if spec.run.evaluation and spec.run.evaluation.path:
        yield "run.evaluation.path", spec.run.evaluation.path


def missing_inputs(spec: Spec, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield key and path of local files that this machine lacks: hosts that train may have them."""
    for key, path in input_paths(spec):
        if not is_address(path) and not (folder / path).exists():
            yield key, path


def absent_objects(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the key and address of each input that its bucket does not have; buckets are asked."""
    for key, path in input_paths(spec):
        if is_address(path) and not has_input(input_path(Path(), path)):
            yield key, path


def input_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the key of each file or folder that the hosts of a run read, and what it says."""
    if start := spec.experiment.start:
        yield _START, start.huggingface
    yield from _data_paths(spec)


def files_named(node: Node, key: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key and path of each file that a spec names, as it is written."""
    if isinstance(node, Scalar) and key[-1] in {"path", "huggingface", "file"}:
        yield key, node.text
    inside: Iterable[tuple[str | int, Node]] = ()
    if isinstance(node, Mapping):
        inside = ((name, entry.node) for name, entry in node.entries.items())
    elif isinstance(node, SequenceNode):
        inside = enumerate(node.items)
    for name, value in inside:
        yield from files_named(value, (*key, name))


# Reads a chip from a TOML file of the user's own, and says everything that is wrong with it.

_HEADER = re.compile(r"\s*\[([\w.-]+)\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=\s*")
_Positions = dict[KeyPath, SpecPosition]


def _read_chip(path: Path) -> tuple[Chip, dict[str, Any]]:
    """Return the chip of a file, named after it, and the file's content."""
    source = nodes.read(path)
    try:
        content = tomllib.loads("\n".join(source.lines))
    except tomllib.TOMLDecodeError as error:
        # its place is a part of the parser's message, unless it is the end of the file
        reason, _, position = str(error).partition(" (at ")
        numbers = [int(number) for number in re.findall("[0-9]+", position)]
        line, col = numbers if len(numbers) == 2 else (len(source.lines), 1)
        place = SpecPosition(source, line, col)
        raise SpecProblems([place.problem("not-toml", "", f"is not TOML: {reason}")]) from None
    # Where each key at the beginning of a line stands.
    positions: _Positions = {(): SpecPosition(source, 1, 1)}
    section: KeyPath = ()
    for number, text in enumerate(source.lines, start=1):
        if header := _HEADER.match(text):
            section = tuple(header[1].split("."))
            positions[section] = SpecPosition(source, number, header.start(1) + 1)
        elif key := _KEY.match(text):
            positions[*section, key[1]] = SpecPosition(source, number, key.start(1) + 1)
    file = SpecInstance(_toml_node(content, (), positions), schemas.chip_schema)
    if not file.problems:
        _check_chip(file, path.stem)
    if file.problems:
        raise SpecProblems(file.problems)
    return catalog.defined(path.stem, content), content


def _check_chip(file: SpecInstance, name: str) -> None:
    """Add what the schema cannot say."""
    if name in catalog.chips():
        message = f"is called {name}, must not be called like a chip of the catalog"
        place = file.fields[()].node.place
        file.reject((), place.problem("chip-name", "", message, "rename the file"))
    for peak in ("bf16", "fp32"):
        if peak not in file.value["peak_flops_per_s"]:
            key, place = f"peak_flops_per_s.{peak}", file.fields["peak_flops_per_s",].key_place
            hint = f'for example {peak} = {{ value = 1e14, source = "datasheet" }}'
            file.reject((key,), place.problem("chip-peak", key, "is missing, must be a rate", hint))
    axes, listed = file.value["torus_axes"], file.value["slices"]["listed"]
    shapes: dict[KeyPath, list[int]] = {("largest_slice",): file.value["largest_slice"]}
    shapes |= {("slices", "listed", index): shape for index, shape in enumerate(listed)}
    for path, shape in shapes.items():
        if len(shape) != axes:
            message = f"has {len(shape)} dimensions, must have as many as torus_axes: {axes}"
            file.report(dotted(path), "chip-dimensions", message, f"for example {[1] * axes}")


def _toml_node(value: Any, path: KeyPath, positions: _Positions) -> Node:
    """Return a value of TOML as the loader of specs has it: a text at its place."""
    place = positions[path]
    if isinstance(value, dict):
        entries = {}
        for key, inside in value.items():
            at = positions.setdefault((*path, key), place)
            entries[key] = nodes.Entry(at, _toml_node(inside, (*path, key), positions))
        return Mapping(place, entries)
    if isinstance(value, list):
        return SequenceNode(place, [_toml_node(item, path, positions) for item in value])
    if isinstance(value, str):
        return Scalar(place, value, plain=False)
    return Scalar(place, str(value).lower() if isinstance(value, bool) else str(value), plain=True)
