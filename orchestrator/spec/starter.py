"""Spec room: the spec that `orch init` writes."""

import os
from pathlib import Path

from orchestrator.errors import SpecError
from orchestrator.spec.messages import is_legal, must
from orchestrator.spec.nodes import NO_NAMES
from orchestrator.spec.scalars import ambiguous
from orchestrator.spec.schema import definition

FILE = Path(__file__).with_name("starter.yaml")
PLACEHOLDER = "my-run"
SCHEMA = "../orchestrator/spec/schema.json"


def starter(path: Path) -> str:
    """A small commented spec for that file, named after it; it loads and plans as it stands."""
    name, wanted = path.stem, definition("name")
    if not is_legal(name, wanted):
        raise SpecError(f"{name!r} cannot name a spec: it must be {must(wanted)}")
    quoted = ambiguous(name, name) or name in NO_NAMES
    text = FILE.read_text(encoding="utf-8").replace(f"{PLACEHOLDER}.yaml", str(path))
    text = text.replace(SCHEMA, os.path.relpath(FILE.with_name("schema.json"), path.parent))
    return text.replace(f"name: {PLACEHOLDER}", f'name: "{name}"' if quoted else f"name: {name}")
