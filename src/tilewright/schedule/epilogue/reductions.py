"""Reductions of a tile of the result along its rows or columns."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.dataflow.nodes import Reduce, Span
from tilewright.dtypes import DType, limits
from tilewright.errors import Location, TraceError
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.scalars import Index, unwrap, unwrap_condition
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates, reduce_max, reduce_min, reduce_sum
from tilewright.lang.tracer import current
from tilewright.schedule.form import Form
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import Work
from tilewright.symbolic.nodes import Constant
from tilewright.symbolic.rebuilding import Guard
from tilewright.threads.distribution import Distribution
from tilewright.threads.registers import reduction, thread_digits

REDUCE = {"sum": reduce_sum, "max": reduce_max, "min": reduce_min}
"""The functions that reduce a tile in registers."""


class Reductions:
    """Reductions of tiles, with their shared memory.

    A reduction runs over the whole extent of the result.  Unless the schedule reduces across tiles, one tile
    must cover the extent; the launch checks this.  Elements of the tile past the edge do not count.

    Args:
        form: the form of the computation.
        schedule: how it is computed.
        extents: rows and columns of the result.
    """

    def __init__(self, form: Form, schedule: Schedule, extents: tuple[Index, Index]) -> None:
        self.form, self.schedule, self.extents = form, schedule, extents
        self._scratch: dict[tuple[tuple[int, ...], DType], Tensor] = {}
        for node, held, dim in reduced_tiles(form, schedule.mma):
            self._scratch_for(held, dim, wide(node.dtype))
            if schedule.across:
                continue
            extent, length = extents[dim], schedule.mma.tile[dim]
            span: Span = (form.m, form.n)[dim]
            if dim == 0 and schedule.roles == "cooperative" and schedule.groups > 1:
                raise TraceError(
                    f"{node.combine} along {span.name}: cooperative groups share the rows of a tile, so no "
                    "group holds a whole column",
                    node.location,
                    'roles="ping-pong", or groups=1',
                )
            message = (
                f"{node.combine} along {span.name}, whose extent is {{}}, needs a tile of that extent, and "
                f"the tile of this schedule has {length}; nearest legal choice: a larger tile"
            )
            known = extent <= length if isinstance(extent, int) else unwrap_condition(extent <= length)
            if known is False:
                raise TraceError(message.format(extent), node.location)
            if known is not True and known != Constant(True):
                current().guards.append(Guard(known, message, (unwrap(extent),)))

    def reduce(
        self, combine: str, tile: Fragment, dim: int, work: Work, at: Index, location: Location | None
    ) -> Fragment:
        """Reduce a tile by ``combine`` over its rows (dim 0) or columns (1), without those past the edge."""
        if tile.shape[dim] == 1:
            text = (
                "the value is constant along this dimension, so it cannot be reduced along it; nearest "
                "legal choice: "
            )
            raise TraceError(f"{text}multiply it by the extent, or use the value itself", location)
        length = tile.shape[dim]
        extent = self.extents[dim] - (at if self.schedule.across else 0) * length
        if not (isinstance(extent, int) and extent == length):
            # Elements past the edge become the neutral element.
            inside = coordinates(tile, dim) < extent
            tile = elementwise("select", inside, tile, neutral(combine, tile.dtype))
        return self.of_threads(combine, tile, dim, work)

    def of_threads(self, combine: str, tile: Fragment, dim: int, work: Work) -> Fragment:
        """Reduce all elements of a tile by ``combine`` over its rows (dim 0) or columns (1)."""
        scratch = self._scratch_for(tile.distribution, dim, wide(tile.dtype))
        if scratch is None:
            return REDUCE[combine](tile, dim)
        roles = self.schedule.roles != "none"
        if roles:
            scratch = scratch[work.group]
        barrier = 1 + work.group if roles else None
        return REDUCE[combine](tile, dim, scratch=scratch, barrier=barrier)

    def _scratch_for(self, held: Distribution, dim: int, kind: DType) -> Tensor | None:
        """Shared memory to combine partial results of warps; None if no reduction crosses warps."""
        shape = scratch_shape(held, dim, current().lanes)
        if shape is None:
            return None
        if (shape, kind) not in self._scratch:
            groups = () if self.schedule.roles == "none" else (self.schedule.groups,)
            self._scratch[shape, kind] = tw.shared((*groups, *shape), kind, name="partial")
        return self._scratch[shape, kind]


def reduced_tiles(form: Form, mma: TiledMma) -> Iterator[tuple[Reduce, Distribution, int]]:
    """The reductions of a flow, each with the map of the tile that it reduces, and the dimension.

    Args:
        form: the form of the computation.
        mma: the tiled MMA of a tile of the result.
    """
    for node in form.reductions:
        axes, spread = node.argument.axes, mma.c()
        pairs = zip((form.m, form.n), spread.shape, strict=True)
        shape = tuple(extent if span in axes else 1 for span, extent in pairs)
        held = spread if shape == spread.shape else spread.projected(shape)
        yield node, held, 0 if axes[node.axis] == form.m else 1


def scratch_shape(held: Distribution, dim: int, lanes: int) -> tuple[int, ...] | None:
    """Shape of the shared memory to combine partial results of warps; None if no reduction crosses warps.

    Args:
        held: the map of the tile.
        dim: the dimension along which it is reduced.
        lanes: threads of a warp.
    """
    if reduction(held, dim).span <= lanes:
        return None
    count = math.prod(extent for extent, _ in thread_digits(held, dim, lanes))
    return tuple(count if d == dim else extent for d, extent in enumerate(held.shape))


def neutral(combine: str, dtype: DType) -> float | int:
    """The neutral element of a reduction.

    Example:
        >>> from tilewright.dtypes import f32, i8
        >>> neutral("sum", f32), neutral("max", f32), neutral("min", i8)
        (0, -inf, 127)
    """
    if combine == "sum":
        return 0
    if dtype.is_float:
        return -math.inf if combine == "max" else math.inf
    least, most = limits(dtype)
    return least if combine == "max" else most


def wide(dtype: DType) -> DType:
    """The dtype of partial results of several warps or tiles.

    Args:
        dtype: dtype of the reduced elements.
    """
    return dtype.computed if dtype.is_float else dtype
