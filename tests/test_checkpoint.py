"""Checkpoints: whole or skipped, on any mesh, through full disks, lost folders and kills."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator import storage
from orchestrator.errors import CheckpointFailed
from orchestrator.values.run import SavedCheckpoint, checkpoint_folder
from tests.bucket_server import BucketServer
from tests.conftest import ROOT
from trainers.checkpoint import step_folders
from trainers.checkpoint.checkpoints import Checkpoints
from trainers.checkpoint.objects import step_objects

Tree = Any
IDENTITY = {"seed": 1}


def mesh_of(*shape: int) -> Mesh:
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), ("a", "b"))


def shapes_on(mesh: Mesh, rows: int = 8) -> Tree:
    """A small state: types of every size, a scalar, nested dicts and tuples."""

    def leaf(dtype: Any, spec: P, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    return {
        "step": leaf(jnp.int32, P()),
        "weights": {"w": leaf(jnp.float32, P("a", "b"), rows, 16), "b": leaf(jnp.bfloat16, P(), 7)},
        "moments": (leaf(jnp.float32, P("b"), 16), {"v": leaf(jnp.bfloat16, P(None, "a"), 4, 8)}),
    }


def state_on(mesh: Mesh, step: int, rows: int = 8) -> Tree:
    """Random values, the same on every mesh."""
    noise = np.random.default_rng(step)
    return jax.tree.map(
        lambda leaf: jax.device_put(
            (noise.standard_normal(leaf.shape) * 100).astype(leaf.dtype), leaf.sharding
        ),
        shapes_on(mesh, rows),
    )


def open_at(folder: Path, keep: int = 3) -> Checkpoints:
    return Checkpoints(folder, keep=keep, identity=IDENTITY)


def save_steps(folder: Path, *steps: int, keep: int = 3) -> None:
    with open_at(folder, keep) as saved:
        for step in steps:
            saved.save(step, state_on(mesh_of(4, 2), step))


def assert_same_bits(found: Tree, expected: Tree) -> None:
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(expected))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def assert_restores(folder: Path, step: int, *skipped: int) -> None:
    """The newest whole step is this one, with the bits that were saved."""
    with open_at(folder) as saved:
        restored = saved.restore(shapes_on(mesh_of(4, 2)))
    assert restored is not None
    assert restored.step == step
    assert [skip.step for skip in restored.skipped] == list(skipped)
    assert_same_bits(restored.state, state_on(mesh_of(4, 2), step))


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def test_nothing_saved_is_no_error(tmp_path: Path) -> None:
    """A new run has nothing to restore."""
    with open_at(tmp_path / "new") as saved:
        assert saved.restore(shapes_on(mesh_of(1, 1))) is None


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (8, 2), (1, 1), (2, 1)])
def test_a_state_is_restored_onto_another_mesh(shape: tuple[int, int], tmp_path: Path) -> None:
    """Bit for bit, with the shardings that were asked for, whatever mesh it was saved on."""
    save_steps(tmp_path, 5)
    target = shapes_on(mesh_of(*shape))
    with open_at(tmp_path) as saved:
        restored = saved.restore(target)
    assert restored is not None
    assert_same_bits(restored.state, state_on(mesh_of(4, 2), 5))
    for leaf, wanted in zip(jax.tree.leaves(restored.state), jax.tree.leaves(target), strict=True):
        assert leaf.sharding == wanted.sharding


def test_the_state_may_be_donated_at_once(tmp_path: Path) -> None:
    """What is saved is the state at the call, though its buffers are used again right after."""
    bump = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    mesh = mesh_of(4, 2)
    state = state_on(mesh, 0, rows=1 << 16)
    jax.block_until_ready(bump(state_on(mesh, 0, rows=1 << 16)))
    with open_at(tmp_path) as saved:
        saved.save(1, state)
        for _ in range(20):
            state = bump(state)
        jax.block_until_ready(state)
        saved.finish()
        restored = saved.restore(shapes_on(mesh, rows=1 << 16))
    assert restored is not None
    assert_same_bits(restored.state, state_on(mesh, 0, rows=1 << 16))


def test_the_newest_steps_are_kept(tmp_path: Path) -> None:
    """No more than `keep`, and nothing half-deleted beside them."""
    save_steps(tmp_path, 1, 2, 3, 4, 5, keep=2)
    assert steps_in(tmp_path) == [4, 5]
    assert list((tmp_path / "deleted").iterdir()) == []


# Damage


def files_of_a_step(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_flipped_byte_in_any_file_is_found_or_harmless(tmp_path: Path) -> None:
    """Each file of the newest step in turn: the step before is restored, or the very same bits."""
    save_steps(tmp_path / "good", 10, 20)
    found = []
    for name in files_of_a_step(tmp_path / "good" / "20"):
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "good", folder)
        flip_a_byte(folder / "20" / name)
        harmless = Path(name).name in step_folders._NOT_SUMMED - {step_folders._CHECKSUMS}
        assert_restores(folder, *([20] if harmless else [10, 20]))
        found += [] if harmless else [name]
        shutil.rmtree(folder)
    assert len(found) >= 5
    assert any("/d/" in name for name in found)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def a_data_file(step: Path) -> Path:
    return max((path for path in step.rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (lambda step: flip_a_byte(a_data_file(step)), "has sha256"),
    "torn": (lambda step: os.truncate(a_data_file(step), 10), "has sha256"),
    "missing": (lambda step: a_data_file(step).unlink(), "cannot be read: No such file"),
    "added": (lambda step: (step / "d" / "zz").write_bytes(b"x"), "d/zz is not in sha256.json"),
    "no sums": (lambda step: (step / step_folders._CHECKSUMS).unlink(), "sha256.json is missing"),
    "bad sums": (lambda step: (step / step_folders._CHECKSUMS).write_text("{"), "cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_skipped_and_told(kind: str, tmp_path: Path) -> None:
    """The record says which step was not whole and why; the step is set aside, not deleted."""
    save_steps(tmp_path, 10, 20, 30)
    damage, reason = DAMAGE[kind]
    for step in ("20", "30"):
        damage(tmp_path / step)
    with open_at(tmp_path) as saved:
        restored = saved.restore(shapes_on(mesh_of(4, 2)))
    assert restored is not None
    assert restored.step == 10
    assert [skip.step for skip in restored.skipped] == [30, 20]
    assert all(reason in skip.why for skip in restored.skipped)
    assert steps_in(tmp_path / "damaged") == [20, 30]
    save_steps(tmp_path, 20)
    assert_restores(tmp_path, 20)


def test_no_whole_step_is_an_error_and_nothing_is_moved(tmp_path: Path) -> None:
    """A run whose checkpoints are all damaged does not silently start again from nothing."""
    save_steps(tmp_path, 10, 20)
    for step in ("10", "20"):
        flip_a_byte(a_data_file(tmp_path / step))
    for _ in range(2):
        with (
            open_at(tmp_path) as saved,
            pytest.raises(CheckpointFailed, match=r"no checkpoint is whole: step 20: .*step 10: "),
        ):
            saved.restore(shapes_on(mesh_of(4, 2)))
    assert steps_in(tmp_path) == [10, 20]


def test_what_a_kill_left_behind_is_swept(tmp_path: Path) -> None:
    """Half-written and half-deleted steps go, and do not stand in the way of the next save."""
    save_steps(tmp_path, 10)
    for name in ("20.orbax-checkpoint-tmp", "deleted/5"):
        (tmp_path / name / "d").mkdir(parents=True)
        (tmp_path / name / "d" / "part").write_bytes(b"x")
    save_steps(tmp_path, 20)
    assert_restores(tmp_path, 20)
    assert not (tmp_path / "deleted").exists()


# The wrong run


def test_another_run_is_refused(tmp_path: Path) -> None:
    """Checkpoints made with another seed are not gone on from: the error names both."""
    save_steps(tmp_path, 10)
    with pytest.raises(CheckpointFailed, match="holds another run: seed was 1, against 2"):
        Checkpoints(tmp_path, keep=3, identity={"seed": 2})
    with pytest.raises(CheckpointFailed, match="holds another run: seed was 1, against none"):
        Checkpoints(tmp_path, keep=3, identity={})


def test_another_model_is_refused(tmp_path: Path) -> None:
    """A state of other shapes is neither cut nor cast nor skipped: the error names the leaf."""
    save_steps(tmp_path, 10)
    reason = r"weights.w was float32\[8, 16\] when saved, against float32\[9, 16\]"
    with open_at(tmp_path) as saved, pytest.raises(CheckpointFailed, match=reason):
        saved.restore(shapes_on(mesh_of(1, 1), rows=9))


def test_another_type_is_refused(tmp_path: Path) -> None:
    """Orbax alone would cast it without a word."""
    save_steps(tmp_path, 10)
    target = shapes_on(mesh_of(1, 1))
    target["step"] = jax.ShapeDtypeStruct((), jnp.float32, sharding=target["step"].sharding)
    reason = r"step was int32\[\] when saved, against float32\[\]"
    with open_at(tmp_path) as saved, pytest.raises(CheckpointFailed, match=reason):
        saved.restore(target)


# Storage that fails


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


# In a process of its own: when a write fails, Orbax closes its event loop on writes under way.
SAVE_TOO_MUCH = """
import resource, sys, time
from pathlib import Path
from orchestrator.errors import CheckpointFailed
from orchestrator.values.run import SavedCheckpoint, checkpoint_folder
from tests.test_checkpoint import mesh_of, open_at, state_on
folder, how, limit_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
saved = open_at(folder)
try:
    saved.save(20, state_on(mesh_of(4, 2), 20, rows=1 << 17))
    while how == "check":
        saved.check()
        time.sleep(0.1)
    saved.finish()
except CheckpointFailed as error:
    print(error)
"""
NO_LIMIT = resource.RLIM_INFINITY


def failure_of_a_save(folder: Path, how: str, limit_bytes: int = NO_LIMIT) -> str:
    """Save too large a step 20; what the error says when the save is waited for, or checked."""
    command = [sys.executable, "-c", SAVE_TOO_MUCH, str(folder), how, str(limit_bytes)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize("how", ["finish", "check"])
def test_a_full_disk_is_named_and_the_last_step_stays(how: str, small_disk: Path) -> None:
    """The error is not one save late, and nothing says that all is well."""
    save_steps(small_disk, 10)
    message = failure_of_a_save(small_disk, how)
    assert message.startswith(f"{small_disk}: step 20 cannot be saved: ")
    assert "No space left on device" in message
    assert_restores(small_disk, 10)
    assert not list(small_disk.glob("20*")), "the next attempt did not sweep"


def test_a_file_too_large_is_named_and_the_last_step_stays(tmp_path: Path) -> None:
    """The same with a limit that any user can set."""
    save_steps(tmp_path, 10)
    message = failure_of_a_save(tmp_path, "finish", limit_bytes=1 << 20)
    assert "step 20 cannot be saved: " in message
    assert "File too large" in message
    assert_restores(tmp_path, 10)


def test_a_lost_folder_is_named_and_not_made_anew(tmp_path: Path) -> None:
    """A bucket that is no longer mounted must not become an empty local folder."""
    folder = tmp_path / "checkpoints"
    with open_at(folder) as saved:
        saved.save(10, state_on(mesh_of(4, 2), 10))
        saved.finish()
        folder.rename(tmp_path / "away")
        with pytest.raises(CheckpointFailed, match=r"step 20 cannot be saved: .*No such file"):
            saved.save(20, state_on(mesh_of(4, 2), 20))
    assert not folder.exists()
    assert_restores(tmp_path / "away", 10)


def test_a_step_that_vanished_is_named(tmp_path: Path) -> None:
    """Orbax's word that all is well is compared with the disk."""
    saved = open_at(tmp_path)
    saved.save(10, state_on(mesh_of(4, 2), 10))
    saved._saver.wait()
    shutil.rmtree(tmp_path / "10")
    with pytest.raises(CheckpointFailed, match="step 10 cannot be saved: its sums are missing"):
        saved.finish()


def test_the_first_error_is_the_one_told(tmp_path: Path) -> None:
    """When something else fails while a save does, the save's failure is a note on it."""
    with pytest.raises(ZeroDivisionError) as raised:
        save_lose_and_divide(tmp_path)
    assert any("step 10 cannot be saved" in note for note in raised.value.__notes__)


def save_lose_and_divide(folder: Path) -> None:
    with open_at(folder) as saved:
        saved.save(10, state_on(mesh_of(4, 2), 10))
        saved._saver.wait()
        shutil.rmtree(folder / "10")
        raise ZeroDivisionError


# Claims


@dataclass
class Attempt:
    """An attempt of a claim: what counted when it began, and what its driver has recorded since."""

    claim: int
    attempt: int
    before: tuple[SavedCheckpoint, ...] = ()
    reported: list[SavedCheckpoint] = field(default_factory=list)
    driven: bool = True

    def recorded(self) -> tuple[SavedCheckpoint, ...]:
        return (*self.before, *self.reported) if self.driven else self.before

    def folder(self, step: int) -> str:
        return checkpoint_folder(self.claim, self.attempt, step)

    def report(self, step: int, sha256: str) -> None:
        stamp = {"claim": self.claim, "attempt": self.attempt}
        self.reported.append(SavedCheckpoint(**stamp, step=step, sha256=sha256))

    def settle(self) -> None:
        """Its driver records at once, or never."""

    def open_at(self, folder: Path, keep: int = 2) -> Checkpoints:
        return Checkpoints(folder, keep=keep, identity=IDENTITY, saves=self)

    def save(self, folder: Path, *steps: int) -> None:
        with self.open_at(folder) as saved:
            for step in steps:
                saved.save(step, state_on(mesh_of(4, 2), step))

    def restored(self, folder: Path) -> int | None:
        with self.open_at(folder) as saved:
            restored = saved.restore(shapes_on(mesh_of(4, 2)))
        if restored:
            assert_same_bits(restored.state, state_on(mesh_of(4, 2), restored.step))
        return restored.step if restored else None


def folders_in(folder: Path) -> set[str]:
    if on_bucket := step_objects(folder):
        return set(on_bucket.names())
    return {path.name for path in folder.iterdir() if path.name[0].isdecimal()}


@pytest.fixture(params=["folder", "bucket"])
def any_folder(request: pytest.FixtureRequest, tmp_path: Path, bucket_server: BucketServer) -> Path:
    """The checkpoints of a run, in a folder and on a bucket."""
    assert bucket_server.url
    if request.param == "folder":
        return tmp_path / "checkpoints"
    return storage.folder("s3://bucket/runs/key/checkpoints")


def half_written(folder: Path, name: str) -> str:
    """A step that somebody is writing: its name as it lies there."""
    if on_bucket := step_objects(folder):
        on_bucket.bucket.create(f"{on_bucket.prefix(name)}weights/c/0", b"1")
        return name
    (folder / f"{name}.orbax-checkpoint-tmp").mkdir()
    return f"{name}.orbax-checkpoint-tmp"


def test_an_attempt_goes_on_from_what_its_claim_knows(tmp_path: Path) -> None:
    """Each checkpoint has the claim and the attempt in its name, and the newest are kept."""
    first = Attempt(2, 1)
    assert first.restored(tmp_path) is None
    first.save(tmp_path, 10, 20, 30)
    assert folders_in(tmp_path) == {"20-claim-2-attempt-1", "30-claim-2-attempt-1"}
    second = Attempt(2, 2, tuple(first.reported))
    assert second.restored(tmp_path) == 30
    second.save(tmp_path, 40)
    assert folders_in(tmp_path) == {"30-claim-2-attempt-1", "40-claim-2-attempt-2"}


def test_a_superseded_attempt_harms_nothing(any_folder: Path) -> None:
    """It was stopped, and goes on beside the attempt that took over: it saves the same steps and
    others, which do not count, and deletes nothing that does.
    """
    old = Attempt(2, 1)
    with old.open_at(any_folder) as zombie:
        for step in (10, 20):
            zombie.save(step, state_on(mesh_of(4, 2), step))
        zombie.finish()
        new = Attempt(7, 2, tuple(old.reported))
        old.before, old.driven = tuple(old.reported), False
        assert new.restored(any_folder) == 20
        for step in (30, 40, 50):
            zombie.save(step, state_on(mesh_of(4, 2), step))
        zombie.finish()
        new.save(any_folder, 30)
    assert Attempt(7, 3, (*new.before, *new.reported)).restored(any_folder) == 30
    assert {"20-claim-2-attempt-1", "30-claim-7-attempt-2"} <= folders_in(any_folder)
    Attempt(9, 4, (*new.before, *new.reported)).save(any_folder, 40)
    assert folders_in(any_folder) == {"30-claim-7-attempt-2", "40-claim-9-attempt-4"}


def test_a_superseded_attempt_that_opens_late_sweeps_nothing_of_its_successor(
    any_folder: Path,
) -> None:
    """Neither what that saved nor what it is writing."""
    new = Attempt(7, 2)
    new.save(any_folder, 10)
    half, own = (
        half_written(any_folder, name) for name in ("20-claim-7-attempt-2", "20-claim-2-attempt-1")
    )
    Attempt(2, 1).save(any_folder, 5)
    assert folders_in(any_folder) >= {"10-claim-7-attempt-2", half}
    assert own not in folders_in(any_folder)
    assert new.restored(any_folder) == 10


def test_what_nobody_recorded_is_not_restored(any_folder: Path) -> None:
    """Whole or not."""
    Attempt(2, 1, driven=False).save(any_folder, 10)
    assert Attempt(7, 2).restored(any_folder) is None


def test_recorded_checkpoints_that_are_gone_are_an_error(tmp_path: Path) -> None:
    """A run whose checkpoints were removed does not begin again without a word."""
    first = Attempt(2, 1)
    first.save(tmp_path, 10, 20)
    shutil.rmtree(tmp_path)
    with pytest.raises(CheckpointFailed, match=r"no checkpoint is whole: step 20: .* submit the"):
        Attempt(3, 2, tuple(first.reported)).restored(tmp_path)


def test_sums_that_were_changed_with_their_files_are_found(tmp_path: Path) -> None:
    """The journal has the sum of the sums."""
    first = Attempt(2, 1)
    first.save(tmp_path, 10, 20)
    step = tmp_path / "20-claim-2-attempt-1"
    flip_a_byte(a_data_file(step))
    step_folders._sum_shards(step, 0)
    step_folders._write_checksums(step, 1)
    assert step_folders.StepFolders(step.parent).fault(step.name) is None
    assert Attempt(3, 2, tuple(first.reported)).restored(tmp_path) == 10


def test_a_whole_checkpoint_is_reported_while_training_goes_on(tmp_path: Path) -> None:
    """Before the next save, or a kill in between would lose it."""
    first = Attempt(2, 1)
    with first.open_at(tmp_path) as saved:
        saved.save(10, state_on(mesh_of(4, 2), 10))
        deadline = time.monotonic() + 60
        while not first.reported:
            saved.check()
            assert time.monotonic() < deadline
        saved.finish()
    assert [report.step for report in first.reported] == [10]


# Kills


SAVE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from tests.test_checkpoint import mesh_of, open_at, state_on
with open_at(Path(sys.argv[1]), keep=2) as saved:
    for step in itertools.count(int(sys.argv[2])):
        saved.save(step, state_on(mesh_of(4, 2), step))
        print(step, flush=True)
"""


def killed_while_saving(folder: Path, first: int, delay_s: float) -> int:
    """Save from `first` on in another process, and kill it; the last step it began to save."""
    command = [sys.executable, "-c", SAVE_FOR_EVER, str(folder), str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        begun = [process.stdout.readline() for _ in range(3)]
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        begun += process.stdout.read().splitlines()
    return int(begun[-1])


def test_a_kill_while_saving_loses_at_most_that_step(tmp_path: Path) -> None:
    """What is restored afterwards is whole, and not older than the step before the last begun."""
    chance, first = random.Random(0), 0
    for _ in range(3):
        begun = killed_while_saving(tmp_path, first, chance.uniform(0, 0.15))
        with open_at(tmp_path, keep=2) as saved:
            restored = saved.restore(shapes_on(mesh_of(4, 2)))
        assert restored is not None
        assert restored.skipped == ()
        assert restored.step >= begun - 1
        assert_same_bits(restored.state, state_on(mesh_of(4, 2), restored.step))
        first = restored.step + 1
