"""The form of a flow as schedules see it: products, operands, sums, and what is done with the sums."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any

from tilewright.dataflow.nodes import (
    BATCH,
    Flow,
    Folded,
    Map,
    Node,
    Operand,
    Rearrange,
    Reduce,
    Span,
    Store,
    Sum,
    walk,
)
from tilewright.errors import TraceError, Violation
from tilewright.lang.scalars import Index
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.schedule.factors import EXPLICIT, Factor, FactorProduct, Places, plan_of
from tilewright.schedule.groups import MOST
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.partition import Work
from tilewright.symbolic.nodes import Sym
from tilewright.views.view import View


@dataclass(frozen=True)
class Form:
    """A flow of products over the same tiles, that are added up along the same K.

    Args:
        flow: the graph.
        rows_m: the operands that have rows along M; each is loaded once for all products of it.
        rows_n: the operands that have rows along N.
        products: what is multiplied, in the author's order.
        totals: the values that are added up, each from one or several products.
        batch: the leading spans.
        m: the span of the rows of the result.
        n: the span of its columns.
        swap_ab: whether it is the transposed product; see `arranged`.
        lists: whether the items of its batch are arrays of their own, see `tilewright.schedule.lists`.
    """

    flow: Flow
    rows_m: tuple[Factor, ...]
    rows_n: tuple[Factor, ...]
    products: tuple[FactorProduct, ...]
    totals: tuple[Node, ...]
    batch: tuple[Span, ...]
    m: Span
    n: Span
    swap_ab: bool = False
    lists: bool = False

    @property
    def sum(self) -> Sum:
        """The first of its sums of products."""
        return self.products[0].sum

    @property
    def a(self) -> Factor:
        """The first of the operands that have rows along M."""
        return self.rows_m[0]

    @property
    def b(self) -> Factor:
        """The first of the operands that have rows along N."""
        return self.rows_n[0]

    @property
    def factors(self) -> tuple[Factor, ...]:
        """All operands, those along M first."""
        return (*self.rows_m, *self.rows_n)

    @property
    def is_single(self) -> bool:
        """Whether there is one product alone."""
        return len(self.products) == 1

    def number_of(self, node: Node) -> int | None:
        """The number of the total that a value is; None for other values."""
        return next((number for number, total in enumerate(self.totals) if total is node), None)

    def arranged(self, swap_ab: bool) -> Form:
        """The form as a schedule multiplies it: as the author wrote it, or ``C^T = B^T @ A^T``.

        Of the transposed product B is operand A, and its columns are the rows of the result.  The arrays are
        the same, for the dimensions of each are known by their spans, whatever their order.

        Args:
            swap_ab: whether it is the transposed product that is wanted.
        """
        return self if swap_ab == self.swap_ab else self._turned

    @cached_property
    def _turned(self) -> Form:
        products = tuple(product.transposed for product in self.products)
        turned = replace(self, rows_m=self.rows_n, rows_n=self.rows_m, products=products, m=self.n, n=self.m)
        return replace(turned, swap_ab=not self.swap_ab)

    @cached_property
    def judged(self) -> dict[Hashable, tuple[object, list[Violation]]]:
        """Why schedules of it are refused, as far as was asked; see `tilewright.schedule.legality`."""
        return {}

    def places(self, work: Work, *, whole: bool = False) -> Places:
        """The place of a result tile in the arrays, along all dimensions that are not cut into tiles.

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
            unit_dim=view.run_dim(ROW_BYTES // spec.dtype.bytes),
            extent_divisors=ones,
            stride_divisors=ones,
            align=spec.dtype.bytes,
            signed=True,
        )

    @property
    def scaled_every(self) -> int:
        """Places along K that have their scales in common; 0 where there are none."""
        return gcd(*(factor.scale.run for factor in self.factors if factor.scale is not None))

    @property
    def precision(self) -> str:
        """How exactly products are multiplied; see `Sum`."""
        return self.sum.precision

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores of the results."""
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
    _refuse_folds(flow)
    if not sums:
        raise TraceError(
            f"kernel {flow.name} multiplies nothing by `@`; schedules compute products; nearest legal "
            f"choice: {EXPLICIT}",
            where,
        )
    if len(inner) != 2:
        raise TraceError(
            f"kernel {flow.name} has a product over {len(inner)} tiled dimension{'s' * (len(inner) != 1)}; "
            "schedules know products over two; nearest legal choice: a vector as a matrix of one column, "
            f"x[:, None], and tw.tiles over two dimensions; or {EXPLICIT}",
            where,
        )
    m, n = inner
    plan = plan_of(flow, m, n)
    _refuse_reduced_groups(flow)
    operands = tuple(plan.rows_m), tuple(plan.rows_n)
    return Form(flow, *operands, tuple(plan.products), tuple(plan.totals), batch, m, n)


def _refuse_folds(flow: Flow) -> None:
    """Schedules carry sums of products through a loop, and nothing else."""
    for node in flow.walk():
        if isinstance(node, Folded):
            cell = node.fold.cells[node.index]
            raise TraceError(
                f"{cell.name} is carried through the steps of {node.fold.span.name} by a fold "
                "that is no sum of products; schedules compute no other folds; nearest legal choice: compute "
                "it before this kernel and read it as an array; for softmax weights times values call "
                "tw.attention",
                node.location or next((s.location for s in flow.stores), None),
            )
        if isinstance(node, Sum) and any(isinstance(one, Sum | Folded) for one in _within(node)):
            raise TraceError(
                "an operand of a product is computed from another product; schedules multiply parts of "
                "arrays; nearest legal choice: a kernel for each product; of two products with a function "
                "between them tw.gemm_chain, with a softmax between them tw.attention",
                node.location,
            )


def _within(product: Sum) -> Iterator[Node]:
    """All values that the operands of a product are computed from."""
    waiting, known = [product.a, product.b], set()
    while waiting:
        node = waiting.pop()
        if id(node) not in known:
            known.add(id(node))
            yield node
            waiting += node.arguments


def _refuse_reduced_groups(flow: Flow) -> None:
    """Refuse reductions of grouped rows: a reduced dimension lies in one tile, and groups have any length."""
    for node in flow.walk():
        if isinstance(node, Reduce) and node.argument.axes[node.axis] == flow.grouped is not None:
            raise TraceError(
                f"{node.combine} along {flow.grouped.name}, the rows of a group, of which only the running "
                f"kernel knows how many there are; nearest legal choice: {EXPLICIT}",
                node.location,
            )


def array(arguments: Mapping[str, Any], operand: Operand) -> Tensor:
    """An array of the kernel, or the view of it that the flow names."""
    tensor: Tensor = arguments[operand.name]
    for transform in operand.transforms:
        tensor = tensor._view(transform, "view")
    return tensor


def extent_of(form: Form, arguments: Mapping[str, Any], span: Span) -> Index:
    """The extent of a span, as the arguments have it."""
    places = [(factor.part.operand, factor.part.at) for factor in form.factors]
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


# ---------------------------------------------------------------- reductions across tiles


POWERS = ("exp", "exp2")
"""Functions ``f`` for which ``f(x - a) = f(x - b) * f(b - a)``."""


def reduced_in_parts(form: Form) -> tuple[Reduce, ...]:
    """The reductions of a flow, if all of them can be made of those of its tiles.

    That is so where only what is stored along rows or columns alone is computed from them, and where none is
    computed from another one, but for the sum of powers above their maximum.

    Args:
        form: what is computed.
    """
    found = [node for node in form.flow.walk() if isinstance(node, Reduce)]
    if form.lists or form.flow.grouped is not None or not found:
        return ()
    stored = [node for store in form.stores if is_block(form, store) for node in walk(store.value)]
    if any(isinstance(node, Reduce) for node in stored):
        return ()
    return tuple(found) if all(_is_alone(node) for node in found) else ()


def is_block(form: Form, store: Store) -> bool:
    """Whether a result is stored along rows and columns."""
    return {form.m, form.n} <= {*store.at}


def shift_of(node: Reduce) -> tuple[Reduce, str] | None:
    """The maximum and f of ``sum of f(x - max of x)``; None for any other reduction."""
    power = _plain(node.argument)
    if node.combine != "sum" or not isinstance(power, Map) or power.function not in POWERS:
        return None
    difference = _plain(power.given[0])
    if not isinstance(difference, Map) or difference.function != "sub":
        return None
    value, top = (_plain(one) for one in difference.given)
    if not isinstance(top, Reduce) or top.combine != "max" or _plain(top.argument) is not value:
        return None
    same = top.argument.axes[top.axis] == node.argument.axes[node.axis]
    return (top, power.function) if same else None


def _is_alone(node: Reduce) -> bool:
    """Whether a reduction is of what tiles know by themselves."""
    inner = [one for one in _inside(node) if isinstance(one, Reduce)]
    shift = shift_of(node)
    return not inner or (shift is not None and inner == [shift[0]])


def _inside(node: Reduce) -> Iterator[Node]:
    return (one for one in walk(node.argument))


def _plain(node: Node) -> Node:
    """A value without what only puts its axes in another order, or adds some."""
    while isinstance(node, Rearrange):
        node = node.argument
    return node
