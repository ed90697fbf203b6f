"""Writes the weights of a run as a Hugging Face folder."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from orchestrator.errors import CheckpointFailed, OrchError, SpecError
from orchestrator.journal.listing import find_run
from orchestrator.reading.huggingface_config import config_of, same_config
from orchestrator.run.progress import Progress, TaskEnded, UnitsDone
from orchestrator.storage.addresses import input_path, stored_inputs
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import ExportedWeights, WeightsRequest, WeightsResult, WeightType

TASK = "weights"
COMMAND = (sys.executable, "-m", "trainers.huggingface.write")
CONFIG = "config.json"
PLAN, CHECKPOINTS = "plan.json", "checkpoints"  # of a run of `python -m trainers`
# What goes with weights besides their config: the tokenizer, and how text is generated.
COMPANIONS = (
    "tokenizer*", "special_tokens_map*", "vocab.*", "merges.txt", "chat_template*",
    "generation_config*",
)  # fmt: skip


@dataclass(frozen=True)
class SavedWeights:
    """A checkpoint of a run, the plan of its trainer, and where the spec's paths begin."""

    plan: Plan
    checkpoint: Path
    step: int
    sha256: str | None
    folder: Path


def export_weights(
    run: str, storage: Path, out: Path, dtype: WeightType | None, step: int | None, report: Progress
) -> ExportedWeights:
    """Write the weights of a run's newest checkpoint, or of that step's."""
    saved = saved_weights(run, storage, step)
    plan, dtype = saved.plan, dtype or saved.plan.precision.parameters
    with start_folder(saved) as source:
        config = source and same_config(source, plan.model)
        config = config or config_of(plan.model, plan.batch.length, dtype)
        request = WeightsRequest(
            plan=codec.to_json(plan).decode(),
            checkpoint=str(saved.checkpoint),
            sha256=saved.sha256,
            out=str(out),
            dtype=dtype,
            config=config,
            copies=tuple(str(path) for path in companions(source)),
        )
        result = written(request, report)
    return ExportedWeights(
        folder=str(out),
        model=plan.model.name,
        architecture=str(config["architectures"][0]),
        step=saved.step,
        dtype=dtype,
        parameters=result.parameters,
        files=result.files,
    )


@contextmanager
def start_folder(saved: SavedWeights) -> Iterator[Path | None]:
    """The folder that a run started from; of one on a bucket a copy of all but the weights."""
    start = saved.plan.start
    folder = input_path(saved.folder, start.huggingface) if start else None
    objects = stored_inputs(folder, (CONFIG, *COMPANIONS)) if folder else None
    if objects is None:
        yield folder
        return
    with TemporaryDirectory(prefix="orch-") as copy:
        for name, stored in objects.items():
            (Path(copy) / name).write_bytes(stored.read(0, stored.size))
        yield Path(copy)


def saved_weights(run: str, storage: Path, step: int | None) -> SavedWeights:
    """The checkpoint of a run in the storage, or of the directory of `python -m trainers`."""
    path = Path(run)
    if (path / PLAN).is_file():
        return saved_by_trainers(path, step)
    journal = find_run(storage, run)
    state, now = journal.state(), journal.run()
    saves = {save.step: save for save in state.saves}
    save = saves[checked_step(journal.key, sorted(saves), step)]
    return SavedWeights(
        plan=journal.plan(now.plan_digest),
        checkpoint=journal.paths.checkpoint(save),
        step=save.step,
        sha256=save.sha256,
        folder=Path(state.submitted.submission.folder),
    )


def saved_by_trainers(path: Path, step: int | None) -> SavedWeights:
    """The same of a directory whose checkpoints nobody recorded."""
    try:
        plan = codec.from_json((path / PLAN).read_bytes(), Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise SpecError(f"{path / PLAN}: not a plan: {error}") from error
    names = [one.name for one in path.glob(f"{CHECKPOINTS}/*") if one.name.isdecimal()]
    step = checked_step(str(path), sorted(map(int, names)), step)
    return SavedWeights(plan, path / CHECKPOINTS / str(step), step, None, Path())


def checked_step(run: str, steps: list[int], wanted: int | None) -> int:
    """The step of a checkpoint that there is: the one that is wanted, or the newest."""
    if not steps:
        raise CheckpointFailed(f"{run}: no checkpoint is saved yet")
    if wanted is not None and wanted not in steps:
        raise SpecError(f"{run}: no checkpoint of step {wanted}; there are {steps[-5:]}")
    return steps[-1] if wanted is None else wanted


def companions(source: Path | None) -> Iterator[Path]:
    """Files that go along with the weights that a run started from."""
    if source is not None and source.is_dir():
        yield from (path for name in COMPANIONS for path in source.glob(name) if path.is_file())


def written(request: WeightsRequest, report: Progress) -> WeightsResult:
    """The result of a process that knows JAX and the trainer."""
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            return answer(process, request, report)
    finally:
        report(TaskEnded(task=TASK))


def answer(
    process: subprocess.Popen[str], request: WeightsRequest, report: Progress
) -> WeightsResult:
    """Send the request, and follow the process to its answer. It does not outlive this."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    try:
        with process.stdin as stdin:
            stdin.write(codec.to_json(request).decode() + "\n")
        for line in process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "result" in message:
                return msgspec.convert(message["result"], WeightsResult)
            report(UnitsDone(task=TASK, unit="parameters", **message))
        said = process.stderr.read().strip().splitlines() or ["the process that writes them died"]
        kind = SpecError if process.wait() == SpecError.exit_code else OrchError
        raise kind(said[-1].removeprefix("error: "))
    finally:
        process.kill()


# Makes token sets, in a process that knows trainers.


PACK_COMMAND = (sys.executable, "-m", "trainers.data.pack")


def pack(arguments: Sequence[str]) -> int:
    """The exit code of the process; it prints for itself."""
    with subprocess.Popen([*PACK_COMMAND, *arguments]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # it has one too: wait until it has cleaned up
                continue
