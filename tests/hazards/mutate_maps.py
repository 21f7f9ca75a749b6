"""Mutants of maps: orders of dimensions, distributions, tiled MMAs, strides of shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from tilewright.ir import ops
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.fragment_ops import Coordinates, ReduceOp
from tilewright.ir.mma import TiledMma
from tilewright.ir.op import Op
from tilewright.symbolic.expr import add, mul
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import Merge, Permute, Transform, Unmerge
from tilewright.views.view import View

from .mutate_async import Change, changed, remade


def map_changes(op: Op) -> Iterator[tuple[str, Change]]:
    """Yield every small change of an operation's map from coordinates to elements."""
    match op:
        case ops.Reshape():
            for what, transform in _transforms(op.transform):
                yield what, lambda op, transform=transform: (remade(op, transform=transform),)
        case ops.PartitionOp() | ops.FragmentOp():
            for what, spread in _spreads(op.distribution):
                yield f"map with {what}", lambda op, spread=spread: (remade(op, distribution=spread),)
        case ops.Shared():
            for what, view in _strides(op.view):
                yield what, lambda op, view=view: (remade(op, view=view),)
        case ops.Mma() | MmaAsync():
            yield "A and B exchanged", lambda op: (replace(op, a=op.b, b=op.a),)
            for what, mma in _tiled(op.mma):
                yield what, changed(mma=mma)
        case ops.Redistribute():
            for dim, extent in enumerate(op.distribution.shape):
                for by in (extent, -extent):
                    start = tuple(add(at, by) if d == dim else at for d, at in enumerate(op.start))
                    yield f"start {dim} {by:+}", lambda op, start=start: (remade(op, start=start),)
        case Coordinates() | ReduceOp():
            for dim in range(op.result.fragment.distribution.rank):
                if dim != op.dim:
                    yield f"dimension {dim}", lambda op, dim=dim: (remade(op, dim=dim),)
        case _:
            return


def _transforms(transform: Transform) -> Iterator[tuple[str, Transform]]:
    match transform:
        case Permute():
            for order in _neighbours_exchanged(transform.order):
                yield f"order {order}", Permute(order)
        case Unmerge():
            for lengths in _neighbours_exchanged(transform.lengths):
                yield f"lengths {lengths}", replace(transform, lengths=lengths)
            yield from _of_other_dimensions(transform)
        case Merge():
            yield from _of_other_dimensions(transform)
            for count in (transform.count - 1, transform.count + 1):
                yield f"{count} dimensions", replace(transform, count=count)
        case _:
            return


def _of_other_dimensions(transform: Unmerge | Merge) -> Iterator[tuple[str, Transform]]:
    for dim in (transform.dim - 1, transform.dim + 1):
        if dim >= 0:
            yield f"dimension {dim}", replace(transform, dim=dim)


def _neighbours_exchanged(items: tuple) -> Iterator[tuple]:
    for at, (one, other) in enumerate(pairwise(items)):
        if one != other:
            yield (*items[:at], other, one, *items[at + 2 :])


def _spreads(spread: Distribution) -> Iterator[tuple[str, Distribution]]:
    """Yield distributions whose threads or values have another step."""
    for part, modes in (("threads", spread.threads), ("values", spread.values)):
        moving = tuple(mode for mode in modes if mode.extent > 1)
        for number, order in enumerate(_neighbours_exchanged(moving)):
            yield f"{part} {number} and {number + 1} exchanged", replace(spread, **{part: order})
        for number, mode in enumerate(moving):
            for what, other in _modes(mode, len(spread.shape)):
                yield (
                    f"{part} {number} {what}",
                    replace(spread, **{part: (*moving[:number], other, *moving[number + 1 :])}),
                )


def _modes(mode: Mode, rank: int) -> Iterator[tuple[str, Mode]]:
    if mode.dim is None:
        yield "apart", Mode(mode.extent, 0, 1)
        return
    yield "as copies", Mode(mode.extent, None, 0)
    yield "twice as far", Mode(mode.extent, mode.dim, 2 * mode.step)
    if rank > 1:
        yield "along another dimension", Mode(mode.extent, (mode.dim + 1) % rank, mode.step)


def _strides(view: View) -> Iterator[tuple[str, View]]:
    """Yield layouts with one longer stride, which needs more memory, or one shorter stride."""
    for dim, (extent, index) in enumerate(zip(view.shape, view.coords, strict=True)):
        if extent != 1:
            for by in (1, -1):
                elems = add(view.elems, mul(add(extent, -1), max(by, 0)))
                yield (
                    f"stride {dim} {by:+}",
                    View(view.shape, add(view.offset, mul(index, by)), elems, view.valid),
                )


def _tiled(mma: TiledMma) -> Iterator[tuple[str, TiledMma]]:
    for what, pair in (("warps", mma.warps), ("repeats", mma.repeats)):
        for other in _neighbours_exchanged(pair):
            yield f"{what} {other}", replace(mma, **{what: other})
