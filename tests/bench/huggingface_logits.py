"""Logits of small models by `transformers`, for tests/golden/huggingface_logits.npz.

    python -m tests.bench.huggingface_logits write FOLDER     in the project's environment
    python tests/bench/huggingface_logits.py logits FOLDER    in one with torch and transformers

`make bench-huggingface` does both. Of 512 tokens the file has the best next word of each, and the
logits of the last 32.
"""

import sys
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent.parent / "golden" / "huggingface_logits.npz"
TOKENS, KEPT = "tokens.npy", 32


def write(folder: Path) -> None:
    """A folder for every architecture, with the tokens to read."""
    from tests.huggingface_models import FAMILIES, config_of, tokens_of, write_model  # noqa: PLC0415

    for name in FAMILIES:
        made = write_model(folder / name, config_of(name))
        np.save(made / TOKENS, tokens_of(name))


def logits(folder: Path) -> None:
    """The logits of every folder, into the golden file."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    found = {}
    for path in sorted(folder.iterdir()):
        model, loaded = AutoModelForCausalLM.from_pretrained(
            path, attn_implementation="eager", output_loading_info=True
        )
        assert not any(loaded.values()), f"{path.name}: not the same weights: {loaded}"
        model = model.float()
        with torch.no_grad():
            of_model = model(torch.from_numpy(np.load(path / TOKENS))).logits.numpy()[0]
        found[f"{path.name} best"] = of_model.argmax(-1).astype(np.int16)
        found[f"{path.name} logits"] = of_model[-KEPT:]
        print(f"{path.name}: largest logit {np.abs(of_model).max():.2f}")
    np.savez_compressed(GOLDEN, **found)


if __name__ == "__main__":
    {"write": write, "logits": logits}[sys.argv[1]](Path(sys.argv[2]))
