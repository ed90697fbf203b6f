"""Everything that training needs of JAX without a public name, and no other file: a release may
change it. Tried with the versions of jax that pyproject.toml pins.
"""

import functools
from collections.abc import Iterable
from typing import Any

import jax
from jax._src import cache_key, distributed
from jax._src import lib as jax_lib
from jax.interpreters.partial_eval import dce_jaxpr


def listen_on(address: str) -> None:
    """Let gloo listen on one address only. Call this before JAX makes its devices."""
    jaxlib: Any = jax_lib._jax  # type: ignore[attr-defined]
    make = functools.partial(jaxlib.make_gloo_tcp_collectives, hostname=address)
    jaxlib.make_gloo_tcp_collectives = make


def process_messages() -> Any:
    """Return the client of the service that the processes of a run share."""
    return distributed.global_state.client


def key_programs_by(machine: bytes) -> bool:
    """Store compiled programs by a machine, in place of the process that compiles for its CPU."""
    if not hasattr(cache_key, "_hash_accelerator_config"):
        return False
    cache_key._hash_accelerator_config = lambda hashed, _: hashed.update(machine)  # type: ignore[assignment]
    return True


def residuals(pull: Any) -> list[jax.Array]:
    """Return what a pull-back of `jax.vjp` keeps, but for all arguments before the last."""
    return jax.tree.leaves((pull.args_res[-1], pull.opaque_residuals))


def replace_residuals(pull: Any, kept: Iterable[jax.Array]) -> None:
    tree = jax.tree.structure((pull.args_res[-1], pull.opaque_residuals))
    pull.args_res[-1], pull.opaque_residuals = jax.tree.unflatten(tree, kept)


def needs(jaxpr: Any, output: int) -> bool:
    """Return whether an output of a program depends on any input."""
    return any(dce_jaxpr(jaxpr, [n == output for n in range(len(jaxpr.outvars))])[1])
