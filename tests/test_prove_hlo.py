"""Parsed HLO text: instructions, shapes, source lines, execution counts."""

import pytest

from orchestrator.network.attention import EXCHANGE
from orchestrator.proving.hlo.dataflow import UnknownTrips, trip_count, visits
from orchestrator.proving.hlo.flops import is_product, product_flops
from orchestrator.proving.hlo.program import (
    HloProgram,
    Instruction,
    _SourceLine,
    _SourceTables,
    _trainer_line,
    program_of,
)
from tests.programs import program


def execution_counts(read: HloProgram) -> dict[str, int]:
    return {where.name: times for where, _, times in visits(read)}


def entry_of(*lines: str) -> HloProgram:
    """A program of one computation."""
    body = "\n".join(f"  {line}" for line in lines)
    return program_of(f"HloModule m, num_partitions=4\n\nENTRY %main () -> f32[] {{\n{body}\n}}\n")


def test_a_program_is_read_whole() -> None:
    """Every computation, its root and its parameters; strings may hold line breaks and brackets."""
    read = program("loops")
    assert read.partitions == 8
    assert list(read.computations) == [
        "upwards", "by_two", "fused_test", "bounded", "one_more", "by_one", "main",
    ]  # fmt: skip
    assert read.entry.root.name == "out"
    second = read.entry.instructions["second"]
    assert second.called == ("bounded", "by_one")
    assert second.operands == ("state.4",)
    assert "over two lines" in second.rest
    assert read.entry.parameters[0].op_name == r"state[\'parameters\'][\'layers\'][\'up\']"


def test_shapes_of_tuples_are_read_with_their_layouts() -> None:
    """Tiles hold brackets and comments stand between elements: neither ends a shape."""
    [counter, matrix] = program("loops").entry.instructions["first"].arrays
    assert (counter.dtype, counter.dimensions) == ("s32", ())
    assert (matrix.dimensions, matrix.elements, matrix.bytes) == ((4, 8), 32, 64)


def test_an_instruction_knows_the_lines_it_comes_from() -> None:
    """The innermost call first; the outermost has no parent."""
    read = program("loops")
    product = read.computations["by_two"].instructions["product"]
    stack = read.sources.stack(product.frame)
    assert [(place.function, place.line) for place in stack] == [
        ("block", 12), ("scan", 99), ("step.<locals>.body", 30),
    ]  # fmt: skip
    assert [_trainer_line(place) for place in stack] == [
        "trainers/toy/model.py:12 (block)", "", "trainers/toy/model.py:30 (step.body)",
    ]  # fmt: skip
    assert _trainer_line(_SourceLine("/jax/numpy.py", "where", 3)) == ""
    own = _SourceLine("/home/me/my_package/my_module.py", "step", 7)
    assert _trainer_line(own) == "my_package/my_module.py:7 (step)"


def test_a_loops_body_does_not_repeat_the_calls_around_it() -> None:
    """The compiler names the calls around a loop again for each operation of its body."""

    def once_each(calls: str) -> str:
        frames = {
            number: (_SourceLine("/site-packages/a/b.py", name, 1), number)
            for number, name in enumerate(calls.split(), start=1)
        }
        lines = _SourceTables(frames).program_lines(len(frames))
        return " ".join(line.removeprefix("a/b.py:1 (").rstrip(")") for line in lines)

    assert once_each("step loop step loop block") == "step loop block"
    assert once_each("step loop block loop step loop") == "step loop"


@pytest.mark.parametrize(
    ("shape", "padded_bytes", "in_hbm"),
    [
        ("f32[10,100]{1,0:T(8,128)}", 16 * 128 * 4, True),
        ("f32[10,100]{0,1:T(8,128)}", 104 * 128 * 4, True),
        ("bf16[80,2048,1,128]{3,2,1,0:T(1,128)}", 80 * 2048 * 128 * 2, True),
        ("bf16[3000]{0:T(1024)(128)(2,1)S(1)}", 3072 * 2, False),
        ("f32[]{:T(128)}", 4, True),
        ("pred[7]{0}", 7, True),
    ],
)
def test_memory_is_taken_in_whole_tiles(shape: str, padded_bytes: int, in_hbm: bool) -> None:
    """The minor dimensions of the layout are filled up; S(1) is not HBM."""
    [array] = Instruction("a", shape, "copy", (), "", "", is_root=False).arrays
    assert array.padded_bytes == padded_bytes
    assert array.is_in_hbm is in_hbm


# --- loops


def test_loops_run_as_often_as_their_counters_say() -> None:
    """From 10 to 80 by 2; from 1 to 5, both included, by a sum and a comparison in fusions."""
    read = program("loops")
    loops = read.entry.instructions
    assert trip_count(read, read.entry, loops["first"]) == 35
    assert trip_count(read, read.entry, loops["second"]) == 5
    assert execution_counts(read)["by_two"] == 35
    assert execution_counts(read)["one_more"] == 5


def loop(condition: str, step: str, start: str = "constant(0)") -> HloProgram:
    """A loop over one counter; `condition` is of %i and %c, `step` makes %n from %i and %c."""
    return program_of(
        f"""HloModule m, num_partitions=1

%test (s: (s32[])) -> pred[] {{
  %s = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %c = s32[] constant(7)
  ROOT %r = pred[] {condition}
}}

%body (s.1: (s32[])) -> (s32[]) {{
  %s.1 = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s.1), index=0
  %c = s32[] constant(3)
  %n = s32[] {step}
  ROOT %t = (s32[]) tuple(%n)
}}

ENTRY %main (p: s32[]) -> (s32[]) {{
  %p = s32[] parameter(0)
  %z = s32[] {start}
  %t.1 = (s32[]) tuple(%z)
  ROOT %w = (s32[]) while(%t.1), condition=%test, body=%body
}}
"""
    )


@pytest.mark.parametrize(
    ("condition", "step", "start", "count"),
    [
        ("compare(%i, %c), direction=LT", "add(%i, %c)", "constant(0)", 3),
        ("compare(%i, %c), direction=LE", "add(%c, %i)", "constant(1)", 3),
        ("compare(%c, %i), direction=GT", "add(%i, %c)", "constant(6)", 1),
        ("compare(%i, %c), direction=GE", "subtract(%i, %c)", "constant(20)", 5),
        ("compare(%i, %c), direction=NE", "subtract(%i, %c)", "constant(13)", 2),
        ("compare(%i, %c), direction=LT", "add(%i, %c)", "constant(9)", 0),
    ],
)
def test_every_way_to_count_is_known(condition: str, step: str, start: str, count: int) -> None:
    """Up or down, by any step, compared either way round; a loop may not run at all."""
    read = loop(condition, step, start)
    assert trip_count(read, read.entry, read.entry.instructions["w"]) == count


@pytest.mark.parametrize(
    ("condition", "step", "start"),
    [
        ("compare(%i, %c), direction=LT", "multiply(%i, %c)", "constant(1)"),
        ("compare(%i, %c), direction=LT", "copy(%i)", "constant(1)"),
        ("compare(%i, %c), direction=LT", "add(%i, %c)", "copy(%p)"),
        ("compare(%c, %c), direction=LT", "add(%i, %c)", "constant(1)"),
        ("and(%i, %c)", "add(%i, %c)", "constant(1)"),
    ],
)
def test_a_loop_that_counts_otherwise_is_an_error(condition: str, step: str, start: str) -> None:
    """No count is made up: what depends on data, or never ends, is refused."""
    read = loop(condition, step, start)
    with pytest.raises(UnknownTrips):
        trip_count(read, read.entry, read.entry.instructions["w"])


def test_what_runs_in_the_background_runs_once() -> None:
    """Its end may name the same computation as its start; combiners of reductions do not count."""
    read = program_of(
        """HloModule m, num_partitions=1

%inside (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  ROOT %n = f32[4] negate(%p)
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (q: f32[4]) -> f32[] {
  %q = f32[4] parameter(0)
  %zero = f32[] constant(0)
  %begun = ((f32[4]), f32[4], s32[]) async-start(%q), calls=%inside
  %done = f32[4] async-done(%begun), calls=%inside
  ROOT %total = f32[] reduce(%done, %zero), dimensions={0}, to_apply=%sum
}
"""
    )
    assert execution_counts(read) == {"main": 1, "inside": 1}


# --- matrix products


def flops(*lines: str) -> int:
    read = entry_of(*lines)
    return product_flops(read.entry, read.entry.root)


@pytest.mark.parametrize(("scope", "multiplies"), [("attention", True), (EXCHANGE, False)])
def test_a_matrix_that_exchanges_numbers_multiplies_nothing(scope: str, multiplies: bool) -> None:
    """The program names it."""
    read = entry_of(
        "%a = bf16[8,64] parameter(0)",
        "%b = bf16[64,64] parameter(1)",
        "ROOT %c = f32[8,64] convolution(%a, %b), dim_labels=bf_io->bf,"
        f' metadata={{op_name="jit(train_step)/{scope}/dot_general"}}',
    )
    assert is_product(read.entry.root) == multiplies


def test_a_dot_is_two_flops_for_each_multiplication() -> None:
    """2 x batch x rows x columns x contracted."""
    assert (
        flops(
            "%a = bf16[5,4,8] parameter(0)",
            "%b = bf16[5,8,3] parameter(1)",
            "ROOT %d = bf16[5,4,3] dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2},"
            " rhs_batch_dims={0}, rhs_contracting_dims={1}",
        )
        == 2 * 5 * 4 * 3 * 8
    )


@pytest.mark.parametrize(
    ("left", "right", "out", "how", "expected"),
    [
        ("2048,8192", "8192,1792", "2048,1792", "dim_labels=bf_io->bf", 2 * 2048 * 8192 * 1792),
        ("96,64", "96,32", "64,32", "dim_labels=fb_io->bf", 2 * 64 * 32 * 96),
        # Heads beside head elements: the window slides over padding and meets the input once.
        (
            "16,1,32", "4,32,8", "16,4,8",
            "window={size=4 pad=3_3 rhs_reversal=1}, dim_labels=b0f_0io->b0f", 2 * 16 * 32 * 32,
        ),
        # Heads and head elements contracted together: each tap of the window counts.
        (
            "16,4,8", "4,8,32", "16,1,32",
            "window={size=4}, dim_labels=b0f_0io->b0f", 2 * 16 * 32 * 32,
        ),
    ],
)  # fmt: skip
def test_products_written_as_windows(
    left: str, right: str, out: str, how: str, expected: int
) -> None:
    """As the TPU compiler writes them; places outside the input cost nothing."""
    assert (
        flops(
            f"%a = bf16[{left}] parameter(0)",
            f"%b = bf16[{right}] parameter(1)",
            f"ROOT %c = bf16[{out}] convolution(%a, %b), {how}",
        )
        == expected
    )
