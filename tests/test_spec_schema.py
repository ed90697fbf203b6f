"""The JSON Schema of specs, generated from the types, and what editors make of it."""

import json
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from jsonschema import Draft202012Validator

from orchestrator import catalog
from orchestrator.network.rematerialization import POLICIES
from orchestrator.processes import resource
from orchestrator.reading.examples import _SCHEMA, _SERVING_SCHEMA, _STUDY_SCHEMA, create
from orchestrator.reading.expectations import example
from orchestrator.reading.schema import (
    Schema,
    alternatives,
    constants,
    member,
    properties,
    schema_text,
    spec_schema,
)
from orchestrator.values.spec import Optimizer, Spec, TensorTreatments
from tests.conftest import ROOT, TRAINING_SPECS
from tests.spec_texts import COMPLETE, MINIMAL

VALIDATOR = Draft202012Validator(spec_schema())


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
    for alternative in alternatives(schema):
        for key in properties(alternative):
            inside = member(alternative, key) or {}
            yield f"{prefix}{key}", inside
            yield from leaves(inside, f"{prefix}{key}.")


def fields_of(kind: type, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Every field of a type, by its dotted path."""
    types = get_type_hints(kind)
    for field in fields(kind):
        yield prefix + field.name, field
        if is_dataclass(types[field.name]):
            yield from fields_of(types[field.name], f"{prefix}{field.name}.")


def test_the_contract_is_a_json_schema() -> None:
    """It is valid 2020-12, has a version, and is printed as it stands."""
    Draft202012Validator.check_schema(spec_schema())
    assert spec_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert spec_schema()["$id"].endswith(f":{spec_schema()['properties']['schema']['default']}")
    assert json.loads(schema_text(spec_schema())) == spec_schema()


def test_every_key_says_what_it_is() -> None:
    """Editors show a description for each key."""
    assert [path for path, schema in leaves(spec_schema()) if not schema.get("description")] == []


def test_every_optional_value_has_a_default_or_says_what_its_absence_means() -> None:
    """What is left out has a documented default; a section's is the defaults within."""
    silent = [
        path
        for path, schema in leaves(spec_schema())
        if "default" not in schema and schema.get("type") != "object" and not is_required(path)
    ]
    absent = ("when left out", "only for kind tokens", "stop after")
    undocumented = [
        path
        for path in silent
        if not any(
            words in dict(leaves(spec_schema()))[path]["description"].lower() for words in absent
        )
    ]
    assert undocumented == []


def is_required(path: str) -> bool:
    """Whether some mapping of the contract demands that key."""
    *above, key = path.split(".")
    parent = dict(leaves(spec_schema()))[".".join(above)] if above else spec_schema()
    demands = [
        demand
        for alternative in alternatives(parent)
        for demand in (alternative, alternative.get("then", {}))
    ]
    return any(key in demand.get("required", ()) for demand in demands)


def test_it_is_generated_from_the_types() -> None:
    """A field, a bound, a default of a type, and a name of the catalog, stand in the schema."""
    keys = dict(leaves(spec_schema()))
    paths = {path for path, _ in fields_of(Spec)} - {
        "overrides",
        "resources.chip_definition",
        "run.hang_limit_s",
        "resources.failures.restart_s",
        "resources.failures.repair_s",
    }
    assert paths <= keys.keys()
    assert keys["experiment.batch.length"]["maximum"] == 100_000_000
    assert keys["experiment.optimizer.warmup_steps"]["default"] == Optimizer().warmup_steps
    assert keys["run.hang_limit"]["default"] == "10m"
    assert keys["resources.mesh"]["default"] == keys["resources.mesh.fsdp"]["default"] == "auto"
    assert set(catalog.models()) <= set(constants(alternatives(keys["experiment.model"])[0]))
    assert set(catalog.chips()) <= set(constants(alternatives(keys["resources.chip"])[0]))
    names, tensors = alternatives(keys["experiment.remat"])
    assert constants(names) == ["auto", *POLICIES]
    assert [*tensors["properties"]] == [field.name for field in fields(TensorTreatments)]


@pytest.mark.parametrize("name", [_SCHEMA, _STUDY_SCHEMA, _SERVING_SCHEMA])
def test_the_shipped_file_is_what_is_generated(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Editors read it beside the shipped specs."""
    create(tmp_path / "my-run.yaml")
    if request.config.getoption("--refresh-golden"):
        (ROOT / "specs" / name).write_bytes((tmp_path / name).read_bytes())
    assert (ROOT / "specs" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_examples_are_legal() -> None:
    """Each example, and each default, passes the part of the contract that it stands in."""
    tried = 0
    for path, schema in leaves(spec_schema()):
        defaults = [schema["default"]] if "default" in schema else []
        for value in schema.get("examples", []) + defaults:
            assert VALIDATOR.evolve(schema=schema).is_valid(value), (path, value)
            tried += 1
    assert tried > 50


def test_every_key_has_an_example() -> None:
    """There is a legal value for every hint."""
    for path, schema in leaves(spec_schema()):
        if path not in ("experiment.data", "experiment.compiler_options"):
            found = example(schema)
            assert found is not None or schema.get("title") == "text", path


@pytest.mark.parametrize("path", TRAINING_SPECS, ids=lambda p: p.stem)
def test_editors_accept_the_shipped_specs(path: Path) -> None:
    """What loads here shows no error in an editor that has the contract."""
    loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=EditorLoader)
    assert list(VALIDATOR.iter_errors(loaded)) == []


@pytest.mark.parametrize(
    "text", [COMPLETE, MINIMAL, resource("reading", "starter.yaml").read_text(encoding="utf-8")]
)
def test_editors_accept_other_good_specs(text: str) -> None:
    """The texts of the tests and the starter pass the contract alone, too."""
    assert list(VALIDATOR.iter_errors(yaml.load(text, Loader=EditorLoader))) == []


def test_editors_refuse_what_is_out_of_range() -> None:
    """The contract itself bounds what people write as text: shares, counts and durations."""
    for key, right, wrong in [("tolerance", "10%", "60%"), ("length", "8192", "8K")]:
        text = MINIMAL.replace("8192}", "8192, tolerance: 10%}").replace(right, wrong)
        [error] = VALIDATOR.iter_errors(yaml.load(text, Loader=EditorLoader))
        assert list(error.absolute_path) == ["experiment", "batch", key]
