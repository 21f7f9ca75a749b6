"""The ladder's programs on the CPU: right on shapes that no tile divides, without unnecessary copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.ir.ops import Copy, Mma
from tilewright.runtime import native
from tilewright.targets import cpu
from tilewright.targets.rules import EmittedText

from .ladder import NAMES, case

Machine = Callable[..., EmittedText]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", NAMES)
def test_ragged_shapes(machine: Machine, name: str) -> None:
    for extent in (131, 35):
        made = case(name, extent)
        machine(made.kernel, made.arguments)
        made.check()


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("name", ["optimized_gemm", "warp_tiles_gemm", "serial", "attention 64"])
def test_every_architectures_text(machine: Machine, arch: str, name: str) -> None:
    made = case(name, 69)
    machine(made.kernel, made.arguments, arch=arch)
    made.check()


@pytest.mark.parametrize("name", NAMES)
def test_multiplies_read_what_copies_write(name: str) -> None:
    """No operand is packed before a multiply: its copy already writes the order that the multiply reads."""
    lowered, notes = cpu.lower(case(name, 256).kernel, native.host_arch())
    assert not [note for note in notes if "packed" in note]
    multiplies = [op for op in lowered.walk() if isinstance(op, Mma)]
    filled = {op.target.buffer for op in lowered.walk() if isinstance(op, Copy)}
    assert multiplies
    assert {operand.buffer for op in multiplies for operand in (op.a, op.b)} <= filled
