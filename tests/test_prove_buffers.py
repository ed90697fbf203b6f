"""Buffers that are alive at the peak, their classes and their names."""

from orchestrator.proving.hlo.buffers import BufferClasses, peak
from orchestrator.proving.hlo.dataflow import Dataflow
from orchestrator.proving.hlo.program import HloProgram, program_of
from tests.programs import program

KIB = 1024
SHARES = '"aliasing_operands":{"lists":[{"indices":["%s","%s"]}]}'


def step(text: str) -> HloProgram:
    """A program whose text is everything but its head."""
    return program_of(f"HloModule m, is_scheduled=true, num_partitions=1\n\n{text}")


def test_a_buffer_lives_from_its_first_write_to_its_last_read() -> None:
    """Arguments throughout; VMEM and what is merely renamed take nothing."""
    read = step(
        """ENTRY %main (p: f32[256]) -> f32[256] {
  %p = f32[256] parameter(0)
  %a = f32[1024] broadcast(%p), dimensions={}
  %alias = f32[32,32] bitcast(%a)
  %b = f32[512] custom-call(%alias), custom_call_target="Anything"
  %fast = f32[4096]{0:T(1024)S(1)} broadcast(%p), dimensions={}
  %c = f32[2048] custom-call(%b, %fast), custom_call_target="Anything"
  ROOT %out = f32[256] custom-call(%c), custom_call_target="Anything"
}
"""
    )
    worst = peak(read)
    assert worst.bytes == (1 + 2 + 8) * KIB
    assert {buffer.instruction for buffer in worst.buffers} == {"p", "b", "c"}
    assert worst.at == ("main", "c")


def test_a_result_may_take_its_operands_place() -> None:
    """As the compiler notes it: operands are counted first, then results."""
    shared, aliased = SHARES % (0, 2), "output_to_operand_aliasing={{}: (0, {})}"
    read = step(
        f"""ENTRY %main (p: f32[1024]) -> f32[1024] {{
  %p = f32[1024] parameter(0)
  %a = f32[1024] negate(%p)
  %b = f32[1024] negate(%p)
  %c = f32[1024] add(%a, %b), backend_config={{{shared}}}
  ROOT %d = f32[1024] custom-call(%c), {aliased}
}}
"""
    )
    assert peak(read).bytes == 3 * 4 * KIB


def test_a_loop_holds_its_state_once() -> None:
    """What a round makes for the next takes the place of what it was given."""
    worst = peak(program("layers"))
    arguments = 2 * 4 * KIB + 32
    state = 4 + 2 * KIB + KIB / 2
    copy, inside = 2 * KIB, 16 * KIB
    assert worst.bytes == arguments + state + copy + inside
    assert worst.at[0] == "layer"


def test_buffers_have_classes_and_names() -> None:
    """Arguments by their paths, a cast parameter as a copy, a stack by the line that fills it."""
    read = program("layers")
    ledger = BufferClasses(Dataflow(read), peak(read), kept=4)
    classes = ledger.sizes()
    assert sum(classes.values()) == peak(read).bytes
    assert classes["parameters"] == classes["optimizer"] == 4 * KIB
    assert classes["batch"] == 32
    assert classes["compute copies"] == 2 * KIB
    named = {(buffer.name, buffer.shape): buffer.bytes for buffer in ledger.largest()}
    assert named["optimizer.0.mu.layers.up", "f32[4,256]"] == 4 * KIB
    assert named["copy of parameters.layers.up", "bf16[4,256]"] == 2 * KIB
    assert classes["kept activations"] == 2 * KIB
    assert named["trainers/toy/net.py:9 (Net.out) tanh", "f32[4,128]"] == 2 * KIB
    assert named["trainers/toy/net.py:7 (block) dot_general", "f32[4096]"] == 16 * KIB
    assert ledger.peak_at() == "trainers/toy/net.py:7 (block) dot_general"
