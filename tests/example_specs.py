"""Specs for tests of plans, built without a file."""

from orchestrator import catalog
from orchestrator.planning.ranking import best_choice
from orchestrator.planning.search import Choice, SearchRequest, search
from orchestrator.values.model import Model
from orchestrator.values.spec import (
    Batch,
    Experiment,
    MeshRequest,
    Pods,
    Precision,
    Remat,
    Resources,
    Spec,
)

TINY = Model(
    name="tiny", layers=2, d_model=64, d_ff=192, heads=8, kv_heads=4, head_dim=16, vocab=384
)


def spec_of(
    model: str | Model = "llama3-70b",
    *,
    sequences: int = 1024,
    length: int = 4096,
    tolerance: float = 0.1,
    chip: str = "v5p",
    topology: str = "16x20x28",
    pods: int = 4,
    mesh: MeshRequest | None = None,
    remat: Remat = "auto",
    precision: Precision | None = None,
    tokens: int = 15 * 10**12,
) -> Spec:
    """A spec; by default Llama 3 70B on four pods of v5p, as in the book."""
    return Spec(
        name="asked",
        experiment=Experiment(
            model=catalog.model(model) if isinstance(model, str) else model,
            tokens=tokens,
            batch=Batch(sequences=sequences, length=length, tolerance=tolerance),
            precision=precision or Precision(),
            remat=remat,
        ),
        resources=Resources(
            chip=chip,
            topology=topology,
            pods=Pods(min=pods, max=pods),
            mesh=mesh or MeshRequest(),
        ),
    )


def chosen(request: SearchRequest) -> Choice:
    """The choice of its search, which has one."""
    choice = best_choice(request, search(request).candidates)
    assert choice is not None
    return choice
