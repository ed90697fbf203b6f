"""The files that a run reads: checks of those that this machine has, and which are missing."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from orchestrator.network.decoder import decoder
from orchestrator.reading import huggingface
from orchestrator.reading.instance import SpecInstance
from orchestrator.reading.problems import FileReference, Problem, SpecProblems, named_by
from orchestrator.storage.addresses import has_input, input_path, is_address
from orchestrator.values.spec import Spec

CONFIG = "config.json"
_START = "experiment.start.huggingface"


def check_inputs(spec: Spec, file: SpecInstance, folder: Path) -> None:
    """Raise `SpecProblems` where weights are of another model, or data are no token set.

    What this machine does not have, or a bucket has, is for the hosts that train to find.
    """
    problems = [*_start_problems(spec, file, folder)] or [*_data_problems(spec, file, folder)]
    if problems:
        raise SpecProblems(problems)


def _start_problems(spec: Spec, file: SpecInstance, folder: Path) -> Iterator[Problem]:
    start, model = spec.experiment.start, spec.experiment.model
    if start is None or is_address(start.huggingface) or not (folder / start.huggingface).exists():
        return
    place = file.place(_START)
    config = folder / start.huggingface / CONFIG
    try:
        theirs = huggingface.model_of(config, model.name)
    except SpecProblems as error:
        yield from named_by(FileReference(place, _START), error.problems)
        return
    if not any(config.parent.glob("*.safetensors")):
        message = "has no safetensors, must be a folder with the weights of a model"
        yield place.problem("no-weights", _START, message)
    elif decoder(theirs) != decoder(model):
        ours = asdict(model)
        names = ", ".join(key for key, value in asdict(theirs).items() if value != ours[key])
        message = f"has weights of another model, must be this one's: {names} differ"
        hint = f"for example model: {{huggingface: {start.huggingface}/{CONFIG}}}"
        yield place.problem("other-model", _START, message, hint)


def _data_problems(spec: Spec, file: SpecInstance, folder: Path) -> Iterator[Problem]:
    for key, path in _data_paths(spec):
        found, manifest = folder / path, Path(path) / "manifest.json"
        is_text = found.is_file() and found.suffix != ".json"
        if is_address(path) or not (found.is_dir() or is_text):
            continue
        if (folder / manifest).is_file():
            code = "folder-of-a-set"
            message = "is the folder of a token set, must be its manifest"
            hint = f"for example path: {manifest}"
        else:
            code = "no-token-set"
            message = f"is {path}, which holds text, must be the manifest of a token set"
            pack = f"orch data pack tokens {found} --tokenizer tokenizer.json makes one"
            hint = f"{pack}; then write path: tokens/manifest.json"
        yield file.place(key).problem(code, key, message, hint, found=found)


def _data_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield every path of tokens, with its key."""
    sources = {"experiment.data": spec.experiment.data}
    if stages := spec.experiment.stages:
        sources = {f"experiment.stages.{n}.data": stage.data for n, stage in enumerate(stages)}
    yield from ((f"{key}.path", data.path) for key, data in sources.items() if data.path)
    if spec.run.evaluation and spec.run.evaluation.path:
        yield "run.evaluation.path", spec.run.evaluation.path


def missing_inputs(spec: Spec, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the key and path of each file that this machine lacks: hosts that train may have it.

    Paths are relative to the folder of the spec. Buckets are not asked.
    """
    for key, path in _input_paths(spec):
        if not is_address(path) and not (folder / path).exists():
            yield key, path


def absent_objects(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the key and address of each input that its bucket does not have; buckets are asked."""
    for key, path in _input_paths(spec):
        if is_address(path) and not has_input(input_path(Path(), path)):
            yield key, path


def _input_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    if start := spec.experiment.start:
        yield _START, start.huggingface
    yield from _data_paths(spec)
