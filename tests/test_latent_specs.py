"""Specs with latent attention: how its keys must go together."""

from pathlib import Path

import pytest

from orchestrator.reading.load import load
from orchestrator.reading.problems import SpecProblems
from orchestrator.values.model import LatentDimensions

SPEC = """
name: latent
experiment:
  model: {{layers: 2, d_model: 64, d_ff: 256, heads: 8, vocab: 128, {model}}}
  tokens: 1M
  batch: {{sequences: 8, length: 128}}
  remat: {remat}
resources: {{chip: v5p, topology: 2x2x1}}
"""
LATENT = "latent: {query_rank: 32, kv_rank: 16, nope_dim: 8, rope_dim: 8, value_dim: 16}"
RIGHT = f"kv_heads: 8, head_dim: 16, {LATENT}"


def written(folder: Path, model: str, remat: str = "full") -> Path:
    file = folder / "latent.yaml"
    file.write_text(SPEC.format(model=model, remat=remat))
    return file


def test_latent_attention_is_read(tmp_path: Path) -> None:
    """Its sizes, and a policy that keeps latents."""
    spec = load(written(tmp_path, RIGHT, "{latent: keep}"))
    assert spec.experiment.model.latent == LatentDimensions(
        query_rank=32, kv_rank=16, nope_dim=8, rope_dim=8, value_dim=16
    )


def test_two_sizes_follow_from_latents(tmp_path: Path) -> None:
    """`kv_heads` and `head_dim` may be left out; without latents they may not."""
    short = load(written(tmp_path, LATENT)).experiment.model
    assert short == load(written(tmp_path, RIGHT)).experiment.model
    assert (short.kv_heads, short.head_dim) == (8, 16)
    with pytest.raises(SpecProblems) as refused:
        load(written(tmp_path, "window: 64"))
    found = {(problem.key, problem.code) for problem in refused.value.problems}
    missing = {f"experiment.model.{key}" for key in ("kv_heads", "head_dim")}
    assert found == {(key, "missing-key") for key in missing}


@pytest.mark.parametrize(
    ("model", "remat", "key", "code"),
    [
        (f"kv_heads: 4, head_dim: 16, {LATENT}", "full", "model.kv_heads", "latent-kv-heads"),
        (f"kv_heads: 8, head_dim: 24, {LATENT}", "full", "model.head_dim", "latent-head-dim"),
        (f"{RIGHT}, qk_norm: head", "full", "model.qk_norm", "not-with-latent"),
        (
            RIGHT.replace("rope_dim: 8", "rope_dim: 9").replace("head_dim: 16", "head_dim: 17"),
            "full", "model.latent.rope_dim", "head-dim-odd",
        ),
        ("kv_heads: 8, head_dim: 16", "{latent: keep}", "remat.latent", "no-latent"),
    ],
)  # fmt: skip
def test_wrong_latents_are_refused(
    tmp_path: Path, model: str, remat: str, key: str, code: str
) -> None:
    """With the key, and what must be."""
    with pytest.raises(SpecProblems) as refused:
        load(written(tmp_path, model, remat))
    found = [(problem.key, problem.code) for problem in refused.value.problems]
    assert (f"experiment.{key}", code) in found
