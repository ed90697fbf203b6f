"""Files that somebody else made and a spec or a command names: none makes a process wait or fail
without a word.
"""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from orchestrator.errors import DataUnusable
from trainers.checkpoint import step_folders
from trainers.data import pack
from trainers.data import tokens as manifest
from trainers.data.pack import _HuggingFaceTokenizer
from trainers.huggingface.read import CONFIG, INDEX, ONE_FILE, _WeightFolder

DEEP = '{"a":' * 100_000
VALUE = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def weights(path: Path, header: dict[str, object], size: int = 16) -> None:
    """A file of safetensors."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder of weights."""
    (tmp_path / CONFIG).write_text('{"model_type": "llama"}')
    weights(tmp_path / ONE_FILE, {"a": VALUE})
    with _WeightFolder.open(tmp_path) as folder:
        assert folder.read("a", slice(0, 2)).tolist() == [0.0, 0.0]
    return tmp_path


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 50 << 30)


def deep(path: Path) -> None:
    path.write_text(DEEP)


@pytest.mark.parametrize("name", [CONFIG, INDEX, ONE_FILE])
@pytest.mark.parametrize("make", [pipe, device, deep])
def test_weights_are_files_with_an_end(
    published: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(published / name)
    with pytest.raises(DataUnusable), _WeightFolder.open(published):
        pass


@pytest.mark.parametrize(
    "header",
    [
        {"a": VALUE, "b": VALUE | {"data_offsets": [8, 24]}},
        {"a": VALUE | {"data_offsets": [16, 0]}},
        {"a": VALUE | {"shape": [1 << 62, 4]}},
        {"a": VALUE | {"dtype": "F8_E4M3", "shape": [16]}},
    ],
)
def test_arrays_that_overlap_or_have_another_type_are_refused(
    published: Path, header: dict[str, object]
) -> None:
    weights(published / ONE_FILE, header)
    with pytest.raises(DataUnusable), _WeightFolder.open(published) as folder:
        folder.read("a", slice(0, 1))


@pytest.mark.parametrize("make", [pipe, device, deep, hole])
def test_a_manifest_is_a_small_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "manifest.json")
    with pytest.raises(DataUnusable):
        manifest._TokenSet.open(tmp_path / "manifest.json")


@pytest.mark.parametrize("file", ["/dev/zero", "s\0.bin", "pipe"])
def test_a_shard_is_a_file(tmp_path: Path, file: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    shards = [{"file": file, "tokens": 4, "sha256": ""}]
    told = {"tokenizer": "bytes", "vocab": 257, "dtype": "uint16", "shards": shards}
    (tmp_path / "manifest.json").write_text(json.dumps(told))
    with pytest.raises(DataUnusable):
        manifest._TokenSet.open(tmp_path / "manifest.json")


@pytest.mark.parametrize("make", [pipe, deep, lambda path: path.write_text('{"eos_token": [1]}')])
def test_a_config_beside_a_tokenizer_names_its_end_or_nothing(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"a": 0, "u": 1}, unk_token="u")).save(str(tokenizer))
    make(tmp_path / "tokenizer_config.json")
    with pytest.raises(DataUnusable, match="--end"):
        _HuggingFaceTokenizer(tokenizer)


@pytest.mark.parametrize("row", [DEEP, '{"text": "\\ud800"}'])
def test_a_row_that_is_no_text_is_named(tmp_path: Path, row: str) -> None:
    tokenizer, rows = tmp_path / "tokenizer.json", tmp_path / "rows.jsonl"
    Tokenizer(WordLevel({"a": 0, "u": 1}, unk_token="u")).save(str(tokenizer))
    rows.write_text(row + "\n")
    with pytest.raises(DataUnusable, match=r"rows\.jsonl"):
        list(_HuggingFaceTokenizer(tokenizer, "a").pieces(rows))


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_shard_has_tokens(tmp_path: Path, tokens: int) -> None:
    (tmp_path / "text").write_text("x")
    with pytest.raises(DataUnusable, match="at least 1"):
        pack.pack(tmp_path / "out", [tmp_path / "text"], shard_tokens=tokens)


def test_a_link_to_nothing_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataUnusable, match="already exists"):
        pack.pack(tmp_path / "out", [tmp_path / "text"])


def test_sums_of_a_checkpoint_are_no_pipe(tmp_path: Path) -> None:
    """A rank, or an export, would wait for ever for who writes it."""
    os.mkfifo(tmp_path / step_folders._CHECKSUMS)
    assert "cannot be read" in str(step_folders.StepFolders(tmp_path.parent).fault(tmp_path.name))
