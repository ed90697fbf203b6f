"""Checkpoints on a bucket: saved by TensorStore, whole or not at all, restored as they were."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orchestrator import storage
from orchestrator.errors import CheckpointFailed
from orchestrator.storage.bucket import Bucket
from tests.bucket_server import BROKEN, LOST, THROTTLED, BucketServer
from trainers.checkpoint import objects
from trainers.checkpoint.checkpoints import Checkpoints, newest_step
from trainers.checkpoint.objects import (
    _CHUNK_BYTES,
    _MANIFEST,
    ObjectSaver,
    _chunk_shape,
    driver,
    step_objects,
)

IDENTITY: Mapping[str, str | int] = {"plan": "p", "seed": 1}
PREFIX = "bucket/runs/key/checkpoints"


@pytest.fixture(params=["gs", "s3"])
def any_folder(request: pytest.FixtureRequest, bucket_server: BucketServer) -> Path:
    """The checkpoints of a run on a bucket of each kind."""
    assert bucket_server.url
    return storage.folder(f"{request.param}://bucket/runs/key/checkpoints")


@pytest.fixture
def folder(bucket_server: BucketServer) -> Path:
    assert bucket_server.url
    return storage.folder("s3://bucket/runs/key/checkpoints")


def state(value: float) -> dict[str, jax.Array]:
    """Arrays in several types, sharded, copied, and a number."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    both = NamedSharding(mesh, PartitionSpec("x", "y"))
    rows = NamedSharding(mesh, PartitionSpec("y"))
    same = NamedSharding(mesh, PartitionSpec())
    numbers = jnp.arange(32.0).reshape(4, 8) + value
    return {
        "weights": jax.device_put(numbers.astype(jnp.bfloat16), both),
        "table": jax.device_put(numbers, rows),
        "bias": jax.device_put(numbers[0], same),
        "step": jax.device_put(jnp.int32(value), same),
    }


def opened(folder: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(folder, keep=keep, identity=IDENTITY)


def equal(one: dict[str, jax.Array], other: dict[str, jax.Array]) -> bool:
    return all(
        bool((one[name] == other[name]).all()) and one[name].sharding == other[name].sharding
        for name in other
    )


def test_a_state_comes_back_as_it_was(any_folder: Path, bucket_server: BucketServer) -> None:
    folder = any_folder
    with opened(folder) as checkpoints:
        assert checkpoints.restore(state(0)) is None
        for step in (1, 2, 3):
            checkpoints.save(step, state(step))
    assert newest_step(folder) == 3
    with opened(folder) as checkpoints:
        restored = checkpoints.restore(state(0))
    assert restored is not None
    assert (restored.step, restored.skipped) == (3, ())
    assert equal(restored.state, state(3))
    steps = {name.removeprefix(f"{PREFIX}/").split("/")[0] for name in bucket_server.names(PREFIX)}
    assert steps == {"2", "3", "identity.json"}


def test_an_array_is_one_that_other_libraries_read(
    folder: Path, bucket_server: BucketServer
) -> None:
    """Each has the description that zarr asks for, though orch itself reads its own manifest."""
    with opened(folder) as checkpoints:
        checkpoints.save(1, state(1))
    described = json.loads(bucket_server.objects[f"{PREFIX}/1/weights/zarr.json"].content)
    assert (described["zarr_format"], described["node_type"]) == (3, "array")
    assert (described["shape"], described["data_type"]) == ([4, 8], "bfloat16")


def test_a_state_comes_back_on_other_shards_and_with_more_rows(folder: Path) -> None:
    with opened(folder) as checkpoints:
        checkpoints.save(1, state(1))
    target = state(0)
    alone = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec())
    target["weights"] = jax.device_put(target["weights"], alone)
    target["table"] = jax.device_put(jnp.zeros((6, 8)), alone)
    with opened(folder) as checkpoints:
        restored = checkpoints.restore(target, {"table": 4})
    assert restored is not None
    assert bool((restored.state["weights"] == np.asarray(state(1)["weights"])).all())
    assert bool((restored.state["table"][:4] == np.asarray(state(1)["table"])).all())
    assert not restored.state["table"][4:].any()


@pytest.mark.parametrize("damage", ["missing", "changed", "manifest"])
def test_a_step_that_is_not_whole_is_skipped(
    folder: Path, bucket_server: BucketServer, damage: str
) -> None:
    with opened(folder) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.save(2, state(2))
    shard = next(name for name in bucket_server.names(f"{PREFIX}/2/weights/c"))
    if damage == "missing":
        del bucket_server.objects[shard]
    if damage == "changed":
        whole = bucket_server.objects[shard]
        bucket_server.objects[shard] = replace(whole, content=bytes(len(whole.content)))
    if damage == "manifest":
        del bucket_server.objects[f"{PREFIX}/2/{_MANIFEST}"]
    with opened(folder) as checkpoints:
        restored = checkpoints.restore(state(0))
    assert restored is not None
    assert restored.step == 1
    assert equal(restored.state, state(1))


def test_another_run_is_refused(folder: Path) -> None:
    with opened(folder):
        pass
    with pytest.raises(CheckpointFailed, match="s3://bucket/runs/key/checkpoints: holds another"):
        Checkpoints(folder, keep=1, identity={**IDENTITY, "seed": 2})


def test_a_save_that_the_bucket_refuses_is_an_error(
    folder: Path, bucket_server: BucketServer
) -> None:
    checkpoints = opened(folder)
    bucket_server.fault = lambda method, name: (
        BROKEN if method == "PUT" and name.endswith(_MANIFEST) else None
    )
    checkpoints.save(1, state(1))
    with pytest.raises(CheckpointFailed, match="step 1 cannot be saved"):
        checkpoints.finish()
    bucket_server.fault = lambda _method, _name: None
    assert newest_step(folder) == 0


def test_a_process_that_cannot_write_its_shards_tells_the_primary(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which then makes no step of what the others wrote."""
    steps = step_objects(folder)
    assert steps
    saver = ObjectSaver(steps)

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(objects, "stored_array", refuse)
    saver.save("1", state(1))
    with pytest.raises(OSError, match=r"^no space$"):
        saver.wait()
    assert steps.notes("1") == ["no space"]
    with pytest.raises(OSError, match="a process could not write its shards: no space"):
        saver._all_wrote("1")
    assert not steps.is_whole("1")


def test_nothing_is_lost_through_faults(folder: Path, bucket_server: BucketServer) -> None:
    dice = random.Random(3)
    bucket_server.fault = lambda _method, _name: (
        dice.choice([LOST, THROTTLED, BROKEN]) if dice.random() < 0.1 else None
    )
    with opened(folder) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state(step))
    with opened(folder) as checkpoints:
        restored = checkpoints.restore(state(0))
    assert restored is not None
    assert restored.step == 2
    assert equal(restored.state, state(2))
    assert bucket_server.faults > 2


def test_chunks_divide_a_shard_and_are_not_too_large() -> None:
    assert _chunk_shape((), 4) == ()
    assert _chunk_shape((8, 16), 4) == (8, 16)
    for shard in ((16_384, 53_248), (7, 128_256, 1024)):
        chunk = _chunk_shape(shard, 4)
        assert all(size % part == 0 for size, part in zip(shard, chunk, strict=True))
        assert _CHUNK_BYTES / 16 < 4 * chunk[0] * chunk[1] * (*chunk, 1)[2] <= _CHUNK_BYTES


def test_buckets_of_both_kinds_have_their_driver(bucket: Bucket) -> None:
    found = driver(bucket.scheme)
    assert found["driver"] == {"gs": "gcs", "s3": "s3"}[bucket.scheme]
