"""Compares what a run needs with what a named cluster has; all that is missing is said at once."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from orchestrator.errors import OrchError
from orchestrator.formatting import counted
from orchestrator.launch import provenance
from orchestrator.launch.provenance import differences
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.values.codec import Value

_SHOWN_HOSTS = 4


class PreflightRequest(Value):
    """The needs of a run: slices of a `kind` (chip and topology), the submitter's versions, the
    names of `secrets` in each host's environment, and a `file` in the run's storage.
    """

    pods: int
    kind: str
    versions: Mapping[str, str]
    secrets: tuple[str, ...]
    file: str


class PreflightHost(Value):
    """The answer of a host, or as `fault` the error in its place; neither where time was over. It
    `reaches` the run's storage if it can write there; it `lacks` named secrets.
    """

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    reaches: bool = False
    lacks: tuple[str, ...] = ()
    fault: str = ""


class PreflightReport(Value):
    """The resources of a cluster for a run. `others` counts its other slices by their kind."""

    present: int
    free: int
    others: Mapping[str, int]
    hosts: tuple[PreflightHost, ...]


class Preflight(Value):
    request: PreflightRequest
    report: PreflightReport

    @property
    def slices(self) -> str:
        wanted, free, present = self.request.pods, self.report.free, self.report.present
        text = f"{wanted} of {self.request.kind} requested, {present} present, {free} free"
        waits = free < wanted <= present
        return f"{text}: the run waits for {wanted - free} more" if waits else text

    @property
    def faults(self) -> list[str]:
        """Everything that keeps the cluster from serving the run; empty when it can."""
        report, faults = self.report, []
        if (missing := self.request.pods - report.present) > 0:
            others = ", ".join(f"{n} of {kind}" for kind, n in sorted(report.others.items()))
            instead = f"it has {others or 'no other slices'}"
            lacks = f"it lacks {counted(missing, 'slice')} of {self.request.kind}"
            faults.append(f"slices: {lacks}: {self.slices}; {instead}")
        by_fault = defaultdict(list)  # each fault once, with the hosts that have it
        for host in report.hosts:
            for fault in self._host_faults(host):
                by_fault[fault].append(host.name)
        for fault in sorted(by_fault, key=lambda fault: fault[0]):
            (_, before, after), names = fault, by_fault[fault]
            shown, left = ", ".join(names[:_SHOWN_HOSTS]), len(names) - _SHOWN_HOSTS
            some = f"{shown} and {left} more" if left > 0 else shown
            which = f"{len(names)} of {len(report.hosts)} hosts ({some})"
            faults.append(f"{before} {which}{after}")
        return faults

    def _host_faults(self, host: PreflightHost) -> Iterator[tuple[int, str, str]]:
        """What is wrong with a host: the faults' order, and the words around the hosts' names."""
        if host.versions:
            for difference in differences(self.request.versions, host.versions):
                yield 1, f"versions: {difference} here, on", ""
            if not host.reaches:
                where = self.request.file.rpartition("/")[0]
                why = (
                    f" cannot write to {where} of this machine: the journal needs one shared file"
                    " system, mounted at the same path on every host; name it with run.storage"
                )
                yield 2, "storage:", why
        else:
            yield 0, "hosts:", " did not answer" + (f": {host.fault}" if host.fault else "")
        for name in host.lacks:
            yield 3, f"secrets: {name} is not in the environment of", ""


def describe(name: str, file: str, secrets: Iterable[str]) -> PreflightHost:
    """Describe this host: versions, whether it can write next to `file`, the secrets it lacks."""
    path = folder(file)
    try:
        if is_copy(path):
            reaches = copies.exists(path) and copies.check_writable(path.parent)
        else:
            reaches = path.exists() and os.access(path.parent, os.W_OK)
    except (OSError, OrchError):
        reaches = False
    lacks = tuple(variable for variable in secrets if not os.environ.get(variable))
    return PreflightHost(name=name, versions=provenance.versions(), reaches=reaches, lacks=lacks)
