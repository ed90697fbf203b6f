"""Verdicts, suggestions, and the commands that end with them."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import util
from pathlib import Path

import pytest
import yaml

from orchestrator import formatting
from orchestrator.errors import ProofUnavailable
from orchestrator.planning.planner import make_plan
from orchestrator.proving import verdict as suggestions
from orchestrator.proving.compiled import CacheEntry
from orchestrator.proving.verdict import (
    ProofResult,
    cached,
    least_recompute,
    prove,
    save_program,
)
from orchestrator.reading.load import load
from orchestrator.show import proof_screen as render
from orchestrator.values.plan import Plan
from orchestrator.values.spec import MeshRequest, Spec, TensorTreatments
from tests.conftest import HoldGolden, RunOrch
from tests.example_specs import spec_of
from tests.proofs import as_forecast, recorded

SAID = "Ran out of memory on HBM, the total memory required (21.4G) exceeds available HBM (15.75G)."
Keep = Callable[[Spec, Plan, CacheEntry], ProofResult]


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keep:
    """Put a result into a cache of its own and prove its plan from there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def kept(asked: Spec, plan: Plan, result: CacheEntry) -> ProofResult:
        save_program(plan, result)
        return prove(asked, plan)

    return kept


def test_a_proof_fits_one_screen(keep: Keep, golden: HoldGolden) -> None:
    """Memory, payload, crossings and FLOPs beside the forecast, the schedule, the verdict."""
    asked, plan, result = recorded()
    proven = keep(asked, plan, result)
    text = render.proof_screen(plan, proven.proof, 7_300.0, "orch submit x.yaml")
    assert len(text.splitlines()) <= 76
    fits, forecast, pods = text.splitlines()[2:5]
    assert fits.startswith("  fits      yes: ")
    assert forecast.startswith("  forecast  agrees: peak 1.000")
    assert pods == "  pods      as planned"
    brief = render.proof_screen(plan, proven.proof, None, "x", "brief").splitlines()
    assert brief[2:5] == [fits, forecast, pods]
    assert len(brief) <= 9
    golden("proof_8b_2pod.txt", text)


def test_a_refusal_says_what_is_needed_and_what_would_do(keep: Keep, golden: HoldGolden) -> None:
    """The compiler's sentence, how much is missing, the largest buffers, the nearest that fits."""
    asked, plan, result = recorded(SAID, peak=23e9)
    proven = keep(asked, plan, result)
    refusal = proven.proof.refusal
    assert refusal is not None
    assert not proven.proof.fits
    assert not proven.proof.passes
    assert refusal.needed_bytes == proven.proof.peak_hbm_bytes_per_device == 23e9
    assert proven.proof.margin_bytes < 0
    golden("proof_refused.txt", render.proof_screen(plan, proven.proof, None, "orch plan x.yaml"))


@pytest.mark.parametrize(
    ("refusal", "peak", "says"),
    [
        (None, 8e9, "fits with"),
        (None, 25e9, "the compiler accepts it with 7.53 GiB (47.8 %) more than the limit"),
        (SAID, 25e9, "does not fit: 7.53 GiB too much"),
        (SAID, 8e9, "does not fit, though its buffers leave"),
    ],
)
def test_the_verdict_has_the_sign_of_the_margin(
    keep: Keep, refusal: str | None, peak: float, says: str
) -> None:
    """Nothing is to spare where the margin is negative, and nothing too much where it is not."""
    asked, plan, result = recorded(refusal, peak=peak)
    proof = keep(asked, plan, result).proof
    assert proof.margin_bytes == plan.forecast.hbm_bytes_per_device - peak
    assert says in render._verdict(proof)


def test_the_nearest_plans_fit_with_the_error_that_was_seen() -> None:
    """What is proposed leads to a plan whose forecast leaves room for what was missed."""
    asked, plan, _ = recorded()
    missed = 8e9
    proposed = suggestions._plans_that_fit(asked, plan, missed)
    assert proposed
    for change in proposed:
        settings = dict(override.split("=") for override in change.overrides)
        mesh = {k.rsplit(".", 1)[1]: int(v) for k, v in settings.items() if ".mesh." in k}
        remat = yaml.safe_load(settings["experiment.remat"])
        chosen = TensorTreatments(**remat) if isinstance(remat, dict) else remat
        experiment = replace(asked.experiment, remat=chosen)
        resources = replace(asked.resources, mesh=replace(asked.resources.mesh, **mesh))
        other = make_plan(replace(asked, experiment=experiment, resources=resources))
        peak = other.forecast.memory_bytes_per_device + missed
        assert peak == change.peak_hbm_bytes_per_device <= plan.forecast.hbm_bytes_per_device
        assert change.step_s == other.forecast.step_s


def test_nothing_is_proposed_where_nothing_fits() -> None:
    """An error as large as the memory leaves no plan."""
    asked, plan, _ = recorded()
    assert suggestions._plans_that_fit(asked, plan, plan.forecast.hbm_bytes_per_device) == ()


def test_without_libtpu_there_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started; the error says where the compiler exists and how to do without."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    asked, plan, _ = recorded()
    with pytest.raises(ProofUnavailable, match="libtpu, the TPU compiler, is not installed"):
        prove(asked, plan)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s ago"),
        (59, "59 s ago"),
        (3_599, "59 min ago"),
        (7_300, "2 h ago"),
        (1e6, "11 days ago"),
    ],
)
def test_the_age_of_a_proof_is_one_whole_unit(seconds: float, text: str) -> None:
    """The largest that it fills."""
    assert formatting.ago(seconds) == text


def small() -> Spec:
    """A plan that has room for less recompute, on one pod."""
    return spec_of(
        "llama3-8b", sequences=64, chip="v5p", topology="4x4x4", pods=1, remat="full",
        mesh=MeshRequest(data=1, fsdp=64, sequence=1, tensor=1),
    )  # fmt: skip


def test_room_for_less_recompute_is_a_hint(keep: Keep) -> None:
    """The policy that repeats least and still fits, corrected by what the Forecast missed."""
    asked = small()
    plan = make_plan(asked)
    result = CacheEntry(compiled=as_forecast(plan))
    [hint] = keep(asked, plan, result).proof.hints
    assert hint.overrides == ("experiment.remat=none",)
    others = suggestions._less_recompute(asked, plan)
    peaks = {other.remat: other.forecast.memory_bytes_per_device for other in others}
    assert next(iter(peaks)) == "none"
    # The program needs so much more than forecast that keeping everything would not fit.
    missed = plan.forecast.hbm_bytes_per_device - peaks["none"] + 1e9
    peak = plan.forecast.memory_bytes_per_device + missed
    memory = replace(result.compiled.memory, peak=peak)
    worse = CacheEntry(compiled=replace(result.compiled, memory=memory))
    [hint] = keep(asked, plan, worse).proof.hints
    [override] = hint.overrides
    assert override.startswith("experiment.remat=keep_")


def test_a_search_stops_at_the_least_recompute_that_fits(keep: Keep) -> None:
    """The least first; those that the compiler refuses are shown too."""
    asked = small()
    plan = make_plan(asked)
    first, second, *_ = suggestions._less_recompute(asked, plan)
    keep(asked, first, CacheEntry(compiled=as_forecast(first), refusal=SAID))
    keep(asked, second, CacheEntry(compiled=as_forecast(second)))
    stages: list[str] = []
    tried = least_recompute(asked, plan, stages.append)
    assert [trial.plan.remat for trial in tried] == [first.remat, second.remat]
    assert [trial.proof.passes for trial in tried] == [False, True]
    assert stages == [f"remat {first.remat}", f"remat {second.remat}"]
    *_, table = render.proof_screens(tried[:1], tried, "orch submit")
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["fit", "fits"]


SPEC = """\
name: judged
experiment:
  model: llama3-8b
  tokens: 15T
  batch: {sequences: 64, length: 4096}
  remat: full
resources:
  chip: v5p
  topology: 4x4x4
  pods: 1
  mesh: {data: 1, fsdp: 64, sequence: 1, tensor: 1}
"""


def test_the_command_ends_with_the_verdict(keep: Keep, orch: RunOrch, tmp_path: Path) -> None:
    """Status 0 when it fits, 3 when it does not, with the same text for people and as JSON."""
    spec = tmp_path / "judged.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    asked = load(spec, ())
    plan = make_plan(asked)
    keep(asked, plan, CacheEntry(compiled=as_forecast(plan)))
    fits = orch("prove", str(spec))
    assert fits.returncode == 0
    *_, verdict, following = fits.stdout.splitlines()
    assert verdict.startswith("Proof: fits with")
    assert following == f"Next: orch submit {spec}"
    keep(asked, plan, CacheEntry(compiled=as_forecast(plan), refusal=SAID))
    refused = orch("prove", str(spec), "--json")
    assert refused.returncode == 3
    assert json.loads(refused.stdout)["refusal"]["message"] == SAID


def test_submit_proves_first(keep: Keep, orch: RunOrch, tmp_path: Path) -> None:
    """A plan that does not fit goes no further."""
    spec = tmp_path / "judged.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    asked = load(spec, ())
    plan = make_plan(asked)
    keep(asked, plan, CacheEntry(compiled=as_forecast(plan), refusal=SAID))
    assert cached(plan) is not None
    stopped = orch("submit", str(spec))
    assert stopped.returncode == 3
    assert "Proof: does not fit" in stopped.stdout
