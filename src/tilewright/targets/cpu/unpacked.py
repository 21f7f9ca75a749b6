"""Operands that are multiplied in their arrays, and results that are stored from registers.

Packing a panel of B pays if many panels of A are multiplied by it, and copying A pays if many panels of B
are.  Otherwise micro-kernels read whole panels from their array: of B if columns are neighbours, of A in
any layout.  If a sum has one or two steps of tiles along K, a micro-kernel stores it in the result's array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tilewright.dtypes import DType, f32
from tilewright.ir.ops import Copy, Mma
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.expr import add, all_of, expand, less, less_equal, mul
from tilewright.symbolic.nodes import TRUE, Cond, Int, Sym
from tilewright.symbolic.rebuilding import slope, substitute, symbols
from tilewright.targets.cpu.arch import (
    FIRST_CACHE_BYTES,
    NEAR_BYTES,
    PANELS_FAR,
    PANELS_OF_B,
    ROWS_IN_PLACE,
    adds_along_k,
    adds_groups,
)
from tilewright.targets.cpu.conversions import HALVES, STORAGE
from tilewright.targets.cpu.copies import Twins, emit_copy, emit_panel, paired
from tilewright.targets.cpu.emitter import CACHE_LINE_BYTES, CpuEmitter
from tilewright.targets.cpu.few_rows import CHUNK_BYTES
from tilewright.targets.cpu.linear import PanelLayout, distinct, panels, same_place
from tilewright.targets.cpu.loops import edges
from tilewright.targets.cpu.multiply import Multiply, StoreSums
from tilewright.targets.statements import Code, code, joined, named

# ---------------------------------------------------------------- operands


ALONG_ROWS, ACROSS_ROWS, MOST_FEW = (1, 2), (1, 4), 4
"""Numbers of rows that have functions of their own, if columns of B are contiguous, and if K is; and the
largest.  If columns are contiguous, `MOST_FEW` rows use theirs only if B is converted, or read in order."""

FAR_BYTES, LINE_BYTES = 1 << 24, 2048
"""Least bytes of an array that is assumed to be in memory, not in a cache; and most bytes of its lines that
are read one after the other.

Measured on a Zen 4 with f32, from memory, one row: lines of 512 bytes 22.9 GB/s, and 10 if 2 to 16 lines are
read together; of 2 KiB 22.7 and 21.4; of 4 KiB 19.7 and 25.  From the third-level cache lines of 512 bytes
have 73 and 80.
"""


@dataclass(frozen=True)
class Unpacked:
    """The array of an operand that is multiplied without packing.

    Args:
        name: its pointer.
        dtype: its dtype.
        start: the offset of its first element in the tile.
        k_step: elements between neighbours along K.
        line_step: elements between neighbouring columns of B, or rows of A.
        bound: the columns or rows that the array has; None for all.
        deepest: the bound along K past which the copy writes zeros that are multiplied; None if none are.
        is_converted: whether it is multiplied in a wider dtype.
        elems: the elements of the whole array; 0 if they are not known.
    """

    name: Code
    dtype: DType
    start: Int
    k_step: Int
    line_step: Int
    bound: Int | None
    deepest: Int | None
    is_converted: bool
    elems: Int

    @staticmethod
    def of(emitter: CpuEmitter, op: Multiply) -> Unpacked | None:
        """Return the array of B, or None if it is not of floats, or the products read more than it has."""
        if len(op.products) > 1 or len(op.packing) != 1:
            return None
        (product,), (copy,) = op.products, op.packing
        atom, needed = product.mma.atom, emitter.extents[product]
        dtype, layout = atom.c_dtype, panels(product.b.tensor.view, atom.shape[1])
        if layout is None or layout.k_stride != atom.shape[1] or not op.is_packed(product):
            return None
        if atom.shape[1] % (emitter.arch.vector_bytes // dtype.bytes):
            return None  # a micro-tile of part of a vector
        if atom.shape[1] * dtype.bytes > CHUNK_BYTES:
            return None  # sums on the stack are whole micro-tiles
        found = Unpacked._read(emitter, product, copy) if isinstance(copy, Copy) else None
        return None if found is None or needed.columns not in (None, found.bound) else found

    @staticmethod
    def of_pairs(emitter: CpuEmitter, op: Multiply) -> list[Unpacked]:
        """Return the arrays of two B that a kernel for few rows may read; empty if it may not."""
        firsts = distinct(product.b for product in op.products)
        products = [next(one for one in op.products if one.b is b) for b in firsts]
        made: list[Unpacked] = []
        for product in products:
            copies = [copy for copy in op.packing if same_place(copy.target, product.b)]
            if len(copies) != 1 or not isinstance(copies[0], Copy):
                return []
            found = Unpacked._read(emitter, product, copies[0], is_plain=False)
            if found is None or found.is_converted or found.deepest is not None:
                return []
            if found.bound != emitter.extents[product].columns:
                return []
            made.append(found)
        return made

    @staticmethod
    def of_rows(emitter: CpuEmitter, op: Multiply) -> list[Unpacked]:
        """Return the arrays of all A; none if micro-kernels cannot read them in their copies' layout."""
        made: list[Unpacked] = []
        firsts = [next(p for p in op.products if same_place(p.a, copy.target)) for copy in op.rows]
        for product, copy in zip(firsts, op.rows, strict=True):
            atom, needed = product.mma.atom, emitter.extents[product]
            layout = panels(product.a.tensor.view, atom.shape[0])
            found = Unpacked._read(emitter, product, copy, is_plain=len(firsts) == 1)
            if layout is None or found is None or found.is_converted or adds_along_k(atom):
                return []
            steps = (layout.row_stride, found.line_step), (layout.k_stride, found.k_step)
            if found.deepest is not None:
                return []
            if (len(firsts) == 1 and (1, 1) not in steps) or needed.rows not in (None, found.bound):
                return []
            if made and found.bound != made[0].bound:  # the text has one number of panels for all
                return []
            made.append(found)
        return made

    @staticmethod
    def _read(emitter: CpuEmitter, product: Mma, copy: Copy, *, is_plain: bool = True) -> Unpacked | None:
        """Return the array from which a copy fills an operand, if a product of floats may read it.

        Args:
            emitter: where the text goes.
            product: the product.
            copy: the copy.
            is_plain: whether it is the only product, and one dimension of the array is contiguous.
        """
        atom, needed = product.mma.atom, emitter.extents[product]
        dtype = atom.c_dtype
        is_exact = dtype.is_float and dtype == dtype.computed and atom.precision is None
        if not is_exact or (is_plain and product.negative) or copy.other != 0:
            return None
        kind, bounds = copy.source.tensor, edges(copy.source.tensor.view)
        if kind.memory is not Memory.GLOBAL or copy.target.tensor.dtype != dtype:
            return None
        if kind.dtype not in (dtype, *HALVES):
            return None
        limits = [bounds.upper.get(dim) for dim in (0, 1)]
        if (bounds.uniform, bounds.rest) != (TRUE, TRUE) or needed.depth not in (None, limits[1]):
            return None
        line, k = kind.view.coords
        k_step, line_step = (slope(kind.view.offset, sym) for sym in (k, line))
        if k_step is None or line_step is None or (is_plain and 1 not in (k_step, line_step)):
            return None
        start = expand(substitute(kind.view.offset, {line: 0, k: 0}))
        name = emitter.name(copy.source.buffer)
        deepest = limits[1] if needed.depth is None else None
        elems, sizes = copy.source.buffer.tensor.view.elems, {size.sym for size in emitter.kernel.sizes}
        return Unpacked(
            name, kind.dtype, start, k_step, line_step, limits[0], deepest, kind.dtype != dtype,
            elems if symbols(elems) <= sizes else 0,
        )  # fmt: skip

    @property
    def is_along_rows(self) -> bool:
        """Whether neighbouring columns of B are contiguous."""
        return self.line_step == 1

    def address(self, emitter: CpuEmitter, first: Int = 0) -> Code:
        """Return the address of a column of B, or of a row of A."""
        start = add(self.start, mul(first, self.line_step))
        return code("{} + {}", self.name, emitter.spell(expand(start)))

    def if_deep(self, emitter: CpuEmitter, depth: Code, condition: Code) -> Code:
        """Return a condition that also requires the array to have all multiplied elements along K."""
        if self.deepest is None:
            return condition
        return code("{} >= {} && {}", emitter.spell(self.deepest, True), depth, condition)

    def in_order(self, emitter: CpuEmitter, count: Code) -> Code:
        """Return the condition that lines of ``count`` contiguous elements are read one after the other.

        They are if they are short neighbours in an array in memory: interleaved lines of one page mislead the
        prefetcher.
        """
        step = emitter.spell(self.k_step if self.is_along_rows else self.line_step, True)
        size = self.dtype.bytes
        is_far = code("{} > {}", emitter.spell(self.elems, True), FAR_BYTES // size)
        are_near = code("{} - {} < {}", step, count, CACHE_LINE_BYTES // size)
        return code("{} && {} && {} <= {}", is_far, are_near, count, LINE_BYTES // size)

    @contextmanager
    def unless_few(
        self,
        emitter: CpuEmitter,
        kernel: str,
        most: int,
        needed: tuple[Code | int, Code],
        operands: tuple[Code, Code],
        depth: Code,
        adds: Code,
    ) -> Iterator[None]:
        """Call the function for few rows; the with block writes the multiply of more rows.

        Args:
            emitter: where the text goes.
            kernel: the function's text.
            most: rows of a micro-tile; the functions stay in the first one.
            needed: the number of rows, and of columns.
            operands: the addresses of A and of the sums.
            depth: the number of products of a sum.
            adds: whether to add to the sums instead of overwriting them.
        """
        (a, c), (rows, columns) = operands, needed
        able: tuple[int, ...] = (*ALONG_ROWS, MOST_FEW) if self.is_along_rows else ACROSS_ROWS
        heights = [height for height in able if height <= most]
        if isinstance(rows, int):
            heights = [height for height in heights if height >= rows][:1]
        if not heights:
            yield
            return
        emitter.call("fused", "fused_lanes", "min_int")
        name = "multiply_along_columns" if self.is_along_rows else "multiply_along_k"
        function = emitter.function(name, kernel)
        step = emitter.spell(self.k_step if self.is_along_rows else self.line_step)
        given = joined(", ", (a, self.address(emitter), step, c, columns, depth, adds))
        in_order = emitter.local("in_order")
        with ExitStack() as more:
            if self.is_along_rows:
                more.enter_context(emitter.indented())
                emitter.constant("bool", in_order, self.in_order(emitter, columns))
                given = code("{}, {}", given, in_order)
            for height in heights:
                is_low = self.if_deep(emitter, depth, code("{} <= {}", rows, height))
                if self.is_along_rows and not self.is_converted and height not in ALONG_ROWS:
                    is_low = code("{} && {}", is_low, in_order)
                with emitter.branch(is_low):
                    emitter.do(code("{}<{}>({})", function, height, given))
                more.enter_context(emitter.otherwise())
            yield


@dataclass(frozen=True)
class Panel:
    """A panel of B: read from its array if packing does not pay, else packed.  Part of a panel needs masks.

    Args:
        address: the variable of its address.
        step: the variable of elements between its rows.
        in_place: the truth value in the text: the panel is read from its array.
        pays: the truth value in the text: whole panels are read from the array.
        masks: whether micro-kernels load parts of its rows.
        dtype: the dtype of the array.
        narrow: the variable of the address in an array of halves, null if packed; None if B is not widened.
    """

    address: Code
    step: Code
    in_place: Code
    pays: Code
    masks: bool
    dtype: DType
    narrow: Code | None

    @staticmethod
    def of(
        emitter: CpuEmitter, array: Unpacked, unit: int, of_a: PanelExtent, depth: Code, *, masks: bool
    ) -> Panel:
        """Return a panel with new names; declare whether reading whole panels in place pays.

        Args:
            emitter: where the text goes.
            array: the array.
            unit: columns of a panel.
            of_a: the panels of A.
            depth: the number of its rows.
            masks: whether micro-kernels load parts of its rows.
        """
        address, between, in_place, reads = map(emitter.local, ("panel", "step", "in_place", "pays"))
        narrow = emitter.local("narrow") if array.is_converted else None
        made, size = Panel(address, between, in_place, reads, masks, array.dtype, narrow), array.dtype.bytes
        step = emitter.spell(array.k_step)
        line, lines = CACHE_LINE_BYTES // size, max(unit * size // CACHE_LINE_BYTES, 1)
        emitter.call("max_int")
        # Rows a multiple of a power of 2 apart lie in few sets of the first-level cache.
        apart = code("max_int({} & -{}, {})", step, step, line)
        is_spread = code("{} * {} <= {}", depth, apart, FIRST_CACHE_BYTES // size // lines)
        most = 3 * FIRST_CACHE_BYTES // 4 // ((lines + 1) * CACHE_LINE_BYTES)  # a row begins inside a line
        is_near = code("{} <= {} && {} * {} <= {}", depth, most, step, depth, NEAR_BYTES // size)
        few = code("{} <= {}", of_a.count, ROWS_IN_PLACE // of_a.unit)
        pays = code("{} <= {} || {} && ({} || {})", of_a.count, PANELS_FAR, is_spread, few, is_near)
        pays = pays if array.deepest is None else array.if_deep(emitter, depth, code("({})", pays))
        emitter.constant("bool", made.pays, pays)
        return made

    @contextmanager
    def unless_in_place(
        self, emitter: CpuEmitter, array: Unpacked, packed: Code, at: tuple[Sym, int]
    ) -> Iterator[None]:
        """Declare the variables; the with block writes the packing.

        Args:
            emitter: where the text goes.
            array: the array.
            packed: the address of the packed panel.
            at: the index of the panel, and its columns.
        """
        panel, unit = at
        first, when = mul(panel, unit), self.pays
        if array.bound is not None and not self.masks:
            is_whole = less_equal(add(first, unit), array.bound)
            when = code("{} && {}", when, emitter.spell_cond(is_whole))
        emitter.constant("bool", self.in_place, when)
        with emitter.branch(code("!{}", self.in_place)):
            yield
        pointer = named(f"const {STORAGE[array.dtype.name]}* const")
        there = array.address(emitter, first)
        if self.narrow is None:
            address = code("{} ? {} : {}", self.in_place, there, packed)
            emitter.declare(pointer, self.address, address, optional=True)
        else:
            emitter.declare(pointer, self.narrow, code("{} ? {} : nullptr", self.in_place, there))
        step = emitter.spell(array.k_step)
        emitter.constant("Index", self.step, code("{} ? {} : {}", self.in_place, step, unit))


@dataclass(frozen=True)
class RowPanels:
    """Panels of A: whole ones are read from their array if few panels of B are multiplied by them.

    Args:
        arrays: the array of each A.
        copies: the copies that fill the other panels.
        layouts: the layout of the copied panels of each A.
        unit: rows of a panel.
        whole: the variable of the number of panels that are read from the arrays.
        addresses: the variables of the addresses of a panel.
        steps: the variables of elements between its rows, or its columns; of both for several arrays.
    """

    arrays: Sequence[Unpacked]
    copies: Sequence[Copy]
    layouts: Sequence[PanelLayout]
    unit: int
    whole: Code
    addresses: Sequence[Code]
    steps: Sequence[Code]

    @staticmethod
    def of(emitter: CpuEmitter, op: Multiply, m: PanelExtent, n: PanelExtent) -> RowPanels | None:
        """Write the copy of packed panels and return all; None if none may be read from an array."""
        arrays = Unpacked.of_rows(emitter, op)
        layouts = [panels(copy.target.tensor.view, m.unit) for copy in op.rows]
        found = [one for one in layouts if one is not None]
        alike = len({(one.row_stride, one.k_stride) for one in found}) == 1
        if not arrays or len(found) < len(arrays) or not alike:
            return None
        extent = op.rows[0].target.tensor.shape[0]
        names = [emitter.local(f"rows{at or ''}") for at, _ in enumerate(arrays)]
        steps = [emitter.local(name) for name in ("apart", "along")[: 1 if len(arrays) == 1 else 2]]
        made = RowPanels(arrays, op.rows, found, m.unit, emitter.local("whole"), names, steps)
        rows = Code(str(extent)) if m.needed is None else m.needed
        if m.needed is None and arrays[0].bound is not None:
            rows = emitter.within(emitter.spell(arrays[0].bound), extent if isinstance(extent, int) else 0)
        pays = code("{} <= {} && {} > {}", n.count, PANELS_OF_B, rows, MOST_FEW)
        for one in arrays[1:]:  # the text has one distance for all
            pairs = (one.line_step, arrays[0].line_step), (one.k_step, arrays[0].k_step)
            for left, right in pairs:
                pays = code("{} && {} == {}", pays, emitter.spell(left, True), emitter.spell(right, True))
        emitter.constant("Index", made.whole, code("{} ? {} / {} : 0", pays, rows, m.unit))
        at = named(m.at.name)
        with emitter.loop("Index", at, made.whole, code("{} < {}", at, m.count)):
            for copy in paired(op.rows, emitter.kernel):
                assert isinstance(copy, Copy | Twins)
                emit_panel(emitter, copy, m.at, m.unit, m.at)
        return made

    def address_of(self, operand: Value) -> Code:
        """Return the variable of the address of a panel of one A."""
        pairs = zip(self.copies, self.addresses, strict=True)
        return next(address for copy, address in pairs if same_place(copy.target, operand))

    def turn(self, emitter: CpuEmitter, panel: Sym) -> None:
        """Declare the addresses of a panel."""
        kind, at = STORAGE[self.arrays[0].dtype.name], named(panel.name)
        is_whole, pointer = code("{} < {}", at, self.whole), named(f"const {kind}* const")
        for array, copy, layout, address in zip(
            self.arrays, self.copies, self.layouts, self.addresses, strict=True
        ):
            there = array.address(emitter, mul(panel, self.unit))
            start = add(layout.base, mul(panel, layout.panel_stride))
            copied = code("{} + {}", emitter.name(copy.target.buffer), emitter.spell(start))
            emitter.declare(pointer, address, code("{} ? {} : {}", is_whole, there, copied))
        array, layout = self.arrays[0], self.layouts[0]
        sides = [(array.line_step, layout.row_stride), (array.k_step, layout.k_stride)]
        if len(self.steps) == 1:
            del sides[1 if layout.k_stride == 1 else 0]
        for name, (step, fixed) in zip(self.steps, sides, strict=True):
            emitter.constant("Index", name, code("{} ? {} : {}", is_whole, emitter.spell(step), fixed))


@dataclass(frozen=True)
class LateRows:
    """Panels of A that are widened one after the other, if there is one panel of B and A exceeds a cache.

    Each is widened just before it is multiplied, in the place of the first one: this stays in the first-level
    cache.

    Args:
        copies: the copies that fill them.
        unit: rows of a panel.
        when: the variable of the condition; if it is false, all panels are filled before.
        slot: the variable of the index of the place of a panel.
    """

    copies: Sequence[Copy]
    unit: int
    when: Code
    slot: Sym

    @staticmethod
    def of(emitter: CpuEmitter, op: Multiply, m: PanelExtent, n: PanelExtent, depth: Code) -> LateRows | None:
        """Declare the variable `when` and return the panels; None if A does not hold halves."""
        atom = op.products[0].mma.atom
        are_halves = all(copy.source.tensor.dtype in HALVES for copy in op.rows)
        are_plain = all(isinstance(copy, Copy) for copy in op.packing)
        if not op.rows or not are_halves or not are_plain or adds_along_k(atom) or adds_groups(atom):
            return None
        extent = op.rows[0].target.tensor.shape[0]
        if not isinstance(extent, int) or extent <= m.unit:
            return None
        rows = Code(str(extent)) if m.needed is None else m.needed
        made = LateRows(
            op.rows, m.unit, emitter.local("in_turn"), Sym(emitter.local("slot"), 0, extent // m.unit)
        )
        is_large = code(
            "{} > {} && {} * {} > {}", rows, MOST_FEW, rows, depth, FIRST_CACHE_BYTES // f32.bytes
        )
        emitter.constant("bool", made.when, code("{} == 1 && {}", n.count, is_large))
        return made

    def turn(self, emitter: CpuEmitter, panel: Sym) -> None:
        """Fill a panel, and declare its place."""
        with emitter.branch(self.when):
            for copy in paired(self.copies, emitter.kernel):
                assert isinstance(copy, Copy | Twins)
                emit_panel(emitter, copy, panel, self.unit, 0)
        emitter.constant("Index", named(self.slot.name), code("{} ? 0 : {}", self.when, named(panel.name)))


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
        """Return the array; None if it holds neither sums nor halves, or rows are not contiguous."""
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
        if kind.view.shape[0] in range(MOST_FEW + 1):  # a function for few rows adds them up in the fragment
            return None
        row, column = kind.view.coords
        row_step = slope(kind.view.offset, row)
        if slope(kind.view.offset, column) != 1 or row_step is None:
            return None
        start = expand(substitute(kind.view.offset, {row: 0, column: 0}))
        rows = needed.rows if needed.rows is not None else kind.view.shape[0]
        # A few sums are rounded once, after their last product.
        steps = store.is_short if kind.dtype == sums else store.is_once
        when = all_of(steps, less(MOST_FEW, rows))
        return ResultArray(emitter.name(copy.target.buffer), kind.dtype, start, row_step, when)

    def address(self, emitter: CpuEmitter, row: Int, column: Int) -> Code:
        """Return the address of an element."""
        start = add(self.start, mul(row, self.row_step), column)
        return code("{} + {}", self.name, emitter.spell(expand(start)))


@dataclass(frozen=True)
class StoredPlace:
    """The place where one call of a micro-kernel stores its sums: in the result, or in the fragment.

    Args:
        result: the array of the result.
        unit: columns of a micro-tile in the fragment.
        in_result: the truth value in the text: sums are stored in the result.
        address: the variable of the address; if sums are rounded to halves, always that in the fragment.
        halves: the variable of the address of halves, or of null; None if sums are not rounded.
        masks: whether parts of vectors are stored in the fragment too.
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
    masks: bool

    @staticmethod
    def of(emitter: CpuEmitter, result: ResultArray, unit: int, *, masks: bool) -> StoredPlace:
        """Return a place with new names, and declare the values that are the same for all calls."""
        in_result, address, pitch, high, wide = (
            emitter.local(name) for name in ("in_result", "sums", "pitch", "high", "wide")
        )
        halves = emitter.local("halves") if result.dtype in HALVES else None
        emitter.constant("bool", in_result, emitter.spell_cond(result.when))
        step = code("{} ? {} : {}", in_result, emitter.spell(result.row_step), unit)
        emitter.constant("Index", pitch, step)
        return StoredPlace(result, unit, in_result, address, pitch, high, wide, halves, masks)

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
                left = rest if one is n and self.masks else code("{} ? {} : {}", self.in_result, rest, left)
            emitter.constant("Index", name, left)


def emit_store(emitter: CpuEmitter, op: StoreSums) -> None:
    """Copy sums from their fragment to the array of the result, unless micro-kernels stored them there."""
    found = ResultArray.of(emitter, op)
    if found is None:
        emit_copy(emitter, op.copy)
        return
    with emitter.branch(code("!({})", emitter.spell_cond(found.when))):
        emit_copy(emitter, op.copy)
