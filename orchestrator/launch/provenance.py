"""The origin of a run: versions, the code with its digest and archive, its commit."""

import hashlib
import io
import os
import platform
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from orchestrator.errors import OrchError

_PROJECT = Path(__file__).resolve().parents[2]
_PACKAGES = ("orchestrator", "trainers")
# The same plan means the same run only where these are the same as on the submitter's machine.
_DISTRIBUTIONS = ("jax", "jaxlib", "libtpu", "ray")
_CODE = "code"
_NO_CODE = (".pyc", ".pyo", ".md")
# Files that pages are made of, and specs to begin with: folders here, links in a checkout. They
# decide nothing of a run.
_PAGES, _EXAMPLES = Path("orchestrator/dashboards"), Path("orchestrator/examples")
_GIT_LIMIT_S = 60
_MOST_CODE_BYTES, _MOST_DIFF_BYTES = 64 << 20, 4 << 20
_SHORT = 12
ARCHIVE = "code.zip"
# The earliest time that a zip file can hold: the same code is the same archive, stored once by Ray.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class VersionsDiffer(OrchError):
    """This host has other versions than the submitter."""


def versions() -> dict[str, str]:
    """The versions of this process: Python, what computes, this project, a digest of its code."""
    known = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in (*_DISTRIBUTIONS, "orch"):
        with suppress(metadata.PackageNotFoundError):  # a laptop that submits may lack libtpu
            known[name] = metadata.version(name)
    digest = hashlib.sha256()
    for path in _code_files():
        digest.update(f"{path.as_posix()}\0".encode())
        digest.update(hashlib.sha256((_PROJECT / path).read_bytes()).digest())
    return known | {_CODE: digest.hexdigest()[:_SHORT]}


def differences(submitted: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    names = ("python", *_DISTRIBUTIONS, _CODE)
    other = [name for name in names if name in submitted and here.get(name) != submitted[name]]
    return [f"{name} {here.get(name, 'is missing')}, against {submitted[name]}" for name in other]


def check_versions(submitted: Mapping[str, str]) -> None:
    if lines := differences(submitted, versions()):
        raise VersionsDiffer(f"versions: on {platform.node()}: {'; '.join(lines)} at submit")


def _code_files() -> list[Path]:
    """The project's files that decide what runs, relative to its root, in order."""
    paths = [path for name in _PACKAGES for path in _files_below(_PROJECT / name)]
    own = [path.relative_to(_PROJECT) for path in paths if path.suffix not in _NO_CODE]
    code = [path for path in own if {_PAGES, _EXAMPLES}.isdisjoint(path.parents)]
    # Those that git tracks or would add; all of them outside a checkout.
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_PACKAGES)
    names = set((listed or b"").decode(errors="surrogateescape").split("\0")) - {""}
    return sorted(path for path in code if not names or path.as_posix() in names)


def _files_below(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden ones, links, and bytecode that others write."""
    if folder.is_symlink() or not folder.is_dir() or folder.name == "__pycache__":
        return
    for path in folder.iterdir():
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files_below(path)
        elif path.is_file():
            yield path


def _lock_files() -> list[Path]:
    paths = [_PROJECT / name for name in ("requirements.lock", "pyproject.toml")]
    return [Path(path.name) for path in paths if path.is_file() and not path.is_symlink()]


class TooMuchCode(OrchError):
    """The project's code is larger than an archive may be."""


def archive() -> bytes:
    """The code, the lock and what pages are made of, as a zip file that travels to a cluster."""
    folder = (_PROJECT / _PAGES).resolve()
    is_own = folder.is_relative_to(_PROJECT.resolve())
    pages = [_PAGES / path.name for path in _files_below(folder) if is_own]
    paths = [*_code_files(), *_lock_files(), *sorted(pages)]
    sizes = {path: (_PROJECT / path).lstat().st_size for path in paths}
    if sum(sizes.values()) > _MOST_CODE_BYTES:
        largest = max(paths, key=sizes.__getitem__)
        raise TooMuchCode(
            f"{_PROJECT}: its code has {sum(sizes.values()):,} bytes, and at most"
            f" {_MOST_CODE_BYTES:,} travel; the largest file is {largest}"
        )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as target:
        for path in paths:
            member = zipfile.ZipInfo(path.as_posix(), _EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            target.writestr(member, (_PROJECT / path).read_bytes())
    return content.getvalue()


def commit() -> dict[str, str]:
    if not _git("ls-files", "--", *_PACKAGES):  # an environment may lie in another checkout
        return {}
    head = _git("rev-parse", "HEAD")
    return {"git_commit": head.decode().strip()} if head is not None else {}


def uncommitted() -> bytes:
    """What the checkout adds to its commit: a diff of the project's code, names of new files."""
    options = ("--no-ext-diff", "--no-textconv", "--ignore-submodules")
    changed = _git("diff", *options, "HEAD", "--", *_PACKAGES, *map(str, _lock_files()))
    if changed and len(changed) > _MOST_DIFF_BYTES:
        cut = f"\n(cut: {_MOST_DIFF_BYTES:,} of {len(changed):,} bytes)\n"
        changed = changed[:_MOST_DIFF_BYTES] + cut.encode()
    status = _git("status", "--porcelain", "--", *_PACKAGES)
    unknown = [line for line in (status or b"").splitlines() if line.startswith(b"??")]
    return (changed or b"") + b"".join(line + b"\n" for line in unknown)


def without_secrets(text: bytes, names: Iterable[str]) -> bytes:
    """The text with the values of those environment variables replaced by their names."""
    known = {name: os.environ.get(name, "") for name in (*names, "RAY_AUTH_TOKEN")}
    # The longest first: one may be a part of another. A letter is too short for a secret.
    for name in sorted(known, key=lambda name: len(known[name]), reverse=True):
        if len(known[name]) > 1:
            text = text.replace(known[name].encode(), f"<{name}>".encode())
    return text


def _git(*arguments: str) -> bytes | None:
    """The output of git about the project's checkout; None without a checkout, or without git."""
    command = ["git", "-C", str(_PROJECT), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
