"""Token sets: packed whole or not at all, checked, and shuffled: every token once an epoch."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from orchestrator.errors import DataUnusable
from orchestrator.storage.addresses import file_digest
from orchestrator.values.spec import DataSource
from tests.trainer_plans import TINY, plan_of
from trainers.data import pack
from trainers.data import tokens as manifests
from trainers.data.batches import Synthetic, batch_source
from trainers.data.pack import _Encoder, _HuggingFaceTokenizer, _TokenArrays
from trainers.data.tokens import ShuffledWindows, _TokenSet

COUNTING = _TokenArrays(name="counting", vocab=1 << 20)


def counting_set(folder: Path, tokens: int, shard_tokens: int = 1 << 20) -> Path:
    """A set in which token i is i, so that every use of a token can be seen."""
    array = folder / "counting.npy"
    np.save(array, np.arange(tokens))
    pack.pack(folder / "set", [array], COUNTING, shard_tokens=shard_tokens)
    return folder / "set" / manifests.FILE_NAME


def batches_over(path: Path, sequences: int, length: int, seed: int = 0) -> ShuffledWindows:
    return ShuffledWindows(_TokenSet.open(path), sequences, length, seed)


# Packing


@given(
    texts=st.lists(st.binary(max_size=300), min_size=1, max_size=6),
    shard_tokens=st.integers(1, 200),
)
def test_packed_text_reads_back(
    texts: list[bytes], shard_tokens: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A byte is a token, 256 ends each document, and shards break the text anywhere."""
    folder = tmp_path_factory.mktemp("pack")
    files = [folder / f"{number}.txt" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text)
    manifest = pack.pack(folder / "set", files, shard_tokens=shard_tokens)
    expected = [token for text in texts for token in [*text, 256]]
    source = _TokenSet.open(folder / "set" / manifests.FILE_NAME, verify=True)
    assert source.read(0, len(expected)).tolist() == expected
    assert manifest.tokens == len(expected)
    assert [shard.tokens for shard in manifest.shards[:-1]] == [shard_tokens] * (
        len(manifest.shards) - 1
    )


@pytest.mark.parametrize(
    ("vocab", "dtype"), [(65_536, "uint16"), (65_537, "uint32"), (1 << 20, "uint32")]
)
def test_tokens_are_stored_in_the_smallest_type(vocab: int, dtype: str, tmp_path: Path) -> None:
    """The highest token of the vocabulary survives in it."""
    np.save(tmp_path / "a.npy", np.array([vocab - 1, 0]))
    tokenizer = _TokenArrays(name="x", vocab=vocab)
    assert pack.pack(tmp_path / "set", [tmp_path / "a.npy"], tokenizer).dtype == dtype
    source = _TokenSet.open(tmp_path / "set" / manifests.FILE_NAME)
    assert source.read(0, 2).tolist() == [vocab - 1, 0]


def test_raw_arrays_are_read_in_the_type_of_the_set(tmp_path: Path) -> None:
    """A .bin file holds the tokens as the set will: little-endian, no header."""
    np.arange(1000, dtype="<u2").tofile(tmp_path / "a.bin")
    tokenizer = _TokenArrays(name="x", vocab=1000)
    pack.pack(tmp_path / "set", [tmp_path / "a.bin"], tokenizer)
    source = _TokenSet.open(tmp_path / "set" / manifests.FILE_NAME)
    assert source.read(0, 1000).tolist() == list(range(1000))


TEN = _TokenArrays(name="ten", vocab=10)
BAD_INPUTS: dict[str, tuple[str, Any, _Encoder, str]] = {
    "too high": ("a.npy", np.array([1, 10]), TEN, "token 10, against 0 to 9"),
    "negative": ("a.npy", np.array([-1]), TEN, "token -1, against 0 to 9"),
    "two axes": ("a.npy", np.zeros((2, 2), int), TEN, "against a row of integers"),
    "floats": ("a.npy", np.zeros(2), TEN, "against a row of integers"),
    "torn": ("a.bin", b"abc", TEN, "not an array of tokens"),
    "garbage": ("a.npy", b"garbage", TEN, "not an array of tokens"),
    "empty": ("a.npy", b"", TEN, "not an array of tokens"),
    "text as an array": ("a.txt", b"text", TEN, "neither .npy nor .bin"),
    "an array as text": ("a.npy", np.array([1]), pack._BYTES, "name the tokenizer"),
}


@pytest.mark.parametrize("kind", BAD_INPUTS)
def test_what_cannot_be_packed_leaves_nothing(kind: str, tmp_path: Path) -> None:
    """The error names the input and what is wrong with it; no set and no remains appear."""
    name, content, tokenizer, reason = BAD_INPUTS[kind]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        np.save(tmp_path / name, content)
    with pytest.raises(DataUnusable, match=reason) as raised:
        pack.pack(tmp_path / "out" / "set", [tmp_path / name], tokenizer)
    assert str(tmp_path / name) in str(raised.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_set_is_never_written_over(tmp_path: Path) -> None:
    """Packing where something stands is refused, and what stands there stays."""
    path = counting_set(tmp_path, 10)
    before = path.read_bytes()
    with pytest.raises(DataUnusable, match="already exists"):
        pack.pack(path.parent, [tmp_path / "counting.npy"], COUNTING)
    assert path.read_bytes() == before


def test_the_command_packs_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that match are taken in order of name; hidden ones and caches are not."""
    for name in ("b.py", "a/c.py", "a/d.txt", ".git/e.py", "a/__pycache__/f.py"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    code = pack.main([str(tmp_path / "set"), str(tmp_path / "in"), "--glob", "*.py"])
    assert code == 0
    assert "12 tokens of 2 files in 1 shard, vocabulary 257" in capsys.readouterr().out
    source = _TokenSet.open(tmp_path / "set" / manifests.FILE_NAME)
    assert source.read(0, 12).tolist() == [*b"a/c.py", 256, *b"b.py", 256]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["set"], "usage"), (["set", "nowhere"], "data_unusable"), (["in", "in"], "data_unusable")],
)
def test_the_command_fails_in_json(
    arguments: list[str],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("text")
    assert pack.main([*arguments, "--json"]) == 2
    value = json.loads(capsys.readouterr().out)
    assert (value["code"], value["exit_code"]) == (code, 2)
    assert pack.main(["set", "in", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab"] == 257


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        ([".", "--glob", "*.zzz"], ".: no file matches --glob '*.zzz', of 1 file; try '*.txt'"),
        ([".", "--glob", "/x"], "must be a pattern of names"),
        (["empty"], "empty: has no files"),
        (["gs://bucket/texts"], "gs://bucket/texts: is on a bucket; copy its texts here"),
        (["a.txt", "--tokenizer", "nope"], "nope: no such file; --tokenizer takes"),
        (["a.txt", "--tokenizer", "empty"], "empty: has no tokenizer.json"),
        (["a.txt", "--tokenizer", "a.txt"], "a.txt: not a tokenizer"),
        (["a.txt", "--tokenizer", "org/model"], "after `hf download org/model tokenizer.json"),
        (["a.txt", "--tokenizer", "s3://a/b"], "s3://a/b: is on a bucket"),
    ],
)
def test_the_command_names_what_it_cannot_find(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An input without files is an error in one line, and exit code 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    assert pack.main(["set", *arguments]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 2  # the error, and what to do next


# Reading


@given(
    tokens=st.integers(30, 300),
    length=st.integers(1, 9),
    sequences=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_an_epoch_uses_every_token_once(
    tokens: int, length: int, sequences: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No token twice; those left out are fewer than a window, and begin the next epoch."""
    path = counting_set(tmp_path_factory.mktemp("set"), tokens, shard_tokens=17)
    batches = batches_over(path, sequences, length, seed)
    steps = 2 * batches.windows // sequences + 1
    rows = np.concatenate([batches.batch(step, range(sequences)) for step in range(steps)])
    first, second = (rows[i * batches.windows :][: batches.windows, :-1] for i in (0, 1))
    left_out = np.setdiff1d(np.arange(tokens), first)
    assert len(np.unique(first)) == first.size == tokens - len(left_out)
    assert len(np.unique(second)) == second.size
    assert len(left_out) < length
    assert np.isin(left_out, second).all()


def test_a_window_knows_its_last_target(tmp_path: Path) -> None:
    """Rows are runs of the set, one token longer than the window, around its end."""
    rows = batches_over(counting_set(tmp_path, 100, shard_tokens=7), 10, 10).batch(0, range(10))
    assert rows.shape == (10, 11)
    assert np.array_equal(rows, (rows[:, :1] + np.arange(11)) % 100)
    assert sorted(rows[:, 0]) == list(range(0, 100, 10))


def test_epochs_are_shuffled_differently(tmp_path: Path) -> None:
    """The same windows come in another order."""
    batches = batches_over(counting_set(tmp_path, 640), 64, 10)
    first, second = batches.batch(0, range(64)), batches.batch(1, range(64))
    assert sorted(first[:, 0]) == sorted(second[:, 0])
    assert not np.array_equal(first, second)


def test_any_step_is_found_without_the_ones_before(tmp_path: Path) -> None:
    """A process that starts late, and makes some rows alone, makes what another made before."""
    path = counting_set(tmp_path, 1000, shard_tokens=33)
    first = batches_over(path, 6, 10)
    history = [first.batch(step, range(6)) for step in range(40)]
    later = batches_over(path, 6, 10)
    assert np.array_equal(later.batch(39, range(2, 5)), history[39][2:5])


def test_a_set_too_small_for_one_batch_is_refused(tmp_path: Path) -> None:
    """The error says how many windows there are and how many sequences were asked."""
    path = counting_set(tmp_path, 99)
    with pytest.raises(DataUnusable, match="99 tokens are 9 windows of 10, against 10 sequences"):
        batches_over(path, 10, 10)
    assert batches_over(path, 9, 10).windows == 9


def test_a_vocabulary_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    """A set whose tokens the model has no row for does not open."""
    path = counting_set(tmp_path, 5000)
    data = DataSource(kind="tokens", path=str(path))
    reason = f"against a model vocabulary of {TINY.vocab}"
    with pytest.raises(DataUnusable, match=reason):
        batch_source(replace(plan_of(), data=data))


def test_the_plan_names_its_batches(tmp_path: Path) -> None:
    """Synthetic text and token sets are found by the plan, and differ in their digests."""
    np.save(tmp_path / "a.npy", np.arange(5000) % TINY.vocab)
    tokenizer = _TokenArrays(name="x", vocab=TINY.vocab)
    pack.pack(tmp_path / "set", [tmp_path / "a.npy"], tokenizer)
    data = DataSource(kind="tokens", path=str(tmp_path / "set" / manifests.FILE_NAME))
    sources = [batch_source(plan_of()), batch_source(replace(plan_of(), data=data))]
    assert [type(source) for source in sources] == [Synthetic, ShuffledWindows]
    assert sources[0].digest != sources[1].digest
    for source in sources:
        assert source.batch(0, range(16)).shape == (16, 33)


def test_a_token_beyond_the_vocabulary_is_found_when_it_is_read(tmp_path: Path) -> None:
    """A damaged shard does not reach the embedding: the error says where the token stands."""
    path = counting_set(tmp_path, 1000)
    shard = path.parent / "tokens-00000.bin"
    damaged = bytearray(shard.read_bytes())
    damaged[4 * 321 : 4 * 322] = b"\xff\xff\xff\xff"
    shard.write_bytes(damaged)
    with pytest.raises(DataUnusable, match=r"tokens-00000.bin: token 321 is 4294967295"):
        batches_over(path, 100, 10).batch(0, range(100))


def test_a_flipped_byte_is_found_on_request(tmp_path: Path) -> None:
    """Sizes are always checked; contents when asked for, against the sha256 of the shard."""
    path = counting_set(tmp_path, 1000)
    shard = path.parent / "tokens-00000.bin"
    damaged = bytearray(shard.read_bytes())
    damaged[40] ^= 1
    shard.write_bytes(damaged)
    assert _TokenSet.open(path).manifest.tokens == 1000
    with pytest.raises(DataUnusable, match="has changed since it was packed"):
        _TokenSet.open(path, verify=True)


def test_a_torn_or_missing_shard_is_found_at_once(tmp_path: Path) -> None:
    """Opening holds each shard's size against the manifest."""
    path = counting_set(tmp_path, 1000)
    shard = path.parent / "tokens-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataUnusable, match="3999 bytes, against 4000 in the manifest"):
        _TokenSet.open(path)
    shard.unlink()
    with pytest.raises(DataUnusable, match="shard cannot be read: No such file"):
        _TokenSet.open(path)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"tokenizer": "x", "vocab": 3, "dtype": "int8", "shards": []}']
)
def test_a_file_that_is_no_manifest_is_named(text: str, tmp_path: Path) -> None:
    """Whatever stands there instead of a manifest, the error names the file."""
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataUnusable, match=r"manifest\.json: not a token set manifest"):
        _TokenSet.open(tmp_path / "manifest.json")


def test_a_manifest_is_plain_json(tmp_path: Path) -> None:
    """People and other programs can read it."""
    path = counting_set(tmp_path, 10)
    assert msgspec.json.decode(path.read_bytes()) == {
        "dtype": "uint32",
        "schema": 1,
        "shards": [
            {
                "file": "tokens-00000.bin",
                "sha256": file_digest(path.parent / "tokens-00000.bin"),
                "tokens": 10,
            }
        ],
        "tokenizer": "counting",
        "vocab": 1 << 20,
    }


# Text with a tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of six words, as transformers saves one."""
    folder = tmp_path_factory.mktemp("words")
    words = {"<end>": 0, "<other>": 1, "one": 2, "two": 3, "three": 4, "four": 5}
    made = Tokenizer(WordLevel(words, unk_token="<other>"))
    made.pre_tokenizer = Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    return folder


def write_gzip(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def write_parquet(path: Path, rows: list[str]) -> None:
    parquet.write_table(pa.table({"id": range(len(rows)), "text": rows}), path)


ROWS = ["one two", "three", "", "four two"]
LINES = "".join(json.dumps({"text": row}) + "\n\n" for row in ROWS)
PACKED = [2, 3, 0, 4, 0, 0, 5, 3, 0]


def packed(folder: Path, *options: str) -> list[int]:
    """The tokens of a set that the command makes of what is in the folder `in`."""
    assert pack.main([str(folder / "set"), str(folder / "in"), *options]) == 0
    source = _TokenSet.open(folder / "set" / manifests.FILE_NAME, verify=True)
    return [int(token) for token in source.read(0, source.manifest.tokens)]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "txt"])
def test_text_is_packed_with_a_tokenizer(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    """A document ends with the tokenizer's end of text; rows are documents, other files are one."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / f"a.{kind}"
    if kind == "jsonl.gz":
        write_gzip(file, LINES)
    elif kind == "parquet":
        write_parquet(file, ROWS)
    else:
        file.write_text(LINES if kind == "jsonl" else "one two\nthree")
    expected = [2, 3, 4, 0] if kind == "txt" else PACKED
    assert packed(tmp_path, "--tokenizer", str(tokenizer)) == expected


def test_bytes_of_json_lines_are_not_their_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever left the tokenizer out is told so."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(LINES)
    packed(tmp_path)
    assert "warning: the tokenizer bytes takes" in capsys.readouterr().out


def test_the_set_knows_its_tokenizer(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one")
    file = str(tokenizer / "tokenizer.json")
    assert packed(tmp_path, "--tokenizer", file, "--end", "four") == [2, 5]
    manifest = manifests._TokenSet.open(tmp_path / "set" / manifests.FILE_NAME).manifest
    assert (manifest.tokenizer, manifest.vocab) == (tokenizer.name, 6)


def test_without_an_end_of_text_a_token_is_proposed(tmp_path: Path) -> None:
    """One that no text is made of."""
    made = Tokenizer(WordLevel({"<other>": 0}, unk_token="<other>"))
    made.add_special_tokens(["<|end of text|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataUnusable, match=re.escape("--end, such as '<|end of text|>'")):
        _HuggingFaceTokenizer(tmp_path / "tokenizer.json")


BAD_TEXTS: dict[str, tuple[str, bytes, tuple[str, ...], str]] = {
    "no JSON": ("a.jsonl", b'{"text": "one"}\n{"text', (), "a.jsonl:2"),
    "another key": ("a.jsonl", b'{"body": "one"}\n', (), "body"),
    "no object": ("a.jsonl", b'"one"\n', (), "a.jsonl:1"),
    "a number": ("a.jsonl", b'{"text": 1}\n', (), "a.jsonl:1"),
    "not UTF-8": ("a.txt", b"one \xff", (), "byte 4"),
    "no Parquet": ("a.parquet", b"garbage", (), "not Parquet"),
    "no such token": ("a.txt", b"one", ("--end", "<none>"), "<none>"),
}


@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_text_that_cannot_be_packed_is_said(
    kind: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, content, options, reason = BAD_TEXTS[kind]
    (tmp_path / name).write_bytes(content)
    arguments = [str(tmp_path / "set"), str(tmp_path / name), "--tokenizer", str(tokenizer)]
    assert pack.main([*arguments, *options]) == 2
    assert reason in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_a_tokenizer_without_an_end_has_to_be_told_one(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    with pytest.raises(DataUnusable, match="--end"):
        _HuggingFaceTokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataUnusable, match="not a tokenizer"):
        _HuggingFaceTokenizer(tmp_path / "tokenizer.json")
