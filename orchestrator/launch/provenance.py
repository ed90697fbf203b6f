"""Launch room: what a run is made of: versions, the code's digest, its commit and what differs.

Knows the files of this installation, and git where the code lies in a checkout.
"""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from orchestrator.errors import OrchError

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("orchestrator", "trainers")
LOCK = "requirements.lock"
# What must be alike on every host, and with whoever planned: the same plan then means the same run.
DISTRIBUTIONS = ("jax", "jaxlib", "libtpu", "ray")
CODE = "code"
NO_CODE = (".pyc", ".pyo", ".md")
GIT_LIMIT_S = 60
SHORT = 12


class VersionsDiffer(OrchError):
    """This host does not have what the run was submitted with."""


def versions() -> dict[str, str]:
    """Versions of this process: Python, what computes, this project, and a digest of its code.

    What is not installed is left out: a laptop that submits may have no libtpu.
    """
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in (*DISTRIBUTIONS, "orch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | {CODE: code_digest()}


def differences(asked: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What differs between the versions of a submitter and those of a host, a line each."""
    names = ("python", *DISTRIBUTIONS, CODE)
    return [
        f"{name} {found.get(name, 'is missing')}, against {asked[name]}"
        for name in names
        if name in asked and found.get(name) != asked[name]
    ]


def check_versions(asked: Mapping[str, str]) -> None:
    """Refuse to compute with other versions than those of the submitter."""
    if differ := differences(asked, versions()):
        raise VersionsDiffer(f"versions: on {platform.node()}: {'; '.join(differ)} at submit")


def code_files() -> list[Path]:
    """The project's files that decide what runs, from its root, in order."""
    found = [path for name in PACKAGES for path in (PROJECT / name).rglob("*") if path.is_file()]
    kept = [path.relative_to(PROJECT) for path in found if path.suffix not in NO_CODE]
    return sorted(path for path in kept if not any(part.startswith(".") for part in path.parts))


def lock_files() -> list[Path]:
    """What says which packages are needed, where it lies beside the code."""
    found = (Path(name) for name in (LOCK, "pyproject.toml"))
    return [path for path in found if (PROJECT / path).is_file()]


def code_digest() -> str:
    """A digest of those files, by name and content."""
    told = hashlib.sha256()
    for path in code_files():
        told.update(f"{path.as_posix()}\0".encode())
        told.update(hashlib.sha256((PROJECT / path).read_bytes()).digest())
    return told.hexdigest()[:SHORT]


def commit() -> dict[str, str]:
    """The commit of the checkout that the code lies in; empty where it lies in none."""
    if not _git("ls-files", "--", *PACKAGES):  # an environment may lie in a checkout of others
        return {}
    head = _git("rev-parse", "HEAD")
    if head is None:
        return {}
    return {"git_commit": head.decode().strip()}


def uncommitted() -> bytes:
    """What the checkout holds beside its commit: a diff, and the names of files git never saw."""
    changed = _git("diff", "--no-ext-diff", "--no-textconv", "HEAD")
    status = _git("status", "--porcelain", "--", *PACKAGES)
    unseen = [line for line in (status or b"").splitlines() if line.startswith(b"??")]
    return (changed or b"") + b"".join(line + b"\n" for line in unseen)


def without_secrets(text: bytes, names: Iterable[str]) -> bytes:
    """The text with the values of those environment variables replaced by their names."""
    for name, value in _values(names):
        text = text.replace(value.encode(), f"<{name}>".encode())
    return text


def _values(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The longest first: one may be a part of another. One letter is no secret."""
    known = [(name, os.environ.get(name, "")) for name in (*names, "RAY_AUTH_TOKEN")]
    yield from sorted((pair for pair in known if len(pair[1]) > 1), key=lambda pair: -len(pair[1]))


def _git(*arguments: str) -> bytes | None:
    """What git says about the project's checkout; None where there is none, or no git."""
    command = ["git", "-C", str(PROJECT), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
