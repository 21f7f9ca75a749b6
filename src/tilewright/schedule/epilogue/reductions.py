"""Reductions of the result along its rows or columns, within a tile: one that covers all, or makes a part."""

from __future__ import annotations

import math

from tilewright.dataflow.nodes import Reduce, Span
from tilewright.dtypes import DType, limits
from tilewright.errors import Location, TraceError
from tilewright.lang import operations as tw
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.scalars import Index, unwrap, unwrap_condition
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates, reduce_max, reduce_min, reduce_sum
from tilewright.lang.tracer import current
from tilewright.schedule.form import Form
from tilewright.schedule.partition import Work
from tilewright.schedule.schedule import Schedule
from tilewright.symbolic.nodes import Constant
from tilewright.symbolic.rebuilding import Guard
from tilewright.threads.distribution import Distribution
from tilewright.threads.registers import reduction, thread_digits

REDUCE = {"sum": reduce_sum, "max": reduce_max, "min": reduce_min}
"""The functions that reduce a tile in registers."""


class Reductions:
    """How tiles of the result are reduced.

    A reduction's meaning is over the whole extent.  A tile must therefore cover it, which is asked of the
    extents before the kernel starts, unless its schedule makes reductions of those of tiles; and elements of
    the tile past the edge must not count.

    Args:
        form: what is computed.
        schedule: how.
        extents: of the rows and columns of the result.
    """

    def __init__(self, form: Form, schedule: Schedule, extents: tuple[Index, Index]) -> None:
        self.form, self.schedule, self.extents = form, schedule, extents
        self._scratch: dict[tuple[tuple[int, ...], DType], Tensor] = {}
        spread = schedule.mma.c()
        for node in form.flow.walk():
            if isinstance(node, Reduce):
                dim = 0 if node.argument.axes[node.axis] == form.m else 1
                if not schedule.across:
                    self._cover(node, dim)
                shape = tuple(
                    extent if span in node.argument.axes else 1
                    for span, extent in zip((form.m, form.n), spread.shape, strict=True)
                )
                held = spread if shape == spread.shape else spread.projected(shape)
                self._scratch_for(held, dim, wide(node.dtype))

    def reduce(
        self, combine: str, tile: Fragment, dim: int, work: Work, at: Index, location: Location | None
    ) -> Fragment:
        """``combine`` over the rows (dim 0) or columns (1) that exist of the tile ``at`` a place."""
        if tile.shape[dim] == 1:
            text = "what does not vary along a dimension is not reduced along it; nearest legal choice: "
            raise TraceError(f"{text}multiply by its extent, or leave it as it is", location)
        inside = self._inside(combine, tile, dim, at if self.schedule.across else 0)
        return self.of_threads(combine, inside, dim, work)

    def of_threads(self, combine: str, tile: Fragment, dim: int, work: Work) -> Fragment:
        """``combine`` over the rows (dim 0) or columns (1) of a tile."""
        kind = wide(tile.dtype)
        scratch = self._scratch_for(tile.distribution, dim, kind)
        if scratch is None:
            return REDUCE[combine](tile, dim)
        roles = self.schedule.roles != "none"
        if roles:
            scratch = scratch[work.group]
        barrier = 1 + work.group if roles else None
        return REDUCE[combine](tile, dim, scratch=scratch, barrier=barrier)

    def _cover(self, node: Reduce, dim: int) -> None:
        """One tile must hold all that is reduced."""
        extent, length = self.extents[dim], self.schedule.mma.tile[dim]
        span: Span = (self.form.m, self.form.n)[dim]
        if dim == 0 and self.schedule.roles == "cooperative" and self.schedule.groups > 1:
            raise TraceError(
                f"{node.combine} along {span.name}: groups of warps that share a tile along its rows hold no "
                'column as a whole; nearest legal choice: roles="ping-pong", or groups=1',
                node.location,
            )
        message = (
            f"{node.combine} along {span.name}, whose extent is {{}}, needs a tile that covers it, and this "
            f"schedule's covers {length}; nearest legal choice: a larger tile"
        )
        if isinstance(extent, int):
            if extent > length:
                raise TraceError(message.format(extent), node.location)
            return
        known = unwrap_condition(extent <= length)
        if known != Constant(True):
            current().guards.append(Guard(known, message, (unwrap(extent),)))

    def _inside(self, combine: str, tile: Fragment, dim: int, at: Index) -> Fragment:
        """The tile, with what changes no result in the place of elements past the edge."""
        length = tile.shape[dim]
        extent = self.extents[dim] - at * length
        if isinstance(extent, int) and extent == length:
            return tile
        inside = coordinates(tile, dim) < extent
        made: Fragment = elementwise("select", inside, tile, neutral(combine, tile.dtype))
        return made

    def _scratch_for(self, held: Distribution, dim: int, kind: DType) -> Tensor | None:
        """Shared memory for what several warps hold parts of; None where each warp holds all of its own."""
        lanes = current().lanes
        if reduction(held, dim).span <= lanes:
            return None
        count = math.prod(extent for extent, _ in thread_digits(held, dim, lanes))
        shape = tuple(count if d == dim else extent for d, extent in enumerate(held.shape))
        if (shape, kind) not in self._scratch:
            groups = () if self.schedule.roles == "none" else (self.schedule.groups,)
            self._scratch[shape, kind] = tw.shared((*groups, *shape), kind, name="partial")
        return self._scratch[shape, kind]


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
    """The dtype in which partial results, of several warps or tiles, are kept.

    Args:
        dtype: of what is reduced.
    """
    return dtype.computed if dtype.is_float else dtype
