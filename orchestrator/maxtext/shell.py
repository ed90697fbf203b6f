"""Reads a shell script as far as its variables and the words of its training command go.

What looks like `key=value` may be a variable of the shell, or an argument of another command.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
