"""A bare JaxTrainer script: what a person would write who has no orchestrator. For the bench.

python -m tests.bench.bare_launch PLAN STEPS OUT
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.launch.ray.attempt import join_cluster
from orchestrator.launch.ray.slices import kind_of
from orchestrator.values import codec
from orchestrator.values.plan import Plan


def train(config: dict[str, Any]) -> None:
    """Nothing but the steps; the first process writes when each of them ended."""
    import jax  # noqa: PLC0415  only the workers need it

    from trainers import llama  # noqa: PLC0415
    from trainers.contract import build, place  # noqa: PLC0415
    from trainers.data.batches import batch_source  # noqa: PLC0415

    plan = codec.from_json(Path(config["plan"]).read_bytes(), Plan)
    program = build(llama, plan, jax.devices())
    batches = batch_source(plan)
    step = program.lowered().compile()
    state: Any = program.init(plan.seed)
    ended = []
    for index in range(config["steps"]):
        rows = partial(rows_of, batches, index)
        state, metrics = step(state, place(program, rows), *program.rate(index))
        float(metrics["loss"])
        ended.append(time.time())
    if jax.process_index() == 0:
        Path(config["out"]).write_text(json.dumps(ended), encoding="utf-8")


def rows_of(batches: Any, index: int, start: int, stop: int) -> Any:
    """Some rows of the batch of a step."""
    return batches.batch(index, range(start, stop))


def main(plan_path: str, steps: str, out: str) -> None:
    """Fit it on the slices of the plan."""
    from ray.train.v2.api.config import RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.v2.jax import JaxTrainer  # noqa: PLC0415

    plan = codec.from_json(Path(plan_path).read_bytes(), Plan)
    join_cluster(os.environ["RAY_ADDRESS"])
    JaxTrainer(
        train_loop_per_worker=train,
        train_loop_config={"plan": plan_path, "steps": int(steps), "out": out},
        scaling_config=ScalingConfig(
            use_tpu=True,
            topology=plan.topology,
            accelerator_type=kind_of(plan).accelerator,
            num_workers=plan.hosts,
            resources_per_worker={"TPU": plan.chips_per_host},
        ),
        run_config=RunConfig(name="bare", storage_path=str(Path(out).parent)),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
