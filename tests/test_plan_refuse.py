"""What a person reads when no plan serves the spec: the arithmetic, and what would do instead."""

import re
from dataclasses import replace
from functools import partial

import pytest

from orchestrator.errors import SpecError
from orchestrator.plan.infeasible import factored
from orchestrator.plan.planner import make_plan
from orchestrator.types.spec import MeshRequest, Spec
from tests.asks import TINY, spec_of


def refusal_of(spec: Spec) -> str:
    with pytest.raises(SpecError) as caught:
        make_plan(spec)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_books_wish_is_refused_with_its_arithmetic() -> None:
    """1,024 sequences do not divide 4 x 8,960 chips; 980, 1,120 and a smaller slice do."""
    text = refusal_of(spec_of(tolerance=0.0))
    assert "8,960 devices a pod = 2^8 x 5 x 7" in text
    assert re.search(r"heads +64 = 2\^6", text)
    assert "a multiple of 140" in text
    assert "--set experiment.batch.sequences=980  (-4.3%" in text
    assert "--set experiment.batch.sequences=1120  (+9.4%" in text
    assert "--set resources.topology=16x16x16" in text


@pytest.mark.parametrize("sequences", [980, 1120])
def test_what_a_refusal_offers_can_be_planned(sequences: int) -> None:
    """The batches that it names are realizable as they stand."""
    plan = make_plan(spec_of(sequences=sequences, tolerance=0.0))
    assert plan.batch.sequences == sequences


def test_the_offered_slice_can_be_planned() -> None:
    """So is the topology."""
    plan = make_plan(spec_of(tolerance=0.0, topology="16x16x16"))
    assert plan.batch.sequences == 1024


def test_a_mesh_that_breaks_a_rule_is_named_with_it() -> None:
    """tensor 6 on 8 heads: which dimension it does not divide, and a mesh that works."""
    wish = MeshRequest(tensor=16, sequence=1)
    text = refusal_of(
        spec_of(TINY, sequences=16, length=64, chip="v5e", topology="4x4", pods=1, mesh=wish)
    )
    assert "heads 8 is not divided by tensor" in text
    assert "--set resources.mesh=" in text


def test_the_sizes_next_to_a_wish_are_offered_first() -> None:
    """Tensor 4 and 2 are nearest to 3 by ratio, each with what its plan expects; then auto."""
    asked = partial(spec_of, topology="8x8x16", pods=1)
    text = refusal_of(asked(mesh=MeshRequest(tensor=3)))
    _, _, offers = text.partition("closest specs that work:\n")
    four, two, free = (line.strip() for line in offers.splitlines())
    for ways, line in ((4, four), (2, two)):
        mfu = make_plan(asked(mesh=MeshRequest(tensor=ways))).forecast.mfu.expected
        assert line == f"--set resources.mesh='{{tensor: {ways}}}'  (MFU {mfu:.1%} expected)"
    assert free.startswith("--set resources.mesh=auto  (mesh data 1, fsdp 1024, ")


def test_a_faster_batch_near_the_asked_one_is_offered_too() -> None:
    """1,017 and 1,026 are next to 1,024 on three slices; 1,008 is farther, and faster."""
    asked = partial(spec_of, topology="16x16x24", pods=3, tolerance=0.0)
    offers = re.findall(
        r"batch.sequences=(\d+)  \(.*; MFU ([\d.]+)% expected; mesh", refusal_of(asked())
    )
    rates = {int(sequences): float(mfu) for sequences, mfu in offers}
    assert list(rates) == [1008, 1017, 1026]
    assert max(rates.values()) == rates[1008]
    for sequences, mfu in rates.items():
        expected = make_plan(asked(sequences=sequences)).forecast.mfu.expected
        assert f"{expected:.1%}" == f"{mfu}%"


def test_where_no_run_tells_an_offer_has_the_bound() -> None:
    """Of h100 no run was learned from: what is offered reaches so much at most."""
    spec = spec_of(
        "llama3-8b", sequences=64, chip="h100", topology="8", pods=1, mesh=MeshRequest(tensor=3)
    )
    assert re.search(r"'{tensor: 4}'  \(MFU [\d.]+% at most\)", refusal_of(spec))


def test_a_mesh_of_another_size_than_the_pod_is_counted_out() -> None:
    """The product of the axes against the devices there are."""
    wish = MeshRequest(data=2, fsdp=2, sequence=1, tensor=2)
    text = refusal_of(
        spec_of(TINY, sequences=16, length=64, chip="v5e", topology="4x4", pods=1, mesh=wish)
    )
    assert "8 devices, against 16 in a pod of 4x4" in text


def test_a_model_that_does_not_fit_says_what_it_needs() -> None:
    """405B on sixteen v5e chips: the least any plan needs, and what a device has."""
    text = refusal_of(
        spec_of("llama3-405b", sequences=16, chip="v5e", topology="4x4", pods=1, length=4096)
    )
    assert "GiB a device, of 15.75 GiB that v5e allows" in text
    assert "times the chips" in text


def test_a_policy_that_does_not_fit_is_offered_full() -> None:
    """When only the asked policy is in the way, the one that keeps least is named."""
    spec = spec_of(
        "llama3-8b", sequences=16, length=16384, chip="v5e", topology="4x4", pods=1,
        mesh=MeshRequest(fsdp=16),
    )  # fmt: skip
    asked = replace(spec, experiment=replace(spec.experiment, remat="none"))
    assert "--set experiment.remat=full" in refusal_of(asked)


@pytest.mark.parametrize(
    ("number", "text"), [(8960, "2^8 x 5 x 7"), (1, "1"), (13, "13"), (128256, "2^8 x 3 x 167")]
)
def test_numbers_are_factored_as_people_write_it(number: int, text: str) -> None:
    """Primes with their powers."""
    assert factored(number) == text
