"""A published run is priced with the attention, the sharding and the software that it had."""

import pytest

from orchestrator import catalog
from orchestrator.catalog.published import OTHER, REFERENCE
from orchestrator.evidence.score.published_runs import run_of
from orchestrator.evidence.score.run_work import _SCORE_BYTES
from orchestrator.evidence.score.samples import Sample, _as_run, _sample_of
from orchestrator.planning.time import device_peak
from tests.score_rows import LLAMA


def seconds(sample: Sample, kind: str) -> float:
    return float(sum(line.value for line in sample.lines if line.kind == kind))


def test_without_a_kernel_scores_go_through_hbm() -> None:
    """The square of scores is matmuls; each score is moved as often as its operations need it."""
    kernel, none = (_sample_of(LLAMA | {"kernel": name}) for name in ("splash", "none"))
    [line] = [line for line in none.lines if line.name == "scores"]
    scores = 3 * 32 * 8192**2 * 32  # sequences of a chip, heads, length and layers
    assert line.inputs["bytes"] == pytest.approx(_SCORE_BYTES * scores)
    assert line.resource == "hbm"
    assert seconds(none, "attention") == seconds(none, "attention_recompute") == 0
    square = 4 * 8192**2 * 4096 * 32 * 3 / device_peak(none.layout)
    assert seconds(none, "matmul") - seconds(kernel, "matmul") == pytest.approx(4 * square)
    known = catalog.efficiency("v6e")
    assert known
    assert none.expected_s(known) > kernel.expected_s(known)


def test_kernels_differ_by_their_backward_pass_and_blocks() -> None:
    """One backward kernel has five matmuls for two, instead of seven; larger blocks waste more."""
    two, one = (
        _sample_of(LLAMA | {"kernel": name, "attention_block": "512"})
        for name in ("splash", "splash-fused")
    )
    assert seconds(one, "attention") / seconds(two, "attention") == pytest.approx(3.5 / 4.5)
    assert seconds(one, "attention_recompute") == seconds(two, "attention_recompute")
    wide = _sample_of(LLAMA | {"kernel": "splash", "attention_block": "2048"})
    wasted = (8192 + 2048) / (8192 + 512)
    assert seconds(wide, "attention") / seconds(two, "attention") == pytest.approx(wasted)


def test_the_older_kernel_is_slower_where_heads_are_narrow() -> None:
    """It takes as long for a score of a head of 256 as for one of 128."""
    known = catalog.efficiency("v6e")
    assert known
    narrow, wide = (
        run_of(LLAMA | {"kernel": "flash", "n_heads": heads, "head_dim": size, "params_b": ""})
        for heads, size in (("32", "128"), ("16", "256"))
    )
    assert _as_run(known, narrow).attention.value == known.flash_attention.value
    assert known.flash_attention.value < known.attention.value
    assert _as_run(known, wide).attention.value == 2 * known.flash_attention.value


def test_exchanges_that_a_compiler_makes_are_exposed() -> None:
    """MaxText asks for pieces that hide behind matmuls; other software waits for the whole."""
    known = catalog.efficiency("v6e")
    assert known
    half = LLAMA | {"ici_fsdp": "4", "ici_tp": "2"}
    pieces, whole = (run_of(half | {"software": name}) for name in (REFERENCE, "pytorch-xla"))
    assert _as_run(known, pieces).exposed_tensor == known.exposed_tensor
    assert _as_run(known, whole).exposed_tensor.value == 1


def test_software_adds_its_share() -> None:
    """That of its own runs; software without runs adds what the others add in the mean."""
    known = catalog.efficiency("v6e")
    assert known
    steps = {
        name: _sample_of(LLAMA | {"software": name}).expected_s(known)
        for name in (REFERENCE, "levanter", "mine")
    }
    for name, like in (("levanter", "levanter"), ("mine", OTHER)):
        longer = 1 / (1 - known.software[like].value)
        assert steps[name] == pytest.approx(steps[REFERENCE] * longer)
    whole = _sample_of(LLAMA | {"averages": "run"}).expected_s(known)
    averaged = steps[REFERENCE] + known.run_overhead_s.value
    assert whole == pytest.approx(averaged / (1 - known.run_share.value))
