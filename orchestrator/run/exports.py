"""Specs, plans and weights in the forms of other tools, and the schemas of what orch prints."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from orchestrator.errors import CheckpointFailed, OrchError, SpecError, UnknownName
from orchestrator.evidence.explain.formula import Explanation
from orchestrator.evidence.explain.serving import ServingExplanation
from orchestrator.evidence.score.gpu import GpuScore
from orchestrator.evidence.score.samples import Score
from orchestrator.evidence.score.serving import ServingScore
from orchestrator.interop.kubernetes import SPEC_FILE, ManifestKind, manifests, runs_folder
from orchestrator.interop.maxtext.conversion import ImportedSpec, convert
from orchestrator.interop.maxtext.exported_run import MaxTextRun, run_of
from orchestrator.interop.maxtext.recipe import read_recipe
from orchestrator.interop.slurm import slurm_script
from orchestrator.journal.listing import find_run
from orchestrator.planning.calibrated import ChipProfile
from orchestrator.planning.diff_plans import PlanDiff
from orchestrator.planning.offers import Offers, PlanWithOdds
from orchestrator.plugins import require
from orchestrator.processes import MODULE
from orchestrator.proving.choose import ProgramSearch
from orchestrator.proving.compare import ProofDiff
from orchestrator.reading.examples import chip_files, spec_text
from orchestrator.reading.huggingface import config_of, same_config
from orchestrator.reading.load import input_paths, places
from orchestrator.reading.nodes import read
from orchestrator.reading.schema import schema_text, serving_schema, spec_schema, study_schema
from orchestrator.run.calibrate import OwnScore
from orchestrator.run.progress import RUNS, Progress, TaskEnded, UnitsDone, silent
from orchestrator.run.specs import SpecSource, loaded, planned
from orchestrator.serving.cheapest import ServingOffers
from orchestrator.serving.frontier import ServingFrontier
from orchestrator.serving.load import ServingLoad
from orchestrator.storage.addresses import folder as storage_folder
from orchestrator.storage.addresses import input_path, is_address, stored_inputs
from orchestrator.values import codec, run, study
from orchestrator.values.plan import ErrorReport, Plan
from orchestrator.values.profile import Profile
from orchestrator.values.proof import Proof
from orchestrator.values.report import Report
from orchestrator.values.run import ExportedWeights, WeightsRequest, WeightsResult, WeightType
from orchestrator.values.serving import ServingPlan
from orchestrator.values.slowdowns import HostCheck

_TASK = "weights"
_COMMAND = (*MODULE, "trainers.huggingface.write")
_PACK_COMMAND = (*MODULE, "trainers.data.pack")
_CONFIG = "config.json"
_PLAN, _CHECKPOINTS = "plan.json", "checkpoints"  # of a run of `python -m trainers`
# What goes with weights besides their config: the tokenizer, and how text is generated.
_COMPANIONS = (
    "tokenizer*", "special_tokens_map*", "vocab.*", "merges.txt", "chat_template*",
    "generation_config*",
)  # fmt: skip


def export(
    kind: ManifestKind, spec: SpecSource, overrides: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the Kubernetes objects that run the plan of a spec, in the order of their creation."""
    found, plan = planned(loaded(spec, overrides), None)
    for key, path in input_paths(found) if kind != "ray" else ():
        if not is_address(path) and not Path(path).is_absolute():
            there = f"{runs_folder(found)}/{path}"
            raise SpecError(
                f"{key}: {path} is relative to the folder of the spec, which no pod has: name a"
                f" place in a bucket, or a path in the pods, for example --set {key}={there}"
            )
    files = chip_files(found)
    text = spec_text(found, next(iter(files), None))
    return manifests(kind, found, plan, {SPEC_FILE: text, **files})


def export_slurm(spec: SpecSource, overrides: Sequence[str] = ()) -> str:
    """Return a script for sbatch that runs the plan of a spec on nodes of GPUs."""
    found, plan = planned(loaded(spec, overrides), None)
    # A file of its own for each plan, as scripts of others may share the working directory.
    files = {f".orch/{plan.digest[:8]}/{name}": text for name, text in chip_files(found).items()}
    return slurm_script(found, plan, spec_text(found, next(iter(files), None)), files)


def import_maxtext(
    sources: Sequence[str | Path],
    *,
    device: str | None = None,
    slices: int | None = None,
    command: int | None = None,
) -> ImportedSpec:
    """Return the spec of a MaxText run, from files (YAML, scripts) and `key=value` words in order.
    Where they do not say so, `device` and `slices` are the chips (v6e-256 and 2), and `command` is
    the number of one of a script's training commands.
    """
    texts = []
    for source in sources:
        if isinstance(source, str) and ("=" in source or "\n" in source):
            texts.append(("words", source))
        else:
            texts.append((str(Path(source)), "\n".join(read(Path(source)).lines)))
    return convert(read_recipe(texts, command), device, slices)


def export_maxtext(spec: SpecSource, overrides: Sequence[str] = ()) -> MaxTextRun:
    """Return the plan of a spec as a run of MaxText; `SpecError` lists what it has no words for."""
    _, plan = planned(loaded(spec, overrides), None)
    place_of = places(Path(spec), overrides) if isinstance(spec, str | Path) else lambda _: ""
    return run_of(plan, place_of)


def pack(arguments: Sequence[str]) -> int:
    """Make a token set as `orch data pack` does, and return its exit code. It prints."""
    with subprocess.Popen([*_PACK_COMMAND, *arguments]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # it has one too: wait until it has cleaned up
                continue


def export_weights(
    run: str,
    out: str | Path,
    storage: str | Path = RUNS,
    *,
    dtype: WeightType | None = None,
    step: int | None = None,
    progress: Progress | None = None,
) -> ExportedWeights:
    """Write the weights of a run's newest checkpoint, or that of `step`, as a new folder that
    `transformers` loads; in the parameters' type unless `dtype` is given. `run` may also be a
    directory of `python -m trainers`.
    """
    require("prove")
    # A checkpoint of the directory of `python -m trainers`, or of a run in the storage.
    path, sha256, spec_folder = Path(run), None, Path()
    if (path / _PLAN).is_file():  # nobody recorded these checkpoints
        try:
            plan = codec.from_json((path / _PLAN).read_bytes(), Plan)
        except (OSError, msgspec.DecodeError) as error:
            raise SpecError(f"{path / _PLAN}: not a plan: {error}") from error
        names = [entry.name for entry in path.glob(f"{_CHECKPOINTS}/*") if entry.name.isdecimal()]
        step = _checked_step(str(path), sorted(map(int, names)), step)
        checkpoint = path / _CHECKPOINTS / str(step)
    else:
        journal = find_run(storage_folder(storage), run)
        state, plan = journal.state(), journal.plan(journal.run().plan_digest)
        saves = {save.step: save for save in state.saves}
        step = _checked_step(journal.key, sorted(saves), step)
        checkpoint, sha256 = journal.paths.checkpoint(saves[step]), saves[step].sha256
        spec_folder = Path(state.submitted.submission.folder)
    dtype = dtype or plan.precision.parameters
    with _start_folder(plan, spec_folder) as source:
        companions = [path for name in _COMPANIONS for path in source.glob(name)] if source else []
        config = source and same_config(source, plan.model)
        config = config or config_of(plan.model, plan.batch.length, dtype)
        request = WeightsRequest(
            plan=codec.to_json(plan).decode(),
            checkpoint=str(checkpoint),
            sha256=sha256,
            out=str(Path(out)),
            dtype=dtype,
            config=config,
            copies=tuple(str(path) for path in companions if path.is_file()),
        )
        result = _write_weights(request, progress or silent)
    return ExportedWeights(
        folder=str(Path(out)),
        model=plan.model.name,
        architecture=str(config["architectures"][0]),
        step=step,
        dtype=dtype,
        parameters=result.parameters,
        files=result.files,
    )


@contextmanager
def _start_folder(plan: Plan, spec_folder: Path) -> Iterator[Path | None]:
    """Yield the folder that a run started from; of one in a bucket, a copy without the weights."""
    folder = input_path(spec_folder, plan.start.huggingface) if plan.start else None
    objects = stored_inputs(folder, (_CONFIG, *_COMPANIONS)) if folder else None
    if objects is None:
        yield folder
        return
    with TemporaryDirectory(prefix="orch-") as copy:
        for name, stored in objects.items():
            (Path(copy) / name).write_bytes(stored.read(0, stored.size))
        yield Path(copy)


def _checked_step(run: str, steps: list[int], wanted: int | None) -> int:
    if not steps:
        raise CheckpointFailed(f"{run}: no checkpoint is saved yet")
    if wanted is not None and wanted not in steps:
        raise SpecError(f"{run}: no checkpoint of step {wanted}; there are {steps[-5:]}")
    return steps[-1] if wanted is None else wanted


def _write_weights(request: WeightsRequest, report: Progress) -> WeightsResult:
    """Let a process that knows JAX and the trainer write weights. It does not outlive this."""
    pipe = subprocess.PIPE
    with subprocess.Popen(_COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            with suppress(BrokenPipeError), process.stdin as stdin:  # a dead process says why below
                stdin.write(codec.to_json(request).decode() + "\n")
            for line in process.stdout:
                message: dict[str, Any] = json.loads(line)
                if "result" in message:
                    return msgspec.convert(message["result"], WeightsResult)
                report(UnitsDone(task=_TASK, unit="parameters", **message))
            said = process.stderr.read().strip().splitlines()
            said = said or ["the process that writes them died"]
            kind = SpecError if process.wait() == SpecError.exit_code else OrchError
            raise kind(said[-1].removeprefix("error: "))
        finally:
            process.kill()
            report(TaskEnded(task=_TASK))


# --- the JSON Schemas of what commands print with `--json`, generated from the values' types

_Schema = dict[str, Any]
_DEFS = "#/$defs/"
# Name of a schema → the type of the value, and the command that prints it.
_OUTPUTS: dict[str, tuple[type, str]] = {
    "error": (ErrorReport, "any command with --json that fails"),
    "plan": (PlanWithOdds, "orch plan SPEC --json"),
    "plan-diff": (PlanDiff, "orch plan SPEC OTHER --json"),
    "scaling": (study.ScalingForecast, "orch plan STUDY --json, of pods or topologies"),
    "sweep": (study.SweepForecast, "orch plan STUDY --json, of a sweep"),
    "offers": (Offers, "orch plan SPEC --by WHEN --json"),
    "serving-plan": (ServingPlan, "orch plan SPEC --json, of a serving spec"),
    "serving-offers": (ServingOffers, "orch plan SPEC --budget DOLLARS --json, of serving"),
    "serving-frontier": (ServingFrontier, "orch plan SPEC --frontier --json, of serving"),
    "serving-load": (ServingLoad, "orch plan SPEC --load poisson --json, of serving"),
    "serving-explanation": (ServingExplanation, "orch explain SPEC --json, of a serving spec"),
    "serving-score": (ServingScore, "orch score --kind serving --json"),
    "explanation": (Explanation, "orch explain SPEC --json"),
    "proof": (Proof, "orch prove SPEC --json"),
    "proof-diff": (ProofDiff, "orch prove SPEC OTHER --json"),
    "program-search": (ProgramSearch, "orch prove SPEC --search N --json"),
    "score": (Score, "orch score --json"),
    "own-score": (OwnScore, "orch score --own --json"),
    "gpu-score": (GpuScore, "orch score --kind gpu --json"),
    "run": (run.Run, "orch submit, resume, cancel --json; orch runs --json, each of the list"),
    "status": (run.Status, "orch status RUN --json"),
    "study-status": (study.StudyStatus, "orch status STUDY --json"),
    "log-line": (run.LogLine, "orch logs RUN --json, each line"),
    "report": (Report, "orch report RUN --json; orch compare --json, each of the list"),
    "step-profile": (Profile, "orch profile RUN --json"),
    "scaling-report": (study.ScalingReport, "orch report STUDY --json, of pods or topologies"),
    "sweep-report": (study.SweepReport, "orch report STUDY --json, of a sweep"),
    "sync": (run.SyncResult, "orch sync --json, each of the list"),
    "weights": (run.ExportedWeights, "orch export huggingface RUN OUT --json"),
    "health": (run.HealthReport, "orch doctor --json"),
    "run-health": (run.RunHealth, "orch doctor RUN --json"),
    "host-check": (HostCheck, "orch preflight RUN --json"),
    "profile": (ChipProfile, "orch calibrate --json"),
}
# Notes of keys that a person writes, which schemas of printed values leave out.
_SPEC_NOTES = ("notation", "computed", "default", "examples", "title")


def schema(name: str = "spec") -> str:
    """Return the JSON Schema of a `spec`, a `serving` spec, a `study`, or of a value that --json
    prints, as text.
    """
    files = {"spec": spec_schema, "serving": serving_schema, "study": study_schema}
    return schema_text(files[name]() if name in files else _output_schema(name))


def _output_schema(name: str) -> _Schema:
    """Return the schema of an output. Every key that it names is always printed, and no other."""
    if name not in _OUTPUTS:
        raise UnknownName("output", name, [*_OUTPUTS])
    kind, command = _OUTPUTS[name]
    [reference], sections = msgspec.json.schema_components([kind], ref_template=_DEFS + "{name}")
    defs = {key: _section(section) for key, section in sections.items()}
    top = defs.pop(reference["$ref"].removeprefix(_DEFS))
    if reference["$ref"] in json.dumps([top, defs]):  # a value of values of its kind
        defs[reference["$ref"].removeprefix(_DEFS)] = top
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:orch:output:{name}",
        "$comment": command,
    }
    return {**head, **top, "$defs": defs}


def _section(generated: _Schema) -> _Schema:
    if "properties" not in generated:
        return generated
    keys = {key: _key(schema) for key, schema in generated["properties"].items()}
    about = {"description": " ".join(generated.get("description", "").split())}
    return {
        **(about if about["description"] else {}),
        "type": "object",
        "additionalProperties": False,
        "required": list(keys),
        "properties": keys,
    }


def _key(schema: Any) -> Any:
    """Return the schema of a key as it is printed, at any depth."""
    if isinstance(schema, list):
        return [_key(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _key(value) for key, value in schema.items() if key not in _SPEC_NOTES}
