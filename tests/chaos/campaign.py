"""Faults strike runs, and nothing may be lost: 500 faults, in as many parts as one likes.

    python -m tests.chaos.campaign [--faults N] [--first N] [--seed N] [--only BACKEND] [--table]

The faults are drawn from the seed, four on each run: most runs are plain processes that train the
toy, every tenth is on emulated slices with Ray. Results are kept in `.chaos/`, so that the next
part goes on where this one stopped; `--first` begins a part farther on, where another machine has
the results before it. The table counts only what ran. Exit code 1 where anything was lost.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tests.chaos import launch_campaign
from tests.chaos.drawn import EPISODE, draw
from tests.chaos.episode import run_episode
from tests.chaos.fault_record import FaultRecord
from tests.chaos.plain_runs import NotSurvived, undisturbed_losses
from tests.conftest import ROOT
from tests.model.traces import faults_of

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
        {(record.seed, record.index): record for record in records}.values(),
        key=lambda record: record.index,
    )


def due_episodes(
    records: Iterable[FaultRecord], seed: int, only: str | None, first: int = 0
) -> list[list[int]]:
    """The faults that have not run, run by run, from the run of the fault `first` on."""
    done = {record.index for record in records if record.seed == seed}
    starts = range(first // EPISODE * EPISODE, FAULTS, EPISODE)
    episodes = [range(start, start + EPISODE) for start in starts]
    due = [[index for index in episode if index not in done] for episode in episodes]
    return [episode for episode in due if episode and only in (None, backend_of(episode[0]))]


@dataclass(frozen=True)
class Part:
    """A part of the campaign. Of episodes on plain processes several run at a time, and one on
    emulated slices beside them: all mostly wait.
    """

    seed: int
    jobs: int
    first: int = 0

    def run(self, faults: int, only: str | None) -> None:
        """Let about so many faults strike, and note each run's records at its end."""
        STORE.mkdir(exist_ok=True)
        due = chosen(due_episodes(known(), self.seed, only, self.first), faults)
        plain = [episode for episode in due if backend_of(episode[0]) == "processes"]
        expected: list[float] = []
        if plain:
            with temporary_folder() as folder:
                expected = undisturbed_losses(folder)
        with ThreadPoolExecutor(self.jobs) as pool, ThreadPoolExecutor(1) as alone:
            on_ray = [
                alone.submit(self._on_ray, episode) for episode in due if episode not in plain
            ]
            started = [pool.submit(self._plain, episode, expected) for episode in plain]
            for episode in [*on_ray, *started]:
                episode.result()

    def _on_ray(self, indices: list[int]) -> None:
        with temporary_folder() as folder:
            keep(folder, launch_campaign.episode(folder, indices, self.seed, commit()))

    def _plain(self, indices: list[int], expected: list[float]) -> None:
        drawn = [draw(self.seed, index) for index in indices]
        with temporary_folder() as folder:
            try:
                keep(folder, run_episode(folder, drawn, expected, self.seed, commit()))
            except NotSurvived as error:
                print(f"{indices[0]:4}  a run failed before a fault struck: {error}", flush=True)


def chosen(due: list[list[int]], faults: int) -> list[list[int]]:
    """The first episodes with so many faults together, or a few more."""
    some: list[list[int]] = []
    for indices in due:
        if sum(map(len, some)) >= faults:
            break
        some.append(indices)
    return some


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for one run."""
    with TemporaryDirectory(prefix="orch-chaos-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def keep(folder: Path, records: list[FaultRecord]) -> None:
    """Note records with what the model says of the run's journal, and keep its events."""
    run = next(folder.glob("**/it"))
    if wrong := faults_of(run):
        records[-1] = msgspec.structs.replace(records[-1], off_model=wrong)
    target = STORE / "journals" / f"{records[0].index:03d}"
    shutil.rmtree(target, ignore_errors=True)
    lost = any(not is_sound(record) for record in records)
    shutil.copytree(run if lost else run / "events", target if lost else target / "events")
    lines = [msgspec.json.encode(record) + b"\n" for record in records]
    with (STORE / "results.jsonl").open("ab") as file:
        file.write(b"".join(lines))
    for record in records:
        struck = f"{record.backend:9} {record.phase:16} {record.struck:44}"
        print(f"{record.index:4}  {struck} {outcome(record)}", flush=True)


def is_sound(one: FaultRecord) -> bool:
    """Whether nothing was lost, nothing is left, and the journal is one of the protocol's."""
    lost = not one.survived or one.identical is False
    return not (lost or one.left_over or one.off_model)


def outcome(one: FaultRecord) -> str:
    """A record's result in a few words."""
    words = [
        f"{one.lost_s:.0f} s",
        "" if one.survived else "NOT SURVIVED",
        "NOT IDENTICAL" if one.identical is False else "",
        *one.left_over,
        *one.off_model,
        one.detail,
    ]
    return ", ".join(word for word in words if word)


HEAD = ("fault", "faults", "survived", "bit-identical", "rank named", "seconds lost", "left over")


def table(records: list[FaultRecord]) -> str:
    """What became of the faults, by kind and by phase, for docs/testing.md."""
    rows: list[tuple[str, ...]] = []
    for backend, title in (("processes", "plain processes"), ("ray", "Ray")):
        mine = [record for record in records if record.backend == backend]
        for field in ("name", "phase"):
            at = "at " if field == "phase" else ""
            for value in sorted({getattr(record, field) for record in mine}):
                some = [record for record in mine if getattr(record, field) == value]
                rows.append(row(f"{title}: {at}{value}", some))
    lines = [HEAD, ("---", *["---:"] * (len(HEAD) - 1)), *rows, row("all", records)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def row(title: str, ones: list[FaultRecord]) -> tuple[str, ...]:
    """One line of the table."""
    seconds = [record.lost_s for record in ones if record.survived] or [0.0]
    ranks = [record.named for record in ones if record.named is not None]
    compared = [record for record in ones if record.identical is not None]
    return (
        title,
        str(len(ones)),
        str(sum(record.survived for record in ones)),
        f"{sum(bool(record.identical) for record in compared)} of {len(compared)}",
        f"{sum(ranks)} of {len(ranks)}" if ranks else "",
        f"{statistics.median(seconds):.0f} median, {max(seconds):.0f} most",
        str(sum(len(record.left_over) for record in ones)),
    )


def commit() -> str:
    """The commit of this checkout; empty outside of one."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> int:
    """Run a part of the campaign, and print the table of all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--first", type=int, default=0, help="leave out the faults before it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="so many runs at a time")
    parser.add_argument("--only", choices=("processes", "ray"))
    parser.add_argument("--table", action="store_true", help="only print what ran")
    options = parser.parse_args()
    if not options.table:
        Part(options.seed, options.jobs, options.first).run(options.faults, options.only)
    records = [record for record in known() if record.seed == options.seed]
    print(f"\n{table(records)}\n")
    print(f"{len(records)} of {FAULTS} faults have run")
    return 0 if all(is_sound(record) for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
