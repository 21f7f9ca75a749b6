"""Inner products: sums of products that are an operand of another product, as ``X A`` in ``X W + (X A) B``.

The columns of an inner product fit one tile.  The same warps compute it in the same loop as the product with
the same operand, in separate accumulators.  After this loop the warps compute the operand from the sums and
write it to shared memory.  A short loop along its columns multiplies it from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Any

from tilewright.ir.mma import MmaAtom, TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.schedule.factors import InnerProduct
from tilewright.schedule.form import Form
from tilewright.schedule.needs import ACCESS_BYTES, INNER, Buffer
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import PlainStages, SwizzledStages, plain_tiles, swizzled_tiles, zero_after
from tilewright.targets.atoms import fma, wgmma

WGMMA_COLUMNS = 16
"""The columns of an asynchronous atom are a multiple of this for all dtypes."""


MOST_INNER = 256
"""Most columns of an inner product without a swizzle; with one, the depth of a tile is the limit."""


def inner_unit(schedule: Schedule) -> int:
    """The unit of the columns of inner products: whole atoms, which are also steps of the loop along them."""
    _, columns, depth = schedule.atom.shape
    if schedule.atom.asynchronous:
        columns = WGMMA_COLUMNS
    elif _is_narrowed(schedule.atom):
        columns //= schedule.atom.b.size_values
    return lcm(columns * schedule.warps[1], depth)


def _is_narrowed(atom: MmaAtom) -> bool:
    """Whether a lane may have fewer columns of an inner product than of the result, as with ``fma``."""
    return atom.instruction == "fma" and atom.lanes > 1


def inner_mma(schedule: Schedule) -> TiledMma:
    """The tiled MMA of the inner products of one group: its rows, and `Schedule.width` columns."""
    atom, rows = schedule.atom, schedule.tile[0] // schedule.cooperating
    each = schedule.width // schedule.warps[1]
    if atom.asynchronous:
        atom = wgmma(atom.a_dtype, each, atom.b_dtype, atom.c_dtype)
    elif _is_narrowed(atom):
        own_rows, own_columns = atom.a.size_values, atom.b.size_values
        lanes = atom.shape[0] // own_rows, atom.shape[1] // own_columns
        own = own_rows, gcd(own_columns, each // lanes[1])
        atom = fma(atom.a_dtype, atom.c_dtype, lanes, own, paired=atom.name.endswith(".paired"))
    turns = schedule.interleaved and not atom.asynchronous
    return TiledMma(atom, schedule.warps, tile=(rows, schedule.width), interleaved=turns)


def is_swizzled(schedule: Schedule) -> bool:
    """Whether operands have rows of 128 bytes under the swizzle."""
    return schedule.by_bulk or schedule.atom.asynchronous


def schedule_of(loop: Form, schedule: Schedule) -> Schedule:
    """The schedule of one loop.

    A loop along the columns of an inner product has one step.  Bulk copies load its tile into the same ring
    ahead of time.  Without them threads copy the tile, and wait at a barrier.

    Args:
        loop: the form of the loop.
        schedule: the schedule of the kernel.
    """
    if schedule.by_bulk or not loop.reads_inner:
        return schedule
    depth = schedule.block_k if is_swizzled(schedule) else schedule.width
    plain: dict[str, Any] = {"k1": (0, 0), "extra_rows": (0, 0), "dealt": ((0, 0), (0, 0))}
    tile = (*schedule.tile[:2], depth)
    return replace(schedule, tile=tile, staging="direct", stages=1, bypass="", turned="", unroll=1, **plain)


def inner_buffers(form: Form, schedule: Schedule) -> list[Buffer]:
    """The tiles of inner products in shared memory, one for each group of warps with rows of its own."""
    found, rows = [], schedule.mma.tile[0]
    for one in form.inner:
        name, dtype = f"s{one.sum.variable or 'inner'}", one.view.dtype
        if is_swizzled(schedule):
            groups = schedule.groups if schedule.stores_by_groups else 0
            made = swizzled_tiles(name, dtype, rows, schedule.block_k, 1, groups, along_rows=False)
        else:
            gap = ACCESS_BYTES // dtype.bytes
            made = plain_tiles(name, dtype, rows, schedule.width, 1, along_rows=False, gap=gap)
        found.append(replace(made, kind=INNER))
    return found


@dataclass(frozen=True)
class InnerPlan:
    """How an inner product is added up, and where its operand lies.

    Args:
        node: the product.
        mma: the tiled MMA of a group.
        stages: the operands of all groups in shared memory.
    """

    node: InnerProduct
    mma: TiledMma
    stages: PlainStages | SwizzledStages

    def tile(self, group: Index) -> Tensor:
        """The operand of a group, (rows, depth)."""
        if isinstance(self.stages, SwizzledStages):
            return self.stages.operand(0, group)
        found: Tensor = self.stages.shared[0]
        return found

    def clear(self, group: Index) -> None:
        """Zero the columns of a group's operand after the last column of its sums."""
        tile = self.tile(group)
        if tile.shape[1] > self.mma.tile[1]:
            zero_after(tile, self.mma.tile[1], self.mma.threads)

    def write(self, made: Fragment, columns: Index, group: Index) -> None:
        """Write the operand of a group to shared memory; columns past the end are 0.

        Args:
            made: the operand, in the map of its sums.
            columns: the extent of its columns.
            group: the number of the group.
        """
        made = elementwise("select", coordinates(made, 1) < columns, made, 0)
        tw.copy(made, self.tile(group)[:, : made.shape[1]])


def inner_plans(form: Form, schedule: Schedule) -> tuple[InnerPlan, ...]:
    """Allocate the operands of a form's inner products; return the plan of each product."""
    found, rows = list[InnerPlan](), schedule.mma.tile[0]
    groups = schedule.groups if schedule.stores_by_groups else 0
    for one, buffer in zip(form.inner, inner_buffers(form, schedule), strict=True):
        stages: PlainStages | SwizzledStages
        if buffer.is_swizzled:
            stages = SwizzledStages(buffer, rows, schedule.block_k, groups, along_rows=False)
        else:
            stages = PlainStages(buffer)
        found.append(InnerPlan(one, inner_mma(schedule), stages))
    return tuple(found)
