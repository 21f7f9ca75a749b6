"""Rewrite of a flow of complex numbers to an equal flow of real numbers, which every schedule computes.

An array of complex numbers is passed in one of two ways.  As *parts*, it is a real array with a last
dimension of two: both parts of each number.  As *pairs*, it has elements of the size of a complex number, so
that one access moves both parts.  A complex value becomes the values of its two parts.  A product ``A @ B``
becomes four products, which are added up in two sums:

    re = Ar Br - Ai Bi        im = Ar Bi + Ai Br
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from operator import is_
from typing import Any, NamedTuple, TypeAlias

from tilewright.arch import Arch
from tilewright.dataflow.nodes import (
    BATCH,
    TILE,
    ArrayPart,
    Axis,
    Cell,
    CellMerge,
    Flow,
    Fold,
    Folded,
    Integer,
    Literal,
    Map,
    Node,
    Operand,
    Rearrange,
    Reduce,
    Store,
    Sum,
    walk,
    with_arguments,
)
from tilewright.dtypes import DType, boolean, f32, f64, i16, i32, i64
from tilewright.errors import TraceError
from tilewright.functions.table import COMPARISON, CONVERSION
from tilewright.lang.program import BATCH as ANY_DIMS
from tilewright.lang.program import LARGEST, Program, dim_names
from tilewright.lang.specs import TensorSpec
from tilewright.symbolic.nodes import Sym
from tilewright.views.transforms import Slice

MOVED = {"f16": i32, "f32": f64}
"""Dtype of an array of pairs, by the dtype of a part: it has a pair's size, and bulk copies support it."""

BITS = {"f16": (i16, i32), "f32": (i32, i64)}
"""Integers with the number of bits of a part, and of a pair."""


def is_complex(flow: Flow) -> bool:
    """Return whether a flow computes with complex numbers."""
    return any(one.dtype.components > 1 for one in chain(flow.parameters, flow.walk()))


# ---------------------------------------------------------------- arrays


def paired_arrays(flow: Flow, specs: Mapping[str, TensorSpec], arch: Arch) -> frozenset[str]:
    """Return the names of the complex arrays that are passed as pairs.

    Operands of products need their parts as tiles.  Sums on CPUs do, too: a vector register holds parts of
    several numbers.  Other arrays, if aligned, are pairs: a thread moves both parts of a number at once.

    Args:
        flow: the flow.
        specs: the class of each array.
        arch: the architecture.
    """
    if arch.vector_registers and any(isinstance(node, Sum | Reduce | Folded) for node in flow.walk()):
        return frozenset()
    apart = {one.operand.name for node in flow.sums for one in walk(node) if isinstance(one, ArrayPart)}
    for store in flow.stores:  # sums in memory, and stores in the steps of a loop, need parts
        if store.added or any(span.kind not in (BATCH, TILE) for span in store.at):
            apart.add(store.operand.name)
    apart |= {one.operand.name for one in flow.moved}
    names = set[str]()
    for one in flow.parameters:
        if isinstance(one, Operand) and one.dtype.components > 1 and one.name not in apart:
            part = one.dtype.component
            is_aligned = specs[one.name].align % one.dtype.bytes == 0
            names |= {one.name} if part.name in MOVED and is_aligned else set()
    return frozenset(names)


def real_shape(shape: tuple[int, ...], dtype: DType, *, paired: bool) -> tuple[int, ...]:
    """Return the extents of an array as the real flow has it."""
    return shape if paired or dtype.components == 1 else (*shape, dtype.components)


def real_spec(spec: TensorSpec, *, paired: bool) -> TensorSpec:
    """Return the class of an array as the real flow has it.

    Example:
        >>> from tilewright.dtypes import c64
        >>> spec = TensorSpec(c64, 2, 1, (6, 32), (32, 1), 16, False)
        >>> real_spec(spec, paired=False), real_spec(spec, paired=True)
        (f32[6i, 32i, 2i] strides [64i, 2i, 1] align 16, f64[6i, 32i] strides [32i, 1] align 16)
    """
    part, parts = spec.dtype.component, spec.dtype.components
    if parts == 1:
        return spec
    if paired:
        return replace(spec, dtype=MOVED[part.name])
    return TensorSpec(
        part,
        spec.rank + 1,
        spec.rank,
        (*spec.extent_divisors, parts),
        (*(parts * step for step in spec.stride_divisors), 1),
        spec.align,
        spec.wide,
        spec.signed,
    )


def real_program(program: Program, flow: Flow, paired: frozenset[str]) -> Program:
    """Return a program with the parameters that the real flow has.

    Args:
        program: the author's program.
        flow: the flow of complex numbers.
        paired: the arrays that are passed as pairs.
    """
    ranks = {one.name: len(one.shape) for one in _complex_arrays(flow) if one.name not in paired}
    last, parameters = _last_dim(program), []
    for one in program.parameters:
        if one.name in ranks:
            dims = one.dims if ANY_DIMS in one.dims else dim_names(one, ranks[one.name], program.name)
            one = replace(one, dims=(*dims, last))
        parameters.append(one)
    made = copy(program)
    made.parameters = tuple(parameters)
    return made


def _last_dim(program: Program) -> str:
    """Return a name for the last dimension, of both parts, that no parameter and no other dimension has."""
    taken = {name for one in program.parameters for name in (one.name, *one.dims)}
    name = "P"
    while name in taken:
        name += "P"
    return name


def _complex_arrays(flow: Flow) -> list[Operand]:
    return [one for one in flow.parameters if isinstance(one, Operand) and one.dtype.components > 1]


# ---------------------------------------------------------------- values


class BothParts(NamedTuple):
    """The values of both parts of a complex value; None stands for zeros."""

    re: Node | None
    im: Node | None


Made: TypeAlias = Node | BothParts
"""The real value, or both parts, in place of a value of the author's flow."""


class RealFlow:
    """The rewrite of a flow; `flow` is the result.

    Args:
        before: the flow of complex numbers.
        program: the author's program.
        paired: the arrays that are passed as pairs.

    Raises:
        TraceError: a function of complex numbers that parts cannot express; shows the author's line.
    """

    def __init__(self, before: Flow, program: Program, paired: frozenset[str]) -> None:
        self.before, self.paired = before, paired
        self.last = Sym(_last_dim(program), 0, LARGEST, 2)
        self.arrays = {one.name: self._array(one) for one in _complex_arrays(before)}
        self.shapes = {one.name: one.shape for one in _complex_arrays(before)}
        self.made: dict[int, Made] = {}
        self.folds: dict[int, tuple[Fold, list[tuple[int, ...]]]] = {}
        self.known: dict[Any, Node] = {}
        for node in before.walk():
            self.made[id(node)] = self._rewritten(node)
        stores = tuple(made for store in before.stores for made in self._stored(store))
        parameters = tuple(
            self.arrays.get(one.name, one) if isinstance(one, Operand) else one for one in before.parameters
        )
        arrivals = tuple(replace(one, operand=self._whole(one.operand)) for one in before.arrivals)
        leaving = before.departure
        if leaving is not None:
            leaving = replace(leaving, operand=self._whole(leaving.operand))
        self.flow = replace(
            before, parameters=parameters, stores=stores, arrivals=arrivals, departure=leaving
        )

    # ------------------------------------------------------------ arrays

    def _array(self, one: Operand) -> Operand:
        """Return a complex array as the real flow has it."""
        part = one.dtype.component
        if one.name in self.paired:
            return replace(one, dtype=MOVED[part.name])
        return replace(one, dtype=part, shape=(*one.shape, self.last))

    def _whole(self, one: Operand) -> Operand:
        return self.arrays.get(one.name, one)

    def _view(self, one: Operand, part: int) -> Operand:
        """Return one part of a complex array or of a view of it."""
        ends: list[Any] = [(0, extent) for extent in self.shapes[one.name]]
        return replace(one, dtype=one.dtype.component, transforms=(Slice((*ends, part)), *one.transforms))

    def _pairs(self, one: Operand) -> Operand:
        return replace(one, dtype=MOVED[one.dtype.component.name])

    # ------------------------------------------------------------ nodes

    def _make(self, like: Node, kind: type[Node], dtype: DType, axes: tuple[Axis, ...], *fields: Any) -> Any:
        """Make a node, or return an earlier node with the same fields."""
        key = kind, dtype, axes, *(_key(field) for field in fields)
        if key not in self.known:
            self.known[key] = kind(dtype, axes, *fields, variable=like.variable, location=like.location)
        return self.known[key]

    def call(self, like: Node, function: str, *given: Node, dtype: DType | None = None) -> Node:
        """Make an elementwise function of values."""
        first = 1 if function == "select" else 0
        values = given[first:]
        if function != "convert" and all(isinstance(one, Literal) for one in values):
            # Plain numbers have no dtype of their own, so that one is converted.
            typed = self.call(like, "convert", values[0], dtype=values[0].dtype)
            given = (*given[:first], typed, *values[1:])
        made = boolean if function in COMPARISON else dtype or values[0].dtype
        node: Node = self._make(like, Map, made, _broadcast(given), function, given)
        return node

    def number(self, like: Node, value: float, dtype: DType, axes: tuple[Axis, ...] = ()) -> Node:
        """Make a constant."""
        node: Node = self._make(like, Literal, dtype, axes, value)
        return node

    def _filled(
        self,
        like: Node,
        part: Node | None,
        dtype: DType,
        axes: tuple[Axis, ...],
        others: Iterable[Node | None],
    ) -> Node:
        """Return a part with the given axes; zeros if it is None.

        Args:
            like: the value that the part belongs to.
            part: the part.
            dtype: its dtype.
            axes: the axes.
            others: values; the part gets the axes that it lacks from one that has them all.
        """
        made = self.number(like, 0, dtype) if part is None else part
        for other in others:  # a choice has the axes of its condition
            if made.axes != axes and other is not None and other.axes:
                never = self.call(like, "less", other, other)
                made = self.call(like, "select", never, other if other.dtype == dtype else made, made)
        return made

    def _spread(self, node: Node, made: BothParts) -> BothParts:
        """Return parts with all axes of the complex value."""
        kind = node.dtype.component
        full = (one and self._filled(node, one, kind, node.axes, made) for one in made)
        return BothParts(*full)

    # ------------------------------------------------------------ the rewrite

    def _rewritten(self, node: Node) -> Made:
        given = [self.made[id(one)] for one in node.arguments]
        is_pair = node.dtype.components > 1
        if not is_pair and not any(isinstance(one, BothParts) for one in given):
            return node if all(map(is_, given, node.arguments)) else self._with(node, given)
        kind = node.dtype.component
        match node:
            case Literal(value=value) if is_pair:
                return BothParts(self.number(node, value, kind, node.axes), None)
            case Integer(value=number) if is_pair:
                return BothParts(self._make(node, Integer, kind, node.axes, number), None)
            case ArrayPart(operand=operand, at=at) if is_pair and operand.name in self.paired:
                whole = self._pairs(operand)
                return self._parted(self._make(node, ArrayPart, whole.dtype, node.axes, whole, at), kind)
            case ArrayPart(operand=operand, at=at) if is_pair:
                views = (self._view(operand, part) for part in range(2))
                return BothParts(*(self._make(node, ArrayPart, kind, node.axes, one, at) for one in views))
            case Rearrange() if is_pair:
                return self._each(node, given[0])
            case Reduce(combine="sum", axis=axis) if is_pair:
                return self._each(node, given[0], "sum", axis)
            case Cell(name=name) if is_pair:
                starts = (self.number(node, 0, kind) if one is None else one for one in _parts(given[0]))
                cells = zip((name, f"{name}_im"), starts, strict=True)
                return BothParts(*(replace(node, dtype=kind, name=one, start=start) for one, start in cells))
            case Folded(index=index):
                fold, places = self._fold(node.fold)
                found = [self._make(node, Folded, kind, node.axes, fold, at) for at in places[index]]
                return BothParts(*found) if is_pair else found[0]
            case Sum() if is_pair:
                return self._product(node, given)
            case Map():
                return self._mapped(node, given)
        what = node.combine if isinstance(node, Reduce) else type(node).__name__.lower()
        raise self._refusal(node, what, node.dtype)

    def _each(self, node: Node, given: Made, *fields: Any) -> BothParts:
        """Return both parts of a value that is computed from each part of its argument."""
        before, after = fields[:1], fields[1:]
        kind, axes = node.dtype.component, node.axes
        made = (
            one and self._make(node, type(node), kind, axes, *before, one, *after) for one in _parts(given)
        )
        return BothParts(*made)

    def _with(self, node: Node, given: Sequence[Made]) -> Node:
        """Return a real value with other arguments."""
        new = dict(zip(map(id, node.arguments), given, strict=True))
        match node:
            case Map(function="mul", given=(Map(function="abs", given=(z,)) as x, y)) if (
                x is y and z.dtype.components > 1
            ):
                return self._squared(node, _parts(self.made[id(z)]))
            case Cell(start=start):
                return replace(node, start=_node(new[id(start)]))
            case Folded(index=index):
                fold, places = self._fold(node.fold)
                made: Node = self._make(node, Folded, node.dtype, node.axes, fold, places[index][0])
                return made
        return with_arguments(node, lambda one: _node(new[id(one)]))

    def _squared(self, node: Node, parts: BothParts) -> Node:
        """Return ``abs(z) * abs(z)``, without the square root."""
        arithmetic = PartArithmetic(self, node)
        own = [one and self._converted(node, one, f32 if one.dtype.bits < 32 else one.dtype) for one in parts]
        found = arithmetic.add(*(arithmetic.mul(one, one) for one in own))
        found = found and self._converted(node, found, node.dtype)
        return self._filled(node, found, node.dtype, node.axes, parts)

    def _fold(self, fold: Fold) -> tuple[Fold, list[tuple[int, ...]]]:
        """Return a loop over real values, and the indices of each value of the loop."""
        if id(fold) in self.folds:
            return self.folds[id(fold)]
        places: list[tuple[int, ...]] = []
        cells, steps, merges, results = list[Cell](), list[Node](), list[CellMerge | None](), list[Node]()
        for at, (cell, step) in enumerate(zip(fold.cells, fold.steps, strict=True)):
            own = self._all(cell)
            places.append(tuple(range(len(cells), len(cells) + len(own))))
            cells += own  # type: ignore[arg-type]
            steps += self._all(step)
            if fold.merges and (merge := fold.merges[at]) is not None:
                sides = (self._all(one) for one in (merge.first, merge.second, merge.value))
                merges += (CellMerge(*one) for one in zip(*sides, strict=True))
            elif fold.merges:
                merges += [None] * len(own)
        for one in fold.results:
            own = self._all(one)
            first = len(cells) + len(results)
            places.append(tuple(range(first, first + len(own))))
            results += own
        loop = tuple(cells), tuple(steps), fold.turns, tuple(merges), tuple(results)
        made = Fold(fold.span, *loop)
        self.folds[id(fold)] = made, places
        return self.folds[id(fold)]

    def _all(self, node: Node) -> list[Node]:
        """Return the value, or both parts of a complex value, with all of its axes."""
        made = self.made[id(node)]
        if isinstance(made, Node):
            return [made]
        return [self._filled(node, one, node.dtype.component, node.axes, made) for one in made]

    def _product(self, node: Sum, given: Sequence[Made]) -> BothParts:
        """Return both sums of products of parts; see the module."""
        kind = node.dtype.component
        (ar, ai), (br, bi), *more = map(_parts, given)
        scales = iter(more)
        factors: list[Node | None] = []
        for one in node.scales:
            scale = None if one is None else next(scales)
            if scale is not None and (scale.im is not None or scale.re is None):
                raise self._refusal(node, "a product with scales of complex numbers", node.dtype)
            factors.append(None if scale is None else scale.re)

        def total(*rows: tuple[Node | None, Node | None, int]) -> Node | None:
            found: Node | None = None
            for a, b, sign in rows:
                if a is None or b is None:
                    continue
                (a, s), (b, t) = _signed(a), _signed(b)
                a = a if s * t * sign > 0 else self.call(a, "neg", a)
                term = self._make(node, Sum, kind, node.axes, node.span, a, b, node.precision, *factors)
                found = term if found is None else self.call(node, "add", found, term)
            return found

        return BothParts(total((ar, br, 1), (ai, bi, -1)), total((ar, bi, 1), (ai, br, 1)))

    # ------------------------------------------------------------ elementwise functions

    def _mapped(self, node: Map, given: Sequence[Made]) -> Made:
        """Return an elementwise function with complex arguments or results."""
        function, kind = node.function, node.dtype.component
        if function == "select":
            mask = given[0]
            assert isinstance(mask, Node)
            pairs = [[one or self.number(node, 0, kind) for one in _parts(both)] for both in given[1:]]
            chosen = (self.call(node, "select", mask, *both) for both in zip(*pairs, strict=True))
            return self._spread(node, BothParts(*chosen))
        if function in CONVERSION:
            if node.dtype.components == 1 or function == "bitcast":
                raise self._refusal(node, f"{function} to {node.dtype}", node.given[0].dtype)
            found = given[0] if isinstance(given[0], BothParts) else BothParts(given[0], None)
            return BothParts(*(one and self._converted(node, one, kind, function) for one in found))
        if function == "complex":
            both = map(_node, given)
            re, im = (None if isinstance(one, Literal) and one.value == 0 else one for one in both)
            return self._spread(node, BothParts(_node(given[0]) if im is None else re, im))
        parts = [_parts(one) for one in given]
        rule = RULES.get(function)
        if rule is None:
            raise self._refusal(node, function, node.given[0].dtype)
        arithmetic = PartArithmetic(self, node)
        wide = node.given[0].dtype.component
        if function in EXACT or wide.bits >= f32.bits:
            made = rule(arithmetic, *chain(*parts))
        else:  # a function of narrow parts is rounded once
            up = (one and self._converted(node, one, f32) for one in chain(*parts))
            made = rule(arithmetic, *up)
            if isinstance(made, BothParts):
                made = BothParts(*(one and self._converted(node, one, kind) for one in made))
            elif made is not None and made.dtype != node.dtype:
                made = self._converted(node, made, node.dtype)
        if isinstance(made, BothParts):
            return self._spread(node, made)
        return self._filled(node, made, node.dtype, node.axes, chain(*parts))

    def _converted(self, like: Node, node: Node, kind: DType, function: str = "convert") -> Node:
        if node.dtype == kind:
            return node
        if isinstance(node, Literal):
            return self.number(node, node.value, kind, node.axes)
        return self.call(like, function, node, dtype=kind)

    def _refusal(self, node: Node, what: str, kind: DType) -> TraceError:
        is_order = what in ("less", "max", "min")
        why = "complex numbers have no order" if is_order else "no formula of its parts is known"
        text = f"{what} of {node.variable or 'a value'}, which is of {kind}: {why}"
        return TraceError(text, node.location, "x.real, x.imag, abs(x) or x.conj()")

    # ------------------------------------------------------------ both parts of a number moved as one

    def _parted(self, pair: Node, part: DType) -> BothParts:
        """Unpack both parts from one element that copies move."""
        narrow, wide = BITS[part.name]
        both = pair if pair.dtype == wide else self.call(pair, "bitcast", pair, dtype=wide)
        shift = self.number(pair, part.bits, wide)
        halves = both, self.call(pair, "shift_right", both, shift)
        low, high = (self._converted(pair, one, narrow) for one in halves)
        return BothParts(*(self.call(pair, "bitcast", one, dtype=part) for one in (low, high)))

    def _joined(self, re: Node, im: Node, part: DType) -> Node:
        """Round both parts to a dtype, and pack them to one element that copies move."""
        narrow, wide = BITS[part.name]
        parts = (self._converted(one, one, part) for one in (re, im))
        low, high = (
            self._converted(one, self.call(one, "bitcast", one, dtype=narrow), wide) for one in parts
        )
        low = self.call(re, "and", low, self.number(re, (1 << part.bits) - 1, wide))
        high = self.call(im, "shift_left", high, self.number(im, part.bits, wide))
        both = self.call(re, "or", low, high)
        moved = MOVED[part.name]
        return both if moved == wide else self.call(re, "bitcast", both, dtype=moved)

    def _stored(self, store: Store) -> list[Store]:
        """Return the stores of both parts, or of pairs."""
        made, operand = self.made[id(store.value)], store.operand
        kind = operand.dtype
        if kind.components == 1:
            if isinstance(made, BothParts):
                raise TraceError(
                    f"{operand.name} holds {kind}, and the value is {store.value.dtype}: its imaginary parts "
                    "would be lost",
                    store.location,
                    f"an array of {store.value.dtype}, or x.real, x.imag or abs(x)",
                )
            return [store if made is store.value else replace(store, value=made)]
        part = kind.component
        found = _parts(made)
        re, im = (self.number(store.value, 0, part) if one is None else one for one in found)
        if operand.name in self.paired:
            return [replace(store, operand=self._pairs(operand), value=self._joined(re, im, part))]
        return [
            replace(store, operand=self._view(operand, at), value=value) for at, value in enumerate((re, im))
        ]


def _node(made: Made) -> Node:
    assert isinstance(made, Node), "a real value"
    return made


def _parts(made: Made) -> BothParts:
    return made if isinstance(made, BothParts) else BothParts(made, None)


def _key(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    value = id(value) if isinstance(value, Node | Fold) else value
    return (type(value), repr(value)) if isinstance(value, int | float) else value


def _broadcast(nodes: Sequence[Node]) -> tuple[Axis, ...]:
    """Return the axes of a function of values, which are aligned at their last axes."""
    rank = max(len(node.axes) for node in nodes)
    found = [[node.axes[at] for node in nodes if len(node.axes) >= -at] for at in range(-rank, 0)]
    return tuple(next((axis for axis in one if axis is not None), None) for one in found)


def _signed(node: Node) -> tuple[Node, int]:
    """Return a value without its outer negations, and their sign."""
    sign = 1
    while isinstance(node, Map) and node.function == "neg":
        (node,), sign = node.given, -sign
    return node, sign


# ---------------------------------------------------------------- formulas of parts


Term: TypeAlias = Node | None
"""One part of a value; None is zero."""


@dataclass(frozen=True)
class PartArithmetic:
    """Arithmetic with parts, in which None is zero.

    Args:
        flow: the rewrite.
        like: the value that is computed.
    """

    flow: RealFlow
    like: Node

    def call(self, function: str, *given: Node) -> Node:
        """Return a function of parts."""
        return self.flow.call(self.like, function, *given)

    def number(self, value: float, like: Node) -> Node:
        """Return a constant of a value's dtype."""
        return self.flow.number(self.like, value, like.dtype)

    def neg(self, x: Term) -> Term:
        """Return ``-x``."""
        if isinstance(x, Literal):
            return self.flow.number(self.like, -x.value, x.dtype, x.axes)
        if isinstance(x, Map) and x.function == "neg":
            return x.given[0]
        return x and self.call("neg", x)

    def add(self, x: Term, y: Term) -> Term:
        """Return ``x + y``."""
        if x is None or y is None:
            return x or y
        for one, other in ((x, y), (y, x)):
            if isinstance(other, Map) and other.function == "neg":
                return self.call("sub", one, other.given[0])
        return self.call("add", x, y)

    def sub(self, x: Term, y: Term) -> Term:
        """Return ``x - y``."""
        if y is None or x is None:
            return x or self.neg(y)
        if isinstance(y, Map) and y.function == "neg":
            return self.call("add", x, y.given[0])
        return self.call("sub", x, y)

    def mul(self, x: Term, y: Term) -> Term:
        """Return ``x * y``."""
        if x is None or y is None:
            return None
        for one, other in ((x, y), (y, x)):
            if isinstance(one, Literal) and abs(one.value) == 1 and {*one.axes} <= {*other.axes, None}:
                return other if one.value == 1 else self.neg(other)
        (x, s), (y, t) = _signed(x), _signed(y)
        found = self.call("mul", x, y)
        return found if s * t > 0 else self.neg(found)

    def div(self, x: Term, y: Node) -> Term:
        """Return ``x / y``."""
        return x and self.call("div", x, y)


def _times(parts: PartArithmetic, a: Term, b: Term, c: Term, d: Term) -> Made:
    return BothParts(parts.sub(parts.mul(a, c), parts.mul(b, d)), parts.add(parts.mul(a, d), parts.mul(b, c)))


def _quotient(parts: PartArithmetic, a: Term, b: Term, c: Term, d: Term) -> BothParts:
    """Return ``(a + i b) / (c + i d)`` by Smith's method, which squares no part."""
    if d is None:
        divisor = c if c is not None else parts.number(0, a or b or parts.flow.number(parts.like, 0, f32))
        return BothParts(parts.div(a, divisor), parts.div(b, divisor))
    if c is None:
        return BothParts(parts.div(b, d), parts.neg(parts.div(a, d)))
    call = parts.call
    is_wide = call("less_equal", call("abs", d), call("abs", c))
    large, small = call("select", is_wide, c, d), call("select", is_wide, d, c)
    is_zero = call("equal", large, parts.number(0, large))  # then the ratio is 0, not NaN
    ratio = call("select", is_zero, small, call("div", small, large))
    whole = call("add", large, call("mul", small, ratio))

    def chosen(first: Term, second: Term) -> Term:
        """Return ``first + second * ratio``, or ``first * ratio + second`` if d is larger."""
        if first is None and second is None:
            return None
        x, y = (parts.number(0, large) if one is None else one for one in (first, second))
        left, right = call("select", is_wide, x, y), call("select", is_wide, y, x)
        return call("div", call("add", left, call("mul", right, ratio)), whole)

    return BothParts(chosen(a, b), chosen(b, parts.neg(a)))


def _size(parts: PartArithmetic, a: Term, b: Term) -> Term:
    """Return ``sqrt(a * a + b * b)`` without overflow of the squares."""
    call = parts.call
    if a is None or b is None:
        one = a or b
        return one and call("abs", one)
    x, y = call("abs", a), call("abs", b)
    large, small = call("max", x, y), call("min", x, y)
    ratio = call("div", small, large)
    square = call("add", call("mul", ratio, ratio), parts.number(1, large))
    is_plain = call("less", small, large)
    even = call("mul", large, parts.number(2**0.5, large))  # also of zeros and of two infinities
    return call("select", is_plain, call("mul", large, call("sqrt", square)), even)


def _power(parts: PartArithmetic, a: Term, b: Term) -> BothParts:
    """Return ``exp(a) * (cos(b) + i sin(b))``."""
    call = parts.call
    if b is None:
        return BothParts(call("exp", a) if a is not None else parts.flow.number(parts.like, 1, f32), None)
    factor = None if a is None else call("exp", a)
    re, im = (one if factor is None else call("mul", factor, one) for one in (call("cos", b), call("sin", b)))
    # A factor of infinity and an angle of 0 give 0, not NaN.
    return BothParts(
        re, im if factor is None else call("select", call("equal", b, parts.number(0, b)), b, im)
    )


def _equal(parts: PartArithmetic, a: Term, b: Term, c: Term, d: Term) -> Node:
    call = parts.call
    found = list[Node]()
    for x, y in ((a, c), (b, d)):
        one = x or y
        if one is not None:
            zero = parts.number(0, one)
            found.append(call("equal", x or zero, y or zero))
    zeros = [parts.number(0, parts.flow.number(parts.like, 0, f32))] * 2
    return reduce(partial(call, "and"), found or [call("equal", *zeros)])


RULES: dict[str, Callable[..., Any]] = {
    "add": lambda parts, a, b, c, d: BothParts(parts.add(a, c), parts.add(b, d)),
    "sub": lambda parts, a, b, c, d: BothParts(parts.sub(a, c), parts.sub(b, d)),
    "mul": _times,
    "div": _quotient,
    "neg": lambda parts, a, b: BothParts(parts.neg(a), parts.neg(b)),
    "conj": lambda parts, a, b: BothParts(a, parts.neg(b)),
    "real": lambda parts, a, b: a,
    "imag": lambda parts, a, b: b,
    "abs": _size,
    "exp": _power,
    "equal": _equal,
    "not_equal": lambda parts, *given: parts.call("invert", _equal(parts, *given)),
}
"""The formula of each function of complex numbers, of the parts of its arguments."""

EXACT = ("add", "sub", "neg", "conj", "real", "imag", "equal", "not_equal")
"""Functions that round each part at most once."""
