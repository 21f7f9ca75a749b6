"""Random flows: graphs of legal values of every kind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import tilewright as tw
from tilewright.dataflow.legality import fits, misfit
from tilewright.dataflow.nodes import (
    BATCH,
    STEPS,
    TILE,
    ArrayPart,
    Axis,
    Cell,
    Flow,
    Fold,
    Folded,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Operand,
    Rearrange,
    Reduce,
    Span,
    Store,
    Sum,
)
from tilewright.dtypes import boolean
from tilewright.symbolic.nodes import Int, Sym
from tilewright.views.transforms import Permute, Slice

M, N, K, B = (Sym(name, 0, 2**31 - 1, divisor) for name, divisor in zip("MNKB", (1, 8, 16, 1), strict=True))
BATCHES = (Span("b", B, BATCH),)
TILES = (Span("m", M, TILE), Span("n", N, TILE))
STEPPED = (Span("k", K, STEPS), Span("j", K * 2, STEPS))
SPANS = (*BATCHES, *TILES, *STEPPED)
DTYPES = (tw.f16, tw.f32, tw.f64, tw.bf16, tw.i8, tw.i32)
FUNCTIONS = ("add", "mul", "max", "exp", "neg", "less", "select", "convert", "saturate")
NAMES = st.one_of(st.none(), st.sampled_from(["x", "y", "acc", "f32", "M", "A"]))
NUMBERS = st.one_of(st.integers(-5, 5), st.floats(), st.booleans())


def variable(draw: Any) -> dict[str, Any]:
    return {"variable": draw(NAMES)}


@st.composite
def operands(draw: Any, at: tuple[Span, ...] = ()) -> tuple[Operand, tuple[Span, ...]]:
    """Draw an array or a view, and the place of a part of it."""
    at = at or tuple(draw(st.lists(st.sampled_from(SPANS), min_size=1, max_size=3, unique=True)))
    shape: tuple[Int, ...] = tuple(span.extent for span in at)
    name = "A" + "".join(span.name for span in at)
    transforms: Any = ()
    if draw(st.booleans()):
        transforms = (Slice((N - 8, *((0, n) for n in shape))), Permute(tuple(range(len(shape)))))
    return Operand(name, draw(st.sampled_from(DTYPES)), shape, transforms), at


def with_axes(draw: Any, node: Node) -> Node:
    axes = [axis for axis in node.axes if axis is not None]
    made: list[Axis] = list(draw(st.permutations(axes)))
    if len(made) < 3:
        made.insert(draw(st.integers(0, len(made))), None)
    return Rearrange(node.dtype, tuple(made), node, **variable(draw))


def mapped(draw: Any, nodes: list[Node]) -> Node | None:
    function = draw(st.sampled_from(FUNCTIONS))
    arity = {"exp": 1, "neg": 1, "convert": 1, "saturate": 1, "select": 3}.get(function, 2)
    given: list[Node] = [draw(st.sampled_from(nodes)) for _ in range(arity)]
    dtype = draw(st.sampled_from(DTYPES)) if function in ("convert", "saturate") else given[-1].dtype
    if function == "select":
        given[0] = Map(boolean, given[0].axes, "less", (given[0], given[0]))
    given = [
        one if one.dtype in (given[-1].dtype, boolean) else Map(given[-1].dtype, one.axes, "convert", (one,))
        for one in given
    ]
    if arity > 1 and draw(st.booleans()):
        given[-1] = Literal(given[-1].dtype, (), draw(NUMBERS), **variable(draw))
        if misfit(given[-1]):
            return None
    widest = max(given, key=lambda node: len(node.axes))
    made = boolean if function == "less" else dtype
    return Map(made, widest.axes, function, tuple(given), **variable(draw))


@st.composite
def flows(draw: Any) -> Flow:
    """Draw a flow of some values, each computed from earlier ones."""
    parameters: dict[str, Any] = {
        "alpha": NumberParam(tw.f32, (), "alpha"),
        "count": Integer(tw.i64, (), Sym("count", -8, 8)),
    }
    nodes: list[Node] = [
        NumberParam(tw.f32, (), "alpha"),
        Integer(tw.i64, (), M * 2 + 1),
        Literal(tw.f32, TILES, 0),
    ]

    def part(at: tuple[Span, ...] = ()) -> Node | None:
        operand, at = draw(operands(at))
        shape = (N, *operand.shape) if operand.transforms else operand.shape
        whole = Operand(operand.name, operand.dtype, shape)
        if operand.name in parameters and parameters[operand.name] != whole:
            return None
        parameters[operand.name] = whole
        axes = tuple(span for span in at if span.kind != BATCH)
        return ArrayPart(operand.dtype, axes, operand, at, **variable(draw))

    def add(*made: Node | None) -> None:
        nodes.extend(one for one in made if one is not None and not misfit(one))

    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["part", "map", "axes", "sum", "reduce", "fold"]))
        node = draw(st.sampled_from(nodes))
        a, b = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        dtype = draw(st.sampled_from(DTYPES))
        if kind == "part":
            add(part())
        elif kind == "map":
            add(mapped(draw, nodes))
        elif kind == "axes":
            add(with_axes(draw, node))
        elif kind == "sum":
            span = draw(st.sampled_from(STEPPED))
            left, right = part((TILES[0], span)), part((span, TILES[1]))
            if left is not None and right is not None:
                add(left, right, Sum(dtype, TILES, span, left, right, **variable(draw)))
        elif kind == "reduce" and node.axes:
            axis = draw(st.integers(0, len(node.axes) - 1))
            axes = (*node.axes[:axis], *node.axes[axis + 1 :])
            add(Reduce(node.dtype, axes, "max", node, axis, **variable(draw)))
        elif kind == "fold":
            cells = tuple(Cell(one.dtype, one.axes, "top", one, **variable(draw)) for one in (a, b))
            steps = tuple(Map(one.dtype, one.axes, "max", (one, node), **variable(draw)) for one in cells)
            fold = Fold(draw(st.sampled_from(STEPPED)), cells, steps)
            if not any(map(misfit, (fold, *steps))):
                add(
                    *(Folded(one.dtype, one.axes, fold, at, **variable(draw)) for at, one in enumerate(cells))
                )
    last = [one for one in nodes if fits(one.axes, TILES)][-6:]
    stores = []
    for place in range(draw(st.integers(1, 3))):
        target = Operand(f"C{place}", draw(st.sampled_from(DTYPES)), (B, M, N))
        parameters[target.name] = target
        stores.append(Store(target, (*BATCHES, *TILES), draw(st.sampled_from(last))))
    return Flow("random", tuple(parameters.values()), (*BATCHES, *TILES), tuple(stores))
