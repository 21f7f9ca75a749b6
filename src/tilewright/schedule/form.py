"""The form of a flow as schedules see it: products, operands, sums, and the epilogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd, prod
from typing import Any

from tilewright.dataflow.nodes import (
    BATCH,
    TILE,
    ArrayPart,
    Arrival,
    Flow,
    Integer,
    Map,
    Node,
    Operand,
    Rearrange,
    Reduce,
    Rows,
    Span,
    Store,
    Sum,
    walk,
    with_arguments,
)
from tilewright.errors import TraceError, Violation
from tilewright.lang.scalars import Index, unwrap, wrap
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.schedule.factors import (
    EXPLICIT,
    Factor,
    FactorProduct,
    InnerProduct,
    Places,
    Rescale,
    plain,
    plan_of,
    run_along,
    same,
)
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.row_sums import RowSum, with_row_sums
from tilewright.schedule.work import MOST, Work
from tilewright.symbolic.nodes import Int, Sym, divisor
from tilewright.symbolic.rebuilding import substitute
from tilewright.views.transforms import Broadcast, Merge, Permute, Slice, Transform
from tilewright.views.view import View


@dataclass(frozen=True)
class Form:
    """A flow of products that share their tiles.

    Products that are summed along the same span share a loop.  Loops over several spans follow each other.

    Args:
        flow: the graph.
        rows_m: the operands with rows along M; each is loaded once for all of its products.
        rows_n: the operands with rows along N.
        products: the products, in the author's order.
        totals: the sums, each of one or several products.
        depths: the summed spans, in the order of their loops.
        rescales: scales of totals after a loop.
        row_sums: sums of rows of operands.
        batch: the leading spans.
        m: the span of the rows of the result.
        n: the span of its columns.
        author: the graph as the author wrote it; in `flow`, sums of rows are leaves.
        swap_ab: whether this is the transposed product; see `arranged`.
        lists: whether each item of the batch has its own arrays; see `tilewright.schedule.lists`.
        inner: the products whose sums are operands of others; they have rows of the result, or columns.
    """

    flow: Flow
    rows_m: tuple[Factor, ...]
    rows_n: tuple[Factor, ...]
    products: tuple[FactorProduct, ...]
    totals: tuple[Node, ...]
    depths: tuple[Span, ...]
    rescales: tuple[Rescale, ...]
    row_sums: tuple[RowSum, ...]
    batch: tuple[Span, ...]
    m: Span
    n: Span
    author: Flow
    swap_ab: bool = False
    lists: bool = False
    inner: tuple[InnerProduct, ...] = ()

    @property
    def sum(self) -> Sum:
        """The first sum of products."""
        return (self.products or self.inner)[0].sum

    @property
    def a(self) -> Factor:
        """The first operand with rows along M."""
        return self.rows_m[0]

    @property
    def b(self) -> Factor:
        """The first operand with rows along N."""
        return self.rows_n[0]

    @property
    def factors(self) -> tuple[Factor, ...]:
        """All operands, those along M first."""
        return (*self.rows_m, *self.rows_n)

    @property
    def is_single(self) -> bool:
        """Whether there is only one product."""
        return len(self.products) == 1

    @cached_property
    def loops(self) -> tuple[Form, ...]:
        """The form of each loop, with its own operands and products, and the totals of all."""
        if len(self.depths) == 1:
            return (self,)
        found, sides = [], (self.rows_m, self.rows_n)
        for span in self.depths:
            kept = [[at for at, one in enumerate(side) if one.depth == span] for side in sides]
            a, b = ({at: number for number, at in enumerate(of)} for of in kept)
            products = tuple(
                replace(one, a=a.get(one.a, one.a), b=b.get(one.b, one.b))
                for one in self.products
                if one.sum.span == span
            )
            inner = tuple(
                replace(one, a=a[one.a or 0], b=b[one.b or 0])
                if one.sum.span == span
                else replace(one, a=None, b=None)
                for one in self.inner
            )
            m, n = (tuple(side[at] for at in of) for side, of in zip(sides, kept, strict=True))
            loop = replace(self, rows_m=m, rows_n=n, products=products, inner=inner)
            found.append(replace(loop, depths=(span,), rescales=()))
        return tuple(found)

    @property
    def without_inner(self) -> Form:
        """The form of a loop without the products whose sums are operands of others."""
        m, n = (
            tuple(one for one in side if one.row in (self.m, self.n)) for side in (self.rows_m, self.rows_n)
        )
        return replace(self, rows_m=m, rows_n=n, inner=())

    @property
    def reads_inner(self) -> bool:
        """Whether a loop multiplies operands that follow from the sums of an earlier one."""
        return any(one.a < 0 or one.b < 0 for one in self.products)

    def number_of(self, node: Node) -> int | None:
        """The index of a value among the totals, and the sums of rows that follow them; None for others."""
        known = enumerate((*self.totals, *self.row_sums))
        return next((number for number, total in known if total is node), None)

    def arranged(self, swap_ab: bool) -> Form:
        """The form as a schedule multiplies it: as the author wrote it, or ``C^T = B^T @ A^T``.

        In the transposed product, B is operand A, and its columns are the rows of the result.  The arrays
        stay the same, because their dimensions are known by their spans.

        Args:
            swap_ab: whether to return the transposed product.
        """
        return self if swap_ab == self.swap_ab else self._turned

    @cached_property
    def _turned(self) -> Form:
        products = tuple(product.transposed for product in self.products)
        turned = replace(self, rows_m=self.rows_n, rows_n=self.rows_m, products=products, m=self.n, n=self.m)
        inner = tuple(one.transposed for one in self.inner)
        return replace(turned, inner=inner, swap_ab=not self.swap_ab)

    @cached_property
    def judged(self) -> dict[Hashable, tuple[object, list[Violation]]]:
        """Known reasons to refuse schedules of this form; see `tilewright.schedule.legality`."""
        return {}

    def places(self, work: Work, whole: Collection[Span] = ()) -> Places:
        """The place of a result tile in the arrays, along all dimensions that are not cut into tiles.

        Args:
            work: the tile.
            whole: the spans along which all elements after the tile's group are included.
        """
        found: dict[Span, Index | slice] = dict(zip(self.batch, work.batch, strict=True))
        for span, cut in zip((self.m, self.n, self.depths[0]), work.cuts, strict=True):
            if cut is not None:
                found[span] = slice(cut.start, None) if span in whole else cut
        return found

    @property
    def bounded(self) -> Span | None:
        """The summed span if it has groups, else None.  Loops over several spans have no groups."""
        return self.depths[0] if self.depths[0].groups is not None else None

    def ends_within(self, depth: int) -> bool:
        """Whether groups along K may end within a tile of this depth."""
        groups = self.depths[0].groups
        return groups is not None and groups.block % depth > 0

    def spec(self, operand: Operand, specs: Mapping[str, TensorSpec]) -> TensorSpec:
        """The class of an array or a view; see `spec_of`."""
        return spec_of(self.flow, operand, specs)

    @property
    def scaled_every(self) -> int:
        """Number of neighbours along K that share their scales; 0: no operand has scales."""
        return gcd(*(factor.scale.run for factor in self.factors if factor.scale is not None))

    @property
    def precision(self) -> str:
        """The precision of the products; see `Sum`."""
        return self.sum.precision

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores of the results."""
        return self.flow.stores

    @cached_property
    def blocks(self) -> tuple[Store, ...]:
        """The stores along rows and columns."""
        return tuple(store for store in self.stores if {self.m, self.n} <= {*store.at})

    @cached_property
    def lines(self) -> tuple[Store, ...]:
        """The stores along rows only, or along columns only."""
        return tuple(store for store in self.stores if not {self.m, self.n} <= {*store.at})

    @cached_property
    def reductions(self) -> tuple[Reduce, ...]:
        """The reductions along rows and along columns of the result."""
        return tuple(node for node in self.flow.walk() if isinstance(node, Reduce))

    @cached_property
    def mirrored(self) -> tuple[Store, ...]:
        """The stores above the diagonal: the second store of an array, with rows and columns exchanged."""
        arrays = [store.operand for store in self.stores]
        return tuple(store for at, store in enumerate(self.stores) if store.operand in arrays[:at])


def form_of(flow: Flow) -> Form:
    """The form of a flow.

    Raises:
        TraceError: no schedule can compute the flow; the message names the explicit form.
    """
    author, flow = flow, of_matrices(with_row_sums(flow))
    batch = tuple(span for span in flow.tiles if span.kind == BATCH)
    inner = tuple(span for span in flow.tiles if span.kind != BATCH)
    where = flow.stores[0].location if flow.stores else None
    if len(inner) != 2:
        rule = "schedules compute products over one or two"
        text = f"kernel {flow.name} has a product over {len(inner)} tiled dimensions; {rule}"
        raise TraceError(text, where, f"another batch= of tw.tiles, or {EXPLICIT}")
    m, n = inner
    stored = Counter(store.operand for store in flow.stores)
    for store in (one for one in flow.stores if max(stored.values()) > 1 and stored[one.operand] == 1):
        twice = next(operand.name for operand, count in stored.items() if count > 1)
        raise TraceError(
            f"{twice} is stored twice, so tiles above the diagonal are not computed, and "
            f"{store.operand.name} is stored once",
            store.location,
            f"a kernel of its own for {store.operand.name}, or one store of {twice}",
        )
    for at, store in enumerate(flow.stores):
        first = next((one for one in flow.stores[:at] if one.operand == store.operand), None)
        if first is not None and not _agree(first.value, store.value):
            name, (rows, columns) = store.operand.name, (m.name, n.name)
            raise TraceError(
                f"{name} is stored twice, with values that are computed differently",
                store.location,
                f"the same value, {name}[{rows}, {columns}] = value and {name}[{columns}, {rows}] = value.T",
            )
    if flow.grouped is not None and (len(batch) > 1 or flow.grouped != m):
        text = f"kernel {flow.name} has products of groups of {flow.grouped.name} with other batches"
        raise TraceError(text, where, f"groups of the rows of a matrix, without batch=; or {EXPLICIT}")
    plan = plan_of(flow, m, n)
    for one in flow.moved:
        if flow.grouped is not None or max(stored.values()) > 1:
            name, why = one.operand.name, "has groups" if flow.grouped is not None else "is stored twice"
            text = f"{name} consists of shards, and the result {why}, which decides the order of tiles too"
            raise TraceError(text, one.location, f"batches in place of groups, or one store; or {EXPLICIT}")
    factors = {id(one.part) for one in (*plan.rows_m, *plan.rows_n)}
    below = {id(node) for total in flow.walk() if isinstance(total, Sum) for node in walk(total)}
    sides = (below - factors) | {id(side) for one in (*plan.rows_m, *plan.rows_n) for side in one.beside}
    added = {id(node) for store in flow.stores for node in above_sums(store.value)}
    for one in flow.arrivals:
        name, found = one.operand.name, [part for part in flow.walk() if isinstance(part, ArrayPart)]
        parts = [part for part in found if part.operand.name == name]
        # Factors are awaited before the main loop, other arrays after it. An array has one wait.
        awaited = factors if any(id(part) in factors for part in parts) else added
        for part in parts:
            what, near = f"{name} arrives in shards", f"{name} itself, as a factor or after the loop"
            # A vector is broadcast to a matrix.
            is_whole = all(isinstance(one, Broadcast) for one in part.operand.transforms)
            if is_whole and part.at[0] not in flow.tiles:
                wrong = f"{what} of its first dimension, which {part.at[0].name} indexes, a span of a loop"
            elif part.operand.transforms:
                wrong = f"{what}, and a view of it is read"
            elif id(part) in awaited and id(part) not in sides:
                continue
            elif id(part) not in sides:
                wrong = f"{what}, and is read by a product and after the loop, but a tile waits for it once"
                near = "a second array, with counters of its own, that is read after the loop"
            else:
                wrong = f"{what}, and is combined with a factor of a product, such as a scale of its rows"
                if all(span in flow.tiles for span in part.at):
                    near = f"{name} after the loop, where it scales the sum"
                else:
                    near = f"an earlier kernel, which waits for {name} and stores the factor"
            raise TraceError(wrong, one.location, f"{near}; or {EXPLICIT}")
    bounded = next((span for span in plan.depths if span.groups is not None), None)
    if bounded is not None and (len(plan.depths) > 1 or flow.grouped is not None):
        other = next((span.name for span in plan.depths if span != bounded), f"groups of {m.name}")
        text = f"kernel {flow.name} has products over {bounded.name}, whose bounds lie in memory, and {other}"
        raise TraceError(text, where, f"two kernels, or {EXPLICIT}")
    for factor in (*plan.rows_m, *plan.rows_n) if bounded is not None else ():
        runs = [part for part in factor.beside if (run_along(part, factor.depth) or 1) > 1]
        if factor.scale is not None or runs:
            raise TraceError(
                f"kernel {flow.name} has neighbours along {factor.depth.name} that share a scale, and its "
                "bounds lie in memory",
                where,
                f"an element for each {factor.depth.name}",
            )
    for node in flow.walk():  # a reduced dimension lies in one tile, and groups have any length
        if isinstance(node, Reduce) and node.argument.axes[node.axis] == flow.grouped is not None:
            raise TraceError(
                f"{node.combine} along {flow.grouped.name}, the rows of a group, whose number is known only "
                "on the device",
                node.location,
                EXPLICIT,
            )
    row_sums = tuple(node for node in flow.walk() if isinstance(node, RowSum))
    return Form(
        *(flow, plan.rows_m, plan.rows_n, plan.products, plan.totals, plan.depths, plan.rescales),
        *(row_sums, batch, m, n, author),
        inner=plan.inner,
    )


def _agree(one: Node, other: Node) -> bool:
    """Whether two values are the same function of the same elements, in any order of their axes."""
    one, other = plain(one), plain(other)
    if one is other:
        return True
    if type(one) is not type(other) or one.dtype != other.dtype:
        return False
    names = {field.name for field in fields(one)} - {"axes", "variable", "location"}
    given = [(getattr(one, name), getattr(other, name)) for name in names]
    numbers = (pair for pair in given if not isinstance(pair[0], Node | tuple))
    arguments = one.arguments, other.arguments
    if isinstance(one, ArrayPart) or len(arguments[0]) != len(arguments[1]):
        return same(one, other)
    return all(a == b for a, b in numbers) and all(map(_agree, *arguments))


def spec_of(flow: Flow, operand: Operand, specs: Mapping[str, TensorSpec]) -> TensorSpec:
    """The class of an array or a view; of a view, only the contiguous dimension is known.

    Args:
        flow: the flow whose parameter it is.
        operand: the array, or the view.
        specs: the classes of the arrays, by name.
    """
    spec = specs[operand.name]
    if not operand.transforms:
        return spec
    is_kept = bool(operand.indices) or all(isinstance(one, Broadcast) for one in operand.transforms)
    if is_kept and (kept := kept_rows(spec, operand.transforms)) is not None:
        return kept
    arrays = (one for one in flow.parameters if isinstance(one, Operand))
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


def kept_rows(spec: TensorSpec, transforms: tuple[Transform, ...]) -> TensorSpec | None:
    """The class of a view whose rows begin where rows of the array begin; None for other views."""
    for transform in transforms:
        rank, unit = spec.rank, spec.unit_dim
        extents, steps = list(spec.extent_divisors), list(spec.stride_divisors)
        if isinstance(transform, Rows):
            dim, count = transform.dim, len(transform.index.shape)
            extents[dim : dim + 1], steps[dim : dim + 1] = [1] * count, [steps[dim]] * count
            rank += count - 1
            unit = None if unit in (None, dim) else unit + (count - 1) * (dim < unit)
        elif isinstance(transform, Broadcast):  # a stride of 0 is a multiple of every number
            extents.insert(transform.dim, divisor(transform.extent) or 1)
            steps.insert(transform.dim, ROW_BYTES)
            rank += 1
            unit = None if unit is None else unit + (transform.dim <= unit)
        elif isinstance(transform, Merge) and unit not in range(
            transform.dim, transform.dim + transform.count
        ):
            run = slice(transform.dim, transform.dim + transform.count)
            extents[run], steps[run] = [prod(extents[run])], [gcd(*steps[run])]
            rank += 1 - transform.count
            unit = unit if unit is None or unit < transform.dim else unit + 1 - transform.count
        elif isinstance(transform, Permute):
            extents, steps = ([of[dim] for dim in transform.order] for of in (extents, steps))
            unit = None if unit is None else transform.order.index(unit)
        elif isinstance(transform, Slice) and all(isinstance(a, tuple) and a[0] == 0 for a in transform.at):
            ends = [part[1] for part in transform.at if isinstance(part, tuple)]
            extents = [1 if end is None else divisor(end) or 1 for end in ends]
        else:
            return None
        spec = replace(
            spec, rank=rank, unit_dim=unit, extent_divisors=tuple(extents), stride_divisors=tuple(steps)
        )
    return spec


def of_matrices(flow: Flow) -> Flow:
    """The same flow with two tiled dimensions if it has one: vectors become matrices of one column.

    A matrix by a vector is ``y[m, one] = sum_k A[m, k] * x[k, one]``; a vector by a matrix is its transpose.
    If both operands of a sum are vectors, one of them is repeated along the tiled dimension.
    """
    inner = tuple(span for span in flow.tiles if span.kind != BATCH)
    if len(inner) != 1 or not flow.sums:
        return flow
    (row,), one = inner, Span("one", 1, TILE)
    made: dict[int, Node] = {}
    stored = {store.operand.name for store in flow.stores}
    for node in flow.walk():
        match node:
            case ArrayPart(operand=Operand(name=name)) if name in stored and row in node.at:
                made[id(node)] = _repeated(node, one, row)  # a thread reads the elements that it stores
            case Sum():
                pairs = [(node.a, node.scale_a), (node.b, node.scale_b)]
                if row in node.b.axes and row not in node.a.axes:
                    pairs.reverse()
                (a, scale_a), (b, scale_b) = pairs
                a = a if row in a.axes else _repeated(a, row, node.span)
                b = _repeated(b, one, node.span)
                made[id(node)] = replace(node, a=a, b=b, scale_a=scale_a, scale_b=scale_b)
            case _:
                made[id(node)] = with_arguments(node, lambda one: made[id(one)])
    stores = tuple(
        replace(store, value=made[id(store.value)], operand=_with(store.operand, one), at=(*store.at, one))
        if row in store.at
        else replace(store, value=made[id(store.value)])
        for store in flow.stores
    )
    return replace(flow, tiles=(*flow.tiles, one), stores=stores)


def _repeated(node: Node, span: Span, depth: Span) -> Node:
    """An operand with another span, along which its elements repeat."""
    match node:
        case ArrayPart(at=at) if depth in at:
            axes = (*node.axes, span)
            return replace(node, axes=axes, operand=_with(node.operand, span), at=(*at, span))
        case Map() | Rearrange():
            return with_arguments(node, lambda one: _repeated(one, span, depth))
    return node


def _with(operand: Operand, span: Span) -> Operand:
    """A view of an array with one more dimension, along which elements are the same."""
    made = Broadcast(len(operand.shape), span.extent)
    return replace(operand, shape=(*operand.shape, span.extent), transforms=(*operand.transforms, made))


def array(arguments: Mapping[str, Any], operand: Operand) -> Tensor:
    """An array of the kernel, or the view of it that an operand names."""
    tensor: Tensor = arguments[operand.name]
    for transform in operand.transforms:
        if isinstance(transform, Rows):
            index = arguments[transform.index.name]
            tensor = tensor.rows(index, transform.dim, padded=transform.padded)
        else:
            tensor = tensor._view(transform, "view")
    return tensor


def integer_in(flow: Flow, arguments: Mapping[str, Any], value: Int) -> Index:
    """The value of a flow's integer in the kernel's arguments."""
    known: dict[Sym, Int] = {}
    for parameter in flow.parameters:
        if isinstance(parameter, Operand):
            pairs = zip(parameter.shape, arguments[parameter.name].shape, strict=True)
            known |= {size: unwrap(extent) for size, extent in pairs if isinstance(size, Sym)}
        elif isinstance(parameter, Integer) and isinstance(parameter.value, Sym):
            known[parameter.value] = unwrap(arguments[parameter.value.name])
    return wrap(substitute(value, known))


def extent_of(form: Form, arguments: Mapping[str, Any], span: Span) -> Index:
    """The extent of a span in the kernel's arguments."""
    places = [(factor.part.operand, factor.part.at) for factor in form.factors]
    places += [(store.operand, store.at) for store in form.stores]
    found: Index = next(
        array(arguments, operand).shape[at.index(span)] for operand, at in reversed(places) if span in at
    )
    return found


def above_sums(node: Node) -> Iterator[Node]:
    """A value and the values from which it is computed, down to the sums."""
    yield node
    if not isinstance(node, Sum):
        for argument in node.arguments:
            yield from above_sums(argument)


def added_arrivals(form: Form) -> tuple[Arrival, ...]:
    """The arrays that arrive in shards and are read after the loops, not by products."""
    factors = {one.part.operand for one in form.factors}
    return tuple(one for one in form.flow.arrivals if one.operand not in factors)


def has_slices(form: Form) -> bool:
    """Whether slices of results are independent: nothing is reduced, or stored along one dimension only."""
    return not form.lines and not form.reductions


# ---------------------------------------------------------------- reductions across tiles


POWERS = ("exp", "exp2")
"""Functions ``f`` for which ``f(x - a) = f(x - b) * f(b - a)``."""


def reduced_in_parts(form: Form) -> tuple[Reduce, ...]:
    """The reductions of a flow, if each can be computed from reductions of its tiles; else ().

    Two conditions must hold.  Only results along rows or along columns depend on them.  No reduction depends
    on another one, except a sum of powers that are shifted by their maximum.
    """
    found = form.reductions
    if form.lists or form.flow.grouped is not None or not found:
        return ()
    stored = [node for store in form.blocks for node in walk(store.value)]
    if any(isinstance(node, Reduce) for node in stored):
        return ()
    for node in found:
        inner = [one for one in walk(node.argument) if isinstance(one, Reduce)]
        shift = shift_of(node)
        if inner and (shift is None or inner != [shift[0]]):
            return ()
    return found


def shift_of(node: Reduce) -> tuple[Reduce, str] | None:
    """The maximum and f of ``sum of f(x - max of x)``; None for any other reduction."""
    power = plain(node.argument)
    if node.combine != "sum" or not isinstance(power, Map) or power.function not in POWERS:
        return None
    difference = plain(power.given[0])
    if not isinstance(difference, Map) or difference.function != "sub":
        return None
    value, top = (plain(one) for one in difference.given)
    if not isinstance(top, Reduce) or top.combine != "max" or plain(top.argument) is not value:
        return None
    same = top.argument.axes[top.axis] == node.argument.axes[node.axis]
    return (top, power.function) if same else None


def merged_rows(flow: Flow, operand: Operand) -> int:
    """Number of elements of each gathered row that a later merge puts side by side; 0 without a merge."""
    arrays = (one for one in flow.parameters if isinstance(one, Operand))
    shape = next(one.shape for one in arrays if one.name == operand.name)
    view, found, is_chosen = View.strided(shape, (0,) * len(shape)), 0, False
    for transform in operand.transforms:
        is_chosen = is_chosen or isinstance(transform, Rows)
        if is_chosen and isinstance(transform, Merge):
            inner = view.shape[transform.dim + 1 : transform.dim + transform.count]
            found = prod(one if isinstance(one, int) else 0 for one in inner)
        view = transform.apply(view)
    return found
