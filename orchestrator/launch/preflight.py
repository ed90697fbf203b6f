"""Launch room: what a run wants of a named cluster, and what the cluster has. Pure.

A run that the cluster cannot serve is refused before it exists, with all that is missing at once.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.launch.provenance import differences

SHOWN_HOSTS = 4


@dataclass(frozen=True, kw_only=True)
class PreflightRequest:
    """What a run wants: so many slices, the submitter's versions, and on every host these
    environment variables, by name, and this file, which lies in its storage.
    """

    pods: int
    chip: str
    topology: str
    pod_type: str
    accelerator: str
    versions: Mapping[str, str]
    secrets: tuple[str, ...]
    file: str


@dataclass(frozen=True, kw_only=True)
class PreflightHost:
    """A host as it answered; one that did not has no versions."""

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    reaches: bool = False
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """What a cluster has for a run. `others` counts its other slices, by Ray's name of the kind."""

    present: int
    free: int
    others: Mapping[str, int]
    hosts: tuple[PreflightHost, ...]


def slices_said(wanted: PreflightRequest, found: PreflightReport) -> str:
    """Slices asked, present and free."""
    kind = f"{wanted.chip} {wanted.topology}"
    text = f"{wanted.pods} of {kind} asked, {found.present} present, {found.free} free"
    waits = found.free < wanted.pods <= found.present
    return f"{text}: the run waits for {wanted.pods - found.free} more" if waits else text


def faults(wanted: PreflightRequest, found: PreflightReport) -> list[str]:
    """Why the cluster cannot serve the run, all of it; empty when it can, be it later."""
    return [
        *_missing_slices(wanted, found),
        *_silent(found.hosts),
        *_differing(wanted, found.hosts),
        *_unreached(wanted, found.hosts),
        *_secretless(found.hosts),
    ]


def _missing_slices(wanted: PreflightRequest, found: PreflightReport) -> Iterator[str]:
    missing = wanted.pods - found.present
    if missing <= 0:
        return
    others = ", ".join(f"{count} of {kind}" for kind, count in sorted(found.others.items()))
    instead = f"; it has {others}" if others else "; it has no other slices"
    yield f"slices: {slices_said(wanted, found)}: {missing} missing{instead}"


def _silent(hosts: Sequence[PreflightHost]) -> Iterator[str]:
    if silent := [host.name for host in hosts if not host.versions]:
        yield f"hosts: {named(silent, len(hosts))} did not answer"


def _differing(wanted: PreflightRequest, hosts: Sequence[PreflightHost]) -> Iterator[str]:
    """Each difference once, with the hosts that show it."""
    by_difference = defaultdict(list)
    for host in hosts:
        for difference in differences(wanted.versions, host.versions) if host.versions else ():
            by_difference[difference].append(host.name)
    for difference, names in by_difference.items():
        yield f"versions: {difference} here, on {named(names, len(hosts))}"


def _unreached(wanted: PreflightRequest, hosts: Sequence[PreflightHost]) -> Iterator[str]:
    folder = wanted.file.rpartition("/")[0]
    if blind := [host.name for host in hosts if host.versions and not host.reaches]:
        yield (
            f"storage: {folder} of this machine cannot be written from {named(blind, len(hosts))}:"
            " the journal needs one shared file system, mounted at the same path on every host;"
            " name it with run.storage"
        )


def _secretless(hosts: Sequence[PreflightHost]) -> Iterator[str]:
    by_name = defaultdict(list)
    for host in hosts:
        for name in host.lacks:
            by_name[name].append(host.name)
    for name, lacking in by_name.items():
        yield f"secrets: {name} is not in the environment of {named(lacking, len(hosts))}"


def named(names: Sequence[str], of: int) -> str:
    """Some hosts of all, the first few by name."""
    shown = ", ".join(names[:SHOWN_HOSTS])
    more = f" and {len(names) - SHOWN_HOSTS} more" if len(names) > SHOWN_HOSTS else ""
    return f"{len(names)} of {of} hosts ({shown}{more})"
