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
from tilewright.symbolic.expr import add, all_of, expand, less, mul, parts_of, xor
from tilewright.symbolic.nodes import (
    TRUE,
    And,
    Cond,
    Constant,
    Element,
    FloorDiv,
    Int,
    Sym,
    Xor,
    bits,
    bounds,
    divisor,
)
from tilewright.symbolic.rebuilding import (
    elements,
    parts,
    replaced,
    split_elements,
    substitute,
    symbols,
    with_elements,
)
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
# In ``128*row + ((16*k + col) ^ 8*(row % 8))`` each ``k`` seems to need its own address.  But this equals
# ``(128*row + (col ^ 8*(row % 8))) ^ 16*k``, because no other term has the bits of ``16*k``.  So a thread
# computes one address, and each step flips bits that are known at compile time.


def split_flips(offset: Int, own: Collection[Sym]) -> tuple[Int, Int] | None:
    """Return ``(start, flips)`` with ``offset == start ^ flips``; ``flips`` does not depend on the thread.

    Terms of ``start`` that depend on other symbols than the thread's are above all flipped bits, so they may
    also be added after the flip.  None if the offset has no such form.

    Args:
        offset: the offset, not negative.
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


def low_part(offset: Int) -> int:
    """Return the part of an offset's constant that is below the bits of all other terms.

    Example:
        >>> row, k = Sym("row", 0, 15), Sym("k", 0, 7)
        >>> low_part(32 * row + 8 * k + 13), low_part(row + 1)
        (5, 0)
    """
    parts, constant = parts_of(expand(offset))
    step = divisor(add(*(mul(term, factor) for term, factor in parts)))
    return constant % (step & -step) if step else 0


def _split(value: Int, own: Collection[Sym]) -> tuple[Int, Int]:
    """Split a sum into the constant with the terms that depend on the thread, and the other terms."""
    parts, constant = parts_of(expand(value))
    mine = [mul(term, factor) for term, factor in parts if symbols(term) & set(own)]
    others = [mul(term, factor) for term, factor in parts if not symbols(term) & set(own)]
    return add(constant, *mine), add(*others)


def _apart(low: Int, high: Int) -> bool:
    """Whether all bits of ``low`` are below all bits of ``high``."""
    if bounds(low)[0] < 0 or bounds(high)[0] < 0:
        return False
    step = divisor(high)
    return high == 0 or bounds(low)[1] < (step & -step)


# ----------------------------------------------------------------
#
# Gathered rows: a thread reads each row index once.
#
# An offset such as ``X_stride0*I[8*i + row] + col`` names an integer in memory.  Its values for all
# iterations of the register loops are read into registers before these loops.


ABSENT = "-1"
"""Row number for an index that is out of bounds; no tensor has such a row."""


def read_rows(
    scope: LocalNames, tensor: Value, at: Sequence[Int], loops: Sequence[Sym]
) -> Mapping[Element, Int]:
    """Emit loads of the integers that index a tensor, and return the local variable of each integer.

    The part of the access' condition that does not depend on these integers guards their reading.  If
    neighbouring iterations of a loop read the same integer, as the rows of a page do, one load serves them,
    guarded by the bounds of the integers' buffer.
    """
    if not tensor.tensor.indices:
        return {}
    view, emitter = tensor.tensor.view, scope.emitter
    offset, valid = view.at(tuple(at)), view.valid_at(tuple(at))
    known = split_elements(valid)[0]
    conditions = known.parts if isinstance(known, And) else (known,)
    found: dict[Element, Int] = {}
    for one in elements((valid, offset)):
        turning = [loop for loop in loops if loop in symbols(one.at)]
        shared = _quotients(one.at, turning)
        place = replaced(one.at, shared)
        turning = [next((shared[by] for by in shared if by.left == loop), loop) for loop in turning]
        others = set(loops) - set(turning)
        guard = all_of(*(part for part in conditions if not symbols(part) & others))
        if shared:
            table = next(index for index in tensor.tensor.indices if index.buffer.name == one.table.name)
            guard = all_of(guard, less(-1, place), less(place, table.tensor.view.elems))
        value = emitter.spell(replace(one, at=place))
        if guard != TRUE:
            value = code(f"{{}} ? {{}} : {ABSENT}", emitter.spell_cond(guard), value)
        kind, low = "int" if bits(one) == 32 else "long long", min(one.low, int(ABSENT))
        name, number = scope.name("chosen"), turn(turning)
        if turning:
            emitter.declare(named(kind), name, extent=math.prod(extent(loop) for loop in turning))
            emitter.one_line(turning, Assign(code("{}[{}]", name, emitter.spell(number)), value))
            number = substitute(number, {short: quotient for quotient, short in shared.items()})
            found[one] = Element(Sym(name), number, low, one.high)
        else:
            emitter.constant(kind, name, value)
            found[one] = Sym(name, low, one.high)
    return found


def _quotients(at: Int, loops: Sequence[Sym]) -> dict[FloorDiv, Sym]:
    """Return the quotients of loop indices that an offset uses only divided, each with a symbol for it."""
    found: dict[FloorDiv, Sym] = {}
    for loop in loops:
        divided = {part for part in parts(at) if isinstance(part, FloorDiv) and part.left == loop}
        if len(divided) == 1 and isinstance((quotient := divided.pop()).right, int):
            short = Sym(loop.name, 0, (extent(loop) - 1) // quotient.right)
            if loop not in symbols(replaced(at, {quotient: short})):
                found[quotient] = short
    return found


# ---------------------------------------------------------------- rules


STAGED_ACCESSES = {16: 8, 8: 8}
"""Accesses that a thread loads before it stores, by width in bytes, in copies between memories."""

STAGED_NARROW = 16
"""Like `STAGED_ACCESSES`, for narrower accesses, each with its own address and predicate."""

MOST_CONDITIONS = 8
"""Most accesses whose conditions are kept at the same time, if conditions are in scalar registers."""


@dataclass(frozen=True)
class ThreadAccess:
    """One side of a copy in memory.

    Args:
        pointer: name of the pointer before the loops.
        step: the offset from it in the loops, in elements.
        inside: the condition that is tested before the loops; None if it always holds.
        valid: the condition that is tested in the loops.
        dtype: the element type.
        word: the type of one access.
        vector: elements of one access.
        other: the word that is read if the vector does not exist; None for zeros.
        load_if: the function that loads the vector if it exists, else zeros.
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
        """Return the address of the vector."""
        return emitter.plus(self.pointer, self.step)

    def condition(self, emitter: SimtEmitter) -> Code | None:
        """Return the condition that the vector exists; None if it always does."""
        inner = None if self.valid == TRUE else emitter.spell_cond(self.valid)
        parts = [part for part in (self.inside, inner) if part is not None]
        return joined(" && ", parts) if parts else None

    def load(self, emitter: SimtEmitter) -> Code:
        """Return the vector, or ``other`` if it does not exist."""
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
        """Return the statement that writes the vector if it exists."""
        if self.vector == 1:
            place = code("{}[{}]", self.pointer, emitter.spell(self.step))
        else:
            place = code("*({}*)({})", self.word, self.address(emitter))
        return when(self.condition(emitter), Assign(place, value))


def when(condition: Code | None, statement: Statement) -> Statement:
    """Return a statement under a condition, if there is one."""
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
    """Declare a pointer to a thread's start in a tensor; return it, and the offset that the loops add.

    ``rows`` is the result of `read_rows`.
    """
    sizes = scope.emitter.sizes
    offset = with_elements(tensor.tensor.view.at(tuple(at)), rows)
    # A number below all other terms is added last, so that compilers see neighbours of the same address.
    low = low_part(offset)
    flipped = None
    if tensor.tensor.memory is Memory.SHARED:
        flipped = split_flips(add(offset, -low), scope.own)
    if flipped is None:
        base, step = split_offset(offset, loops, sizes)
        return scope.pointer(wanted, tensor, base, const=const), step
    base, step = split_offset(flipped[0], loops, sizes)
    start = xor(scope.constant("start", base), flipped[1])
    if symbols(flipped[1]) & set(loops):
        return scope.pointer(wanted, tensor, low, const=const), add(start, step)
    return scope.pointer(wanted, tensor, add(start, low), const=const), step


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
    """Declare the pointer and the condition of one side of a copy before its loops."""
    emitter, dialect, view = scope.emitter, scope.emitter.dialect, tensor.tensor.view
    outside = repeated(emitter, tensor.dtype, vector, other) if other != 0 else None
    rows = read_rows(scope, tensor, at, loops)
    valid = with_elements(view.valid_at(tuple(at)), rows)
    # The coordinate of a tile of one element is known, and its condition may be, too.
    outer, inner = split_valid(valid if isinstance(valid, Cond) else Constant(bool(valid)), loops)
    pointer, step = place(scope, wanted, tensor, at, loops, const=const, rows=rows)
    # A condition that is the same for all threads is a branch without divergence.
    is_own = isinstance(valid, Cond) and bool(symbols(valid) & {*scope.own, *loops})
    is_shared = tensor.tensor.memory is Memory.SHARED
    load_if = dialect.load_if if tensor.tensor.memory is Memory.GLOBAL and is_own else "load_if"
    # A tile of every other f64 in shared memory is one part of interleaved numbers.
    is_part = is_shared and vector == 1 and tensor.dtype == f64
    is_part = is_part and divisor(add(view.offset, mul(view.at((0,) * view.rank), -1))) % 2 == 0
    inside, condition = None, outer
    if loops:
        inside, condition = scope.condition("inside", outer), inner
        if const and dialect.anew and math.prod(map(extent, loops)) > MOST_CONDITIONS:
            own = sorted(symbols(inner) & scope.own, key=lambda sym: sym.name)
            condition = substitute(inner, {sym: scope.anew(sym) for sym in own})
    return ThreadAccess(
        pointer,
        step,
        inside,
        condition,
        tensor.dtype,
        emitter.word(tensor.dtype, vector),
        vector,
        outside,
        load_if,
        dialect.load_part if is_part else "",
    )


def in_turn(access: ThreadAccess, loops: Sequence[Sym], dialect: SimtDialect) -> list[Sym]:
    """Return loops in an order that keeps few conditions alive, if conditions are in scalar registers.

    The loop whose conditions have the most values is outermost, so each condition is tested for all others.
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
    """Return a word that holds a number in each element of a vector."""
    if vector == 1:
        return rounded(value, dtype, emitter.dialect)
    with np.errstate(over="ignore"):
        data = dtype.numpy.type(value).tobytes() * vector
    parts = [f"0x{int.from_bytes(data[at : at + 4], 'little'):x}u" for at in range(0, len(data), 4)]
    form = f"({{}}){parts[0]}" if len(parts) == 1 else f"{{}}{{{{{', '.join(parts)}}}}}"
    return code(form, emitter.word(dtype, vector))


def title(op: Copy, vector: int) -> str:
    """Return the comment of a copy."""
    bytes_ = vector * min(op.source.dtype.bytes, op.target.dtype.bytes)
    arrow = f"{op.source} -> {op.target}"
    return f"{arrow}, {bytes_} byte{'s' * (bytes_ > 1)} at a time"


def copy(emitter: SimtEmitter, op: Copy) -> None:
    """Write a copy by loads and stores; `tilewright.targets.simt.atomics` has copies that reduce."""
    if op.source.is_fragment and op.target.is_fragment:
        with emitter.scope(op, f"{op.source} -> {op.target}", bare=True) as scope:
            source, target = emitter.name(op.source), emitter.name(op.target)
            vector = WORD_BYTES // op.source.dtype.bytes if is_by_words(op) else 1
            i = Sym(scope.name("i"), 0, op.spread.size_values // vector - 1)
            if vector == 1:
                value = converted(element(source, i), op.source.dtype, op.target.dtype, emitter.dialect.types)
                emitter.one_line((i,), Assign(element(target, i), value))
            else:
                word, at = emitter.word(op.source.dtype, vector), emitter.spell(vector * i)
                to, of = (
                    code("*({}*)&{}[{}]", word, target, at),
                    code("*(const {}*)&{}[{}]", word, source, at),
                )
                emitter.one_line((i,), Assign(to, of))
    elif op.target.is_fragment:
        _load(emitter, op)
    elif op.source.is_fragment:
        _store(emitter, op)
    else:
        _between_memories(emitter, op)


def plan(
    scope: LocalNames, spread: Distribution, vector: int, batch: int | None = None
) -> tuple[Walk, tuple[Int, ...]]:
    """Declare a thread's start; return its walk, and the coordinate that it visits."""
    emitter = scope.emitter
    path = walk(spread.values, spread.rank, vector, scope.names(LOOPS), batch)
    start = thread_coordinate(spread.threads, spread.rank, emitter.thread(spread.size_threads))
    return path, walk_of(path, scope.coordinate(start))


def _load(emitter: SimtEmitter, op: Copy) -> None:
    """Write a copy from memory to registers."""
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
    """Write a copy from registers to memory."""
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
    """Collect the elements of a word, ``value`` for each index ``e``, and store the word."""
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
    """Return an element of a word."""
    return code("((const {}*)&{})[{}]", emitter.type(dtype), word, named(e.name))


def _between_memories(emitter: SimtEmitter, op: Copy) -> None:
    """Write a copy between memories through registers: a batch of loads, then their stores."""
    vector = op.vector or 1
    spread = op.spread
    guard = emitter.participants(spread, once=True)
    with emitter.scope(op, title(op, vector), guard) as scope:
        staged = STAGED_ACCESSES.get(vector * op.source.dtype.bytes, STAGED_NARROW)
        path, at = plan(scope, spread, vector, staged)
        first = len(path.loops) - path.batch
        outer, inner = path.loops[:first], path.loops[first:]
        # Integers that place accesses are in registers, which only unrolled loops may index.
        chosen = bool(op.source.tensor.indices or op.target.tensor.indices)
        sides = None if chosen else _sides(scope, op, at, path.loops)
        with emitter.loops(outer, unroll=False):
            source, target = sides or _sides(scope, op, at, inner)
            moved = scope.name("moved")
            if not inner:
                emitter.declare(code("const {}", source.word), moved, source.load(emitter))
                _put(scope, op, target, moved)
                return
            emitter.declare(source.word, moved, extent=math.prod(extent(loop) for loop in inner))
            place = code("{}[{}]", moved, emitter.spell(turn(inner)))
            emitter.one_line(inner, Assign(place, source.load(emitter)))
            with emitter.loops(inner):
                _put(scope, op, target, place)


def _sides(
    scope: LocalNames, op: Copy, at: Sequence[Int], loops: Sequence[Sym]
) -> tuple[ThreadAccess, ThreadAccess]:
    """Declare the pointers and conditions of both sides of a copy between memories."""
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
