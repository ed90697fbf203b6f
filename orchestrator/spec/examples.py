"""Specs to start from: a commented one, and the examples that travel with orch.

A new spec gets the JSON Schema beside it, and names it by a relative path: editors then check it
offline, in every checkout and on every machine that the folder is copied to.
"""

import re
from itertools import takewhile
from pathlib import Path

from orchestrator.errors import OrchError, SpecError, UnknownName
from orchestrator.resources import resource
from orchestrator.spec.expectations import is_legal, must
from orchestrator.spec.nodes import NO_NAMES
from orchestrator.spec.scalars import ambiguous
from orchestrator.spec.schema import field, schema_text, study_schema_text

STARTER = "starter.yaml"
SCHEMA, STUDY_SCHEMA = ".orch/spec.schema.json", ".orch/study.schema.json"
NAME = re.compile(r"^name: (\S+)$", re.MULTILINE)


def examples() -> dict[str, str]:
    """The examples by name, each with the first sentence of its opening comment."""
    return {path.stem: _summary(path) for path in sorted(resource("examples").glob("*.yaml"))}


def create(path: Path, example: str | None = None) -> None:
    """Write the starter or an example as a spec of that name, with its schema beside it.

    An existing spec is never overwritten.
    """
    text = starter(path) if example is None else _example(example, path)
    try:
        write_schema(path.parent)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OrchError(f"{path}: exists already; name another file") from None
    except OSError as error:
        raise OrchError(f"{path}: cannot be written: {error.strerror}") from None


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
