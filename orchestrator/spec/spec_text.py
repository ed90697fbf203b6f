"""Values as YAML: a loaded spec as the text of a file that loads as the same spec."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import yaml

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.spec.notation import AUTO
from orchestrator.spec.schema import KEYS_IN_FILES
from orchestrator.spec.stages import SCHEDULE
from orchestrator.types.model import Model
from orchestrator.types.spec import Pods, Spec, TrainingStage

LINE = 10_000  # a text is never wrapped
COMPUTED_KEYS = ("chip_definition", "overrides")


def spec_text(spec: Spec) -> str:
    """The YAML of a spec. A known model and equal pods are short; what is a default is left out.

    A chip of one's own has a file of its own, which one text cannot hold.
    """
    if spec.resources.chip_definition is not None:
        raise SpecError(f"resources.chip: {spec.resources.chip} is a chip of a file of your own")
    return yaml_text([_section(spec)])


def yaml_text(documents: Sequence[Mapping[str, Any]]) -> str:
    """Documents as YAML, in the order of their keys."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=LINE)


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, and a text of many lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _section(value: Any) -> dict[str, Any]:
    """The keys of a section that are not its defaults."""
    return {
        KEYS_IN_FILES.get(key.name, key.name): _written(key.name, getattr(value, key.name))
        for key in fields(value)
        if key.name not in COMPUTED_KEYS and getattr(value, key.name) != _default(key)
    }


def _stages(stages: Sequence[TrainingStage]) -> list[dict[str, Any]]:
    """Every stage with what changes in it; the first is as the experiment."""
    return [_stage(one, stages[max(n - 1, 0)]) for n, one in enumerate(stages)]


def _stage(stage: TrainingStage, before: TrainingStage) -> dict[str, Any]:
    written: dict[str, Any] = {"tokens": stage.tokens}
    for section in ("batch", "optimizer", "data"):
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


def _default(key: Field[Any]) -> Any:
    if key.default_factory is not MISSING:
        return key.default_factory()
    return key.default


def _written(key: str, value: Any) -> Any:
    """A value as a file has it."""
    if isinstance(value, Model) and value.name in catalog.models():
        known = catalog.model(value.name)
        return value.name if known == value else _section(value)
    if isinstance(value, Pods) and value == Pods(min=value.max, max=value.max):
        return value.max
    if is_dataclass(value):
        return _section(value)
    if isinstance(value, tuple):
        return _stages(value) if key == "stages" else list(value)
    if value is None:  # a default is left out: only what a plan chooses is written so
        return AUTO
    return f"{value:g}s" if key in KEYS_IN_FILES else value
