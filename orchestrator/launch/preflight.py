"""Compares what a run needs with what a named cluster has. Pure.

A run that the cluster cannot serve is refused before it exists, with all that is missing at once.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.launch import provenance
from orchestrator.launch.provenance import differences
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder, is_copy

_SHOWN_HOSTS = 4


@dataclass(frozen=True, kw_only=True)
class PreflightRequest:
    """The needs of a run: slices, the submitter's versions, and on every host secrets and storage.

    `kind` is the chip and the topology of its slices, `secrets` are names of environment variables,
    and `file` lies in the run's storage.
    """

    pods: int
    kind: str
    versions: Mapping[str, str]
    secrets: tuple[str, ...]
    file: str


@dataclass(frozen=True, kw_only=True)
class PreflightHost:
    """The answer of a host. One that did not answer has no versions.

    `reaches` says that it can write to the run's storage, and `lacks` names missing secrets.
    `fault` is the error in place of an answer; none where the time was over.
    """

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    reaches: bool = False
    lacks: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """The resources of a cluster for a run. `others` counts its other slices by their kind."""

    present: int
    free: int
    others: Mapping[str, int]
    hosts: tuple[PreflightHost, ...]


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """A request, and the cluster's report on it."""

    request: PreflightRequest
    report: PreflightReport

    @property
    def slices(self) -> str:
        """The slices by number: requested, present and free."""
        return _describe_slices(self.request, self.report)

    @property
    def faults(self) -> list[str]:
        """Everything that keeps the cluster from serving the run; empty when it can."""
        return _faults(self.request, self.report)


def _describe_slices(request: PreflightRequest, report: PreflightReport) -> str:
    """The slices by number: requested, present and free."""
    counts = f"{request.pods} of {request.kind} requested, {report.present} present"
    text = f"{counts}, {report.free} free"
    waits = report.free < request.pods <= report.present
    return f"{text}: the run waits for {request.pods - report.free} more" if waits else text


def _faults(request: PreflightRequest, report: PreflightReport) -> list[str]:
    """Everything that keeps the cluster from serving the run, now and later."""
    return [
        *_missing_slices(request, report),
        *_silent(report.hosts),
        *_different_versions(request, report.hosts),
        *_no_storage(request, report.hosts),
        *_missing_secrets(report.hosts),
    ]


def _missing_slices(request: PreflightRequest, report: PreflightReport) -> Iterator[str]:
    missing = request.pods - report.present
    if missing <= 0:
        return
    others = ", ".join(f"{count} of {kind}" for kind, count in sorted(report.others.items()))
    instead = f"; it has {others}" if others else "; it has no other slices"
    yield f"slices: {_describe_slices(request, report)}: {missing} missing{instead}"


def _silent(hosts: Sequence[PreflightHost]) -> Iterator[str]:
    by_fault = defaultdict(list)
    for host in hosts:
        if not host.versions:
            by_fault[host.fault].append(host.name)
    for fault, names in by_fault.items():
        yield f"hosts: {_some_of(names, len(hosts))} did not answer{f': {fault}' if fault else ''}"


def _different_versions(request: PreflightRequest, hosts: Sequence[PreflightHost]) -> Iterator[str]:
    """Each difference once, with the hosts that have it."""
    by_difference = defaultdict(list)
    for host in hosts:
        for difference in differences(request.versions, host.versions) if host.versions else ():
            by_difference[difference].append(host.name)
    for difference, names in by_difference.items():
        yield f"versions: {difference} here, on {_some_of(names, len(hosts))}"


def _no_storage(request: PreflightRequest, hosts: Sequence[PreflightHost]) -> Iterator[str]:
    folder = request.file.rpartition("/")[0]
    if unable := [host.name for host in hosts if host.versions and not host.reaches]:
        yield (
            f"storage: {_some_of(unable, len(hosts))} cannot write to {folder} of this machine:"
            " the journal needs one shared file system, mounted at the same path on every host;"
            " name it with run.storage"
        )


def _missing_secrets(hosts: Sequence[PreflightHost]) -> Iterator[str]:
    by_name = defaultdict(list)
    for host in hosts:
        for name in host.lacks:
            by_name[name].append(host.name)
    for name, lacking in by_name.items():
        yield f"secrets: {name} is not in the environment of {_some_of(lacking, len(hosts))}"


def _some_of(names: Sequence[str], total: int) -> str:
    """Some hosts of all, the first few by name."""
    shown = ", ".join(names[:_SHOWN_HOSTS])
    more = f" and {len(names) - _SHOWN_HOSTS} more" if len(names) > _SHOWN_HOSTS else ""
    return f"{len(names)} of {total} hosts ({shown}{more})"


# What a preflight learns from a host: the process on that host calls this.


def describe(name: str, file: str, secrets: Iterable[str]) -> PreflightHost:
    """Describe this host: versions, whether it can write next to `file`, the secrets it lacks."""
    path = folder(file)
    return PreflightHost(
        name=name,
        versions=provenance.versions(),
        reaches=_reaches(path),
        lacks=tuple(variable for variable in secrets if not os.environ.get(variable)),
    )


def _reaches(path: Path) -> bool:
    """Whether this host sees a file and can write next to it."""
    if not is_copy(path):
        return path.exists() and os.access(path.parent, os.W_OK)
    try:
        return copies.exists(path) and copies.check_writable(path.parent)
    except (OSError, OrchError):
        return False
