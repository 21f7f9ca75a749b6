"""Operands in their arrays: B that is multiplied without packing, and results that are stored from registers.

Packing a panel pays if several panels of A are multiplied by it.  One panel of A reads the rows of B from
their array, if they are contiguous along the columns.  If one call of a micro-kernel has all products of a
sum, it stores the sum in the array of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tilewright.dtypes import DType, f32
from tilewright.ir.ops import Copy
from tilewright.ir.types import Memory
from tilewright.symbolic.expr import add, all_of, expand, less, less_equal, mul
from tilewright.symbolic.nodes import TRUE, Cond, Int, Sym
from tilewright.symbolic.rebuilding import slope, substitute
from tilewright.targets.cpu.arch import adds_along_k, adds_groups
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.copies import emit_copy
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.cpu.few_rows import CHUNK_BYTES
from tilewright.targets.cpu.linear import panels
from tilewright.targets.cpu.loops import edges
from tilewright.targets.cpu.multiply import Multiply, StoreSums
from tilewright.targets.cpu.vector_moves import HALVES
from tilewright.targets.statements import Code, code, joined, named

# ---------------------------------------------------------------- operand B


ALONG_ROWS, ACROSS_ROWS = (1, 2), (1, 4)
"""Heights of the functions for few rows, by the contiguous dimension of B: its columns, or K."""


@dataclass(frozen=True)
class Unpacked:
    """The array of operand B.

    Args:
        name: its pointer.
        dtype: its dtype.
        start: the offset of its first element in the tile.
        k_step: elements between neighbours along K.
        column_step: elements between neighbouring columns.
        bound: the columns that the array has; None for all.
        is_converted: whether it is multiplied in a wider dtype.
    """

    name: Code
    dtype: DType
    start: Int
    k_step: Int
    column_step: Int
    bound: Int | None
    is_converted: bool

    @staticmethod
    def of(emitter: CpuEmitter, op: Multiply) -> Unpacked | None:
        """The array, or None if it is not of floats, or the products read more than it has."""
        if len(op.products) > 1 or len(op.packing) != 1:
            return None
        (product,), (copy,) = op.products, op.packing
        atom, needed = product.mma.atom, emitter.extents[product]
        dtype, layout = atom.c_dtype, panels(product.b.tensor.view, atom.shape[1])
        is_plain = dtype.is_float and dtype == dtype.computed and atom.precision is None
        if not is_plain or product.negative or not isinstance(copy, Copy) or copy.other != 0:
            return None
        if layout is None or layout.k_stride != atom.shape[1] or not op.is_packed(product):
            return None
        if atom.shape[1] % (emitter.arch.vector_bytes // dtype.bytes):
            return None  # a micro-tile of part of a vector
        if atom.shape[1] * dtype.bytes > CHUNK_BYTES:
            return None  # sums on the stack are whole micro-tiles
        kind, bounds = copy.source.tensor, edges(copy.source.tensor.view)
        if kind.memory is not Memory.GLOBAL or copy.target.tensor.dtype != dtype:
            return None
        if kind.dtype not in (dtype, *HALVES):
            return None
        limits = [bounds.upper.get(dim) for dim in (0, 1)]
        if (bounds.uniform, bounds.rest) != (TRUE, TRUE) or limits[1] != needed.depth:
            return None
        if needed.columns not in (None, limits[0]):
            return None
        column, k = kind.view.coords
        k_step, column_step = (slope(kind.view.offset, sym) for sym in (k, column))
        if k_step is None or column_step is None or 1 not in (k_step, column_step):
            return None
        start = expand(substitute(kind.view.offset, {column: 0, k: 0}))
        name = emitter.name(copy.source.buffer)
        return Unpacked(name, kind.dtype, start, k_step, column_step, limits[0], kind.dtype != dtype)

    @property
    def is_along_rows(self) -> bool:
        """Whether neighbouring columns are contiguous."""
        return self.column_step == 1

    def address(self, emitter: CpuEmitter, first: Int = 0) -> Code:
        """The address of a column."""
        start = add(self.start, mul(first, self.column_step))
        return code("{} + {}", self.name, emitter.spell(expand(start)))

    @contextmanager
    def unless_few(
        self,
        emitter: CpuEmitter,
        kernel: str,
        most: int,
        needed: tuple[Code, Code],
        operands: tuple[Code, Code],
        depth: Code,
        adds: Code,
    ) -> Iterator[None]:
        """Call the function for few rows; the with block writes the multiply of more rows.

        Args:
            emitter: where the text goes.
            kernel: the function's text.
            most: rows of a micro-tile; the functions stay in the first one.
            needed: the number of rows and of columns.
            operands: the addresses of A and of the sums.
            depth: the number of products of a sum.
            adds: whether to add to the sums instead of overwriting them.
        """
        emitter.call("fused", "fused_lanes", "min_int")
        name = "multiply_along_columns" if self.is_along_rows else "multiply_along_k"
        function = emitter.function(name, kernel)
        step = emitter.spell(self.k_step if self.is_along_rows else self.column_step)
        (a, c), (rows, columns) = operands, needed
        given = joined(", ", (a, self.address(emitter), step, c, columns, depth, adds))
        with ExitStack() as more:
            for height in ALONG_ROWS if self.is_along_rows else ACROSS_ROWS:
                if height > most:
                    break
                with emitter.branch(code("{} <= {}", rows, height)):
                    emitter.do(code("{}<{}>({})", function, height, given))
                more.enter_context(emitter.otherwise())
            yield


@dataclass(frozen=True)
class Panel:
    """A panel of B that one panel of A multiplies: read from its array if it is whole, else packed.

    Args:
        address: the variable of its address.
        step: the variable of elements between its rows.
        in_place: the variable that says whether it is read from its array.
    """

    address: Code
    step: Code
    in_place: Code

    @staticmethod
    def of(emitter: CpuEmitter) -> Panel:
        """A panel with new names."""
        return Panel(*(emitter.local(name) for name in ("panel", "step", "in_place")))

    @contextmanager
    def unless_in_place(
        self, emitter: CpuEmitter, array: Unpacked, packed: Code, at: tuple[Sym, int], panels_of_a: Code
    ) -> Iterator[None]:
        """Declare the variables; the with block writes the packing.

        Args:
            emitter: where the text goes.
            array: the array.
            packed: the address of the packed panel.
            at: the index of the panel, and its columns.
            panels_of_a: the number of panels of A.
        """
        panel, unit = at
        first = mul(panel, unit)
        when = code("{} <= 1", panels_of_a)
        if array.bound is not None:
            is_whole = less_equal(add(first, unit), array.bound)
            when = code("{} && {}", when, emitter.spell_cond(is_whole))
        emitter.constant("bool", self.in_place, when)
        with emitter.branch(code("!{}", self.in_place)):
            yield
        pointer = named(f"const {STORAGE[array.dtype.name]}* const")
        address = code("{} ? {} : {}", self.in_place, array.address(emitter, first), packed)
        emitter.declare(pointer, self.address, address, optional=True)
        step = code("{} ? {} : {}", self.in_place, emitter.spell(array.k_step), unit)
        emitter.constant("Index", self.step, step)


# ---------------------------------------------------------------- the result


@dataclass(frozen=True)
class PanelExtent:
    """Rows or columns of an accumulator, in panels.

    Args:
        at: the loop variable of panels.
        unit: rows or columns of a panel.
        needed: the number of needed rows or columns; None for all.
        count: the number of needed panels.
    """

    at: Sym
    unit: int
    needed: Code | None
    count: Code


@dataclass(frozen=True)
class ResultArray:
    """The array of the result, if micro-kernels may store sums in it.

    Args:
        name: its pointer.
        dtype: its dtype.
        start: the offset of the tile's first element.
        row_step: elements between neighbouring rows; columns are contiguous.
        when: the condition under which they store there, and not in the fragment.
    """

    name: Code
    dtype: DType
    start: Int
    row_step: Int
    when: Cond

    @staticmethod
    def of(emitter: CpuEmitter, store: StoreSums) -> ResultArray | None:
        """The array; None if it holds neither sums nor halves, or rows are not contiguous."""
        copy, product, kind = store.copy, store.product, store.copy.target.tensor
        atom, needed, bounds = product.mma.atom, emitter.extents[product], edges(kind.view)
        if atom.precision is not None or adds_groups(atom) or adds_along_k(atom) or product.negative:
            return None
        sums = atom.c_dtype
        if not sums.is_float or sums.computed != sums:
            return None
        if kind.dtype != sums and not (sums == f32 and kind.dtype in HALVES):
            return None
        if (bounds.uniform, bounds.rest) != (TRUE, TRUE):
            return None
        if [bounds.upper.get(dim) for dim in (0, 1)] != [needed.rows, needed.columns]:
            return None
        row, column = kind.view.coords
        row_step = slope(kind.view.offset, row)
        if slope(kind.view.offset, column) != 1 or row_step is None:
            return None
        start = expand(substitute(kind.view.offset, {row: 0, column: 0}))
        rows = needed.rows if needed.rows is not None else kind.view.shape[0]
        when = all_of(store.is_once, less(max(*ALONG_ROWS, *ACROSS_ROWS), rows))
        return ResultArray(emitter.name(copy.target.buffer), kind.dtype, start, row_step, when)

    def address(self, emitter: CpuEmitter, row: Int, column: Int) -> Code:
        """The address of an element."""
        start = add(self.start, mul(row, self.row_step), column)
        return code("{} + {}", self.name, emitter.spell(expand(start)))


@dataclass(frozen=True)
class StoredPlace:
    """The place where one call of a micro-kernel stores its sums: in the result, or in the fragment.

    Args:
        result: the array of the result.
        unit: columns of a micro-tile in the fragment.
        in_result: the variable that says where sums are stored.
        address: the variable of the address; of sums that are rounded to halves: that in the fragment.
        halves: the variable of the address of halves, or of null; None if sums are not rounded.
        pitch: the variable of the elements between rows.
        rows: the variable of the rows to store.
        columns: the variable of the columns to store.
    """

    result: ResultArray
    unit: int
    in_result: Code
    address: Code
    pitch: Code
    rows: Code
    columns: Code
    halves: Code | None

    @staticmethod
    def of(emitter: CpuEmitter, result: ResultArray, unit: int) -> StoredPlace:
        """A place with new names; declares what is the same for all calls."""
        in_result, address, pitch, high, wide = (
            emitter.local(name) for name in ("in_result", "sums", "pitch", "high", "wide")
        )
        halves = emitter.local("halves") if result.dtype in HALVES else None
        emitter.constant("bool", in_result, emitter.spell_cond(result.when))
        step = code("{} ? {} : {}", in_result, emitter.spell(result.row_step), unit)
        emitter.constant("Index", pitch, step)
        return StoredPlace(result, unit, in_result, address, pitch, high, wide, halves)

    @property
    def arguments(self) -> tuple[Code, ...]:
        """The arguments of a micro-kernel."""
        halves = () if self.halves is None else (self.halves,)
        return (self.address, *halves, self.pitch, self.rows, self.columns)

    def turn(self, emitter: CpuEmitter, sums: Code, extents: tuple[PanelExtent, PanelExtent]) -> None:
        """Declare the place of one call.

        Args:
            emitter: where the text goes.
            sums: the address in the fragment.
            extents: the rows and the columns of the accumulator.
        """
        m, n = extents
        there = self.result.address(emitter, mul(m.at, m.unit), mul(n.at, n.unit))
        kind = named(f"{STORAGE[self.result.dtype.name]}* const")
        if self.halves is None:
            emitter.declare(kind, self.address, code("{} ? {} : {}", self.in_result, there, sums))
        else:
            emitter.declare(kind, self.halves, code("{} ? {} : nullptr", self.in_result, there))
            emitter.declare(named(f"{STORAGE[f32.name]}* const"), self.address, sums)
        for name, one in ((self.rows, m), (self.columns, n)):
            left = Code(str(one.unit))
            if one.needed is not None:
                rest = code("{} - {}", one.needed, emitter.spell(mul(one.at, one.unit), True))
                left = code("{} ? {} : {}", self.in_result, rest, left)
            emitter.constant("Index", name, left)


def emit_store(emitter: CpuEmitter, op: StoreSums) -> None:
    """Copy sums from their fragment to the array of the result, unless micro-kernels stored them there."""
    found = ResultArray.of(emitter, op)
    if found is None:
        emit_copy(emitter, op.copy)
        return
    with emitter.branch(code("!({})", emitter.spell_cond(found.when))):
        emit_copy(emitter, op.copy)
