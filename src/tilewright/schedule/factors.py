"""The distinct operands of a flow's products, and the totals that the products are added to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dataflow import wide
from tilewright.dataflow.nodes import (
    ArrayPart,
    Flow,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Operand,
    Position,
    Rearrange,
    Span,
    Sum,
    walk,
)
from tilewright.dtypes import DType
from tilewright.errors import TraceError
from tilewright.functions.conversions import Array
from tilewright.functions.table import CONVERSION
from tilewright.lang.dataflow.recorder import holds_all
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor
from tilewright.targets.atoms import WGMMA
from tilewright.views.transforms import Repeat, Slice

# ---------------------------------------------------------------- shared elements


def same(one: Node, other: Node) -> bool:
    """Whether two nodes are the same part of the same array."""
    if not (isinstance(one, ArrayPart) and isinstance(other, ArrayPart)):
        return False
    return (one.operand, one.at) == (other.operand, other.at)


def run_along(part: ArrayPart, span: Span) -> int | None:
    """Number of neighbours along a span that share one element of the array; None: all of them.

    Args:
        part: a part of an array, or of a view that repeats its elements.
        span: the span.
    """
    if span not in part.at:
        return None
    dim, found = part.at.index(span), 1
    for transform in reversed(part.operand.transforms):
        if not isinstance(transform, Repeat):
            break
        found *= transform.count if transform.dim == dim else 1
    return found


def without_repeats(part: ArrayPart) -> ArrayPart:
    """A part of a view whose last transform repeats elements, without that transform."""
    operand = part.operand
    return replace(part, operand=replace(operand, transforms=operand.transforms[:-1]))


Places = Mapping[Span, Index | slice]
"""Maps some spans to an index, or to a range of indices."""

EXPLICIT = "write it as an explicit kernel, with tw.block_index, tw.copy and tw.mma"


@dataclass(frozen=True)
class Scale:
    """Scales of an operand, which multiply its products; each belongs to a run of neighbours along K.

    Args:
        part: the array of scales, and its spans.
        view: the part, or a conversion of it.
        run: number of neighbours along K that share a scale.
        rows: number of rows of the operand that share a scale.
    """

    part: ArrayPart
    view: Node
    run: int
    rows: int


@dataclass(frozen=True)
class Factor:
    """Operand A or B of a product, as rows along M or N and columns along K.

    Args:
        part: the main array, and its spans.
        row: the span of its rows.
        depth: the span along K.
        view: the multiplied value: the part, or a function of its elements.
        beside: side arrays of the function, such as scales of groups along K.
        scale: scales of the operand's products.
    """

    part: ArrayPart
    row: Span
    depth: Span
    view: Node
    beside: tuple[ArrayPart, ...] = ()
    scale: Scale | None = None

    @property
    def name(self) -> str:
        """The name of the main array."""
        return self.part.operand.name

    @property
    def dtype(self) -> DType:
        """Dtype of its elements in memory."""
        return self.part.operand.dtype

    @property
    def held(self) -> DType:
        """Dtype of its elements in registers before they are decoded; there packed elements are wider."""
        if not self.dtype.is_packed:
            return self.dtype
        uses = [node for node in walk(self.view) if any(same(one, self.part) for one in node.arguments)]
        made = {node.dtype for node in uses if isinstance(node, Map) and node.function == "convert"}
        only = len(made) == 1 and all(isinstance(node, Map) and node.function == "convert" for node in uses)
        if only and holds_all(first := made.pop(), (self.dtype,)):
            return first
        return dtypes.f16 if self.dtype.is_float else dtypes.i8

    @property
    def runs(self) -> list[int]:
        """Neighbours along K that share an element, for each side array with runs."""
        found = (run_along(part, self.depth) for part in self.beside)
        return [run for run in found if run is not None and run > 1]

    @property
    def is_plain(self) -> bool:
        """Whether its elements are multiplied without decoding."""
        return not isinstance(self.view, Map)

    @property
    def is_converted(self) -> bool:
        """Whether decoding is a conversion of the dtype and nothing else."""
        view = self.view
        if not isinstance(view, Map) or view.function != "convert":
            return False
        return isinstance(plain(view.given[0]), ArrayPart)

    @property
    def is_computed(self) -> bool:
        """Whether decoding is more than a conversion of the dtype."""
        return not (self.is_plain or self.is_converted)

    @property
    def keeps_zero(self) -> bool:
        """Whether decoding always maps 0 to 0, so that elements past the edge are 0 too."""
        view = unmasked(self.view)
        if any(isinstance(leaf, NumberParam | Integer | Position) for leaf in leaves(view)):
            return False
        if any(self.depth not in part.at for part in self.beside):
            return False
        return not np.any(at_zero(view))

    def matrix(self, tensor: Tensor, places: Places) -> Tensor:
        """The (rows, K) matrix of the array at places of its other dimensions."""
        return matrix(tensor, self.part.at, (self.row, self.depth), places)


@dataclass(frozen=True)
class FactorProduct:
    """``total += a @ b``, or ``total -= a @ b``.

    Args:
        sum: the node of the graph.
        a: index among the operands with rows along M; negative: among the inner products, from their end.
        b: index among the operands with rows along N.
        total: index among the totals.
        negative: whether it is subtracted.
    """

    sum: Sum
    a: int
    b: int
    total: int
    negative: bool = False

    @property
    def transposed(self) -> FactorProduct:
        """``total^T += b^T @ a^T``."""
        return replace(self, a=self.b, b=self.a)


@dataclass(frozen=True)
class InnerProduct:
    """A product whose sum is an operand of a product along another span, as ``X A`` in ``(X A) B``.

    Args:
        sum: the sum; its rows are those of the other product.
        columns: the span of its columns, along which the other product is summed.
        view: the operand: the sum, or a function of it.
        a: index among the operands with rows along M; None in a loop along another span.
        b: index among the operands with rows along N.
        side: 0 if it is operand A of the other product, 1 if it is operand B.
    """

    sum: Sum
    columns: Span
    view: Node
    a: int | None
    b: int | None
    side: int = 0

    @property
    def transposed(self) -> InnerProduct:
        """The same operand of the transposed product."""
        return replace(self, a=self.b, b=self.a, side=1 - self.side)


@dataclass(frozen=True)
class Rescale:
    """``total *= scale``, after the loop over one of several spans.

    Args:
        total: index among the totals.
        span: the span of the loop.
        scale: the number.
    """

    total: int
    span: Span
    scale: Node


@dataclass(frozen=True)
class ProductPlan:
    """The products of a flow, and their operands.

    Args:
        rows_m: the operands with rows along M.
        rows_n: the operands with rows along N.
        products: the products, in the author's order.
        totals: the sums, each of one or several products.
        depths: the summed spans, in the order in which loops take them.
        rescales: scales of totals after a loop.
        inner: the products whose sums are operands of others.
    """

    rows_m: tuple[Factor, ...]
    rows_n: tuple[Factor, ...]
    products: tuple[FactorProduct, ...]
    totals: tuple[Node, ...]
    depths: tuple[Span, ...]
    rescales: tuple[Rescale, ...]
    inner: tuple[InnerProduct, ...]


def inner_sums(flow: Flow) -> dict[int, Sum]:
    """The sums from which an operand of another product is computed, by their `id`."""
    sides = (side for product in flow.sums for side in (product.a, product.b))
    return {id(node): node for side in sides for node in walk(side) if isinstance(node, Sum)}


def plan_of(flow: Flow, m: Span, n: Span) -> ProductPlan:
    """The operands with rows along M, and along N, the products, and the totals of a flow.

    Sums that are only added to each other, or subtracted, form one total.  If some of them are scaled by a
    number, as in ``x + s * y``, and are sums along other spans than the rest, they form one total too: loops
    compute the scaled sums first, then multiply the total by the number.  A negated operand becomes the
    operand itself in a subtracted product.

    Args:
        flow: the graph.
        m: the span of the rows of the result.
        n: the span of its columns.

    Raises:
        TraceError: sums have different dtypes, or no ring can load an operand.
    """
    rows_m, rows_n, products, totals = list[Factor](), list[Factor](), list[FactorProduct](), list[Node]()
    signs = _signs(flow)
    depths, scaled = _depths(flow, signs)
    inside = inner_sums(flow)
    found = (
        _inner(product, side, m, n)
        for product in flow.sums
        for side in (0, 1)
        if any(id(one) in inside for one in walk((product.a, product.b)[side]))
    )
    inner = [*{(id(one.view), one.side): one for one in found}.values()]  # several products may read one
    if len({one.side for one in inner}) > 1:
        first, other = (next(one.sum for one in inner if one.side == at) for at in (0, 1))
        name = other.variable or "one of them"
        text = f"{first.variable or 'a sum'} is a left operand of a product, and {name} a right one"
        near = f"a kernel of its own for {name}; or {EXPLICIT}"
        raise TraceError(f"{text}; a tile keeps one of the two", other.location, near)
    sides: tuple[list[Factor], list[Factor]] = (rows_m, rows_n)

    def placed(product: Sum, side: int) -> tuple[int, bool]:
        """The index of an operand of a product, and whether it is negated."""
        node = (product.a, product.b)[side]
        held = (at for at, one in enumerate(inner) if one.side == side and one.view is plain(node))
        if (number := next(held, None)) is not None:
            return number - len(inner), False
        node, negative = _positive(node, product)
        return _number(sides[side], _factor(node, (m, n)[side], product, product.scales[side])), negative

    for product in flow.sums:
        if id(product) not in inside:
            (at_a, negated_a), (at_b, negated_b) = placed(product, 0), placed(product, 1)
            negative = signs[id(product)].negative ^ negated_a ^ negated_b
            total = _number(totals, signs[id(product)].total)
            products.append(FactorProduct(product, at_a, at_b, total, negative))
        _refuse_others(product, flow.sums[0])
    for at, one in enumerate(inner):  # after the operands of the longer products
        rows, columns = (m, one.columns) if one.side == 0 else (one.columns, n)
        left, right = (one.sum.a, one.sum.b) if one.sum.axes[0] == rows else (one.sum.b, one.sum.a)
        a, b = _factor(left, rows, one.sum), _factor(right, columns, one.sum)
        inner[at] = replace(one, a=_number(rows_m, a), b=_number(rows_n, b))
    rescales = (Rescale(_number(totals, total), span, scale) for total, span, scale in scaled)
    return ProductPlan(
        *(tuple(rows_m), tuple(rows_n), tuple(products), tuple(totals), depths, tuple(rescales)), tuple(inner)
    )


def _inner(product: Sum, side: int, m: Span, n: Span) -> InnerProduct:
    """The operand of a product that is computed from the sum of another one.

    Raises:
        TraceError: it depends on other values than one product with the same rows, and numbers.
    """
    view = plain((product.a, product.b)[side])
    row, depth = (m, n)[side], product.span
    sums = [one for one in walk(view) if isinstance(one, Sum)]
    outermost = {(row, depth), (depth, row)}
    of_sum = {id(one) for one in walk(sums[-1])}
    others = [one for one in leaves(view) if id(one) not in of_sum]
    if len(sums) > 1 or sums[0].axes not in outermost or any(sums[0].scales):
        what = f"an operand of the product over {depth.name} follows from other products than one with"
        text, near = f"{what} a value for each ({row.name}, {depth.name})", "a kernel for each product"
    elif any(not isinstance(one, Literal | NumberParam | Integer) for one in others):
        text = f"an operand of the product over {depth.name} follows from a product and from arrays"
        near = "a kernel for each product, or a function of the product and of numbers, "
        near += "as in (s * low).to(X.dtype)"
    else:
        return InnerProduct(sums[0], depth, view, None, None, side)
    raise TraceError(text, product.location, f"{near}; or {EXPLICIT}")


@dataclass(frozen=True)
class SumInTotal:
    """A sum of products in a total.

    Args:
        sum: the sum.
        total: the total.
        negative: whether it is subtracted.
        scale: its factor, a number; None: 1.
    """

    sum: Sum
    total: Node
    negative: bool = False
    scale: Node | None = None


def _signs(flow: Flow) -> dict[int, SumInTotal]:
    """Map the `id` of every sum to its term in a total."""
    used = Counter(id(one) for node in flow.walk() for one in node.arguments)
    used.update(id(store.value) for store in flow.stores)
    found: dict[int, SumInTotal] = {}
    terms: dict[int, list[SumInTotal]] = {}

    def terms_of(node: Node, dtype: DType) -> tuple[list[SumInTotal], Node | None]:
        """The terms of an argument of an addition, and their factor."""
        if used[id(node)] == 1 and node.dtype == dtype:
            if id(node) in terms:
                return terms[id(node)], None
            if isinstance(node, Map) and node.function == "mul":
                for one, scale in (node.given, node.given[::-1]):
                    known = terms.get(id(one), []) if used[id(one)] == 1 and one.dtype == dtype else []
                    constants = (isinstance(leaf, Literal | NumberParam | Integer) for leaf in leaves(scale))
                    is_number = not scale.axes and all(constants)
                    if is_number and known and all(term.scale is None for term in known):
                        return known, scale
        return [], None

    for node in flow.walk():
        if isinstance(node, Sum):
            terms[id(node)] = [SumInTotal(node, node)]
        elif isinstance(node, Map) and node.function in ("add", "sub") and node.dtype.is_float:
            (left, first), (right, second) = (terms_of(one, node.dtype) for one in node.given)
            spans = [{term.sum.span for term in some} for some in (left, right)]
            is_scaled = any(term.scale for term in (*left, *right)) or not (first is second is None)
            # A total is scaled once, between two loops: scaled sums come first, and cannot read other sums.
            scaled = [one.sum for one in (right if first is None else left)]
            is_late = any(
                isinstance(one, Sum) for of in scaled for side in (of.a, of.b) for one in walk(side)
            )
            is_one = not is_scaled or (
                (first is None or second is None)
                and not is_late
                and not spans[0] & spans[1]
                and all(term.scale is None for term in (*left, *right))
            )
            if left and right and is_one:
                taken = node.function == "sub"
                terms[id(node)] = [
                    *(SumInTotal(one.sum, node, one.negative, first) for one in left),
                    *(SumInTotal(one.sum, node, one.negative ^ taken, second) for one in right),
                ]
        else:
            continue
        found |= {id(one.sum): one for one in terms.get(id(node), ())}
    return found


def _depths(
    flow: Flow, terms: dict[int, SumInTotal]
) -> tuple[tuple[Span, ...], list[tuple[Node, Span, Node]]]:
    """The summed spans in the order of their loops, and the scales of totals after a loop.

    Scaled sums come first.

    Args:
        flow: the graph.
        terms: the term of every sum.

    Raises:
        TraceError: two totals need opposite orders.
    """
    sums = flow.sums
    early = dict.fromkeys(one.span for one in sums if terms[id(one)].scale is not None)
    scaled: dict[int, tuple[Node, Span, Node]] = {}
    depths = (*early, *(span for span in dict.fromkeys(one.span for one in sums) if span not in early))
    for term in (terms[id(one)] for one in sorted(sums, key=lambda one: depths.index(one.span))):
        if term.scale is not None:
            scaled[id(term.total)] = term.total, term.sum.span, term.scale
    for term in (terms[id(one)] for one in sums):
        last = scaled.get(id(term.total))
        if term.scale is None and last is not None and term.sum.span in depths[: depths.index(last[1])]:
            spans = f"{last[1].name} before {term.sum.span.name}"
            raise TraceError(
                f"a sum along {last[1].name} is scaled before that along {term.sum.span.name} is added, and "
                "another total needs the loops in the opposite order",
                term.sum.location,
                f"a kernel for each result, with the loop over {spans}",
            )
    return depths, [*scaled.values()]


def _positive(node: Node, product: Sum) -> tuple[Node, bool]:
    """An operand without negations, and whether it was negated; integers keep their negations."""
    negative = False
    while isinstance(node, Rearrange) or (_is_negated(node) and product.dtype.is_float):
        negative ^= _is_negated(node)
        (node,) = node.arguments
    return node, negative


def _is_negated(node: Node) -> bool:
    return isinstance(node, Map) and node.function == "neg"


def _number(known: list[Any], wanted: Any) -> int:
    """The index of a value in a list, to which it is appended if missing."""
    if wanted not in known:
        known.append(wanted)
    return known.index(wanted)


def _refuse_others(product: Sum, first: Sum) -> None:
    """Refuse a sum without an instruction, and one that does not share the instruction of the first sum."""
    pair = product.a.dtype, product.b.dtype
    if pair[0] != pair[1] and not any(pair in ((row.a, row.b), (row.b, row.a)) for row in WGMMA):
        spelled = []
        for side in (product.a, product.b):
            part = next((leaf for leaf in leaves(side) if isinstance(leaf, ArrayPart)), None)
            if part is None or any(isinstance(one, Sum) for one in walk(side)):
                spelled.append("(a sum)")
            else:
                spelled.append(f"{part.operand.name}[{', '.join(span.name for span in part.at)}]")
        wider = next((kind for kind in pair if holds_all(kind, pair)), None)
        near = f"{spelled[wider in (None, pair[0])]}.to(tw.{wider or pair[0]})"
        if "(a sum)" in spelled:
            near, wider = f"(a sum).to(tw.{pair[1 - spelled.index('(a sum)')]})", None
        raise TraceError(
            f"a product of {spelled[0]} in {pair[0]} and {spelled[1]} in {pair[1]}: no MMA "
            "instruction takes these two dtypes",
            product.location,
            near if wider else f"{near}, which rounds",
        )
    kinds = [(one.a.dtype, one.b.dtype, one.dtype, one.precision) for one in (product, first)]
    if product is not first and any((*product.scales, *first.scales)):
        raise TraceError(
            "one of several products has scales; products that share an accumulator must share their scales",
            product.location,
            f"one product, or {EXPLICIT}",
        )
    if kinds[0] != kinds[1]:
        a, b, c, precision = kinds[0]
        raise TraceError(
            f"products of {a} and {b}, added up in {c} ({precision}), and products of {kinds[1][0]} and "
            f"{kinds[1][1]}, added up in {kinds[1][2]} ({kinds[1][3]}), in one kernel; one instruction must "
            "multiply them all",
            product.location,
            "convert the operands to the same dtypes",
        )


def _factor(node: Node, row: Span, product: Sum, scale: Node | None = None) -> Factor:
    """The operand that a node computes."""
    parts: list[ArrayPart] = []
    for leaf in leaves(node):
        if isinstance(leaf, ArrayPart) and not any(same(leaf, known) for known in parts):
            parts.append(leaf)
    both = {row, product.span}
    # The main array is the first that has an element for each row and each k.
    whole = [
        part for part in parts if both <= {*part.at} and all(run_along(part, span) == 1 for span in both)
    ]
    if not any(row in part.at for part in parts) and row not in product.axes:
        raise _vector_refusal(product, row)
    if not whole:
        text = f"an operand of a product needs a main array, tiled along {row.name} and {product.span.name}"
        near = f"an array of the computed values, which another kernel stores; or {EXPLICIT}"
        raise TraceError(text, node.location or product.location, near)
    others = tuple(part for part in parts if part is not whole[0])
    return Factor(whole[0], row, product.span, plain(node), others, _scale(scale, row, product))


def _vector_refusal(product: Sum, row: Span) -> TraceError:
    """Return the error for a product with a vector in tiles that have the axis ``row``, too."""
    text, kept = f"the product over {product.span.name} multiplies a vector", product.axes[0]
    assert kept is not None, "the axis of the matrix"
    if product.a.axes == (product.span,):
        near = f"a kernel of its own, whose tiles have columns along {kept.name} alone"
        return TraceError(f"{text}, and the tiles have rows along {row.name}", product.location, near)
    parts = (leaf for leaf in leaves(product.a) if isinstance(leaf, ArrayPart))
    is_turned = any(one.axes == (product.span, kept) for one in parts)  # a.T @ x
    total = "(a * x[:, None]).sum(axis=0)" if is_turned else "(a * x).sum(axis=1)"
    near = f"a sum of rows, total += {total} with total = tw.zeros(({kept.name},), tw.{product.dtype})"
    text = f"{text}, and the tiles have columns along {row.name}"
    return TraceError(text, product.location, f"{near}; or a kernel whose tiles have rows alone")


def _scale(node: Node | None, row: Span, product: Sum) -> Scale | None:
    """The scales of an operand."""
    if node is None:
        return None
    part = view = plain(node)
    while isinstance(part, Map) and part.function == "convert":
        part = plain(part.given[0])
    if not isinstance(part, ArrayPart) or row not in part.at or product.span not in part.at:
        text = f"a scale of a product must be an array tiled along {row.name} and {product.span.name}"
        near = f"S[{row.name}, {product.span.name} // 128]"
        raise TraceError(text, node.location or product.location, near)
    run, rows = (run_along(part, span) or 1 for span in (product.span, row))
    if run == 1:
        raise TraceError(
            f"a scale that changes with each {product.span.name}; a scale multiplies a partial sum, so "
            "several products must share it",
            node.location or product.location,
            f"S[{row.name}, {product.span.name} // 128]",
        )
    return Scale(part, view, run, rows)


def plain(node: Node) -> Node:
    """A value without rearrangements of its axes."""
    while isinstance(node, Rearrange):
        node = node.argument
    return node


def unmasked(node: Node) -> Node:
    """A value without masks: ``value`` of ``select(mask, value, 0)``."""
    node = plain(node)
    while isinstance(node, Map) and node.function == "select":
        _, value, other = (plain(one) for one in node.given)
        if not (isinstance(other, Literal) and other.value == 0):
            break
        node = value
    return node


def leaves(node: Node) -> list[Node]:
    """The leaves of a value, each once."""
    return [one for one in walk(node) if not one.arguments]


def at_zero(node: Node) -> Array:
    """The value if all elements of its arrays are 0; its leaves must not depend on the launch."""
    known: dict[Node, Array] = {}
    for one in walk(node):
        given = [known[argument] for argument in one.arguments]
        if isinstance(one, ArrayPart):
            known[one] = wide.literal(0, one.dtype)
        elif isinstance(one, Literal):
            known[one] = wide.literal(one.value, one.dtype)
        elif not isinstance(one, Map):
            known[one] = given[0]
        elif one.function in CONVERSION:
            known[one] = wide.converted(one.function, given[0], one.given[0].dtype, one.dtype)
        else:
            known[one] = wide.applied(one.function, given, one.dtype)
    return known[node]


def matrix(tensor: Tensor, at: Sequence[Span], wanted: Sequence[Span], places: Places) -> Tensor:
    """Return a view with the wanted dimensions in their order, at one index along each other dimension.

    Args:
        tensor: the array.
        at: the span of each of its dimensions.
        wanted: spans of the view.
        places: the index along each other dimension, and, if any, the range along a wanted one.
    """
    if any(span in places for span in at):
        tensor = tensor[tuple(places.get(span, slice(None)) for span in at)]
    left = [span for span in at if span in wanted or span not in places]
    order = [left.index(span) for span in wanted]
    return tensor if order == [*range(len(order))] else tensor.permute(*order)


def pair_of(part: ArrayPart) -> tuple[Operand, int] | None:
    """The array of pairs to which a part belongs, and the part's index in a pair; else None."""
    last = part.operand.transforms[-1] if part.operand.transforms else None
    if not isinstance(last, Slice) or last.at[-1] not in (0, 1):
        return None
    both = Slice((*last.at[:-1], (0, 2)))
    whole = replace(part.operand, transforms=(*part.operand.transforms[:-1], both))
    return whole, 0 if last.at[-1] == 0 else 1
