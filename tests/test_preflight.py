"""What a named cluster is asked before a run, and how what is missing is said. Pure."""

import io
import zipfile
from dataclasses import replace

import pytest

from orchestrator.launch import provenance
from orchestrator.launch.backend import (
    ClusterUnusable,
    Preflight,
    PreflightHost,
    PreflightReport,
    PreflightRequest,
)
from orchestrator.launch.ray.backend import _host_and_port
from orchestrator.show import status_screen as render
from orchestrator.values.plan import Estimate
from tests.journals import tiny_plan

VERSIONS = {"python": "3.11", "jax": "0.10.2", "ray": "2.60.0", "code": "abc"}
WANTED = PreflightRequest(
    pods=4,
    kind="v5p 2x2x2",
    versions=VERSIONS,
    secrets=("HF_TOKEN",),
    file="/mnt/runs/.mark",
)
GOOD = tuple(PreflightHost(name=f"10.0.0.{n}", versions=VERSIONS, reaches=True) for n in range(8))
SURVEY = PreflightReport(present=5, free=4, others={"v5p-32": 2}, hosts=GOOD)


def with_hosts(*hosts: PreflightHost) -> PreflightReport:
    """The good survey with its first hosts changed."""
    return replace(SURVEY, hosts=(*hosts, *GOOD[len(hosts) :]))


def asked(report: PreflightReport) -> Preflight:
    """What was wanted, and that report on it."""
    return Preflight(request=WANTED, report=report)


def test_a_cluster_that_can_serve_has_no_fault() -> None:
    """Now, or once others have ended: then it says how many are waited for."""
    assert asked(SURVEY).faults == []
    assert asked(SURVEY).slices == "4 of v5p 2x2x2 requested, 5 present, 4 free"
    busy = replace(SURVEY, free=1)
    assert asked(busy).faults == []
    assert asked(busy).slices.endswith("1 free: the run waits for 3 more")


def test_missing_slices_are_counted() -> None:
    """Asked, present, free, missing, and what the cluster has instead."""
    few = replace(SURVEY, present=3, free=1)
    lacks = "slices: it lacks 1 slice of v5p 2x2x2: 4 of v5p 2x2x2 requested, 3 present, 1 free"
    assert asked(few).faults == [f"{lacks}; it has 2 of v5p-32"]
    assert asked(replace(few, others={})).faults[0].endswith("; it has no other slices")
    assert asked(replace(few, hint="name them")).faults == [
        f"{lacks}; it has 2 of v5p-32; name them"
    ]
    assert asked(replace(SURVEY, hint="name them")).faults == []


def test_a_difference_in_versions_is_said_once_for_all_its_hosts() -> None:
    """Which hosts, the first few by name, and both versions."""
    old = [replace(host, versions=VERSIONS | {"jax": "0.9.0"}) for host in GOOD[:6]]
    [fault] = asked(with_hosts(*old)).faults
    which = "6 of 8 hosts (10.0.0.0, 10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more)"
    assert fault == f"versions: jax 0.9.0, against 0.10.2 here, on {which}"


def test_a_host_that_cannot_write_the_journal_is_named() -> None:
    """With the path, and what to do."""
    [fault] = asked(with_hosts(replace(GOOD[0], reaches=False))).faults
    assert "1 of 8 hosts (10.0.0.0) cannot write to /mnt/runs of this machine" in fault
    assert "name it with run.storage" in fault


def test_all_faults_are_told_at_once() -> None:
    """A silent host, and a secret that is set on some hosts alone."""
    gone = PreflightHost(name="10.0.0.2", fault="its raylet died")
    report = with_hosts(PreflightHost(name="10.0.0.0"), replace(GOOD[1], lacks=("HF_TOKEN",)), gone)
    assert asked(report).faults == [
        "hosts: 1 of 8 hosts (10.0.0.0) did not answer",
        "hosts: 1 of 8 hosts (10.0.0.2) did not answer: its raylet died",
        "secrets: HF_TOKEN is not in the environment of 1 of 8 hosts (10.0.0.1)",
    ]


def test_the_same_code_is_the_same_archive() -> None:
    """It holds what the digest is of, and the lock, and no bytecode."""
    first = provenance.archive()
    assert first == provenance.archive()
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert {path.as_posix() for path in provenance._code_files()} <= set(names)
    assert {"trainers/loop.py", "requirements.lock"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("http://10.0.0.2:8265", ("10.0.0.2", 8265)),
        ("https://ray.example", ("ray.example", 443)),
        ("10.0.0.2:6379", ("10.0.0.2", 6379)),
        ("ray://head:10001", ("head", 10001)),
        ("http://[::1]:8265", ("::1", 8265)),
    ],
)
def test_addresses_are_read_as_people_write_them(address: str, place: tuple[str, int]) -> None:
    """Of a dashboard, of a head, with a scheme or without."""
    assert _host_and_port(address) == place


@pytest.mark.parametrize("address", ["auto", "10.0.0.2", "http://", "a:b", "http://h:99999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """With one that would be."""
    with pytest.raises(ClusterUnusable, match="for example http://10"):
        _host_and_port(address)


def test_what_a_run_asks_for_is_said_in_chips_time_and_money() -> None:
    """For the steps that will be done, not for the tokens of the whole experiment; what real runs
    lead to expect, where that is known.
    """
    plan = tiny_plan()
    days, money = Estimate(lower=2.0, unoverlapped=3.5), Estimate(lower=1000.0, unoverlapped=2000.0)
    steps = plan.tokens // plan.batch.tokens
    costly = replace(plan, forecast=replace(plan.forecast, days=days, dollars=money))
    assert render._cost_of_runs([(costly, steps // 2)]) == (
        f"8 v5e chips, {steps // 2:,} steps, at least 1 d, at least $500"
    )
    learned = replace(days, expected=5.0, low=4.0, high=6.0)
    expected = replace(costly, forecast=replace(costly.forecast, days=learned))
    assert "4 to 6 d" in render._cost_of_runs([(expected, steps)])
    unknown = replace(costly, forecast=replace(costly.forecast, dollars=None))
    assert render._cost_of_runs([(unknown, steps)]).endswith("at least 2 d; no price is known")
