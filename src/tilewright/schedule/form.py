"""What a flow asks of a schedule: the products, what they are made of, and what is done with their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.dataflow import wide
from tilewright.dataflow.nodes import (
    BATCH,
    Flow,
    Integer,
    Literal,
    Map,
    Node,
    Number,
    Operand,
    Part,
    Rearrange,
    Reduce,
    Span,
    Store,
    Sum,
)
from tilewright.dtypes import DType
from tilewright.errors import TraceError
from tilewright.functions.conversions import Array
from tilewright.functions.table import CONVERSION
from tilewright.lang.dataflow.promotion import holds_all
from tilewright.lang.scalars import Index
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.schedule.groups import MOST
from tilewright.schedule.partition import Work
from tilewright.symbolic.nodes import Sym
from tilewright.targets.atoms import WGMMA
from tilewright.views.view import View

Places = Mapping[Span, Index | slice]
"""An index along some spans, or a part of them."""

EXPLICIT = "write it as an explicit kernel, with tw.block_index, tw.copy and tw.mma"


@dataclass(frozen=True)
class Factor:
    """Operand A or B of a product, as rows along M or N and columns along K.

    Args:
        part: the array and the spans that it is taken along.
        row: the span of its rows.
        depth: the span along K.
        view: what is multiplied: the part, or a function of its elements.
    """

    part: Part
    row: Span
    depth: Span
    view: Node

    @property
    def name(self) -> str:
        """The array's."""
        return self.part.operand.name

    @property
    def dtype(self) -> DType:
        """Of its elements in memory."""
        return self.part.operand.dtype

    @property
    def is_plain(self) -> bool:
        """Whether its elements are multiplied as they lie in memory."""
        return not isinstance(self.view, Map)

    @property
    def keeps_zero(self) -> bool:
        """Whether 0 is made of 0, whatever is passed to the kernel: what lies past the edge is 0 then too."""
        if any(isinstance(leaf, Number | Integer) for leaf in leaves(self.view)):
            return False
        return not np.any(at_zero(self.view))

    def matrix(self, tensor: Tensor, places: Places) -> Tensor:
        """The (rows, K) matrix of the array at some places of its other dimensions."""
        return matrix(tensor, self.part.at, (self.row, self.depth), places)


@dataclass(frozen=True)
class Form:
    """A flow of one product.

    Args:
        flow: the graph.
        sum: the product.
        a: its operand A.
        b: its operand B.
        batch: the leading spans.
        m: the span of the rows of the result.
        n: the span of its columns.
        swap_ab: whether it is the transposed product; see `arranged`.
        lists: whether the items of its batch are arrays of their own, see `tilewright.schedule.lists`.
    """

    flow: Flow
    sum: Sum
    a: Factor
    b: Factor
    batch: tuple[Span, ...]
    m: Span
    n: Span
    swap_ab: bool = False
    lists: bool = False

    def arranged(self, swap_ab: bool) -> Form:
        """The form as a schedule multiplies it: as the author wrote it, or ``C^T = B^T @ A^T``.

        Of the transposed product B is operand A, and its columns are the rows of the result.  The arrays are
        the same, for the dimensions of each are known by their spans, whatever their order.

        Args:
            swap_ab: whether it is the transposed product that is wanted.
        """
        if swap_ab == self.swap_ab:
            return self
        return replace(self, a=self.b, b=self.a, m=self.n, n=self.m, swap_ab=swap_ab)

    def places(self, work: Work, *, whole: bool = False) -> Places:
        """Where in the arrays a tile of the result is, along all dimensions but those that are cut in tiles.

        Args:
            work: the tile.
            whole: whether what lies behind the rows of its group is there too; it is multiplied for nothing.
        """
        found: dict[Span, Index | slice] = dict(zip(self.batch, work.batch, strict=True))
        for span, cut in zip((self.m, self.n), work.cuts, strict=True):
            if cut is not None:
                found[span] = slice(cut.start, None) if whole else cut
        return found

    def spec(self, operand: Operand, specs: Mapping[str, TensorSpec]) -> TensorSpec:
        """The class of an array; of a view of it nothing is known but along what it is contiguous.

        Args:
            operand: the array, or the view.
            specs: the classes of the arrays, by name.
        """
        spec = specs[operand.name]
        if not operand.transforms:
            return spec
        arrays = (one for one in self.flow.parameters if isinstance(one, Operand))
        shape = next(one.shape for one in arrays if one.name == operand.name)
        steps = [1 if dim == spec.unit_dim else Sym(f"step{dim}", 0, MOST) for dim in range(spec.rank)]
        view = View.strided(shape, steps)
        for transform in operand.transforms:
            view = transform.apply(view)
        ones = (1,) * view.rank
        return replace(
            spec,
            rank=view.rank,
            unit_dim=view.unit_dim,
            extent_divisors=ones,
            stride_divisors=ones,
            align=spec.dtype.bytes,
            signed=True,
        )

    @property
    def precision(self) -> str:
        """How exactly products are multiplied; see `Sum`."""
        return self.sum.precision

    @property
    def stores(self) -> tuple[Store, ...]:
        """What becomes of it."""
        return self.flow.stores


def form_of(flow: Flow) -> Form:
    """The form of a flow.

    Raises:
        TraceError: a flow that no schedule knows how to compute; names the explicit form.
    """
    sums = flow.sums
    batch = tuple(span for span in flow.tiles if span.kind == BATCH)
    inner = tuple(span for span in flow.tiles if span.kind != BATCH)
    where = flow.stores[0].location if flow.stores else None
    if len(sums) != 1 or len(inner) != 2:
        raise TraceError(
            f"kernel {flow.name} has {len(sums)} products over tiles of {len(inner)} dimensions; schedules "
            f"know one product over two; nearest legal choice: {EXPLICIT}",
            where,
        )
    m, n = inner
    (product,) = sums
    a, b = _factor(product.a, m, product), _factor(product.b, n, product)
    _refuse_mixtures(product, a, b)
    _refuse_reduced_groups(flow)
    return Form(flow, product, a, b, batch, m, n)


def _refuse_reduced_groups(flow: Flow) -> None:
    """What is reduced lies in one tile, and groups of rows are as long as an array says."""
    for node in flow.walk():
        if isinstance(node, Reduce) and node.argument.axes[node.axis] == flow.grouped is not None:
            raise TraceError(
                f"{node.combine} along {flow.grouped.name}, the rows of a group, of which only the running "
                f"kernel knows how many there are; nearest legal choice: {EXPLICIT}",
                node.location,
            )


def _refuse_mixtures(product: Sum, a: Factor, b: Factor) -> None:
    """Numbers of two dtypes are multiplied by few instructions alone."""
    kinds = (a.view.dtype, b.view.dtype)
    if kinds[0] == kinds[1] or any(kinds in ((row.a, row.b), (row.b, row.a)) for row in WGMMA):
        return
    wider = next((kind for kind in kinds if holds_all(kind, kinds)), None)
    narrow = b if wider in (None, kinds[0]) else a
    near = f"{_spelled(narrow)}.to(tw.{wider or kinds[0]})" + ("" if wider else ", which rounds")
    raise TraceError(
        f"a product of {_spelled(a)} in {kinds[0]} and {_spelled(b)} in {kinds[1]}: no instruction "
        f"multiplies numbers of these two dtypes; nearest legal choice: {near}",
        product.location,
    )


def _spelled(factor: Factor) -> str:
    """The part that an operand is made of, as the author writes it."""
    return f"{factor.name}[{', '.join(span.name for span in factor.part.at)}]"


def _factor(node: Node, row: Span, product: Sum) -> Factor:
    parts = [part for part in leaves(node) if isinstance(part, Part)]
    if len(parts) != 1 or row not in parts[0].at or product.span not in parts[0].at:
        raise TraceError(
            f"an operand of a product is a function of one part of an array, along {row.name} and "
            f"{product.span.name}; nearest legal choice: {EXPLICIT}",
            node.location or product.location,
        )
    return Factor(parts[0], row, product.span, _plain(node))


def _plain(node: Node) -> Node:
    """A value without what only puts its axes in another order."""
    while isinstance(node, Rearrange):
        node = node.argument
    return node


def leaves(node: Node) -> list[Node]:
    """What a value is computed from in the end."""
    if not node.arguments:
        return [node]
    return [leaf for argument in node.arguments for leaf in leaves(argument)]


def at_zero(node: Node) -> Array:
    """What is computed of parts of arrays that hold 0; no number of the launch is among its leaves."""
    given = [at_zero(argument) for argument in node.arguments]
    if isinstance(node, Part):
        return wide.literal(0, node.dtype)
    if isinstance(node, Literal):
        return wide.literal(node.value, node.dtype)
    if not isinstance(node, Map):
        return given[0]
    if node.function in CONVERSION:
        return wide.converted(node.function, given[0], node.given[0].dtype, node.dtype)
    return wide.applied(node.function, given, node.dtype)


def matrix(tensor: Tensor, at: Sequence[Span], wanted: Sequence[Span], places: Places) -> Tensor:
    """A view with the wanted dimensions in their order, at one index of the others.

    Args:
        tensor: the array.
        at: the span of each of its dimensions.
        wanted: spans of the view.
        places: the index along each of the others, and which part of the wanted ones.
    """
    if any(span in places for span in at):
        tensor = tensor[tuple(places.get(span, slice(None)) for span in at)]
    left = [span for span in at if span in wanted or span not in places]
    order = [left.index(span) for span in wanted]
    return tensor if order == [*range(len(order))] else tensor.permute(*order)


def array(arguments: Mapping[str, Any], operand: Operand) -> Tensor:
    """An array of the kernel, or the view of it that the flow names."""
    tensor: Tensor = arguments[operand.name]
    for transform in operand.transforms:
        tensor = tensor._view(transform, "view")
    return tensor


def extent_of(form: Form, arguments: Mapping[str, Any], span: Span) -> Index:
    """The extent of a span, as the arguments have it."""
    places = [(form.a.part.operand, form.a.part.at), (form.b.part.operand, form.b.part.at)]
    places += [(store.operand, store.at) for store in form.stores]
    found: Index = next(
        array(arguments, operand).shape[at.index(span)] for operand, at in reversed(places) if span in at
    )
    return found


def has_slices(form: Form) -> bool:
    """Whether what is stored is known slice by slice: nothing is reduced, or stored along one dimension."""
    whole = {form.m, form.n}
    return all(whole <= {*store.at} for store in form.stores) and not any(
        isinstance(node, Reduce) for node in form.flow.walk()
    )
