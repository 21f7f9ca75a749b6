"""The recorder of a flow: its interface to tiles, tensors and the tracer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from tilewright.dataflow.nodes import (
    PRECISIONS,
    Flow,
    Integer,
    Node,
    NumberParam,
    Operand,
    Rearrange,
    Reduce,
    Sum,
)
from tilewright.dtypes import DType, f32, i64
from tilewright.errors import TraceError
from tilewright.ir.async_ops import PriorGridWait
from tilewright.ir.kernel import Param, ScalarParam, TensorParam
from tilewright.ir.ops import Elementwise, Op, Reshape
from tilewright.lang.dataflow import folds, indexing
from tilewright.lang.dataflow.recorder import Recorder, product_axes, scale_axes, sum_dtype
from tilewright.lang.dataflow.tiles import SpanLoop, Tile, no_tile_error, tile_name
from tilewright.lang.source import here
from tilewright.lang.tracer import located
from tilewright.symbolic.nodes import Sym


class FlowRecorder(Recorder):
    """Records one dataflow kernel."""

    part, store = indexing.part, indexing.store
    carry, accumulate, change = folds.carry, folds.accumulate, folds.change

    # ---------------------------------------------------------------- tiles

    def product(
        self, left: Any, right: Any, precision: str = "exact", scales: tuple[Any, Any] = (None, None)
    ) -> Tile:
        """``left @ right``, a sum along a span of `steps`."""
        for value in (left, right):
            if not isinstance(value, Tile):
                raise no_tile_error(value)
        a, b = left.node, right.node
        span, axes = product_axes(a, b)
        with located():
            kind = sum_dtype(a.dtype, b.dtype)
        if precision not in PRECISIONS or (precision != "exact" and kind != f32):
            raise TraceError(
                f"precision={precision!r} of a product that is summed in {kind}; nearest legal choice: "
                f"{' or '.join(map(repr, PRECISIONS if kind == f32 else PRECISIONS[:1]))}",
                here(),
            )
        factors = [self._scale(*pair, kind) for pair in zip(scales, (left, right), strict=True)]
        made = self.make(Sum, kind, axes, span, a, b, precision, *factors)
        return self.tile(made, left, right, *scales)

    def _scale(self, scale: Any, of: Tile, kind: DType) -> Node | None:
        """Return the scales of an operand's products, along its axes."""
        if scale is None:
            return None
        if not isinstance(scale, Tile):
            raise no_tile_error(scale)
        if not kind.is_float or not scale.dtype.is_float:
            raise TraceError(
                f"scales of {scale.dtype} of products that are summed in {kind}; nearest legal choice: "
                "operands and scales that are floats, e.g. A[m, k].to(tw.f16)",
                here(),
            )
        node, axes = scale.node, scale_axes(scale.node, of.node)
        if node.axes != axes:
            node = self.make(Rearrange, node.dtype, axes, node)
        return node if node.dtype == kind else self.converted(node, kind)

    def transposed(self, tile: Tile) -> Tile:
        """Swap two axes."""
        node = tile.node
        if len(node.axes) != 2:
            raise TraceError(f"{tile_name(tile)} has {len(node.axes)} axes; .T exchanges two", here())
        return self.tile(self.make(Rearrange, node.dtype, node.axes[::-1], node), tile)

    def rearranged(self, tile: Tile, index: tuple[Any, ...]) -> Tile:
        """``tile[:, None]``: new axes."""
        node = tile.node
        return self.tile(self.make(Rearrange, node.dtype, indexing.new_axes(tile, node, index), node), tile)

    def reduced(self, tile: Tile, combine: str, axis: int) -> Tile:
        """Record ``combine`` over a whole axis."""
        node = tile.node
        rank = len(node.axes)
        if not -rank <= axis < rank:
            raise TraceError(
                f".{combine}(axis={axis!r}) of {tile_name(tile)}, which has {rank} axes; nearest legal "
                f"choice: axis={min(max(axis, -rank), rank - 1)}",
                here(),
            )
        place = axis % rank
        axes = (*node.axes[:place], *node.axes[place + 1 :])
        return self.tile(self.make(Reduce, node.dtype, axes, combine, node, place), tile)

    def refuse(self, what: str) -> NoReturn:
        """Refuse a call that belongs to explicit kernels."""
        raise explicit_error(what)

    def no_arithmetic(self, tensor: Any) -> Exception:
        """Return the error for arithmetic with a tensor that is not indexed."""
        return no_tile_error(tensor)

    def enter(self, construct: object) -> None:
        """Refuse loops, branches and roles of explicit kernels.

        Raises:
            TraceError: it is one.
        """
        if not isinstance(construct, SpanLoop):
            raise explicit_error(f"a {getattr(construct, 'what', 'region')} of tw.range, tw.when or tw.role")

    def admit(self, op: type[Op]) -> None:
        """Refuse operations of explicit kernels; allow views of arrays and arithmetic of numbers.

        Raises:
            TraceError: the operation belongs to explicit kernels.
        """
        if op is PriorGridWait:
            self.waits_for_prior_grid = True
        elif op not in (Reshape, Elementwise):
            raise explicit_error(f"tw.{op.name}")

    def finish(self, name: str, params: Sequence[Param | Sym]) -> Flow:
        """Return the flow of the kernel.

        Args:
            name: name of the kernel.
            params: its arrays, numbers and integers, in the author's order.
        """
        parameters: list[Operand | NumberParam | Integer] = []
        for param in params:
            if isinstance(param, TensorParam):
                kind = param.value.tensor
                parameters.append(Operand(param.value.name, kind.dtype, kind.shape))
            elif isinstance(param, ScalarParam):
                parameters.append(NumberParam(param.value.dtype, (), param.value.name))
            elif isinstance(param, Sym):
                parameters.append(Integer(i64, (), param))
        guards = tuple(self.tracer.guards)
        return Flow(
            name, tuple(parameters), self.tiles, tuple(self.stores), guards, self.waits_for_prior_grid
        )


def explicit_error(what: str) -> TraceError:
    """Return the error for a dataflow kernel with operations of explicit kernels."""
    return TraceError(
        f"{what} determines how threads compute, which a kernel with tw.tiles leaves to its schedule; "
        "nearest legal choice: omit it, or write the whole kernel explicitly, with tw.block_index, tw.load "
        "and tw.copy",
        here(),
    )
