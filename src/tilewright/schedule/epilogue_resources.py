"""What epilogues take of shared memory, in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.arch import BULK
from tilewright.dataflow.nodes import Reduce, Store
from tilewright.dtypes import DType
from tilewright.ir.kernel import BARRIER_BYTES
from tilewright.ir.mma import TiledMma
from tilewright.lang.specs import TensorSpec
from tilewright.layout.limits import divisor_at_most
from tilewright.schedule.bulk_views import against_tiles
from tilewright.schedule.crossing import reduced_in_parts
from tilewright.schedule.epilogue.buffers import spare
from tilewright.schedule.epilogue.direct import bulk_columns, own_slices, staged_columns
from tilewright.schedule.form import Form
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES
from tilewright.threads.registers import reduction, thread_digits

TICKET_BYTES = 4
"""What threads learn from each other of the number of a part."""

RING, PARTIAL, RESULT, BARRIERS, TICKET, SUMS = "ring", "partial", "result", "barriers", "ticket", "sums"
"""What shared memory holds: tiles of operands, parts of reductions, slices of results, barriers, a number,
the sums of a part of K."""


@dataclass(frozen=True)
class Buffer:
    """A tensor in shared memory.

    Args:
        name: what it is called.
        kind: `RING`, `PARTIAL`, `RESULT`, `BARRIERS`, `TICKET` or `SUMS`.
        bytes: how large it is.
        is_swizzled: whether it lies in rows of 128 bytes under the swizzle.
    """

    name: str
    kind: str
    bytes: int
    is_swizzled: bool = False

    @property
    def align(self) -> int:
        """What its address is a multiple of: rows of 128 bytes under the swizzle repeat after 8."""
        if self.kind in (BARRIERS, TICKET):
            return BARRIER_BYTES if self.kind == BARRIERS else 16
        return 8 * ROW_BYTES if self.is_swizzled else 128


@dataclass(frozen=True)
class Leaving:
    """How the results of a schedule leave.

    Args:
        schedule: the schedule.
        form: what is computed.
        specs: the classes of the arrays.
        mma: of one group.
        lanes: threads of a warp.
    """

    schedule: Schedule
    form: Form
    specs: Mapping[str, TensorSpec]
    mma: TiledMma
    lanes: int

    @property
    def has_roles(self) -> bool:
        """Whether groups of warps store their own tiles."""
        return self.schedule.stores_by_groups

    @property
    def groups(self) -> int:
        """Groups of warps, each with memory of its own."""
        return self.schedule.groups if self.has_roles else self.schedule.cooperating

    @property
    def blocks(self) -> list[Store]:
        """The results that vary along rows and columns; others are stored from registers."""
        return [store for store in self.form.stores if {self.form.m, self.form.n} <= {*store.at}]

    @property
    def columns(self) -> int:
        """Of the slices in which a staged epilogue goes through a tile."""
        if not self.has_roles:
            return staged_columns(self.form, self.schedule, self.mma.c())
        results = [(store.operand.dtype, self._along_rows(store)) for store in self.blocks]
        return bulk_columns(self.schedule, self.mma.c(), results)

    @property
    def count(self) -> int:
        """Buffers of each group for each result."""
        slices, asked = self.mma.tile[1] // self.columns, self.schedule.buffers
        if self.schedule.epilogue == "overlapped":
            return divisor_at_most(slices, asked)
        return min(asked, own_slices(self.form, self.schedule, slices))

    @property
    def is_handed_over(self) -> bool:
        """Whether warps of their own store, by bulk copies, what others have computed."""
        overlapped = self.schedule.epilogue == "overlapped" and self.has_roles and bool(self.blocks)
        return overlapped and not any(reason for store in self.blocks for reason in self.against_bulk(store))

    def buffers(self) -> Iterator[Buffer]:
        """Everything in shared memory, in order."""
        yield from self._scratch()
        if self.schedule.epilogue == "direct":
            return
        shape = (self.mma.tile[0], self.columns)
        for store in self.blocks:
            size = store.operand.dtype.bytes
            swizzled = self.has_roles and shape[not self._along_rows(store)] * size % ROW_BYTES == 0
            along_rows = self._along_rows(store)
            behind = 0 if swizzled else spare(store.operand.dtype, along_rows=along_rows)
            elements = self.groups * self.count * (math.prod(shape) + behind * shape[along_rows]) - behind
            yield Buffer(f"s{store.operand.name}", RESULT, elements * size, swizzled)
        if self.is_handed_over:
            for name in ("free", "written"):
                yield Buffer(name, BARRIERS, self.groups * self.count * BARRIER_BYTES)

    def tickets(self) -> Iterator[Buffer]:
        """What threads learn of who comes last, for each dimension that is reduced along across tiles."""
        nodes = reduced_in_parts(self.form) if self.schedule.across else ()
        for _ in {node.argument.axes[node.axis] for node in nodes}:
            yield Buffer("ticket", TICKET, TICKET_BYTES * self.groups)

    def _along_rows(self, store: Store) -> bool:
        unit = self.form.spec(store.operand, self.specs).unit_dim
        return unit is not None and store.at[unit] == self.form.m

    def against_bulk(self, store: Store) -> Iterator[str]:
        """Why bulk copies do not store a result slice by slice."""
        spec, (rows, columns) = self.form.spec(store.operand, self.specs), (self.mma.tile[0], self.columns)
        name, width = store.operand.name, ROW_BYTES // spec.dtype.bytes
        inner, outer = (rows, columns) if self._along_rows(store) else (columns, rows)
        spans = (self.form.n, self.form.m) if self._along_rows(store) else (self.form.m, self.form.n)
        panel = (outer, width)
        for text, _ in against_tiles(
            self.form, store.operand, store.at, spans, self.specs, panel, stored=True
        ):
            yield text
        if self.form.lists and self.schedule.epilogue != "staged":
            yield f"tensor maps of the arrays of {name} are seen by those who compute, and others would store"
        if (cut := self.form.flow.grouped) is not None:
            yield f"groups of {cut.name} end anywhere in {name}, and bulk copies would store whole boxes"
        if spec.unit_dim is not None and store.at[spec.unit_dim] not in (self.form.m, self.form.n):
            yield f"{name} is contiguous along {store.at[spec.unit_dim].name}"
        if inner % width:
            yield f"slices of {inner} {spec.dtype} are no whole number of rows of {ROW_BYTES} bytes"
        if outer > BULK.extent:
            yield f"slices of {outer} rows; bulk copies store at most {BULK.extent}"

    def _scratch(self) -> Iterator[Buffer]:
        """What reductions of several warps pass through shared memory, once for each shape and dtype."""
        spread, known = self.mma.c(), set[tuple[tuple[int, ...], DType]]()
        for node in self.form.flow.walk():
            if not isinstance(node, Reduce):
                continue
            axes = node.argument.axes
            dim = 0 if axes[node.axis] == self.form.m else 1
            spans = (self.form.m, self.form.n)
            shape = tuple(e if span in axes else 1 for span, e in zip(spans, spread.shape, strict=True))
            held = spread if shape == spread.shape else spread.projected(shape)
            if reduction(held, dim).span <= self.lanes:
                continue
            count = math.prod(extent for extent, _ in thread_digits(held, dim, self.lanes))
            kept = tuple(count if d == dim else extent for d, extent in enumerate(held.shape))
            kind = node.dtype.computed if node.dtype.is_float else node.dtype
            if (kept, kind) not in known:
                known.add((kept, kind))
                yield Buffer("partial", PARTIAL, self.groups * math.prod(kept) * kind.bytes)
