"""A run of one's own as a row of published_runs.csv, which others can score and learn from."""

import csv
import io

from orchestrator.errors import SpecError
from orchestrator.evidence.score import run_work
from orchestrator.evidence.score.published_runs import _COLUMNS, _SOFTWARE_COLUMNS, Row, run_of
from orchestrator.evidence.score.samples import OWN_SOFTWARE
from orchestrator.network.decoder import BLOCK_INPUT
from orchestrator.network.rematerialization import TENSORS, policy
from orchestrator.values.codec import short
from orchestrator.values.plan import Plan
from orchestrator.values.report import Report

_HEAD = (*_COLUMNS, *_SOFTWARE_COLUMNS)
_SAME = 0.01  # relative: FLOPs of the row's model and of the plan's
_BLOCK = 512  # tokens that the trainer's attention takes at a time, with one backward kernel
_TYPES = {"bf16": "bfloat16", "fp32": "float32"}
_AXES = ("pods", "fsdp_dcn", "data", "fsdp", "sequence", "tensor")  # that columns say
_CPU = "cpu"  # the chip of a rehearsal's row: nothing is learned from it for chips


def own_row(report: Report, plan: Plan, processor: str) -> Row:
    """Return the row of a run; an error says what rows cannot say of it, or what it lacks."""
    if report.measured is None:
        raise SpecError(f"run {report.run} has no measured step: its first one warms up")
    model, mesh = plan.model, plan.mesh
    if model.moe or model.latent:
        raise SpecError(
            f"model {model.name} has experts or latent attention: write its row by hand, with the"
            " columns of mixture_runs.csv"
        )
    if other := [axis for axis, size in mesh.items() if size > 1 and axis not in _AXES]:
        raise SpecError(f"its mesh has {', '.join(other)}, which no column of a row says")
    how = policy(plan.remat)
    names: dict[str, list[str]] = {"device": [], "offload": []}
    for name, tensor in TENSORS.items():  # the first of MaxText's names of each tensor
        where = {"keep": "device", "offload": "offload"}.get(how.treatment(tensor))
        used = [TENSORS[known] for known in (*names["device"], *names["offload"])]
        if where and tensor not in used and " " not in tensor and tensor:
            names[where].append(name)
    if how.treatment(BLOCK_INPUT) == "offload":
        names["offload"].append("decoder_layer_input")
    custom = " ".join(word for where, kept in names.items() if kept for word in (where, *kept))
    notes = [f"plan {short(report.plan_digest)}", f"weight_dtype {plan.precision.parameters}"]
    notes += ["tied embeddings"] if model.tied else []
    notes += [f"local window {model.window}"] if model.window else []
    notes += [f"a rehearsal of {plan.chip} on {processor}"] if report.rehearsal else []
    cells: dict[str, object] = {
        "id": report.run, "chip": plan.chip, "num_chips": plan.chips, "num_slices": plan.pods,
        "topology": plan.topology, "model": model.name, "params_b": f"{model.parameters / 1e9:.4g}",
        "layers": model.layers, "d_model": model.d_model, "d_ff": model.d_ff,
        "n_heads": model.heads, "n_kv_heads": model.kv_heads, "head_dim": model.head_dim,
        "vocab": model.vocab, "gated_mlp": int(model.gated), "seq_len": plan.batch.length,
        "global_batch_tokens": plan.batch.tokens, "dcn_dp": mesh["pods"],
        "dcn_fsdp": mesh["fsdp_dcn"], "ici_fsdp": mesh["fsdp"], "ici_tp": mesh["tensor"],
        "ici_sp": mesh["sequence"], "microbatches": plan.batch.microbatches,
        "remat_policy": f"custom: {custom}" if custom else "full",
        "compute_dtype": _TYPES.get(plan.precision.compute, plan.precision.compute),
        "optimizer": plan.optimizer.name, "notes": "; ".join(notes),
        "step_time_s": f"{report.measured.step_s.median:.6g}", "software": OWN_SOFTWARE,
        "kernel": "splash-fused", "attention_block": _BLOCK, "averages": "steps",
    }  # fmt: skip
    row = {column: str(cells.get(column, "")) for column in _HEAD} | {"line": "1"}
    run = run_of(row)
    ours = run_work.counted_flops_per_token(run, run_work.OURS)
    counted = plan.forecast.model_flops_per_step / plan.batch.tokens
    if abs(ours / counted - 1) > _SAME:
        raise SpecError(
            f"model {model.name} has parts that no column says: {counted / 1e9:.4g} GFLOP a token,"
            f" and {ours / 1e9:.4g} by the row; publish the run with its spec in place of a row"
        )
    return row | {"chip": _CPU} if report.rehearsal else row


def csv_text(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _HEAD, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
