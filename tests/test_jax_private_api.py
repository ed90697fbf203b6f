"""Private parts of JAX are in one file of each package; tests of trainers and proofs use them."""

import re

from tests.conftest import ROOT


def test_no_other_file_uses_private_parts() -> None:
    folders = ("orchestrator", "trainers", "tests")
    files = {path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    private = re.compile(
        r"^ *(from|import) jax(lib)?(\._src|\.interpreters| import _)", re.MULTILINE
    )
    users = {path for path in files if private.search(path.read_text("utf-8"))}
    assert {str(path.relative_to(ROOT)) for path in users} == {
        "orchestrator/proving/jax_private_api.py",
        "trainers/jax_private_api.py",
        "tests/one_of_two.py",  # watches what is compiled
    }
