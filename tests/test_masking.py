"""What leaves this machine with a run: the project's own files, without secrets."""

import io
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from orchestrator.launch import provenance
from orchestrator.launch.masking import masked

# Put together here, so that no scanner takes this file for a leak.
FORMS = {
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub": "ghp_" + "a1B2" * 9,
    "GitHub, fine": "github_pat_" + "a1B2_" * 8,
    "Hugging Face": "hf_" + "aBcD" * 8,
    "OpenAI": "sk-" + "proj-a1B2" * 4,
    "Slack": "xoxb-" + "12345-abcde" * 2,
    "Google": "AIza" + "aB3_-" * 7,
    "Slack, app": "xapp-" + "1-A0B1C2-34567-" + "a1b2" * 5,
    "SendGrid": "SG." + "a1B2" * 5 + "." + "c3D4" * 8,
    "Vault": "hvs." + "CAESIa1B2" * 4,
    "Grafana": "glsa_" + "a1B2" * 6,
    "Docker": "dckr_pat_" + "a1B2-" * 5,
    "web token": "eyJ" + "hbGciOiJI" + ".eyJzdWIiOiIx.c2lnbmF0dXJl",
}
NAMED = {
    'password = "correct horse"': "correct horse",
    "MLFLOW_TRACKING_PASSWORD=s3cr3t-word": "s3cr3t-word",
    "db_passwd: hunter22": "hunter22",
    '"api_key": "0123456789abcdef"': "0123456789abcdef",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG": "wJalrXUtnFEMI/K7MDENG",
    "WANDB_TOKEN='0123-4567-89ab'": "0123-4567-89ab",
    "Authorization: Bearer abcdefghijklmnop": "abcdefghijklmnop",
    "PASSWORD=correcthorse": "correcthorse",
    "postgresql://me:hunter22@db/mlflow": "hunter22",
    'os.environ["DB_PASSWORD"] = "hunter22"': "hunter22",
    'environ.setdefault("MLFLOW_PASSWORD", "correcthorse")': "correcthorse",
    'password: str = "hunter22"': "hunter22",
    "machine db.example login me password hunter22": "hunter22",
    "mysql --password hunter22": "hunter22",
    'run(["mysql", "--password", "hunter22"])': "hunter22",
    'wandb.login(key="0123456789abcdef0123")': "0123456789abcdef0123",
    'api_key = getenv("KEY") or "hunter22"': "hunter22",
    'PASSWORD = r"hunter22"': "hunter22",
    'PASSWORD = """hunter22"""': "hunter22",
    'PASSWORD = (\n+    "hunter22"\n+)': "hunter22",
    'passwords = ["hunter22", "hunter33"]': "hunter33",
    'user = {"name": "me", "pass": "hunter22"}': "hunter22",
    "DB_PWD=hunter22": "hunter22",
    "<password>hunter22</password>": "hunter22",
    'sessionToken: "hunter22"': "hunter22",
    "AccountKey=hunter22hunter22==;Suffix=x": "hunter22",
    "https://x.invalid/c?sv=2&sig=hunter22%2B": "hunter22",
    "https://0123456789abcdef@git.invalid/x": "0123456789abcdef",
}
CODE = """
def tokens(batch: Batch, token_count: int) -> int:
    password_field = None
    if token == pad_token: return batch.sequences * batch.length
    tokens = tokenizer(text)
    token = vocabulary.pad_token
    first = dict(api_token=None, token=tokens[0])
    key = jax.random.key(0)
    secrets = ("RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD")
    add("--password", help="the password of the server")
"""


@pytest.mark.parametrize("form", FORMS)
def test_a_token_of_a_known_form_is_masked(form: str) -> None:
    """Wherever it stands in a line."""
    text = masked(f'+    client(x, "{FORMS[form]}")  # mine\n'.encode()).decode()
    assert FORMS[form] not in text
    assert text.startswith("+    client(x,")
    assert text.endswith("# mine\n")


@pytest.mark.parametrize("line", NAMED)
def test_a_value_with_a_telling_name_is_masked(line: str) -> None:
    """The name stays, so that a reader knows what was there."""
    text = masked(f"+{line}\n".encode()).decode()
    assert NAMED[line] not in text
    assert text.startswith(f"+{line[:5]}")


@pytest.mark.parametrize("ends", [True, False])
def test_a_private_key_is_masked_whole(ends: bool) -> None:
    """Also as the lines of a diff, and without its end."""
    kind = "OPENSSH PRIVATE KEY"
    body = "".join(f"+{'MIIEvQIBADANBg' * 4}\n" for _ in range(5))
    block = f"+-----BEGIN {kind}-----\n{body}" + (f"+-----END {kind}-----\n" if ends else "")
    text = masked(f"before\n{block}".encode()).decode()
    assert "MIIEvQ" not in text
    assert text.startswith("before\n")


def test_code_stays_as_it_is() -> None:
    """Words such as token mean something else there."""
    assert masked(CODE.encode()).decode() == CODE


@pytest.mark.parametrize("text", ["password ", "secret=a", "://a", '"secret\\', "a_b."])
def test_masking_takes_time_in_proportion(text: str) -> None:
    """Whatever a diff repeats: 400 kB of it take a second or less, and not a minute."""
    started_s = time.process_time()
    masked((text * (400_000 // len(text))).encode())
    assert time.process_time() - started_s < 10


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project in a checkout that also has other folders, a private file and an ignored one."""
    root = tmp_path / "checkout"
    for name in (*provenance.PACKAGES, "notes"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("first = 1\n")
    (root / ".gitignore").write_text("local_settings.py\n")
    git = ("git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.invalid")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(provenance, "PROJECT", root)
    return root


def names_of(archive: bytes) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(archive)).namelist())


def test_the_diff_is_of_the_project_alone(checkout: Path) -> None:
    """A changed note beside the project is not part of its run."""
    (checkout / "notes" / "__init__.py").write_text("canary\n")
    (checkout / "trainers" / "__init__.py").write_text(f'key = "{FORMS["AWS"]}"\n')
    text = provenance.without_secrets(provenance.uncommitted(), []).decode()
    assert "trainers/__init__.py" in text
    assert "canary" not in text
    assert FORMS["AWS"] not in text


def test_a_long_diff_is_cut(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so itself."""
    monkeypatch.setattr(provenance, "MOST_DIFF_BYTES", 1000)
    (checkout / "trainers" / "__init__.py").write_text("x = 1\n" * 1000)
    assert len(provenance.uncommitted()) < 1100
    assert b"(cut: 1,000 of" in provenance.uncommitted()


def test_the_archive_follows_no_link(checkout: Path, tmp_path: Path) -> None:
    """Neither to a file nor to a folder; nor does it take what git ignores."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.py").write_text("canary")
    (checkout / "trainers" / "linked").symlink_to(tmp_path / "private")
    (checkout / "trainers" / "linked.py").symlink_to(tmp_path / "private" / "secret.py")
    (checkout / "trainers" / "local_settings.py").write_text("canary")
    (checkout / "pyproject.toml").symlink_to(tmp_path / "private" / "secret.py")
    (checkout / "trainers" / "new.py").write_text("x = 1\n")
    archive = provenance.archive()
    own = {"orchestrator/__init__.py", "trainers/__init__.py", "trainers/new.py"}
    assert names_of(archive) == own
    assert b"canary" not in archive


def test_an_archive_that_is_too_large_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the largest file."""
    monkeypatch.setattr(provenance, "MOST_CODE_BYTES", 1000)
    (checkout / "trainers" / "weights.py").write_text("x" * 2000)
    with pytest.raises(provenance.TooMuchCode, match=r"trainers/weights\.py"):
        provenance.archive()
