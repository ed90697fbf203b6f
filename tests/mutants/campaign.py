"""Changes one place of the code after another, and says which changes no test notices.

    python -m tests.mutants.campaign [--mutants N] [--package NAME] [--only TEXT] [--table]

Results are kept in `.mutants/`, so a campaign goes on where it stopped. A mutant is tried again
when its function changed, or when it survived and the tests changed. Survivors that change nothing
that could be tested stand in `equivalent.toml` with the reason; any other ends this with 1.
"""

import argparse
import hashlib
import os
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from tests.conftest import ROOT
from tests.mutants.child import TRACE
from tests.mutants.forked_session import NO_CODE, ForkedSession
from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.overlay import TIMED_OUT, Overlay, preload
from tests.mutants.tracing import Coverage, Quickest, Tracer, trace_folder

STORE = ROOT / ".mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
COMMON = ("hypothesis", "numpy", "psutil", "click", "jinja2", "jsonschema", "yaml", "rich.console")
# A machine that does other work too makes tests slower, but never by so much.
SLOWER, START_S = 3.0, 10.0
LONGEST_S = 24 * 3600.0
NOT_RUN = -2


@dataclass(frozen=True)
class Package:
    """Files, and the quick tests that are responsible for them. `without` names slow tests."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    modules: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def paths(self, root: Path = ROOT) -> list[str]:
        """The files that are changed."""
        return sorted(
            str(path.relative_to(root)) for pattern in self.files for path in root.glob(pattern)
        )

    def options(self) -> list[str]:
        """Options that leave the slow tests out."""
        return [f"--deselect={name}" for name in self.without]


PACKAGES = (
    Package(
        "journal",
        ("orchestrator/journal/*.py",),
        (
            *("tests/test_journal.py", "tests/test_journal_drivers.py"),
            *("tests/test_journal_files.py", "tests/test_journal_heartbeat.py"),
            *("tests/test_journal_kills.py", "tests/test_journal_listing.py"),
            *("tests/test_journal_logs.py", "tests/test_journal_retry.py"),
            *("tests/test_journal_state.py", "tests/test_journal_studies.py"),
            *("tests/test_boundary.py", "tests/test_read_only.py"),
            *("tests/test_journal_damage.py", "tests/test_journal_syncs.py"),
            *("tests/test_exact_limits.py", "tests/test_fence.py", "tests/test_step_table.py"),
            "tests/test_journal_corners.py",
            "tests/test_evict.py",
        ),
        without=(
            "tests/test_journal_kills.py::test_a_kill_at_any_change_loses_nothing",
            "tests/test_journal_kills.py::test_the_campaign_catches_a_journal_that_writes_in_place",
            "tests/test_journal_files.py::test_a_long_run_is_read_quickly",
        ),
    ),
    Package(
        "drive",
        ("orchestrator/drive/*.py",),
        (
            *("tests/test_drive.py", "tests/test_driver.py", "tests/test_monitor.py"),
            *("tests/test_fence.py", "tests/test_evict.py"),
        ),
    ),
    Package(
        "checkpoint",
        ("trainers/checkpoint/*.py",),
        ("tests/test_checkpoint.py", "tests/test_bucket_checkpoints.py"),
        modules=("jax", "orbax.checkpoint"),
        without=(
            "tests/test_checkpoint.py::test_a_kill_while_saving_loses_at_most_that_step",
            "tests/test_checkpoint.py::test_a_full_disk_is_named_and_the_last_step_stays",
            "tests/test_checkpoint.py::test_a_file_too_large_is_named_and_the_last_step_stays",
        ),
    ),
    Package(
        "tracking",
        ("orchestrator/tracking/*.py", "orchestrator/tracking/mlflow/*.py"),
        (
            *("tests/test_tracking.py", "tests/test_tracking_limits.py"),
            *("tests/test_boundary.py", "tests/test_views.py", "tests/test_tracking_corners.py"),
        ),
        modules=("mlflow", "mlflow.tracking", "sqlalchemy"),
    ),
)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a mutant: killed by a test, by the time limit, or not at all.

    It was not run where no quick test executes its line.
    """

    key: str
    package: str
    operator: str
    digest: str
    tests_digest: str
    fate: str  # killed, timed out, survived, not run
    seconds: float
    at: str

    def counts(self, mutant: Mutant, tests_digest: str) -> bool:
        """Whether it says what would happen now."""
        unchanged = self.digest == mutant.digest
        noticed = self.fate in ("killed", "timed out")
        return unchanged and (noticed or self.tests_digest == tests_digest)


def known_results(store: Path = STORE) -> dict[str, Result]:
    """The newest result of each mutant."""
    path = store / "results.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    results = (msgspec.json.decode(line, type=Result) for line in lines)
    return {result.key: result for result in results}


def equivalents(path: Path = EQUIVALENT) -> dict[str, str]:
    """The survivors that change nothing that could be tested, with the reasons."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return {key: entry["why"] for entry in table["mutant"] for key in entry["keys"]}


def all_mutants(package: Package, root: Path = ROOT) -> list[Mutant]:
    """Every mutant of a package."""
    return [
        mutant
        for path in package.paths(root)
        for mutant in mutants_of(path, (root / path).read_bytes())
    ]


def digest_of(paths: Iterable[Path]) -> str:
    """One digest of some files."""
    content = b"".join(path.read_bytes() for path in sorted(paths))
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass
class Campaign:
    """The mutants of one package, on a copy of the project."""

    package: Package
    store: Path = STORE

    def __post_init__(self) -> None:
        tests = [ROOT / name for name in self.package.tests]
        self.tests_digest = digest_of(tests)
        self.results = known_results(self.store)

    def due(self, seed: int) -> list[Mutant]:
        """The mutants without a result that counts, in an order that the seed decides."""
        due = [mutant for mutant in all_mutants(self.package) if not self._is_known(mutant)]
        random.Random(seed).shuffle(due)
        return due

    def _is_known(self, mutant: Mutant) -> bool:
        result = self.results.get(mutant.key)
        return result is not None and result.counts(mutant, self.tests_digest)

    def run(self, due: list[Mutant]) -> None:
        """Try these mutants, and note each result at once.

        They run in forks of one session of pytest, but for those whose code it cannot take over.
        """
        preload([*COMMON, *self.package.modules])
        overlay = Overlay(self.store / f"copy-{self.package.name}")
        coverage = self._coverage(overlay)
        print_to = os.dup(sys.stdout.fileno())  # the session has another output

        def try_all(session: ForkedSession) -> None:
            for mutant in due:
                self._try(overlay, coverage, mutant, session, print_to)

        overlay.run(
            self.package.tests,
            limit_s=LONGEST_S,
            plugins=lambda: [ForkedSession(overlay.folder, try_all)],
            options=self.package.options(),
        )
        self.results = known_results(self.store)
        for mutant in [candidate for candidate in due if not self._is_known(candidate)]:
            self._try(overlay, coverage, mutant, None, print_to)

    def _coverage(self, overlay: Overlay) -> Coverage:
        """Which tests execute which lines, from a run without a mutant. That of each file of tests
        is kept until it or the package changes.
        """
        paths = self.package.paths()
        sources = [ROOT / path for path in paths]
        kept = {
            test: self.store / f"coverage-{self.package.name}-{digest_of([*sources, ROOT / test])}"
            for test in self.package.tests
        }
        new = [test for test, path in kept.items() if not path.exists()]
        if new:
            print(f"{self.package.name}: running {', '.join(new)} without a mutant", flush=True)
            traced = trace_folder(overlay.folder, paths)
            overlay.run(
                new,
                limit_s=LONGEST_S,
                plugins=lambda: [Tracer(overlay.folder, frozenset(paths))],
                options=self.package.options(),
                environment={TRACE: str(traced)},
            )
            found = msgspec.json.decode(
                (overlay.folder / "coverage.json").read_bytes(), type=Coverage
            )
            for test in new:
                kept[test].write_bytes(msgspec.json.encode(found.of_file(test)))
        read = [msgspec.json.decode(path.read_bytes(), type=Coverage) for path in kept.values()]
        coverage = Coverage.joined(read)
        print(
            f"{self.package.name}: {len(coverage.seconds)} tests, fail without a mutant: "
            f"{', '.join(coverage.failed) or 'none'}",
            flush=True,
        )
        return coverage

    def _try(
        self,
        overlay: Overlay,
        coverage: Coverage,
        mutant: Mutant,
        session: ForkedSession | None,
        print_to: int,
    ) -> None:
        source = (overlay.folder / mutant.path).read_bytes()
        if source[mutant.start : mutant.stop] != mutant.before.encode():
            raise RuntimeError(f"{mutant.path} changed during the campaign: start it again")
        tests = coverage.tests_of(mutant.path, mutant.line)
        if not tests:
            self._note(mutant, NOT_RUN, 0.0, print_to)
            return
        limit_s = START_S + SLOWER * sum(coverage.seconds[test] for test in tests)
        limit_s *= max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # others work here too
        changed = mutant.applied(source)
        began_s = time.monotonic()
        overlay.write(mutant.path, changed)
        try:
            if session:
                child = session.fork(tests, mutant.path, mutant.function, changed)
                code = overlay.wait(child, limit_s)
            else:
                code = overlay.run(tests, limit_s, plugins=lambda: [Quickest(coverage.seconds)])
        finally:
            overlay.write(mutant.path, source)
        if code != NO_CODE:
            self._note(mutant, code, time.monotonic() - began_s, print_to)

    def _note(self, mutant: Mutant, code: int, taken_s: float, print_to: int) -> None:
        result = Result(
            key=mutant.key,
            package=self.package.name,
            operator=mutant.operator,
            digest=mutant.digest,
            tests_digest=self.tests_digest,
            fate={0: "survived", TIMED_OUT: "timed out", NOT_RUN: "not run"}.get(code, "killed"),
            seconds=round(taken_s, 1),
            at=time.strftime("%Y-%m-%d", time.gmtime()),
        )
        with (self.store / "results.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        where = f"{mutant.path}:{mutant.line}  {mutant.key.partition(' ')[2]}"
        os.write(print_to, f"{taken_s:5.1f} s  {result.fate:9}  {where}\n".encode())


def standing(results: dict[str, Result], package: Package) -> list[tuple[Mutant, Result]]:
    """The mutants of a package with a result of their function as it is. One that survived counts
    until it is tried again.
    """
    pairs = [
        (mutant, results[mutant.key]) for mutant in all_mutants(package) if mutant.key in results
    ]
    return [(one, result) for one, result in pairs if result.digest == one.digest]


def table(results: dict[str, Result]) -> str:
    """What became of the mutants, for docs/testing.md."""
    listed = equivalents()
    lines = [
        "| package | mutants | tried | killed | killed by time | equivalent | survived | not run |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for package in PACKAGES:
        tried = standing(results, package)
        fates = Counter(result.fate for _, result in tried)
        equivalent = sum(one.key in listed and r.fate == "survived" for one, r in tried)
        counts = (len(all_mutants(package)), len(tried), fates["killed"], fates["timed out"])
        cells = (*counts, equivalent, fates["survived"] - equivalent, fates["not run"])
        lines.append(f"| {package.name} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return "\n".join(lines)


def survivors(results: dict[str, Result]) -> list[str]:
    """The mutants that no test noticed, and no list explains."""
    tried = [pair for package in PACKAGES for pair in standing(results, package)]
    listed = equivalents()
    return [one.key for one, r in tried if r.fate == "survived" and one.key not in listed]


def main() -> int:
    """Try the mutants that are due; exit code 1 where one survived that no list explains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=1_000_000, help="try at most so many")
    parser.add_argument("--package", choices=[package.name for package in PACKAGES])
    parser.add_argument("--only", default="", help="mutants with this text in their key")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="only print what became of them")
    options = parser.parse_args()
    STORE.mkdir(exist_ok=True)
    if not options.table:
        try:
            with FileLock(STORE / "lock", blocking=False):
                run_part(options)
        except Timeout:
            print("another campaign of mutants runs here")
            return 2
    results = known_results()
    left = survivors(results)
    print("\n".join([table(results), "", *(f"survived: {key}" for key in left)]))
    return int(bool(left))


def run_part(options: argparse.Namespace) -> None:
    """Try the mutants that are due, up to the limit: of each package its share of them."""
    chosen = [package for package in PACKAGES if options.package in (None, package.name)]
    campaigns = [Campaign(package) for package in chosen]
    due = [
        [mutant for mutant in campaign.due(options.seed) if options.only in mutant.key]
        for campaign in campaigns
    ]
    counts = shares([len(mutants) for mutants in due], options.mutants)
    for campaign, mutants, share in zip(campaigns, due, counts, strict=True):
        if share:
            campaign.run(mutants[:share])


def shares(due: Sequence[int], most: int) -> list[int]:
    """How many mutants of each package are tried: in proportion to those that are due."""
    every = sum(due)
    limits = [min(most, every) * end // max(every, 1) for end in accumulate(due, initial=0)]
    return [after - before for before, after in pairwise(limits)]


if __name__ == "__main__":
    sys.exit(main())
