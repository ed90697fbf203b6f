"""How the hosts of a run compare over its steps, from what each measured of itself."""

import warnings
from dataclasses import dataclass

import numpy as np

from orchestrator.journal.heartbeat import read_heartbeat
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import Floats, StepTable
from orchestrator.values.run import Run

_MOST_PLACES, _PER_PLACE = 60, 5  # over the steps, and samples of each
_MOST_HOSTS = 24


@dataclass(frozen=True)
class HostRow:
    """A host, and how many times as long as the others it took, at each place of `HostHeat`."""

    rank: int
    name: str
    times: tuple[float, ...]


@dataclass(frozen=True)
class HostHeat:
    """The hosts that were slowest at any time, by rank, out of `hosts`; `steps` are the places."""

    hosts: int
    steps: tuple[float, ...]
    rows: tuple[HostRow, ...]

    @property
    def slowest(self) -> HostRow:
        """The host that is slowest at the last place."""
        return max(self.rows, key=lambda row: row.times[-1])


def host_heat(journal: Journal, run: Run, steps: StepTable) -> HostHeat | None:
    """Return how the processes of the newest attempt compare; None where they measured nothing."""
    newest = max(steps.hosts, default=None)
    if newest is None:
        return None
    ranks = len(steps.hosts[newest].host_s)
    known = [row for row in sorted(steps.hosts) if len(steps.hosts[row].host_s) == ranks]
    # A few samples of each place: there may be a million steps, and thousands of hosts.
    most = min(len(known), _MOST_PLACES * _PER_PLACE)
    chosen = np.array(known)[np.linspace(0, len(known) - 1, most).astype(int)]
    times = _times(steps, chosen)
    groups = np.array_split(np.arange(most), min(most, _MOST_PLACES))
    heat = np.stack([np.median(times[group], axis=0) for group in groups])
    at = tuple(float(steps.index[chosen[group[-1]]] + 1) for group in groups)
    slowest = sorted(np.argsort(-heat.max(axis=0), kind="stable")[:_MOST_HOSTS].tolist())
    paths, attempt = journal.paths, run.attempts[-1].number
    rows = []
    for rank in slowest:
        beat = read_heartbeat(paths.heartbeat(attempt, rank))
        name = f"rank {rank} ({beat.process.host})" if beat else f"rank {rank}"
        rows.append(HostRow(rank, name, tuple(heat[:, rank].tolist())))
    return HostHeat(ranks, at, tuple(rows))


def _times(steps: StepTable, rows: np.ndarray) -> Floats:
    """Return for each row and rank: its own time of a step over that of the others."""
    told = [steps.hosts[int(row)] for row in rows]
    devices_s = np.array([each.devices_s for each in told])
    devices_s[devices_s <= 0] = np.nan  # not measured
    own_s = np.array([each.host_s for each in told]) + np.array([each.input_s for each in told])
    stopped = np.array([each.stopped for each in told])
    with warnings.catch_warnings():  # of rows in which no rank measured its devices
        warnings.simplefilter("ignore", RuntimeWarning)
        devices = devices_s / np.nanmedian(devices_s, axis=1, keepdims=True)
    # What its Python and its input take longer counts as a share of the step, like its standstill.
    later_s = own_s - np.median(own_s, axis=1, keepdims=True)
    longer = later_s / steps.step_s[rows][:, None] + stopped
    slower: Floats = np.maximum(np.nan_to_num(devices, nan=1.0), 1.0) + np.maximum(longer, 0.0)
    return slower
