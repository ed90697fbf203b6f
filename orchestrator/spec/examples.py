"""Specs to start from: a commented one, and the examples that travel with orch.

A new spec gets the JSON Schema beside it, and names it by a relative path: editors then check it
offline, in every checkout and on every machine that the folder is copied to.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from orchestrator.errors import OrchError, SpecError, UnknownName, Usage, refuse_options
from orchestrator.resources import resource
from orchestrator.spec.expectations import is_legal, must
from orchestrator.spec.load import load
from orchestrator.spec.nodes import NO_NAMES
from orchestrator.spec.scalars import ambiguous
from orchestrator.spec.schema import field, schema_text, study_schema_text
from orchestrator.spec.spec_text import spec_text
from orchestrator.storage import is_address

STARTER = "starter.yaml"
SCHEMA, STUDY_SCHEMA = ".orch/spec.schema.json", ".orch/study.schema.json"
NAME = re.compile(r"^name: (\S+)$", re.MULTILINE)


def examples() -> dict[str, str]:
    """The examples by name, each with the first sentence of its opening comment."""
    return {path.stem: _summary(path) for path in sorted(resource("examples").glob("*.yaml"))}


def create(
    path: Path | None = None, example: str | None = None, overrides: Sequence[str] = ()
) -> Path:
    """Write the starter, an example or another spec as a spec of that name, with its schema beside
    it. With overrides its text is made anew: it has them, and no comments.

    An existing spec is never overwritten. Without a path it is named after its example.
    """
    if path is None and example is None:
        raise Usage("name the file to write, for example my-run.yaml")
    path = path or Path(f"{example}.yaml")
    if example is None:
        refuse_options({"--set": overrides}, "--from")
        text = starter(path)
    elif overrides or example not in examples():
        text = _changed(_source(example), path, overrides)
    else:
        text = _example(example, path)
    try:
        write_schema(path.parent)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OrchError(f"{path}: exists already; name another file") from None
    except OSError as error:
        raise OrchError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def write_schema(folder: Path) -> None:
    """The schemas that the specs and studies of a folder name in their first line."""
    for name, text in ((SCHEMA, schema_text()), (STUDY_SCHEMA, study_schema_text())):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


def starter(path: Path) -> str:
    """A small commented spec for that file, named after it; it loads and plans as it stands."""
    text = resource("spec", STARTER).read_text(encoding="utf-8")
    return _named(text, path).replace("my-run.yaml", str(path))


def _example(name: str, path: Path) -> str:
    if name not in examples():
        raise UnknownName("example", name, list(examples()))
    text = resource("examples", f"{name}.yaml").read_text(encoding="utf-8")
    return _named(text, path).replace(f"specs/{name}.yaml", str(path))


def _source(example: str) -> Path:
    """The file of an example, or of another spec."""
    if example in examples():
        return resource("examples", f"{example}.yaml")
    if not example.endswith((".yaml", ".yml")):
        raise UnknownName("example", example, list(examples()))
    return Path(example)


def _changed(source: Path, path: Path, overrides: Sequence[str]) -> str:
    """The text of a spec with overrides. What it names by a path is found from its new place."""
    spec = load(source, overrides)
    data = spec.experiment.data
    if data.path and not is_address(data.path) and not Path(data.path).is_absolute():
        there = Path(os.path.relpath(source.parent / data.path, path.parent))
        moved = replace(data, path=there.as_posix())
        spec = replace(spec, experiment=replace(spec.experiment, data=moved))
    made_by = " ".join(["from", source.name, *(f"--set {one}" for one in overrides)])
    head = f"# yaml-language-server: $schema={SCHEMA}\n# {made_by}\n"
    return head + _named(spec_text(spec), path)


def _named(text: str, path: Path) -> str:
    """The text with the name of its file."""
    name, wanted = path.stem.replace("_", "-"), field(("name",)) or {}
    if not is_legal(name, wanted):
        raise SpecError(f"{path.stem!r} cannot name a spec: it must be {must(wanted)}")
    quoted = ambiguous(name, name) or name in NO_NAMES
    return NAME.sub(f'name: "{name}"' if quoted else f"name: {name}", text, count=1)


def _summary(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    opening = " ".join(line.strip("# ") for line in takewhile(lambda line: line != "#", lines))
    return opening.removesuffix(".")
