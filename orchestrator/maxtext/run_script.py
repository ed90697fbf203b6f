"""A run of MaxText as the shell script that starts it with xpk."""

from orchestrator.maxtext.exported_run import MaxTextRun

TRAIN = "python3 -m maxtext.trainers.pre_train.train"
COMPILE = "python3 -m maxtext.trainers.pre_train.train_compile"
CONFIG = "src/maxtext/configs/base.yml"


def script_of(run: MaxTextRun) -> str:
    """The script. The cluster and the bucket are for whoever runs it to set."""
    words = " \\\n".join(run.words)
    flags = " \\\n".join(run.options)
    return f"""\
#!/bin/bash
# {run.name}: {run.slices} x {run.device}, as it is planned.
# It needs CLUSTER_NAME and BASE_OUTPUT_DIR, trains on random tokens, and saves no checkpoints.
{_ahead_of_time(run)}set -eu
XLA_FLAGS="{flags}"
MAXTEXT_ARGS="\\
{words} \\
base_output_directory=${{BASE_OUTPUT_DIR}}"

xpk workload create \\
  --cluster=${{CLUSTER_NAME}} \\
  --workload={run.name} \\
  --device-type={run.device} \\
  --num-slices={run.slices} \\
  --command="export LIBTPU_INIT_ARGS='${{XLA_FLAGS}}' && \\
{TRAIN} {CONFIG} ${{MAXTEXT_ARGS}}"
"""


def _ahead_of_time(run: MaxTextRun) -> str:
    """How MaxText compiles the run without chips, where it knows such slices."""
    if not run.topology:
        return ""
    slices = f"compile_topology={run.topology} compile_topology_num_slices={run.slices}"
    flags = ' compile_xla_flags="$XLA_FLAGS"' if run.flags else ""
    return f"# To compile it without chips:\n# {COMPILE} {CONFIG} $MAXTEXT_ARGS {slices}{flags}\n"
