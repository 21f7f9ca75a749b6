"""Bytes that hold several numbers each, the first in the lowest bits, taken apart and put together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tilewright.ir.packed_ops import Pack, Unpack
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, floordiv, mod, mul
from tilewright.symbolic.nodes import Int
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.statements import Code, code, joined, named
from tilewright.views.view import coordinates


def emit_unpack(emitter: CpuEmitter, op: Unpack) -> None:
    """Each byte's numbers, one after another."""
    kind, mask = op.packed, (1 << op.packed.bits) - 1
    with ExitStack() as loops:
        at, numbers = _loops(emitter, loops, op, op.source)
        byte = _element(emitter, op.source, at)
        for part, number in enumerate(numbers):
            found = code("({} >> {} & {})", byte, kind.bits * part, mask)
            made = emitter.convert(found, kind, op.target.dtype)
            emitter.assign(_element(emitter, op.target, number), made)


def emit_pack(emitter: CpuEmitter, op: Pack) -> None:
    """Each byte of its numbers."""
    kind, mask = op.packed, (1 << op.packed.bits) - 1
    with ExitStack() as loops:
        at, numbers = _loops(emitter, loops, op, op.target)
        parts = []
        for part, number in enumerate(numbers):
            made = emitter.convert(_element(emitter, op.source, number), op.source.dtype, kind)
            parts.append(code("({} & {}) << {}", made, mask, kind.bits * part))
        emitter.assign(_element(emitter, op.target, at), joined(" | ", parts))


def _loops(
    emitter: CpuEmitter, loops: ExitStack, op: Unpack | Pack, held: Value
) -> tuple[tuple[Int, ...], list[tuple[Int, ...]]]:
    """Open loops over the bytes of a tile: the coordinate of a byte, and those of its numbers."""
    emitter.comment(op, f"{op.source} -> {op.target}, {op.packed.per_byte} numbers in each byte")
    shape = held.fragment.shape
    at = coordinates(shape, "b")
    for i, extent in zip(at, shape, strict=True):
        loops.enter_context(emitter.turns(named(i.name), extent))
    each = op.packed.per_byte
    numbers = [
        tuple(add(mul(i, each), part) if dim == op.dim else i for dim, i in enumerate(at))
        for part in range(each)
    ]
    return at, numbers


def _element(emitter: CpuEmitter, fragment: Value, at: Sequence[Int]) -> Code:
    return code("{}[{}]", emitter.name(fragment), emitter.spell(_place(fragment, at)))


def _place(fragment: Value, at: Sequence[Int]) -> Int:
    """Where the element of a fragment that one thread holds lies in its array."""
    place: Int = 0
    weight = 1
    for mode in fragment.fragment.distribution.values:
        if mode.dim is not None:
            digit = mod(floordiv(at[mode.dim], mode.step), mode.extent)
            place = add(place, mul(digit, weight))
        weight *= mode.extent
    return place
