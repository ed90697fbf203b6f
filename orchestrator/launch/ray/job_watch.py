"""Watches a job through a cluster's dashboard, which may fail to answer for a while.

A job needs no dashboard, so a failed question says nothing about the job. It is asked again until a
deadline, except where every answer would be the same: a token that the cluster refuses.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from orchestrator.launch.backend import JOB_ENDED

# The dashboard of a busy head is silent for tens of seconds.
SILENCE_LIMIT_S = 60.0
POLL_S = 0.2
Clock = Callable[[], float]


@dataclass
class Patience:
    """How long questions may fail: `limit_s` since the last answer.

    While `needless` says that the job lives without an answer, they may fail for ever.
    """

    limit_s: float = SILENCE_LIMIT_S
    clock: Clock = time.monotonic
    needless: Callable[[], bool] = lambda: False
    failing_since_s: float | None = None

    def answered(self) -> None:
        """Note that a question was answered."""
        self.failing_since_s = None

    def failed(self, error: Exception) -> None:
        """Note that a question failed; the error again when it is time to give up."""
        now_s = self.clock()
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        late = now_s - self.failing_since_s > self.limit_s
        if is_final(error) or (late and not self.needless()):
            raise error


def is_final(error: Exception) -> bool:
    """Whether asking again would give the same error: the cluster refuses this token."""
    chain: BaseException | None = error
    while chain is not None:
        if type(chain).__name__ == "AuthenticationError":
            return True
        chain = chain.__cause__
    return False


class Jobs(Protocol):
    """What knows the state of a job. Every call may fail."""

    def state(self, job: str) -> str:
        """PENDING, RUNNING, or how the job ended."""
        ...

    def why(self, job: str) -> str:
        """Why a job did not succeed."""
        ...


def states(
    jobs: Jobs, job: str, patience: Patience, sleep: Callable[[float], None] = time.sleep
) -> Iterator[tuple[str, str | None]]:
    """Each new state of a job until it has ended, and why it failed where it did."""
    last = ""
    while last not in JOB_ENDED:
        try:
            state = jobs.state(job)
            error = jobs.why(job) if state == "FAILED" else None
        except Exception as failure:  # noqa: BLE001  Ray and its HTTP client raise many kinds
            patience.failed(failure)
        else:
            patience.answered()
            if state != last:
                yield state, error
            last = state
        if last not in JOB_ENDED:
            sleep(POLL_S)
