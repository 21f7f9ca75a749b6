"""Needs of epilogues: buffers and barriers in shared memory, threads, and the use of bulk copies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.arch import BULK
from tilewright.dataflow.nodes import Reduce, Store
from tilewright.dtypes import DType
from tilewright.ir.mma import TiledMma
from tilewright.lang.specs import TensorSpec
from tilewright.layout.limits import divisor_at_most
from tilewright.schedule.bulk_views import against_tiles
from tilewright.schedule.epilogue.buffers import panel_tiles, row_tiles
from tilewright.schedule.epilogue.direct import bulk_columns, own_slices, staged_columns
from tilewright.schedule.form import Form, reduced_in_parts
from tilewright.schedule.needs import PARTIAL, ROW_BYTES, Buffer, Needs, barriers, tickets
from tilewright.schedule.schedule import Schedule
from tilewright.threads.registers import reduction, thread_digits


@dataclass(frozen=True)
class Leaving:
    """How the results of a schedule leave.

    Args:
        schedule: the schedule.
        form: what is computed.
        specs: the classes of the arrays.
        mma: of one group.
        lanes: threads of a warp that multiplies.
        warp: threads of a warp of the machine.
    """

    schedule: Schedule
    form: Form
    specs: Mapping[str, TensorSpec]
    mma: TiledMma
    lanes: int
    warp: int

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
        """Columns of the slices in which a staged epilogue goes through a tile."""
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

    @property
    def storing_warps(self) -> int:
        """Warps that store what others have computed."""
        return self.schedule.groups if self.is_handed_over else 0

    @cached_property
    def needs(self) -> Needs:
        """Needs of the epilogue."""
        buffers: list[Buffer] = [*self._scratch()]
        handed_over: tuple[Buffer, ...] = ()
        if self.schedule.epilogue != "direct":
            shape = self.mma.tile[0], self.columns
            for store in self.blocks:
                along_rows, dtype = self._along_rows(store), store.operand.dtype
                swizzled = self.has_roles and shape[not along_rows] * dtype.bytes % ROW_BYTES == 0
                tiles = panel_tiles if swizzled else row_tiles
                name, each = f"s{store.operand.name}", (self.groups, self.count)
                buffers.append(tiles(name, dtype, shape, *each, along_rows=along_rows))
            if self.is_handed_over:
                handed_over = tuple(barriers(name, self.groups * self.count) for name in ("free", "written"))
        # Where registers are given away, the role that copies has warps to spare.
        storing = 0 if self.schedule.registers else self.storing_warps * self.warp
        # Threads learn who comes last, for each dimension that is reduced along across tiles.
        nodes = reduced_in_parts(self.form) if self.schedule.across else ()
        dims = {node.argument.axes[node.axis] for node in nodes}
        return Needs(tuple(buffers), handed_over, (tickets(self.groups),) * len(dims), threads=storing)

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
        """Buffers for reductions of several warps, one for each shape and dtype."""
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
                yield Buffer("partial", PARTIAL, (self.groups, *kept), kind)
