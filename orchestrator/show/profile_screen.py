"""Show where the time of a step went: measured, line by line, next to every prediction."""

from orchestrator import formatting as fmt
from orchestrator.show import parts as ui
from orchestrator.show.proof_screen import by_line, short_line
from orchestrator.values.profile import HOST, IDLE, Profile, ProfileLine
from orchestrator.values.proof import KINDS

_SMALL = 0.002  # of a step: what takes less in every witness is left to --json
_MOST = 5  # rows of each table but the first; --full has all
_NAMES = {IDLE: "idle", HOST: "waiting for the host", "other": "no line of the ledger"}
_COLUMNS = {
    "lower": "lower_s", "scheduled": "scheduled_s", "expected": "expected_s",
    "measured": "measured_s", "exposed": "exposed_s", "on links": "wire_s",
}  # fmt: skip


def profile_screen(profile: Profile, next_command: str, detail: ui.Detail) -> ui.Screen:
    """Return the verdict, the lines, and where in the trainer's source and on which links."""
    first = [ui.heading(f"{profile.run}: {profile_verdict(profile)}")]
    notes = [ui.warning(note.text) for note in profile.notes]
    if detail == "brief":
        return ui.screen(first, notes, ui.next_step(next_command))
    most = None if detail == "full" else _MOST
    head, rows = line_rows(profile)
    width = len(head)  # without room, the share goes first, then all time of the links
    lines = ui.Table([head, *rows], "<" + ">" * (width - 1), spare=(width - 1, width - 2))
    places, by_place = source_rows(profile, most)
    sources = ui.table(places, by_place, ">" * len(places[1:]) + "w")
    return ui.screen(
        first,
        ui.section("seconds of a step and device", [lines]),
        ui.section("by the trainer's source line", sources),
        ui.section("by transfer", ui.table(*transfer_rows(profile, most), ">>>w")),
        ui.indent([what_text(profile)]),
        notes,
        ui.next_step(next_command),
    )


def profile_verdict(profile: Profile) -> str:
    """Return how long a step took, and which line is furthest off what it should take."""
    step = f"A step took {fmt.seconds(profile.step_s)}"
    if profile.expected_s:
        said = f"the {fmt.seconds(profile.expected_s)} expected"
        step += f", {fmt.off(profile.step_s, profile.expected_s, said)}"
    # The part with the most seconds beyond `expected`, or else the line with the most beyond
    # `scheduled`.
    expected, measured = dict[str, float](), dict[str, float]()
    for line in profile.lines:
        measured[line.part] = measured.get(line.part, 0.0) + line.measured_s
        if line.expected_s is not None:
            expected[line.part] = line.expected_s
    off = [(measured[part] - s, part, "expected") for part, s in expected.items()] or [
        (line.measured_s - line.scheduled_s, _line_name(line), "scheduled")
        for line in profile.lines
        if line.scheduled_s is not None
    ]
    more_s, name, against = max(off, default=(0.0, "", ""))
    if more_s > _SMALL * profile.step_s:
        return f"{step}. Furthest off: {name}, {fmt.seconds(more_s)} more than {against}."
    largest = max(profile.lines, key=lambda line: line.measured_s)
    share = fmt.percent(largest.measured_s / profile.step_s)
    return f"{step}. Most of it, {share}, is {_line_name(largest)}."


def _line_name(line: ProfileLine) -> str:
    return _NAMES.get(line.kind, line.kind.replace("_", " "))


def line_rows(profile: Profile) -> tuple[ui.Row, list[ui.Row]]:
    """Return the heads and rows of the table of lines, without columns that no line has."""
    lines = [
        line
        for line in profile.lines
        if max(getattr(line, key) or 0.0 for key in _COLUMNS.values()) >= _SMALL * profile.step_s
    ]
    total = ProfileLine(
        kind="a step",
        part="",
        lower_s=profile.lower_s,
        scheduled_s=profile.scheduled_s,
        expected_s=profile.expected_s,
        measured_s=profile.step_s,
        exposed_s=sum(line.exposed_s for line in profile.lines),
        wire_s=sum(line.wire_s for line in profile.lines),
    )
    known = {
        head: key for head, key in _COLUMNS.items() if any(getattr(line, key) for line in lines)
    }
    rows: list[ui.Row] = []
    for line in (*lines, total):
        cells = (_cell(getattr(line, key)) for key in known.values())
        share = fmt.percent(line.measured_s / profile.step_s)
        rows.append((_line_name(line), *cells, share))
    return ("line", *known, "share"), rows


def _cell(value_s: float | None) -> str:
    return fmt.seconds(value_s) if value_s else "-"


def source_rows(profile: Profile, most: int | None) -> tuple[ui.Row, list[ui.Row]]:
    least_s = _SMALL * profile.step_s
    lines = [line for line in by_line(profile.sources)[:most] if line.total_s >= least_s]
    kinds = [(name, key) for name, key in KINDS if any(getattr(line, key) for line in lines)]
    rows: list[ui.Row] = []
    for line in lines:
        cells = (_cell(getattr(line, key)) for _, key in kinds)
        rows.append((fmt.seconds(line.total_s), *cells, short_line(line.line)))
    return ("", *(name for name, _ in kinds), ""), rows


def transfer_rows(profile: Profile, most: int | None) -> tuple[ui.Row, list[ui.Row]]:
    """Return waits and transfers, those of one kind over the same axes together."""
    joined: dict[str, list[float]] = {}
    for sent in profile.collectives:
        over = f" over {sent.link} {' x '.join(sent.axes)}" if sent.axes else ""
        total = joined.setdefault(f"{sent.kind}{over}", [0.0] * 3)
        for i, figure in enumerate((sent.exposed_s, sent.wire_s, sent.calls_per_step)):
            total[i] += figure
    rows: list[ui.Row] = [
        (_cell(exposed_s), _cell(wire_s), f"{calls:,.0f}", what)
        for what, (exposed_s, wire_s, calls) in sorted(joined.items(), key=lambda pair: -pair[1][0])
        if max(exposed_s, wire_s) >= _SMALL * profile.step_s
    ]
    return ("exposed", "on links", "calls", ""), rows[:most]


def what_text(profile: Profile) -> str:
    """Return which steps, ranks and devices the figures are of."""
    ranks = ", ".join(map(str, profile.ranks))
    of = f"the mean of rank{'s' * (len(profile.ranks) > 1)} {ranks} on {profile.device_kind}"
    return f"steps {profile.first_step} to {profile.end_step - 1}, {of}; {profile.folder}"
