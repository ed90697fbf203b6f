"""The files that `orch data pack` reads. What is not there is said in a sentence that helps."""

import re
from pathlib import Path

from orchestrator.errors import DataUnusable
from orchestrator.formatting import counted
from orchestrator.storage.addresses import SCHEMES

TOKENIZER = "tokenizer.json"
ALL = "*"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")  # as Hugging Face names models
FETCH = "hf download {name} tokenizer.json tokenizer_config.json --local-dir {folder}"


def files_of(inputs: list[Path], glob: str) -> list[Path]:
    """The files of the inputs; those below a folder in order of name."""
    files: list[Path] = []
    for path in inputs:
        check_local(path, "copy its texts here first")
        if path.is_dir():
            files += _files_below(path, glob)
        elif path.is_file():
            files.append(path)
        else:
            raise DataUnusable(f"{path}: no such file or folder; name files of text, or a folder")
    return files


def _files_below(folder: Path, glob: str) -> list[Path]:
    """Hidden files and caches are left out."""
    paths = [path.relative_to(folder) for path in folder.rglob(ALL) if path.is_file()]
    visible = [path for path in paths if not any(map(_is_hidden, path.parts))]
    if not visible:
        raise DataUnusable(f"{folder}: has no files; name the folder that has the texts")
    try:
        matching = {path.relative_to(folder) for path in folder.rglob(glob)} & set(visible)
    except (ValueError, NotImplementedError) as error:  # it is empty, or begins at the root
        raise DataUnusable(
            f"--glob {glob!r}: must be a pattern of names, such as '*.txt'"
        ) from error
    if not matching:
        endings = sorted({f"'*{path.suffix}'" for path in visible})[:3]
        raise DataUnusable(
            f"{folder}: no file matches --glob {glob!r}, of {counted(len(visible), 'file')}; try"
            f" {' or '.join(endings)}"
        )
    return [folder / path for path in sorted(matching)]


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__pycache__"


def tokenizer_file(name: str) -> Path:
    """The file of a tokenizer that is named by it, or by its folder."""
    path = Path(name)
    check_local(path, "copy its tokenizer.json here first")
    if path.is_dir():
        if not (path / TOKENIZER).is_file():
            raise DataUnusable(f"{name}: has no {TOKENIZER}; name the folder of a model that has")
        return path / TOKENIZER
    if path.is_file():
        return path
    if REPOSITORY.fullmatch(name):
        fetch = FETCH.format(name=name, folder=path.name)
        raise DataUnusable(
            f"{name}: no such file, and nothing is fetched; after `{fetch}` write --tokenizer"
            f" {path.name}"
        )
    raise DataUnusable(
        f"{name}: no such file; --tokenizer takes a {TOKENIZER}, the folder that has it, or bytes"
    )


def check_local(path: Path, instead: str) -> None:
    """Refuse the address of a bucket, which would be a path of this machine here."""
    scheme, *rest = path.parts or ("",)
    if scheme.removesuffix(":") in SCHEMES and scheme.endswith(":"):
        raise DataUnusable(f"{scheme}//{'/'.join(rest)}: is on a bucket; {instead}")
