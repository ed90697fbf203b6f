"""The turns in which runs take slices: all or none, first come first served. Pure."""

from dataclasses import dataclass, field

import pytest

from orchestrator.launch.ray.slice_queue import _RETURN_S, _QueueAnswer, _SliceQueue
from tests.journals import Clock

KIND, OTHER = "v5p 2x2x2", "v5e 4x4"
MINE = _QueueAnswer(ahead=(), taken=())


@dataclass
class World:
    """A queue, the jobs that live, and the time."""

    living: set[str] = field(default_factory=lambda: {"a", "b", "c", "a2"})
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.queue = _SliceQueue(lambda: self.living, self.clock)

    def ask(
        self, run: str, kind: str = KIND, *, job: str = "", claim: int = 2, submitted: float = 1.0
    ) -> _QueueAnswer:
        return self.queue.request(run, submitted, kind, job or run.lower(), claim)


@pytest.fixture
def world() -> World:
    return World()


def test_one_after_another(world: World) -> None:
    """Only the first has the turn, until it is served; nobody overtakes."""
    assert world.ask("A") == MINE
    assert world.ask("B").ahead == ("A",)
    assert world.ask("C").ahead == ("A", "B")
    world.queue.confirm("A", "a", ("s0", "s1"))
    assert world.ask("C").ahead == ("B",)
    assert world.ask("B") == _QueueAnswer(ahead=(), taken=("s0", "s1"))
    assert world.ask("C").ahead == ("B",)


def test_the_turn_stays_while_its_holder_waits_for_slices(world: World) -> None:
    """It may ask as often as it likes."""
    assert world.ask("A") == MINE
    world.ask("B")
    assert world.ask("A") == MINE
    assert world.ask("B").ahead == ("A",)


def test_who_wants_other_slices_does_not_wait(world: World) -> None:
    """Each kind of slice has a queue of its own."""
    world.ask("A")
    assert world.ask("B", OTHER) == MINE


def test_a_dead_holder_frees_its_place(world: World) -> None:
    """One that never had slices is forgotten at once, whether it waited or had the turn."""
    world.ask("A")
    world.ask("B")
    world.ask("C")
    world.living -= {"a", "b"}
    assert world.ask("C") == MINE


def test_a_run_that_fails_comes_back_to_its_slices(world: World) -> None:
    """Its retry, a new job, is before all who wait, even one that had the turn already."""
    world.ask("A")
    world.queue.confirm("A", "a", ("s0", "s1"))
    assert world.ask("B") == _QueueAnswer(ahead=(), taken=("s0", "s1"))
    world.living -= {"a"}
    assert world.ask("B") == _QueueAnswer(ahead=("A",), taken=("s0", "s1"))
    assert world.ask("A", job="a2") == MINE
    assert world.ask("B").ahead == ("A",)


def test_a_superseded_claim_gets_no_slices(world: World) -> None:
    """Its process was stopped while another driver took over: it neither asks nor gives back."""
    assert world.ask("A") == MINE
    assert world.ask("A", job="a2", claim=7) == MINE
    assert world.ask("A", claim=2).superseded
    world.queue.confirm("A", "a", ("s9",))
    world.queue.leave("A", "a")
    world.queue.confirm("A", "a2", ("s0",))
    assert world.ask("B") == _QueueAnswer(ahead=(), taken=("s0",))


def test_one_that_is_taking_is_not_disturbed(world: World) -> None:
    """Whoever comes back in the midst of it waits until it is done; no two ever take at once."""
    world.ask("A")
    world.queue.confirm("A", "a", ("s0",))
    assert world.ask("B").ahead == ()
    assert world.ask("A", job="a2").ahead == ("B",)
    world.queue.confirm("B", "b", ("s1",))
    assert world.ask("A", job="a2") == _QueueAnswer(ahead=(), taken=("s1",))


def test_a_run_that_does_not_come_back_is_forgotten(world: World) -> None:
    """After a while its slices are anybody's."""
    world.ask("A")
    world.queue.confirm("A", "a", ("s0",))
    world.living -= {"a"}
    assert world.ask("B").ahead == ("A",)
    world.clock.now_s += _RETURN_S + 1
    assert world.ask("B") == MINE


def test_a_run_that_leaves_is_forgotten_at_once(world: World) -> None:
    """It has done all its steps."""
    world.ask("A")
    world.queue.confirm("A", "a", ("s0",))
    world.queue.leave("A", "a")
    assert world.ask("B") == MINE


def test_what_an_earlier_job_says_late_does_not_count(world: World) -> None:
    """An attempt that was taken for dead cannot confirm or give up the position of the next one."""
    world.ask("A")
    world.ask("A", job="a2")
    world.queue.confirm("A", "a", ("s0",))
    world.queue.leave("A", "a")
    assert world.ask("B").ahead == ("A",)


def test_a_key_that_is_used_again_is_a_new_run(world: World) -> None:
    """The removed run has no place any more, however many claims it had; late jobs of it get
    none.
    """
    world.ask("A", claim=7)
    world.queue.confirm("A", "a", ("s0",))
    world.living -= {"a"}
    assert world.ask("B").ahead == ("A",)
    assert world.ask("A", job="a2", submitted=2.0) == _QueueAnswer(ahead=("B",), taken=())
    assert world.ask("A", job="a", claim=9).superseded
    assert world.ask("B") == MINE
