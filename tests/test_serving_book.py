"""The book's worked answers on inference: each published figure next to the exact one."""

import pytest

from orchestrator import catalog
from orchestrator.catalog.serving import OpenAnswer, answers, figures
from orchestrator.evidence.explain.formula import QuotedFigure, compute
from orchestrator.evidence.explain.serving import quoted
from orchestrator.serving.layout import layouts
from orchestrator.serving.planner import make_serving_plan, mix_of
from orchestrator.serving.step import as_float
from orchestrator.values.serving import ServingMesh
from tests.test_serving import BOOK, changed, tpot

QUOTES = [figure for part in quoted() for figure in part.figures]


# Out of scope in the chapter on GPUs, as no ledger here has cores, caches, clocks or switches,
# only a chip's peaks and what it sends: FLOPs of a tensor core in a cycle (1,024), registers and
# warps of an SM (256 KiB, 8), CUDA cores of H100 and B200 and lanes of v5p (16,896, 18,944,
# 8,192), vector FLOP/s (26.9 and 33.5 TFLOP/s), B200's clock (2.1 GHz), shared memory and
# registers (33 MB each), an addition of vectors (1/12 FLOP a byte, 0.23 us, 3.84 ms), bandwidths
# of switches (6.4, 12.8 and 51.2 TB/s, bisection 3.6 TB/s, 560 switches), reductions in switches
# (B / W, at a spine 6.4 TB/s), measured rates (370 and 480 GB/s), and all-to-alls, which have
# formulas and no figure.


def figure_of(about: str) -> QuotedFigure:
    [found] = [figure for figure in QUOTES if figure.about.startswith(about)]
    return found


def test_every_row_of_the_chapters_is_answered() -> None:
    """Printed figures of the chapters on inference, and on GPUs those that are in scope."""
    count = len(figures())
    assert len(QUOTES) == count == 109 + 43
    assert len(answers()) == 17


@pytest.mark.parametrize("figure", QUOTES, ids=lambda figure: figure.about[:50])
def test_a_figure_is_reproduced_or_its_difference_explained(figure: QuotedFigure) -> None:
    same = figure.exact.value == pytest.approx(figure.reproduced.value, rel=0.005)
    assert figure.agreement == "rounded" or figure.why
    assert same or figure.why
    # A figure is never its own input, except the 45 GB from which others follow.
    assert len(figure.printed) == 1 or figure.printed not in figure.reproduced.formula.split()


@pytest.mark.parametrize("answer", answers(), ids=lambda answer: answer.about[:50])
def test_open_exercises_come_to_our_answers(answer: OpenAnswer) -> None:
    computed = compute(answer.formula, answer.inputs)
    assert computed.value == pytest.approx(answer.value, rel=0.03)


@pytest.mark.parametrize(
    ("about", "printed", "exact"),
    [
        ("chips from which that beats 1-D", 81, 72),
        ("int4 weights", 45e9, 35e9),
        ("HBM left on 4x2 in int8", 68e9, 58e9),
        ("sequences of 8k in int8", 52, 43),
        ("sequences of 8k in int4", 67, 43),
        ("ways of tensor parallelism over two axes", 22, 26.2),
        ("prefill servers for a decode server", 3, 4.02),
        ("microseconds to read the weights", 365, 327.4),
        ("requests/s of a chip in bf16 on 4x8", 0.51, 0.4465),
        ("parameters of the exercise", 16e9, 17.44e9),
        ("the same as question 2 of quiz 5", 14.372, 13.033),
        ("the same as question 3 of quiz 5", 2472, 2475),
    ],
)
def test_contradictions_are_named(about: str, printed: float, exact: float) -> None:
    figure = figure_of(about)
    assert float(figure.printed) == printed
    assert figure.exact.value == pytest.approx(exact, rel=1e-3)
    assert figure.why


@pytest.mark.parametrize(
    ("about", "chip", "type_"),
    [
        ("critical batch in bf16 on H100", "h100", "bf16"),
        ("the same in fp8 on H100", "h100", "fp8"),
        ("the same on B200", "b200", "bf16"),
        ("the same in fp8 on B200", "b200", "fp8"),
    ],
)
def test_chips_of_the_catalog_have_the_books_critical_batches(
    about: str, chip: str, type_: str
) -> None:
    """Its figures are FLOPs over bytes; the catalog's peaks give them within a percent."""
    known = catalog.chip(chip)
    intensity = known.peak_flops_per_s[type_].value / known.hbm_bytes_per_s.value
    found = [figure for figure in QUOTES if figure.about == about]
    assert any(figure.exact.value == pytest.approx(intensity, rel=0.01) for figure in found)


def test_the_ledgers_links_gather_as_fast_as_the_books() -> None:
    """bf16[1024, 16384] over the eight of a node takes 65 us at 450 GB/s."""
    chip = catalog.chip("h100")
    mesh = ServingMesh(tensor=8)
    layout = layouts(
        chip, catalog.topology(chip, "8"), catalog.model("llama3-70b"), "bf16", "bf16", mesh
    )
    assert layout is not None
    rate = as_float(layout.links.bytes_per_s("tensor"))
    precise = figure_of("microseconds to gather it, with what each has already")
    assert 2 * 1024 * 16384 * 7 / 8 / rate * 1e6 == pytest.approx(precise.exact.value)


def test_the_planner_agrees_with_the_book() -> None:
    """The chapter's 70B on 4x2 in int8, batch 32 of 8,192: 42.9 GB of cache, and 17 ms a step."""
    spec = changed(
        BOOK, "resources.topology=2x4", "serve.prompt=7936", "serve.output=512",
        "resources.mesh.tensor=8",
    )  # fmt: skip
    plan = make_serving_plan(spec)
    assert mix_of(plan.serve).context == 8192
    lines = {line.name: line for line in plan.forecast.decode}
    cache = lines["KV cache"].inputs
    whole = cache["requests"] * cache["bytes"] * 8
    assert whole == pytest.approx(figure_of("KV cache of 32 sequences of 8,192").exact.value)
    # The head in bf16 takes 1.05 GB more than in int8, and the embedding is not read.
    read = lines["weights"].value + lines["KV cache"].value
    assert read * 1e3 == pytest.approx(17.3, rel=0.01)
    assert tpot(plan).lower == pytest.approx(read)


def test_explain_quotes_the_book_for_its_model_and_chip() -> None:
    import orchestrator as orch  # noqa: PLC0415

    titles = [part.title for part in orch.explain_serving(BOOK).quotes]
    assert any("part 8" in title for title in titles)
    other = orch.explain_serving(BOOK, ["resources.chip=v6e", "resources.topology=2x4"])
    assert other.quotes == ()
