"""How a spec or a study is carried out, and what is confirmed before."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """How a spec or a study is carried out.

    It runs on the cluster at `address` (or RAY_ADDRESS, or cluster.address of the spec); where none
    is named, this machine rehearses it. `prove` compiles the plan first, `calibrate` measures this
    machine before a rehearsal. A rehearsal has 20 `steps`, a run on a cluster those of its spec.
    `profile` is a range of steps to trace, `code` where a cluster has the project's code from.
    The same `key` twice is one run, and `detach` returns once the cluster has it.
    """

    address: str | None = None
    prove: bool = True
    calibrate: bool = True
    steps: int | None = None
    devices_per_pod: int | None = None
    profile: tuple[int, int] | None = None
    code: Literal["sent", "installed"] = "sent"
    key: str | None = None
    detach: bool = False


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What is about to run. It takes chips on the cluster at `address`, or none on this machine."""

    name: str
    runs: int
    address: str | None
