"""The loops of one copy: ordered for contiguous access, bounded by edges, transposed in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from tilewright.dtypes import DType, f32, f64
from tilewright.symbolic.expr import add, all_of, expand, less, maximum, minimum, mul
from tilewright.symbolic.nodes import TRUE, And, Cond, Element, Int, Sym
from tilewright.symbolic.rebuilding import elements, split_elements, substitute, symbols, with_elements
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import SELF, CopySide, CpuEmitter
from tilewright.targets.cpu.loops import (
    PAIR,
    Axis,
    Edges,
    Nest,
    Runs,
    blocks_of_pairs,
    coalesced,
    edges,
    freedom,
    in_groups,
    in_pairs,
    nest,
    runs,
)
from tilewright.targets.cpu.vector_moves import (
    ask_ahead,
    blocks,
    emit_widened,
    exchanged,
    load_part,
    run_copy,
    store_part,
    transposition,
)
from tilewright.targets.rules import CopySpelling
from tilewright.targets.statements import (
    Arm,
    Assign,
    Branch,
    Code,
    Declare,
    Do,
    Statement,
    call,
    code,
    joined,
    named,
)

ONE = Axis(Sym("one", 0, 0), 0, 1, 1)
"""The loop of a copy of one element."""
ZERO = Code("0")

GROUP = 4
"""Most panels of a target that are filled together: fewer than the ways of a first-level cache, because
panels share its sets.

Measured on a Zen 5, one thread: to copy 1016 rows of f16 that are contiguous along M, for 24 columns and K =
128, all panels together takes 136 us, 2 to 8 panels 49.
"""


@dataclass
class Limit:
    """A bound of a coordinate that is known only at run time, in a C++ variable from 0 to the extent."""

    name: Code
    bound: Int


class Copying:
    """The loops of a copy.

    Args:
        emitter: where the text goes.
        source: the source side.
        target: the target side.
        outside: the value of elements outside of the source.
        reduce: the function that combines an element with the stored one; None: the element replaces it.
        twin: the second array in the thread's own memory, if the other side holds interleaved pairs: its
            elements belong to the second number of each pair.
    """

    def __init__(
        self,
        emitter: CpuEmitter,
        source: CopySide,
        target: CopySide,
        outside: Code = ZERO,
        reduce: Code | None = None,
        twin: Code | None = None,
    ) -> None:
        self.emitter = emitter
        self.reduce = reduce
        self.twin = twin
        self.outside = outside
        views = coalesced((source.view, target.view))
        self.source, self.target = (
            replace(side, view=view) for side, view in zip((source, target), views, strict=True)
        )
        self.shape = tuple(extent for extent in views[1].shape if isinstance(extent, int))
        self.given: Edges = edges(self.source.view)
        self.taken: Edges = edges(self.target.view)

    def emit(self) -> CopySpelling:
        """Write the fill outside of the source, then the elements; return their access width."""
        taken = self._declare("limit", self.taken.upper)
        bounds = dict(self.taken.upper)
        for dim, bound in self.given.upper.items():
            bounds[dim] = minimum(bounds[dim], bound) if dim in bounds else bound
        both = self._declare(
            "inside", {dim: b for dim, b in bounds.items() if self.taken.upper.get(dim) != b}
        )
        within = {**taken, **both}
        with ExitStack() as stack:
            if self.taken.uniform != TRUE:
                stack.enter_context(self.emitter.branch(self.emitter.spell_cond(self.taken.uniform)))
            self._fill_outside(taken, both)
            if self.given.uniform != TRUE:
                stack.enter_context(self.emitter.branch(self.emitter.spell_cond(self.given.uniform)))
            views = (self.source.view, self.target.view)
            # The thread's own memory is in the caches, so the other side decides the order of the loops.
            leading = 0 if self.target.is_scratch else 1
            loops = nest(self.shape, views, (self.given.rest, self.taken.rest), self.emitter.local, leading)
            if self.target.is_scratch and not self.source.is_scratch:
                loops = in_groups(loops, self.emitter.local, GROUP)
            loops, rows = self._read_rows(loops)
            self.emitter.add(*rows.pop(0, ()))
            lanes = self._transposed(loops, within)
            if not lanes and self._is_independent() and self.twin is None:
                named_limits = {at: limit.name for at, limit in within.items()}
                if emit_widened(self.emitter, (self.source, self.target), loops, named_limits, stack):
                    return CopySpelling(None, "row by row, by tables in registers")
            found = None if lanes or not self._is_independent() else runs(loops, self.emitter.local)
            if found is not None:
                loops = found.loops
                self._loops(loops, within, partial(self._in_runs, found), rows)
            elif not lanes:
                self._loops(loops, within, partial(self._elements, loops), rows)
        if lanes:
            return CopySpelling(lanes, f"in blocks of {lanes} x {lanes} that are transposed in registers")
        sides = tuple((side.name, side.dtype) for side in (self.source, self.target))
        in_order = "" if self._is_independent() else "may be the same on both sides"
        if self.reduce:
            in_order = "are reduced one after the other"
        return CopySpelling(None, freedom(loops, sides, self.emitter.arch.vector_bytes, in_order))

    def _declare(self, name: str, bounds: Mapping[int, Int]) -> dict[int, Limit]:
        found = {}
        for dim, bound in bounds.items():
            found[dim] = Limit(self.emitter.local(f"{name}{dim}"), bound)
            limited = self.emitter.within(self.emitter.spell(bound), self.shape[dim])
            self.emitter.constant("Index", found[dim].name, limited)
        return found

    def _fill_outside(self, taken: Mapping[int, Limit], both: Mapping[int, Limit]) -> None:
        """Fill the part of the target that the source does not reach."""
        ends = [
            code("{} < {}", limit.name, taken[d].name if d in taken else self.shape[d])
            for d, limit in both.items()
        ]
        if self.given.uniform != TRUE:
            ends.append(code("!({})", self.emitter.spell_cond(self.given.uniform)))
        if not ends:
            return
        loops = nest(self.shape, (self.target.view,), (self.taken.rest,), self.emitter.local, 0)
        body = self._puts(loops.offsets[0], (self.outside, self.outside), loops.conditions[0])
        # If only one dimension is ragged, fill only its end; otherwise fill the whole target before copying.
        starts = both if len(both) == len(ends) == 1 else {}
        with self.emitter.branch(joined(" || ", ends)):
            self._loops(loops, taken, partial(self._inner, body, self.target.is_scratch), starts=starts)

    def _puts(self, offset: Int, values: Sequence[Code], asked: Cond) -> list[Statement]:
        """Return the statements that write an element of the target, and the second number of its pair."""
        puts = [self._put(self.target.name, offset, values[0], asked)]
        if self.twin is not None:
            name, step = (self.twin, 0) if self.target.is_scratch else (self.target.name, 1)
            puts.append(self._put(name, add(offset, step), values[1], asked))
        return puts

    def _put(self, name: Code, offset: Int, value: Code, asked: Cond) -> Statement:
        """Return the statement that writes an element under a condition."""
        place = code("{}[{}]", name, self.emitter.spell(offset))
        put: Statement = Assign(place, value)
        if self.reduce is not None:
            put = Do(call(self.reduce, code("&{}", place), value))
        return put if asked == TRUE else Branch([Arm(self.emitter.spell_cond(asked), [put])])

    def _is_independent(self) -> bool:
        """Whether no element's copy reads data that another element's copy writes.

        Two arguments that overlap do not count: threads copy in no order, so they would race anyway.
        """
        return self.source.name != self.target.name and not self.reduce

    def _element(self, loops: Nest) -> list[Statement]:
        """Return the statements that copy one element, or both numbers of a pair."""
        read = [(self.source.name, loops.offsets[0])]
        if self.twin is not None:
            second = (self.source.name, add(loops.offsets[0], 1))
            read.append(second if self.target.is_scratch else (self.twin, loops.offsets[0]))
        values = [self._value(name, offset, loops.conditions[0]) for name, offset in read]
        return self._puts(loops.offsets[1], values, loops.conditions[1])

    def _value(self, name: Code, offset: Int, asked: Cond) -> Code:
        """Return an element in the target's dtype, or the outside value if a condition fails."""
        read = code("{}[{}]", name, self.emitter.spell(offset))
        value = self.emitter.convert(read, self.source.dtype, self.target.dtype)
        if asked == TRUE:
            return value
        kind = STORAGE[self.target.dtype.name]
        return code(f"{{}} ? {{}} : ({kind}){{}}", self.emitter.spell_cond(asked), value, self.outside)

    # ------------------------------------------------------------ loops

    def _read_rows(self, loops: Nest) -> tuple[Nest, dict[int, list[Declare]]]:
        """Hoist row indices: read each integer in memory once, in the outermost loop where it is constant.

        Returns:
            The nest, and the declarations inside its outer loops, by depth.
        """
        known_as: dict[Element, Int] = {}
        declared: dict[int, list[Declare]] = {}
        for offset, condition in zip(loops.offsets, loops.conditions, strict=True):
            known = split_elements(condition)[0]
            for element in elements((condition, offset)):
                turning = [n for n, axis in enumerate(loops.axes) if axis.sym in symbols(element.at)]
                level = max(turning, default=-1) + 1
                if loops.axes and level == len(loops.axes):
                    continue  # it differs for every element
                later = {axis.sym for axis in loops.axes[level:]}
                parts = known.parts if isinstance(known, And) else (known,)
                guard = all_of(*(part for part in parts if not symbols(part) & later))
                value = self.emitter.spell(element)
                if guard != TRUE:
                    value = code("{} ? {} : -1", self.emitter.spell_cond(guard), value)
                name = self.emitter.local("chosen" if not known_as else f"chosen{len(known_as)}")
                made = Declare(named("const Index"), name, value, optional=True)
                declared.setdefault(level, []).append(made)
                known_as[element] = Sym(name, min(element.low, -1), element.high)
        offsets = tuple(with_elements(offset, known_as) for offset in loops.offsets)
        conditions = tuple(with_elements(condition, known_as) for condition in loops.conditions)
        return Nest(loops.axes, offsets, conditions), declared

    def _loops(
        self,
        loops: Nest,
        limits: Mapping[int, Limit],
        inner_loop: Callable[[Axis, Code | int], None],
        declared: Mapping[int, Sequence[Declare]] = MappingProxyType({}),
        starts: Mapping[int, Limit] = MappingProxyType({}),
    ) -> None:
        if not loops.axes:
            inner_loop(ONE, 1)
            return
        *outer, inner = loops.axes
        with ExitStack() as stack:
            for number, axis in enumerate(outer):
                stack.enter_context(self._turns(axis, limits, starts=starts))
                self.emitter.add(*declared.get(number + 1, ()))
            run = self._run(inner, limits)
            if run is None or not outer:
                inner_loop(inner, inner.extent if run is None else run)
                return
            # Whole runs have a constant length, so the compiler unrolls them; the last run may be shorter.
            name = run
            if not run.isidentifier():
                name = self.emitter.local("run")
                self.emitter.constant("Index", name, run)
            with self.emitter.branch(code("{} == {}", name, inner.extent)):
                inner_loop(inner, inner.extent)
            with self.emitter.otherwise():
                inner_loop(inner, name)

    def _inner(self, body: Sequence[Statement], independent: bool, axis: Axis, count: Code | int) -> None:
        if axis is ONE:
            self.emitter.add(*body)
            return
        with self.emitter.turns(axis.sym.name, count, independent=independent):
            self.emitter.add(*body)

    def _elements(self, loops: Nest, axis: Axis, count: Code | int) -> None:
        """Emit the innermost loop, and a version of it for a stride of two elements, as in complex arrays."""
        if self._in_vectors(loops, axis, count):
            return
        independent = self._is_independent()
        found = in_pairs(loops) if isinstance(count, int) and independent else None
        with ExitStack() as stack:
            if found is not None:
                with self.emitter.branch(code("{} == {}", self.emitter.spell(found[0]), PAIR)):
                    self._inner(self._element(found[1]), independent, axis, count)
                stack.enter_context(self.emitter.otherwise())
            self._inner(self._element(loops), independent, axis, count)

    def _in_vectors(self, loops: Nest, axis: Axis, count: Code | int) -> bool:
        """Call the function that copies neighbours in vectors; return False if no function fits."""
        if (
            axis is ONE
            or not self._is_independent()
            or self.twin is not None
            or loops.conditions != (TRUE, TRUE)
        ):
            return False
        if {loops.stride(side, axis) for side in (0, 1)} != {1}:
            return False
        if self.source.dtype == self.target.dtype and isinstance(count, int):
            return False  # the compiler unrolls it
        function = run_copy(self.emitter, self.source.dtype, self.target.dtype)
        if function is None:
            return False
        source, target = (
            code("{} + {}", side.name, self.emitter.spell(expand(substitute(offset, {axis.sym: 0}))))
            for side, offset in zip((self.source, self.target), loops.offsets, strict=True)
        )
        self.emitter.do(call(function, target, source, count))
        return True

    def _in_runs(self, found: Runs, axis: Axis, count: Code | int) -> None:
        """Write the innermost loop run by run; the condition of a run is tested once."""
        emitter, index, run = self.emitter, named(axis.sym.name), found.number
        first, length, turns = (Sym(emitter.local(name), 0, None) for name in ("first", "length", "turns"))
        for sym, value in (
            (first, emitter.spell(found.first)),
            (length, emitter.spell(maximum(found.length, 1))),
            (turns, code("{}", count)),
        ):
            emitter.constant("Index", named(sym.name), value)
        condition, target = found.loops.conditions
        exists = replace(found.loops, conditions=(TRUE, target))
        offset = add(mul(run, length), mul(first, -1))
        more = emitter.spell_cond(less(offset, turns))
        with emitter.loop(
            "Index", named(run.name), code("{} / {}", named(first.name), named(length.name)), more
        ):
            begin, end = (named(emitter.local(name)) for name in ("begin", "end"))
            emitter.constant("Index", begin, emitter.spell(maximum(offset, 0)))
            emitter.constant("Index", end, emitter.spell(minimum(add(offset, length), turns)))

            def each(body: Sequence[Statement]) -> None:
                with emitter.loop("Index", index, begin, code("{} < {}", index, end), 1, "INDEPENDENT"):
                    emitter.add(*body)

            if condition == TRUE:
                each(self._element(exists))
                return
            with emitter.branch(emitter.spell_cond(condition)):
                each(self._element(exists))
            with emitter.otherwise():
                each(self._puts(found.loops.offsets[1], (self.outside, self.outside), target))

    def _turns(
        self,
        axis: Axis,
        limits: Mapping[int, Limit],
        step: int = 1,
        starts: Mapping[int, Limit] = MappingProxyType({}),
    ) -> AbstractContextManager[None]:
        """Return the loop of an axis to its extent and its coordinate's limit, from 0 or near a limit."""
        name, limit = named(axis.sym.name), limits.get(axis.dim)
        ends = [code("{} < {}", name, axis.extent)]
        if limit is not None:
            position = self.emitter.spell(add(axis.start, mul(axis.sym, axis.scale)))
            ends = [*(ends if axis.outer else []), code("{} < {}", position, limit.name)]
        start = Code("0")
        if axis.dim in starts and not axis.outer:
            first = starts[axis.dim].name
            start = first if axis.scale == 1 else code("{} / {}", first, axis.scale)
        return self.emitter.loop("Index", name, start, joined(" && ", ends), step)

    def _run(
        self, axis: Axis, limits: Mapping[int, Limit], start: Int = 0, most: int | None = None
    ) -> Code | None:
        """Return the iterations of an axis of scale 1 up to its coordinate's limit; None without a limit."""
        limit = limits.get(axis.dim)
        if limit is None:
            return None
        begin, most = add(axis.start, start), axis.extent if most is None else most
        if begin == 0:
            return limit.name
        left = code("{} - {}", limit.name, self.emitter.spell(begin, True))
        return self.emitter.within(left, most)

    # ------------------------------------------------------------ transposition

    def _transposed(self, loops: Nest, limits: Mapping[int, Limit]) -> int:
        """Copy square blocks that are transposed in registers, if the two sides' contiguous axes differ.

        Returns:
            The side of a block; 0 if nothing was copied.
        """
        sides = self.source, self.target
        if not self._is_independent():
            return 0
        if self.twin is not None:
            dtype, pairs = self.source.dtype, 0 if self.target.is_scratch else 1
            square = blocks_of_pairs(loops, pairs, self.emitter.arch.vector_bytes, PAIR * dtype.bytes)
            if square is None or dtype not in (f32, f64) or dtype != self.target.dtype:
                return 0
            along, across, lanes, row_step, step = square
            name = transposition_of_pairs(self.emitter, dtype, lanes, is_stored=pairs == 1)
            of_side = {
                pairs: ([sides[pairs].name], row_step),
                1 - pairs: ([sides[1 - pairs].name, self.twin], step),
            }
        else:
            found = blocks(loops, sides, self.emitter.arch.vector_bytes)
            if found is None:
                return 0
            (along, across), lanes, steps = found
            name = transposition(self.emitter, self.source.dtype, self.target.dtype, lanes)
            of_side = {at: ([side.name], steps[at]) for at, side in enumerate(sides)}
        with ExitStack() as stack:
            for axis in loops.axes:
                if axis not in (along, across):
                    stack.enter_context(self._turns(axis, limits))
            for axis in (along, across):
                stack.enter_context(self._turns(axis, limits, lanes))
            most = [min(lanes, axis.extent) for axis in (along, across)]
            counts = [
                self._run(axis, limits, axis.sym, end) or end
                for axis, end in zip((along, across), most, strict=True)
            ]
            ask_ahead(self.emitter, self.source, loops.offsets[0], (along, across), lanes)
            places: list[Code] = []
            for at in (1, 0):
                offset, (names, step) = self.emitter.spell(loops.offsets[at]), of_side[at]
                places += [code("{} + {}", name, offset) for name in names]
                places.append(self.emitter.spell(step))
            self.emitter.do(call(name, *places, *counts))
        return lanes


def transposition_of_pairs(emitter: CpuEmitter, dtype: DType, lanes: int, *, is_stored: bool) -> Code:
    """Return the function that moves a block of ``lanes`` x ``lanes`` pairs, or part of one.

    Pairs are contiguous along one axis, and the two arrays of their parts along the other.
    ``first[j * step + i]`` and ``second[j * step + i]`` are the parts of the pair at
    ``pairs + i * row_step + 2 * j``, for ``i < rows`` and ``j < columns``.

    Args:
        emitter: where the text goes.
        dtype: the dtype of the parts.
        lanes: the side of a block.
        is_stored: whether the pairs are the target.
    """
    real, size = STORAGE[dtype.name], dtype.bytes
    each = [f"  UNROLL for (Index {at} = 0; {at} < {lanes}; ++{at})" for at in "ij"]
    if is_stored:
        arguments = f"{real}* pairs, Index row_step, const {real}* first, const {real}* second, Index step"
        relation, store = "=", store_part(emitter, dtype, 2 * lanes)
        moved = "pairs[i * row_step + 2 * j{0}] = {1}[j * step + i];"
        order = ", ".join(f"{lane}, {lanes + lane}" for lane in range(lanes))
        load = f"""\
{each[1]}
    if (j < columns) {{
      const part one = *(const part*)(first + j * step), other = *(const part*)(second + j * step);
      row[j] = __builtin_shufflevector(one, other, {order});
    }}"""
        stored = f"""\
{each[0]}
    if (i < rows) {{
      if (columns >= {lanes}) *(vector*)(pairs + i * row_step) = row[i];
      else {store}(pairs + i * row_step, row[i], 2 * columns);
    }}"""
    else:
        arguments = f"{real}* first, {real}* second, Index step, const {real}* pairs, Index row_step"
        relation, store = "->", store_part(emitter, dtype, lanes)
        moved = "{1}[j * step + i] = pairs[i * row_step + 2 * j{0}];"
        low, high = (", ".join(map(str, range(first, 2 * lanes, 2))) for first in (0, 1))
        load = f"""\
{each[0]}
    if (i < rows)
      row[i] = columns >= {lanes} ? *(const vector*)(pairs + i * row_step)
        : {load_part(emitter, dtype, 2 * lanes)}<vector>(pairs + i * row_step, 2 * columns);"""
        stored = f"""\
{each[1]}
    if (j < columns) {{
      const part one = __builtin_shufflevector(row[j], row[j], {low});
      const part other = __builtin_shufflevector(row[j], row[j], {high});
      if (rows >= {lanes}) {{
        *(part*)(first + j * step) = one;
        *(part*)(second + j * step) = other;
      }} else {{
        {store}(first + j * step, one, rows);
        {store}(second + j * step, other, rows);
      }}
    }}"""
    text = f"""\
// pairs[i * row_step + 2 * j + (0, 1)] {relation} (first, second)[j * step + i] for i < rows, j < columns
static void {SELF}({arguments},
    Index rows, Index columns) {{
  typedef {real} part __attribute__((vector_size({lanes * size}), aligned({size})));
  typedef {real} vector __attribute__((vector_size({2 * lanes * size}), aligned({size})));
  if (rows * columns <= {lanes}) {{
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) {{
        {moved.format("", "first")}
        {moved.format(" + 1", "second")}
      }}
    return;
  }}
  vector row[{lanes}]{{}};
{load}
{chr(10).join(exchanged(lanes, 2 * size, parts=2))}
{stored}
}}"""
    return emitter.function(f"transpose_pairs_{'to' if is_stored else 'from'}_memory", text)
