"""Reads files as text. Knows sizes and encodings, and nothing of what the text means."""

import re
from difflib import get_close_matches
from pathlib import Path

from orchestrator.spec.problem import Problem, SpecPosition, SpecProblems, SpecText, whole

MOST_BYTES = 2**20
BYTE_ORDER_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"\xef\xbb\xbf", "UTF-8 with a byte-order mark"),
)
# Control characters, byte-order marks, and the line ends that only some programs take for one.
UNWRITABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
LINE_END = re.compile("\r\n|\r|\n")


def read(path: Path) -> SpecText:
    """The text of a file, or the one reason why it has none."""
    raw = _bytes(path)
    name = str(path)
    for mark, encoding in BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            raise SpecProblems([_encoded(name, encoding)])
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise SpecProblems([_undecodable(name, raw, error.start)]) from None
    if character := UNWRITABLE.search(text):
        raise SpecProblems([_unwritable(name, text, character.start())])
    return SpecText(name, tuple(LINE_END.split(text)))


def _bytes(path: Path) -> bytes:
    """The content of a file of legal size; pipes and devices may never end, and are no files."""
    name = str(path)
    try:
        if path.is_dir():
            raise SpecProblems([whole(name, "folder", inside=_inside(path))])
        if path.exists() and not path.is_file():
            raise SpecProblems([whole(name, "not-a-file")])
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecProblems(
            [whole(name, "unreadable", reason=reason, sibling=_sibling(path))]
        ) from None
    if len(raw) > MOST_BYTES:
        raise SpecProblems([whole(name, "too-large", most=MOST_BYTES)])
    return raw


def _inside(folder: Path) -> str:
    """The file that is usually meant by its folder."""
    meant = folder / "config.json"
    return f"did you mean {meant}?" if meant.is_file() else ""


def _sibling(path: Path) -> str:
    """The file that was probably meant. Endings make no two names alike."""
    try:
        names = {
            other.stem: other.name for other in sorted(path.parent.iterdir()) if other.exists()
        }
    except (OSError, ValueError):
        return ""
    close = get_close_matches(path.stem, names, 1)
    return f"did you mean {path.parent / names[close[0]]}?" if close else ""


def _encoded(name: str, encoding: str) -> Problem:
    start = SpecPosition(SpecText(name, ()), 1, 1)
    return start.problem("encoding", encoding=encoding)


def _undecodable(name: str, raw: bytes, start: int) -> Problem:
    place = _place(name, raw.decode(errors="replace"), len(raw[:start].decode()))
    return place.problem("undecodable", byte=raw[start], latin=chr(raw[start]))


def _unwritable(name: str, text: str, start: int) -> Problem:
    is_null = text[start] == "\0"
    remedy = "it looks like UTF-16 or no text: save it as UTF-8" if is_null else "remove it"
    place = _place(name, text, start)
    return place.problem("control-character", character=ord(text[start]), remedy=remedy)


def _place(name: str, text: str, start: int) -> SpecPosition:
    lines = LINE_END.split(text[:start])
    source = SpecText(name, tuple(LINE_END.split(text)))
    return SpecPosition(source, len(lines), len(lines[-1]) + 1)
