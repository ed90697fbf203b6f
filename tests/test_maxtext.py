"""Recipes of MaxText as specs: what each key becomes, and what is refused by name."""

import math
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import orchestrator as api
from orchestrator.interop.maxtext.conversion import convert
from orchestrator.interop.maxtext.recipe import RecipeProblems, read_recipe
from orchestrator.interop.maxtext.used_keys import _NAMES, _PATTERNS, DEFAULTS, _table, models
from orchestrator.network.rematerialization import NAMED
from orchestrator.reading.examples import yaml_text
from orchestrator.reading.problems import SpecProblems
from tests.conftest import RunOrch

SCRIPT = """\
#!/bin/bash
# --- per_device_batch_size=99 in a comment says nothing
pip install xpk==0.16.1
export SIZE=0.5
export BASE_OUTPUT_DIR=""
XLA_FLAGS=" \\
  --xla_tpu_scoped_vmem_limit_kib=61440 \\
  --xla_tpu_enable_ag_backward_pipelining=true "
MAXTEXT_ARGS="\\
model_name=llama3.1-70b \\
per_device_batch_size=${SIZE} \\
remat_policy=custom \\
decoder_layer_input=offload \\
query_proj=device \\
out_proj=remat \\
ici_fsdp_parallelism=-1 \\
ici_tensor_parallelism=4 \\
dataset_type=synthetic \\
max_target_length=8192 \\
steps=30 \\
base_output_directory=${BASE_OUTPUT_DIR} \\
run_name=${WORKLOAD_NAME}"

xpk workload create \\
  --cluster=$CLUSTER_NAME --device-type=v6e-256 \\
  --num-slices=2 \\
  --command="set -e && export LIBTPU_INIT_ARGS='${XLA_FLAGS}' && \\
python3 -m MaxText.train MaxText/configs/base.yml ${MAXTEXT_ARGS}"
"""


def spec_values(*sources: tuple[str, str], **chips: Any) -> dict[str, Any]:
    return dict(convert(read_recipe(sources), **chips).values)


def words(text: str, device: str | None = "v5e-256", slices: int | None = None) -> dict[str, Any]:
    return spec_values(("words", text), device=device, slices=slices)


def problems(text: str, device: str | None = "v5e-256") -> tuple[str, ...]:
    with pytest.raises(RecipeProblems) as error:
        words(text, device)
    return error.value.problems


def test_a_script_says_model_batch_chips_mesh_remat_and_options() -> None:
    spec = spec_values(("run.sh", SCRIPT))
    experiment, resources = spec["experiment"], spec["resources"]
    assert experiment["model"]["layers"] == 80
    assert experiment["batch"] == {"sequences": 256, "length": 8192, "microbatches": 1}
    assert experiment["tokens"] == 30 * 256 * 8192
    assert (resources["chip"], resources["topology"], resources["pods"]) == ("v6e", "16x16", 2)
    assert resources["mesh"] == {"data": 1, "fsdp": 64, "tensor": 4}
    kept = {tensor for tensor, what in experiment["remat"].items() if what == "keep"}
    assert (experiment["remat"]["block_input"], kept) == ("offload", {"query"})
    assert experiment["compiler_options"] == {
        "xla_tpu_scoped_vmem_limit_kib": 61440,
        "xla_tpu_enable_ag_backward_pipelining": True,
    }


def test_the_spec_of_a_script_is_planned_as_it_was(tmp_path: Path) -> None:
    script, file = tmp_path / "run.sh", tmp_path / "spec.yaml"
    script.write_text(SCRIPT)
    file.write_text(yaml_text([api.import_maxtext([script]).values]))
    plan = api.plan(file)
    assert {axis: size for axis, size in plan.mesh.items() if size > 1} == {
        "pods": 2,
        "fsdp": 64,
        "tensor": 4,
    }
    assert (plan.batch.sequences, plan.model.parameters) == (256, 70_553_706_496)


MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - name: slice-job
    replicas: 2
    template:
      spec:
        parallelism: 16
        template:
          spec:
            nodeSelector:
              cloud.google.com/gke-tpu-accelerator: ACCELERATOR
              cloud.google.com/gke-tpu-topology: SHAPE
            containers:
            - name: jax-tpu
              command:
              - bash
              - -c
              - |
                (export TPU_VMODULE=real_program_continuator=1 && export LIBTPU_INIT_ARGS='
                --xla_tpu_bf16_emission_mode=NATIVE_EMISSION' && python3 -m MaxText.train base.yml
                model_name=llama3.1-70b per_device_batch_size=2 ici_fsdp_parallelism=-1
                dcn_data_parallelism=2 attention=flash steps=30 max_target_length=8192) & PID=$!;
"""


@pytest.mark.parametrize(
    ("accelerator", "shape", "chip", "devices"),
    [("tpu7x", "4x4x4", "tpu7x", 128), ("tpu-v6e-slice", "16x16", "v6e", 256),
     ("tpu-v5p-slice", "4x4x8", "v5p", 128)],
)  # fmt: skip
def test_a_manifest_says_the_words_and_the_slices(
    accelerator: str, shape: str, chip: str, devices: int
) -> None:
    """Its pods select the chips, its jobs are the slices, its command has the keys."""
    text = MANIFEST.replace("ACCELERATOR", accelerator).replace("SHAPE", shape)
    spec = spec_values(("job.yaml", text))
    experiment, resources = spec["experiment"], spec["resources"]
    assert (resources["chip"], resources["topology"], resources["pods"]) == (chip, shape, 2)
    assert resources["mesh"] == {"data": 1, "fsdp": devices}
    assert experiment["batch"]["sequences"] == 2 * devices * 2
    assert experiment["compiler_options"] == {"xla_tpu_bf16_emission_mode": "NATIVE_EMISSION"}


def test_a_manifest_of_unknown_or_several_chips_is_refused() -> None:
    known = MANIFEST.replace("ACCELERATOR", "tpu7x").replace("SHAPE", "4x4x4")
    for text in (MANIFEST, f"{known}---\n{known.replace('4x4x4', '4x4x8')}"):
        with pytest.raises(RecipeProblems, match=r"job\.yaml"):
            read_recipe([("job.yaml", text)])


def test_a_manifest_may_say_the_slice_in_its_annotations() -> None:
    """As Kueue's topology does; a label of the node is then the accelerator alone."""
    lines = MANIFEST.replace("ACCELERATOR", "tpu7x").splitlines(keepends=True)
    label = next(line for line in lines if "gke-tpu-topology" in line)
    at = next(n for n, line in enumerate(lines) if "nodeSelector" in line) - 1
    pod = " " * 10
    note = f"{pod}metadata: {{annotations: {{cloud.google.com/gke-tpu-slice-topology: 4x4x4}}}}\n"
    without = [line for line in lines if line != label]
    text = "".join([*without[:at], note, *without[at:]])
    assert spec_values(("job.yaml", text))["resources"]["topology"] == "4x4x4"
    with pytest.raises(RecipeProblems, match="no label next to it says the topology"):
        read_recipe([("job.yaml", "".join(without))])


SHELL = """\
#!/bin/bash
foo=bar; project=mine
steps=${STEPS:-50}
args=(
  model_name=llama3.1-8b   # the model
  steps=$steps
)
args+=(max_target_length=8192 ici_fsdp_parallelism=-1)
docker build --build-arg mode=stable -t x . && gcloud config set verbosity=none
if [ -n "$X" ]; then kind=on; fi
tokenizer=a python3 -m MaxText.train base.yml "${args[@]}" per_device_batch_size=${SIZE-4} | tee log
python3 -m maxtext.inference.decode base.yml per_device_batch_size=1 prompt="hi there"
"""


def test_variables_of_the_shell_and_other_commands_have_no_keys() -> None:
    """A script's own words may look like MaxText's keys; defaults of variables count."""
    recipe = read_recipe([("run.sh", SHELL)])
    assert {key: one.value for key, one in recipe.keys.items()} == {
        "model_name": "llama3.1-8b",
        "steps": 50,
        "max_target_length": 8192,
        "ici_fsdp_parallelism": -1,
        "per_device_batch_size": 4,
    }
    assert recipe.keys["model_name"].place == "run.sh:5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/bash\nfoo=bar\necho $foo\n", "has no command that trains with MaxText"),
        (
            "#!/bin/bash\npython3 -m maxtext.trainers.post_train.rl.train_rl base.yml steps=2\n",
            "rl is not planned",
        ),
        ("python3 -m MaxText.train base.yml steps=$1", "'steps=…'"),
        ("load_parameters_path=gs://a/b", "experiment.start in the spec"),
    ],
)
def test_a_refusal_says_what_to_do(text: str, said: str) -> None:
    with pytest.raises(RecipeProblems, match=said):
        convert(read_recipe([("run.sh", text)]), "v5e-256")


BASE_YML = {
    **{key: values[-1] for key, values in _table("base_values.toml").items()},
    **DEFAULTS,
    "compile_topology": "",
    "compile_topology_num_slices": -1,
    "decoder_layer_input": "device",
    "query_proj": "remat",
}


def test_base_yml_is_below_the_model_and_changes_nothing() -> None:
    """As MaxText reads it: its sizes are those of no model, and nothing of it is refused."""
    base = ("base.yml", yaml.safe_dump(BASE_YML))
    said = "model_name=llama3-70b per_device_batch_size=1 steps=3"
    assert spec_values(base, ("words", said), device="v5p-256") == words(said, "v5p-256")
    assert convert(read_recipe([base, ("words", said)]), "v5p-256").notes == ()
    changed_base = ("base.yml", yaml.safe_dump({**BASE_YML, "steps": 7, "packing": "sometimes"}))
    with pytest.raises(RecipeProblems, match=r"base\.yml:\d+: packing=sometimes: is not served"):
        spec_values(changed_base, device="v5p-256")
    model = ("my-model.yml", "base_emb_dim: 1024\nbase_num_decoder_layers: 3\n")
    found = spec_values(base, model, device="v5p-256")["experiment"]["model"]
    assert (found["d_model"], found["layers"], found["d_ff"]) == (1024, 3, 7168)


def test_yarn_of_deepseek_v2_scales_its_scores() -> None:
    """As the published config's mscale_all_dim of 0.707 does."""
    model = words("model_name=deepseek2-16b per_device_batch_size=1")["experiment"]["model"]
    assert model["attention_scale"] == pytest.approx(192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)


TWICE = """\
#!/bin/bash
SIZE=4
train() { python3 -m maxtext.trainers.pre_train.train base.yml $ARGS dtype=float32; }
ARGS="model_name=llama3-8b steps=7"
python3 -m MaxText.train base.yml $ARGS per_device_batch_size=$SIZE
SIZE=2
python3 -m MaxText.train base.yml $ARGS \\
  per_device_batch_size=$SIZE run_name=again
"""


def test_of_several_commands_that_train_one_is_chosen() -> None:
    """Each has the values that variables have there; a user never gets a mixture of two."""
    with pytest.raises(RecipeProblems) as caught:
        read_recipe([("run.sh", TWICE)])
    assert "run.sh: has 3 commands that train; --command N" in str(caught.value)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()[1:]] == [
        "  1, line 3", "  2, line 5", "  3, line 7",
    ]  # fmt: skip
    sizes = [
        read_recipe([("run.sh", TWICE)], command).get("per_device_batch_size", None)
        for command in (1, 2, 3)
    ]
    assert sizes == [None, 4, 2]
    with pytest.raises(RecipeProblems, match="has 3 commands"):
        read_recipe([("run.sh", TWICE)], 4)


def test_a_compilation_of_the_same_run_is_no_other_command() -> None:
    script = (
        "#!/bin/bash\nA='model_name=llama3-8b steps=5'\n"
        "python3 -m MaxText.train_compile base.yml $A compile_topology=v6e-16\n"
        "python3 -m MaxText.train base.yml $A\n"
    )
    assert spec_values(("run.sh", script))["resources"]["topology"] == "4x4"


def test_commands_of_a_manifest_that_differ_are_refused() -> None:
    known = MANIFEST.replace("ACCELERATOR", "tpu7x").replace("SHAPE", "4x4x4")
    second = "python3 -m MaxText.train base.yml per_device_batch_size=4"
    with pytest.raises(RecipeProblems, match=r"job\.yaml:\d+: per_device_batch_size=4, and 2"):
        read_recipe([("job.yaml", known.replace("& PID=$!;", f"& PID=$!; {second}"))])


def test_a_later_source_overrides_an_earlier_one() -> None:
    base = ("base.yml", "model_name: llama2-7b\nper_device_batch_size: 12.0\nsteps: 5\n")
    spec = spec_values(base, ("words", "per_device_batch_size=0.5"), device="v5e-256")
    assert spec["experiment"]["batch"]["sequences"] == 128
    assert spec["experiment"]["model"]["d_model"] == 4096


def test_a_python_file_has_the_benchmark_that_a_script_names() -> None:
    script = "python3 -m benchmarks.benchmark_runner xpk --device_type=v6e-256 --num_slices=4"
    benchmarks = (
        "x = add(MaxTextModel(model_name='llama2-70b-4096', model_type='llama2-70b',"
        " tuning_params={'per_device_batch_size': 4, 'metrics_file': join(a, 'b')}, xla_flags=A))"
    )
    sources = ("run.sh", f"{script} --model_name=llama2_70b_4096"), ("b.py", benchmarks)
    spec = spec_values(*sources)
    assert (spec["resources"]["pods"], spec["experiment"]["batch"]["sequences"]) == (4, 4096)
    for missing in (sources[:1], (("run.sh", f"{script} --model_name=other"), sources[1])):
        with pytest.raises(RecipeProblems, match="benchmark"):
            read_recipe(missing)


@pytest.mark.parametrize(
    ("scale", "sizes"),
    [
        (1, (16, 2048, 7168, 16)),
        # 2^4: one doubling of all three, and one more of heads and MLP
        (16, (32, 4096, 28_672, 64)),
        (128, (64, 8192, 57_344, 128)),
    ],
)
def test_the_global_scale_grows_widths_and_layers(scale: int, sizes: tuple[int, ...]) -> None:
    model = words(f"global_parameter_scale={scale} base_num_kv_heads=16")["experiment"]["model"]
    assert (model["layers"], model["d_model"], model["d_ff"], model["heads"]) == sizes


@pytest.mark.parametrize(
    ("device", "chip", "topology", "devices"),
    [
        ("v5litepod-256", "v5e", "16x16", 256),
        ("v5e-16", "v5e", "4x4", 16),
        ("v5p-128", "v5p", "4x4x4", 64),
        ("v4-384", "v4", "4x4x12", 192),
        ("v6e-8", "v6e", "2x4", 8),
        ("tpu7x-4x8x8", "tpu7x", "4x8x8", 512),
        ("tpu7x-128", "tpu7x", "4x4x4", 128),
    ],
)
def test_device_types_are_slices_and_a_batch_is_of_a_jax_device(
    device: str, chip: str, topology: str, devices: int
) -> None:
    spec = words("per_device_batch_size=3", device)
    assert (spec["resources"]["chip"], spec["resources"]["topology"]) == (chip, topology)
    assert spec["experiment"]["batch"]["sequences"] == 3 * devices
    assert spec["resources"]["mesh"] == {"data": 1, "fsdp": devices}


def test_axes_inside_and_between_slices() -> None:
    inside = (
        "ici_fsdp_parallelism=4 ici_fsdp_transpose_parallelism=2 ici_context_parallelism=2"
        " ici_tensor_parallelism=2 ici_tensor_sequence_parallelism=2 ici_data_parallelism=-1"
    )
    mesh = words(f"{inside} dcn_fsdp_parallelism=2", slices=4)["resources"]["mesh"]
    assert mesh == {"data": 4, "fsdp": 8, "sequence": 2, "tensor": 4, "fsdp_dcn": 2}


@pytest.mark.parametrize("name", NAMED)
def test_every_named_policy_becomes_one(name: str) -> None:
    assert words(f"remat_policy={name}")["experiment"]["remat"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("quantization=nanoo_fp4", "quantization"),
        ("opt_type=sgd", "opt_type"),
        ("attention=dot_product", "attention"),
        ("remat_policy=clever", "remat_policy"),
        ("remat_policy=custom query_proj=somewhere", "query_proj"),
        ("model_name=llama9-1b", "model_name"),
        ("ici_pipeline_parallelism=4", "ici_pipeline_parallelism"),
        ("dcn_tensor_parallelism=2", "dcn_tensor"),
        ("ici_fsdp_parallelism=7", "ici parallelism"),
        ("per_device_batch_size=0.3", "per_device_batch_size"),
        ("per_device_batch_size=${SIZE}", "per_device_batch_size"),
        ("mtp_num_layers=1", "mtp_num_layers"),
        ("optimizer_memory_host_offload=True", "optimizer_memory_host_offload"),
        ("global_parameter_scale=3", "global_parameter_scale"),
        ("a_key_that_nobody_knows=7", "a_key_that_nobody_knows"),
    ],
)
def test_what_no_spec_can_say_is_refused_by_name(text: str, key: str) -> None:
    assert any(key in problem for problem in problems(f"steps=5 {text}"))


def test_all_problems_are_told_at_once_with_their_lines() -> None:
    text = "model_name: llama2-7b\nopt_type: sgd\nattention: dot_product\n"
    with pytest.raises(RecipeProblems) as error:
        convert(read_recipe([("r.yml", text)]), "v5e-256")
    assert [problem.partition(": ")[0] for problem in error.value.problems] == [
        "r.yml:2",
        "r.yml:3",
    ]


@pytest.mark.parametrize(
    ("quantization", "compute"), [("''", "bf16"), ("fp8_full", "fp8"), ("int8", "int8")]
)
def test_quantized_matmuls_have_a_type_of_their_own(quantization: str, compute: str) -> None:
    spec = words(f"quantization={quantization}")
    assert spec["experiment"]["precision"]["compute"] == compute


def test_chips_must_be_named_somewhere() -> None:
    assert "no chips" in problems("steps=5", device=None)[0]
    assert "device type" in problems("steps=5", device="a100-8")[0]
    assert "compile_topology" not in str(words("compile_topology=v5e-256", device=None))


def test_what_is_off_or_irrelevant_is_no_problem() -> None:
    text = "local_sa_block_q=1 enable_checkpointing=False mtp_num_layers=0 use_qk_clip=False"
    found = convert(read_recipe([("words", f"{text} ici_expert_parallelism=1")]), "v5e-256")
    assert {"local_sa_block_q", "enable_checkpointing"} <= set(found.irrelevant)
    assert "num_experts" not in _NAMES
    assert not _PATTERNS.fullmatch("num_experts")


def test_a_file_may_add_to_the_defaults_alone() -> None:
    """MaxText's `base.yml`; another file's keys are not read, so that its name is refused."""
    plain = words("steps=5")
    assert words("steps=5 base_config=base.yml") == plain
    assert any(
        "base_config" in problem for problem in problems("base_config=inference/jetstream.yml")
    )


@pytest.mark.parametrize(
    ("sparse", "capacity", "noted"),
    [("", 1.25, 0), ("sparse_matmul=False", 1.25, 0), ("sparse_matmul=True", None, 1)],
)
def test_sparse_products_drop_no_tokens(sparse: str, capacity: float | None, noted: int) -> None:
    said = f"model_name=mixtral-8x7b per_device_batch_size=8 capacity_factor=1.25 {sparse}"
    found = convert(read_recipe([("words", said)]), "v5p-256")
    assert found.values["experiment"]["model"]["moe"].get("capacity_factor") == capacity
    assert sum(note.startswith("capacity_factor") for note in found.notes) == noted


def test_what_the_spec_says_otherwise_is_noted() -> None:
    found = convert(
        read_recipe([("words", "gradient_accumulation_steps=4 remat_policy=none")]), "v5e-256"
    )
    assert [note.partition("=")[0] for note in found.notes] == ["remat_policy"]
    batch = found.values["experiment"]["batch"]
    assert (batch["sequences"], batch["microbatches"]) == (12 * 256 * 4, 4)


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ("mu_dtype=bfloat16", "bf16"),
        ("mu_dtype=float32", None),
        ("mu_dtype=''", None),
        ("weight_dtype=bfloat16 mu_dtype=float32", "fp32"),
        ("weight_dtype=bfloat16 mu_dtype=bfloat16", None),
    ],
)
def test_the_first_moment_may_have_a_type_of_its_own(said: str, first: str | None) -> None:
    assert words(said)["experiment"]["precision"].get("first_moment") == first


@pytest.mark.parametrize("name", [name for name in models() if name.startswith("llama")])
def test_models_of_the_llama_family_are_those_of_the_catalog(name: str) -> None:
    model = words(f"model_name={name} attention=flash")["experiment"]["model"]
    assert model["d_model"] % model["heads"] == 0
    assert model["gated"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gpt3-175b", "gpt3-175b"), ("gemma4-31b", "gemma4-31b"), ("gemma4-26b", "gemma4-26b-a4b"),
    ],
)  # fmt: skip
def test_gpt_3_and_gemma_4_are_those_of_the_catalog(theirs: str, ours: str) -> None:
    """The models that the recipes train, and the smaller shapes of GPT-3."""
    assert words(f"model_name={theirs} attention=flash")["experiment"]["model"]["name"] == ours
    assert words("model_name=gpt3-6b attention=flash")["experiment"]["model"]["layers"] == 48


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("model_name=gpt3-6b trainable_position_size=-1", "trainable_position_size"),
        ("trainable_position_size=2048", "trainable_position_size"),
        ("model_name=gemma4-31b v_norm_with_scale=true", "v_norm_with_scale"),
        ("model_name=gemma4-26b shared_experts=2", "shared_experts"),
        ("global_head_dim=512", "global_head_dim"),
        ("mlp_activations=['tanh']", "mlp_activations"),
    ],
)
def test_other_shapes_of_these_are_refused(text: str, key: str) -> None:
    assert any(key in problem for problem in problems(f"steps=5 {text}"))


def test_an_activation_of_maxtext_s_own_configurations_is_read() -> None:
    model = words("mlp_activations=['relu'] attention=flash")["experiment"]["model"]
    assert (model["gated"], model["activation"]) == (False, "relu")


def test_no_key_and_no_file_end_in_a_message(tmp_path: Path, orch: RunOrch) -> None:
    for source in ("run.sh", str(tmp_path)):
        done = orch("import", "maxtext", source)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    empty = tmp_path / "empty.sh"
    empty.touch()
    assert "no key of MaxText" in orch("import", "maxtext", str(empty)).stderr


def test_the_command_prints_a_spec_and_its_notes(orch: RunOrch) -> None:
    done = orch(
        "import", "maxtext", "model_name=llama2-7b remat_policy=none", "--device-type", "v6e-8"
    )
    assert yaml.safe_load(done.stdout)["resources"]["chip"] == "v6e"
    assert "note: remat_policy" in done.stderr


BASE = "model_name: llama3-8b\nper_device_batch_size: 4\n"
HOSTILE = {
    "aliases.yml": "a: &a [x, x]\nb: &b [*a, *a]\n" + BASE,
    "itself.yml": BASE + "remat_policy: &r [*r]\n",
    "deep.yml": BASE + "x: " + "[" * 5_000 + "]" * 5_000,
    "date.yml": BASE + "x: 2001-99-99\n",
    "literal.yml": BASE + "remat_policy: '{[]: 1}'\n",
    "minus.yml": BASE + f"remat_policy: '{'-' * 100_000}1'\n",
    "infinite.yml": "per_device_batch_size: .inf\nsteps: .nan\n",
    "huge.yml": f"per_device_batch_size: 1{'0' * 400}\n",
    "list.yml": BASE + "dtype: [1]\nmodel_name: [1]\ndecoder_block: [1]\nremat_policy: [1]\n",
    "zero.yml": BASE + "ici_data_parallelism: 0\nbase_num_query_heads: 0\n",
    "text.yml": BASE + "rope_linear_scaling_factor: a\nz_loss_multiplier: b\n",
    "words.sh": "".join(f"{a}={('$' + b) * 99}\n" for a, b in pairwise("ABCDEF"))
    + f"F={'x' * 99}\ntrain per_device_batch_size=4 z=$A\n",
    "doubled.sh": "#!/bin/sh\na=xxxxxxxx\n" + "a=$a$a\n" * 40 + "train.py b=$a\n",
    "quotes.sh": "#!/bin/sh\n" + "\"'" * 20_000 + "\ntrain.py per_device_batch_size=x\n",
    "lists.sh": "#!/bin/sh\n" + "a=(" * 20_000 + "\ntrain.py per_device_batch_size=x\n",
    "deep.py": "-" * 200_000 + "1",
    "call.py": "M(model_name=f(), model_type='x', tuning_params={})",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_recipe_is_refused(tmp_path: Path, name: str) -> None:
    """What would grow, never end or be no number, in each kind of file."""
    file = tmp_path / name
    file.write_text(HOSTILE[name])
    sources: list[str | Path] = ["--model-name=a", file] if name.endswith(".py") else [file]
    with pytest.raises(RecipeProblems) as refused:
        api.import_maxtext(sources, device="v6e-8")
    assert len(str(refused.value)) < 4_000


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_recipe_is_a_file_with_an_end(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x.yml")
    with pytest.raises(SpecProblems):
        api.import_maxtext([tmp_path / "x.yml"])
