"""The README and the docs: their commands run, their screens and specs are real."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator import reading
from orchestrator.planning.planner import make_plan
from orchestrator.reading.expectations import _SECTIONS
from orchestrator.reading.problems import SpecProblems
from tests.conftest import ROOT, RunOrch
from tests.spec_texts import MINIMAL

README = ROOT / "README.md"
DOCUMENTS = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(path for folder in ("docs", "trainers") for path in (ROOT / folder).rglob("*.md")),
]
TIMEOUT_S = 600
KEY = "first"  # the README starts this run, and other pages show it

# Not run: these need the network, a second clone, or this very suite. A make target must exist.
SKIPPED = re.compile(r"(git clone \S+|cd \S+|make (?P<target>[a-z-]+)( [A-Z]+=\S+)*)( +#.*)?")
# Commands that take a second and need no run: `make test` runs these, `make test-docs` all.
FAST = re.compile(r"orch (plan|explain|schema|init|doctor)\b")
PRINTED = re.compile(r"<!-- lines of `(orch .*)` -->\n```text\n((?:.*\n)*?)```")
DONE: set[tuple[object, ...]] = set()  # of the fast ones, by their words and status

# A checkout may hold these beside the project's own files.
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "runs", "mlruns")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A line that a document tells its reader to type, and its exit status."""

    place: str
    text: str
    status: int


def commands_of(document: Path) -> list[Command]:
    """The `$ ` lines of the ```console blocks; `# exit N` at the end states a status."""
    text = document.read_text(encoding="utf-8")
    found = []
    for block in re.finditer(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in re.finditer(r"^\$ ((?:.*\\\n)*.*)$", block[1], re.MULTILINE):
            number = text.count("\n", 0, block.start(1) + line.start()) + 1
            stated = re.search(r"# exit (\d+)$", line[1])
            found.append(
                Command(
                    place=f"{document.name}:{number}",
                    text=line[1],
                    status=int(stated[1]) if stated else 0,
                )
            )
    return found


def makefile_targets() -> set[str]:
    """The targets of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def fault_of(command: Command, project: Path) -> str | None:
    """Run a command; return what is wrong with it, or None."""
    skipped = SKIPPED.fullmatch(command.text)
    if skipped:
        known = skipped["target"] is None or skipped["target"] in makefile_targets()
        return None if known else f"{command.place}: no such target: {command.text}"
    done = subprocess.run(
        command.text,
        shell=True,
        cwd=project,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode == command.status:
        return None
    status = f"exit {done.returncode}, against {command.status}"
    return f"{command.place}: {command.text}: {status}\n{done.stdout}{done.stderr}"


def project(place: Path) -> Path:
    """Copy the project, so that commands write outside the checkout."""
    return shutil.copytree(ROOT, place / "orch", ignore=NOT_COPIED)


@pytest.fixture(scope="session")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder after the README's rehearsal."""
    there = project(tmp_path_factory.mktemp("rehearsed"))
    [makes] = [command for command in commands_of(README) if command.text.endswith(f" --key {KEY}")]
    assert fault_of(makes, there) is None
    return there / "runs"


@pytest.fixture
def reader(document: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The folder in which a document's commands run, with the README's run where they need it."""
    there = project(tmp_path)
    if document != README and any(KEY in command.text.split() for command in commands_of(document)):
        shutil.copytree(request.getfixturevalue("rehearsed"), there / "runs")
    return there


def test_the_readme_shows_the_demonstration() -> None:
    """The README shows the demonstration and how to plan."""
    shown = [command.text for command in commands_of(README)]
    for start in ("make demo", "orch plan specs/"):
        assert any(text.startswith(start) for text in shown), start


def test_the_readme_shows_what_is_printed() -> None:
    """The README's screen consists of lines of the golden screen, in order."""
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- lines of (\S+) -->\n```text\n(.*?)```", text, re.DOTALL)
    assert found
    printed = iter((ROOT / found[1]).read_text(encoding="utf-8").splitlines())
    assert [line for line in found[2].splitlines() if line not in printed] == []


def test_the_spec_of_the_readme_can_be_planned(tmp_path: Path) -> None:
    """The README's example spec has a plan."""
    text = README.read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "my-run.yaml"
    path.write_text(block, encoding="utf-8")
    plan = make_plan(reading.load(path))
    assert (plan.chips, plan.pods) == (256, 2)


SECTION = re.compile(r"(?m)^(\w+):.*\n(?:(?: .*)?\n)*")
LEFT_OUT = {"unreadable", "missing-key"}  # what a document leaves to its reader


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_specs_of_documents_are_legal(document: Path, tmp_path: Path) -> None:
    """Whole specs, and sections of them on top of what stands before."""
    whole = {section[1]: section[0] for section in SECTION.finditer(MINIMAL)}
    blocks = re.findall(r"```yaml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    for number, block in enumerate(blocks):
        sections = {section[1]: section[0] for section in SECTION.finditer(block)}
        if not sections or not sections.keys() <= {"name", *_SECTIONS}:
            continue
        whole |= sections
        path = tmp_path / f"{number}.yaml"
        path.write_text("".join(whole.values()), encoding="utf-8")
        try:
            reading.load(path)
        except SpecProblems as error:
            wrong = [problem for problem in error.problems if problem.code not in LEFT_OUT]
            assert [str(problem) for problem in wrong] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_in_console_blocks(document: Path) -> None:
    """No other block shows commands, because nothing would run them."""
    languages = re.findall(r"(?m)^```(\w+)", document.read_text(encoding="utf-8"))
    assert set(languages) & {"bash", "sh", "shell", "zsh"} == set()


def test_what_python_examples_import_exists() -> None:
    """Of this project: Optuna, for one, need not be installed."""
    found = set()
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        own = r"^from ((?:orchestrator|trainers)\S*) import (.+)$"
        found |= set(re.findall(own, "\n".join(blocks), re.MULTILINE))
    assert found
    for module, names in found:
        for name in names.split(","):
            assert hasattr(importlib.import_module(module), name.split(" as ")[0].strip()), module


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_exists(document: Path, tmp_path: Path) -> None:
    """A document names no make target that the Makefile lacks."""
    skipped = [command for command in commands_of(document) if SKIPPED.fullmatch(command.text)]
    assert [fault_of(command, tmp_path) for command in skipped] == [None] * len(skipped)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_fast_commands_do_what_the_document_says(
    document: Path, tmp_path: Path, orch: RunOrch
) -> None:
    """Commands that plan and explain end with the stated status, in this process where they need
    no shell; those of several documents once. They print what a page says that they print.
    """
    printed = dict(PRINTED.findall(document.read_text(encoding="utf-8")))
    fast = [command for command in commands_of(document) if FAST.match(command.text)]
    for command in fast:
        words = shlex.split(command.text, comments=True)
        if set("|><;&$`*\n") & set(command.text):  # for a shell
            assert fault_of(command, reader_of_fast(tmp_path)) is None
        elif words[1] == "init" or command.text in printed or (*words, command.status) not in DONE:
            done = orch(*words[1:], cwd=reader_of_fast(tmp_path))
            assert done.returncode == command.status, (command, done.stdout, done.stderr)
            DONE.add((*words, command.status))
            lines = [*done.stdout.splitlines(), "    ..."]
            shown = printed.pop(command.text, "").splitlines()
            assert [line for line in shown if line not in lines] == []
    assert not printed  # each is of a command that the page has


def reader_of_fast(folder: Path) -> Path:
    """A copy of what these commands read."""
    here = folder / "orch"
    for name in ("specs", "docs", "tests/golden"):
        if not (here / name).exists():
            shutil.copytree(ROOT / name, here / name)
    return here


@pytest.mark.docs
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_does_what_the_document_says(document: Path, reader: Path) -> None:
    """All commands of a document, typed one after another, end with the stated status."""
    faults = [fault_of(command, reader) for command in commands_of(document)]
    assert [fault for fault in faults if fault] == []


PAGE = """Prose, and a block that is no session:

```yaml
$ not a command
```

```console
$ true
its output
$ false  # exit 1
$ echo one \\
    two
```
"""


def test_commands_are_read_from_console_blocks(tmp_path: Path) -> None:
    """Only `$ ` lines of console blocks are commands; each has its line and its status."""
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    assert commands_of(page) == [
        Command(place="page.md:8", text="true", status=0),
        Command(place="page.md:10", text="false  # exit 1", status=1),
        Command(place="page.md:11", text="echo one \\\n    two", status=0),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("false", "exit 1, against 0"),
        ("true  # exit 2", "exit 0, against 2"),
        ("orch no-such-command", "exit 2, against 0"),
        ("orchh plan", "exit 127, against 0"),
        ("make coffee", "no such target"),
    ],
)
def test_a_wrong_command_is_caught(text: str, fault: str, tmp_path: Path) -> None:
    """A command that fails, does not fail as stated, or does not exist is a fault."""
    page = tmp_path / "page.md"
    page.write_text(f"```console\n$ {text}\n```\n", encoding="utf-8")
    [command] = commands_of(page)
    assert fault in (fault_of(command, tmp_path) or "")
