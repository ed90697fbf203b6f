"""Reads a Hugging Face config.json as a Model. This module alone knows the keys of that format.

It accepts only what the trainer computes. An unknown key may change the model, so it is refused by
name unless it is null or false.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.spec.checks import SHAPE_KEYS, shape_faults
from orchestrator.spec.expectations import example, must
from orchestrator.spec.nodes import MOST_DEPTH, Mapping, parse
from orchestrator.spec.problem import Correction, SpecPosition, SpecProblems, SpecText, shortened
from orchestrator.spec.scalars import Value, as_written
from orchestrator.spec.schema import Schema, definition, member, validator
from orchestrator.spec.source import read
from orchestrator.types.spec import Model


@dataclass(frozen=True)
class Family:
    """An architecture that the trainer runs: its names, and its own defaults where they matter."""

    architecture: str
    model_type: str
    kv_heads: int | None = None
    sliding_window: int | None = None


FAMILIES = (
    Family("LlamaForCausalLM", "llama"),
    Family("MistralForCausalLM", "mistral", kv_heads=8, sliding_window=4096),
)
# What other architectures compute that the trainer does not.
OTHER_FAMILIES = {
    "qwen2": "its q, k and v have biases",
    "qwen3": "it normalizes q and k",
    "gemma": "it scales embeddings and uses GELU",
    "gemma2": "it caps logits and alternates windows",
    "gemma3": "it normalizes q and k and alternates windows",
    "mixtral": "it is a mixture of experts",
    "phi3": "its rotary embedding is scaled",
    "gpt2": "it uses LayerNorm and learned positions",
}
# Keys of the config → fields of Model.
SIZES = {
    "num_hidden_layers": "layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab",
    "tie_word_embeddings": "tied",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_epsilon",
}
KEYS = {ours: theirs for theirs, ours in SIZES.items()}
DEFAULTS = {"tie_word_embeddings": False, "rope_theta": 10_000.0, "rms_norm_eps": 1e-6}
# The one value that the trainer can run, and the reason.
FIXED = {
    "hidden_act": ("silu", "the trainer's MLP is SwiGLU"),
    "attention_bias": (False, "the trainer's attention has no biases"),
    "mlp_bias": (False, "the trainer's MLP has no biases"),
    "attention_dropout": (0, "the trainer has no dropout"),
    "partial_rotary_factor": (1, "the trainer turns whole heads"),
}
# Keys that do not change what is computed in pre-training.
HARMLESS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "max_position_embeddings",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)
# The keys that may scale RoPE, and their values without scaling.
ROTARY = {"rope_scaling": "null", "rope_parameters": '{"rope_theta": ...}'}
PLAIN_ROTARY = frozenset({"type", "rope_type", "rope_theta"})


def model_of(path: Path, name: str | None, length: int | None) -> Model:
    """The model of a config.json, for sequences of that length; `SpecProblems` says why not."""
    config = _Config(path)
    family = config.family()
    config.check_computation(family, length)
    shape = config.shape(family)
    if config.problems:
        raise SpecProblems(config.problems)
    return Model(name=name or family.model_type, **shape)


class _Config:
    """One config.json: its values, the places of its keys, and its problems."""

    def __init__(self, path: Path) -> None:
        source = read(path)
        self.values = _json(source)
        root, self.problems = parse(source)
        self._root = root if isinstance(root, Mapping) else Mapping(root.place)
        if not isinstance(self.values, dict):
            self._report("", "config-not-an-object")
            raise SpecProblems(self.problems)

    def family(self) -> Family:
        """The family that it names; `SpecProblems` if the trainer has no such family."""
        named = self.values.get("architectures") or []
        architecture = named[0] if isinstance(named, list) and named else None
        kind = self.values.get("model_type")
        for family in FAMILIES if architecture or kind else ():
            if architecture in (None, family.architecture) and kind in (None, family.model_type):
                return family
        key = "architectures" if architecture else "model_type"
        known = " or ".join(f"{one.architecture} ({one.model_type})" for one in FAMILIES)
        name = ", ".join(shortened(str(one)) for one in (architecture, kind) if one) or "missing"
        why = OTHER_FAMILIES.get(str(kind))
        reason = f": {why}" if why else ""
        self._report(key, "config-family", name=name, expected=known, reason=reason)
        raise SpecProblems(self.problems)

    def shape(self, family: Family) -> dict[str, Any]:
        """The fields of the Model. Wrong ones are reported and left out."""
        values = DEFAULTS | {k: v for k, v in self.values.items() if k in SIZES and v is not None}
        values |= self._rotary_theta()
        values = {key: _whole(key, value) for key, value in values.items()}
        heads = values.get("num_attention_heads")
        values.setdefault("num_key_value_heads", family.kv_heads or heads)
        if "head_dim" not in values:
            values["head_dim"] = self._quotient(values.get("hidden_size"), heads)
        legal = {SIZES[key]: values[key] for key in SIZES if self._is_legal(key, values.get(key))}
        for key, code, fields in shape_faults(*(legal.get(key) for key in SHAPE_KEYS)):
            self._report(KEYS[key], code, name=KEYS[key], **fields)
        return legal

    def _quotient(self, width: Any, heads: Any) -> int | None:
        """The width of a head, where the config does not have it."""
        if not (type(width) is type(heads) is int and heads > 0):
            return None
        if width % heads:
            self._report("hidden_size", "config-width", width=width, heads=heads)
        return width // heads

    def _is_legal(self, key: str, value: Any) -> bool:
        if value is None and key in ("num_key_value_heads", "head_dim"):
            return False
        schema: Schema = member(definition("Model"), SIZES[key]) or {}
        if validator().evolve(schema=schema).is_valid(value):
            return True
        right = Correction("example", f"{_shown(key)}: {_shown(example(schema))}")
        if value is None:
            self._report(key, "missing-key", right, expected=must(schema))
        else:
            self._report(key, "illegal-value", right, value=_shown(value), expected=must(schema))
        return False

    def _rotary_theta(self) -> dict[str, Any]:
        parameters = self.values.get("rope_parameters")
        theta = parameters.get("rope_theta") if isinstance(parameters, dict) else None
        return {} if theta is None else {"rope_theta": theta}

    def check_computation(self, family: Family, length: int | None) -> None:
        """Report every key that asks for something that the trainer does not compute."""
        for key, value in self.values.items():
            if key in FIXED and value is not None:
                self._check_fixed(key, value)
            elif key in ROTARY:
                self._check_rotary(key, value)
            elif key == "layer_types":
                self._check_layer_types(value)
            elif not self._is_known(key) and value not in (None, False):
                self._report(key, "config-unknown")
        self._check_window(self.values.get("sliding_window", family.sliding_window), length)

    def _is_known(self, key: str) -> bool:
        return key in SIZES or key in FIXED or key in HARMLESS or key == "sliding_window"

    def _check_fixed(self, key: str, value: Any) -> None:
        only, why = FIXED[key]
        if value != only:
            fields: dict[str, Any] = {
                "value": _shown(value),
                "expected": _shown(only),
                "reason": why,
            }
            self._report(key, "config-fixed", name=_shown(key), **fields)

    def _check_rotary(self, key: str, value: Any) -> None:
        """Report scaled RoPE: anything but null and the default."""
        if value is None:
            return
        rotary = value if isinstance(value, dict) else {"rope_type": value}
        kind = rotary.get("rope_type", rotary.get("type", "default"))
        if kind != "default" or not rotary.keys() <= PLAIN_ROTARY:
            fields: dict[str, Any] = {"value": _shown(value), "expected": ROTARY[key]}
            self._report(key, "config-rope-scaled", name=key, **fields)

    def _check_layer_types(self, value: Any) -> None:
        kinds = set(map(str, value)) if isinstance(value, list) else {str(value)}
        if kinds - {"full_attention"}:
            value = shortened(", ".join(sorted(kinds)))
            self._report("layer_types", "config-layer-types", value=value)

    def _check_window(self, window: Any, length: int | None) -> None:
        """Report a sliding window, unless no sequence exceeds it."""
        if window is None or length is None or (type(window) is int and window >= length):
            return
        absent = "" if "sliding_window" in self.values else " (the default of its family)"
        fields: dict[str, Any] = {"value": _shown(window), "length": length, "absent": absent}
        self._report("sliding_window", "config-window", **fields)

    def _report(
        self, key: str, code: str, suggestion: Correction | None = None, **fields: Any
    ) -> None:
        entry = self._root.entries.get(key)
        place: SpecPosition = entry.key_place if entry else self._root.place
        self.problems.append(place.problem(code, key, suggestion, **fields))


def _whole(key: str, value: Any) -> Any:
    """A size as a whole number: JSON may write 4096.0."""
    schema: Schema = member(definition("Model"), SIZES[key]) or {}
    is_whole = isinstance(value, float) and value.is_integer() and schema["type"] == "integer"
    return int(value) if is_whole else value


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def _json(source: SpecText) -> Any:
    """The values of a JSON text."""
    text = "\n".join(source.lines)
    try:
        return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=str)
    except json.JSONDecodeError as error:
        place = SpecPosition(source, error.lineno, error.colno)
        raise SpecProblems([place.problem("not-json", reason=error.msg)]) from None
    except RecursionError:
        problem = SpecPosition(source, 1, 1).problem("too-deep", most=MOST_DEPTH)
        raise SpecProblems([problem]) from None


def _number(text: str) -> Value:
    """A number; one that is too large, or is none, stays text."""
    return as_written(text, {"integer", "number"})
