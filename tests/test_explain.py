"""Explanations: formulas with their numbers, and the book's derivation for any spec."""

import pytest

from orchestrator import catalog
from orchestrator.evidence.explain.assemble import explain
from orchestrator.evidence.explain.formula import compute
from orchestrator.reading.load import load
from orchestrator.show.explain_screen import _answer_text, explain_screen
from orchestrator.values.spec import Precision
from tests.conftest import ROOT
from tests.example_specs import TINY, spec_of
from tests.explanations import REQUESTS, explanation_of, lines_of, spec_for, values_of, verdicts_of

# --- formulas


def test_a_formula_is_what_it_reads_as() -> None:
    """Powers before products, products before sums, from left to right."""
    numbers = {"B": 8.0, "F": 2.0, "M_X": 2.0, "n": 9.0}
    assert compute("sqrt(B / F * M_X**2 * n) - 2 * 5", numbers).value == 2.0
    powers = "2**max(0, min(round(log2(n)), floor(log2(n)))) + ceil(B / 3)"
    assert compute(powers, numbers).value == 11
    assert [*compute("B / F * M_X / sqrt(n) * B", numbers).inputs] == ["B", "F", "M_X", "n"]


@pytest.mark.parametrize("text", ["B.real", "open(B)", "'B'", "B if B else B", "-B", "[B]"])
def test_only_arithmetic_is_a_formula(text: str) -> None:
    """A formula comes from a data file: nothing else in it is carried out."""
    with pytest.raises((ValueError, KeyError)):
        compute(text, {"B": 1.0})


# --- the derivation


@pytest.mark.parametrize("key", REQUESTS)
def test_every_line_is_its_formula_with_its_numbers(key: str) -> None:
    """Plan and explanation count in one way."""
    lines = list(lines_of(explanation_of(key)))
    assert len(lines) > 25
    for line in lines:
        again = compute(line.computed.formula, line.computed.inputs).value
        assert line.computed.value == pytest.approx(again, rel=1e-12), line.name


@pytest.mark.parametrize("key", REQUESTS)
def test_every_number_put_in_was_given_or_worked_out_before(key: str) -> None:
    """No number comes from nowhere, and what comes from outside has its source on the line."""
    sheet = explanation_of(key)
    known = {entry.symbol: {entry.value} for entry in sheet.inputs}
    outside = {entry.symbol for entry in sheet.inputs if entry.source is not None}
    chip = catalog.chip(sheet.chip)
    known["C"].add(chip.peak_flops_per_s["bf16"].value)
    known["w"].add(chip.ici_link_bytes_per_s.value)
    known["W_dcn"].add(chip.dcn_bytes_per_s.value)
    known["HBM"].add(chip.hbm_bytes.value)
    for line in lines_of(sheet):
        for symbol, value in line.computed.inputs.items():
            assert value in known[symbol], (line.name, symbol)
        assert bool(line.sources) == bool(outside & line.computed.inputs.keys()), line.name
        known.setdefault(line.symbol, set()).add(line.computed.value)


def test_llama_3_70b_by_hand() -> None:
    """The chain of one pod, each value checked against the book's own, exactly computed."""
    values = values_of(explanation_of("70b-one-pod"))
    wanted = {
        "P": 70_553_706_496,
        "f": 4.233e11,
        "years": 438.7,
        "days": 44.68,
        "b_act": 21.99e12,
        "idle": 7936,
        "alpha": 2550,
        "tokens": 468.1,
        "fsdp_least": 850,
        "Y_most": 11.24,
        "mixed_least": 113.4,
        "F_eff": 26_112,
        "mixed_least_eff": 124.5,
        "X_opt": 1619,
        "X": 2048,
        "Y": 4,
    }
    assert {symbol: values[symbol] for symbol in wanted} == pytest.approx(wanted, rel=5e-4)


def test_the_books_verdicts_on_one_pod() -> None:
    """Pure FSDP: no, twice. FSDP + tensor: yes, by F and by all matmuls."""
    sheet = explanation_of("70b-one-pod")
    [whole] = verdicts_of(sheet, "Pure FSDP, whole sequences")
    [pure] = verdicts_of(sheet, "FSDP over batch and sequence, on every axis")
    by_f, by_all = verdicts_of(sheet, "FSDP + tensor")
    assert [whole.holds, pure.holds, by_f.holds, by_all.holds] == [False, False, True, True]
    assert whole.figures == {"sequences": 1024, "chips": 8960, "idle": 7936}
    assert pure.figures == pytest.approx({"times": 0.5507, "tokens": 468.1, "least": 850}, rel=1e-3)
    assert by_f.figures["least"] == pytest.approx(113.4, rel=1e-3)
    assert "comms-bound by 1.82 x: 468.1 tokens a chip, it takes 850" in _answer_text(pure)


def test_on_four_pods_all_matmuls_turn_the_answer() -> None:
    """117 is more than 113 and less than 124.5; DCN is far from binding."""
    sheet = explanation_of("70b-four-pods")
    by_f, by_all = verdicts_of(sheet, "FSDP + tensor")
    [dcn] = verdicts_of(sheet, "Between pods")
    assert (by_f.holds, by_all.holds, dcn.holds) == (True, False, True)
    assert by_all.figures["least"] == pytest.approx(124.5, rel=1e-3)
    assert by_all.figures["flips"]
    assert sheet.summary.mixed_times == pytest.approx(by_all.figures["times"])
    assert by_all.figures["times"] == pytest.approx(1 / 1.06, rel=5e-3)


def test_days_on_fewer_chips_are_those_of_a_pod_that_has_so_many() -> None:
    """8 H100 of a node do not hold 405B, which takes 53."""
    spec = load(ROOT / "specs" / "llama3_405b_herd_16k.yaml")
    symbols = {line.symbol for line in lines_of(explain(spec))}
    assert "few" in symbols
    assert "days_few" not in symbols


def test_405b_is_just_comms_bound_and_not_by_the_vendors_links() -> None:
    """58.5 against 61 by 90 GB/s a link, against 49 by 100."""
    sheet = explanation_of("405b-eight-pods")
    by_book = verdicts_of(sheet, "FSDP + tensor")[0]
    by_vendor = verdicts_of(sheet, "The same by the vendor's figures")[2]
    assert (by_book.holds, by_vendor.holds) == (False, True)
    least = [verdict.figures["least"] for verdict in (by_book, by_vendor)]
    assert least == pytest.approx([61.06, 49.46], rel=1e-3)
    assert by_book.figures["tokens"] == pytest.approx(58.51, rel=1e-3)


@pytest.mark.parametrize("key", ["70b-one-pod", "8b-half-ring", "8b-h100"])
def test_the_mixed_bound_is_where_the_best_split_just_computes(key: str) -> None:
    """Searched over every X, with the layer's own bytes and FLOPs, by F and by all matmuls."""
    v = values_of(explanation_of(key))
    n, shared = v["n"], "M_X" not in v
    for matmuls, blocks, least in (
        (2 * v["D"] * v["F"], 1, v["mixed_least"]),
        (v["P_lay"], 2, v["mixed_least_eff"]),
    ):
        tokens = least * n
        math_s = 2 * tokens * matmuls / (n * v["C"])
        slowest = []
        for step in range(1, 40_000):
            x = 10 ** (step / 4000 - 2)
            weights_s = 2 * matmuls * x / n / (v["W"] * v.get("M_X", v["M"]))
            activations_s = 4 * blocks * tokens * v["D"] / x / (v["W"] * v.get("M_Y", v["M"]))
            both = weights_s + activations_s if shared else max(weights_s, activations_s)
            slowest.append(both)
        assert min(slowest) == pytest.approx(math_s, rel=1e-3)


def test_where_fsdp_wants_more_than_all_chips_tensor_does_not_pay() -> None:
    """The bound of FSDP + tensor cannot be had: pure FSDP decides."""
    sheet = explanation_of("8b-half-ring")
    values = values_of(sheet)
    assert values["X_opt"] > values["n"]
    assert (values["X"], values["Y"]) == (128, 1)
    verdict = verdicts_of(sheet, "FSDP + tensor")[0]
    [pure] = verdicts_of(sheet, "FSDP over batch and sequence, on every axis")
    assert not verdict.figures["tensor_pays"]
    assert {name: verdict.figures[name] for name in pure.figures} == pure.figures
    assert sheet.summary.mixed_times == pure.figures["times"]
    answer = " ".join(explain_screen(sheet, "").partition("Answer: ")[2].split())
    assert ", pure FSDP compute-bound by " in answer
    assert _answer_text(verdict).endswith(_answer_text(pure))


def test_a_mixture_gathers_all_experts_and_multiplies_by_a_few() -> None:
    """At the tokens that a sharding takes, its exchange is as long as the math."""
    sheet = explain(spec_of("mixtral-8x7b", chip="v5p", topology="4x4x8", sequences=1024))
    v = values_of(sheet)
    assert v["F_tok"] == pytest.approx(2 * v["F"], rel=1e-3)  # two of eight experts, and a router
    assert v["F_all"] == pytest.approx(8 * v["F"], rel=1e-3)

    def seconds(tokens: float, fsdp: float, active: float, every: float) -> tuple[float, float]:
        """Math and the slower exchange of a chip's part of one MLP, forward."""
        tensor, tokens = v["n"] / fsdp, tokens * v["n"]
        math_s = 4 * tokens * v["D"] * active / (v["n"] * v["C"])
        weights_s = 4 * v["D"] * every / (tensor * v["W"] * v["M_X"])
        rows_s = 4 * tokens * v["D"] / (fsdp * v["W"] * v["M_Y"])
        return math_s, max(weights_s, rows_s)

    for symbol, names in (
        ("mixed_least", ("F_tok", "F_all")), ("mixed_least_eff", ("F_eff", "F_all_eff")),
    ):  # fmt: skip
        widths = tuple(v[name] for name in names)
        every = (seconds(v[symbol], 10 ** (step / 500), *widths) for step in range(1, 3000))
        ratios = [exchange_s / math_s for math_s, exchange_s in every]
        assert min(ratios) == pytest.approx(1, rel=0.01), symbol
    pure_s = 4 * v["D"] * v["F_all"] / (v["W"] * v["M"])
    assert pure_s == pytest.approx(4 * v["fsdp_least"] * v["D"] * v["F_tok"] / v["C"])
    assert sheet.summary.mixed_times == v["tokens"] / v["mixed_least_eff"]
    assert sheet.summary.tensor_pays


def test_an_axis_that_does_not_close_counts_half() -> None:
    """8x16 on v5e has one ring, 2x2x1 on v5p has none, a switch has no axes to share out."""
    half = values_of(explanation_of("8b-half-ring"))
    assert (half["M"], half["M_X"], half["M_Y"]) == (1.5, 1, 0.5)
    small = values_of(explain(spec_of(TINY, topology="2x2x1", pods=1, sequences=8)))
    assert (small["M"], small["M_X"], small["M_Y"]) == (1, 0.5, 0.5)
    switched = values_of(explanation_of("8b-h100"))
    assert switched["M"] == 1
    assert "M_X" not in switched
    assert switched["W"] == switched["w"]


def test_one_chip_exchanges_nothing() -> None:
    """No bound is given where there is no link, and tied tables are counted once."""
    sheet = explanation_of("tied-one-chip")
    assert "alpha" not in values_of(sheet)
    assert [section.title for section in sheet.sections][-1] == "Pure FSDP, whole sequences"
    model = catalog.model("llama-small")
    assert values_of(sheet)["P_voc"] == model.d_model * model.vocab


def test_fp32_moves_twice_the_bytes_and_computes_at_its_own_peak() -> None:
    """Intensity doubles beside the lower peak."""
    exact = Precision(compute="fp32")
    values = values_of(explain(spec_of(precision=exact, pods=1)))
    peak = catalog.chip("v5p").peak_flops_per_s["fp32"].value
    assert values["C"] == peak
    assert values["alpha"] == pytest.approx(2 * peak / 1.8e11)


def test_days_follow_the_given_mfu() -> None:
    """45 % takes 8/9 of the days of 40 %."""
    at_45 = values_of(explain(spec_for("405b-eight-pods"), mfu=0.45))
    at_40 = values_of(explanation_of("405b-eight-pods"))
    assert at_45["days"] / at_40["days"] == pytest.approx(40 / 45)
