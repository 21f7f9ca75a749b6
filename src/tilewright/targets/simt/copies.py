"""Copies between global memory, shared memory and registers, in every combination.

A thread's part of a copy is a walk over vectors.  Values that do not depend on the walk's loops are computed
before them.  A predicate is tested once per vector.  Vectors between two memories pass through registers,
with many loads before the first store, so that loads overlap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from tilewright.dtypes import DType, f32, f64
from tilewright.ir.ops import Copy
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.arithmetic import parts_of
from tilewright.symbolic.expr import add, all_of, expand, mul, xor
from tilewright.symbolic.nodes import TRUE, And, Cond, Constant, Element, Int, Sym, Xor, bits, bounds, divisor
from tilewright.symbolic.rebuilding import elements, split_elements, substitute, symbols, with_elements
from tilewright.targets.simt.arithmetic import rounded
from tilewright.targets.simt.conversion import converted
from tilewright.targets.simt.dialect import SimtDialect
from tilewright.targets.simt.emitter import (
    LOOPS,
    WORD_BYTES,
    LocalNames,
    SimtEmitter,
    element,
    is_by_words,
    walk_of,
)
from tilewright.targets.simt.thread_values import (
    Walk,
    extent,
    split_offset,
    split_valid,
    thread_coordinate,
    turn,
    walk,
)
from tilewright.targets.statements import Arm, Assign, Branch, Code, Statement, call, code, joined, named
from tilewright.threads.distribution import Distribution

# ----------------------------------------------------------------
#
# Addresses in swizzled tiles: a base per thread, and the bits that loops flip in it.
#
# In ``128*row + ((16*k + col) ^ 8*(row % 8))`` each ``k`` seems to need an address of its own.  But this
# equals ``(128*row + (col ^ 8*(row % 8))) ^ 16*k``, because no other term has the bits of ``16*k``.  So a
# thread computes one address, and each step flips bits that are known at compile time.


def split_flips(offset: Int, own: Collection[Sym]) -> tuple[Int, Int] | None:
    """``(start, flips)`` with ``offset == start ^ flips``, where ``flips`` does not depend on the thread.

    Terms of ``start`` that do not depend on the thread alone lie above all bits that are flipped: they may as
    well be added afterwards.  None if the offset has no such form.

    Args:
        offset: not negative.
        own: the symbols that depend on the thread.

    Example:
        >>> row, col, k = Sym("row", 0, 15), Sym("col", 0, 8, 8), Sym("k", 0, 7)
        >>> split_flips(128 * row + ((16 * k + col) ^ (8 * (row % 8))), {row, col})
        (128*row + ((8*(row % 8)) ^ col), 16*k)
        >>> split_flips(128 * row + col, {row, col})
    """
    parts, constant = parts_of(expand(offset))
    for term, factor in parts:
        if not isinstance(term, Xor) or factor < 1 or factor & (factor - 1):
            continue
        for value, other in ((term.left, term.right), (term.right, term.left)):
            still, flips = _split(value, own)
            if flips == 0 or not symbols(other) | symbols(still) <= set(own):
                continue
            kept = xor(still, other)
            rest = add(constant, *(mul(t, f) for t, f in parts if t is not term))
            low = (mul(kept, factor), mul(flips, factor))
            if _apart(still, flips) and all(_apart(part, rest) for part in low):
                return add(rest, mul(kept, factor)), mul(flips, factor)
    return None


def _split(value: Int, own: Collection[Sym]) -> tuple[Int, Int]:
    """The terms that depend on the thread, with the constant, and the others."""
    parts, constant = parts_of(expand(value))
    mine = [mul(term, factor) for term, factor in parts if symbols(term) & set(own)]
    others = [mul(term, factor) for term, factor in parts if not symbols(term) & set(own)]
    return add(constant, *mine), add(*others)


def _apart(low: Int, high: Int) -> bool:
    """Whether ``low`` lies in bits below all those that ``high`` can have."""
    if bounds(low)[0] < 0 or bounds(high)[0] < 0:
        return False
    step = divisor(high)
    return high == 0 or bounds(low)[1] < (step & -step)


# ----------------------------------------------------------------
#
# Gathered rows: a thread reads each row index once.
#
# An offset such as ``X_stride0*I[8*i + row] + col`` names an integer in memory.  Its values for all turns
# of the register loops are read before these loops, into registers.


ABSENT = "-1"
"""Row number for an index without an element: it is no row of any tensor."""


def read_rows(
    scope: LocalNames, tensor: Value, at: Sequence[Int], loops: Sequence[Sym]
) -> Mapping[Element, Int]:
    """Declare the integers in memory that place a thread's accesses to a tensor."""
    if not tensor.tensor.indices:
        return {}
    view = tensor.tensor.view
    offset, valid = view.at(tuple(at)), view.valid_at(tuple(at))
    known = split_elements(valid)[0]
    return {element: _read(scope, element, known, loops) for element in elements((valid, offset))}


def _read(scope: LocalNames, element: Element, known: Cond, loops: Sequence[Sym]) -> Int:
    """Declare one of them; what of the access is known to exist guards it."""
    emitter = scope.emitter
    turning = [loop for loop in loops if loop in symbols(element.at)]
    others = set(loops) - set(turning)
    parts = known.parts if isinstance(known, And) else (known,)
    guard = all_of(*(part for part in parts if not symbols(part) & others))
    value = emitter.spell(element)
    if guard != TRUE:
        value = code(f"{{}} ? {{}} : {ABSENT}", emitter.spell_cond(guard), value)
    kind = "int" if bits(element) == 32 else "long long"
    low = min(element.low, int(ABSENT))
    if not turning:
        name = scope.name("chosen")
        emitter.constant(kind, name, value)
        return Sym(name, low, element.high)
    name, number = scope.name("chosen"), turn(turning)
    emitter.declare(named(kind), name, extent=math.prod(extent(loop) for loop in turning))
    emitter.one_line(turning, Assign(code("{}[{}]", name, emitter.spell(number)), value))
    return Element(Sym(name), number, low, element.high)


# ---------------------------------------------------------------- rules


STAGED_ACCESSES = {16: 8, 8: 8}
"""Accesses that a thread loads before it stores, by width in bytes, between memories."""

MOST_CONDITIONS = 8
"""Accesses whose conditions may be known at a time where these lie in scalar registers."""

STAGED_NARROW = 16
"""The same for narrower accesses: each has an address and a predicate of its own."""


@dataclass(frozen=True)
class ThreadAccess:
    """One side of a copy in memory.

    Args:
        pointer: name of the pointer before the loops.
        step: what the loops add to it, in elements.
        inside: condition known before the loops; None if it holds.
        valid: condition tested in the loops.
        dtype: element type.
        word: type of one access.
        vector: elements of one access.
        other: the word that is read where the vector does not exist; None for zeros.
        load_if: the function that loads it where it exists, or zeros.
        load_part: the function that loads one part of an interleaved number; empty if it is not interleaved.
    """

    pointer: Code
    step: Int
    inside: Code | None
    valid: Cond
    dtype: DType
    word: Code
    vector: int
    other: Code | None = None
    load_if: str = "load_if"
    load_part: str = ""

    def address(self, emitter: SimtEmitter) -> Code:
        """The address of the vector."""
        return emitter.plus(self.pointer, self.step)

    def condition(self, emitter: SimtEmitter) -> Code | None:
        """Whether the vector exists; None if it always does."""
        inner = None if self.valid == TRUE else emitter.spell_cond(self.valid)
        parts = [part for part in (self.inside, inner) if part is not None]
        return joined(" && ", parts) if parts else None

    def load(self, emitter: SimtEmitter) -> Code:
        """The vector, or what stands for it where it does not exist."""
        condition, address = self.condition(emitter), self.address(emitter)
        if condition is not None and self.other is not None:
            return call("load_or", condition, address, self.other, of=[self.word])
        if self.load_part:
            return call(self.load_part, condition or code("true"), address)
        if condition is not None:
            return call(self.load_if, condition, address, of=[self.word])
        if self.vector == 1:
            return code("{}[{}]", self.pointer, emitter.spell(self.step))
        return code("*(const {}*)({})", self.word, address)

    def store(self, emitter: SimtEmitter, value: Code) -> Statement:
        """A statement that writes the vector where it exists."""
        if self.vector == 1:
            place = code("{}[{}]", self.pointer, emitter.spell(self.step))
        else:
            place = code("*({}*)({})", self.word, self.address(emitter))
        return when(self.condition(emitter), Assign(place, value))


def when(condition: Code | None, statement: Statement) -> Statement:
    """The statement, where a condition holds, if there is one."""
    return statement if condition is None else Branch([Arm(condition, [statement])])


def place(
    scope: LocalNames,
    wanted: str,
    tensor: Value,
    at: Sequence[Int],
    loops: Sequence[Sym],
    *,
    const: bool,
    rows: Mapping[Element, Int] = MappingProxyType({}),
) -> tuple[Code, Int]:
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
    scope: LocalNames,
    wanted: str,
    tensor: Value,
    at: Sequence[Int],
    loops: Sequence[Sym],
    vector: int,
    *,
    const: bool,
    other: float | int = 0,
) -> ThreadAccess:
    """Declare what one side of a copy needs before its loops."""
    emitter = scope.emitter
    outside = repeated(emitter, tensor.dtype, vector, other) if other != 0 else None
    rows = read_rows(scope, tensor, at, loops)
    valid = with_elements(tensor.tensor.view.valid_at(tuple(at)), rows)
    # Of a tile of one element the coordinate is known, and so may be whether it exists.
    outer, inner = split_valid(valid if isinstance(valid, Cond) else Constant(bool(valid)), loops)
    pointer, step = place(scope, wanted, tensor, at, loops, const=const, rows=rows)
    word = emitter.word(tensor.dtype, vector)
    # What all threads decide alike is a branch that none of them takes alone.
    is_own = isinstance(valid, Cond) and bool(symbols(valid) & {*scope.own, *loops})
    load_if = emitter.dialect.load_if if tensor.tensor.memory is Memory.GLOBAL and is_own else "load_if"
    load_part = emitter.dialect.load_part if _is_part(tensor, vector) else ""
    if not loops:
        return ThreadAccess(
            pointer, step, None, outer, tensor.dtype, word, vector, outside, load_if, load_part
        )
    inside = scope.condition("inside", outer)
    if const and math.prod(map(extent, loops)) > MOST_CONDITIONS:
        inner = _anew(scope, inner)
    return ThreadAccess(pointer, step, inside, inner, tensor.dtype, word, vector, outside, load_if, load_part)


def _is_part(tensor: Value, vector: int) -> bool:
    """Whether a tile in shared memory is every other number of f64, and those of another one lie between."""
    if vector > 1 or tensor.dtype != f64 or tensor.tensor.memory is not Memory.SHARED:
        return False
    view = tensor.tensor.view
    return divisor(add(view.offset, mul(view.at((0,) * view.rank), -1))) % 2 == 0


def _anew(scope: LocalNames, valid: Cond) -> Cond:
    """A condition on numbers of the thread that are named anew, if the dialect has a function for that."""
    if not scope.emitter.dialect.anew:
        return valid
    own = sorted(symbols(valid) & scope.own, key=lambda sym: sym.name)
    found: Cond = substitute(valid, {sym: scope.anew(sym) for sym in own})
    return found


def in_turn(access: ThreadAccess, loops: Sequence[Sym], dialect: SimtDialect) -> list[Sym]:
    """Loops in an order in which few conditions are known at a time, where these lie in scalar registers.

    What has most values changes slowest: each of its conditions is then tested for all of the others.
    """
    parts = access.valid.parts if isinstance(access.valid, And) else (access.valid,)
    asked = [[loop for loop in loops if loop in symbols(part)] for part in parts]
    if not dialect.anew or len(asked) < 2:
        return list(loops)
    values = {
        loop: max((math.prod(map(extent, of)) for of in asked if loop in of), default=0) for loop in loops
    }
    return sorted(loops, key=lambda loop: -values[loop])


def repeated(emitter: SimtEmitter, dtype: DType, vector: int, value: float | int) -> Code:
    """A word that holds a number in each element of a vector."""
    if vector == 1:
        return rounded(value, dtype, emitter.dialect)
    with np.errstate(over="ignore"):
        data = dtype.numpy.type(value).tobytes() * vector
    parts = [f"0x{int.from_bytes(data[at : at + 4], 'little'):x}u" for at in range(0, len(data), 4)]
    form = f"({{}}){parts[0]}" if len(parts) == 1 else f"{{}}{{{{{', '.join(parts)}}}}}"
    return code(form, emitter.word(dtype, vector))


def title(op: Copy, vector: int) -> str:
    """The comment of a copy."""
    bytes_ = vector * min(op.source.dtype.bytes, op.target.dtype.bytes)
    arrow = f"{op.source} -> {op.target}"
    return f"{arrow}, {bytes_} byte{'s' * (bytes_ > 1)} at a time"


def copy(emitter: SimtEmitter, op: Copy) -> None:
    """A copy by loads and stores; `tilewright.targets.simt.atomics` has those that reduce."""
    if op.source.is_fragment and op.target.is_fragment:
        _between_fragments(emitter, op)
    elif op.target.is_fragment:
        _load(emitter, op)
    elif op.source.is_fragment:
        _store(emitter, op)
    else:
        _between_memories(emitter, op)


def _between_fragments(emitter: SimtEmitter, op: Copy) -> None:
    with emitter.scope(op, f"{op.source} -> {op.target}", bare=True) as scope:
        if is_by_words(op):
            vector = WORD_BYTES // op.source.dtype.bytes
            i = Sym(scope.name("i"), 0, op.spread.size_values // vector - 1)
            places = (
                code("*({}{}*)&{}[{}]", Code(kind), emitter.word(op.source.dtype, vector), name, at)
                for kind, name in (("", emitter.name(op.target)), ("const ", emitter.name(op.source)))
                for at in [emitter.spell(vector * i)]
            )
            emitter.one_line((i,), Assign(*places))
            return
        i = Sym(scope.name("i"), 0, op.spread.size_values - 1)
        source = element(emitter.name(op.source), i)
        value = converted(source, op.source.dtype, op.target.dtype, emitter.dialect.types)
        emitter.one_line((i,), Assign(element(emitter.name(op.target), i), value))


def plan(
    scope: LocalNames, spread: Distribution, vector: int, batch: int | None = None
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
        name = emitter.name(op.target)
        if op.source.dtype != op.target.dtype:
            with emitter.loops(path.loops):
                loaded = scope.name("loaded")
                emitter.declare(code("const {}", source.word), loaded, source.load(emitter))
                _convert(scope, loaded, op.source.dtype, name, path.register, op.target.dtype, vector)
            return
        place = code("{}[{}]", name, emitter.spell(path.register))
        place = place if vector == 1 else code("*({}*)&{}", source.word, place)
        emitter.one_line(path.loops, Assign(place, source.load(emitter)))


def _store(emitter: SimtEmitter, op: Copy) -> None:
    """Registers to memory."""
    vector = op.vector or 1
    guard = emitter.participants(op.spread, once=True)
    with emitter.scope(op, title(op, vector), guard) as scope:
        path, at = plan(scope, op.spread, vector)
        target = access(scope, "to", op.target, at, path.loops, vector, const=False)
        source, types = emitter.name(op.source), emitter.dialect.types
        held = code("{}[{}]", source, emitter.spell(path.register))
        if vector == 1:
            value = converted(held, op.source.dtype, op.target.dtype, types)
            emitter.one_line(in_turn(target, path.loops, emitter.dialect), target.store(emitter, value))
        elif op.source.dtype == op.target.dtype:
            floats = emitter.dialect.floats
            if op.source.dtype == f32 and vector in floats:
                target = replace(target, word=named(floats[vector]))
            value = code("*(const {}*)&{}", target.word, held)
            emitter.one_line(in_turn(target, path.loops, emitter.dialect), target.store(emitter, value))
        else:
            with emitter.loops(in_turn(target, path.loops, emitter.dialect)):
                e = Sym(scope.name("e"), 0, vector - 1)
                held = code("{}[{}]", source, emitter.spell(add(path.register, e)))
                _pack(scope, target, e, converted(held, op.source.dtype, op.target.dtype, types))


def _pack(scope: LocalNames, target: ThreadAccess, e: Sym, value: Code) -> None:
    """Collect the elements of a word, each of which is ``value`` for its number ``e``, and store the word."""
    emitter, packed = scope.emitter, scope.name("packed")
    emitter.declare_array(target.dtype, packed, target.vector, target.vector * target.dtype.bytes)
    emitter.one_line((e,), Assign(element(packed, e), value))
    emitter.add(target.store(emitter, code("*(const {}*){}", target.word, packed)))


def _convert(
    scope: LocalNames, word: Code, source: DType, name: Code, register: Int, target: DType, vector: int
) -> None:
    """Convert the elements of a loaded word into the registers from ``name[register]`` on."""
    emitter = scope.emitter
    if vector == 1:
        place = code("{}[{}]", name, emitter.spell(register))
        emitter.assign(place, converted(word, source, target, emitter.dialect.types))
        return
    e = Sym(scope.name("e"), 0, vector - 1)
    value = converted(_part(emitter, word, source, e), source, target, emitter.dialect.types)
    at = named(e.name) if register == 0 else code("{} + {}", emitter.spell(register), named(e.name))
    emitter.one_line((e,), Assign(code("{}[{}]", name, at), value))


def _part(emitter: SimtEmitter, word: Code, dtype: DType, e: Sym) -> Code:
    """An element of a word."""
    return code("((const {}*)&{})[{}]", emitter.type(dtype), word, named(e.name))


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
            moved = scope.name("moved")
            if not inner:
                emitter.declare(code("const {}", source.word), moved, source.load(emitter))
                _put(scope, op, target, moved)
                return
            count = math.prod(extent(loop) for loop in inner)
            emitter.declare(source.word, moved, extent=count)
            place = code("{}[{}]", moved, emitter.spell(turn(inner)))
            emitter.one_line(inner, Assign(place, source.load(emitter)))
            with emitter.loops(inner):
                _put(scope, op, target, place)


def _sides(
    scope: LocalNames, op: Copy, at: Sequence[Int], loops: Sequence[Sym]
) -> tuple[ThreadAccess, ThreadAccess]:
    """Declare what both sides of a copy between memories need before loops."""
    vector = op.vector or 1
    return (
        access(scope, "from", op.source, at, loops, vector, const=True, other=op.other),
        access(scope, "to", op.target, at, loops, vector, const=False),
    )


def _put(scope: LocalNames, op: Copy, target: ThreadAccess, word: Code) -> None:
    """Store one loaded word, converted to the target's dtype."""
    emitter, types = scope.emitter, scope.emitter.dialect.types
    if op.source.dtype == op.target.dtype:
        emitter.add(target.store(emitter, word))
    elif target.vector == 1:
        emitter.add(target.store(emitter, converted(word, op.source.dtype, op.target.dtype, types)))
    else:
        e = Sym(scope.name("e"), 0, target.vector - 1)
        value = _part(emitter, word, op.source.dtype, e)
        _pack(scope, target, e, converted(value, op.source.dtype, op.target.dtype, types))
