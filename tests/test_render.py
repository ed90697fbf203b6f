"""Text for terminals: numbers with their units, widths, tables, and screens that stay plain."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import formatting
from orchestrator.errors import SpecError
from orchestrator.evidence.score.evaluate import with_catalog_constants
from orchestrator.evidence.score.published_runs import PUBLISHED
from orchestrator.evidence.studies import forecast_of
from orchestrator.planning.feasibility import usable_axes
from orchestrator.planning.planner import make_plan, make_plans
from orchestrator.planning.ranking import Reason, passed_over
from orchestrator.planning.rehearsal import rehearse
from orchestrator.reading.expectations import help_about
from orchestrator.reading.load import load
from orchestrator.reading.load_study import load_study
from orchestrator.show import progress, status_screen
from orchestrator.show.machine_screens import key_help_screen
from orchestrator.show.parts import (
    WIDTH,
    Detail,
    Screen,
    Table,
    Text,
    Title,
    _bar,
    fit,
    heading,
    in_encoding,
    indent,
    next_step,
    screen,
    warning,
)
from orchestrator.show.plan_screen import plan_screen
from orchestrator.show.plan_text import headline
from orchestrator.show.report_screen import score_screen
from orchestrator.show.study_screens import forecast_screen
from orchestrator.show.terminal import CommandResult, say, show_result
from orchestrator.values.model import Model
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Precision, TensorTreatments
from tests.conftest import GOLDEN, ROOT, TRAINING_SPECS, HoldGolden
from tests.example_specs import spec_of
from tests.shipped_plans import shipped_plans

SHIPPED = TRAINING_SPECS
DETAILS: tuple[Detail, ...] = ("brief", "usual", "full")
STUDIES = sorted((ROOT / "specs/studies").glob("*.yaml"))


@pytest.fixture(scope="module")
def four_pods() -> list[Plan]:
    """Return the plan of the four-pod spec and three runners-up."""
    return make_plans(spec_of(), 4)


# --- numbers


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (formatting.scaled(4_587_520), "4.59M"),
        (formatting.scaled(15e12), "15T"),
        (formatting.scaled(999), "999"),
        (formatting.scaled(999.7e6), "1B"),
        (formatting.dollars(999_600), "$1M"),
        (formatting.with_unit(999.7e9, "B"), "1 TB"),
        (formatting.with_unit(999.7e9, "B", 4), "999.7 GB"),
        (formatting.seconds(0.9998), "1 s"),
        (formatting.seconds(12.1234), "12.1 s"),
        (formatting.seconds(0.00386), "3.86 ms"),
        (formatting.seconds(0), "0 us"),
        (formatting.with_unit(459e12, "FLOP/s"), "459 TFLOP/s"),
        (formatting.with_unit(0, "B"), "0 B"),
        (formatting.in_memory(393_216), "0.38 MiB"),
        (formatting.in_memory(102.8 * formatting.GIB), "102.80 GiB"),
        (formatting.lasting(15145.7), "15,146 days"),
        (formatting.lasting(44.68), "44.7 days"),
        (formatting.lasting(0.8), "19.2 hours"),
        (formatting.lasting(5.1e-7), "44.1 ms"),
        (formatting.elapsed(185), "3 min 5 s"),
        (formatting.elapsed(0.2), "0 s"),
        (formatting.counted(1, "run"), "1 run"),
        (formatting.counted(4_000, "run"), "4,000 runs"),
        (formatting.signed_percent(0.0001), "0.0 %"),
        (formatting.signed_percent(-0.25), "-25.0 %"),
        (formatting.span("127 ms", "422 ms"), "127 to 422 ms"),
        (formatting.span("900 ms", "1.2 s"), "900 ms to 1.2 s"),
        (formatting.span("2 d 4 h", "3 d 4 h"), "2 d 4 h to 3 d 4 h"),
        (formatting.span("$1", "$1"), "$1"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(shown: str, text: str) -> None:
    """Each in the unit that shows digits, without an exponent."""
    assert shown == text


# --- layout


def test_a_table_aligns_and_has_no_trailing_blanks() -> None:
    """Numbers are aligned to the right, words to the left."""
    table = Table(rows=[("a", "1", ""), ("bbb", "22", "")], columns="<><")
    assert table.lines(WIDTH) == ["a     1", "bbb  22"]


def test_columns_move_closer_only_where_they_must() -> None:
    """A table that fits keeps its gaps."""
    assert Table(rows=[["word"] * 5], columns="<" * 5).lines(28) == ["word  word  word  word  word"]
    assert Table(rows=[["word"] * 5], columns="<" * 5).lines(27) == ["word word word word word"]


def test_a_written_file_stands_above_the_next_command() -> None:
    for blocks in ([["verdict"], next_step("orch ui")], [["verdict", *next_step("orch ui")]]):
        shown = Screen(*blocks).with_written(Path("page.html"))
        assert shown.splitlines()[-2:] == ["wrote page.html", "Next: orch ui"]
    assert Screen(["verdict"]).with_written(Path("x")).splitlines() == ["verdict", "wrote x"]


def test_a_result_may_have_no_screen(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(CommandResult(None), as_json=False)
    assert capsys.readouterr().out == ""


def test_columns_that_do_not_fit_come_below() -> None:
    """Each part has the first column, and rows keep their styles."""
    rows = [("RUN", "STEPS", "LOSS"), ("a-long-name", "20", "1.5")]
    table = Table(rows=rows, columns="<>>", row_styles={0: "bold"})
    folded = ["RUN          STEPS", "a-long-name     20", "RUN          LOSS", "a-long-name   1.5"]
    assert table.lines(21) == folded
    assert table.lines(22) == ["RUN         STEPS LOSS", "a-long-name    20  1.5"]
    styled = screen([table]).on_terminal(21).splitlines()
    assert [line.startswith("\033[1m") for line in styled] == [True, False, True, False]


def test_many_keys_have_a_line_each() -> None:
    """A key with many below it is described, and they are listed."""
    text = key_help_screen(help_about("experiment.model"), "")
    assert text.startswith("experiment.model\n  The model: ")
    assert text.count("must be:") == 1
    assert text.splitlines()[-1] == "Next: orch schema --key experiment.model.name"
    assert "must be:" not in key_help_screen(help_about("experiment.model.moe"), "")


def test_a_last_column_wraps_below_itself() -> None:
    """And a cell without text leaves no blanks."""
    [inner] = indent([Table(rows=[("mesh", "tensor 16, data 4"), ("", "")], columns="<w")])
    assert not isinstance(inner, str)
    assert inner.lines(19) == ["  mesh  tensor 16,", "        data 4", ""]


def test_a_number_stays_with_its_unit_and_a_word_stays_whole() -> None:
    """Lines break between words, and not between 12 and GiB."""
    text = Text(text="it takes 12 GiB more", start="note: ")
    assert text.lines(18) == ["note: it", "      takes 12 GiB", "      more"]
    sets = Text(text="--set batch=192 --set steps=204 --set mesh=auto", start="note: ")
    assert sets.lines(24) == [
        "note: --set batch=192", "      --set steps=204", "      --set mesh=auto"
    ]  # fmt: skip
    path = "/folder" * 20
    assert Text(text=f"in {path}", start="  ").lines(WIDTH) == [f"  in {path}"]


def test_a_message_keeps_its_lines_and_its_commands() -> None:
    """Long lines are wrapped; a command is not, and indentation stays."""
    command = f"Next: orch plan {'--set a=b ' * 12}x"
    text = fit(f"title\n  {'words ' * 20}\n{command}")
    first, *middle, last = text.splitlines()
    assert (first, last) == ("title", command)
    assert all(line.startswith(("  words", "    words")) for line in middle)
    assert fit("a\n\n  b\n") == "a\n\n  b\n"


def test_a_screen_is_plain_text_and_has_styles_on_a_terminal_only() -> None:
    """The same words either way; text from elsewhere brings no control characters."""
    shown = screen([heading("a\x1b[31m title")], [], [warning("b")], next_step("orch plan x"))
    assert shown == "a?[31m title\n\nwarning: b\n\nNext: orch plan x\n"
    styled = shown.on_terminal(WIDTH)
    assert styled.startswith("\033[1ma?[31m title\033[0m\n")
    assert "\033[33mwarning: b\033[0m" in styled
    assert re.sub(r"\033\[\d+m", "", styled) == shown


def test_a_screen_uses_the_width_of_a_terminal() -> None:
    """Titles reach its edge, and paragraphs fill it."""
    shown = screen([Title(left="left", right="right")], ["word " * 30])
    assert isinstance(shown, Screen)
    assert max(map(len, shown.splitlines())) == 80
    wide = re.sub(r"\033\[\d+m", "", shown.on_terminal(120)).splitlines()
    assert len(wide[0]) == 120
    assert len(wide[2]) > 100


def test_bars_show_where_most_is() -> None:
    """The largest takes the room that is left, others their share, to an eighth of a column."""
    table = Table(rows=[("all", "8"), ("half", "4"), ("sum", "12")], columns="<>", bars=(8, 4, 0))
    assert table.lines(18) == ["all    8  ████████", "half   4  ████", "sum   12"]
    assert table.lines(13) == ["all   8  ████", "half  4  ██", "sum  12"]
    assert table.lines(12) == ["all   8", "half  4", "sum  12"]
    assert (_bar(1.5), _bar(0), _bar(0.001)) == ("█▌", "", "▏")


def test_an_output_without_blocks_has_bars_in_ascii() -> None:
    """Each block becomes one letter; what an encoding lacks becomes a question mark."""
    assert in_encoding("█▌▏ é", "ascii") == "##- ?"
    assert in_encoding("█▌▏ é", "utf-8") == "█▌▏ é"


@pytest.mark.parametrize(
    ("settings", "is_terminal", "width", "styled"),
    [
        ({"COLUMNS": "120"}, True, 120, True),
        ({"COLUMNS": "120", "NO_COLOR": "1"}, True, 120, False),
        ({"COLUMNS": "120", "TERM": "dumb"}, True, 120, False),
        ({"COLUMNS": "300"}, True, 120, True),
        ({"COLUMNS": "100"}, False, 100, False),
        ({}, False, 80, False),
    ],
)
def test_styles_are_for_terminals_and_widths_for_columns(
    settings: dict[str, str], is_terminal: bool, width: int, styled: bool,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A pipe, NO_COLOR and TERM=dumb have plain text; a terminal's columns are used."""
    for name in ("COLUMNS", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    say(screen([Title(left="left", right="right")]))
    printed = capsys.readouterr().out
    assert ("\033[" in printed) == styled
    assert len(re.sub(r"\033\[[\d;]+m", "", printed).rstrip("\n")) == width


# --- screens


def too_wide(text: str) -> list[str]:
    """Return lines that 80 columns would break, but for commands and paths."""
    return [
        line
        for line in text.splitlines()
        if len(line) > WIDTH and not line.startswith("Next: ") and " /" not in line
    ]


def test_a_plan_is_one_screen(golden: HoldGolden, four_pods: list[Plan]) -> None:
    """Within 80 columns; the verdict is first, then the ledgers; the next command is last."""
    shown = plan_screen(replace(four_pods[0], run_steps=1000), "orch explain spec.yaml")
    golden("plan_70b_4pod.txt", shown)
    lines = shown.splitlines()
    assert too_wide(shown) == []
    assert len(lines) <= 90
    labels = ("fits", "time", "cost", "MFU", "bound by", "this run")
    for line, label in zip(lines[2:8], labels, strict=True):
        assert line.startswith(f"  {label}  ")
    assert lines[8] == ""
    assert lines[-3].startswith("Plan: fits, bound by ")
    assert lines[-1] == "Next: orch explain spec.yaml"


def test_the_plan_that_the_readme_shows(golden: HoldGolden) -> None:
    """Llama 3 8B on two v6e-256: `expected` is above `unoverlapped`, and the screen says why."""
    plan = make_plan(load(ROOT / "specs/llama3_8b_v6e_2slice.yaml"))
    step_s = plan.forecast.step_s
    assert step_s.expected
    assert step_s.expected > step_s.unoverlapped
    shown = plan_screen(plan, "orch explain specs/llama3_8b_v6e_2slice.yaml")
    golden("plan_8b_2slice.txt", shown)
    for line in plan.forecast.expected_time:
        if (share := line.inputs.get("share")) is not None:
            assert f"{line.name} {formatting.percent(share)}" in " ".join(shown.split())


def test_a_plan_in_brief_and_in_full(four_pods: list[Plan]) -> None:
    """The verdict alone, which says that there are warnings; or each line of each ledger."""
    plan = four_pods[0]
    brief, usual, full = (plan_screen(plan, "x", detail=detail) for detail in DETAILS)
    top = usual.split("\n\n")[:2]
    assert brief.split("\n\n")[:2] == top
    assert full.split("\n\n")[:2] == top
    assert brief.splitlines()[-2:] == [
        "warning: 3 warnings, shown by orch plan without --brief", "Next: x"
    ]  # fmt: skip
    assert len(brief.splitlines()) <= 12
    for line in plan.forecast.time:
        assert f" {line.name} " in full
    assert "smaller line" in usual
    assert "smaller line" not in full
    assert too_wide(full) == []


def test_words_say_why_a_plan_is_not_the_one_that_is_expected_to_be_fastest(
    four_pods: list[Plan],
) -> None:
    """Each part of the ranking's rule has its sentence, and names the mesh."""
    plan = four_pods[0]
    faster = replace(plan.forecast, mfu=replace(plan.forecast.mfu, expected=0.99))
    slow = replace(faster.step_s, unoverlapped=1.5 * faster.step_s.unoverlapped)
    fast = replace(faster.step_s, unoverlapped=0.99 * faster.step_s.unoverlapped)
    others: dict[Reason | None, Plan] = {
        None: plan,
        "work": replace(plan, forecast=replace(faster, step_s=slow)),
        "batch": replace(plan, forecast=faster),
        "waits": replace(plan, forecast=faster, batch=replace(plan.batch, microbatches=64)),
        "offload": replace(
            plan,
            forecast=replace(faster, step_s=fast),
            remat=TensorTreatments(block_input="offload"),
        ),
    }
    for reason, other in others.items():
        assert passed_over(plan, other) == reason
        shown = plan_screen(plan, "x", runners_up=[other])
        assert ("(MFU 99.0 %)" in shown) == (reason is not None)


def test_one_chip_is_no_chips(four_pods: list[Plan]) -> None:
    assert ": 1 v5p chip, 1 pod of " in headline(replace(four_pods[0], chips=1, pods=1))
    assert ": 35,840 v5p chips, 4 pods of " in headline(four_pods[0])


def test_a_changed_batch_is_shown(four_pods: list[Plan]) -> None:
    """The spec requests 1,024 sequences; the plan has 1,120."""
    text = " ".join(plan_screen(four_pods[0], "x").split())
    assert "1,120 sequences" in text
    assert "(raised 9.4 % from 1,024 to divide evenly)" in text


def test_runners_up_come_before_the_verdict(golden: HoldGolden, four_pods: list[Plan]) -> None:
    """A row for each mesh, with its expected step and MFU; the first loses nothing."""
    first, *others = four_pods
    shown = plan_screen(first, "x", runners_up=others)
    table = shown[shown.index("the plan and 3 runners-up") : shown.index("\n\nwarning:")]
    golden("alternatives_70b_4pod.txt", table + "\n")
    assert shown.replace(f"\n\n{table}", "") == plan_screen(first, "x")
    for plan in others:
        mesh = ".".join(str(plan.mesh[axis]) for axis in usable_axes(plan.model))
        mfu = formatting.percent(plan.forecast.mfu.expected or 0)
        assert any(mesh in line and mfu in line for line in table.splitlines())


def test_a_run_that_ends_early_has_a_price_of_its_own() -> None:
    """1,000 steps of three million, with their share of days and dollars."""
    spec = spec_of(topology="8x8x16", pods=1)
    limited = make_plan(replace(spec, run=replace(spec.run, steps=1000)))
    assert limited.digest == make_plan(spec).digest
    share = 1000 / limited.total_steps
    days, cost = limited.forecast.days, limited.forecast.dollars
    assert days.low
    assert cost
    assert cost.high
    shown = " ".join(plan_screen(limited, None).split())
    assert "this run 1,000 of" in shown
    closing = shown.rpartition("Plan: ")[2]
    assert formatting.dollars(cost.high * share) in closing
    assert formatting.lasting(days.low * share).split()[0] in closing
    assert "this run" not in plan_screen(make_plan(spec), None)
    longer = make_plan(replace(spec, run=replace(spec.run, steps=10**9)))
    assert "this run" not in plan_screen(longer, None)


INT8 = Precision(compute="int8")  # of which no run on GPUs is published


def test_without_a_published_run_no_range_is_shown() -> None:
    """Bounds alone remain."""
    mpt = Model(
        name="mpt-7b", layers=32, d_model=4096, d_ff=16_384, heads=32, kv_heads=32, head_dim=128,
        vocab=50_432, gated=False, tied=True,
    )  # fmt: skip
    for pods in (1, 16, 64):
        spec = spec_of(
            mpt, chip="h100", topology="8", pods=pods, sequences=128 * pods, length=2048,
            precision=INT8,
        )  # fmt: skip
        plan = make_plan(spec)
        assert plan.forecast.step_s.expected is None
        assert [warning.code for warning in plan.warnings if warning.code == "no_expected"]
        days, cost = plan.forecast.days, plan.forecast.dollars
        assert cost
        verdict = str(plan_screen(plan, None)).splitlines()[-1]
        assert verdict.endswith(
            f"at least {formatting.lasting(days.lower)}, at least {formatting.dollars(cost.lower)}."
        )
        shown = plan_screen(plan, None)
        assert formatting.lasting(days.unoverlapped) not in shown
        assert formatting.dollars(cost.unoverlapped) not in shown


def test_runners_up_without_an_estimate_have_both_bounds() -> None:
    """No run was published for this type, so the steps at peak rates take its place."""
    spec = spec_of("llama3-8b", chip="h100", topology="8", pods=1, sequences=64, precision=INT8)
    plans = make_plans(spec, 3)
    shown = plan_screen(plans[0], "x", runners_up=plans[1:])
    _, head, *rows = shown[shown.index("the plan and 2 runners-up") :].splitlines()
    assert head.split()[4:6] == ["lower", "unoverlapped"]
    for plan, row in zip(plans, rows, strict=False):
        assert formatting.seconds(plan.forecast.step_s.unoverlapped) in row


def test_runners_up_of_a_mixture_have_the_size_of_expert() -> None:
    """In every row, where any of them has more than one, and the heading names it."""
    plans = make_plans(load(ROOT / "specs/tiny_mixture.yaml", ["resources.mesh.expert=auto"]), 4)
    assert {plan.mesh["expert"] > 1 for plan in plans} == {True, False}
    shown = plan_screen(plans[0], "x", runners_up=plans[1:])
    title, _, *rows = shown[shown.index("the plan and 3 runners-up") :].splitlines()
    assert "(data.expert.fsdp.sequence.tensor)" in title
    for plan, row in zip(plans, rows, strict=False):
        assert int(row.split()[0].split(".")[1]) == plan.mesh["expert"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_screens_of_shipped_specs_fit_a_terminal(path: Path) -> None:
    """The plan with runners-up, and the start of its rehearsal."""
    spec = load(path)
    plan, *others = shipped_plans(path)
    small = rehearse(spec, plan)
    shown = [
        plan_screen(plan, "orch explain spec.yaml", runners_up=others),
        *progress._started(plan.name, None, None, None),
        status_screen.rehearsal_screen(plan, small.plan, small.steps, small.changes),
    ]
    assert [line for text in shown for line in too_wide(text)] == []


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_screens_of_shipped_studies_fit_a_terminal(path: Path) -> None:
    """The prediction, and the line above each run."""
    study = load_study(path)
    plans = {trial.number: make_plan(trial.spec) for trial in study.trials}
    shown = [
        forecast_screen(forecast_of(study, plans), "orch submit study.yaml"),
        *progress._started(study.name, None, None, study),
        *(text for trial in study.trials for text in progress._trial_started(study, trial, 1)),
    ]
    assert [line for text in shown for line in too_wide(text)] == []


def test_the_score_fits_a_terminal_and_names_outliers() -> None:
    """Runs outside their interval, and any that is faster than the lower bound."""
    score = with_catalog_constants(PUBLISHED)
    impossible = replace(score.rows[0], id="too_fast", below_lower_bound=True, lower_step_s=2.0)
    shown = score_screen(replace(score, rows=(*score.rows, impossible)), "orch score")
    assert too_wide(shown) == []
    outside = next(run.id for run in score.rows if not run.inside_interval)
    assert f"outside the 80 % interval: {outside}" in shown
    assert "faster than the lower bound: too_fast (at least 2 s)" in shown


@pytest.mark.parametrize("name", ["plan_70b_4pod", "proof_8b_2pod", "proof_refused"])
def test_golden_screens_fit_a_terminal(name: str) -> None:
    assert too_wide((GOLDEN / f"{name}.txt").read_text(encoding="utf-8")) == []


def test_the_reasons_for_no_plan_fit_a_terminal() -> None:
    """With its reasons and its suggestions."""
    with pytest.raises(SpecError) as caught:
        make_plan(spec_of(tolerance=0.0))
    assert caught.value.is_prose
    assert too_wide(fit(str(caught.value))) == []
