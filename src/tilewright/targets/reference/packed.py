"""The rules of bytes that hold several numbers.  Importing them adds them to `REFERENCE`."""

from __future__ import annotations

import numpy as np

from tilewright.ir.packed_ops import AsBytes, Pack, Unpack
from tilewright.packing import joined, numbers_of
from tilewright.targets.reference.fragments import define, read
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.meaning import REFERENCE
from tilewright.targets.reference.state import Warp
from tilewright.threads.registers import registers_of

__all__ = ["REFERENCE"]


@REFERENCE.rule(AsBytes)
def _as_bytes(machine: Machine, warp: Warp, op: AsBytes) -> None:
    """A view is no action."""


@REFERENCE.rule(Unpack)
def _unpack(machine: Machine, warp: Warp, op: Unpack) -> None:
    numbers = numbers_of(read(machine, warp, op, op.source), op.packed)
    beyond = warp.beyond.get(op.source)
    beyond = None if beyond is None else np.repeat(beyond, op.packed.per_byte, axis=1)
    made = machine.numbers.convert(numbers, op.packed, op.target.dtype)
    order = np.argsort(registers_of(op.digits, made.shape[1]))
    beyond = None if beyond is None else beyond[:, order]
    define(machine, warp, op, op.target, made[:, order], beyond=beyond)


@REFERENCE.rule(Pack)
def _pack(machine: Machine, warp: Warp, op: Pack) -> None:
    values = read(machine, warp, op, op.source)
    numbers = machine.numbers.convert(values, op.source.dtype, op.packed)
    held = joined(numbers.view(np.uint8) & np.uint8((1 << op.packed.bits) - 1), op.packed)
    beyond = warp.beyond.get(op.source)
    if beyond is not None:
        beyond = np.asarray(beyond.reshape(len(numbers), -1, op.packed.per_byte).all(axis=-1))
    define(machine, warp, op, op.target, held, beyond=beyond)
