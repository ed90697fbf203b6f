"""Ports: none is chosen twice, and none that a process listens on."""

import socket

from orchestrator import processes


def test_claimed_ports_are_of_one_claim_alone() -> None:
    """Two clusters that start at once never meet."""
    with processes.claimed() as some, processes.claimed() as others:
        assert not set(some) & set(others)


def test_claimed_ports_are_free() -> None:
    """One that is listened on is left out, and there are more than a cluster takes."""
    with processes.claimed() as some, socket.socket() as other:
        first = next(some)
        other.bind((processes.LOOPBACK, first + 5))
        other.listen()
        rest = set(some)
    assert first + 5 not in rest
    assert {first + 4, first + 6} <= rest
    assert len(rest) > 100


def test_a_claim_ends() -> None:
    """All blocks can be had again and again."""
    for _ in range(2 * len(processes._BLOCKS) // processes._BLOCK):
        with processes.claimed() as some:
            assert next(some) in processes._BLOCKS


def test_the_same_port_is_taken_each_time() -> None:
    """Where it is free; what a browser keeps of an address is of use then. Else any other."""
    wanted = processes.free_port()
    assert processes.free_port(wanted) == wanted
    with socket.socket() as other:
        other.bind((processes.LOOPBACK, wanted))
        other.listen()
        assert processes.free_port(wanted) != wanted
