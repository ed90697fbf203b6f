"""Compare what two checkouts of the project compute, to the last digit.

    python -m tests.bench.compare_checkouts BASE                      # BASE against this checkout
    python -m tests.bench.compare_checkouts BASE --parts plans,bench --out DIR
    python -m tests.bench.compare_checkouts BASE --record             # only keep what BASE says

Each checkout answers with its own `.venv`, through its commands and its Python API: modules may be
moved and renamed between the two. What BASE says is kept in DIR, `build/compare/COMMIT` by default,
and is not asked for again. The exit code is 1 after a difference.

The part `proofs` compiles programs for minutes, once for each commit. A proof is compared without
what depends on the machine or names lines of the trainer (`NOT_COMPARED`). Differences of the part
`screens`, the texts for people, are shown and do not count.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

from tests.bench.compared_commands import PARTS, SHOWN_ONLY, commands_of

ROOT = Path(__file__).parents[2]
SECONDS = 1800  # after which a command is stopped
ABSENT = "(absent)"

# Paths of keys in a proof. The tables of a schedule have a row for each line of the trainer.
NOT_COMPARED = (
    *("compile_s", "compiler_memory_bytes", "peak_at", "crossings.name", "crossings.places"),
    *("crossing_faults.crossing.name", "crossing_faults.crossing.places"),
    *("schedule.lines", "schedule.loops", "schedule.collectives", "schedule.products"),
)
LINE_OF_CODE = re.compile(r"\S+\.py:\d+.*")  # names a buffer; compared as "a line"
PROGRESS = re.compile(r"[a-z]+: [\d,]+ of [\d,]+ ")  # a line now and then, on the error stream


def answer(checkout: Path, part: str, command: list[str]) -> dict[str, Any]:
    """The exit code of a command, its output, and the lines of its error stream."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_")}
    full = [str(checkout / ".venv" / "bin" / command[0]), *command[1:]]
    # What other runs left in a cache would show: proofs, and rates that were measured.
    with TemporaryDirectory() as cache:
        done = subprocess.run(
            ["nice", "-n", "15", *full] if part == "proofs" else full, cwd=checkout,
            env={**own, "XDG_CACHE_HOME": cache, "XDG_STATE_HOME": cache, "COLUMNS": "100"},
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            timeout=SECONDS, check=False,
        )  # fmt: skip
    try:
        output = json.loads(done.stdout)
    except ValueError:
        output = done.stdout.splitlines()
    return {"exit": done.returncode, "output": output, "errors": done.stderr.splitlines()}


def recorded(checkout: Path, part: str, name: str, command: list[str], out: Path) -> dict[str, Any]:
    """An answer that is asked for once. A crash, or a proof without a compiler, is not kept."""
    path = out / part / f"{re.sub(r'[^a-zA-Z0-9_.=-]+', '_', name)}.json"
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    if part == "proofs":
        print(f"proofs  {name}: {checkout} compiles", file=sys.stderr, flush=True)
    found = answer(checkout, part, command)
    if found["exit"] in (0, 2, 3):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(found, file)
        Path(file.name).replace(path)
    return found


def values_of(part: str, name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Name → what is compared: an answer, or each row of a bench."""
    if part == "bench" and isinstance(found["output"], dict):
        return {f"{name}: {row}": value for row, value in found["output"].items()}
    if part == "proofs" and found["exit"] in (0, 3):
        # The error stream has the compiler's progress.
        return {name: {"exit": found["exit"], "output": proof_values(found["output"])}}
    return {name: {**found, "errors": [e for e in found["errors"] if not PROGRESS.match(e)]}}


def proof_values(value: Any, path: str = "") -> Any:
    """A part of a proof without what is not compared. Rows that lost their names are sorted."""
    if isinstance(value, dict):
        inner = {key: f"{path}.{key}".lstrip(".") for key in value}
        return {k: proof_values(value[k], inner[k]) for k in value if inner[k] not in NOT_COMPARED}
    if isinstance(value, list):
        rows = [proof_values(row, path) for row in value]
        return sorted(rows, key=json.dumps) if path in ("buffers", "crossings") else rows
    return LINE_OF_CODE.sub("a line", value) if isinstance(value, str) else value


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield `path: old → new` for each number or text that differs; 1 and 1.0 differ, too."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for place, pair in enumerate(zip_longest(old, new, fillvalue=ABSENT)):
            yield from differences(*pair, f"{path}.{place}")
    else:
        first, second = (json.dumps(value, ensure_ascii=False) for value in (old, new))
        if first != second:
            yield f"{path.lstrip('.')}: {first[:100]} → {second[:100]}"


def verdict(old: Any, new: Any) -> str:
    """`same`, or the first difference and how many more there are."""
    found = list(differences(old, new))
    more = f" ({len(found) - 1} more)" if found[1:] else ""
    return f"differs: {found[0]}{more}" if found else "same"


def compare_part(
    part: str, base: Path, new: Path | None, out: Path, new_out: Path | None = None
) -> Counter[str]:
    """Print a line for each value of a part, and count them. Without `new`, only record BASE.

    Proofs of the new checkout are kept in `new_out`.
    """
    asked = commands_of(base, part)
    asked_new = commands_of(new, part) if new else {}

    def both(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        old, found = {}, {}
        if name in asked:
            said = recorded(base, part, name, asked[name], out)
            if said["exit"] not in (0, 2, 3):
                sys.exit(f"compare: {base}: {name}: {' '.join(said['errors'][-3:])}")
            old = values_of(part, name, said)
        if new and name in asked_new:
            command = asked_new[name]
            if part == "proofs" and new_out:
                said = recorded(new, part, name, command, new_out)
            else:
                said = answer(new, part, command)
            found = values_of(part, name, said)
        return old, found

    counts: Counter[str] = Counter()
    # A compiler takes gigabytes and more than a core.
    with ThreadPoolExecutor(1 if part == "proofs" else 2) as pool:
        for old, found in pool.map(both, asked | asked_new):
            for name in old | found:
                line = verdict(old.get(name, ABSENT), found.get(name, ABSENT))
                line = line if new else "recorded"
                print(f"{part}  {name}  {line}", flush=True)
                counts[line.partition(":")[0]] += 1
    return counts


def commit_of(checkout: Path) -> str:
    """The commit of a checkout; its environment must run its own code."""
    python = str(checkout / ".venv" / "bin" / "python")
    show = [python, "-c", "import orchestrator as o; print(o.__file__)"]
    loaded = subprocess.check_output(show, cwd="/", text=True).strip()
    if not Path(loaded).is_relative_to(checkout):
        sys.exit(f"compare: {checkout}/.venv runs {loaded}")
    git = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.check_output([*git, "--abbrev=12"], text=True).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path, help="a checkout with a .venv")
    parser.add_argument("new", type=Path, nargs="?", default=ROOT, help="another; by default this")
    parser.add_argument("--parts", default=",".join(PARTS), help="by default %(default)s")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keeps what BASE says")
    parser.add_argument("--record", action="store_true", help="only ask BASE")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := sorted({*parts} - {*PARTS}):
        parser.error(f"unknown parts: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    base, new = options.base.resolve(), None if options.record else options.new.resolve()
    commit = commit_of(base)
    out = (options.out or ROOT / "build" / "compare" / commit).resolve()
    out.mkdir(parents=True, exist_ok=True)
    owner = out / "COMMIT"
    if owner.exists() and owner.read_text(encoding="utf-8") != commit:
        parser.error(f"{out} keeps what {owner.read_text(encoding='utf-8')} says, not {commit}")
    owner.write_text(commit, encoding="utf-8")
    new_out = None
    if new:
        new_commit = commit_of(new)
        new_out = None if "dirty" in new_commit else new / "build" / "compare" / new_commit
        print(f"{commit} → {new_commit}; of proofs not compared: {', '.join(NOT_COMPARED)}")
    differ = 0
    for part in (part for part in PARTS if part in parts):
        begun = time.monotonic()
        counts = compare_part(part, base, new, out, new_out)
        seconds = time.monotonic() - begun
        figures = ", ".join(f"{count} {what}" for what, count in counts.items())
        print(f"== {part}: {figures}, {seconds:.0f} s", flush=True)
        differ += counts["differs"] if part != SHOWN_ONLY else 0
    print(f"{differ} differences that count")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
