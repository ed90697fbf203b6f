"""Journal room: the one writer of a run's journal, its driver; before it, whoever submits.

Who writes an event writes the next free number, which one alone can. A driver that was taken for
dead and lives learns so at its next write, or sign, by `Superseded`.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import JournalUnreadable, JournalUnwritable, Superseded
from orchestrator.journal import event_log, files
from orchestrator.journal.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CancelRequest,
    Ended,
    Pending,
    Stopping,
    text_of,
)
from orchestrator.journal.reading import Clock, Journal
from orchestrator.journal.run_state import RunState, refusal, told
from orchestrator.journal.run_status import BEAT_S, named
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.run import EndState, Reason, Run


class Writer:
    """The right to write a journal, until somebody else claims it. Threads may share it."""

    def __init__(self, journal: Journal, story: RunState, *, clock: Clock = time.time) -> None:
        self.journal, self._story, self._clock = journal, story, clock
        self.number = story.writer  # of its claim, 0 for whoever submits
        self._lock = threading.RLock()

    def run(self) -> Run:
        """The run as it stands."""
        return self.journal.run(self._clock)

    def pending(self, why: str) -> None:
        """Say what the run waits for. The same words again write nothing."""
        if not (self._story.pending and self._story.pending.why == why):
            self._append(Pending(at_s=self._clock(), why=why))

    def begin_attempt(self, plan: Plan, slices: tuple[str, ...] = ()) -> int:
        """The number of the next attempt, whose folder is ready for steps and logs."""
        self.keep_plan(plan)
        with self._lock:
            number = self._story.next_attempt
            files.make_folder(self.journal.places.logs(number))
            files.make_folder(self.journal.places.pulses(number))
            self._append(
                AttemptStarted(
                    at_s=self._clock(),
                    attempt=number,
                    plan_digest=plan.digest,
                    pods=plan.pods,
                    slices=slices,
                )
            )
        return number

    def stopping(self, why: str) -> None:
        """Say that the attempt was told to stop."""
        self._append(Stopping(at_s=self._clock(), why=why))

    def end_attempt(
        self, reason: Reason, *, error: str | None = None, first_dead_rank: int | None = None
    ) -> None:
        """Say why the attempt ended, once no process of it is left."""
        self._append(
            AttemptEnded(
                at_s=self._clock(),
                attempt=self._story.next_attempt - 1,
                reason=reason,
                error=error,
                first_dead_rank=first_dead_rank,
            )
        )

    def conclude(self, state: EndState, why: str | None = None) -> None:
        """Say how the run ended."""
        self._append(Ended(at_s=self._clock(), state=state, why=why))

    def keep_plan(self, plan: Plan) -> None:
        """Keep a plan that the run uses; it is kept once."""
        keep(self.journal.places.plan(plan.digest), codec.to_pretty_json(plan).encode())

    def keep_proof(self, proof: Proof) -> None:
        """Keep the proof of a plan; it is kept once."""
        keep(self.journal.places.proof(proof.plan_digest), codec.to_pretty_json(proof).encode())

    def sign(self) -> CancelRequest | None:
        """Give a sign of life, and learn what somebody asked of the driver and still wants.

        A driver that waits calls this again and again: it is `Superseded` when another has taken
        over, and `JournalUnwritable` when the journal was removed.
        """
        with self._lock:
            if event_log.exists(self.journal.places.events, self._story.last + 1):
                self._read_again()
            self._check_mine()
            settled = self._story.settled_requests
        files.touch(self.journal.places.sign(self.number))
        return self.journal.cancel_request(settled)

    @contextmanager
    def signing(self) -> Iterator[None]:
        """Give signs in the background for as long as this lasts."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT_S):
                try:
                    self.sign()
                except Superseded:
                    return  # the driver learns it at its next event
                except (JournalUnwritable, JournalUnreadable):
                    continue  # a disk that comes back is a sign again

        thread = threading.Thread(target=beat, name="journal signs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _append(self, event: AnyEvent) -> None:
        with self._lock:
            self._check_mine()
            if why := refusal(self._story, event):
                raise ValueError(f"{self.journal.key}: {why}")
            number = self._story.last + 1
            try:
                event_log.append(self.journal.places.events, number, text_of(event))
            except FileExistsError as error:
                self._read_again()
                raise Superseded(f"{self.journal.key}: event {number} is another's") from error
            except JournalUnwritable:
                self._read_again()  # it may stand in spite of the error
                raise
            self._story = told(self._story, number, event)

    def _read_again(self) -> None:
        """Take in what stands; `Superseded` when another has claimed the run."""
        self._story = self.journal.story()
        self._check_mine()

    def _check_mine(self) -> None:
        if self._story.claim and self._story.writer != self.number:
            owner = named(self._story.claim.driver)
            raise Superseded(f"{self.journal.key}: {owner} has taken over the run")


def keep(path: Path, content: bytes) -> None:
    """Write a file that is written once; the first stays."""
    with suppress(FileExistsError):
        files.write_new(path, content)
