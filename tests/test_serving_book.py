"""The book's worked answers on inference: each published figure next to the exact one."""

import pytest

from orchestrator.catalog.serving import OpenAnswer, answers, figures
from orchestrator.evidence.explain.formula import QuotedFigure, compute
from orchestrator.evidence.explain.serving import quoted
from orchestrator.serving.planner import make_serving_plan, mix_of
from tests.test_serving import BOOK, changed

QUOTES = [figure for part in quoted() for figure in part.figures]


def figure_of(about: str) -> QuotedFigure:
    [found] = [figure for figure in QUOTES if figure.about.startswith(about)]
    return found


def test_every_row_of_the_chapters_is_answered() -> None:
    """Rows 2 to 68 of the list that have a printed figure, several of some."""
    count = len(figures())
    assert len(QUOTES) == count == 109
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
    ],
)
def test_contradictions_are_named(about: str, printed: float, exact: float) -> None:
    figure = figure_of(about)
    assert float(figure.printed) == printed
    assert figure.exact.value == pytest.approx(exact, rel=1e-3)
    assert figure.why


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
    assert plan.forecast.tpot_s.lower == pytest.approx(read)


def test_explain_quotes_the_book_for_its_model_and_chip() -> None:
    import orchestrator as orch  # noqa: PLC0415

    titles = [part.title for part in orch.explain_serving(BOOK).quotes]
    assert any("part 8" in title for title in titles)
    other = orch.explain_serving(BOOK, ["resources.chip=v6e", "resources.topology=2x4"])
    assert other.quotes == ()
