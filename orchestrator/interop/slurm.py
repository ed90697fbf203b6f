"""The plan of a spec on nodes of GPUs as a script for Slurm: each node joins the run's folder as a
host of the backend `hosts`, and the first one also has the driver.
"""

from collections.abc import Mapping
from pathlib import PurePath
from shlex import quote

from orchestrator.catalog.chips import chip_of
from orchestrator.errors import SpecError
from orchestrator.planning.planner import ON_GPUS
from orchestrator.storage.addresses import is_address
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec

_SIGNAL_S = 300  # before the limit of time, for a last checkpoint
_END = "END_OF_SPEC"
_SCRIPT = """\
#!/bin/bash
# {name}: {chips:,} {chip} GPUs, {pods:,} x {topology}. Plan {digest}.
#   sbatch [options of your site, such as --account, --partition, --time] FILE
# The nodes need orch, its extra gpu, and one file system at the same path. A job that is put back
# into the queue, or submitted again, goes on from the run's last checkpoint.
#SBATCH --job-name={name}
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
#SBATCH --mem=0
{segment}#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@{signal_s}

set -euo pipefail
runs={runs}
meeting={meeting}
spec="$(mktemp -p . {name}-XXXXXX.yaml)"  # here, as its inputs may be relative
trap 'rm -f "$spec"' EXIT
cat > "$spec" <<'{end}'
{spec}{end}
{files}{prepared}export {environment}

# A host on each node; those of one NVLink domain are one slice.
export MEETING="$meeting"
srun --kill-on-bad-exit=0 bash -c 'exec python -P -m orchestrator.launch.hosts.host_process \\
  "$MEETING" --slice "slice-$((SLURM_PROCID / {hosts_per_slice}))" \\
  --host "$((SLURM_PROCID % {hosts_per_slice}))" --hosts {hosts_per_slice} --kind {kind}' &
nodes=$!

# The driver. On Slurm's signal before the limit of time the run stops after a last checkpoint. A
# run that stopped, for this or another reason, is resumed; one that has succeeded is left alone.
# A spec that is changed is another run: it needs another key.
key={key}
orch submit "$spec" --set run.storage="$runs" --set cluster.backend=hosts --code installed \\
  --no-prove --key "$key" --resume stopped --address "$meeting" --yes &
driver=$!
trap 'orch cancel "$key" --storage "$runs" || true' TERM
while kill -0 "$driver" 2>/dev/null; do wait "$driver" || true; done  # the trap ends a wait
ended=0
wait "$driver" || ended=$?
kill "$nodes" 2>/dev/null || true
exit "$ended"
"""


def slurm_script(spec: Spec, plan: Plan, spec_text: str, files: Mapping[str, str]) -> str:
    """Return the script, which also writes the `files` that the spec names."""
    chip = chip_of(plan)
    if not chip.switched:
        raise SpecError(
            f"resources.chip: {plan.chip} is a TPU, and Slurm has nodes of GPUs: orch export jobset"
        )
    runs, key = spec.run.storage, spec.name
    if any(_END in text.splitlines() for text in (spec_text, *files.values())):
        raise SpecError(f"a line of the spec is {_END}, where the script ends it: change that line")
    written = (
        f"mkdir -p {PurePath(path).parent}\ncat > {path} <<'{_END}'\n{text}{_END}\n"
        for path, text in files.items()
    )
    # A folder for each job, as hosts that are gone may still stand in an older one.
    meeting = f'"$runs/{"_hosts" if is_address(runs) else ".hosts"}/{key}-$SLURM_JOB_ID"'
    across = plan.hosts_per_slice > 1
    return _SCRIPT.format(
        name=spec.name,
        chip=plan.chip,
        chips=plan.chips,
        pods=plan.pods,
        topology=plan.topology,
        digest=plan.digest[:8],
        hosts=plan.hosts,
        gpus=plan.chips_per_host,
        # With the topology plugin for blocks, nodes of a segment share an NVLink domain.
        segment=f"#SBATCH --segment={plan.hosts_per_slice}\n" if across else "",
        signal_s=_SIGNAL_S,
        runs=quote(runs) if is_address(runs) else f'"$(realpath -m -- {quote(runs)})"',
        meeting=meeting,
        prepared="" if is_address(runs) else 'mkdir -p "$meeting"\n',
        environment=" ".join(f"{variable}={value}" for variable, value in ON_GPUS.items()),
        end=_END,
        spec=spec_text,
        files="".join(written),
        hosts_per_slice=plan.hosts_per_slice,
        kind=f'"{plan.slice_kind}"',
        key=quote(key),
    )
