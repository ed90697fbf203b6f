"""Token sets, held-out text and weights on a bucket are those of a folder, whatever fails."""

import random
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import jax
import numpy as np
import pytest

from orchestrator import storage
from orchestrator.errors import DataUnusable, SpecError
from orchestrator.reading.load import load, missing_inputs
from orchestrator.reading.problems import SpecProblems
from orchestrator.run.exports import _COMPANIONS, _start_folder
from orchestrator.run.submit import _check_inputs
from orchestrator.storage import bucket as buckets
from orchestrator.storage.addresses import StoredInput
from orchestrator.storage.bucket import Bucket
from orchestrator.values.spec import DataSource, EvaluationOptions, StartingWeights
from tests.bucket_server import BROKEN, LOST, STALLED, THROTTLED, BucketServer
from tests.huggingface_models import config_of, write_model
from tests.test_huggingface_weights import parameters_from, program_from
from tests.trainer_plans import plan_of
from trainers.data import pack
from trainers.data.batches import BatchSource, HeldOut, batch_source, held_out
from trainers.data.pack import _TokenArrays
from trainers.data.tokens import _TokenSet
from trainers.huggingface import read
from trainers.huggingface.read import _WeightFolder

WORDS = _TokenArrays(name="words", vocab=64)


def token_set(folder: Path, tokens: int = 3000) -> Path:
    """A set of several shards; its manifest."""
    np.save(folder / "a.npy", np.random.default_rng(0).integers(0, 64, tokens))
    pack.pack(folder / "set", [folder / "a.npy"], WORDS, shard_tokens=700)
    return folder / "set" / "manifest.json"


def upload(bucket: Bucket, folder: Path, below: str) -> str:
    """Put the files of a folder into a bucket; the address of the folder there."""
    for file in folder.iterdir():
        bucket.replace(f"{below}/{file.name}", file.read_bytes())
    return f"{bucket.scheme}://{bucket.name}/{below}"


def with_faults(server: BucketServer, share: float) -> None:
    dice = random.Random(0)
    server.fault = lambda _method, _name: (
        dice.choice([LOST, THROTTLED, BROKEN]) if dice.random() < share else None
    )


def batches_of(path: str) -> BatchSource:
    plan = replace(plan_of(sequences=8, length=32), data=DataSource(kind="tokens", path=path))
    return batch_source(plan, Path("elsewhere"), verify=True)


def test_batches_of_a_bucket_are_those_of_a_folder(
    bucket: Bucket, bucket_server: BucketServer, tmp_path: Path
) -> None:
    """A fifth of all requests fails. Windows lie across shards, and around the ring."""
    manifest = token_set(tmp_path)
    address = upload(bucket, manifest.parent, "sets/words")
    with_faults(bucket_server, 0.2)
    there = batches_of(f"{address}/manifest.json")
    here = batches_of(str(manifest))
    assert there.digest == here.digest
    for step in range(14):
        assert (there.batch(step, range(2, 6)) == here.batch(step, range(2, 6))).all()
    assert bucket_server.faults > 10
    assert not storage.folder(address).exists()  # nothing is kept here


def text_of(path: str) -> HeldOut:
    return held_out(plan_of(sequences=8, length=32), EvaluationOptions(path=path, sequences=13))


def test_held_out_text_of_a_bucket_is_that_of_a_folder(bucket: Bucket, tmp_path: Path) -> None:
    manifest = token_set(tmp_path)
    here = text_of(str(manifest))
    there = text_of(upload(bucket, manifest.parent, "ray/.held/out") + "/manifest.json")
    for number in range(here.batches):
        assert (there.batch(number, range(8)) == here.batch(number, range(8))).all()


def lose_a_shard(bucket: Bucket, shard: str) -> None:
    bucket.delete([shard])


def shorten_a_shard(bucket: Bucket, shard: str) -> None:
    bucket.replace(shard, bucket.read(shard)[0][:-2])


def change_a_shard(bucket: Bucket, shard: str) -> None:
    content = bucket.read(shard)[0]
    bucket.replace(shard, content[2:] + content[:2])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lose_a_shard, "shard cannot be read: no such object"),
        (shorten_a_shard, "1398 bytes, against 1400 in the manifest"),
        (change_a_shard, "the shard has changed since it was packed"),
    ],
)
def test_a_damaged_set_is_not_read(
    one_bucket: Bucket, tmp_path: Path, damage: Callable[[Bucket, str], None], said: str
) -> None:
    address = upload(one_bucket, token_set(tmp_path).parent, "set")
    [shard] = [item.name for item in one_bucket.below("set/") if "00001" in item.name]
    damage(one_bucket, shard)
    with pytest.raises(DataUnusable, match=f"^gs://bucket/{shard}: .*{said}"):
        batches_of(f"{address}/manifest.json")


def test_a_shard_that_changes_while_it_is_read_is_noticed(bucket: Bucket, tmp_path: Path) -> None:
    address = upload(bucket, token_set(tmp_path).parent, "set")
    tokens = _TokenSet.open(storage.folder(f"{address}/manifest.json"))
    [shard] = [item.name for item in bucket.below("set/") if "00001" in item.name]
    change_a_shard(bucket, shard)
    assert tokens.read(0, 700).size == 700
    with pytest.raises(OSError, match="has changed since it was opened"):
        tokens.read(0, 701)


def test_a_range_whose_answer_stalls_is_asked_again(
    bucket_server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_REQUEST_S", 1)
    bucket_server.stall_s = 1.5
    address = upload(Bucket("gs", "bucket"), token_set(tmp_path).parent, "set")
    tokens = _TokenSet.open(storage.folder(f"{address}/manifest.json"))
    bucket_server.fault = lambda _, __: None if bucket_server.faults else STALLED
    assert tokens.read(10, 20).size == 20
    assert bucket_server.faults == 1


# --- weights


def test_weights_of_a_bucket_are_those_of_a_folder(
    one_bucket: Bucket, bucket_server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several files, on a mesh, in rows that are read a few at a time, a tenth failing."""
    monkeypatch.setattr(read, "_ROWS_BYTES", 20_000)
    folder = write_model(tmp_path / "model", config_of("mixtral"), parts=3)
    program = program_from(folder, fsdp=2, expert=2, tensor=2)
    address = upload(one_bucket, folder, "models/mixtral")
    with_faults(bucket_server, 0.1)
    with _WeightFolder.open(storage.folder(address)) as source:
        weights = read._weights_of(program, source)
        there = read._with_published(program.state["parameters"], weights, source)
    here = parameters_from(program)
    same = jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), here, there)
    assert jax.tree.all(same)
    assert bucket_server.faults > 3


def test_devices_that_share_rows_read_them_once(
    one_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that a host reads are those of the model, whatever its mesh."""
    folder = write_model(tmp_path / "model", config_of("llama"))
    program = program_from(folder, fsdp=4, tensor=2)
    address = upload(one_bucket, folder, "model")
    read_bytes: list[int] = []
    original = StoredInput.read

    def counted(stored: StoredInput, start: int, stop: int) -> bytes:
        read_bytes.append(stop - start)
        return original(stored, start, stop)

    with _WeightFolder.open(storage.folder(address)) as source:
        weights = read._weights_of(program, source)
        monkeypatch.setattr(StoredInput, "read", counted)
        read._with_published(program.state["parameters"], weights, source)
        assert sum(read_bytes) == 4 * sum(prod(source.shape(name)) for name in source.names())


def no_header(content: bytes) -> bytes:
    return b"\xff" * 8 + content[8:]


def no_json(content: bytes) -> bytes:
    return content[:8] + b"x" + content[9:]


def short(content: bytes) -> bytes:
    return content[:-64]


def of_another_type(content: bytes) -> bytes:
    return content.replace(b'"F32"', b'"Q32"', 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no_header, "no header of safetensors"),
        (no_json, "a header that is not JSON"),
        (short, "does not lie inside the file"),
        (of_another_type, "of a type or a shape that is not read"),
        (lambda _: b"", "too short for safetensors"),
    ],
)
def test_a_damaged_file_of_weights_is_not_read(
    one_bucket: Bucket, tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    address = upload(one_bucket, write_model(tmp_path / "m", config_of("llama")), "model")
    file = "model/model.safetensors"
    one_bucket.replace(file, damage(one_bucket.read(file)[0]))
    with (
        pytest.raises(DataUnusable, match=f"^{address}: its weights cannot be read: .*{said}"),
        _WeightFolder.open(storage.folder(address)),
    ):
        pass


def test_exported_weights_get_the_config_and_the_tokenizer_of_their_start(
    one_bucket: Bucket, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", config_of("llama"))
    (folder / "tokenizer.json").write_text("{}")
    start = StartingWeights(huggingface=upload(one_bucket, folder, "model"))
    with _start_folder(replace(plan_of(), start=start), tmp_path) as copy:
        assert copy is not None
        assert (copy / "config.json").read_bytes() == (folder / "config.json").read_bytes()
        found = [path.name for name in _COMPANIONS for path in copy.glob(name)]
        assert found == ["tokenizer.json"]
        assert not list(copy.glob("*.safetensors"))


# --- the spec


def test_a_spec_with_addresses_is_planned_without_a_connection(
    bucket_server: BucketServer, tmp_path: Path
) -> None:
    """A rehearsal asks the bucket, and says what is not there."""
    data = "experiment.data={kind: tokens, path: 's3://bucket/set/manifest.json'}"
    path = Path("specs/tiny_2pod.yaml")
    spec = load(path, [data, "run.evaluation.path=gs://bucket/held-out/manifest.json"])
    assert list(missing_inputs(spec, tmp_path)) == []
    assert bucket_server.requests == []
    buckets.bucket("s3", "bucket").create("set/manifest.json", b"{}")
    with pytest.raises(SpecError, match=r"evaluation.path: gs://bucket/held-out/manifest.json is"):
        _check_inputs(spec, path)
    buckets.bucket("gs", "bucket").create("held-out/manifest.json", b"{}")
    _check_inputs(spec, path)


def test_runs_are_not_put_where_a_copy_would_hide_them() -> None:
    """They would be this machine's alone, and nobody would notice."""
    with pytest.raises(SpecProblems) as caught:
        load(Path("specs/tiny_2pod.yaml"), ["run.storage=gs://bucket/ray/runs"])
    assert [problem.code for problem in caught.value.problems] == ["reserved-name"]
