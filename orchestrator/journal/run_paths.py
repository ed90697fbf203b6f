"""Journal room: where in a run's directory each thing lies. Knows names alone."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.types.codec import short


@dataclass(frozen=True)
class RunPaths:
    """The layout of the directory of one run."""

    root: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """What every run's directory holds."""
        kept = (self.plans, self.proofs, self.documents)
        return (self.events, self.requests, self.signs, *kept, self.attempts, self.driver_logs)

    @property
    def events(self) -> Path:
        """Changes of state, numbered."""
        return self.root / "events"

    @property
    def requests(self) -> Path:
        """What others ask of the driver, numbered."""
        return self.root / "requests"

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def tracking(self) -> Path:
        """Where a tracker keeps its record of the run."""
        return self.root / "tracking.json"

    @property
    def sync_state(self) -> Path:
        """How much of the run the tracker has."""
        return self.root / "sync.json"

    @property
    def sync_lock(self) -> Path:
        """Held by the one process that records the run."""
        return self.root / "sync.lock"

    @property
    def sync_log(self) -> Path:
        """What the process that records in the background wrote."""
        return self.driver_logs / "sync.log"

    @property
    def plans(self) -> Path:
        return self.root / "plans"

    @property
    def proofs(self) -> Path:
        return self.root / "proofs"

    @property
    def documents(self) -> Path:
        """What else belongs to the run: its spec as written, the uncommitted changes, a report."""
        return self.root / "documents"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def signs(self) -> Path:
        return self.root / "signs"

    @property
    def driver_logs(self) -> Path:
        return self.root / "logs"

    def plan(self, digest: str) -> Path:
        return self.plans / f"{short(digest)}.json"

    def proof(self, plan_digest: str) -> Path:
        """The proof of the plan of that digest."""
        return self.proofs / f"{short(plan_digest)}.json"

    def sign(self, writer: int) -> Path:
        """The file whose time is the last sign of a writer."""
        return self.signs / f"{writer:06d}"

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number:03d}"

    def steps(self, attempt: int) -> Path:
        return self.attempt(attempt) / "steps.jsonl"

    def logs(self, attempt: int) -> Path:
        """The folder with a log for each rank of an attempt."""
        return self.attempt(attempt) / "logs"

    def pulses(self, attempt: int) -> Path:
        """The folder with the last sign of each rank of an attempt."""
        return self.attempt(attempt) / "pulses"

    def pulse(self, attempt: int, rank: int) -> Path:
        return self.pulses(attempt) / f"rank-{rank}"

    def rank_log(self, attempt: int, rank: int) -> Path:
        return self.logs(attempt) / f"rank-{rank}.log"

    def driver_log(self, writer: int) -> Path:
        return self.driver_logs / f"driver-{writer:06d}.log"
