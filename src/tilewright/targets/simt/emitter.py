"""The emitter of per-thread programs: types, scopes of local names, loops over registers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tilewright.dtypes import DType
from tilewright.ir.copies import Copy, is_by_threads
from tilewright.ir.kernel import Kernel, layout_shared
from tilewright.ir.ops import Mma, Op
from tilewright.ir.types import Value
from tilewright.symbolic.expr import all_of, less
from tilewright.symbolic.nodes import TRUE, Add, Cond, Int, Mul, Sym, Xor
from tilewright.symbolic.ranges import bits, bounds, divisor
from tilewright.symbolic.rebuilding import parts, symbols
from tilewright.targets.cfamily import C_RULES, C_SPELLER, Dialect, Emitter
from tilewright.targets.rules import RuleTable
from tilewright.targets.simt.thread_values import Walk, extent, first_copy
from tilewright.threads.distribution import Distribution

SIMT_RULES = RuleTable("simt", C_RULES)
"""Rules that every target of per-thread programs shares."""

THREAD = "tid"
"""The variable that holds the thread's index in its block."""

_THREAD_SYMBOL = "%tid"
"""Its symbol, which no author can name."""

WORDS = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
"""The type that moves so many bytes in one access."""

COORDINATES = {1: ("at",), 2: ("row", "col")}
"""What the coordinates of a tile are called, by its rank."""

COLUMNS = 100
"""Where lines of text are broken."""

LOOPS = ("i", "j", "u", "v", "w", "x", "y", "z")
"""Names of loops over the registers of a thread, innermost first."""


class SimtEmitter(Emitter):
    """Collects the lines of the program that each thread runs."""

    def __init__(
        self, kernel: Kernel, rules: RuleTable, dialect: Dialect, features: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(kernel, rules, dialect)
        self.features = features  # of the architecture
        self.functions: dict[str, str] = {}  # written for this kernel, by their names
        self.sizes = {param.sym for param in kernel.sizes}
        self.access_bytes = access_bytes(kernel)
        self._spelled[_THREAD_SYMBOL] = THREAD
        self.shared_offsets, self.shared_bytes = layout_shared(kernel)
        self.group_first, self.group_threads = 0, kernel.threads  # of the role being emitted
        self.role_end = -1
        self._wide_speller = replace(C_SPELLER, name=self._widened)

    def line(self, text: str = "") -> None:
        """Add a line, broken where it is long."""
        for piece in _broken(text, COLUMNS - 2 * self._depth):
            super().line(piece)

    def spell_wide(self, value: Int) -> str:
        """Spell an integer that a variable of 64 bits takes: computed in as many where it may leave 32."""
        is_wide = any(bits(part) == 64 for part in parts(value) if isinstance(part, Add | Mul))
        return self._wide_speller.int(value) if is_wide else self.spell(value)

    def _widened(self, sym: Sym) -> str:
        return self.name(sym) if sym in self.wide else f"(long long){self.name(sym)}"

    def plus(self, base: str, offset: Int) -> str:
        """``base + offset`` as text; ``base`` if the offset is 0."""
        if offset == 0:
            return base
        return f"{base} + {self.spell(offset, tight=isinstance(offset, Xor))}"

    def thread(self, threads: int) -> Sym:
        """The thread's index, known to be below ``threads``."""
        return Sym(_THREAD_SYMBOL, 0, threads - 1)

    def type(self, dtype: DType) -> str:
        """The storage type of a dtype."""
        return self.dialect.type(dtype)

    def word(self, dtype: DType, vector: int) -> str:
        """The type that moves ``vector`` elements in one access."""
        return self.type(dtype) if vector == 1 else WORDS[vector * dtype.bytes]

    def array(self, dtype: DType, name: str, count: int, align: int = 0) -> str:
        """A declaration of registers, some of them accessed as words of ``align`` bytes."""
        prefix = f"__align__({align}) " if align > dtype.bytes else ""
        return f"{prefix}{self.type(dtype)} {name}[{count}]"

    def registers(self, fragment: Value) -> str:
        """The declaration of a fragment."""
        count = fragment.fragment.distribution.size_values
        return self.array(fragment.dtype, self.name(fragment), count, self.access_bytes.get(fragment, 0))

    @contextmanager
    def scope(self, op: Op, text: str, guard: Cond = TRUE, *, bare: bool = False) -> Iterator[Scope]:
        """A comment and a block of its own for one operation; under ``if (guard)`` if there is one.

        Args:
            op: the operation.
            text: what it does.
            guard: which threads do it.
            bare: leave the braces out, for text that declares nothing.
        """
        self.comment(op, text)
        inner = Scope(self)
        if guard == TRUE and bare:
            yield inner
            return
        with self.indented("" if guard == TRUE else f"if ({self.spell_cond(guard)})"):
            yield inner
            inner.drop_unused()

    @contextmanager
    def loops(self, loops: Sequence[Sym], unroll: bool = True) -> Iterator[None]:
        """Loops over registers, outermost first, unrolled so that registers are indexed statically."""
        if not loops:
            yield
            return
        self.line(self.dialect.unroll if unroll else f"{self.dialect.unroll} 1")
        with self.indented(_head(loops[0])), self.loops(loops[1:], unroll):
            yield

    def one_line(self, loops: Sequence[Sym], statement: str) -> None:
        """Loops around a single statement, which shares the innermost loop's line if it fits."""
        if not loops:
            self.statement(statement)
            return
        with self.loops(loops[:-1]):
            self.line(self.dialect.unroll)
            head = _head(loops[-1])
            if self.fits(f"{head} {statement}") and not statement.startswith("if "):
                self.line(f"{head} {statement}")
            else:
                with self.indented(head):
                    self.statement(statement)

    def statement(self, text: str) -> None:
        """A statement, which may be ``if (condition) statement``: on two lines where one would be long."""
        condition, found, then = text.partition(") ")
        while condition.count("(") != condition.count(")") + 1 and found:
            more, found, then = then.partition(") ")
            condition += f") {more}"
        if text.startswith("if (") and found and not self.fits(text):
            with self.indented(f"{condition})"):
                self.line(then)
        else:
            self.line(text)

    def fits(self, text: str) -> bool:
        """Whether a text fits on a line at the present indentation."""
        return len(text) + 2 * self._depth <= COLUMNS

    def participants(self, spread: Distribution, *, once: bool = False) -> Cond:
        """Which threads take part in an operation: those of its distribution; ``once``: one of its copies."""
        guard: Cond = TRUE
        if spread.size_threads < self.group_threads:
            guard = less(self.thread(self.group_threads), spread.size_threads)
        if once:
            guard = all_of(guard, first_copy(spread, self.thread(spread.size_threads)))
        return guard


def _head(loop: Sym) -> str:
    return f"for (int {loop.name} = 0; {loop.name} < {extent(loop)}; ++{loop.name})"


def _broken(text: str, room: int) -> list[str]:
    """A long statement in lines, all but the first a step further in."""
    first, rest = _cut(text, room)
    lines = [first]
    while rest:
        piece, rest = _cut(rest, room - 4)
        lines.append(f"    {piece}")
    return lines


def _cut(text: str, room: int) -> tuple[str, str]:
    """Cut a text where the fewest parentheses are open, as far right as there is room."""
    if len(text) <= room or text.startswith(("//", "#")):
        return text, ""
    depth = 0
    cuts: list[tuple[int, int]] = []
    for at, letter in enumerate(text[:room]):
        depth += (letter in "([") - (letter in ")]")
        before, after = text[:at], text[at:]
        if letter == " " and (before.endswith((" =", ",")) or after.startswith((" && ", " + ", " ^ "))):
            cuts.append((depth, at))
    if not cuts:
        return text, ""
    least = min(depth for depth, _ in cuts)
    at = max(at for depth, at in cuts if depth == least)
    return text[:at], text[at + 1 :]


def access_bytes(kernel: Kernel) -> dict[Value, int]:
    """The widest word, in bytes, by which each fragment is accessed as a whole or copied."""
    found: dict[Value, int] = {}
    for op in kernel.walk():
        if isinstance(op, Mma):
            widths = {value: 4 for value in (op.a, op.b, op.c) if value.is_fragment}
        elif is_by_threads(op) and op.source.dtype == op.target.dtype and not _in_registers(op):
            width = (op.vector or 1) * op.source.dtype.bytes
            widths = {v: width for v in (op.source, op.target) if v.is_fragment}
        else:
            continue
        for value, width in widths.items():
            found[value] = max(found.get(value, 0), width)
    return found


def _in_registers(op: Copy) -> bool:
    return op.source.is_fragment and op.target.is_fragment


class Scope:
    """The local names of one operation's block."""

    def __init__(self, emitter: SimtEmitter) -> None:
        self.emitter = emitter
        self.own: set[Sym] = set()
        """Symbols that depend on the thread."""
        self._used: set[str] = set()
        self._declared: list[tuple[int, int, str]] = []

    def name(self, wanted: str) -> str:
        """A name that neither the kernel nor this block has yet."""
        made, count = self.emitter.local(wanted), 0
        while made in self._used:
            count += 1
            made = self.emitter.local(f"{wanted}_{count}")
        self._used.add(made)
        return made

    def names(self, wanted: Sequence[str]) -> Iterator[str]:
        """Names for loops, one after another."""
        for name in wanted:
            yield self.name(name)

    def constant(self, wanted: str, value: Int) -> Int:
        """The value, or a symbol for a constant that is declared here to hold it."""
        if isinstance(value, int | Sym):
            return value
        low, high = bounds(value)
        sym = Sym(self.name(wanted), int(low), int(high), divisor(value))
        self._declare("const int", sym.name, self.emitter.spell(value))
        return sym

    def coordinate(self, values: Sequence[Int]) -> tuple[Int, ...]:
        """Declare where the thread starts."""
        names = COORDINATES.get(len(values), tuple(f"x{dim}" for dim in range(len(values))))
        found = tuple(self.constant(name, value) for name, value in zip(names, values, strict=True))
        self.own |= {sym for value in (*values, *found) for sym in symbols(value)}
        return found

    def pointer(self, wanted: str, tensor: Value, offset: Int, *, const: bool) -> str:
        """Declare a pointer into a tensor's buffer; the buffer's own name if the offset is 0."""
        base = self.emitter.name(tensor.buffer)
        if offset == 0:
            return base
        name = self.name(wanted)
        kind = f"{'const ' if const else ''}{self.emitter.type(tensor.dtype)}*"
        self._declare(kind, name, self.emitter.plus(base, offset))
        return name

    def condition(self, wanted: str, cond: Cond) -> str:
        """Declare a truth value; empty if it always holds."""
        if cond == TRUE:
            return ""
        name = self.name(wanted)
        self._declare("const bool", name, self.emitter.spell_cond(cond))
        return name

    def _declare(self, kind: str, name: str, value: str) -> None:
        start = len(self.emitter.lines)
        self.emitter.line(f"{kind} {name} = {value};")
        self._declared.append((start, len(self.emitter.lines), name))

    def drop_unused(self) -> None:
        """Remove declarations that the lines after them do not name."""
        lines = self.emitter.lines
        for start, stop, name in reversed(self._declared):
            word = re.compile(rf"\b{re.escape(name)}\b")
            if not any(word.search(line) for line in lines[stop:]):
                del lines[start:stop]


def walk_of(walk: Walk, start: Sequence[Int]) -> tuple[Int, ...]:
    """The coordinate that a walk visits, for a thread that starts at ``start``."""
    return tuple(at + step for at, step in zip(start, walk.offset, strict=True))
