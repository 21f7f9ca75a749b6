"""Axes of results of tiles: NumPy's broadcasting rules, with spans instead of extents."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataflow.nodes import STEPS, Axis, Node, Span
from tilewright.errors import TraceError
from tilewright.lang.dataflow.tiles import spelled
from tilewright.lang.source import here


def broadcast(function: str, nodes: Sequence[Node]) -> tuple[Axis, ...]:
    """Return the axes of a function's result: aligned at the last axis, equal spans or one span broadcast.

    Raises:
        TraceError: two different spans meet.
    """
    rank = max((len(node.axes) for node in nodes), default=0)
    made: list[Axis] = []
    for place in range(-rank, 0):
        found = dict.fromkeys(
            axis for node in nodes if len(node.axes) >= -place and (axis := node.axes[place]) is not None
        )
        if len(found) > 1:
            raise _no_broadcast(function, nodes, [axis.name for axis in found])
        made.append(next(iter(found), None))
    spans = [axis for axis in made if axis is not None]
    if len(set(spans)) < len(spans):
        raise _no_broadcast(function, nodes, [])
    return tuple(made)


def _no_broadcast(function: str, nodes: Sequence[Node], met: Sequence[str]) -> TraceError:
    shapes = " and ".join(_shown(node) for node in nodes if node.axes)
    full = max(nodes, key=lambda node: len(node.axes))
    nearest = f"axes of one order, e.g. {met[0]} for both" if met else "each span along one axis alone"
    for node in nodes:
        if set(node.axes) <= set(full.axes) and node is not full:
            text = ", ".join(":" if axis in node.axes else "None" for axis in full.axes)
            name = node.variable or "x"
            nearest = f"{name}[{text}]" if len(node.axes) < len(full.axes) else f"{name}.T"
            break
    return TraceError(
        f"{function} of {shapes}: axes are aligned from the last on, and these do not fit; nearest legal "
        f"choice: {nearest}",
        here(),
    )


def _shown(node: Node) -> str:
    return f"{node.variable or ''}{spelled(node)}"


def scale_axes(scale: Node, of: Node) -> tuple[Axis, ...]:
    """Return the axes of an operand, with None for each axis along which its scale does not vary.

    Raises:
        TraceError: the scale varies along another axis.
    """
    if any(axis is not None and axis not in of.axes for axis in scale.axes):
        raise TraceError(
            f"a scale {_shown(scale)} of {_shown(of)}: it varies along another axis than what it scales; "
            f"nearest legal choice: a scale along {spelled(of)}, or the other operand's",
            here(),
        )
    return tuple(axis if axis in scale.axes else None for axis in of.axes)


def product_axes(a: Node, b: Node) -> tuple[Span, tuple[Axis, ...]]:
    """Return the span that ``a @ b`` sums over, and the axes of the sum.

    Raises:
        TraceError: the last axis of a is not the first axis of b, or is not a span of `steps`.
    """
    what = f"{_shown(a)} @ {_shown(b)}"
    for node in (a, b):
        if len(node.axes) not in (1, 2):
            raise TraceError(
                f"{what}: operands of @ have one axis or two; nearest legal choice: the leading dimensions "
                "as batches of tw.tiles, one index each",
                here(),
            )
    inner, outer = a.axes[-1], b.axes[0]
    if inner != outer or inner is None:
        turned = a.axes[-1] == b.axes[-1]
        nearest = "b.T" if turned else "a and b whose last and first axes are the same span of tw.steps"
        raise TraceError(
            f"{what}: the last axis of the first is not the first axis of the second; nearest legal choice: "
            + (f"{_shown(a)} @ {_shown(b)}.T" if turned else nearest),
            here(),
        )
    if inner.kind != STEPS:
        raise TraceError(
            f"{what} sums along {inner.name}, which the results are cut along; nearest legal choice: "
            f"for k in tw.steps({inner.extent}), and k in the place of {inner.name}",
            here(),
        )
    made = (*a.axes[:-1], *b.axes[1:])
    if len(set(made)) < len(made):
        raise TraceError(
            f"{what} has one axis twice; nearest legal choice: two spans of the same extent",
            here(),
        )
    return inner, made
