"""The emitter of per-thread programs: types, scopes of local names, loops over registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.copies import Copy, is_by_threads
from tilewright.ir.kernel import Kernel, layout_shared
from tilewright.ir.op import Block
from tilewright.ir.ops import Mma, Op
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.expr import all_of, less
from tilewright.symbolic.nodes import TRUE, Add, Cond, Int, Mul, Sym, Xor, bits, bounds, divisor
from tilewright.symbolic.rebuilding import parts, symbols
from tilewright.targets.cfamily import C_RULES, Emitter
from tilewright.targets.rules import RuleTable
from tilewright.targets.simt.dialect import THREAD, SimtDialect, TextFunction
from tilewright.targets.simt.random_places import RandomPlaces
from tilewright.targets.simt.thread_values import Walk, extent, first_copy
from tilewright.targets.statements import Assign, Branch, Code, Statement, call, code, named
from tilewright.threads.distribution import Distribution

SIMT_RULES = RuleTable("simt", C_RULES)
"""Rules that every target of per-thread programs shares."""

_THREAD_SYMBOL = "%tid"
"""Name of the thread index' symbol; no author can use it."""

WORD_BYTES = 4
"""Bytes of a machine register."""

COORDINATES = {1: ("at",), 2: ("row", "col")}
"""Names of a tile's coordinates, by rank."""

LOOPS = ("i", "j", "u", "v", "w", "x", "y", "z")
"""Names of loops over the registers of a thread, innermost first."""


class SimtEmitter(Emitter):
    """Collects the lines of the program that each thread runs."""

    dialect: SimtDialect

    def __init__(self, kernel: Kernel, rules: RuleTable, dialect: SimtDialect, arch: Arch) -> None:
        super().__init__(kernel, rules, dialect)
        self.arch = arch
        self.functions: dict[str, str] = {}  # the functions written for this kernel, by name
        self.sizes = {param.sym for param in kernel.sizes}
        self.access_bytes = access_bytes(kernel)
        self.random = RandomPlaces(kernel)
        self._spelled[_THREAD_SYMBOL] = named(THREAD)
        self.shared_offsets, self.shared_bytes = layout_shared(kernel)
        self.group_first: Int = 0  # the first thread of the role that is being emitted
        self.group_threads = kernel.threads
        self.roles: Branch | None = None  # the last branch of roles
        self.roles_end = 0  # the first thread after these roles
        self.has_waited = False  # whether the first warp waited for a counter since the last barrier
        self._wide_speller = replace(
            self.speller,
            name=lambda sym: ("" if sym in self.wide else "(long long)") + self._uses(self.name(sym)),
            floordiv=self._plain_quotient,
            mod=self._plain_remainder,
        )

    def spell_wide(self, value: Int) -> Code:
        """Spell an integer for a variable of 64 bits; compute in 64 bits if it may exceed 32."""
        is_wide = any(bits(part) == 64 for part in parts(value) if isinstance(part, Add | Mul))
        return self._spelled_by(lambda: self._wide_speller.int(value)) if is_wide else self.spell(value)

    def block(self, block: Block) -> None:
        """Emit every operation, except those whose results have no text; see `RandomPlaces.unread`."""
        ops = block.ops
        if self.random.unread:
            ops = tuple(op for op in ops if not (op.results and op.results[0] in self.random.unread))
        # Actions that keep a block's prefetch early and the uses of its registers late, by position.
        actions: list[tuple[int, Callable[[], None]]] = []
        found = prefetch(ops) if self.dialect.prefetched else None
        has_words = found is not None and all(
            self.access_bytes.get(fragment, 0) >= WORD_BYTES
            and fragment.fragment.distribution.size_values * fragment.dtype.bytes % WORD_BYTES == 0
            for fragment in found.computed
        )
        if found is not None and has_words:
            actions.append((found.end, lambda: self.do(call(self.dialect.prefetched))))
            for fragment, at in found.computed.items():
                loaded = found.loaded[fragment]
                end = loaded if loaded > at else len(ops)
                actions.append((at, partial(self._copy_words, fragment)))
                actions.append((end, partial(self._rename, fragment, self.name(fragment))))
        done = 0
        for at, act in sorted(actions, key=lambda action: action[0]):
            super().block(Block(ops[done:at]))
            act()
            done = at
        super().block(Block(ops[done:]))

    def _copy_words(self, fragment: Value) -> None:
        """Copy the words of a fragment to new registers, which replace it from here on.

        Otherwise a compiler would unpack the words right after the load, and wait for them there.
        """
        before, now = self.name(fragment), self.local(f"{self.name(fragment)}_now")
        distribution = fragment.fragment.distribution
        align = self.access_bytes[fragment]
        self.declare_array(fragment.dtype, now, distribution.size_values, align)
        count = distribution.size_values * fragment.dtype.bytes // WORD_BYTES
        word, kind = Sym(self.local("word"), 0, count - 1), named(self.dialect.words[WORD_BYTES])
        source, target = (code("(({}*){})[{}]", kind, name, named(word.name)) for name in (before, now))
        self.one_line((word,), Assign(target, call(self.dialect.anew, source)))
        self._rename(fragment, now)

    def _rename(self, fragment: Value, name: Code) -> None:
        """Change the name of a fragment from here on."""
        self._spelled[fragment.name] = name

    def base(self, tensor: Value) -> Code:
        """Return the start of a tensor's buffer, in this block or in another block of the cluster."""
        own, block = self.name(tensor.buffer), tensor.tensor.block
        return own if block is None else call("peer", own, self.spell(block))

    def plus(self, base: Code, offset: Int) -> Code:
        """Return ``base + offset`` as text; ``base`` if the offset is 0."""
        if offset == 0:
            return base
        return code("{} + {}", base, self.spell(offset, tight=isinstance(offset, Xor)))

    def thread(self, threads: int) -> Sym:
        """Return the thread's index, known to be below ``threads``."""
        return Sym(_THREAD_SYMBOL, 0, threads - 1)

    def defined(self, function: TextFunction) -> str:
        """Define a function before the kernel; return its name."""
        self.functions[function.name] = function.text
        return function.name

    def type(self, dtype: DType) -> Code:
        """Return the storage type of a dtype."""
        return named(self.dialect.type(dtype))

    def word(self, dtype: DType, vector: int) -> Code:
        """Return the type of an access of ``vector`` elements."""
        return self.type(dtype) if vector == 1 else named(self.dialect.words[vector * dtype.bytes])

    def declare_array(
        self, dtype: DType, name: Code, count: int, align: int = 0, value: Code | None = None
    ) -> None:
        """Declare registers that may be accessed as words of ``align`` bytes."""
        prefix = f"{self.dialect.align.format(align)} " if align > dtype.bytes else ""
        self.declare(code(f"{prefix}{{}}", self.type(dtype)), name, value, count)

    def declare_registers(self, fragment: Value, value: Code | None = None) -> None:
        """Declare a fragment."""
        count = fragment.fragment.distribution.size_values
        self.declare_array(
            fragment.dtype, self.name(fragment), count, self.access_bytes.get(fragment, 0), value
        )

    @contextmanager
    def scope(self, op: Op, text: str, guard: Cond = TRUE, *, bare: bool = False) -> Iterator[LocalNames]:
        """Write a comment and a scope for one operation, under ``if (guard)`` if there is a guard.

        Args:
            op: the operation.
            text: the comment.
            guard: the condition of the threads that execute it.
            bare: omit the braces, for text that declares nothing.
        """
        self.comment(op, text)
        inner = LocalNames(self)
        if guard == TRUE and bare:
            yield inner
            return
        with self.indented() if guard == TRUE else self.branch(self.spell_cond(guard)):
            yield inner

    @contextmanager
    def loops(self, loops: Sequence[Sym], unroll: bool = True) -> Iterator[None]:
        """Write loops over registers, outermost first, unrolled so that register indices are static."""
        if not loops:
            yield
            return
        before = self.dialect.unroll if unroll else f"{self.dialect.unroll} 1"
        low, index = bounds(loops[0])[0], named(loops[0].name)
        condition = code("{} < {}", index, extent(loops[0]))
        with self.loop("int", index, int(low), condition, before=before), self.loops(loops[1:], unroll):
            yield

    def one_line(self, loops: Sequence[Sym], *statements: Statement) -> None:
        """Write loops around statements; a single statement shares the innermost loop's line if it fits."""
        with self.loops(loops):
            self.add(*statements)

    def participants(self, spread: Distribution, *, once: bool = False) -> Cond:
        """Return the condition of the threads in a distribution; with ``once``, of one of its copies."""
        guard: Cond = TRUE
        if spread.size_threads < self.group_threads:
            guard = less(self.thread(self.group_threads), spread.size_threads)
        if once:
            guard = all_of(guard, first_copy(spread, self.thread(spread.size_threads)))
        return guard


def element(name: Code, index: Int) -> Code:
    """Return ``name[index]`` for a loop variable or a number."""
    assert isinstance(index, int | Sym)
    return code("{}[{}]", name, index if isinstance(index, int) else named(index.name))


def access_bytes(kernel: Kernel) -> dict[Value, int]:
    """Return the bytes of the widest word by which each fragment is accessed or copied."""
    found: dict[Value, int] = {}
    for op in kernel.walk():
        if isinstance(op, Mma | MmaAsync):
            widths = {value: WORD_BYTES for value in (op.a, op.b, op.c) if value.is_fragment}
        elif is_by_words(op):
            widths = {op.source: WORD_BYTES, op.target: WORD_BYTES}
        elif is_by_threads(op) and op.source.dtype == op.target.dtype and not _in_registers(op):
            width = (op.vector or 1) * op.source.dtype.bytes
            widths = {v: width for v in (op.source, op.target) if v.is_fragment}
        else:
            continue
        for value, width in widths.items():
            found[value] = max(found.get(value, 0), width)
    return found


@dataclass(frozen=True)
class Prefetch:
    """The loads of a loop body whose results the next iteration uses.

    Args:
        end: the index after the last load.
        loaded: by fragment, the index of the operation that loads it.
        computed: by fragment, the index of the operation that first computes with it.  Fragments that the
            body also changes otherwise are not included.
    """

    end: int
    loaded: Mapping[Value, int]
    computed: Mapping[Value, int]


def prefetch(ops: Sequence[Op]) -> Prefetch | None:
    """Return the prefetch of a block: loads from global memory to registers before its first matrix multiply.

    Nothing reads these registers between the load and the multiply.
    """
    inner = [tuple(Block((op,)).walk()) for op in ops]
    multiply = next((at for at, found in enumerate(inner) if any(isinstance(op, Mma) for op in found)), 0)
    read: set[Value] = set()
    loaded: dict[Value, int] = {}
    for at in range(multiply, -1, -1) if ops else ():
        op = ops[at]
        if isinstance(op, Copy) and op.target.is_fragment and op.target not in read:
            source = op.source
            if source.is_tensor and source.tensor.memory is Memory.GLOBAL:
                loaded.setdefault(op.target, at)
        read.update(value for one in inner[at] for value in one.read)
    if not loaded:
        return None
    computed: dict[Value, int] = {}
    changed = {v for at, found in enumerate(inner) for op in found for v in op.written if loaded.get(v) != at}
    for at, found in enumerate(inner):
        used: set[Value] = set()
        for op in found:
            if not isinstance(op, Copy) or op.source.dtype != op.target.dtype:  # plain copies do not compute
                used.update(op.read)
        for value in (used & loaded.keys()) - changed:
            computed.setdefault(value, at)
    return Prefetch(max(loaded.values()) + 1, loaded, computed)


def _in_registers(op: Copy) -> bool:
    return op.source.is_fragment and op.target.is_fragment


def is_by_words(op: Op) -> TypeGuard[Copy]:
    """Return whether an operation copies narrow elements that share machine registers.

    Copies of single elements would unpack and repack the register, which compilers do not optimise.
    """
    if not isinstance(op, Copy) or not _in_registers(op) or op.source.dtype != op.target.dtype:
        return False
    size = op.source.dtype.bytes
    return size < WORD_BYTES and op.spread.size_values * size % WORD_BYTES == 0


class LocalNames:
    """The local names of one operation's block."""

    def __init__(self, emitter: SimtEmitter) -> None:
        self.emitter = emitter
        self.own: set[Sym] = set()
        """Symbols that depend on the thread."""
        self._used: set[str] = set()

    def name(self, wanted: str) -> Code:
        """Return a name that neither the kernel nor this block has used."""
        made, count = self.emitter.local(wanted), 0
        while made in self._used:
            count += 1
            made = self.emitter.local(f"{wanted}_{count}")
        self._used.add(made)
        return made

    def names(self, wanted: Sequence[str]) -> Iterator[str]:
        """Yield names for loops."""
        for name in wanted:
            yield self.name(name)

    def constant(self, wanted: str, value: Int) -> Int:
        """Declare a constant for a value, and return its symbol; return numbers and symbols as they are."""
        if isinstance(value, int | Sym):
            return value
        low, high = bounds(value)
        sym = Sym(self.name(wanted), int(low), int(high), divisor(value))
        self.emitter.constant("int", named(sym.name), self.emitter.spell(value))
        return sym

    def coordinate(self, values: Sequence[Int]) -> tuple[Int, ...]:
        """Declare the coordinates of the thread's start."""
        names = COORDINATES.get(len(values), tuple(f"x{dim}" for dim in range(len(values))))
        found = tuple(self.constant(name, value) for name, value in zip(names, values, strict=True))
        self.own |= {sym for value in (*values, *found) for sym in symbols(value)}
        return found

    def pointer(self, wanted: str, tensor: Value, offset: Int, *, const: bool) -> Code:
        """Declare a pointer into a tensor's buffer; the buffer's own name if the offset is 0."""
        base = self.emitter.base(tensor)
        if offset == 0 and tensor.tensor.block is None:
            return base
        name = self.name(wanted)
        kind = code(f"{'const ' * const}{{}}*", self.emitter.type(tensor.dtype))
        self.emitter.declare(kind, name, self.emitter.plus(base, offset), optional=True)
        return name

    def anew(self, sym: Sym) -> Sym:
        """Declare a copy of an integer that the compiler cannot relate to the original; return its symbol."""
        known = self.emitter.spell(sym)
        made = Sym(self.name(known), sym.low, sym.high, sym.divisor)
        self.emitter.constant("int", named(made.name), call(self.emitter.dialect.anew, known))
        return made

    def condition(self, wanted: str, cond: Cond) -> Code | None:
        """Declare a condition; return None if it always holds."""
        if cond == TRUE:
            return None
        name = self.name(wanted)
        self.emitter.constant("bool", name, self.emitter.spell_cond(cond))
        return name


def walk_of(walk: Walk, start: Sequence[Int]) -> tuple[Int, ...]:
    """Return the coordinate that a walk visits, for a thread that starts at ``start``."""
    return tuple(at + step for at, step in zip(start, walk.offset, strict=True))
