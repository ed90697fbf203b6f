"""What a disk may hold after its power fails, for a program whose changes were recorded.

POSIX promises little: the content of a file as of its last fsync, and the names in a folder as of
its last fsync. Of all later changes any may be there, and a write by half. `Recorder` notes the
changes that a program makes through `os`, and `crashes` builds the disks that these allow.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDED = ("open", "write", "fsync", "ftruncate", "link", "unlink", "rename", "mkdir", "rmdir")


@dataclass(eq=False)
class Node:
    """A file with its contents over time, or a folder with its names; and when it was synced."""

    is_folder: bool
    contents: list[tuple[int, bytes]] = field(default_factory=list)
    names: dict[str, "Node"] = field(default_factory=dict)
    syncs: list[int] = field(default_factory=list)

    def content(self, at: int, mode: str) -> bytes:
        """What a crash at that time leaves: what was synced, all, or half of the rest."""
        last_sync = max((sync for sync in self.syncs if sync <= at), default=0)
        synced = self._content_at(last_sync)
        written = self._content_at(at)
        if mode == "synced" or not written.startswith(synced):
            return synced if mode == "synced" else written
        more = len(written) - len(synced)
        return written[: len(synced) + (more if mode == "all" else more // 2)]

    def _content_at(self, at: int) -> bytes:
        return next((text for when, text in reversed(self.contents) if when <= at), b"")


@dataclass(frozen=True, eq=False)
class Change:
    """A change of names at a time: what each name of a folder stands for then, or nothing."""

    at: int
    effects: tuple[tuple[Node, str, Node | None], ...]

    def is_durable(self, crash: int) -> bool:
        """Whether the folders were synced since: of a rename the new one."""
        folder = self.effects[-1][0]
        return any(self.at <= sync <= crash for sync in folder.syncs)


class Recorder:
    """Notes every change that is made below a folder through `os`, and what was acknowledged."""

    def __init__(self, root: Path) -> None:
        self.root, self.top, self.now = root, Node(is_folder=True), 0
        self.changes: list[Change] = []
        self.acknowledged: list[tuple[int, str]] = []
        self._opened: dict[int, Node] = {}

    def install(self) -> None:
        """Record from now on, in this process."""
        for name in RECORDED:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def acknowledge(self, what: str) -> None:
        self.acknowledged.append((self.now, what))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        note = getattr(self, f"_{name}")

        def recorded(*values: Any, **named: Any) -> Any:
            result = real(*values, **named)
            if name == "open":
                self._opened.pop(result, None)  # the number of a file that was closed
            if not named.get("dir_fd"):
                self.now += 1
                note(result, *values)
            return result

        return recorded

    # --- one change each

    def _open(self, opened: int, path: Any, flags: int, *_: Any) -> None:
        if not isinstance(path, int) and (node := self._node(path)) is not None:
            self._opened[opened] = node
        elif flags & os.O_CREAT and (place := self._place(path)):
            self._opened[opened] = Node(is_folder=False)
            self._change((*place, self._opened[opened]))

    def _write(self, written: int, opened: int, content: bytes) -> None:
        if node := self._opened.get(opened):
            before = node.contents[-1][1] if node.contents else b""
            node.contents.append((self.now, before + bytes(content[:written])))

    def _ftruncate(self, _: None, opened: int, size: int) -> None:
        if node := self._opened.get(opened):
            node.contents.append((self.now, node.contents[-1][1][:size]))

    def _fsync(self, _: None, opened: int) -> None:
        if node := self._opened.get(opened):
            node.syncs.append(self.now)

    def _link(self, _: None, source: Any, target: Any) -> None:
        if place := self._place(target):
            self._change((*place, self._known(source)))

    def _rename(self, _: None, source: Any, target: Any) -> None:
        before, place = self._place(source), self._place(target)
        if before and place:
            self._known(source, target)
            self._change((*before, None), (*place, before[0].names[before[1]]))

    def _unlink(self, _: None, path: Any) -> None:
        if place := self._place(path):
            self._change((*place, None))

    _rmdir = _unlink

    def _mkdir(self, _: None, path: Any, *__: Any) -> None:
        if place := self._place(path):
            self._change((*place, Node(is_folder=True)))

    def _change(self, *effects: tuple[Node, str, Node | None]) -> None:
        self.changes.append(Change(self.now, effects))
        for folder, name, node in effects:
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node

    # --- paths

    def _place(self, path: Any) -> tuple[Node, str] | None:
        """The folder of a path and its name there; None for paths elsewhere."""
        absolute = Path(os.fspath(path)).absolute()
        if self.root not in absolute.parents:
            return None
        folder = self._node(absolute.parent)
        assert folder is not None, f"{absolute}: in a folder that was not recorded"
        return folder, absolute.name

    def _node(self, path: Any) -> Node | None:
        absolute = Path(os.fspath(path)).absolute()
        if absolute != self.root and self.root not in absolute.parents:
            return None
        node: Node | None = self.top
        for name in absolute.relative_to(self.root).parts:
            node = node.names.get(name) if node else None
        return node

    def _known(self, path: Any, now_at: Any = None) -> Node:
        """The node of a path; one that was not written through `os` is as it is, and unsynced."""
        if (node := self._node(path)) is None:
            place, node = self._place(path), Node(is_folder=False)
            assert place
            node.contents.append((self.now, Path(os.fspath(now_at or path)).read_bytes()))
            self._change((*place, node))
        return node


@dataclass(frozen=True)
class Crash:
    """A disk after a power failure, and what had been acknowledged by then."""

    at: int
    why: str
    files: dict[str, bytes]
    folders: frozenset[str]
    acknowledged: frozenset[str]

    def build(self, folder: Path) -> None:
        """Write the disk down below a folder."""
        for name in sorted(self.folders):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def crashes(recorder: Recorder) -> Iterator[Crash]:
    """Every disk, once: after each change, with none, all, all but one and only one of the names
    that are not durable, and the content of files as synced, whole and by half.
    """
    seen: set[int] = set()
    for at in range(recorder.now + 1):
        made = [change for change in recorder.changes if change.at <= at]
        loose = [change for change in made if not change.is_durable(at)]
        acknowledged = frozenset(what for when, what in recorder.acknowledged if when <= at)
        for why, lost in losses(loose):
            kept = [change for change in made if change not in lost]
            for mode in ("synced", "all", "half"):
                files, folders = contents(recorder.top, kept, at, mode)
                key = hash((frozenset(files.items()), frozenset(folders), acknowledged))
                if key not in seen:
                    seen.add(key)
                    text = f"after change {at}, {why}, content {mode}"
                    yield Crash(at, text, files, frozenset(folders), acknowledged)


def losses(loose: list[Change]) -> Iterator[tuple[str, set[Change]]]:
    """Which of the changes that are not durable may be lost together."""
    yield "no name lost", set()
    yield "all loose names lost", set(loose)
    for path in loose:
        yield f"the name of change {path.at} lost", {path}
        yield f"only the name of change {path.at} kept", set(loose) - {path}


def contents(
    top: Node, kept: list[Change], at: int, mode: str
) -> tuple[dict[str, bytes], set[str]]:
    """The files and folders of a disk on which these changes of names took place."""
    names: dict[Node, dict[str, Node]] = {}
    for change in kept:
        for folder, name, node in change.effects:
            inside = names.setdefault(folder, {})
            if node is None:
                inside.pop(name, None)
            else:
                inside[name] = node
    files: dict[str, bytes] = {}
    folders: set[str] = set()

    def walk(folder: Node, path: str) -> None:
        for name, node in names.get(folder, {}).items():
            inner = f"{path}{name}"
            if node.is_folder:
                folders.add(inner)
                walk(node, f"{inner}/")
            else:
                files[inner] = node.content(at, mode)

    walk(top, "")
    return files, folders
