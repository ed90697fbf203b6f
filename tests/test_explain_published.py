"""Published figures: every one quoted, reproduced from its inputs, and set beside the exact one."""

from dataclasses import replace
from decimal import Decimal

import pytest

from orchestrator import catalog
from orchestrator.catalog.published import figures, questions
from orchestrator.evidence.explain.assemble import _agreement, explain
from orchestrator.evidence.explain.formula import compute
from orchestrator.show import explain_screen
from orchestrator.values.spec import Spec
from tests.example_specs import spec_of
from tests.explanations import explanation_of, quotes_of

BOOK, TRAINING = "scaling-book-llama", "scaling-book-training"
FIRST, NOTES = "scaling-book-llama-first", "scaling-notes"
ARTICLE, HERD = "scaling-notes-article", "llama-3-herd-mfu"

# Typed a second time, from the publications: question, source, figures as printed, and their unit.
PUBLISHED = [
    ("70b-one-pod", BOOK, "56.3e9 12e9 2.1e9 70.4e9", "parameters"),
    ("70b-one-pod", BOOK, "4.2e11 6.3e24", "FLOP"),
    ("70b-one-pod", BOOK, "435", "years"),
    ("70b-one-pod", BOOK, "44 1752", "days"),
    ("70b-one-pod", BOOK, "140e9 560e9 20.9e12 21.6e12 2.4e9", "bytes"),
    ("70b-one-pod", BOOK, "225", "chips"),
    ("70b-one-pod", BOOK, "1024", "sequences"),
    ("70b-one-pod", BOOK, "468 850 113", "tokens a chip"),
    ("70b-one-pod", BOOK, "1618 2048 4 2", "ways"),
    ("70b-one-pod", TRAINING, "2550", "FLOP/B"),
    ("70b-one-pod", NOTES, "110e12 58e12 111e12 12.4e9", "bytes"),
    ("70b-one-pod", NOTES, "1156 7936 8192", "chips"),
    ("70b-one-pod", NOTES, "446", "tokens a chip"),
    ("70b-one-pod", FIRST, "453", "tokens a chip"),
    ("70b-one-pod", FIRST, "1927 11", "ways"),
    ("70b-four-pods", TRAINING, "71360", "tokens"),
    ("70b-four-pods", BOOK, "117", "tokens a chip"),
    ("70b-four-pods", NOTES, "1e6", "tokens"),
    ("70b-four-pods", NOTES, "112", "tokens a chip"),
    ("70b-four-pods", NOTES, "11", "days"),
    ("405b-eight-pods", TRAINING, "2550", "FLOP/B"),
    ("405b-eight-pods", NOTES, "406e9", "parameters"),
    ("405b-eight-pods", NOTES, "2.43e12 3.65e25", "FLOP"),
    ("405b-eight-pods", NOTES, "500e3 71e3 7.6e6", "tokens"),
    ("405b-eight-pods", NOTES, "61 56", "tokens a chip"),
    ("405b-eight-pods", BOOK, "58", "tokens a chip"),
    ("405b-eight-pods", NOTES, "20 16", "ways"),
    ("405b-eight-pods", NOTES, "32", "days"),
    ("405b-eight-pods", ARTICLE, "28", "days"),
    ("405b-h100", HERD, "8192 16384 16384", "GPUs"),
    ("405b-h100", HERD, "16e6 16e6 16e6", "tokens"),
    ("405b-h100", HERD, "0.43 0.41 0.38", "MFU"),
]

# What the figures hide: question, figure, where it stands, the value to its last digit.
HIDDEN = [
    ("70b-one-pod", "70.4e9", "exact", "70553706496"),
    ("70b-one-pod", "44", "from", "44.3"),
    ("70b-one-pod", "44", "exact", "44.7"),
    ("70b-one-pod", "20.9e12", "from", "20.97e12"),
    ("70b-one-pod", "20.9e12", "exact", "22.0e12"),
    ("70b-one-pod", "225", "exact", "237"),
    ("70b-one-pod", "225", "by Google Cloud's HBM", "223"),
    ("70b-one-pod", "1752", "with 44.3 days unrounded", "1765"),
    ("70b-one-pod", "110e12", "from", "110.1e12"),
    ("70b-one-pod", "110e12", "as written, with the term B D", "120.6e12"),
    ("70b-one-pod", "110e12", "the tensors that they name, 3F + D", "60.3e12"),
    ("70b-one-pod", "110e12", "D + 2F a layer", "42e12"),
    ("70b-one-pod", "58e12", "exact", "73e12"),
    ("70b-one-pod", "113", "with every matmul of a layer, F_eff", "124.5"),
    ("70b-one-pod", "113", "F_eff, parameters of a layer / 4 D", "26112"),
    ("70b-one-pod", "1618", "exact", "1619"),
    ("70b-one-pod", "8192", "exact", "8960"),
    ("70b-one-pod", "2550", "by Google Cloud's links", "2295"),
    ("70b-four-pods", "71360", "exact", "73440"),
    ("70b-four-pods", "112", "exact", "117"),
    ("405b-eight-pods", "406e9", "exact", "405853388800"),
    ("405b-eight-pods", "58", "from", "58.5"),
    ("405b-eight-pods", "28", "from", "28.5"),
    ("405b-eight-pods", "28", "exact", "32.1"),
    ("405b-h100", "0.41", "15.6T tokens at this rate, by 6 P", "67.1"),
    ("405b-h100", "0.43", "a step with causal attention", "12.02"),
    ("405b-h100", "0.43", "a step with attention to all keys", "12.50"),
    (
        "405b-h100",
        "0.43",
        "the bubble of 16 stages, with 8 chunks each and 32 microbatches",
        "0.059",
    ),
    ("405b-h100", "0.41", "a step with causal attention", "6.46"),
    ("405b-h100", "0.41", "a step with attention to all keys", "6.72"),
    (
        "405b-h100",
        "0.41",
        "the bubble of 16 stages, with 8 chunks each and 16 microbatches",
        "0.117",
    ),
    (
        "405b-h100",
        "0.41",
        "the speed of row 1 that the bubbles alone leave; 0.93 measured",
        "0.948",
    ),
    ("405b-h100", "0.38", "a step with causal attention", "10.90"),
    ("405b-h100", "0.38", "a step with attention to all keys", "15.28"),
]


def has_digits(value: float, digits: str) -> bool:
    """Whether a value rounds to these digits."""
    last = Decimal(1).scaleb(int(Decimal(digits).as_tuple().exponent))
    return abs(Decimal(repr(value)) - Decimal(digits)) <= last / 2


@pytest.mark.parametrize(("question", "source", "printed", "unit"), PUBLISHED)
def test_the_published_figures_are_quoted(
    question: str, source: str, printed: str, unit: str
) -> None:
    """As printed, each under its source and in its order, none left out and none made up."""
    same = [q for q in quotes_of(question) if (q.source, q.unit) == (source, unit)]
    assert [quote.printed for quote in same] == printed.split()


def test_no_figure_is_quoted_that_is_not_held_here() -> None:
    """Whoever adds a figure types it twice."""
    typed = {(q, s, u, p) for q, s, printed, u in PUBLISHED for p in printed.split()}
    there = {(q, f.source, f.unit, f.printed) for f in figures() for q in f.questions}
    assert there == typed


@pytest.mark.parametrize("question", questions())
def test_every_figure_is_reproduced_to_its_printed_digits(question: str) -> None:
    """From inputs that stand beside it; rounded, or cut where that is said."""
    for quote in quotes_of(question):
        value = compute(quote.reproduced.formula, quote.reproduced.inputs).value
        last = Decimal(1).scaleb(int(Decimal(quote.printed).as_tuple().exponent))
        off = Decimal(repr(float(value))) - Decimal(quote.printed)
        low, high = {"rounded": (-last / 2, last / 2), "cut": (Decimal(0), last)}[quote.agreement]
        assert low <= off <= high, quote.about


def test_no_figure_is_its_own_input() -> None:
    """A reproduction that starts from its result shows nothing."""
    for question in questions():
        for quote in quotes_of(question):
            quantities = {*quote.reproduced.inputs.values()}
            assert float(quote.printed) not in quantities, quote.about
            assert quote.printed not in quote.reproduced.formula.split(), quote.about


@pytest.mark.parametrize(("question", "printed", "where", "digits"), HIDDEN)
def test_what_makes_the_difference_is_worked_out(
    question: str, printed: str, where: str, digits: str
) -> None:
    """Exact inputs, and the counts and roundings that the figures hide."""
    quote = next(q for q in quotes_of(question) if q.printed == printed)
    found = {"from": quote.reproduced.value, "exact": quote.exact.value}
    found |= {aside.says: aside.computed.value for aside in quote.asides}
    assert has_digits(float(found[where]), digits)


@pytest.mark.parametrize("question", questions())
def test_a_figure_that_is_not_exact_says_why(question: str) -> None:
    """Unless it follows from one above, whose reason it shares."""
    for quote in quotes_of(question):
        follows = set(quote.reproduced.inputs) & {"P", "b_all_6F", "X_opt"}
        exact = quote.exact.value == pytest.approx(quote.reproduced.value)
        assert exact or quote.why or follows, quote.about


@pytest.mark.parametrize(
    ("printed", "value", "said"),
    [("44", 44.32, "rounded"), ("3.65e25", 3.645e25, "rounded"), ("20.9e12", 20.97e12, "cut"),
     ("58", 58.51, "cut"), ("58", 73.4, "differs"), ("1156", 1155.4, "differs")],
)  # fmt: skip
def test_rounded_cut_and_wrong_are_told_apart(printed: str, value: float, said: str) -> None:
    """To the last printed digit; a tie rounds up."""
    assert _agreement(printed, value) == said


def quoted_titles(spec: Spec) -> list[str]:
    return [entry.title for entry in explain(spec).quotes]


def test_a_question_is_quoted_for_its_own_slices() -> None:
    """The one-pod question also on four, which go on from it; 405B on H100 for any 405B."""
    titles = {key: question.title for key, question in questions().items()}
    assert [entry.title for entry in explanation_of("70b-one-pod").quotes] == [
        titles["70b-one-pod"]
    ]
    assert [entry.title for entry in explanation_of("70b-four-pods").quotes] == [
        titles["70b-one-pod"],
        titles["70b-four-pods"],
    ]
    assert [entry.title for entry in explanation_of("405b-eight-pods").quotes] == [
        titles["405b-eight-pods"],
        titles["405b-h100"],
    ]
    assert quoted_titles(spec_of(catalog.model("llama3-405b"), topology="16x16x24")) == [
        titles["405b-h100"]
    ]


def test_nothing_is_quoted_where_nothing_was_published() -> None:
    """Another model, another number of pods, another slice, another chip."""
    assert explanation_of("8b-v5e").quotes == explanation_of("70b-tpu7x").quotes == ()
    assert quoted_titles(spec_of(pods=2)) == quoted_titles(spec_of(topology="16x16x24")) == []
    assert "Published:" not in explain_screen.explain_screen(
        explanation_of("8b-v5e"), "orch plan x.yaml"
    )


def test_a_model_is_known_by_its_shape() -> None:
    """Written out under another name it is still Llama 3 70B; with another width it is not."""
    own = replace(catalog.model("llama3-70b"), name="mine", norm_epsilon=1e-6)
    assert len(quoted_titles(spec_of(own, pods=1))) == 1
    assert quoted_titles(spec_of(replace(own, d_ff=28_672 * 2), pods=1)) == []
