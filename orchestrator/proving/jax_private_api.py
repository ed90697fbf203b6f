"""Everything that proofs need of JAX without a public name, and no other file: a release may change
it. Tried with the versions of jax that pyproject.toml pins.
"""

import jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jaxlib import _hlo  # type: ignore[attr-defined]  # its stub is missing

_CUDNN = 91000  # the version that GPUs are described with


def program_text(executable: jax.stages.Compiled) -> str:
    """The program's text with its constants' numbers: jax has no public name for this option."""
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    program = executable.runtime_executable()
    assert program is not None
    return "\n\n".join(module.to_string(options) for module in program.hlo_modules())


def answer_for_cudnn() -> None:
    """Lower cuDNN's attention without a GPU: jax would ask the GPU for its cuDNN and its
    capability. The chips of the catalog have both.
    """
    cudnn.check_cudnn_version = lambda: _CUDNN
    cudnn.check_compute_capability = lambda _: True
