"""Specs as text, and the ways the tests of specs load them."""

from pathlib import Path

from orchestrator import reading
from orchestrator.reading.problems import Problem, SpecProblems
from orchestrator.values.spec import Spec

MINIMAL = """\
name: small
experiment:
  model: llama3-8b
  tokens: 15T
  batch: {sequences: 512, length: 8192}
resources: {chip: v5p, topology: 4x4x4}
"""

COMPLETE = """\
name: llama3-70b-4pod
experiment:
  model: llama3-70b            # a catalog name, a mapping, or {huggingface: config.json}
  tokens: 15T
  batch: {sequences: 1024, length: 4096, tolerance: 10%}
  optimizer: {name: adamw, peak_lr: 1.5e-4, warmup_steps: 2000, decay: cosine}
  precision: {parameters: fp32, compute: bf16, gradients: bf16, optimizer: fp32}
  remat: auto                  # none | full | a named policy | auto
  compiler_options: {}         # XLA options for the chip
  data: {kind: synthetic}
  seed: 0
resources:
  chip: v5p
  topology: 16x20x28
  pods: 4
  mesh: auto                   # or some of {data, fsdp, sequence, tensor}
run:
  trainer: llama
  steps: 1000                  # stop here, whatever `tokens` says; optional
  storage: runs/               # a path, mounted or local
  checkpoint: {every: 200, keep: 3}
  retries: {failures: 3, preemptions: 100}
  hang_limit: 10m
  secrets: [HF_TOKEN]          # names of environment variables, never values
cluster: {address: auto}       # where Ray is; absent: this machine
tracking: {uri: auto, experiment: llama3}
"""


def load_text(folder: Path, text: str, *overrides: str) -> Spec:
    """The spec that a text is, as a file of that folder."""
    return reading.load(write(folder, text), overrides)


def write(folder: Path, text: str) -> Path:
    """A text as a file, byte for byte."""
    path = folder / "spec.yaml"
    path.write_bytes(text.encode())
    return path


def problems_of(path: Path, *overrides: str) -> list[Problem]:
    """Everything that is wrong with a file; nothing when it loads."""
    try:
        reading.load(path, overrides)
    except SpecProblems as error:
        assert error.problems  # noqa: PT017 - the tests that call this say what they expect
        return error.problems
    return []
