"""Reads what a MaxText run is started with: YAML of its keys, `key=value` words, a shell script, a
manifest of Kubernetes.

From a script come the keys of the training command, the options of `xpk workload create` and the
compiler's flags; from a manifest the words of its commands and the slices that its pods select. A
script that starts a benchmark by its name needs MaxText's Python file of benchmarks too. A later
source overrides an earlier one, as on MaxText's command line.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import yaml

from orchestrator.errors import SpecError
from orchestrator.maxtext.manifest import OddManifest, is_manifest, slices_of
from orchestrator.maxtext.shell import TooLong, TrainingCommand, words_of
from orchestrator.maxtext.yaml_bounds import check_bounded

KEY = re.compile(
    r"""(?<![\w./$=-])([a-z][a-z0-9_]*)=(?!=)("[^"]*"|'[^']*'|\[[^\]]*\]|[^\s"'\\;&|)]+)"""
)
SHEBANG = re.compile(r"#!.*sh\b")
FLAG = re.compile(r"(?<![\w-])--?((?:xla|libtpu)_[a-z0-9_]+)=([^\s\"'\\]+)")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z_-]*)[= ]\s*\"?'?([^\s\"'\\]+)")
BARE_LIST = re.compile(r"\[[a-z]\w*(?:,[a-z]\w*)*\]")
# How Python says that a text is no literal, or too deep a one.
NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
BENCHMARKS_NEEDED = "give MaxText's Python file of benchmarks too, maxtext_*_model_configs.py"
NO_TRAINING = "has no command that trains with MaxText, such as python3 -m MaxText.train"
NO_PRETRAINING = re.compile(r"\S*post_train[./](distillation|rl|dpo)\b")
NO_PLAN = "is not planned: only pre-training and supervised fine-tuning are"
# base.yml has all keys, from 94 to 695; a recipe and a model change fewer.
FEWEST_OF_BASE = 80
AHEAD = re.compile("compile")  # what a compilation ahead of time is told besides
SHOWN = 90  # characters of a command
# xpk's options that say which chips.
DEVICE, SLICES, BENCHMARK = ("device-type", "tpu-type"), "num-slices", "model-name"


class RecipeProblems(SpecError):
    """All that keeps a recipe from being a spec, a line each, and the keys that are refused."""

    def __init__(self, problems: Sequence[str], refused: Sequence[str] = ()) -> None:
        self.problems, self.refused = tuple(problems), tuple(refused)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Setting:
    """The value of a key, and where it is from."""

    value: Any
    place: str


@dataclass
class Recipe:
    """A run of MaxText as its sources have it."""

    keys: dict[str, Setting] = field(default_factory=dict)
    base: dict[str, Setting] = field(default_factory=dict)  # below those of the model
    flags: dict[str, Setting] = field(default_factory=dict)
    device: str | None = None
    slices: int | None = None
    benchmark: str | None = None

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or its default."""
        found = self.keys.get(key) or self.base.get(key)
        return found.value if found else default

    def set(self, key: str, setting: Setting) -> None:
        """Set a key; where its value is the same again, the first place counts."""
        if key not in self.keys or self.keys[key].value != setting.value:
            self.keys[key] = setting


def read_recipe(sources: Sequence[tuple[str, str]], command: int | None = None) -> Recipe:
    """The recipe of texts, each with its name. Of a script with several commands that train,
    `command` is the number of one, from 1.
    """
    recipe = Recipe()
    for name, text in sorted(sources, key=lambda source: source[0].endswith(".py")):
        if name.endswith((".yml", ".yaml")):
            _read_yaml(recipe, name, text)
        elif name.endswith(".py"):  # the last ones, since the others name the benchmark
            _read_benchmark(recipe, name, text)
        else:
            _read_words(recipe, name, text, command)
    if recipe.benchmark and not recipe.keys | recipe.base:
        raise RecipeProblems([f"benchmark {recipe.benchmark}: {BENCHMARKS_NEEDED}"])
    if not recipe.keys | recipe.base:
        names = ", ".join(name for name, _ in sources)
        raise RecipeProblems([f"{names}: has no key of MaxText, such as per_device_batch_size=4"])
    return recipe


def _read_yaml(recipe: Recipe, name: str, text: str) -> None:
    try:
        check_bounded(text)
        documents = list(yaml.safe_load_all(text))
        if is_manifest(documents):
            _read_manifest(recipe, name, text, documents)
            return
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # a date may be none
        raise RecipeProblems([f"{name}: is not YAML: {error}"]) from error
    if not isinstance(root, yaml.MappingNode) or not isinstance(values, dict):
        raise RecipeProblems([f"{name}: is no mapping of MaxText's keys"])
    is_base = "base_config" not in values and len(values) > FEWEST_OF_BASE
    for node, _ in root.value:
        if isinstance(node, yaml.ScalarNode) and node.value in values:
            place = f"{name}:{node.start_mark.line + 1}"
            value = values[node.value]
            read = value_of(value) if isinstance(value, str) else value
            if is_base:
                recipe.base[node.value] = Setting(read, place)
            else:
                recipe.set(node.value, Setting(read, place))


def _read_manifest(recipe: Recipe, name: str, text: str, documents: Sequence[Any]) -> None:
    """The words of its commands, and the chips that its pods select."""
    _read_words(recipe, name, text, is_script=False)
    try:
        found = slices_of(documents)
    except OddManifest as error:
        raise RecipeProblems([f"{name}: {error}"]) from error
    if found is not None:
        recipe.device, recipe.slices = found


def _read_words(
    recipe: Recipe, name: str, text: str, command: int | None = None, *, is_script: bool = True
) -> None:
    """The words of a script or a command line: options and flags of all commands, and the keys of
    those that train.
    """
    try:
        words = words_of(text, is_script=is_script)
    except TooLong as error:
        raise RecipeProblems([f"{name}: {error}"]) from error
    places: dict[tuple[str, str], str] = {}
    for number, line in enumerate(words.lines, start=1):
        place = f"{name}:{number}"
        for match in FLAG.finditer(line):
            recipe.flags[match[1]] = Setting(value_of(match[2]), place)
        for match in OPTION.finditer(line):
            _take_option(recipe, match[1], match[2])
        for match in KEY.finditer(FLAG.sub("", line)):
            places.setdefault((match[1], match[2]), place)
    if SHEBANG.match(text) and not (words.training or recipe.benchmark):
        raise RecipeProblems([f"{name}: {NO_TRAINING}"])
    if not is_script:
        _check_alike(places)
    keys = _of_training(name, _chosen(name, words.training, command), places) or places
    for (key, value), place in keys.items():
        recipe.set(key, Setting(value_of(value.strip("\"'")), place))


def _check_alike(places: Mapping[tuple[str, str], str]) -> None:
    """Refuse the commands of a manifest that set a key to several values: each is another run."""
    said: dict[str, str] = {}
    for (key, value), place in places.items():
        if said.setdefault(key, value) != value:
            why = f"{key}={value}, and {said[key]} before: only one run is read"
            raise RecipeProblems([f"{place}: {why}; give its words instead"])


def _chosen(
    name: str, commands: Sequence[TrainingCommand], number: int | None
) -> Sequence[TrainingCommand]:
    """The command of that number; all of them where they train the same run, as one that compiles
    it before does.
    """
    runs = {frozenset(key for key in _keys_of(one) if not AHEAD.match(key[0])) for one in commands}
    if number is None and len(runs) < 2:
        return commands
    if number is not None and (number <= len(commands) or not commands):
        return commands[number - 1 : number]
    several = f"has {len(commands)} commands that train; --command N takes one of them"
    raise RecipeProblems(["\n".join((f"{name}: {several}", *_told_apart(commands)))])


def _told_apart(commands: Sequence[TrainingCommand]) -> Iterator[str]:
    """A line for each command: its number, where it is, and the keys that not all have alike."""
    alike = set.intersection(*(set(_keys_of(one)) for one in commands))
    for number, one in enumerate(commands, start=1):
        own = [f"{key}={value}" for key, value in _keys_of(one) if (key, value) not in alike]
        yield f"  {number}, line {one.line}: {shorten(' '.join(own), SHOWN)}"


def _keys_of(command: TrainingCommand) -> list[tuple[str, str]]:
    return [(one[1], one[2]) for one in KEY.finditer(FLAG.sub("", command.words))]


def _of_training(
    name: str, commands: Sequence[TrainingCommand], places: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], str]:
    """The keys of the commands that train, each with its place."""
    for command in commands:
        if other := NO_PRETRAINING.match(command.words):
            raise RecipeProblems([f"{name}: {command.words.split()[0]}: {other[1]} {NO_PLAN}"])
    return {key: places.get(key, name) for one in commands for key in _keys_of(one)}


def _take_option(recipe: Recipe, option: str, value: str) -> None:
    option = option.replace("_", "-")
    if option in DEVICE:
        recipe.device = value
    elif option == SLICES and value.isdecimal():
        recipe.slices = int(value)
    elif option == BENCHMARK:
        recipe.benchmark = value


def _read_benchmark(recipe: Recipe, name: str, text: str) -> None:
    """The tuning parameters of the benchmark that a script names; words override them."""
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except NO_LITERAL as error:
        why = str(error) or type(error).__name__
        raise RecipeProblems([f"{name}: is not Python: {why}"]) from error
    known = {}
    for call in calls:
        words = {word.arg: word.value for word in call.keywords}
        match words.get("model_name"):
            case ast.Constant(value=str(called)) if {"model_type", "tuning_params"} <= set(words):
                known[_plain(called)] = words
    if recipe.benchmark is None or _plain(recipe.benchmark) not in known:
        names = ", ".join(known)
        raise RecipeProblems([f"{name}: benchmark {recipe.benchmark}: known are {names}"])
    words = known[_plain(recipe.benchmark)]
    found = {"model_name": words["model_type"]} | _entries(words["tuning_params"])
    for key, value in found.items():
        with suppress(*NO_LITERAL):  # an expression: a path, a sum of flags
            setting = Setting(ast.literal_eval(value), f"{name}:{value.lineno}")
            recipe.keys.setdefault(key, setting)


def _entries(node: ast.expr) -> dict[str, ast.expr]:
    if not isinstance(node, ast.Dict):
        return {}
    return {
        str(key.value): value
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    }


def _plain(name: str) -> str:
    """A benchmark's name as the runner compares it."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def value_of(text: str) -> Any:
    """A value as MaxText reads it: a number, true or false, a list, or text."""
    known = {"true": True, "false": False, "null": None, "": ""}
    if text.lower() in known:
        return known[text.lower()]
    if BARE_LIST.fullmatch(text):  # a shell has taken its quotes
        return text[1:-1].split(",")
    try:
        return ast.literal_eval(text)
    except NO_LITERAL:
        return text
