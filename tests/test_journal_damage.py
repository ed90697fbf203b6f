"""A journal knows when it was damaged: events, steps, the spec or plans are not as written."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import journal
from orchestrator.errors import JournalDamaged, RunIsLive
from orchestrator.evidence.report import make_report
from orchestrator.journal import events as event_chain
from orchestrator.journal.run_journal import Journal
from orchestrator.run.doctor import doctor_run
from orchestrator.run.submit import resume
from orchestrator.values import codec
from tests.conftest import ROOT, RunOrch
from tests.journals import (
    claimed_run,
    failed_once,
    note_newest,
    reason,
    run_request,
    tiny_plan,
    write_steps,
)


def ended_run(storage: Path, *, checkpoint: bool = False, **changes: Any) -> Journal:
    """A run that failed after ten steps, of which eight are in a checkpoint."""
    writer = claimed_run(storage, **changes)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(10))
    sums = writer.journal.path / "checkpoints/8-claim-2-attempt-1/sha256.json"
    if checkpoint:
        sums.parent.mkdir(parents=True)
        sums.write_bytes(b"{}")
    writer.record_checkpoint(8, event_chain.digest(b"{}"))
    writer.end_attempt("failure", error="ValueError: out of luck")
    writer.end_run("failed", reason("out of luck"))
    return writer.journal


def abandoned_run(storage: Path) -> Journal:
    """The same, whose driver is a process that has ended."""
    script = "import sys, pathlib; from tests.test_journal_damage import ended_run;"
    script += "ended_run(pathlib.Path(sys.argv[1]), checkpoint=True)"
    subprocess.run([sys.executable, "-c", script, str(storage)], cwd=ROOT, check=True)
    return journal.find_run(storage, "it")


def last_event(run: Journal) -> Path:
    return max(run.paths.events.glob("0*.json"))


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert (path.read_bytes() != before) is True


def other_pods(content: bytes) -> bytes:
    return content.replace(b'"pods":2', b'"pods":1')


def test_a_whole_journal_has_no_problem(tmp_path: Path) -> None:
    run = ended_run(tmp_path)
    assert (run.run().problems, run.state().damage) == ((), ())
    assert run.run().attempts[0].saved_steps == 8
    written = run.run().attempts[0].written
    assert written
    assert (written.lines, written.bytes) == (10, run.paths.steps(1).stat().st_size)
    journal.claim_run(run, resumes=True)


@pytest.mark.parametrize("number", range(1, 7))
def test_each_changed_event_shows_and_stops_a_resume(tmp_path: Path, number: int) -> None:
    """Also the last one, which no other event follows. What it says is valid JSON."""
    run = ended_run(tmp_path)
    edit(
        run.paths.events / f"{number:06d}.json", lambda text: text.replace(b'"at_s":', b'"at_s":1')
    )
    assert any(f"events/{number:06d}.json" in problem for problem in run.run().problems)
    with pytest.raises(JournalDamaged, match=r"orch doctor .*/it"):
        journal.claim_run(run, resumes=True)


@pytest.mark.parametrize("number", range(2, 7))
def test_each_missing_event_shows_and_stops_a_resume(tmp_path: Path, number: int) -> None:
    run = ended_run(tmp_path)
    (run.paths.events / f"{number:06d}.json").unlink()
    assert f"events/{number:06d}.json: is missing" in run.run().problems
    with pytest.raises(JournalDamaged, match=f"{number:06d}"):
        journal.claim_run(run, resumes=True)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_a_lost_note_of_the_newest_event_is_a_problem(
    tmp_path: Path, content: bytes | None
) -> None:
    run = ended_run(tmp_path)
    run.paths.newest_event.unlink()
    if content is not None:
        run.paths.newest_event.write_bytes(content)
    [problem] = run.run().problems
    assert problem.startswith("newest_event.json: ")
    with pytest.raises(JournalDamaged):
        journal.claim_run(run, resumes=True)


def test_a_note_that_is_one_event_behind_is_no_problem(tmp_path: Path) -> None:
    """Its writer died before it noted its last event."""
    run = ended_run(tmp_path)
    before = last_event(run).with_name("000005.json").read_bytes()
    note_newest(run.paths, 5, before)
    assert run.run().problems == ()
    writer = journal.claim_run(run, resumes=True)
    writer.record_pending(reason("a slice", "waiting_for_slices"))
    assert run.run().problems == ()


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda text: text[: len(text) // 2],
        lambda text: b"".join(text.splitlines(keepends=True)[:-1]),
        lambda text: text.replace(b'"loss":2.0', b'"loss":1.0', 1),
        lambda text: text.replace(b'"index":9', b'"index":8'),
        lambda text: text + text.splitlines(keepends=True)[-1],
    ],
    ids=["emptied", "halved", "last line missing", "another loss", "another index", "a step twice"],
)
def test_damaged_steps_are_a_problem(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    run = ended_run(tmp_path)
    edit(run.paths.steps(1), damage)
    assert any("001/steps.jsonl" in problem for problem in run.run().problems)


def test_steps_that_a_checkpoint_has_are_missed_while_the_attempt_runs(tmp_path: Path) -> None:
    """There is no count of its lines yet."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(10))
    writer.record_checkpoint(8, "0" * 64)
    assert writer.run().problems == ()
    writer.journal.paths.steps(1).write_bytes(b"")
    [problem] = writer.run().problems
    assert "step 8 was saved" in problem


def test_another_line_in_place_of_a_step_is_no_step(tmp_path: Path) -> None:
    """In the middle of a file, where a look does not come, whoever reads all steps hears of it."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(200))
    edit(writer.journal.paths.steps(1), lambda text: text.replace(b'"index":100,', b'"index":700,'))
    assert writer.run().problems == ()
    reader = journal.StepReader(writer.journal.path, number)
    assert [got.step.index for got in reader.read()] == [*range(100), *range(101, 200)]
    [problem] = reader.problems
    assert "checksum" in problem.what


def test_a_changed_plan_or_spec_is_refused(tmp_path: Path) -> None:
    """A learning rate times 100 is no plan of this run, nor is another trainer."""
    run = failed_once(tmp_path)
    digest = run.run().plan_digest
    path = run.paths.plan(digest)
    before = path.read_bytes()
    for was, now in (
        (b'"peak_lr": 0.0003', b'"peak_lr": 0.03'),
        (b'"trainer": "llama"', b'"trainer": "mlp"'),
        (b"{", b""),
    ):
        path.write_bytes(before.replace(was, now, 1))
        with pytest.raises(JournalDamaged, match="was changed"):
            run.plan(digest)
        assert any("was changed" in problem for problem in run.status().problems)
        path.write_bytes(before)
    edit(run.paths.spec, lambda text: text.replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(JournalDamaged, match=r"spec\.json"):
        run.spec()
    for problems in (run.status().problems, make_report(run).problems):
        assert any("spec.json" in problem for problem in problems)


def test_a_changed_smaller_plan_is_refused(tmp_path: Path) -> None:
    """It was made when an attempt began with fewer pods; its event has its sum."""
    writer = claimed_run(tmp_path)
    smaller = tiny_plan(1)
    writer.start_attempt(smaller)
    assert writer.journal.plan(smaller.digest) == smaller
    edit(
        writer.journal.paths.plan(smaller.digest),
        lambda text: text.replace(b'"pods": 1', b'"pods": 2'),
    )
    with pytest.raises(JournalDamaged):
        writer.journal.plan(smaller.digest)


def test_each_event_names_the_one_before(tmp_path: Path) -> None:
    run = ended_run(tmp_path)
    files = sorted(run.paths.events.glob("0*.json"))
    events = [json.loads(path.read_bytes()) for path in files]
    digests = ["", *(event_chain.digest(path.read_bytes()) for path in files)]
    assert [event["previous"] for event in events] == digests[:-1]
    note = json.loads(run.paths.newest_event.read_bytes())
    assert note == {"number": len(files), "sha256": digests[-1]}


def test_a_run_is_created_with_the_sums_of_its_files(tmp_path: Path) -> None:
    run = journal.create_run(
        tmp_path, run_request(documents={"spec.yaml": b"x: 1\n"}), "it"
    ).journal
    sums = run.state().submitted.submission.sums
    assert set(sums) == {
        "spec.json",
        "documents/spec.yaml",
        run.paths.name_of(run.paths.plan(tiny_plan().digest)),
    }


# --- orch doctor RUN


def test_a_whole_run_is_well(tmp_path: Path) -> None:
    run = ended_run(tmp_path, checkpoint=True)
    health = doctor_run(run.key, run.path.parent)
    assert (health.findings, health.stops) == ((), False)


def test_a_plan_that_a_driver_read_is_the_one_that_was_submitted(tmp_path: Path) -> None:
    """Also where another version of orch, or a number that was whole, would write it otherwise."""
    plan = replace(tiny_plan(), forecast=replace(tiny_plan().forecast, peak_flops_per_s=1))
    created = journal.create_run(tmp_path, run_request(plan=plan), "it")
    written = created.journal.paths.plan(plan.digest).read_bytes()
    writer = journal.claim_run(created.journal)
    read = writer.journal.plan(plan.digest)
    assert codec.to_pretty_json(read).encode() != written
    writer.start_attempt(read)
    writer.end_attempt("failure")
    writer.end_run("failed", reason("out of luck"))
    assert doctor_run(writer.journal.key, writer.journal.path.parent, repairs=True).findings == ()
    assert writer.journal.paths.plan(plan.digest).read_bytes() == written
    assert writer.journal.plan(plan.digest) == read


@pytest.mark.parametrize("damage", ["missing", "changed", "no note", "unreadable"])
def test_a_run_goes_on_without_damaged_events(tmp_path: Path, damage: str) -> None:
    """What they said is lost, and stays a problem; the run can be resumed."""
    run = abandoned_run(tmp_path)
    last = last_event(run)
    if damage == "missing":
        last.unlink()
    elif damage == "changed":
        edit(last, lambda text: text.replace(b'"at_s":', b'"at_s":1'))
    elif damage == "unreadable":
        last.write_bytes(b"{")
    else:
        run.paths.newest_event.unlink()
    [found] = doctor_run(run.key, run.path.parent).findings
    assert (found.kind, found.stops, found.repairable) == ("event", True, True)
    mended = doctor_run(run.key, run.path.parent, repairs=True)
    assert (mended.findings, mended.repaired) == ((), (found,))
    assert run.state().damage == ()
    writer = journal.claim_run(run, resumes=True)
    writer.record_pending(reason("a slice", "waiting_for_slices"))
    assert run.state().damage == ()
    assert bool(run.run().problems) is (damage != "no note")


def test_a_changed_plan_is_made_again_from_the_spec(tmp_path: Path) -> None:
    run = ended_run(tmp_path, checkpoint=True)
    plan = run.plan(run.run().plan_digest)
    path = run.paths.plan(plan.digest)
    edit(path, lambda text: text.replace(b'"peak_lr": 0.0003', b'"peak_lr": 0.03'))
    [found] = doctor_run(run.key, run.path.parent).findings
    assert (found.kind, found.stops, found.repairable) == ("plan", True, True)
    assert doctor_run(run.key, run.path.parent, repairs=True).findings == ()
    assert run.plan(plan.digest) == plan
    assert run.run().problems == ()


def test_what_cannot_be_made_again_is_told(tmp_path: Path) -> None:
    """The spec, a document, steps and a checkpoint; a repair leaves them as they are."""
    run = ended_run(tmp_path, checkpoint=True, documents={"spec.yaml": b"x: 1"})
    edit(run.paths.spec, lambda text: text.replace(b'"seed": 0', b'"seed": 1'))
    edit(run.paths.documents / "spec.yaml", lambda text: text + b"0")
    edit(run.paths.steps(1), lambda text: text[: len(text) // 2])
    shutil.rmtree(run.path / "checkpoints")
    found = {
        finding.kind: finding
        for finding in doctor_run(run.key, run.path.parent, repairs=True).findings
    }
    assert found.keys() == {"spec", "document", "steps", "checkpoint"}
    assert [kind for kind, one in found.items() if one.stops] == ["spec", "checkpoint"]
    assert not any(damage.repairable for damage in found.values())
    assert "6 steps" in found["steps"].advice


def test_a_resume_is_refused_before_it_starts_a_cluster(tmp_path: Path) -> None:
    """Where checkpoints were saved and none is left, it would begin anew in silence."""
    run = abandoned_run(tmp_path)
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(JournalDamaged, match="no checkpoint is left of those that were saved"):
        resume(run.key, tmp_path)
    [found] = doctor_run(run.key, run.path.parent).findings
    assert (found.kind, found.stops, found.repairable) == ("checkpoint", True, False)
    last_event(run).unlink()
    with pytest.raises(JournalDamaged, match="is missing"):
        resume(run.key, tmp_path)


def test_a_damaged_checkpoint_beside_a_whole_one_stops_nothing(tmp_path: Path) -> None:
    run = abandoned_run(tmp_path)
    (run.path / "checkpoints/8-claim-2-attempt-1/sha256.json").write_bytes(b"{ }")
    [found] = doctor_run(run.key, run.path.parent).findings
    assert (found.kind, found.stops) == ("checkpoint", False)


def test_a_run_that_is_driven_is_not_repaired(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path)
    writer.record_pending(reason("a slice", "waiting_for_slices"))
    (writer.journal.paths.events / "000003.json").unlink()
    with pytest.raises(RunIsLive):
        doctor_run(writer.journal.key, writer.journal.path.parent, repairs=True)


def test_the_command_says_what_is_wrong_and_repairs_it(tmp_path: Path, orch: RunOrch) -> None:
    run = abandoned_run(tmp_path)
    last_event(run).unlink()
    storage = ("--storage", str(tmp_path))
    seen = orch("doctor", "it", *storage, "--json")
    assert seen.returncode == 1
    [found] = json.loads(seen.stdout)["findings"]
    assert (found["file"], found["repairable"]) == ("events/000006.json", True)
    assert "--repair" in orch("doctor", "it", *storage).stdout
    assert orch("doctor", "it", *storage, "--repair").returncode == 0
    assert orch("doctor", "it", *storage).returncode == 0
    assert orch("doctor", "--repair").returncode == 2
