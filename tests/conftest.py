"""For all tests: a known environment, the `orch` command, golden texts, the order of files."""

import gc
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from orchestrator.cli import main
from orchestrator.storage import bucket as buckets
from orchestrator.storage import copies
from orchestrator.storage.bucket import Bucket
from tests.bucket_server import BucketServer

ROOT = Path(__file__).parent.parent
# The shipped specs that say what to train; those of serving have tests of their own.
TRAINING_SPECS = [
    path for path in sorted((ROOT / "specs").glob("*.yaml")) if not path.stem.startswith("serve_")
]
GOLDEN = Path(__file__).parent / "golden"

# A person's shell may name real clusters and servers. No test may reach them.
for name in list(os.environ):
    if name.startswith(("MEGASCALE_", "MLFLOW_", "ORCH_", "RAY_", "TPU_")):
        del os.environ[name]

# numpy's threads wait for each other in loops: where others compute, too, a product of small
# matrices takes fifteen times as much of the processor. numpy reads this once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same program, less optimized for the CPU: it compiles in a third of the time.
QUICK_XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
# The largest mesh of a test has sixteen emulated devices. JAX reads this once, when it is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=16 {QUICK_XLA_FLAGS}")

# A suite in the background ignores Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The longest files come first, so that all workers end at about the same time.
LONGEST = (
    "test_trainer_numbers",
    "test_offers",
    "test_working_directory",
    "test_tracking_faults",
    "test_hosts_backend",
    "test_trainer_program",
    "test_nearest_specs",
    "test_score",
    "test_prove_compiler",
    "test_trainer_pipeline",
    "test_trainer_mixture",
    "test_documents",
    "test_own_trainer",
    "test_prove_gpu",
    "test_launch",
    "test_journal_kills",
    "test_network",
    "test_multihost",
    "test_checkpoint",
    "test_plan_search",
    "test_ui",
    "test_wheel",
    "test_tracking_commands",
    "test_driver",
    "test_moved_runs",
    "test_loop",
    "test_calibrate",
    "test_trainer_contract",
    "test_plan_speed",
    "test_disk_faults",
    "test_named_cluster",
    "test_trainer_serving",
    "test_export",
    "test_fence",
    "test_interrupts",
    "test_rehearsal",
    "test_trainer_parts",
    "test_journal_damage",
    "test_doctor",
    "test_boundary",
    "test_train_command",
    "test_render",
    "test_journal_drivers",
    "test_explain_screen",
    "test_mutants",
)

SHIPPED_PLANS = "SHIPPED_PLANS"  # the variable that names the folder of tests.shipped_plans

# A busy machine does not fail a test.
settings.register_profile("orch", deadline=None, print_blob=True)
settings.load_profile("orch")

Finished = subprocess.CompletedProcess[str]
RunOrch = Callable[..., Finished]
HoldGolden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one flag that rewrites golden texts."""
    parser.addoption(
        "--refresh-golden",
        action="store_true",
        help="rewrite tests/golden/ with the current output; review the diff",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker rewrite the assertions of a part of the files first, so that in a fresh clone
    the others find them as bytecode: all take ten seconds.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1 or sys.dont_write_bytecode or session.config.args != ["tests"]:
        return
    mine = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for path in sorted(Path(__file__).parent.glob("test_*.py"))[mine::workers]:
        with suppress(Exception):  # what is wrong with a file is told when it is collected
            import_module(f"tests.{path.stem}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; within a file, and after them, the order stays."""
    rank = {name: position for position, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish() -> None:
    """Leave what was imported out of every search for garbage, which took a twelfth of the time."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use an empty cache: plans show the proofs that a person's cache holds."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def shared_by_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all workers of this session find the plans and programs that one of them has made."""
    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    (shared / "plans").mkdir(exist_ok=True)
    os.environ[SHIPPED_PLANS] = str(shared / "plans")
    if jax := sys.modules.get("jax"):  # a test imports it
        jax.config.update("jax_compilation_cache_dir", str(shared / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def orch(monkeypatch: pytest.MonkeyPatch) -> RunOrch:
    """Run an `orch` command in this process, from the project's root by default."""

    def run(*arguments: str, cwd: Path = ROOT) -> Finished:
        command = ["orch", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        status = 0
        with chdir(cwd), redirect_stdout(output), redirect_stderr(errors):
            try:
                main()
            except SystemExit as ending:
                status = int(ending.code or 0)
        return Finished(command, status, written(output), written(errors))

    return run


def written(stream: io.TextIOWrapper) -> str:
    """The text in a stream over memory."""
    stream.seek(0)
    return stream.read()


@pytest.fixture
def orch_process() -> RunOrch:
    """Run the installed `orch` command in a process of its own, for commands that start others."""

    def run(*arguments: str, cwd: Path = ROOT, timeout_s: float = 60) -> Finished:
        return subprocess.run(
            [Path(sys.executable).with_name("orch"), *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> HoldGolden:
    """Compare a text with tests/golden/NAME; --refresh-golden rewrites that file."""

    def hold(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--refresh-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden text {name}: make it with --refresh-golden"
        assert text == path.read_text(encoding="utf-8")

    return hold


@pytest.fixture
def bucket_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketServer]:
    """A server that both kinds of buckets lead to, with no copy of them here yet."""
    with BucketServer() as server:
        monkeypatch.setenv(buckets._GCS_ENDPOINT, server.url)
        monkeypatch.setenv(buckets._S3_ENDPOINT, server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("ORCH_BUCKETS", str(tmp_path / "copies"))
        monkeypatch.setattr(copies, "_FRESH_S", 0.0)
        monkeypatch.setattr(buckets, "_WAITS_S", (0.01,) * 6)
        buckets.bucket.cache_clear()
        yield server
        buckets.bucket.cache_clear()


@pytest.fixture(params=["gs", "s3"])
def bucket(request: pytest.FixtureRequest, bucket_server: BucketServer) -> Bucket:
    """A bucket of Google Cloud Storage, and one of S3."""
    assert bucket_server.url
    return buckets.bucket(request.param, "bucket")


@pytest.fixture
def one_bucket(bucket_server: BucketServer) -> Bucket:
    """A bucket of Google Cloud Storage."""
    assert bucket_server.url
    return buckets.bucket("gs", "bucket")
