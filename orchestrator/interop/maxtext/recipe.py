"""Reads what a MaxText run is started with: YAML, `key=value` words, scripts, Kubernetes manifests.
A script gives the training command's keys, the options of `xpk workload create` and the compiler's
flags; a manifest gives its commands' words and slices. A benchmark by its name needs MaxText's
Python file of benchmarks. Later sources override earlier ones.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import yaml

from orchestrator import catalog
from orchestrator.errors import SpecError

_KEY = re.compile(
    r"""(?<![\w./$=-])([a-z][a-z0-9_]*)=(?!=)("[^"]*"|'[^']*'|\[[^\]]*\]|[^\s"'\\;&|)]+)"""
)
_SHEBANG = re.compile(r"#!.*sh\b")
_FLAG = re.compile(r"(?<![\w-])--?((?:xla|libtpu)_[a-z0-9_]+)=([^\s\"'\\]+)")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z_-]*)[= ]\s*\"?'?([^\s\"'\\]+)")
_BARE_LIST = re.compile(r"\[[a-z]\w*(?:,[a-z]\w*)*\]")
# Python's errors for text that is not a literal, or too deep.
_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_NO_PRETRAINING = re.compile(r"\S*post_train[./](distillation|rl|dpo)\b")
# base.yml has all keys, from 94 to 695; a recipe and a model change fewer.
_FEWEST_OF_BASE = 80
_SHOWN = 90  # characters of a command
_DEEPEST = 16  # nested values of YAML


class RecipeProblems(SpecError):
    """All that keeps a recipe from being a spec, a line each, and the keys that are refused."""

    def __init__(self, problems: Sequence[str], refused: Sequence[str] = ()) -> None:
        self.problems, self.refused = tuple(problems), tuple(refused)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Setting:
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
        found = self.keys.get(key) or self.base.get(key)
        return found.value if found else default

    def set(self, key: str, setting: Setting) -> None:
        """Set a key; where its value is the same again, the first place counts."""
        if key not in self.keys or self.keys[key].value != setting.value:
            self.keys[key] = setting

    def take_option(self, option: str, value: str) -> None:
        """Take an option of xpk that says which chips."""
        if option in ("device-type", "tpu-type"):
            self.device = value
        elif option == "num-slices" and value.isdecimal():
            self.slices = int(value)
        elif option == "model-name":
            self.benchmark = value


def read_recipe(sources: Sequence[tuple[str, str]], command: int | None = None) -> Recipe:
    """Return the recipe of named texts; `command` numbers, from 1, a script's training commands."""
    recipe = Recipe()
    # Python files come last, since the others name the benchmark.
    for name, text in sorted(sources, key=lambda source: source[0].endswith(".py")):
        if name.endswith((".yml", ".yaml")):
            _read_yaml(recipe, name, text)
        elif name.endswith(".py"):
            _read_benchmark(recipe, name, text)
        else:
            _read_words(recipe, name, text, command)
    if not recipe.keys | recipe.base:
        if recipe.benchmark:
            needed = "give MaxText's Python file of benchmarks too, maxtext_*_model_configs.py"
            raise RecipeProblems([f"benchmark {recipe.benchmark}: {needed}"])
        names = ", ".join(name for name, _ in sources)
        raise RecipeProblems([f"{names}: has no key of MaxText, such as per_device_batch_size=4"])
    return recipe


# YAML, of which no text may make values that are much larger than it.


def _read_yaml(recipe: Recipe, name: str, text: str) -> None:
    try:
        # Refuse what could grow when values are made of it: aliases, and depth.
        depth = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"the alias *{event.anchor} is not served")
            if depth > _DEEPEST:
                raise ValueError(f"it has more than {_DEEPEST} levels")
        documents = list(yaml.safe_load_all(text))
        kinds = [set(part) for part in documents if isinstance(part, dict)]
        if any({"apiVersion", "kind"} <= keys for keys in kinds):  # objects of Kubernetes
            _read_words(recipe, name, text, is_script=False)
            _read_slices(recipe, name, documents)
            return
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # a date may be none
        raise RecipeProblems([f"{name}: is not YAML: {error}"]) from error
    if not isinstance(root, yaml.MappingNode) or not isinstance(values, dict):
        raise RecipeProblems([f"{name}: is not a mapping of MaxText's keys"])
    is_base = "base_config" not in values and len(values) > _FEWEST_OF_BASE
    for node, _ in root.value:
        if isinstance(node, yaml.ScalarNode) and node.value in values:
            value = values[node.value]
            value = _value_of(value) if isinstance(value, str) else value
            setting = Setting(value, f"{name}:{node.start_mark.line + 1}")
            if is_base:
                recipe.base[node.value] = setting
            else:
                recipe.set(node.value, setting)


# The words of a script, a command line or a manifest.


def _read_words(
    recipe: Recipe, name: str, text: str, command: int | None = None, *, is_script: bool = True
) -> None:
    """Read options and flags of all commands, and the keys of those that train."""
    try:
        lines, commands = _words_of(text, is_script=is_script)
    except OverflowError as error:
        raise RecipeProblems([f"{name}: {error}"]) from error
    places: dict[tuple[str, str], str] = {}
    for number, line in enumerate(lines, start=1):
        place = f"{name}:{number}"
        for match in _FLAG.finditer(line):
            recipe.flags[match[1]] = Setting(_value_of(match[2]), place)
        for match in _OPTION.finditer(line):
            recipe.take_option(match[1].replace("_", "-"), match[2])
        for match in _KEY.finditer(_FLAG.sub("", line)):
            places.setdefault((match[1], match[2]), place)
    if _SHEBANG.match(text) and not (commands or recipe.benchmark):
        missing = "has no command that trains with MaxText, such as python3 -m MaxText.train"
        raise RecipeProblems([f"{name}: {missing}"])
    said: dict[str, str] = {}
    for (key, value), place in places.items() if not is_script else ():
        # Commands of a manifest that set a key to several values are several runs.
        if said.setdefault(key, value) != value:
            why = f"{key}={value}, and {said[key]} before: only one run is read"
            raise RecipeProblems([f"{place}: {why}; give its words instead"])
    training = [key for chosen in _chosen(name, commands, command) for key in chosen.keys]
    keys = {key: places.get(key, name) for key in training} or places
    for (key, value), place in keys.items():
        recipe.set(key, Setting(_value_of(value.strip("\"'")), place))


@dataclass(frozen=True)
class _TrainingCommand:
    line: int
    words: str

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [(match[1], match[2]) for match in _KEY.finditer(_FLAG.sub("", self.words))]


def _chosen(
    name: str, commands: Sequence[_TrainingCommand], number: int | None
) -> Sequence[_TrainingCommand]:
    """Return the command of that number; all of them where they train the same run."""
    runs = {
        frozenset(key for key in training.keys if not key[0].startswith("compile"))
        for training in commands
    }
    if number is not None and (number <= len(commands) or not commands):
        commands = commands[number - 1 : number]
    elif number is not None or len(runs) > 1:
        lines = [f"{name}: has {len(commands)} commands that train; --command N takes one of them"]
        alike = set.intersection(*(set(training.keys) for training in commands))
        for index, training in enumerate(commands, start=1):
            own = [f"{key}={value}" for key, value in training.keys if (key, value) not in alike]
            lines.append(f"  {index}, line {training.line}: {shorten(' '.join(own), _SHOWN)}")
        raise RecipeProblems(["\n".join(lines)])
    for training in commands:
        if other := _NO_PRETRAINING.match(training.words):
            why = f"{other[1]} is not planned: only pre-training and supervised fine-tuning are"
            raise RecipeProblems([f"{name}: {training.words.split()[0]}: {why}"])
    return commands


def _value_of(text: str) -> Any:
    """Return a value as MaxText reads it: a number, true or false, a list, or text."""
    known = {"true": True, "false": False, "null": None, "": ""}
    if text.lower() in known:
        return known[text.lower()]
    if _BARE_LIST.fullmatch(text):  # a shell has taken its quotes
        return text[1:-1].split(",")
    try:
        return ast.literal_eval(text)
    except _NO_LITERAL:
        return text


# Reads a shell script as far as its variables and the words of its training command go.

_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
_QUOTED = r'"(?:\\.|[^"\\])*"|\'[^\']*\''
_LIST = rf"\((?:{_QUOTED}|\\.|[^()\"'\\])*\)"
# A command ends at the end of its line, or at an operator; neither counts inside quotes or a list.
_COMMAND = re.compile(rf"(?:{_QUOTED}|={_LIST}|\\.|[^;&|\n\"'\\]|[\"'])+", re.DOTALL)
_PIECE = re.compile(r"&&|\|\||;|(?<!\\)\n")  # of a command in quotes, which another shell reads
_BEFORE = r"(?:(?:export|local|readonly|declare|then|do|else)\s+(?:-\w+\s+)*)?"
_ASSIGNMENT = re.compile(
    rf"\s*{_BEFORE}([A-Za-z_]\w*)(\+?)=({_LIST}|(?:{_QUOTED}|\\.|[^\s\"'\\;&|])*)", re.DOTALL
)
_LARGE_VARIABLE = re.compile(
    r"""^\s*(?:export\s+)?([A-Z][A-Z0-9_]*)=("[^"]*"|'[^']*'|[^\s;]*)""", re.MULTILINE
)
_USE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)")
_TRAINER = re.compile(r"(?i:maxtext)[./]\S*train|\btrainers[./]\S*train|\btrain(?:_compile)?\.py")
_DEPTH = 8
_LONGEST = 1 << 20  # characters of a line with the values of its variables


def _words_of(text: str, *, is_script: bool) -> tuple[list[str], list[_TrainingCommand]]:
    """Return the lines of a text with the values of its variables, and the commands that train.
    Other lines keep variables, in large letters, as words.
    """
    plain = _COMMENT.sub(lambda match: match[1], text)
    variables: dict[str, str] = {}
    for command in _COMMAND.finditer(plain) if is_script else ():
        _assign(command, variables)
    # Each command that trains, without the variables before it. A variable has the value of its
    # place, or its last if it is set only below, as by whoever calls a function.
    training, found = list[_TrainingCommand](), dict[str, str]()
    for command in _COMMAND.finditer(plain) if is_script else ():
        at = _assign(command, found)
        for piece in _PIECE.split(plain[at : command.end()]):
            words = _expanded(piece, variables | found)
            if program := _TRAINER.search(words):
                begin = at + len(piece) - len(piece.lstrip())
                line = plain.count("\n", 0, plain.index(piece.strip(), begin)) + 1
                training.append(_TrainingCommand(line, words[program.start() :]))
    if not training:
        large = _LARGE_VARIABLE.finditer(plain)
        variables = {match[1]: match[2].strip("\"'") for match in large}
    # The words that a variable is set to may be keys: its name goes, and its columns stay.
    without = _LARGE_VARIABLE.sub(
        lambda match: match[0][: match.start(1) - match.start()] + " " + match[2], plain
    )
    return [_expanded(line, variables) for line in without.splitlines()], training


def _assign(command: re.Match[str], found: dict[str, str]) -> int:
    """Set the variables that a command begins with, using earlier ones; return where they end."""
    end = command.start()
    while match := _ASSIGNMENT.match(command.string, end, command.end()):
        value = _expanded(match[3].strip("\"'()"), found)
        found[match[1]] = f"{found.get(match[1], '')} {value}" if match[2] else value
        end = match.end()
        if sum(map(len, found.values())) > _LONGEST:
            raise OverflowError(f"variables have more than {_LONGEST:,} characters")
    return end


def _expanded(text: str, variables: dict[str, str]) -> str:
    """Return text with the values of variables that the script sets, or their defaults."""

    def value(match: re.Match[str]) -> str:
        default = match[0] if match[2] is None else match[2]
        return variables.get(match[1] or match[3], default)

    for _ in range(_DEPTH):
        before = text
        uses = (match[1] or match[3] for match in _USE.finditer(text))
        if len(text) + sum(len(variables.get(name, "")) for name in uses) > _LONGEST:
            raise OverflowError(f"variables make a line longer than {_LONGEST:,} characters")
        text = _USE.sub(value, text)
        if text == before:
            break
    return text


# The chips that a Kubernetes manifest asks for: a JobSet's, or a Job's.

_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
# A part of a node pool's slice goes before the slice of the pool.
_TOPOLOGIES = ("cloud.google.com/gke-tpu-slice-topology", "cloud.google.com/gke-tpu-topology")


def _read_slices(recipe: Recipe, name: str, documents: Sequence[Any]) -> None:
    """Read a slice as xpk calls it (v6e-16x16), and the number of slices that pods ask for."""
    found = [asked for document in documents for asked in _asked(name, document, 1, {})]
    kinds = {kind for kind, _ in found}
    if len(kinds) > 1:
        why = f"its pods are on {', '.join(sorted(kinds))}: slices must be of one kind"
        raise RecipeProblems([f"{name}: {why}"])
    if found:
        recipe.device, recipe.slices = kinds.pop(), sum(count for _, count in found)


def _asked(
    name: str, node: Any, replicas: int, annotations: Mapping[str, Any]
) -> Iterator[tuple[str, int]]:
    """Yield the slices of each pod's template below a node; what is replicated are whole jobs."""
    if isinstance(node, list):
        for inside in node:
            yield from _asked(name, inside, replicas, {})
    if not isinstance(node, dict):
        return
    labels = node.get("nodeSelector")
    if isinstance(labels, dict) and _ACCELERATOR in labels:
        yield _slice(name, {**labels, **annotations}), replicas
    count = node.get("replicas", 1)
    metadata = node.get("metadata")
    noted = metadata.get("annotations") if isinstance(metadata, dict) else None
    noted = noted if isinstance(noted, dict) else {}
    noted = {key: noted[key] for key in _TOPOLOGIES if key in noted}
    for inside in node.values():
        yield from _asked(name, inside, replicas * (count if type(count) is int else 1), noted)


def _slice(name: str, selector: dict[str, Any]) -> str:
    label = selector[_ACCELERATOR]
    shape = next((selector[key] for key in _TOPOLOGIES if key in selector), None)
    if shape is None:
        why = "no label next to it says the topology"
        raise RecipeProblems([f"{name}: {_ACCELERATOR}={label}: {why}"])
    for chip in catalog.chips():
        gke = catalog.chip(chip).gke
        if gke is not None and gke.accelerator == label:
            return f"{chip}-{shape}"
    raise RecipeProblems([f"{name}: {_ACCELERATOR}={label}: no chip of the catalog has it"])


# MaxText's Python file of benchmarks.


def _read_benchmark(recipe: Recipe, name: str, text: str) -> None:
    """Read the tuning parameters of the benchmark that a script names; words override them."""
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except _NO_LITERAL as error:
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
    found, tuning = {"model_name": words["model_type"]}, words["tuning_params"]
    if isinstance(tuning, ast.Dict):
        pairs = zip(tuning.keys, tuning.values, strict=True)
        found |= {str(key.value): node for key, node in pairs if isinstance(key, ast.Constant)}
    for key, value in found.items():
        with suppress(*_NO_LITERAL):  # an expression: a path, a sum of flags
            setting = Setting(ast.literal_eval(value), f"{name}:{value.lineno}")
            recipe.keys.setdefault(key, setting)


def _plain(name: str) -> str:
    """Return a benchmark's name as the runner compares it."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())
