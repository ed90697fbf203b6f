"""What a fault of the campaign did to its run."""

import msgspec


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault did to a run.

    `identical` says that every step so far has the same loss, to the bit, as in a run that nothing
    disturbed, and `named` that the journal names the struck rank. `off_model` is what the model of
    the protocol says is impossible in the run's journal.
    """

    index: int
    seed: int
    backend: str
    name: str
    phase: str
    struck: str
    survived: bool
    identical: bool | None
    named: bool | None
    lost_s: float
    redone: int
    left_over: list[str]
    at: str
    commit: str
    off_model: list[str] = []
    detail: str = ""
