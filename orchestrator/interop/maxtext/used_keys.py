"""A recipe's keys, over those of its model and MaxText's defaults; a conversion uses them up."""

import re
import tomllib
from difflib import get_close_matches
from functools import cache
from textwrap import shorten
from typing import Any

from orchestrator.interop.maxtext.recipe import Recipe, Setting
from orchestrator.processes import resource

# Advice about keys that are not served.
_INSTEAD = {
    "load_parameters_path": (
        "is not served: MaxText's checkpoints are not read; experiment.start in the spec names a"
        " Hugging Face folder, and the rest imports without this key"
    ),
}
_LARGEST, _SHOWN = 1e18, 120
# Values that switch a key off: nothing is lost where such a key is not served.
OFF: tuple[Any, ...] = (None, False, "", 0, -1, [], {}, "default", "none", "disabled", "remat")


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(resource("interop", "maxtext", name).read_text(encoding="utf-8"))


def models() -> dict[str, dict[str, Any]]:
    return _table("models.toml")


TABLES = _table("keys.toml")
DEFAULTS: dict[str, Any] = TABLES["defaults"]
AXES: dict[str, list[str]] = TABLES["axes"]
CHIPS: dict[str, str] = TABLES["chips"]
_IRRELEVANT: dict[str, Any] = TABLES["irrelevant"]
_NAMES = frozenset(_IRRELEVANT["names"].split())
_PATTERNS = re.compile("|".join(_IRRELEVANT["patterns"]))


class UsedKeys:
    """Values of keys, with `problems` for people, and the keys `refused`, which most are about."""

    def __init__(self, recipe: Recipe) -> None:
        name = str(recipe.get("model_name", "default"))
        self._given, self._base = recipe.keys, recipe.base
        of_model = models().get(name, {})
        self._model = {key: Setting(value, f"model {name}") for key, value in of_model.items()}
        self._used: set[str] = set()
        self.problems: list[str] = []
        self.refused: list[str] = []
        self.notes: list[str] = []
        if name not in (*models(), "default"):
            self.refuse("model_name", f"is not known; known: {', '.join(models())}")

    def _setting(self, key: str) -> Setting | None:
        return self._given.get(key) or self._model.get(key) or self._base.get(key)

    def __getitem__(self, key: str) -> Any:
        """Return a value of the recipe, its model, its base or the defaults, or None."""
        self._used.add(key)
        setting = self._setting(key)
        return setting.value if setting else DEFAULTS.get(key)

    def is_given(self, key: str) -> bool:
        return key in self._given

    def accept(self, *keys: str) -> None:
        self._used.update(keys)

    def number(self, key: str, unset: float | None = None) -> float:
        """Return a number, or `unset` where it is not on; refuse another value, as 1."""
        value = self[key]
        if unset is not None and not value:
            return unset
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(key, "must be a number")
            return 1
        if not -_LARGEST < value < _LARGEST:  # nor is it no number
            self.refuse(key, "is too large")
            return 1
        return value

    def whole(self, key: str, unset: int = 0) -> int:
        """Return a whole number, or `unset` where nobody gives one."""
        if self[key] is None:
            return unset
        value = self.number(key)
        if value != int(value):
            self.refuse(key, "must be a whole number")
        return int(value)

    def is_on(self, key: str) -> bool:
        return self[key] not in OFF

    def refuse(self, key: str, why: str) -> None:
        setting = self._setting(key)
        self.refused.append(key)
        place = f"{setting.place}: " if setting and setting.place else ""
        written = shorten(f"{key}={setting.value}" if setting else key, _SHOWN)
        if setting and "$" in str(setting.value) and key not in _INSTEAD:
            why = f"is set outside of the script; add its value as another source, '{key}=…'"
        self.problems.append(f"{place}{written}: {why}")

    def check_rest(self) -> tuple[str, ...]:
        """Refuse every key that is on and was not used; return the keys that no plan is about."""
        irrelevant = []
        for key, setting in {**self._base, **self._model, **self._given}.items():
            if key in self._used:
                continue
            if key in _NAMES or _PATTERNS.fullmatch(key):  # whatever its value
                irrelevant.append(key)
                continue
            # What holds without the key: one part, MaxText's own base, values of its base.
            value = list(setting.value) if isinstance(setting.value, tuple) else setting.value
            is_usual = key.endswith("_parallelism") and value == 1
            is_usual |= (key, value) == ("base_config", "base.yml")
            is_usual |= value in _table("base_values.toml").get(key, ())
            is_usual |= key in DEFAULTS and value == DEFAULTS[key]
            if setting.value not in OFF and not is_usual:
                names = {*_table("base_values.toml"), *DEFAULTS, *_NAMES}
                near = () if key in names else get_close_matches(key, names, 1, cutoff=0.85)
                why = f"is not known; did you mean {near[0]}?" if near else "is not served"
                self.refuse(key, _INSTEAD.get(key, why))
        return tuple(sorted(irrelevant))
