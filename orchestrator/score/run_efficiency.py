"""What a run reached that was made with other software than the plans of this project.

The constants are those of plans; the kernel, the software and what a figure averages change some.
"""

from dataclasses import replace

from orchestrator.catalog import Efficiency, LearnedConstant
from orchestrator.catalog.efficiency import OTHER, REFERENCE
from orchestrator.score.published_runs import PublishedRun

# The older kernel takes as long for a score of a wide head as for one of 128.
FLASH_HEAD = 128
# Exchanges over `tensor` are sent piece by piece, next to matmuls, by software that asks for it.
# Others leave it to the compiler, and wait for the whole.
IN_PIECES = frozenset({REFERENCE})
NOTHING, ALL = LearnedConstant(value=0.0), LearnedConstant(value=1.0)


def as_run(efficiency: Efficiency, run: PublishedRun) -> Efficiency:
    """The constants for a run's steady step, and the spread for its software."""
    name = run.software.name
    return replace(
        efficiency,
        attention=attention_of(efficiency, run),
        exposed_tensor=efficiency.exposed_tensor if name in IN_PIECES else ALL,
        spread=efficiency.reference_spread if name == REFERENCE else efficiency.spread,
    )


def attention_of(efficiency: Efficiency, run: PublishedRun) -> LearnedConstant:
    """The share of the peak that the run's kernel reaches."""
    if run.software.kernel != "flash":
        return efficiency.attention
    flash = efficiency.flash_attention
    return replace(flash, value=min(flash.value / flash_cost(run), 1.0))


def flash_cost(run: PublishedRun) -> float:
    """Time of the older kernel over its time with a head of 128, for the same FLOPs."""
    return FLASH_HEAD / max(run.model.head_dim, FLASH_HEAD)


def added_share(efficiency: Efficiency, run: PublishedRun) -> float:
    """The share of the figure that its software adds, and that a whole run does beside steps."""
    software = efficiency.software.get(run.software.name, efficiency.software.get(OTHER, NOTHING))
    return software.value + (efficiency.run_share.value if run.software.averages == "run" else 0.0)
