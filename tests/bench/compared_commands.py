"""What compare_checkouts asks two checkouts of the project.

Module names may differ between them: only commands, the public API and the rows of the benches are
used. Nothing of the project is imported here.
"""

from pathlib import Path

PARTS = ("plans", "bench", "scores", "explain", "offers", "refusals", "screens", "proofs")
SHOWN_ONLY = "screens"

# Both checkouts run these programs: they may use only `ROWS`, `spec()` and the public API.
PROGRAM = """
import json, pathlib, sys, tempfile, msgspec, orchestrator as orch
from tests.bench import maxtext_plans, proof_rows
found = {}
%s
sys.stdout.buffer.write(msgspec.json.encode(found, order="sorted"))
"""
PROOF_ROWS = """
for row in proof_rows.ROWS:
    found[str(row)] = orch.plan(row.spec())
"""
MAXTEXT_ROWS = """
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "spec.yaml")
for row in maxtext_plans.ROWS:
    words = [" ".join(row.words)]
    spec = orch.import_maxtext(words, device=row.device, slices=row.slices).values
    path.write_text(json.dumps(spec))
    found[str(row)] = {"spec": spec, "plan": orch.plan(path)}
"""
PROVE_ROW = """
(row,) = [row for row in proof_rows.ROWS if str(row) == sys.argv[1]]
found = orch.prove(row.spec()).proof
"""

FLAGSHIP = "specs/llama3_70b_4pod.yaml"
PAIRS = (
    f"specs/llama3_70b_1pod.yaml {FLAGSHIP}",
    f"{FLAGSHIP} {FLAGSHIP} --set experiment.remat=full",
    "specs/mixtral_8x7b_v5p.yaml specs/deepseek_v3_tpu7x.yaml",
    "specs/llama3_70b_v5e_8slice.yaml specs/llama3_8b_v6e_2slice.yaml",
)
OFFERS = (
    f"{FLAGSHIP} --by 30d",
    f"{FLAGSHIP} --by 1d --budget 1k",
    "specs/llama3_70b_3slice.yaml --budget 50M --prices spot",
    "specs/mixtral_8x7b_v5p.yaml --by 40d --chips v5p,tpu7x",
    "specs/llama3_405b_stages.yaml --prices on-demand",
    "specs/tiny_2pod.yaml --set resources.topology=auto",
)
SCORES = ("score", *(f"score --without {kind}" for kind in ("document", "group", "software")))
REFUSALS = (
    *(f"{FLAGSHIP} --set {override}" for override in (
        "resources.topology=2x2x1", "resources.mesh.tensor=3", "resources.mesh.fsdp=7",
        "resources.chip=h100", "experiment.batch.sequences=7", "run.trainer=nobody.here",
        "experiment.remat=none --set resources.mesh.tensor=1 --set resources.mesh.sequence=1",
    )),
    "specs/mixtral_8x7b_v5p.yaml --set resources.mesh.expert=3",
    "specs/llama3_405b_1slice.yaml --set resources.topology=4x4x4",
    "specs/llama3_405b_stages.yaml --set resources.topology=4x4x4",
    "specs/studies/llama3_70b_pods.yaml --set resources.topology=2x2x1",
    "specs/studies/tiny_sweep.yaml --alternatives 2",
    "specs/tiny_2pod.yaml --stage 1",
    "specs/nothing.yaml",
)  # fmt: skip
PROOFS = ("specs/tiny_2pod.yaml", "specs/tiny_mixture.yaml", "specs/tiny_stages.yaml", FLAGSHIP)
ROWS = (
    "llama-1b v5e 4x4 1.4.1.4, 64 x 4096, none",
    "ungated-13b v5p 4x4x4 1.16.1.4, 64 x 2048, keep_mlp",
    "128-experts-capacity v5p 4x4x4 1.16.4.1.1, 256 x 4096, full",
    "llama3-8b v6e 16x16 2.16.8.1, 64 x 32768, full",
    "llama3-70b v6e 4 x 16x16 1.64.1.4, 512 x 4096, full",
)


def commands_of(checkout: Path, part: str) -> dict[str, list[str]]:
    """Name → command: what is fixed, and what is asked about each spec that the checkout has."""
    if part == "bench":
        programs = {"proof rows": PROOF_ROWS, "maxtext rows": MAXTEXT_ROWS}
        return {name: ["python", "-c", PROGRAM % code] for name, code in programs.items()}
    if part == "proofs":
        rows = {name: ["python", "-c", PROGRAM % PROVE_ROW, name] for name in ROWS}
        return {f"prove {spec}": ["orch", "prove", spec, "--json"] for spec in PROOFS} | rows

    def found(pattern: str) -> list[str]:
        return sorted(str(path.relative_to(checkout)) for path in checkout.glob(pattern))

    specs, studies = found("specs/*.yaml"), found("specs/studies/*.yaml")
    stages = [f"{spec} --stage {n}" for spec in specs if "stages" in spec for n in range(1, 9)]
    plans = [f"plan {words}" for words in (*specs, *studies, *stages, *PAIRS)]
    explained = [f"explain {words}" for words in (*specs, *stages)]
    offers = [f"plan {words}" for words in OFFERS]
    refused = [f"plan {words}" for words in (*found("tests/specs_bad/*.yaml"), *REFUSALS)]
    full = [f"plan {words} --full" for words in (*specs, *studies)]
    with_json = {
        "plans": [*plans, *(f"plan {spec} --alternatives 4" for spec in specs)],
        "scores": SCORES,
        "explain": explained,
        "offers": offers,
        "refusals": refused,
    }.get(part, ())
    texts = {"refusals": refused, SHOWN_ONLY: [*plans, *full, *explained, *offers, *SCORES[:2]]}
    lines = [*texts.get(part, ()), *(f"{line} --json" for line in with_json)]
    return {line: ["orch", *line.split()] for line in lines}
