"""Record room: a spec as MLflow params: one flat name for each value, nothing cut. Pure."""

import re
from typing import Any

import msgspec

from orchestrator.types.spec import Spec

LONGEST_NAME, LONGEST_VALUE = 250, 6_000
# What MLflow takes in a name.
NOT_IN_A_NAME = re.compile(r"[^\w\-. /]")
ARTIFACT = "spec.json"


def params(spec: Spec) -> dict[str, str]:
    """Every value of a spec under its dotted key. One that MLflow would cut says where it stands:
    the artifact holds the whole spec.
    """
    return dict(_named(key, value) for key, value in _leaves("", msgspec.to_builtins(spec)))


def _leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        inside = [(f"{key}.{name}" if key else name, one) for name, one in value.items()]
        return [leaf for name, one in inside for leaf in _leaves(name, one)]
    return [(key, value)]


def _named(key: str, value: Any) -> tuple[str, str]:
    name = NOT_IN_A_NAME.sub("_", key)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(name) > LONGEST_NAME:
        return name[: LONGEST_NAME - 1] + "_", f"in artifact {ARTIFACT}: its key is too long here"
    if len(text) > LONGEST_VALUE:
        return name, f"in artifact {ARTIFACT}: {len(text):,} characters are too many here"
    return name, text
