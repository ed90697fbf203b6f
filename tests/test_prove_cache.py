"""The proof cache: a result is found again for the same program alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.plan.planner import make_plan, plan_digest
from orchestrator.prove import import_closure, proof_cache
from orchestrator.prove.compiled import CacheEntry
from orchestrator.prove.verdict import cached, prove
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
    proof_cache.save(made[1], made[2])
    return made


def test_a_result_is_found_again(kept: Kept, tmp_path: Path) -> None:
    """Whole, with its age, below XDG_CACHE_HOME, and nothing unfinished beside it."""
    _, plan, result = kept
    found = proof_cache.find(plan)
    assert found is not None
    assert found.entry == result
    assert 0 <= found.age_s < 60
    [path] = (tmp_path / "orch" / "proofs").iterdir()
    assert path.suffix == ".json"


def test_a_proof_from_the_cache_says_so(kept: Kept) -> None:
    """Its age is known; nothing is compiled, with or without a compiler."""
    asked, plan, _ = kept
    proven = prove(asked, plan)
    assert proven.age_s is not None
    assert proven.proof.agrees
    assert cached(plan) is not None


def test_another_program_is_another_result(kept: Kept) -> None:
    """Another plan, another trainer."""
    _, plan, _ = kept
    other = replace(plan, remat="none", digest="")
    assert proof_cache.find(replace(other, digest=plan_digest(other))) is None
    assert proof_cache.find(replace(plan, trainer="another")) is None


def test_another_compiler_is_another_result(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version of what compiles."""
    monkeypatch.setattr(proof_cache, "versions", lambda: {"jax": "99"})
    assert proof_cache.find(kept[1]) is None


@pytest.fixture(name="package")
def package_of_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trainer `mine` that imports in every way there is."""
    folder = tmp_path / "site" / "mine"
    texts = {
        "__init__": "",
        "trainer": "import mine.plainly\nfrom mine import by_name\nfrom .relative import value\n"
        "from beside import other\nimport json, jax\n"
        "from orchestrator.network import rematerialization\n",
        "plainly": "",
        "by_name": "def late():\n    from mine import lazily\n",
        "lazily": "",
        "relative": "value = 1\n",
        "unused": "",
    }
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    (folder.parent / "beside.py").write_text("other = 1\n")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


@pytest.mark.usefixtures("package")
def test_sources_are_all_that_a_trainer_imports() -> None:
    """However it imports them; what is installed is known by its version."""
    names = import_closure.digests(["mine.trainer"]).keys()
    own = {name for name in names if name.startswith("mine")}
    assert own == {f"mine.{n}" for n in ("trainer", "plainly", "by_name", "lazily", "relative")}
    assert {"beside", "orchestrator.network.rematerialization"} <= names
    assert not {"jax", "json", "orchestrator.plan.planner"} & names


@pytest.mark.parametrize("name", ["by_name", "lazily", "relative"])
def test_a_changed_source_is_another_result(kept: Kept, package: Path, name: str) -> None:
    """Found no more once a module of the trainer changes, found again once it is as before."""
    _, plan, entry = kept
    plan = replace(plan, trainer="mine.trainer")
    compiled = replace(entry.compiled, sources=import_closure.digests(["mine.trainer"]))
    proof_cache.save(plan, replace(entry, compiled=compiled))
    assert proof_cache.find(plan) is not None
    text = (package / f"{name}.py").read_text()
    (package / f"{name}.py").write_text(f"{text}# changed\n")
    assert proof_cache.find(plan) is None
    (package / f"{name}.py").unlink()
    assert proof_cache.find(plan) is None
    (package / f"{name}.py").write_text(text)
    assert proof_cache.find(plan) is not None


def test_the_forecast_is_no_source_of_llama() -> None:
    """A mended formula of time or memory compiles nothing anew; the trainer's constants do."""
    names = import_closure.digests(["trainers.llama"]).keys()
    assert "trainers.llama.step" in names
    assert "orchestrator.types.plan" in names
    assert not {"orchestrator.plan.time", "orchestrator.plan.memory"} & names


def test_the_forecast_of_the_day_is_compared(kept: Kept) -> None:
    """A mended formula changes the verdict, not what was compiled."""
    _, plan, _ = kept
    forecast = replace(plan.forecast, memory_bytes_per_device=1e12)
    proven = cached(replace(plan, forecast=forecast))
    assert proven is not None
    assert not proven.proof.agrees


@pytest.mark.parametrize("text", ["", "{", "[]", '{"compiled": {}}', "\x00\xff"])
def test_a_damaged_file_is_as_good_as_none(kept: Kept, text: str, tmp_path: Path) -> None:
    """It is neither an error nor believed, and the next result replaces it."""
    [path] = (tmp_path / "orch" / "proofs").iterdir()
    path.write_text(text, encoding="latin-1")
    assert proof_cache.find(kept[1]) is None
    proof_cache.save(kept[1], kept[2])
    assert proof_cache.find(kept[1]) is not None


def test_many_may_write_the_same_at_once(kept: Kept) -> None:
    """Every reader finds a whole result."""
    _, plan, result = kept

    def write_and_read(_: int) -> bool:
        proof_cache.save(plan, result)
        return proof_cache.find(plan) is not None

    with ThreadPoolExecutor(8) as several:
        assert all(several.map(write_and_read, range(64)))


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
    proof_cache.save(plan, CacheEntry(compiled=as_forecast(plan)))
    proof = orch("prove", str(spec))
    assert proof.returncode == 0, proof.stderr
    assert "read from the cache" in proof.stdout
    assert proof.stderr == ""
    as_json = json.loads(orch("prove", str(spec), "--json").stdout)
    assert as_json["plan_digest"] == plan.digest
    assert as_json["fits"] is as_json["only_gradients_cross_pods"] is True
    assert "the forecast agrees" in orch("plan", str(spec)).stdout
    assert "compiled" not in orch("plan", str(spec), "--json").stdout
