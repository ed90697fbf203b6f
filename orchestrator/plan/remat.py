"""Plan room: what each rematerialization policy keeps, recomputes and offloads."""

from dataclasses import dataclass

from orchestrator.errors import UnknownName

# Tensors that the trainer's layer names, in the order it makes them. The block input is always
# kept. `attention` goes with its log-sum-exp, so that the attention kernel is not run again.
KEEPABLE = ("q", "k", "v", "attention", "mid", "gate", "up")


@dataclass(frozen=True)
class Policy:
    """Tensors of a layer kept for its backward pass, in HBM or on the host."""

    name: str
    kept: frozenset[str]
    offloaded: bool = False
    offloads_block_input: bool = False

    def recomputes(self, tensor: str) -> bool:
        return tensor not in self.kept

    @property
    def needs_host(self) -> bool:
        return self.offloaded or self.offloads_block_input


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("none", frozenset(KEEPABLE)),
        Policy("keep_qkv", frozenset({"q", "k", "v", "attention", "mid"})),
        Policy("keep_mlp", frozenset({"gate", "up"})),
        Policy("keep_attention", frozenset({"attention"})),
        Policy("full", frozenset()),
        Policy("offload_qkv", frozenset({"q", "k", "v", "attention", "mid"}), offloaded=True),
        Policy("offload_input", frozenset(), offloads_block_input=True),
    )
}


def policy(name: str) -> Policy:
    """The policy of that name; unknown is an error that lists the known."""
    if name not in POLICIES:
        raise UnknownName("remat policy", name, [*POLICIES, "auto"])
    return POLICIES[name]
