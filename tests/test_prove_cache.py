"""The prove room: what was compiled is kept, and found again for the same program alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.plan.planner import make_plan, plan_digest
from orchestrator.prove import known, proof_cache, prove
from orchestrator.prove.compiled import CacheEntry
from orchestrator.spec import load
from orchestrator.types.plan import Plan
from orchestrator.types.spec import Spec
from tests.conftest import RunOrch
from tests.proofs import as_forecast, recorded

Kept = tuple[Spec, Plan, CacheEntry]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """A result in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = recorded()
    proof_cache.keep(made[1], "llama", made[2])
    return made


def test_a_result_is_found_again(kept: Kept, tmp_path: Path) -> None:
    """Whole, with its age, below XDG_CACHE_HOME, and nothing unfinished beside it."""
    _, plan, result = kept
    found = proof_cache.find(plan, "llama")
    assert found is not None
    assert found.recorded == result
    assert 0 <= found.age_s < 60
    [path] = (tmp_path / "orch" / "proofs").iterdir()
    assert path.suffix == ".json"


def test_a_proof_from_the_cache_says_so(kept: Kept) -> None:
    """Its age is known; nothing is compiled, with or without a compiler."""
    asked, plan, _ = kept
    proven = prove(asked, plan)
    assert proven.age_s is not None
    assert proven.proof.agrees
    assert known(asked, plan) is not None


def test_another_program_is_another_result(kept: Kept) -> None:
    """Another plan, another trainer."""
    _, plan, _ = kept
    other = replace(plan, remat="none", digest="")
    assert proof_cache.find(replace(other, digest=plan_digest(other)), "llama") is None
    assert proof_cache.find(plan, "another") is None


@pytest.mark.parametrize("what", ["sources_digest", "versions"])
def test_another_trainer_or_compiler_is_another_result(
    kept: Kept, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed source, or a new version of what compiles."""
    changed = {"sources_digest": "f" * 64, "versions": {"jax": "99"}}[what]
    monkeypatch.setattr(proof_cache, what, lambda: changed)
    assert proof_cache.find(kept[1], "llama") is None


def test_the_forecast_of_the_day_is_compared(kept: Kept) -> None:
    """A mended formula changes the verdict, not what was compiled."""
    asked, plan, _ = kept
    forecast = replace(plan.forecast, memory_bytes_per_device=1e12)
    proven = known(asked, replace(plan, forecast=forecast))
    assert proven is not None
    assert not proven.proof.agrees


@pytest.mark.parametrize("text", ["", "{", "[]", '{"compiled": {}}', "\x00\xff"])
def test_a_damaged_file_is_as_good_as_none(kept: Kept, text: str, tmp_path: Path) -> None:
    """It is neither an error nor believed, and the next result replaces it."""
    [path] = (tmp_path / "orch" / "proofs").iterdir()
    path.write_text(text, encoding="latin-1")
    assert proof_cache.find(kept[1], "llama") is None
    proof_cache.keep(kept[1], "llama", kept[2])
    assert proof_cache.find(kept[1], "llama") is not None


def test_many_may_write_the_same_at_once(kept: Kept) -> None:
    """Every reader finds a whole result."""
    _, plan, result = kept

    def write_and_read(_: int) -> bool:
        proof_cache.keep(plan, "llama", result)
        return proof_cache.find(plan, "llama") is not None

    with ThreadPoolExecutor(8) as several:
        assert all(several.map(write_and_read, range(64)))


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the specification of XDG_CACHE_HOME says."""
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert proof_cache.folder() == Path.home() / ".cache" / "orch" / "proofs"


def test_sources_decide_what_is_the_same_trainer() -> None:
    """Trainers, what they import here, and the reader; the Forecast's formulas are not in it."""
    imports = proof_cache._imports(
        "from orchestrator.network.mlp import mlp\nimport orchestrator.errors\nimport jax\n"
    )
    assert imports == ["orchestrator.network.mlp", "orchestrator.errors"]
    assert proof_cache.sources_digest() == proof_cache.sources_digest()


SPEC = """\
name: cached
experiment:
  model: llama3-8b
  tokens: 15T
  batch: {sequences: 64, length: 4096}
  remat: full
resources:
  chip: v5e
  topology: 8x8
  pods: 2
  mesh: {data: 2, fsdp: 2, sequence: 1, tensor: 16}
"""


def test_the_commands_use_what_was_kept(
    orch: RunOrch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prove` answers at once and says from where; `plan` shows it on its screen, not in JSON."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = tmp_path / "cached.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    plan = make_plan(load(spec, ()))
    proof_cache.keep(plan, "llama", CacheEntry(compiled=as_forecast(plan)))
    proof = orch("prove", str(spec))
    assert proof.returncode == 0, proof.stderr
    assert "from the cache, nothing was compiled" in proof.stdout
    assert proof.stderr == ""
    as_json = json.loads(orch("prove", str(spec), "--json").stdout)
    assert as_json["plan_digest"] == plan.digest
    assert as_json["fits"] is as_json["only_gradients_cross_pods"] is True
    assert "the forecast agrees" in orch("plan", str(spec)).stdout
    assert "compiled" not in orch("plan", str(spec), "--json").stdout
