"""The screen of weights that were written."""

from orchestrator.formatting import counted
from orchestrator.types.weights import ExportedWeights


def weights_screen(weights: ExportedWeights) -> str:
    files = counted(weights.files, "file")
    loads = f"AutoModelForCausalLM.from_pretrained({weights.folder!r})"
    return (
        f"{weights.folder}: {weights.parameters:,} parameters of {weights.model} after step"
        f" {weights.step:,}, {weights.dtype}, {files}\n"
        f"Next: {loads}  # {weights.architecture}\n"
    )
