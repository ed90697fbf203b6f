"""What every test stands on: a known environment, the `orch` command, golden texts."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"

# What a person's shell may hold for real clusters and servers, and no test may reach.
for name in list(os.environ):
    if name.startswith(("MEGASCALE_", "MLFLOW_", "ORCH_", "RAY_", "TPU_")):
        del os.environ[name]

# Sixteen emulated devices: the most that a test's mesh needs. Read once, when jax is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=16")

# Other work on the machine is no reason to fail.
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
        help="rewrite tests/golden/ with what the program says now; review the diff",
    )


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep out the proofs that a person has in their cache: plans would show them."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def orch() -> RunOrch:
    """Run the installed `orch` command from the project's root; its output comes back as text."""

    def run(
        *arguments: str, cwd: Path = ROOT, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
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
    """Hold a text against tests/golden/NAME, or rewrite that file under --refresh-golden."""

    def hold(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--refresh-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden text {name}: make it with --refresh-golden"
        assert text == path.read_text(encoding="utf-8")

    return hold
