"""Show what machines can do, what own runs teach, MLflow's views, exports, and keys of a spec."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import formatting as fmt
from orchestrator.show import parts as ui
from orchestrator.storage import address
from orchestrator.values import codec
from orchestrator.values import run as runs
from orchestrator.values.codec import short
from orchestrator.values.slowdowns import HostCheck

if TYPE_CHECKING:
    from orchestrator.planning.calibrated import ChipProfile, Operation
    from orchestrator.reading.expectations import KeyHelp
    from orchestrator.run.calibrate import OwnScore

_UNITS: "dict[Operation, str]" = {"matmul": "FLOP/s", "attention": "FLOP/s", "copy": "B/s"}
_EXAMPLE = "specs/tiny_2pod.yaml"
_SIGNS = {"good": "ok", "limited": "LIMITED", "broken": "BROKEN"}
_MANY = 12  # keys that a person reads one by one


def calibration_screen(profile: "ChipProfile", path: str) -> ui.Screen:
    machine = profile.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    what = f"{machine.device_kind}: {machine.cores} cores of {machine.processor}"
    rows: list[ui.Row] = [("", "type", "small", "large", "spread")]
    for timing in profile.timings:
        if unit := _UNITS.get(timing.operation):
            heads = f" with heads of {timing.head_dim}" if timing.head_dim else ""
            ends = timing.points[0], timing.points[-1]  # the smallest and the largest amount
            rates = (fmt.with_unit(amount / taken_s, unit) for amount, taken_s in ends)
            spread = fmt.percent(timing.spread)
            rows.append((f"{timing.operation}{heads}", timing.dtype, *rates, spread))
    unsteady = ", ".join({each.operation: 0 for each in profile.timings if not each.is_steady})
    busy = f"this machine was busy while it was measured ({unsteady}): measure it again"
    digest = codec.short(codec.digest(profile))
    use = "orch submit" if profile.emulated else f"orch plan --profile {digest}"
    return ui.screen(
        [ui.Title(what, f"profile {digest}")],
        [f"  measured on {profile.measured_on} with {versions}"],
        ui.indent([ui.Table(rows, "<<>>>")]),
        [ui.warning(busy)] if unsteady else [],
        [ui.Command(f"stored in {path}"), *ui.next_step(f"{use} {_EXAMPLE}")],
    )


def host_check_screen(check: HostCheck, following: str) -> ui.Screen:
    rows: list[ui.Row] = [("", "median", "least", "most")]
    rows += (
        (test.name, *map(fmt.seconds, (test.median_s, test.least_s, test.most_s)))
        for test in check.tests
    )
    named: list[ui.Row] = []
    for slow in check.slow:
        times = f"{fmt.to_digits(slow.times, 3)} x the others"
        where = f"{slow.host}, slice {slow.slice_name}"
        named.append((f"rank {slow.rank}", where, slow.test, fmt.seconds(slow.seconds), times))
    return ui.screen(
        ui.indent([ui.Table(rows)]),
        ui.section("slow hosts", [ui.Table(named, "<<<>>")] if named else []),
        ui.closing(f"Hosts: {check.text}.", following),
    )


def doctor_screen(report: runs.HealthReport) -> ui.Screen:
    signs = max(len(_SIGNS[finding.health]) for finding in report.findings)
    names = max(len(finding.name) for finding in report.findings)
    lines: list[ui.Part] = []
    for finding in report.findings:
        start = (f"{_SIGNS[finding.health]:{signs}}", f"{finding.name:{names}}")
        lines.append(ui.Table([(*start, finding.detail)], "<<w"))
        lines += [f"    {finding.advice}"] if finding.advice else []
    limits = [finding.name for finding in report.findings if finding.health == "limited"]
    if report.broken:
        checks = f"{report.broken} of {len(report.findings)} checks failed"
        ending = ui.closing(f"Doctor: {checks}; fix these first.")
    else:
        abilities, command = ("plan and run", f"orch submit {_EXAMPLE}")
        if "extras" in limits:
            abilities, command = "plan", "orch init my-run.yaml"
        with_limits = f", with {fmt.counted(len(limits), 'limit')}" if limits else ""
        ending = ui.closing(f"Doctor: this machine can {abilities}{with_limits}.", command)
    return ui.screen([ui.heading("this machine")], ui.indent(lines), ending)


def run_doctor_screen(health: runs.RunHealth, repair_command: str) -> ui.Screen:
    verdict = f"Doctor: the files of {health.run} are as they were written."
    if health.findings:
        wrong = fmt.counted(len(health.findings), "file")
        can = "cannot go on" if health.stops else "can go on"
        verdict = f"Doctor: {wrong} of {health.run} not as written; the run {can}."
    sections = []
    for name, findings in (("repaired", health.repaired), ("files", health.findings)):
        lines: list[ui.Part] = []
        for finding in findings:
            lines += [f"{finding.file}: {finding.what}", f"    {finding.advice}"]
        sections.append(ui.section(name, lines))
    is_repairable = any(finding.repairable for finding in health.findings)
    return ui.screen(*sections, ui.closing(verdict, repair_command if is_repairable else None))


def sync_screen(results: Sequence[runs.SyncResult], storage: Path, next_command: str) -> ui.Screen:
    if not results:
        nothing = f"No runs in {address(storage)} that are this user's"
        return ui.screen([ui.Command(nothing), *ui.next_step("orch submit SPEC")])
    rows: list[ui.Row] = []
    experiments: dict[str, dict[str, None]] = {}  # of each database or server
    lines: list[ui.Part] = [
        ui.warning(f"{result.run}: {result.problem}") for result in results if result.problem
    ]
    missing = len(lines)
    for result in results:
        if recorded := result.recorded:
            steps = fmt.count(recorded.steps)
            rows.append((result.run, recorded.state, steps, result.run_id or ""))
        if result.by_driver:
            lines.append(f"{result.run}: recorded by its own driver")
        if (recorded or result.by_driver) and (where := result.destination):
            experiments.setdefault(where.label, {})[where.experiment] = None
    if missing:
        lost = "Nothing is lost: the journals have what was trained. orch sync tries again."
        lines.append(f"Sync: {missing} of {len(results)} runs not recorded. {lost}")
    else:
        places = ", ".join(f"{label} ({', '.join(of)})" for label, of in experiments.items())
        verdict = f"Sync: {fmt.counted(len(results), 'run')} recorded in {places}."
        lines += [ui.Command(verdict), *ui.next_step(next_command)]
    return ui.screen(ui.table(("RUN", "STATE", "STEPS", "MLFLOW RUN"), rows, "<<><"), lines)


def mlflow_links(
    address: str, shown: str, experiments: Sequence[tuple[str, Sequence[runs.ViewLink]]]
) -> ui.Screen:
    blocks = []
    for name, views in experiments:
        rows = [(view.name, view.url) for view in views]
        blocks.append(ui.section(f"experiment {name}", [ui.Table(rows, "<<")]))
    return ui.screen([ui.Command(f"MLflow at {address}, showing {shown}", style="bold")], *blocks)


def weights_screen(weights: runs.ExportedWeights) -> str:
    files, folder = fmt.counted(weights.files, "file"), weights.folder
    return (
        f"{folder}: {weights.parameters:,} parameters of {weights.model} after step"
        f" {weights.step:,}, {weights.dtype}, {files}\n"
        f"Next: AutoModelForCausalLM.from_pretrained({folder!r})  # {weights.architecture}\n"
    )


def key_help_screen(keys: "Sequence[KeyHelp]", next_command: str) -> ui.Screen:
    """Return what each key means and must be; of many keys, what those below the first mean."""
    blocks = []
    for key in keys:
        absent = "required" if key.required else f"default: {key.default or 'none'}"
        texts = ui.indent([key.about, f"must be: {key.must}", absent])
        blocks.append([ui.heading(key.key), *texts])
    if len(keys) <= _MANY:
        return ui.screen(*blocks, ui.next_step(next_command))
    above = 1 if keys[1].key.startswith(f"{keys[0].key}.") else 0
    rows = ui.Table([(key.key, key.about) for key in keys[above:]], "<w")
    following = ui.next_step(f"orch schema --key {keys[above].key}")
    return ui.screen(*blocks[:above], [rows], following)


def own_score_screen(score: "OwnScore") -> ui.Screen:
    """Return what own runs teach: their steps as expected and as measured, and the constants."""
    blocks: list[list[ui.Part]] = []
    for own, digest in zip(score.learned, score.digests, strict=True):
        rows: list[ui.Row] = [
            (
                run.run, fmt.count(run.chips), fmt.seconds(run.measured_s),
                fmt.seconds(run.published_s), fmt.seconds(run.own_s),
                "+".join(run.traced) or "-",
            )
            for run in own.runs
        ]  # fmt: skip
        head = ("run", "chips", "measured", "expected", "by the others", "traced")
        constants: list[ui.Row] = []
        for name, value in own.constants.items():
            was = own.was[name]
            cells = (f"{fmt.to_digits(c.value, 3)} ± {fmt.percent(c.unsure)}" for c in (was, value))
            constants.append((name.replace("_", " "), *cells))
        ends = (f"± {fmt.percent(spread)}" for spread in (own.spread_was, own.spread))
        constants.append(("spread of runs", *ends))
        blocks += [
            [ui.Title(f"{own.chip} in {own.compute}, trainer {own.trainer}", short(digest))],
            ui.section("steps", ui.table(head, rows, "<>>>><")),
            ui.section("constants", ui.table(("", "published", "own"), constants)),
        ]
    left_out = ui.indent(ui.labelled("left out:", f"{r.id}: {r.reason}") for r in score.left_out)
    if not score.learned:
        return ui.screen(left_out, ui.closing("Own runs: none was measured on chips."))
    runs = fmt.counted(sum(len(own.runs) for own in score.learned), "run")
    following = f"orch plan --profile {short(score.digests[0])} SPEC"
    return ui.screen(*blocks, left_out, ui.closing(f"Own runs: learned from {runs}.", following))
