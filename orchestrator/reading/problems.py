"""What is wrong with a file, where, and what to write instead. Knows no YAML."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import SpecError

# What a problem suggests to write, by the kind of suggestion.
SUGGESTIONS = {
    "meant": "did you mean {value}?",
    "unquoted": "write {value} without quotes",
    "example": "for example {value}",
    "commas": "write numbers without commas",
    "top": "it belongs at the top of a spec",
    "remove": "remove it",
}
# Code → the message, and the hint where the problem suggests no value of its own.
MESSAGES: dict[str, tuple[str, str]] = {
    # Files
    "folder": ("is a folder, must be a file", "{inside}"),
    "not-a-file": ("is a device, pipe or socket, must be a file", ""),
    "unreadable": ("cannot be read: {reason}", "{sibling}"),
    "too-large": ("is larger than {most:,} bytes", ""),
    "encoding": (
        "is {encoding}, must be UTF-8 without a byte-order mark",
        "save it as plain UTF-8",
    ),
    "undecodable": (
        "has the byte 0x{byte:02x}, must be UTF-8",
        "save it as UTF-8; as Latin-1 this would be {latin!r}",
    ),
    "control-character": ("has the character U+{character:04X}, must be plain text", "{remedy}"),
    "not-toml": ("is not TOML: {reason}", ""),
    "not-json": ("is not JSON: {reason}", ""),
    # Notation
    "syntax": ("is not YAML: {reason}", "{remedy}"),
    "directive": ("has a directive (%), must be plain YAML", "remove it"),
    "documents": ("has a second document, must be one", "one file for each spec"),
    "alias": ("is the alias *{name}, must be a value", "write the value itself"),
    "anchor": ("has the anchor &{name}, must be a value", "remove &{name}"),
    "tag": ("has the tag {name}, must be a value", "remove {name}"),
    "key-not-a-name": (
        "has a mapping or list as a key, must have names as keys",
        "write `name: value`",
    ),
    "empty-key": ("has the key {name}, must have names as keys", "write `name: value`"),
    "merge-key": (
        "has a merge key (<<), must have names as keys",
        "write the keys that it stands for",
    ),
    "duplicate-key": (
        "has {name} twice, must have it once",
        "keep this one or the one on line {first}",
    ),
    "too-deep": ("is nested too deep, must have at most {most} levels", ""),
    "too-many": ("is too much, must be at most {most:,} keys and values", ""),
    # Keys and values
    "unknown-key": ("is unknown, must be one of {expected}", ""),
    "removed-key": (
        "is unknown, must be one of {expected}",
        "docs/studies.md shows random values and early stops with Optuna",
    ),
    "missing-key": ("is missing, must be {expected}", ""),
    "illegal-key": ("is no legal key, must be {expected}", ""),
    "illegal-value": ("is {value}, must be {expected}", ""),
    "empty-value": ("is empty, must be {expected}", ""),
    "unprintable": ("has line breaks or unprintable characters, must be {expected}", ""),
    "ambiguous": (
        "is {value}, which may be read in two ways, must be {expected}",
        'write {alternative}"{text}" if it is text',
    ),
    "repeated-value": ("is {value}, must be given once", "remove it"),
    "not-whole": ("comes to {number:,}, must be a whole number", ""),
    "too-great": ("comes to {number:,}, must be at most {most:,}", ""),
    # Values that do not go together
    "tokens-below-batch": (
        "is {tokens:,}, must be at least one batch: {sequences:,} x {length:,} = {least:,}",
        "for example tokens: {least}",
    ),
    "tokens-of-stages": (
        "is {tokens:,}, must be the sum of all stages: {sum:,}",
        "leave it out, or write tokens: {sum}",
    ),
    "stage-without-batch": (
        "is missing, must be in the first stage or in experiment.batch",
        "for example {name}: 4096",
    ),
    "two-lengths": ("is {length:,}, and the batch's length is {other:,}", "remove one of them"),
    "stage-optimizer": (
        "is {name}, must be {earlier} in every stage: a state has moments of one optimizer",
        "remove it",
    ),
    "no-such-date": ("is {text}, must be a day of the calendar", "for example 2027-03-01"),
    "end-above-peak": (
        "is {end:g}, must be at most the peak_lr of {peak:g}",
        "for example end_lr: {lower:g}",
    ),
    "data-path-missing": (
        "is missing, must be the manifest of the token set",
        "for example path: tokens/manifest.json",
    ),
    "no-such-bucket": (
        "is no address of a bucket, must be a path, or gs:// or s3:// with a bucket and a prefix",
        "for example gs://my-bucket/runs",
    ),
    "reserved-name": (
        "has a folder called {name}, which the copies of buckets keep for this machine's own files",
        "for example gs://my-bucket/runs",
    ),
    "no-file-system": (
        "is an address, must be a path: it is read when the spec is, which opens no connection",
        "copy the file beside the spec",
    ),
    "data-path-unused": (
        "is given, must be left out for synthetic data",
        "remove it, or write kind: tokens",
    ),
    "no-token-set": (
        "is {path}, which holds text, must be the manifest of a token set",
        (
            "orch data pack tokens {found} --tokenizer tokenizer.json makes one; then write"
            " path: tokens/manifest.json"
        ),
    ),
    "folder-of-a-set": (
        "is the folder of a token set, must be its manifest",
        "for example path: {manifest}",
    ),
    "text-as-data": (
        "is {value}, must be {expected}: text is packed into tokens before a run",
        (
            "orch data pack tokens FILES --tokenizer tokenizer.json packs it; then write kind:"
            " tokens and path: tokens/manifest.json"
        ),
    ),
    "no-weights": ("has no safetensors, must be a folder with the weights of a model", ""),
    "other-model": (
        "has weights of another model, must be this one's: {names} differ",
        "for example model: {{huggingface: {config}}}",
    ),
    "no-latent": (
        "is given, must be left out: {model} has no latent attention",
        "remove it",
    ),
    "no-such-tensor": (
        "is given, must be left out: the MLP of {model} is not gated",
        "remove it",
    ),
    "pods-order": ("is {least}, must be at most the max of {most}", "for example min: {most}"),
    "pods-not-divisible": (
        "is {ways}, must divide the number of pods, also the fewest: {pods}",
        "for example {near}",
    ),
    "gpu-cluster": ("GPU clusters are not served yet: {reason}", "{legal}"),
    "no-such-slice": ("is {topology}, must be a slice that exists: {reason}", "{legal}"),
    "unknown-trainer": (
        "is {name!r}, must be a trainer that can be found",
        "known: {known}; or a module of your own that defines program: my_package.my_module",
    ),
    "unknown-backend": (
        "is {name!r}, must be a backend that can be found",
        "known: {known}; or a class of your own: my_package.my_module:MyBackend",
    ),
    "unknown-tracker": (
        "is {name!r}, must be a tracker that can be found",
        "known: {known}; or a class of your own: my_package.my_module:MyTracker",
    ),
    "no-such-token": (
        "is {separator:,}, must be a token of the vocabulary of {vocab:,}",
        "at most {last}",
    ),
    "heads-not-divisible": (
        "is {kv_heads}, must divide the {heads} heads",
        "for example {name}: {near}",
    ),
    "more-chosen": ("is {chosen}, must be at most the {of} {name}", "for example {of}"),
    "groups-not-divisible": ("is {groups}, must divide the {of} experts", "for example {near}"),
    "no-mixture": (
        "is {dense_layers}, which leaves no mixture among {layers} layers with every {every}",
        "lower dense_layers or every",
    ),
    "latent-kv-heads": (
        "is {kv_heads}, must be the {heads} heads: latent attention has keys and values for each",
        "for example {name}: {heads}",
    ),
    "latent-head-dim": (
        "is {head_dim}, must be nope_dim + rope_dim: {nope} + {rope}",
        "for example head_dim: {sum}",
    ),
    "not-with-latent": (
        "goes with grouped-query attention alone, must be left out with latent attention",
        "leave out {name}, or latent",
    ),
    "activation-needs-gate": (
        "is a function of gate and up, must have gated: true",
        "for example gated: true",
    ),
    "head-dim-odd": ("is {head_dim}, must be even: RoPE turns pairs", "for example {name}: {even}"),
    "is-a-study": (
        "makes it a study, must be a spec",
        "orch plan, orch submit and orch report take studies",
    ),
    "study-without-study": (
        "belongs to a study, must be below study",
        "for example study: {{kind: sweep, base: my-run.yaml, vary: ...}}",
    ),
    # --set
    "override-form": (
        "must be KEY=VALUE, with dots between the keys",
        "for example --set experiment.batch.sequences=2048",
    ),
    "override-text": (
        "is not plain text, must be on one line and printable",
        "for example --set experiment.batch.sequences=2048",
    ),
    "override-inside-value": (
        "is {value}, must be a mapping for a key of it to be set",
        "set the whole: --set '{name}={{...}}'",
    ),
    # Studies
    "vary-form": (
        "must be a mapping of dotted keys to lists of values",
        "for example vary: {{resources.pods: [1, 2, 4]}}",
    ),
    "vary-fixed": (
        "cannot be varied, must be the same for all trials: {reason}",
        "for example vary: {{resources.pods: [1, 2, 4]}}",
    ),
    "vary-key": (
        "cannot be varied, must begin with one of {expected}",
        "for example vary: {{resources.pods: [1, 2, 4]}}",
    ),
    "vary-values": (
        "must be a list of at least one value",
        "for example vary: {{resources.pods: [1, 2, 4]}}; docs/studies.md shows random values",
    ),
    "of-scaling": (
        "goes with a study of scaling, must be left out of a sweep",
        "remove it",
    ),
    "scaling-without-size": (
        "compares trials of different sizes, must go with resources.pods or resources.topology",
        "write kind: sweep to compare losses",
    ),
    "too-many-trials": (
        "makes {trials:,} trials, must make at most {most:,}",
        "give fewer values",
    ),
    "override-of-varied": (
        "is varied, must be left to the study",
        "change its values in the study's vary",
    ),
    "weak-without-pods": (
        "is weak, must go with resources.pods among the keys that are varied",
        "for example vary: {{resources.pods: [1, 2, 4]}}",
    ),
    "weak-with-sequences": (
        "is weak, must leave experiment.batch.sequences to follow the pods",
        "or write strong",
    ),
    "weak-with-a-range": (
        "is weak, must have a base with one number of pods: its batch belongs to that",
        "for example resources.pods: 4",
    ),
    "weak-pods": ("must be a whole number of pods in weak scaling", "for example 4"),
    "weak-batch": (
        (
            "is {pods}, must give a whole batch: {sequences:,} sequences on {base_pods} pods are"
            " {batch:,g} on {pods}"
        ),
        "change the batch of the base with --set",
    ),
    # Hugging Face configs
    "config-not-an-object": ("is no JSON object, must be a config.json", "begin with {{"),
    "config-family": (
        "is {name}, must be {expected}{reason}",
        "write the model as a mapping to plan one of that shape",
    ),
    "config-width": (
        "is {width:,}, must be a multiple of {heads} heads",
        "or give the head_dim",
    ),
    "config-unknown": (
        "is unknown, must be absent or null: it may change the model",
        "write the model as a mapping if it does not matter",
    ),
    "config-fixed": (
        "is {value}, must be {expected}: {reason}",
        "for example {name}: {expected}",
    ),
    "config-rope-scaled": (
        "is {value}, must be {expected}",
        'write "{name}": null in a copy of the file if the run trains without scaling',
    ),
    "config-activation": (
        "is {value}, must be one of {expected}",
        'for example "hidden_act": "silu"',
    ),
    "config-layer-types": (
        "is {value}, must be a list of these: {expected}",
        "write the model as a mapping, with a window_pattern",
    ),
    # Chips
    "chip-name": (
        "is called {name}, must not be called like a chip of the catalog",
        "rename the file",
    ),
    "chip-peak": (
        "is missing, must be a rate",
        'for example {peak} = {{ value = 1e14, source = "datasheet" }}',
    ),
    "chip-dimensions": (
        "has {dimensions} dimensions, must have as many as torus_axes: {axes}",
        "for example {example}",
    ),
}


SHOWN_PROBLEMS = 100
SHOWN_COLUMNS = 76  # of a line of a file, after the indentation
SHOWN_BEFORE_CARET = 40
SHOWN_VALUE = 40
INDENT = "    "


@dataclass(frozen=True)
class SpecText:
    """A text as it was given: a file, or the `--set` overrides, one a line.

    What is `hidden` (a secret where its name belongs: line, column, length) is never shown.
    """

    name: str
    lines: tuple[str, ...]
    hidden: list[tuple[int, int, int]] = field(default_factory=list, compare=False)

    def line(self, number: int) -> str:
        """A line as it may be shown, every character in its column."""
        text = list(self.lines[number - 1])
        for line, col, length in self.hidden:
            if line == number:
                end = min(col - 1 + length, len(text))
                text[col - 1 : end] = "*" * (end - col + 1)
        return printable("".join(text))


@dataclass(frozen=True)
class SpecPosition:
    """A position in a source. Lines and columns count from 1; line 0 is the source as a whole."""

    source: SpecText
    line: int
    col: int

    @property
    def text(self) -> str:
        """What a message begins with."""
        name = self.source.name
        return f"{name}:{self.line}:{self.col}" if self.line else name

    def problem(
        self, code: str, /, key: str = "", suggestion: "Correction | None" = None, **fields: Any
    ) -> "Problem":
        return Problem(place=self, code=code, key=key, suggestion=suggestion, fields=fields)


@dataclass(frozen=True)
class Correction:
    """A legal value or key to write instead; SUGGESTIONS has the kinds.

    Where several are as likely, `others` has those after the first.
    """

    kind: str
    value: str = ""
    others: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value, *self.others)

    def __str__(self) -> str:
        *before, last = self.values
        return SUGGESTIONS[self.kind].format(
            value=" or ".join(filter(None, (", ".join(before), last)))
        )


@dataclass(frozen=True)
class FileReference:
    """The key of a spec that names another file."""

    place: SpecPosition
    key: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a file, by its code; MESSAGES has the sentences.

    Where a spec names the file, the message begins with the line of the spec and shows that line.
    The file may be any on the machine, named by mistake: none of its text is shown.
    """

    place: SpecPosition
    code: str
    key: str
    suggestion: Correction | None
    fields: dict[str, Any]
    named_at: FileReference | None = None

    @property
    def message(self) -> str:
        """What is, against what must be."""
        return MESSAGES[self.code][0].format_map(self.fields)

    @property
    def hint(self) -> str:
        """What to write instead."""
        if self.suggestion:
            return str(self.suggestion)
        return MESSAGES[self.code][1].format_map(self.fields)

    @property
    def file(self) -> str:
        return self.place.source.name

    @property
    def line(self) -> int:
        return self.place.line

    @property
    def col(self) -> int:
        return self.place.col

    @property
    def order(self) -> tuple[str, int, int, str, int, int]:
        """Where it stands among the problems of a spec and of the files that it names."""
        first = self.named_at.place if self.named_at else self.place
        return first.source.name, first.line, first.col, self.file, self.line, self.col

    @property
    def snippet(self) -> str:
        """The line, cut to what a screen holds, and a caret below its column."""
        place = self.named_at.place if self.named_at else self.place
        if not place.line or not place.source.lines:
            return ""
        text = place.source.line(place.line)
        before, rest = text[: place.col - 1], text[place.col - 1 :]
        start = max(0, len(before) - SHOWN_BEFORE_CARET)
        before = "..." * bool(start) + before[start:]
        rest = shortened(rest, SHOWN_COLUMNS - len(before))
        return f"{INDENT}{before}{rest}".rstrip() + f"\n{INDENT}{' ' * len(before)}^"

    def __str__(self) -> str:
        parts = [self.place.text, self.key, self.message]
        if self.named_at:
            parts = [self.named_at.place.text, self.named_at.key, *parts]
        head = ": ".join(filter(None, parts))
        return "\n".join(filter(None, (head, self.snippet, self.hint and f"hint: {self.hint}")))


def whole(name: str, code: str, **fields: Any) -> Problem:
    """A problem of a file as a whole."""
    return SpecPosition(SpecText(name, ()), 0, 0).problem(code, **fields)


def printable(text: str) -> str:
    """Safe for a terminal, one column a character."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def shortened(text: str, most: int = SHOWN_VALUE) -> str:
    """A text as a message repeats it."""
    return printable(text if len(text) <= most else text[:most] + "...")


def named_by(reference: FileReference, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of a file that a spec names."""
    return [replace(one, named_at=reference) for one in problems]


class SpecProblems(SpecError):
    """Everything that is wrong with a spec, in the order of its text."""

    is_prose = True
    quoted = (INDENT,)

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda one: one.order)
        super().__init__(_text(self.problems))


def _text(problems: list[Problem]) -> str:
    texts = [str(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        texts.append(f"and {len(problems) - SHOWN_PROBLEMS:,} more problems")
    return "\n\n".join(texts)
