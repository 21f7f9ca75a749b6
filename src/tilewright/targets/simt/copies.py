"""Copies between global memory, shared memory and registers, in every combination.

A thread's part of a copy is a walk over vectors.  What does not depend on the walk's loops is computed before
them; a predicate is tested once per vector; vectors between two memories pass through registers, many loads
before the first store, so that loads overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tilewright.dtypes import DType
from tilewright.ir.ops import Copy
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.expr import add, xor
from tilewright.symbolic.nodes import TRUE, Cond, Constant, Element, Int, Sym
from tilewright.symbolic.rebuilding import symbols, with_elements
from tilewright.targets.simt.arithmetic import rounded
from tilewright.targets.simt.conversion import converted
from tilewright.targets.simt.emitter import LOOPS, Scope, SimtEmitter, walk_of
from tilewright.targets.simt.rows import read_rows
from tilewright.targets.simt.swizzled import split_flips
from tilewright.targets.simt.thread_values import (
    Walk,
    extent,
    split_offset,
    split_valid,
    thread_coordinate,
    turn,
    walk,
)
from tilewright.threads.distribution import Distribution

STAGED_ACCESSES = {16: 8, 8: 8}
"""How many accesses, by their width in bytes, a thread loads before it stores, between memories."""

STAGED_NARROW = 16
"""The same for narrower accesses: each has an address and a predicate of its own."""


@dataclass(frozen=True)
class Access:
    """One side of a copy in memory.

    Args:
        pointer: name of the pointer before the loops.
        step: what the loops add to it, in elements.
        inside: condition known before the loops; empty if it holds.
        valid: condition tested in the loops.
        dtype: element type.
        word: type of one access.
        vector: elements of one access.
        other: the word that is read where the vector does not exist; empty for zeros.
    """

    pointer: str
    step: Int
    inside: str
    valid: Cond
    dtype: DType
    word: str
    vector: int
    other: str = ""

    def address(self, emitter: SimtEmitter) -> str:
        """The address of the vector."""
        return emitter.plus(self.pointer, self.step)

    def condition(self, emitter: SimtEmitter) -> str:
        """Whether the vector exists; empty if it always does."""
        inner = "" if self.valid == TRUE else emitter.spell_cond(self.valid)
        return " && ".join(part for part in (self.inside, inner) if part)

    def load(self, emitter: SimtEmitter) -> str:
        """The vector, or what stands for it where it does not exist."""
        condition = self.condition(emitter)
        if condition and self.other:
            return f"load_or<{self.word}>({condition}, {self.address(emitter)}, {self.other})"
        if condition:
            return f"load_if<{self.word}>({condition}, {self.address(emitter)})"
        if self.vector == 1:
            return f"{self.pointer}[{emitter.spell(self.step)}]"
        return f"*(const {self.word}*)({self.address(emitter)})"

    def store(self, emitter: SimtEmitter, value: str) -> str:
        """A statement that writes the vector where it exists."""
        place = f"*({self.word}*)({self.address(emitter)})"
        if self.vector == 1:
            place = f"{self.pointer}[{emitter.spell(self.step)}]"
        condition = self.condition(emitter)
        return f"if ({condition}) {place} = {value};" if condition else f"{place} = {value};"


def place(
    scope: Scope,
    wanted: str,
    tensor: Value,
    at: Sequence[Int],
    loops: Sequence[Sym],
    *,
    const: bool,
    rows: Mapping[Element, Int] = MappingProxyType({}),
) -> tuple[str, Int]:
    """Declare where a thread starts in a tensor: the name of a pointer, and what the loops add to it.

    ``rows`` is what `read_rows` declared.
    """
    sizes = scope.emitter.sizes
    offset = with_elements(tensor.tensor.view.at(tuple(at)), rows)
    flipped = split_flips(offset, scope.own) if tensor.tensor.memory is Memory.SHARED else None
    if flipped is None:
        base, step = split_offset(offset, loops, sizes)
        return scope.pointer(wanted, tensor, base, const=const), step
    base, step = split_offset(flipped[0], loops, sizes)
    start = xor(scope.constant("start", base), flipped[1])
    if symbols(flipped[1]) & set(loops):
        return scope.pointer(wanted, tensor, 0, const=const), add(start, step)
    return scope.pointer(wanted, tensor, start, const=const), step


def access(
    scope: Scope,
    wanted: str,
    tensor: Value,
    at: Sequence[Int],
    loops: Sequence[Sym],
    vector: int,
    *,
    const: bool,
    other: float | int = 0,
) -> Access:
    """Declare what one side of a copy needs before its loops."""
    emitter = scope.emitter
    outside = repeated(emitter, tensor.dtype, vector, other) if other != 0 else ""
    rows = read_rows(scope, tensor, at, loops)
    valid = with_elements(tensor.tensor.view.valid_at(tuple(at)), rows)
    # Of a tile of one element the coordinate is known, and so may be whether it exists.
    outer, inner = split_valid(valid if isinstance(valid, Cond) else Constant(bool(valid)), loops)
    pointer, step = place(scope, wanted, tensor, at, loops, const=const, rows=rows)
    if not loops:
        word = emitter.word(tensor.dtype, vector)
        return Access(pointer, step, "", outer, tensor.dtype, word, vector, outside)
    inside, word = scope.condition("inside", outer), emitter.word(tensor.dtype, vector)
    return Access(pointer, step, inside, inner, tensor.dtype, word, vector, outside)


def repeated(emitter: SimtEmitter, dtype: DType, vector: int, value: float | int) -> str:
    """A word that holds a number in each element of a vector."""
    if vector == 1:
        return rounded(value, dtype, emitter.dialect.types)
    with np.errstate(over="ignore"):
        data = dtype.numpy.type(value).tobytes() * vector
    parts = [f"0x{int.from_bytes(data[at : at + 4], 'little'):x}u" for at in range(0, len(data), 4)]
    if len(parts) == 1:
        return f"({emitter.word(dtype, vector)}){parts[0]}"
    return f"{emitter.word(dtype, vector)}{{{', '.join(parts)}}}"


def title(op: Copy, vector: int) -> str:
    """What a copy does, for its comment."""
    bytes_ = vector * min(op.source.dtype.bytes, op.target.dtype.bytes)
    arrow = f"{op.source.name} -> {op.target.name}"
    return f"{arrow}, {bytes_} byte{'s' * (bytes_ > 1)} at a time"


def copy(emitter: SimtEmitter, op: Copy) -> None:
    """A copy by loads and stores; `tilewright.targets.simt.reductions` has those that reduce."""
    if op.source.is_fragment and op.target.is_fragment:
        _between_fragments(emitter, op)
    elif op.target.is_fragment:
        _load(emitter, op)
    elif op.source.is_fragment:
        _store(emitter, op)
    else:
        _between_memories(emitter, op)


def _between_fragments(emitter: SimtEmitter, op: Copy) -> None:
    with emitter.scope(op, f"{op.source.name} -> {op.target.name}", bare=True) as scope:
        i = Sym(scope.name("i"), 0, op.spread.size_values - 1)
        source = f"{emitter.name(op.source)}[{i.name}]"
        value = converted(source, op.source.dtype, op.target.dtype, emitter.dialect.types)
        emitter.one_line((i,), f"{emitter.name(op.target)}[{i.name}] = {value};")


def plan(
    scope: Scope, spread: Distribution, vector: int, batch: int | None = None
) -> tuple[Walk, tuple[Int, ...]]:
    """A thread's walk, and the coordinate it visits; declares where the thread starts."""
    emitter = scope.emitter
    path = walk(spread.values, spread.rank, vector, scope.names(LOOPS), batch)
    start = thread_coordinate(spread.threads, spread.rank, emitter.thread(spread.size_threads))
    return path, walk_of(path, scope.coordinate(start))


def _load(emitter: SimtEmitter, op: Copy) -> None:
    """Memory to registers."""
    vector = op.vector or 1
    with emitter.scope(op, title(op, vector), emitter.participants(op.spread)) as scope:
        path, at = plan(scope, op.spread, vector)
        source = access(scope, "from", op.source, at, path.loops, vector, const=True, other=op.other)
        target, register = emitter.name(op.target), emitter.spell(path.register)
        if op.source.dtype != op.target.dtype:
            with emitter.loops(path.loops):
                emitter.line(
                    f"const {source.word} {(loaded := scope.name('loaded'))} = {source.load(emitter)};"
                )
                place = f"{target}[{_element(emitter, path.register, '{}')}]"
                _convert(scope, loaded, op.source.dtype, place, op.target.dtype, vector)
            return
        place = f"{target}[{register}]"
        place = place if vector == 1 else f"*({source.word}*)&{place}"
        emitter.one_line(path.loops, f"{place} = {source.load(emitter)};")


def _store(emitter: SimtEmitter, op: Copy) -> None:
    """Registers to memory."""
    vector = op.vector or 1
    guard = emitter.participants(op.spread, once=True)
    with emitter.scope(op, title(op, vector), guard) as scope:
        path, at = plan(scope, op.spread, vector)
        target = access(scope, "to", op.target, at, path.loops, vector, const=False)
        source, register = emitter.name(op.source), emitter.spell(path.register)
        if vector == 1:
            value = converted(
                f"{source}[{register}]", op.source.dtype, op.target.dtype, emitter.dialect.types
            )
            emitter.one_line(path.loops, target.store(emitter, value))
        elif op.source.dtype == op.target.dtype:
            value = f"*(const {target.word}*)&{source}[{register}]"
            emitter.one_line(path.loops, target.store(emitter, value))
        else:
            with emitter.loops(path.loops):
                packed = scope.name("packed")
                width = vector * op.target.dtype.bytes
                emitter.line(f"{emitter.array(op.target.dtype, packed, vector, width)};")
                e = Sym(scope.name("e"), 0, vector - 1)
                value = f"{source}[{emitter.spell(add(path.register, e))}]"
                value = converted(value, op.source.dtype, op.target.dtype, emitter.dialect.types)
                emitter.one_line((e,), f"{packed}[{e.name}] = {value};")
                emitter.statement(target.store(emitter, f"*(const {target.word}*){packed}"))


def _element(emitter: SimtEmitter, register: Int, placeholder: str) -> str:
    """``register + placeholder`` as text."""
    return placeholder if register == 0 else f"{emitter.spell(register)} + {placeholder}"


def _convert(scope: Scope, word: str, source: DType, place: str, target: DType, vector: int) -> None:
    """Convert the elements of a loaded word into ``place``, a format over the element's number."""
    emitter = scope.emitter
    if vector == 1:
        value = converted(word, source, target, emitter.dialect.types)
        emitter.line(f"{place.format('0').replace(' + 0]', ']')} = {value};")
        return
    e = Sym(scope.name("e"), 0, vector - 1)
    value = f"((const {emitter.type(source)}*)&{word})[{e.name}]"
    value = converted(value, source, target, emitter.dialect.types)
    emitter.one_line((e,), f"{place.format(e.name)} = {value};")


def _between_memories(emitter: SimtEmitter, op: Copy) -> None:
    """Memory to memory through registers: a batch of loads, then their stores."""
    vector = op.vector or 1
    spread = op.spread
    guard = emitter.participants(spread, once=True)
    with emitter.scope(op, title(op, vector), guard) as scope:
        staged = STAGED_ACCESSES.get(vector * op.source.dtype.bytes, STAGED_NARROW)
        path, at = plan(scope, spread, vector, staged)
        first = len(path.loops) - path.batch
        outer, inner = path.loops[:first], path.loops[first:]
        # Integers that place accesses lie in registers, which only unrolled loops may index.
        chosen = bool(op.source.tensor.indices or op.target.tensor.indices)
        sides = None if chosen else _sides(scope, op, at, path.loops)
        with emitter.loops(outer, unroll=False):
            source, target = sides or _sides(scope, op, at, inner)
            if not inner:
                emitter.line(
                    f"const {source.word} {(moved := scope.name('moved'))} = {source.load(emitter)};"
                )
                _put(scope, op, target, moved)
                return
            moved = scope.name("moved")
            emitter.line(f"{source.word} {moved}[{math.prod(extent(loop) for loop in inner)}];")
            place = f"{moved}[{emitter.spell(turn(inner))}]"
            emitter.one_line(inner, f"{place} = {source.load(emitter)};")
            if op.source.dtype == op.target.dtype:
                emitter.one_line(inner, target.store(emitter, place))
            else:
                with emitter.loops(inner):
                    _put(scope, op, target, place)


def _sides(scope: Scope, op: Copy, at: Sequence[Int], loops: Sequence[Sym]) -> tuple[Access, Access]:
    """Declare what both sides of a copy between memories need before loops."""
    vector = op.vector or 1
    return (
        access(scope, "from", op.source, at, loops, vector, const=True, other=op.other),
        access(scope, "to", op.target, at, loops, vector, const=False),
    )


def _put(scope: Scope, op: Copy, target: Access, word: str) -> None:
    """Store one loaded word, converted to the target's dtype."""
    emitter = scope.emitter
    if op.source.dtype == op.target.dtype:
        emitter.statement(target.store(emitter, word))
    elif target.vector == 1:
        value = converted(word, op.source.dtype, op.target.dtype, emitter.dialect.types)
        emitter.statement(target.store(emitter, value))
    else:
        packed = scope.name("packed")
        width = target.vector * op.target.dtype.bytes
        emitter.line(f"{emitter.array(op.target.dtype, packed, target.vector, width)};")
        _convert(scope, word, op.source.dtype, f"{packed}[{{}}]", op.target.dtype, target.vector)
        emitter.statement(target.store(emitter, f"*(const {target.word}*){packed}"))
