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

from orchestrator import catalog
from orchestrator.errors import SpecError

# YAML of others, of which no text may make values that are much larger than it.


DEEPEST = 16  # nested values


def check_bounded(text: str) -> None:
    """Refuse what could grow when values are made of it: aliases, and depth."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"the alias *{event.anchor} is not served")
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")


# Reads a shell script as far as its variables and the words of its training command go.


COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
QUOTED = r'"(?:\\.|[^"\\])*"|\'[^\']*\''
LIST = rf"\((?:{QUOTED}|\\.|[^()\"'\\])*\)"
# A command ends at the end of its line, or at an operator; neither counts inside quotes or a list.
COMMAND = re.compile(rf"(?:{QUOTED}|={LIST}|\\.|[^;&|\n\"'\\]|[\"'])+", re.DOTALL)
PIECE = re.compile(r"&&|\|\||;|(?<!\\)\n")  # of a command in quotes, which another shell reads
BEFORE = r"(?:(?:export|local|readonly|declare|then|do|else)\s+(?:-\w+\s+)*)?"
ASSIGNMENT = re.compile(
    rf"\s*{BEFORE}([A-Za-z_]\w*)(\+?)=({LIST}|(?:{QUOTED}|\\.|[^\s\"'\\;&|])*)", re.DOTALL
)
LARGE_VARIABLE = re.compile(
    r"""^\s*(?:export\s+)?([A-Z][A-Z0-9_]*)=("[^"]*"|'[^']*'|[^\s;]*)""", re.MULTILINE
)
USE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)")
TRAINER = re.compile(r"(?i:maxtext)[./]\S*train|\btrainers[./]\S*train|\btrain(?:_compile)?\.py")
DEPTH = 8
LONGEST = 1 << 20  # characters of a line with the values of its variables


class TooLong(ValueError):
    """A line that its variables make too long."""


@dataclass(frozen=True)
class TrainingCommand:
    """A command that trains, from its program on, and the line where it begins."""

    line: int
    words: str


@dataclass(frozen=True)
class ScriptWords:
    """The lines of a text with the values of its variables, and the commands that train.

    `lines` are numbered from 1, and have the values that variables are set to, without their names.
    """

    lines: tuple[str, ...]
    training: tuple[TrainingCommand, ...]


def words_of(text: str, *, is_script: bool) -> ScriptWords:
    """The words of a script, or of another text that has parts of one. Without a training command
    they are only words, in which variables have large letters.
    """
    plain = COMMENT.sub(lambda match: match[1], text)
    variables = _variables(plain) if is_script else {}
    training = tuple(_training(plain, variables)) if is_script else ()
    if not training:
        found = LARGE_VARIABLE.finditer(plain)
        variables = {match[1]: match[2].strip("\"'") for match in found}
    without = LARGE_VARIABLE.sub(_value_alone, plain)
    return ScriptWords(tuple(expanded(one, variables) for one in without.splitlines()), training)


def _variables(text: str) -> dict[str, str]:
    """What a script's variables are set to last."""
    found: dict[str, str] = {}
    for command in COMMAND.finditer(text):
        _assign(command, found)
    return found


def _assign(command: re.Match[str], found: dict[str, str]) -> int:
    """Set the variables that a command begins with, and return where they end. A value has those of
    the variables before it.
    """
    end = command.start()
    for match in _assignments(command):
        value = expanded(match[3].strip("\"'()"), found)
        found[match[1]] = f"{found.get(match[1], '')} {value}" if match[2] else value
        end = match.end()
        if sum(map(len, found.values())) > LONGEST:
            raise TooLong(f"variables have more than {LONGEST:,} characters")
    return end


def _assignments(command: re.Match[str]) -> Iterator[re.Match[str]]:
    """The variables that a command begins with."""
    at = command.start()
    while match := ASSIGNMENT.match(command.string, at, command.end()):
        yield match
        at = match.end()


def _training(text: str, last: dict[str, str]) -> Iterator[TrainingCommand]:
    """Each command that trains, without variables that it begins with. A variable has the value of
    that place; one that is set below only, as by whoever calls a function, has its last.
    """
    found: dict[str, str] = {}
    for command in COMMAND.finditer(text):
        at = _assign(command, found)
        for piece in PIECE.split(text[at : command.end()]):
            words = expanded(piece, last | found)
            if program := TRAINER.search(words):
                begin = at + len(piece) - len(piece.lstrip())
                line = text.count("\n", 0, text.index(piece.strip(), begin)) + 1
                yield TrainingCommand(line, words[program.start() :])


def _value_alone(match: re.Match[str]) -> str:
    """What a variable is set to, without the name: its words may be keys."""
    return match[0][: match.start(1) - match.start()] + " " + match[2]


def expanded(text: str, variables: dict[str, str]) -> str:
    """Text with the values of variables that the script sets, or their defaults; others stay."""

    def value(match: re.Match[str]) -> str:
        default = match[0] if match[2] is None else match[2]
        return variables.get(match[1] or match[3], default)

    for _ in range(DEPTH):
        before = text
        uses = (match[1] or match[3] for match in USE.finditer(text))
        if len(text) + sum(len(variables.get(name, "")) for name in uses) > LONGEST:
            raise TooLong(f"variables make a line longer than {LONGEST:,} characters")
        text = USE.sub(value, text)
        if text == before:
            break
    return text


# The chips that a Kubernetes manifest asks for: a JobSet's, or a Job's.


ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
# The second is of a part of a node pool's slice.
TOPOLOGIES = ("cloud.google.com/gke-tpu-slice-topology", "cloud.google.com/gke-tpu-topology")
NOTHING: Mapping[str, Any] = {}


class OddManifest(SpecError):
    """A manifest whose chips are not one kind of slice."""


def is_manifest(documents: Sequence[Any]) -> bool:
    """Whether YAML documents are objects of Kubernetes."""
    return any(isinstance(one, dict) and {"apiVersion", "kind"} <= one.keys() for one in documents)


def slices_of(documents: Sequence[Any]) -> tuple[str, int] | None:
    """A slice as xpk calls it (v6e-16x16), and how many; None where no pod asks for one."""
    found = [(kind, count) for one in documents for kind, count in _asked(one, 1)]
    if not found:
        return None
    kinds = {kind for kind, _ in found}
    if len(kinds) > 1:
        raise OddManifest(f"its pods are on {', '.join(sorted(kinds))}: slices must be of one kind")
    return kinds.pop(), sum(count for _, count in found)


def _asked(
    node: Any, replicas: int, annotations: Mapping[str, Any] = NOTHING
) -> Iterator[tuple[str, int]]:
    """The slices of each pod's template below a node. What is replicated are whole jobs.

    `annotations` are those of the object that the node is the specification of.
    """
    if isinstance(node, list):
        for one in node:
            yield from _asked(one, replicas)
    if not isinstance(node, dict):
        return
    labels = node.get("nodeSelector")
    if isinstance(labels, dict) and ACCELERATOR in labels:
        yield _slice({**labels, **annotations}), replicas
    count = node.get("replicas", 1)
    annotations = _annotations(node)
    for one in node.values():
        yield from _asked(one, replicas * (count if type(count) is int else 1), annotations)


def _annotations(node: dict[str, Any]) -> dict[str, Any]:
    metadata = node.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return (
        {key: found[key] for key in TOPOLOGIES if key in found} if isinstance(found, dict) else {}
    )


def _slice(selector: dict[str, Any]) -> str:
    label = selector[ACCELERATOR]
    shape = next((selector[key] for key in TOPOLOGIES if key in selector), None)
    if shape is None:
        raise OddManifest(f"{ACCELERATOR}={label}: no label beside it says the topology")
    for name in catalog.chips():
        gke = catalog.chip(name).gke
        if gke is not None and gke.accelerator == label:
            return f"{name}-{shape}"
    raise OddManifest(f"{ACCELERATOR}={label}: no chip of the catalog has it")


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
