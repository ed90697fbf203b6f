"""Room for the KV cache, as logs of engines state it, against the ledger of serving."""

from orchestrator.catalog.chips import FOLDER
from orchestrator.evidence.score.serving_runs import laid_out, model_of, needed, read, types_of
from orchestrator.formatting import GIB
from orchestrator.serving.step import as_float
from orchestrator.values.codec import Value

MEMORY = FOLDER / "serving_memory.csv"


class ServingRoom(Value):
    """Bytes that a device has for the cache: those of a log, and those that the ledger leaves of
    the share of its memory that the engine may take.
    """

    id: str
    document: str
    chip: str
    room_bytes: float
    expected_room_bytes: float
    room_error: float
    baseline_room_error: float


def rooms() -> tuple[ServingRoom, ...]:
    found = []
    for row in read(MEMORY):
        chip, model = row["chip"].lower(), model_of(row)
        engine = row["framework"].split(" ")[0].lower()
        weights, kv_cache = types_of(row, engine)
        tensor = int(needed(row, "tp"))
        layout = laid_out(chip, model, weights, kv_cache, (1, tensor, 1))
        if row.get("cache_gib"):
            measured = needed(row, "cache_gib") * GIB
        else:
            measured = needed(row, "cache_tokens") * as_float(layout.cache_bytes(1.0))
        allowed = needed(row, "memory_share") * needed(row, "device_gib") * GIB
        step = layout.activation_bytes(needed(row, "step_tokens"), needed(row, "most_requests"))
        left = allowed - as_float(layout.weights_bytes)
        # SGLang's share counts weights and cache only.
        expected = left if engine == "sglang" else left - as_float(step)
        found.append(
            ServingRoom(
                id=f"{row['framework']} {row['model']} {chip}x{tensor} {weights}/{kv_cache}",
                document=row["source"].split("@")[0],
                chip=chip,
                room_bytes=measured,
                expected_room_bytes=expected,
                room_error=expected / measured - 1,
                baseline_room_error=left / measured - 1,
            )
        )
    return tuple(found)
