"""The profile of a run: what its traces say of a step, line by line, next to the predictions."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec

from orchestrator.errors import JournalUnreadable
from orchestrator.formatting import fill, percent
from orchestrator.journal import files
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepTable
from orchestrator.notes import sentence, sentences
from orchestrator.storage.addresses import address
from orchestrator.values import codec
from orchestrator.values.plan import LineKind, Plan
from orchestrator.values.profile import (
    HOST,
    IDLE,
    PROFILE_SCHEMA,
    SECONDS,
    TRACES,
    Profile,
    ProfileLine,
    ProfileNote,
    TraceSeconds,
)
from orchestrator.values.program import AnyPlan
from orchestrator.values.proof import OTHER_LINE, Proof, ScheduledLedgerLine
from orchestrator.values.run import Run

# Lines of the ledger whose operations the trainer does not tell from those of another.
_INSIDE = dict.fromkeys(("copied_heads", "expert_padding", "expert_imbalance"), "matmul")
_INSIDE["vocab_padding"] = "unembedding"

# The parts that `expected` speaks of, each with the lines that it has together. What `expected`
# says of collectives by how they hide, a trace can say only of all that are not for `tensor`.
_COLLECTIVES: tuple[LineKind, ...] = ("exposed_gathers", "serial_collectives", "slice_wait")
_PARTS: dict[str, tuple[tuple[LineKind, ...], tuple[str, ...]]] = {
    "matmuls": (
        ("matmul",), ("matmul", "matmul_recompute", "unembedding", "orthogonalization"),
    ),
    "attention": (("attention",), ("attention", "attention_recompute")),
    "weights and optimizer": (
        ("weight_traffic",), ("weight_traffic", "optimizer_update", "activation_traffic"),
    ),
    "between matmuls": (
        ("elementwise", "row_moves"), ("elementwise", "routed_rows"),
    ),
    "exposed transfers to the host": (("offload",), ("offload",)),
    "exposed tensor": (("exposed_tensor",), ("activation_gather", "activation_scatter")),
    "other collectives": (
        _COLLECTIVES,
        ("weight_gather", "gradient_scatter", "gradient_reduction", "moment_exchange", "kv_gather",
         "kv_scatter", "expert_exchange", "expert_gather", "expert_scatter", "stage_exchange",
         "latency"),
    ),
    "the rest": (
        ("busiest_resource", "pipeline_bubble", "scheduled"),
        (OTHER_LINE, IDLE, HOST, "pipeline_bubble"),
    ),
}  # fmt: skip
_PART_OF = {kind: part for part, (_, kinds) in _PARTS.items() for kind in kinds}
_REST = "the rest"
_SLOWER, _NOTABLE = 1.25, 0.02  # a rank's line than the others', and its share of the step
_FEW_NAMED, _JUMPED = 0.9, 1.5


def named_seconds(plan: AnyPlan) -> dict[str, float]:
    """Return the ledger's seconds by the kinds of lines that the trainer names."""
    ledger: dict[str, float] = defaultdict(float)
    for line in plan.forecast.time if plan.ledger_describes_trainer else ():
        ledger[_INSIDE.get(line.kind, line.kind)] += line.value
    return dict(ledger)


def trace_folders(journal: Journal) -> list[Path]:
    """Return the folder of each range of steps that was traced, the last steps last."""
    root = journal.paths.root / TRACES
    numbered = []
    for name in files.names(root):
        _, _, steps = name.partition("steps-")
        first, _, end = steps.partition("-")
        if first.isdecimal() and end.isdecimal():
            numbered.append((int(first), int(end), root / name))
    return [folder for _, _, folder in sorted(numbered)]


def kept_seconds(folder: Path) -> list[TraceSeconds]:
    found = []
    for name in files.names(folder):
        with suppress(FileNotFoundError, JournalUnreadable, msgspec.DecodeError):
            seconds_of_rank = codec.from_json(files.read(folder / name / SECONDS), TraceSeconds)
            if seconds_of_rank.schema == PROFILE_SCHEMA:
                found.append(seconds_of_rank)
    return sorted(found, key=lambda each: each.note.rank)


def kept_profile(journal: Journal, run: Run, steps: StepTable) -> Profile | None:
    """Return the profile of the newest traces that somebody has read; None without any."""
    for folder in reversed(trace_folders(journal)):
        if kept := kept_seconds(folder):
            with suppress(JournalUnreadable):
                return make_profile(journal, run, kept, folder, steps)
    return None


def traced_plan(journal: Journal, run: Run, digest: str) -> Plan | None:
    """Return the plan or stage of the run with that digest, if the run has one."""
    for used in dict.fromkeys([run.plan_digest, *(each.plan_digest for each in run.attempts)]):
        plan = journal.plan(used)
        for stage in (plan, *plan.stages):
            if stage.digest == digest:
                return stage
    return None


def make_profile(
    journal: Journal,
    run: Run,
    ranks: Sequence[TraceSeconds],
    folder: Path,
    steps: StepTable | None = None,
    problems: Iterable[str] = (),
) -> Profile:
    """Lay the traces of some ranks, of one range of steps, next to the predictions of the plan."""
    note = ranks[0].note
    if (plan := traced_plan(journal, run, note.plan_digest)) is None:
        raise JournalUnreadable(folder, "its traces are of a plan that is not of this run")
    # A rehearsal's ledger and proof are for chips; from a profile of this machine it has a total.
    proof = None if run.rehearsal else journal.proof(plan.digest)
    predicted = {} if run.rehearsal else named_seconds(plan)
    forecast = plan.forecast
    is_compared = not run.rehearsal or plan.chip_profile is not None
    lines = _lines(ranks, predicted, proof, None if run.rehearsal else plan)
    step_s = fmean(each.step_s for each in ranks)
    notes = [ProfileNote(code="unread", figures={"why": problem}) for problem in problems]
    notes += _notes(ranks, step_s, steps)
    for line in lines:
        if line.slowest_rank is not None:
            notes.append(ranks_differ(line=line.kind, rank=line.slowest_rank))
    return Profile(
        run=journal.key,
        plan_digest=plan.digest,
        first_step=min(each.note.first_step for each in ranks),
        end_step=max(each.note.end_step for each in ranks),
        platform=note.platform,
        device_kind=note.device_kind,
        ranks=tuple(each.note.rank for each in ranks),
        folder=address(folder),
        step_s=step_s,
        lower_s=None if run.rehearsal else forecast.step_s.lower,
        scheduled_s=proof.schedule.total_s if proof and proof.schedule else None,
        expected_s=forecast.step_s.expected if is_compared else None,
        not_compared="cpu_rehearsal" if run.rehearsal else None,
        lines=lines,
        sources=ranks[0].lines,
        collectives=ranks[0].collectives,
        notes=tuple(notes),
    )


def _lines(
    ranks: Sequence[TraceSeconds], predicted: dict[str, float], proof: Proof | None,
    plan: Plan | None,
) -> tuple[ProfileLine, ...]:  # fmt: skip
    """Return a line per kind that any witness has, part by part, the longest part first."""
    tables = [{line.kind: line for line in each.ledger} for each in ranks]
    schedule = proof.schedule if proof else None
    scheduled = {line.kind: line.total_s for line in schedule.ledger} if schedule else {}
    expected: dict[str, float] = defaultdict(float)
    for said in plan.forecast.expected_time if plan else ():
        expected[said.kind] += said.value
    step_s = fmean(each.step_s for each in ranks)
    nothing = ScheduledLedgerLine(kind="", computed_s=0.0, exposed_s=0.0, wire_s=0.0)
    by_part: dict[str, list[ProfileLine]] = defaultdict(list)
    kinds = [*(kind for table in tables for kind in table), *predicted, *scheduled]
    for kind in dict.fromkeys(kinds):
        own = [table.get(kind, nothing) for table in tables]
        part = _PART_OF.get(kind, _REST)
        line = ProfileLine(
            kind=kind,
            part=part,
            lower_s=predicted.get(kind),
            scheduled_s=scheduled.get(kind),
            measured_s=fmean(each.total_s for each in own),
            exposed_s=0.0 if kind in {IDLE, HOST} else fmean(each.exposed_s for each in own),
            wire_s=fmean(each.wire_s for each in own),
            slowest_rank=_slowest(ranks, [each.computed_s for each in own], step_s),
        )
        by_part[part].append(line)

    def measured_s(part: str) -> float:
        return sum(line.measured_s for line in by_part[part])

    found = []
    for part in sorted(by_part, key=lambda part: (part == _REST, -measured_s(part))):
        first, *others = sorted(by_part[part], key=lambda line: -line.measured_s)
        known = [expected[kind] for kind in _PARTS[part][0] if kind in expected]
        found += [replace(first, expected_s=sum(known) if known else None), *others]
    return tuple(found)


def _slowest(ranks: Sequence[TraceSeconds], own_s: list[float], step_s: float) -> int | None:
    """Return the rank that computes a line notably longer than the others, if one does. Emulated
    devices take turns on the cores of one machine, so their ranks differ by chance.
    """
    if len(own_s) < 2 or ranks[0].note.platform == "cpu":
        return None
    slowest = max(range(len(own_s)), key=lambda i: own_s[i])
    others_s = fmean(s for i, s in enumerate(own_s) if i != slowest)
    more_s = own_s[slowest] - others_s
    is_notable = own_s[slowest] > _SLOWER * others_s and more_s > _NOTABLE * step_s
    return ranks[slowest].note.rank if is_notable else None


def _notes(
    ranks: Sequence[TraceSeconds], step_s: float, steps: StepTable | None
) -> list[ProfileNote]:
    notes = []
    if any(each.names == "trace" for each in ranks):
        notes.append(ProfileNote(code="by_names", figures={}))
    elif (named := min(each.named for each in ranks)) < _FEW_NAMED:
        notes.append(few_names(named=named))
    note = ranks[0].note
    asked, counted = note.end_step - note.first_step, min(each.steps for each in ranks)
    if counted < asked:
        notes.append(ProfileNote(code="steps_cut", figures={"steps": counted, "asked": asked}))
    if steps is not None:
        inside = (steps.index >= note.first_step) & (steps.index < note.end_step)
        if inside.any():
            loop_s = float(steps.step_s[inside].mean())
            if not 1 / _JUMPED < step_s / loop_s < _JUMPED:
                figures = {"trace_s": step_s, "loop_s": loop_s}
                notes.append(ProfileNote(code="clock_jumped", figures={**figures}))
    return notes


_TEXTS = {
    "unread": "a trace was left out: {why}",
    "by_names": (
        "the compiled program is not next to the trace: lines are known only where the trace"
        " itself names them"
    ),
    "steps_cut": "the trace has {steps} whole steps of the {asked} that it was to have",
    "clock_jumped": (
        "a step takes {trace_s:seconds} by the clock of the trace and {loop_s:seconds} by the"
        " training loop's: one of them jumped, or the trace has other work"
    ),
}
sentences(ProfileNote, _TEXTS, fill)


@sentence(ProfileNote)
def few_names(named: float) -> str:
    return f"{percent(1 - named)} of the busy time is in operations that the program does not have"


@sentence(ProfileNote)
def ranks_differ(line: str, rank: int) -> str:
    return f"rank {rank} computes {line.replace('_', ' ')} longer than the others"
