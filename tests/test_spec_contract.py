"""The spec room: schema.json is the contract, and agrees with all that depends on it."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from jsonschema import Draft202012Validator

from orchestrator import catalog, spec
from orchestrator.network.rematerialization import POLICIES
from orchestrator.spec.messages import example
from orchestrator.spec.request import default
from orchestrator.spec.schema import (
    Schema,
    alternatives,
    contract,
    definition,
    kind,
    member,
    properties,
)
from orchestrator.types.spec import DType, MeshRequest, Model, Pods, Spec
from tests.conftest import ROOT
from tests.spec_texts import COMPLETE, MINIMAL

VALIDATOR = Draft202012Validator(contract())
# Keys that a file has and a station has not: what they become has another form there.
ONLY_IN_FILES = {"schema", "experiment.model.huggingface"}


class EditorLoader(yaml.BaseLoader):
    """YAML as an editor reads it: the core schema of YAML 1.2, which is that of JSON."""


def editor_scalar(loader: EditorLoader, node: yaml.ScalarNode) -> Any:
    text = str(loader.construct_scalar(node))
    if node.style:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


EditorLoader.add_constructor("tag:yaml.org,2002:str", editor_scalar)


def leaves(schema: Schema, prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """Every key of the contract, by its dotted path."""
    for one in alternatives(schema):
        for key in properties(one):
            inside = member(one, key) or {}
            yield f"{prefix}{key}", inside
            yield from leaves(inside, f"{prefix}{key}.")


def station_fields(station: type, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Every field of a station, by its dotted path."""
    types = get_type_hints(station)
    for one in fields(station):
        yield prefix + one.name, one
        if is_dataclass(types[one.name]):
            yield from station_fields(types[one.name], f"{prefix}{one.name}.")


def test_the_contract_is_a_json_schema() -> None:
    """It is valid 2020-12, has a version, and is printed as it stands."""
    Draft202012Validator.check_schema(contract())
    assert contract()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert contract()["$id"].endswith(f":{contract()['properties']['schema']['default']}")
    assert json.loads(spec.schema_text()) == contract()


def test_every_key_says_what_it_is() -> None:
    """Editors show a description for each key."""
    assert [path for path, schema in leaves(contract()) if not schema.get("description")] == []


def test_every_optional_value_has_a_default_or_says_what_its_absence_means() -> None:
    """What is left out has a documented default; a section's is the defaults within."""
    silent = [
        path
        for path, schema in leaves(contract())
        if "default" not in schema and schema.get("type") != "object" and not is_required(path)
    ]
    absent = ("when left out", "for kind tokens alone", "Stop after")
    undocumented = [
        path
        for path in silent
        if not any(words in dict(leaves(contract()))[path]["description"] for words in absent)
    ]
    assert undocumented == []


def is_required(path: str) -> bool:
    """Whether some mapping of the contract demands that key."""
    *above, key = path.split(".")
    parent = dict(leaves(contract()))[".".join(above)] if above else contract()
    return any(key in one.get("required", ()) for one in alternatives(parent))


def test_keys_are_the_fields_of_the_stations() -> None:
    """Nothing can be asked that no station holds, and nothing is held that cannot be asked."""
    asked = {path.replace("hang_limit", "hang_limit_s") for path, _ in leaves(contract())}
    held = {path for path, _ in station_fields(Spec)}
    assert asked - ONLY_IN_FILES == held - {"overrides"}


def test_defaults_are_those_of_the_stations() -> None:
    """A default stands in the contract for editors and in the station for programs: the same."""
    held = dict(station_fields(Spec))
    compared = 0
    for path, schema in leaves(contract()):
        one = held.get(path.replace("hang_limit", "hang_limit_s"))
        if one is None or (is_dataclass(one.default) and "default" not in schema):
            continue
        value = one.default if one.default_factory is MISSING else one.default_factory()
        if path == "experiment.model.name":
            assert value is MISSING
            continue
        written = default(schema)
        assert as_station(path, written) == (None if value is MISSING else value), path
        compared += "default" in schema
    assert compared > 30


def as_station(path: str, written: Any) -> Any:
    """A default of the contract in the form that the station gives it."""
    if path == "resources.mesh":
        return {"auto": MeshRequest()}[written]
    if path.startswith("resources.mesh."):
        return {"auto": None}[written]
    if path == "resources.pods":
        return Pods(min=written, max=written)
    return tuple(written) if isinstance(written, list) else written


def test_known_names_are_those_of_the_catalog() -> None:
    """Models, chips, policies and types that an editor offers are those that exist."""
    experiment, resources = definition("experiment"), definition("resources")
    names = alternatives(member(experiment, "model") or {})[0]["enum"]
    assert names == list(catalog.models())
    assert sorted((member(resources, "chip") or {})["enum"]) == sorted(catalog.chips())
    assert (member(experiment, "remat") or {})["enum"] == ["auto", *POLICIES]
    assert tuple(definition("dtype")["enum"]) == get_args(DType)


def test_shapes_are_models() -> None:
    """The sizes that a shape must give are those that a model must have."""
    needed = {one.name for one in fields(Model) if one.default is MISSING}
    assert set(definition("shape")["required"]) == needed - {"name"}


def test_examples_are_legal() -> None:
    """Each example, and each default, passes the part of the contract that it stands in."""
    tried = 0
    for path, schema in leaves(contract()):
        defaults = [schema["default"]] if "default" in schema else []
        for value in schema.get("examples", []) + defaults:
            assert VALIDATOR.evolve(schema=schema).is_valid(value), (path, value)
            tried += 1
    assert tried > 50


def test_every_key_has_an_example() -> None:
    """There is a legal value for every hint."""
    for path, schema in leaves(contract()):
        if path not in ("experiment.data", "experiment.compiler_options"):
            found = example(schema)
            assert found is not None or kind(schema) == "text", path


@pytest.mark.parametrize("path", sorted((ROOT / "specs").glob("*.yaml")), ids=lambda p: p.stem)
def test_editors_accept_the_shipped_specs(path: Path) -> None:
    """What loads here shows no error in an editor that has the contract."""
    loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=EditorLoader)
    assert list(VALIDATOR.iter_errors(loaded)) == []


@pytest.mark.parametrize("text", [COMPLETE, MINIMAL, spec.starter(Path("a.yaml"))])
def test_editors_accept_other_good_specs(text: str) -> None:
    """The texts of the tests and the starter pass the contract alone, too."""
    assert list(VALIDATOR.iter_errors(yaml.load(text, Loader=EditorLoader))) == []


def test_editors_refuse_what_is_out_of_range() -> None:
    """The contract itself bounds what people write as text: shares, counts and durations."""
    for key, right, wrong in [("tolerance", "10%", "60%"), ("length", "8192", "8K")]:
        text = MINIMAL.replace("8192}", "8192, tolerance: 10%}").replace(right, wrong)
        [error] = VALIDATOR.iter_errors(yaml.load(text, Loader=EditorLoader))
        assert list(error.absolute_path) == ["experiment", "batch", key]
