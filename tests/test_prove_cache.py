"""The proof cache: a result is found again for the same program alone."""

import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from orchestrator.planning.planner import make_plan
from orchestrator.processes import write_whole
from orchestrator.proving import compiled, platforms, verdict
from orchestrator.proving.compare import proof_of
from orchestrator.proving.compiled import CacheEntry, _LoadedCode
from orchestrator.proving.verdict import cached, prove, save_program
from orchestrator.reading.load import load
from orchestrator.values import codec
from orchestrator.values.plan import Plan, plan_digest
from orchestrator.values.spec import Spec
from tests.conftest import ROOT, RunOrch
from tests.proofs import as_forecast, recorded

Kept = tuple[Spec, Plan, CacheEntry]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """A result in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = recorded()
    save_program(made[1], made[2])
    return made


def test_a_result_is_found_again(kept: Kept, tmp_path: Path) -> None:
    """Whole, with its age, below XDG_CACHE_HOME, and nothing unfinished beside it."""
    _, plan, result = kept
    found = cached(plan)
    assert found is not None
    assert found.proof == proof_of(plan, result.compiled)
    assert found.age_s is not None
    assert 0 <= found.age_s < 60
    [path] = (tmp_path / "orch" / "proofs").iterdir()
    assert path.suffix == ".json"
    assert codec.from_json(path.read_bytes(), CacheEntry) == result


def test_a_file_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_whole(tmp_path / "taken", b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


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
    assert cached(replace(other, digest=plan_digest(other))) is None
    assert cached(replace(plan, trainer="another")) is None


def test_another_compiler_is_another_result(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version of what compiles."""
    monkeypatch.setattr(verdict, "version", lambda _: "99")
    assert cached(kept[1]) is None


# --- what was loaded

TEXTS = {
    "mine/__init__.py": "",
    "mine/trainer.py": "import mine.plainly\nfrom mine import by_name\n"
    "from .relative import value\nfrom beside import other\nimport json, msgspec\n"
    "from orchestrator.network import rematerialization\n"
    "import importlib, pathlib\n"
    "importlib.import_module('mine.' + 'by_text')\n"
    "pathlib.Path(__file__).with_name('tiles.json').read_text()\n",
    "mine/plainly.py": "",
    "mine/by_name.py": "from mine import lazily\n",
    "mine/lazily.py": "",
    "mine/relative.py": "value = 1\n",
    "mine/by_text.py": "",
    "mine/tiles.json": "{}",
    "mine/unused.py": "",
    "mine/unused.json": "{}",
    "beside.py": "other = 1\n",
}
LOADS = """
import sys
from orchestrator.proving.compiled import loaded_code, opened_files
from orchestrator.values import codec
opened = opened_files()
__import__(sys.argv[1])
print(codec.to_json(loaded_code(sys.argv[1], opened)).decode())
"""


@pytest.fixture(name="site")
def folder_of_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trainer `mine.trainer` outside this project, which loads others in every way there is."""
    folder = tmp_path / "site"
    (folder / "mine").mkdir(parents=True)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(folder)
    return folder


def load_in_a_process(module: str, *folders: Path) -> _LoadedCode:
    """What a process that loads a trainer records."""
    done = subprocess.run(
        [sys.executable, "-c", LOADS, module],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, *folders]))},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return codec.from_json(done.stdout, _LoadedCode)


def test_everything_that_a_trainer_loads_counts(site: Path) -> None:
    """However it loads it; what is installed counts by its version, the rest not at all."""
    code = load_in_a_process("mine.trainer", site)
    used = {name for name in code.modules if name.startswith("mine")}
    parts = ("trainer", "plainly", "by_name", "lazily", "relative", "by_text")
    assert used == {"mine", *(f"mine.{part}" for part in parts)}
    assert {"beside", "orchestrator.network.rematerialization"} <= code.modules.keys()
    assert not {"json", "msgspec", "orchestrator.planning.planner"} & code.modules.keys()
    assert code.packages["msgspec"] == metadata.version("msgspec")
    assert code.packages["python"] == platform.python_version()
    assert list(code.data) == ["mine:tiles.json"]


EDITED = [name for name in TEXTS if "unused" not in name]


@pytest.mark.parametrize("name", EDITED)
def test_a_changed_file_is_another_result(kept: Kept, site: Path, name: str) -> None:
    """Not found once a file changes or is gone, found again once it is as before."""
    _, plan, entry = kept
    plan = replace(plan, trainer="mine.trainer")
    code = load_in_a_process("mine.trainer", site)
    save_program(plan, replace(entry, compiled=replace(entry.compiled, code=code)))
    assert cached(plan) is not None
    for unused in ("mine/unused.py", "mine/unused.json"):
        (site / unused).write_text("changed = 1\n")
    assert cached(plan) is not None
    (site / name).write_text(f"{TEXTS[name]} # changed\n")
    assert cached(plan) is None
    (site / name).unlink()
    assert cached(plan) is None
    (site / name).write_text(TEXTS[name])
    assert cached(plan) is not None


def test_a_file_that_is_edited_while_it_is_compiled_is_never_current(site: Path) -> None:
    """Nobody knows which text was loaded."""
    in_an_hour = time.time() + 3600
    os.utime(site / "mine" / "lazily.py", (in_an_hour, in_an_hour))
    code = load_in_a_process("mine.trainer", site)
    assert code.modules["mine.lazily"] == ""
    assert code.modules["mine.plainly"] != ""
    assert not code.is_current()


def test_a_file_in_the_place_of_another_is_another_result(kept: Kept, site: Path) -> None:
    """A package hides the module of its name."""
    _, plan, entry = kept
    plan = replace(plan, trainer="mine.trainer")
    code = load_in_a_process("mine.trainer", site)
    save_program(plan, replace(entry, compiled=replace(entry.compiled, code=code)))
    (site / "mine" / "plainly").mkdir()
    (site / "mine" / "plainly" / "__init__.py").write_text("other = 1\n")
    assert cached(plan) is None


def test_another_version_of_a_loaded_package_is_another_result(
    kept: Kept, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that the trainer alone uses too."""
    _, plan, entry = kept
    plan = replace(plan, trainer="mine.trainer")
    code = load_in_a_process("mine.trainer", site)
    save_program(plan, replace(entry, compiled=replace(entry.compiled, code=code)))
    monkeypatch.setattr(compiled, "version", lambda package: package)
    assert cached(plan) is None


def test_the_policies_are_code_of_llama_and_the_forecast_is_not() -> None:
    """A mended formula of time or memory compiles nothing anew; another policy does."""
    modules = load_in_a_process("trainers.llama").modules
    assert {"trainers.llama.step", "orchestrator.values.plan"} <= modules.keys()
    assert "orchestrator.network.rematerialization" in modules
    assert not {"orchestrator.planning.time", "orchestrator.planning.memory"} & modules.keys()


def test_other_names_of_the_compiler_are_another_result(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chip's file names its topology; the plan's digest does not cover a chip of the catalog."""
    other = replace(platforms.platform_of(kept[1]), target=lambda _: ("v6e:8x8", {}))
    monkeypatch.setattr(verdict, "platform_of", lambda _: other)
    assert cached(kept[1]) is None


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
    assert cached(kept[1]) is None
    save_program(kept[1], kept[2])
    assert cached(kept[1]) is not None


def test_many_may_write_the_same_at_once(kept: Kept) -> None:
    """Every reader finds a whole result."""
    _, plan, result = kept

    def write_and_read(_: int) -> bool:
        save_program(plan, result)
        return cached(plan) is not None

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
    save_program(plan, CacheEntry(compiled=as_forecast(plan)))
    proof = orch("prove", str(spec))
    assert proof.returncode == 0, proof.stderr
    assert "read from the cache" in proof.stdout
    assert proof.stderr == ""
    as_json = json.loads(orch("prove", str(spec), "--json").stdout)
    assert as_json["plan_digest"] == plan.digest
    assert as_json["fits"] is as_json["only_gradients_cross_pods"] is True
    assert "the forecast agrees" in " ".join(orch("plan", str(spec)).stdout.split())
    assert "compiled" not in orch("plan", str(spec), "--json").stdout
