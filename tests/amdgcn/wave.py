"""One wave that executes instructions one by one; its registers are written and read by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.amdgcn.decode import family_of, step_of
from tilewright.amdgcn.operands import SGPR, operand
from tilewright.amdgcn.space import Lds
from tilewright.amdgcn.state import Waves
from tilewright.amdgcn.text import instruction

Values = Any


def wave(arch: str, vectors: int = 64) -> Waves:
    """Return a wave with all lanes active and with LDS, whose other registers were never written."""
    family = family_of(arch)
    made = Waves(family, 1, range(vectors))
    made.lds = Lds(1024, np.zeros(1, np.int64), 1)
    for name in ("exec_lo", "exec_hi"):
        put(made, name, 0xFFFFFFFF)
    made.read_exec()
    return made


def put(of: Waves, name: str, value: Values) -> None:
    """Write a register: one number, or one for each lane; 64 bits if the name has two registers."""
    item = operand(name)
    wide = np.asarray(value).astype(np.uint64) if np.asarray(value).dtype.kind in "iu" else np.uint64(value)
    for place, register in enumerate(item.registers):
        word = ((wide >> np.uint64(32 * place)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        if register >= SGPR:
            of.scalar[register - SGPR] = word
        else:
            of.vector[register][...] = word
        of.undefined.discard(register)
    of.read_exec()


def get(of: Waves, name: str, lane: int = 0) -> int:
    """Return a register's number in a lane."""
    words = [
        of.scalar[register - SGPR, 0] if register >= SGPR else of.vector[register][0, lane]
        for register in operand(name).registers
    ]
    return sum(int(word) << (32 * place) for place, word in enumerate(words))


def do(of: Waves, *texts: str) -> None:
    """Execute instructions, one after another, like a launch."""
    for line, text in enumerate(texts, 1):
        step = step_of(instruction(line, text), of.family)
        with np.errstate(all="ignore"):
            step.run(of) if of.undefined.isdisjoint(step.touched) else step.run_tracked(of)


def bits(value: float, kind: str = "f4") -> int:
    """Return the bits of a floating-point number."""
    return int(np.array(value, kind).view(f"u{np.dtype(kind).itemsize}"))
