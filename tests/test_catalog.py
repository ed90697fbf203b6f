"""The catalog: chips, models and topologies, and where each number comes from."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from orchestrator import catalog
from orchestrator.catalog import serving
from orchestrator.catalog.chips import Chip, Quantity
from orchestrator.catalog.published import figures, goodput_runs, recovery
from orchestrator.errors import NoSuchSlice, SpecError, UnknownName
from orchestrator.planning.plan_warnings import _CRITICAL_SOURCE
from orchestrator.planning.step_work import _ICI_RATE_SOURCE
from orchestrator.values.model import Model
from tests.conftest import ROOT

TPUS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
CHIPS = (*TPUS, "a100", "h100", "h200", "b200", "b300", "gb200", "gb300")
GIB = 2**30

# Peak bf16 FLOP/s, HBM bytes and bytes/s, one link one way, DCN, chips of a pod, dollars an hour,
# where somebody published them.
DATASHEETS = {
    "v4": (275e12, 32 * GIB, 1.2e12, 50e9, 6.25e9, 4096, 3.22),
    "v5e": (197e12, 16 * GIB, 0.819e12, 50e9, 3.125e9, 256, 1.20),
    "v5p": (459e12, 95 * GIB, 2.765e12, 100e9, 6.25e9, 8960, 4.20),
    "v6e": (918e12, 32 * GIB, 1.638e12, 100e9, 12.5e9, 256, 2.70),
    "tpu7x": (2307e12, 192 * GIB, 7.38e12, 100e9, 12.5e9, 9216, 12.00),
    "a100": (312e12, 80e9, 2.039e12, 300e9, 25e9, 8, None),
    "h100": (989.4e12, 80e9, 3.35e12, 450e9, 50e9, 8, 10.98),
    "h200": (989.4e12, 141e9, 4.8e12, 450e9, 50e9, 8, 10.84),
    "b200": (2250e12, 180e9, 8e12, 900e9, 50e9, 8, 11.28),
    "b300": (2250e12, 270e9, 7.7e12, 900e9, 100e9, 8, None),
    "gb200": (2500e12, 186e9, 8e12, 900e9, 50e9, 72, None),
    "gb300": (2500e12, 279e9, 8e12, 900e9, 100e9, 72, None),
}
COMPILER_GIB = {"v4": 30.75, "v5e": 15.75, "v5p": 95.74, "v6e": 31.25, "tpu7x": 94.75}

# From each model's own publication.
PARAMETERS = {
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama-1b": 1_235_814_400,
    "llama-3b": 3_212_749_824,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "gemma3-27b": 27_009_346_304,  # as the text model of tests/huggingface_configs.py
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-120b": 116_829_156_672,
    # In tenths of billions where the publication counts these: 30.7, 25.2 and, with fewer positions
    # and words, 174.6; see `sources.toml`.
    "gemma4-31b": 30_697_345_340,
    "gemma4-26b-a4b": 25_233_141_790,
    "gpt3-175b": 174_780_997_632,
}

WRAPS = [
    ("v5p", "2x2x1", (False, False, False)),
    ("v5p", "4x4x4", (True, True, True)),
    ("v5p", "16x20x28", (True, True, True)),
    ("v4", "4x4x8", (True, True, True)),
    ("tpu7x", "2x2x2", (False, False, False)),
    ("tpu7x", "16x24x24", (True, True, True)),
    ("v5e", "8x8", (False, False)),
    ("v5e", "8x16", (False, True)),
    ("v5e", "16x16", (True, True)),
    ("v6e", "16x16", (True, True)),
    ("h100", "8", (False,)),
]

NAMED = [
    ("v4", "v4-8", "2x2x1"),
    ("v4", "v4-1536", "8x8x12"),
    ("v4", "v4-8192", "16x16x16"),
    ("v5p", "v5p-128", "4x4x4"),
    ("v5p", "v5p-1408", "4x4x44"),
    ("v5p", "v5p-9216", "12x16x24"),
    ("v5p", "v5p-12288", "16x16x24"),
    ("v5p", "v5p-17920", "16x20x28"),
    ("v5e", "v5litepod-1", "1x1"),
    ("v5e", "v5litepod-8", "2x4"),
    ("v5e", "v5e-256", "16x16"),
    ("v6e", "v6e-128", "8x16"),
    ("tpu7x", "tpu7x-8", "2x2x1"),
    ("tpu7x", "tpu7x-128", "4x4x4"),
    ("tpu7x", "tpu7x-18432", "16x24x24"),
    ("h100", "h100-80gb-8", "8"),
    ("b200", "b200-4", "4"),
]

REFUSED = [
    ("v5p", "16x16", "3 dimensions, 16x16 has 2; nearest: 4x8x8,"),
    ("v5p", "4x4x6", "4x4x6 is not whole 4x4x4 cubes, as all v5p slices are but 2x2x1,"),
    ("v5p", "2x2x8", "nearest: 2x4x4,"),
    ("v5p", "8x4x4", "ascending dimensions, 8x4x4 is not; nearest: 4x4x8,"),
    ("v5p", "16x20x32", "16x20x32 is 10,240 chips, v5p pods have 8,960; nearest: 16x20x28,"),
    ("v4", "16x16x20", "5,120 chips, v4 pods have 4,096; nearest: 16x16x16,"),
    ("v5p", "999999x999999x999999", "nearest: 16x20x28"),
    ("v5e", "3x3", "not among the v5e slices: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16;"),
    ("v5e", "16x8", "nearest: 8x16,"),
    ("v6e", "16x32", "512 chips, v6e pods have 256; nearest: 16x16,"),
    ("h100", "3", "not among the h100 slices: 1, 2, 4, 8;"),
    ("h100", "16", "for 16 GPUs write topology: 8 and pods: 2;"),
    ("h100", "2x2", "h100 slices have 1 dimension, 2x2 has 2; nearest: 4,"),
    ("v5p", "v5p-100", "no v5p slice is called v5p-100; nearest: v5p-64, v5p-128,"),
    ("v5e", "v5e-12", "nearest: v5e-8, v5e-16,"),
]

RENTED = [
    ("v5p", "16x16x24", 3, 0),
    ("v5p", "16x16x24", 4, 1),
    ("v5p", "16x20x28", 1, 1),
    ("v4", "16x16x16", 8, 0),
    ("tpu7x", "16x24x24", 2, 0),
    ("v5e", "16x16", 64, 0),
    ("h100", "8", 2048, 0),
]

UNREADABLE = ["", "x", "16X16", "16x", "04x4x4", "0x4x4", "-8", "v5p", "v5p-", "v5p-0128"]
UNREADABLE += ["v4-128", "4x4x4x4x4", "9" * 5000, "٤x٤x٤"]


def quantities(value: Any, path: str) -> Iterator[tuple[str, Quantity]]:
    """Every quantity inside a chip, with the field names that lead to it."""
    if isinstance(value, Quantity):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from quantities(inner, f"{path}.{key}")
    elif is_dataclass(value):
        for field in fields(value):
            yield from quantities(getattr(value, field.name), f"{path}.{field.name}")


def tensors(model: Model) -> list[tuple[int, ...]]:
    """The shape of every tensor of a Llama, a mixture, a Qwen3, a Gemma 3 or 4, a DeepSeek-V3, a
    gpt-oss or a GPT-3, written out.
    """
    if model.learned_positions:
        return tensors_of_gpt_3(model)
    width, query, kv = model.d_model, model.heads * model.head_dim, model.kv_heads * model.head_dim
    attention: list[tuple[int, ...]] = [(width, query), (width, kv), (width, kv), (query, width)]
    dense: list[tuple[int, ...]] = [(width, model.d_ff), (width, model.d_ff), (model.d_ff, width)]
    mlp = dense
    if latent := model.latent:
        heads = model.heads
        attention = [
            (width, 1536), (1536,), (1536, heads * (128 + 64)), (width, 512 + 64), (512,),
            (512, heads * (128 + 128)), (heads * latent.value_dim, width),
        ]  # fmt: skip
    if model.sinks:
        attention += [(query,), (kv,), (kv,), (width,), (model.heads,)]
    if model.moe:
        inner = model.moe.d_ff or model.d_ff
        expert: list[tuple[int, ...]] = [(width, inner), (width, inner), (inner, width)]
        if model.moe.biases:
            expert += [(inner,), (inner,), (width,)]
        count = model.moe.experts + model.moe.shared_experts
        mlp = [*expert * count, (width, model.moe.experts)]
        if model.moe.balance_bias or model.moe.router_bias:
            mlp += [(model.moe.experts,)]
    if model.qk_norm == "head":
        attention += [(model.head_dim,), (model.head_dim,)]
    norms = [(width,)] * (4 if model.norm_placement == "both" else 2)
    first = model.moe.dense_layers if model.moe else 0
    layers = [*attention, *mlp, *norms] * (model.layers - first)
    layers += [*attention, *dense, *norms] * first
    if model.value_norm:
        layers = layers_of_gemma_4(model, dense, mlp, norms)
    vocabulary = [(model.vocab, width)] if model.tied else [(model.vocab, width)] * 2
    return [*vocabulary, *layers, (width,)]


def tensors_of_gpt_3(model: Model) -> list[tuple[int, ...]]:
    width, inner = model.d_model, model.d_ff
    matrices = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
    layer = [*matrices, (3 * width,), (width,), (inner,), (width,), *[(width,)] * 4]
    return [(50_304, width), (16_384, width), *layer * model.layers, (width,), (width,)]


def layers_of_gemma_4(
    model: Model, dense: list[Any], mlp: list[Any], norms: list[Any]
) -> list[tuple[int, ...]]:
    """Five local layers before a global one, whose heads are twice as wide and have no values."""
    width, few = model.d_model, 4 if model.moe is None else 2
    mixture = [*mlp, (width,), (model.moe.experts,), *[(width,)] * 3] if model.moe else []
    local = [(width, model.heads * 256), *[(width, model.kv_heads * 256)] * 2, (256,), (256,)]
    whole = [(width, model.heads * 512), (width, few * 512), (512,), (512,)]
    others = [*dense, *mixture, *norms, (1,)]
    one_local = [*local, (model.heads * 256, width), *others]
    one_global = [*whole, (model.heads * 512, width), *others]
    return [*one_local * 5, *one_global] * (model.layers // 6)


@st.composite
def slices(draw: st.DrawFn) -> tuple[Chip, str]:
    """Any chip with any of its topologies."""
    chip = catalog.chip(draw(st.sampled_from(CHIPS)))
    return chip, draw(st.sampled_from(catalog.topologies(chip)))


def test_twelve_chips_are_known() -> None:
    """Five TPUs and seven GPUs, listed in a stable order."""
    assert catalog.chips() == tuple(sorted(CHIPS))


@pytest.mark.parametrize("name", CHIPS)
def test_a_chip_has_the_figures_of_its_datasheet(name: str) -> None:
    """Typed in here a second time, from the datasheets and the price list."""
    chip = catalog.chip(name)
    found = (
        chip.peak_flops_per_s["bf16"].value,
        chip.hbm_bytes.value,
        chip.hbm_bytes_per_s.value,
        chip.ici_link_bytes_per_s.value,
        chip.dcn_bytes_per_s.value,
        chip.pod_chips.value,
        chip.dollars_per_hour and chip.dollars_per_hour.value,
    )
    assert (chip.name, found) == (name, DATASHEETS[name])


@pytest.mark.parametrize("name", TPUS)
def test_a_tpu_gives_a_program_what_its_compiler_allows(name: str) -> None:
    """Per device, and near what the datasheet promises."""
    chip = catalog.chip(name)
    usable = chip.hbm_usable_bytes.value
    assert usable == pytest.approx(COMPILER_GIB[name] * GIB, abs=1)
    assert 0.95 < usable * chip.devices / chip.hbm_bytes.value < 1.01


@pytest.mark.parametrize("name", TPUS)
def test_float32_on_a_tpu_is_six_bfloat16_passes(name: str) -> None:
    """True float32 products run at a sixth of the bf16 peak."""
    peak = catalog.chip(name).peak_flops_per_s
    assert peak["fp32"].value == pytest.approx(peak["bf16"].value / 6, rel=1e-4)


@pytest.mark.parametrize("name", CHIPS)
def test_every_number_is_positive_and_of_its_unit(name: str) -> None:
    """A figure in GB, in Gb/s or in TFLOP/s would fall out of its range."""
    ranges = {
        "flops_per_s": (1e13, 2e16),
        "bytes_per_s": (3e9, 1e13),
        "bytes": (1e10, 3e11),
        "spot_dollars_per_hour": (0.1, 10),
        "dollars_per_hour": (0.5, 20),
        "chips": (8, 20_000),
        "matrix_unit": (128, 256),
        "clock_hz": (5e8, 5e9),
        "per_day": (1e-5, 0.01),
    }
    for path, quantity in quantities(catalog.chip(name), name):
        in_peaks = ".peak_flops_per_s." in path
        unit = "flops_per_s" if in_peaks else next(u for u in ranges if path.endswith(u))
        least, most = ranges[unit]
        assert least <= quantity.value <= most, path


@pytest.mark.parametrize("name", CHIPS)
def test_memory_network_and_host_are_ever_slower(name: str) -> None:
    """HBM is faster than the links, and those faster than the way to the host and than DCN."""
    chip = catalog.chip(name)
    assert chip.hbm_bytes_per_s.value > 5 * chip.ici_link_bytes_per_s.value
    assert chip.host_link_bytes_per_s is not None
    assert chip.ici_link_bytes_per_s.value > chip.host_link_bytes_per_s.value
    assert chip.host_link_bytes_per_s.value > chip.dcn_bytes_per_s.value


# Gigabytes of a machine with four chips, as Google's pages and AXLearn print them.
MACHINES = {"v4": 407, "v5e": 192, "v5p": 448, "v6e": 720, "tpu7x": 960}


@pytest.mark.parametrize("name", CHIPS)
def test_a_chips_share_of_its_host(name: str) -> None:
    """A quarter of a machine of four chips; unknown where no source has it."""
    found = catalog.chip(name).host_bytes
    assert (None if found is None else found.value) == (
        MACHINES[name] * 1e9 / 4 if name in MACHINES else None
    )


def test_the_books_figures_stand_beside_the_vendors() -> None:
    """Those of v5p make the book's 2,550, 71,360 and 73,440; the vendor's own differ."""
    chip = catalog.chip("v5p")
    book = {key: quantity.value for key, quantity in chip.book.items()}
    peak, dcn = book["peak_bf16_flops_per_s"], book["dcn_bytes_per_s"]
    assert peak / book["ici_axis_bytes_per_s"] == pytest.approx(2550)
    assert book["ici_axis_bytes_per_s"] == 2 * book["ici_link_bytes_per_s"] == 2 * 90e9
    assert book["rounded_peak_bf16_flops_per_s"] / dcn == pytest.approx(71_360)
    assert peak / dcn == pytest.approx(73_440)
    assert (book["hbm_bytes"], book["ici_link_bytes_per_s"]) == (96e9, 90e9)
    assert (chip.hbm_bytes.value, chip.ici_link_bytes_per_s.value) == (95 * GIB, 100e9)


def test_a_tpu7x_chip_is_two_devices_joined_by_six_links() -> None:
    """Only tpu7x has more than one device, and only it has a link between them."""
    several = [name for name in CHIPS if catalog.chip(name).devices > 1]
    joined = [name for name in CHIPS if catalog.chip(name).die_link_bytes_per_s]
    assert several == joined == ["tpu7x"]
    chip = catalog.chip("tpu7x")
    assert chip.die_link_bytes_per_s is not None
    assert chip.die_link_bytes_per_s.value == 6 * chip.ici_link_bytes_per_s.value


def test_every_source_that_is_named_exists_and_every_one_that_exists_is_named() -> None:
    """No number without a source, no source without a use."""
    named = {catalog.model_source(name) for name in catalog.models()}
    for chip in map(catalog.chip, CHIPS):
        named |= {quantity.source for _, quantity in quantities(chip, chip.name)}
        named |= {chip.layout_source, chip.largest_slice_source, chip.slices.source}
        named |= {
            names.source for names in (chip.ray, chip.libtpu, chip.xla_gpu, chip.gke) if names
        }
        named |= {compiler_option.source for compiler_option in chip.compiler_options.values()}
        named |= {chip.products.source} if chip.products else set()
    named |= {constant.source for constant in structs.asdict(recovery()).values()}
    named |= {run.source for run in goodput_runs()}
    named |= {figure.source for figure in serving.figures()}
    named |= {"published-runs", "published-gpu-runs", "serving-runs"}
    named |= {_CRITICAL_SOURCE, _ICI_RATE_SOURCE} | {figure.source for figure in figures()}
    assert named == catalog.sources().keys()


def test_every_source_says_what_where_and_when() -> None:
    """A date is that of publication, or `read` and the day."""
    for key, source in catalog.sources().items():
        assert source.key == key
        assert source.title
        assert source.where
        assert re.fullmatch(r"(read )?20\d\d(-\d\d){0,2}", source.date), key


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_has_the_published_number_of_parameters(name: str) -> None:
    """Counted tensor by tensor."""
    assert sum(map(prod, tensors(catalog.model(name)))) == PARAMETERS[name]


def test_the_small_models_are_small() -> None:
    """About a million parameters, and some tens of millions."""
    tiny, small = (
        sum(map(prod, tensors(catalog.model(name)))) for name in ("llama-tiny", "llama-small")
    )
    assert 0.5e6 < tiny < 2e6
    assert 10e6 < small < 50e6
    assert {*PARAMETERS, "llama-tiny", "llama-small", "mixture-tiny"} == set(catalog.models())


@pytest.mark.parametrize("name", ["V5P", "v5", "v5p ", "", "../chips/v5p", "v5p.toml"])
def test_an_unknown_chip_lists_the_known(name: str) -> None:
    """Names are exact, and are no way into the file system."""
    with pytest.raises(UnknownName) as caught:
        catalog.chip(name)
    assert (caught.value.kind, caught.value.name) == ("chip", name)
    assert caught.value.known == list(catalog.chips())


@pytest.mark.parametrize("name", ["llama3-7b", "Llama3-8B", "", "source"])
def test_an_unknown_model_lists_the_known(name: str) -> None:
    """Also when only its source is asked for."""
    for ask in (catalog.model, catalog.model_source):
        with pytest.raises(UnknownName) as caught:
            ask(name)
        assert caught.value.known == list(catalog.models())


@pytest.mark.parametrize(("name", "text", "wraps"), WRAPS)
def test_axes_close_where_the_machine_closes_them(
    name: str, text: str, wraps: tuple[bool, ...]
) -> None:
    """Whole 4x4x4 cubes on v4, v5p and tpu7x; axes of 16 on v5e and v6e; none when switched."""
    assert catalog.topology(catalog.chip(name), text).wraps == wraps


@pytest.mark.parametrize(("name", "text", "shape"), NAMED)
def test_an_accelerator_type_means_the_most_cubic_slice_of_its_chips(
    name: str, text: str, shape: str
) -> None:
    """v4, v5p and tpu7x names count TensorCores, two a chip; the others count chips."""
    chip = catalog.chip(name)
    assert catalog.topology(chip, text) == catalog.topology(chip, shape)


@pytest.mark.parametrize(("name", "text", "why"), REFUSED)
def test_a_slice_that_cannot_exist_is_refused_with_the_nearest(
    name: str, text: str, why: str
) -> None:
    """What is wrong, against which rule, and what to write instead."""
    with pytest.raises(SpecError) as caught:
        catalog.topology(catalog.chip(name), text)
    assert why in str(caught.value)


@pytest.mark.parametrize("text", ["4X4X4", "4*4*4", "4x4x4 ", "[4, 4, 4]", "(4,4,4)"])
def test_a_shape_in_another_notation_names_the_shape(text: str) -> None:
    """The slice that is meant, alone."""
    with pytest.raises(NoSuchSlice) as caught:
        catalog.topology(catalog.chip("v5p"), text)
    assert caught.value.legal == ["4x4x4"]


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_text_that_is_no_topology_lists_some(text: str) -> None:
    """Neither a shape nor a name of this chip: the answer lists both kinds."""
    with pytest.raises(NoSuchSlice) as caught:
        catalog.topology(catalog.chip("v5p"), text)
    assert {"2x2x1", "4x4x4", "16x16x24", "16x20x28", "v5p-17920"} <= set(caught.value.legal)


@given(slices())
def test_every_topology_reads_back_as_itself(pair: tuple[Chip, str]) -> None:
    """Text to topology to text, the right number of axes, within the pod, on whole hosts."""
    chip, text = pair
    topology = catalog.topology(chip, text)
    assert str(topology) == text
    assert len(topology.shape) == len(topology.wraps) == chip.torus_axes
    assert 1 <= topology.chips <= chip.pod_chips.value
    hosts = catalog.hosts(chip, topology)
    assert hosts == 1 or hosts * chip.chips_per_host == topology.chips


@given(st.sampled_from(CHIPS), st.lists(st.integers(1, 64), min_size=1, max_size=4))
def test_any_shape_is_served_or_refused_with_slices_that_are_served(
    name: str, shape: list[int]
) -> None:
    """What the answer offers instead can be had."""
    chip, text = catalog.chip(name), "x".join(map(str, shape))
    if text in catalog.topologies(chip):
        assert catalog.topology(chip, text).chips == prod(shape)
        return
    with pytest.raises(NoSuchSlice) as caught:
        catalog.topology(chip, text)
    offered = caught.value.legal
    assert {str(catalog.topology(chip, other)) for other in offered} == set(offered)


@pytest.mark.parametrize("name", CHIPS)
def test_the_whole_pod_and_the_largest_slice_exist(name: str) -> None:
    """The bounds of a chip are slices themselves; what is rented is no more than what exists."""
    chip = catalog.chip(name)
    every = [catalog.topology(chip, text) for text in catalog.topologies(chip)]
    assert every[-1].chips == chip.pod_chips.value
    assert chip.largest_slice in {topology.shape for topology in every}
    assert [topology.chips for topology in every] == sorted(topology.chips for topology in every)


def test_more_than_google_cloud_rents_is_legal_with_a_warning() -> None:
    """Four whole v5p pods exceed both the largest slice and Multislice."""
    chip = catalog.chip("v5p")
    one_slice, multislice = catalog.rental_warnings(chip, catalog.topology(chip, "16x20x28"), 4)
    assert one_slice.code == "slice_not_rented"
    assert one_slice.figures == {
        "chip": "v5p",
        "most_chips": 6144,
        "largest_slice": "16x16x24",
        "topology": "16x20x28",
        "chips": 8960,
    }
    assert multislice.code == "slices_not_joined"
    assert (multislice.figures["most_chips"], multislice.figures["chips"]) == (18_432, 35_840)


@pytest.mark.parametrize(("name", "text", "pods", "warnings"), RENTED)
def test_only_what_exceeds_a_known_limit_has_a_warning(
    name: str, text: str, pods: int, warnings: int
) -> None:
    """The limit itself is within the limit, and a limit that nobody published warns of nothing."""
    chip = catalog.chip(name)
    assert len(catalog.rental_warnings(chip, catalog.topology(chip, text), pods)) == warnings


def test_small_slices_have_one_host_and_large_ones_one_for_every_four_tpus() -> None:
    """One up to four chips, on v5e and v6e up to eight; a GPU domain is one host."""
    wanted = {"v5p 2x2x1": 1, "v5p 16x20x28": 2240, "v5e 2x4": 1, "v5e 4x4": 4, "v6e 16x16": 64}
    for slice_name, hosts in (wanted | {"tpu7x 4x4x4": 16, "h100 8": 1}).items():
        name, text = slice_name.split()
        chip = catalog.chip(name)
        assert catalog.hosts(chip, catalog.topology(chip, text)) == hosts


def test_the_rules_follow_the_chip_that_is_given() -> None:
    """A chip made of another, as a study may do, has its own pod and limits."""
    small = replace(catalog.chip("v5p"), pod_chips=Quantity(value=64, source="orch"))
    assert catalog.topologies(small) == ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
    with pytest.raises(SpecError, match="v5p pods have 64"):
        catalog.topology(small, "4x4x8")


def test_the_catalog_loads_little() -> None:
    """Planning pays for no framework, no numpy and no YAML when it asks for a chip."""
    code = "import sys, orchestrator.catalog as c; c.chip('v5p'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded & {"jax", "ray", "mlflow", "numpy", "yaml", "jsonschema"} == set()
    assert {"orchestrator", "tomllib"} <= loaded
