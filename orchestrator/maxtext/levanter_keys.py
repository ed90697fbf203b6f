"""A configuration of Levanter: sections of keys, where each stands, and what is wrong with them."""

import re
from collections.abc import Mapping
from typing import Any

# Keys that a plan does not need, of the whole file ("") and of its sections.
IRRELEVANT = {
    "": {
        "data", "data_seed", "eval_harness", "eval_harness_steps", "log_entropy", "out_dir",
        "pz_eval", "pz_eval_steps",
    },
    "model": {
        "attn_backend", "cross_entropy_block_size", "flash_attention_block_size",
        "gradient_checkpointing_block_size", "initializer_range", "reference_checkpoint",
        "scan_layers", "tokenizer", "use_flash_attention",
    },
    "trainer": {
        "batch_axis", "checkpointer", "crash_on_inf", "crash_on_nan", "distributed", "fsdp_axis",
        "id", "jax_compilation_cache_dir", "jax_config", "load_checkpoint", "load_checkpoint_path",
        "max_eval_batches", "per_device_eval_parallelism", "ray", "require_accelerator",
        "run_base_dir", "shutdown_at_exit", "steps_per_eval", "tensor_parallel_axes", "tracker",
        "wandb", "watch",
    },
    "optimizer": {"default_weight_decay_mask", "type", "weight_decay_modules"},
}  # fmt: skip
PATTERNS = re.compile(r"hf_(?:save|upload).*|(?:backward_)?profiler.*|log_(?:dir|jaxprs|xla_hlo)")
# What a spec has in place of a key that is not served.
WITHOUT = "{key}=false as another source leaves it out, and in the spec {instead}"
INSTEAD = {
    "initialize_from_hf": "experiment.start names a Hugging Face folder",
    "use_hf_model_config": "experiment.model: {huggingface: config.json} reads such a model",
}
OFF: tuple[Any, ...] = (None, False, 0, "", [], {})
LARGEST = 1e18


class LevanterKeys:
    """The keys of a configuration, each with its line, and what is wrong with them.

    `problems` are told to people; `refused` are the keys that they are about.
    """

    def __init__(self, values: Mapping[str, Any], places: Mapping[str, str]) -> None:
        self.values, self._places = values, places
        self._used: set[str] = set()
        self.problems: list[str] = []
        self.refused: list[str] = []
        self.notes: list[str] = []

    def section(self, name: str) -> Mapping[str, Any]:
        found = self.values.get(name)
        return found if isinstance(found, Mapping) else {}

    def get(self, section: str, key: str, otherwise: Any = None) -> Any:
        """A value, or what holds where it is left out or null."""
        self.accept(section, key)
        value = (self.section(section) if section else self.values).get(key)
        return otherwise if value is None else value

    def accept(self, section: str, *keys: str) -> None:
        """Let keys have any value."""
        self._used.update(_name(section, key) for key in keys)

    def number(self, section: str, key: str, otherwise: float | None = None) -> float:
        """A number that has to be positive where nothing else is meant by leaving it out."""
        value, name = self.get(section, key, otherwise), _name(section, key)
        if value is None:
            self.refuse(name, f"is missing; add its value as another source, '{name}=…'")
            return 1.0
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if isinstance(value, bool) or not -LARGEST < number < LARGEST:
            self.refuse(name, "must be a number")
            return 1.0
        if otherwise is None and number <= 0:
            self.refuse(name, "must be positive")
            return 1.0
        return number

    def whole(self, section: str, key: str, otherwise: int | None = None) -> int:
        number = self.number(section, key, otherwise)
        if number != int(number):
            self.refuse(_name(section, key), "must be a whole number")
        return int(number)

    def only(self, section: str, key: str, value: Any) -> None:
        """Refuse a key that has another value than this one, which holds where it is left out."""
        if self.get(section, key, value) != value:
            self.refuse(_name(section, key), f"must be {str(value).lower()}")

    def refuse(self, key: str, why: str) -> None:
        self.refused.append(key)
        place = self._places.get(key)
        self.problems.append(f"{place + ': ' if place else ''}{key}: {why}")

    def note(self, text: str) -> None:
        """What the spec says otherwise than the configuration."""
        self.notes.append(text)

    def check_rest(self) -> tuple[str, ...]:
        """The keys that do not matter; all others that are on and that nothing used are refused."""
        irrelevant = []
        for section, key, value in self._all():
            name = _name(section, key)
            if name in self._used:
                continue
            if key in IRRELEVANT[section] or PATTERNS.fullmatch(key):
                irrelevant.append(name)
            elif value not in OFF:
                self.refuse(name, _why_not(name))
        return tuple(irrelevant)

    def _all(self) -> list[tuple[str, str, Any]]:
        """Each key with its section; a section that is none is a key of the file."""
        found = []
        for name, value in self.values.items():
            if name in IRRELEVANT and isinstance(value, Mapping):
                found += [(name, str(key), one) for key, one in value.items()]
            else:
                found.append(("", name, value))
        return found


def _why_not(name: str) -> str:
    """Why a key is refused, and what the spec has in its place."""
    if name not in INSTEAD:
        return "is not served"
    return f"is not served; {WITHOUT.format(key=name, instead=INSTEAD[name])}"


def _name(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key
