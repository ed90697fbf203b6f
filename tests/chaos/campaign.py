"""Faults strike runs, and nothing may be lost: 500 faults, in as many parts as one likes.

    python -m tests.chaos.campaign [--faults N] [--seed N] [--only processes|ray] [--table]

The faults are drawn from the seed, four on each run: most runs are plain processes that train the
toy, every tenth is on emulated slices with Ray. Results are kept in `.chaos/`, so that the next
part goes on where this one stopped. The table counts only what ran. Exit code 1 where anything was
lost.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from orchestrator.render.screen_parts import Table, screen
from tests.chaos import launch_campaign
from tests.chaos.drawn import EPISODE, draw
from tests.chaos.episode import run_episode
from tests.chaos.fault_record import FaultRecord
from tests.chaos.plain_runs import NotSurvived, undisturbed_losses
from tests.conftest import ROOT

STORE = ROOT / ".chaos"
FAULTS = 500
RAY_EVERY = 10  # of so many runs one is on emulated slices


def backend_of(index: int) -> str:
    """What the run of a fault is made of."""
    return "ray" if index // EPISODE % RAY_EVERY == RAY_EVERY - 1 else "processes"


def known(store: Path = STORE) -> list[FaultRecord]:
    """What ran, in the order of the faults; the newest record of each counts."""
    path = store / "results.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    records = [msgspec.json.decode(line, type=FaultRecord) for line in lines]
    return sorted(
        {(one.seed, one.index): one for one in records}.values(), key=lambda one: one.index
    )


def due_episodes(records: Iterable[FaultRecord], seed: int, only: str | None) -> list[list[int]]:
    """The faults that have not run, run by run."""
    done = {one.index for one in records if one.seed == seed}
    episodes = [range(first, first + EPISODE) for first in range(0, FAULTS, EPISODE)]
    due = [[index for index in episode if index not in done] for episode in episodes]
    return [one for one in due if one and only in (None, backend_of(one[0]))]


def run_part(faults: int, seed: int, only: str | None) -> None:
    """Let about so many faults strike, and note each run's records at its end."""
    STORE.mkdir(exist_ok=True)
    expected: list[float] = []
    for indices in due_episodes(known(), seed, only):
        if faults <= 0:
            return
        with tempfile.TemporaryDirectory(prefix="orch-chaos-") as name:
            folder = Path(name)
            if backend_of(indices[0]) == "ray":
                records = launch_campaign.episode(folder, indices, seed, commit())
            else:
                expected = expected or undisturbed_losses(subfolder(folder, "undisturbed"))
                drawn = [draw(seed, index) for index in indices]
                records = run_episode(subfolder(folder, "run"), drawn, expected, seed, commit())
            keep(folder, indices[0], records)
        faults -= len(records)


def keep(folder: Path, first: int, records: list[FaultRecord]) -> None:
    """Note records, and keep the run's events: they are traces for the model."""
    with (STORE / "results.jsonl").open("ab") as file:
        for one in records:
            file.write(msgspec.json.encode(one) + b"\n")
            print(
                f"{one.index:4}  {one.backend:9} {one.phase:16} {one.struck:44} {outcome(one)}",
                flush=True,
            )
    lost = any(not is_sound(one) for one in records)
    for events in folder.glob("**/it/events"):
        wanted = events.parent if lost else events
        target = STORE / "journals" / f"{first:03d}" / ("run" if lost else "events")
        shutil.rmtree(target, ignore_errors=True)
        if "undisturbed" not in events.parts:
            shutil.copytree(wanted, target)


def is_sound(one: FaultRecord) -> bool:
    """Whether nothing was lost and nothing is left."""
    return one.survived and one.identical is not False and not one.left_over


def outcome(one: FaultRecord) -> str:
    """A record's result in a few words."""
    words = [
        f"{one.lost_s:.0f} s",
        "" if one.survived else "NOT SURVIVED",
        "NOT IDENTICAL" if one.identical is False else "",
        *one.left_over,
        one.detail,
    ]
    return ", ".join(word for word in words if word)


def table(records: list[FaultRecord]) -> str:
    """What became of the faults, by kind and by phase."""
    rows: list[tuple[str, ...]] = [
        ("FAULT", "FAULTS", "SURVIVED", "BIT-IDENTICAL", "RANK NAMED", "SECONDS LOST", "LEFT OVER")
    ]
    for backend in ("processes", "ray"):
        mine = [one for one in records if one.backend == backend]
        names, phases = {one.name for one in mine}, {one.phase for one in mine}
        rows += [row(f"{backend}: {it}", [a for a in mine if a.name == it]) for it in sorted(names)]
        rows += [
            row(f"{backend}, at {it}", [a for a in mine if a.phase == it]) for it in sorted(phases)
        ]
    rows.append(row("all", records))
    return screen([Table(rows=rows, columns="<>>>>>>")])


def row(title: str, ones: list[FaultRecord]) -> tuple[str, ...]:
    """One line of the table."""
    seconds = [one.lost_s for one in ones if one.survived] or [0.0]
    ranks = [one.named for one in ones if one.named is not None]
    compared = [one for one in ones if one.identical is not None]
    return (
        title,
        str(len(ones)),
        str(sum(one.survived for one in ones)),
        f"{sum(bool(one.identical) for one in compared)} of {len(compared)}",
        f"{sum(ranks)} of {len(ranks)}" if ranks else "",
        f"{statistics.median(seconds):.0f} median, {max(seconds):.0f} most",
        str(sum(len(one.left_over) for one in ones)),
    )


def commit() -> str:
    """The commit of this checkout; empty outside of one."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def subfolder(folder: Path, name: str) -> Path:
    """A new folder in a folder; what an earlier run left there goes."""
    path = folder / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def main() -> int:
    """Run a part of the campaign, and print the table of all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("processes", "ray"))
    parser.add_argument("--table", action="store_true", help="only print what ran")
    options = parser.parse_args()
    if not options.table:
        try:
            run_part(options.faults, options.seed, options.only)
        except NotSurvived as error:
            print(f"a run failed before a fault struck: {error}")
            return 1
    records = [one for one in known() if one.seed == options.seed]
    print(f"\n{table(records)}\n")
    print(f"{len(records)} of {FAULTS} faults have run")
    return 0 if all(is_sound(one) for one in records) else 1


if __name__ == "__main__":
    sys.exit(main())
