"""The graph of a flow as data, and its drawing in layers as SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from tilewright.dataflow.nodes import (
    ArrayPart,
    Cell,
    Flow,
    Folded,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Position,
    Rearrange,
    Reduce,
    Scan,
    Store,
    Sum,
)
from tilewright.errors import Location

# ---------------------------------------------------------------- the graph as data


def place_of(location: Location | None) -> str:
    """Return the file and the line of the author's code, such as ``"kernels.py:40"``; "" if unknown."""
    return "" if location is None else str(location.frame).rpartition(":")[0]


def graph_of(flow: Flow) -> dict[str, Any]:
    """Return the values of a flow and the edges between them, in JSON's types.

    Args:
        flow: the recorded flow.

    Returns:
        ``nodes`` with ``id``, ``label``, ``type``, ``kind``, ``at`` (the author's line) and ``names``;
        ``edges``, pairs of ids.  Plain numbers are part of the label of the value that they enter.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def doubled(X, Y):
        ...     for m, n in tw.tiles(Y):
        ...         Y[m, n] = X[m, n] * 2.0
        >>> x, y = np.ones((64, 64), np.float32), np.empty((64, 64), np.float32)
        >>> doubled(x, y).target, float(y.min())
        ('cpu', 2.0)
        >>> graph = graph_of(doubled.flow(x, y))
        >>> [node["label"] for node in graph["nodes"]], graph["edges"]
        (['X[m, n]', 'mul(·, 2.0)', 'Y[m, n]'], [[0, 1], [1, 2]])
    """
    nodes: list[dict[str, Any]] = []
    edges: list[list[int]] = []
    ids: dict[int, int] = {}
    for node in flow.walk():
        if isinstance(node, Literal | NumberParam):
            continue
        number = ids[id(node)] = len(nodes)
        axes = ", ".join("1" if axis is None else axis.name for axis in node.axes)
        names = [node.operand.name] if isinstance(node, ArrayPart) else []
        names += [node.variable] if node.variable else []
        nodes.append(
            {
                "id": number,
                "label": _label(node),
                "type": f"{node.dtype}[{axes}]" if axes else str(node.dtype),
                "kind": "array" if isinstance(node, ArrayPart) else _kind(node),
                "at": place_of(node.location),
                "names": names,
            }
        )
        edges += [[ids[id(one)], number] for one in node.arguments if id(one) in ids]
    for store in flow.stores:
        number = len(nodes)
        nodes.append(_stored(store, number))
        if id(store.value) in ids:
            edges.append([ids[id(store.value)], number])
    return {"nodes": nodes, "edges": [list(pair) for pair in dict.fromkeys(map(tuple, edges))]}


def _stored(store: Store, number: int) -> dict[str, Any]:
    place = ", ".join(span.name for span in store.at)
    return {
        "id": number,
        "label": f"{store.operand.name}[{place}]" + (" +=" if store.added else ""),
        "type": str(store.operand.dtype),
        "kind": "store",
        "at": place_of(store.location),
        "names": [store.operand.name],
    }


def _kind(node: Node) -> str:
    return {Sum: "sum", Reduce: "sum", Scan: "sum", Cell: "state", Folded: "state"}.get(type(node), "map")


def _label(node: Node) -> str:
    match node:
        case ArrayPart():
            return f"{node.operand.name}[{', '.join(span.name for span in node.at)}]"
        case Sum():
            return f"Σ {node.span.name}: a @ b"
        case Reduce():
            axis = node.argument.axes[node.axis]
            return f"{node.combine} over {'1' if axis is None else axis.name}"
        case Scan(span=axis):
            return f"prefix sums along {'1' if axis is None else axis.name}"
        case Map():
            shown = ", ".join(_given(one) for one in node.given)
            return str(node.dtype) if node.function == "convert" else f"{node.function}({shown})"
        case Rearrange():
            return "transpose" if node.axes == node.argument.axes[::-1] else "new axes"
        case Cell():
            return f"{node.name} so far"
        case Folded():
            cells = node.fold.cells
            what = cells[node.index].name if node.index < len(cells) else "results of steps"
            return f"{what} after loop {node.fold.span.name}"
        case Position():
            return f"positions({node.span.name})"
        case Integer():
            return str(node.value)
        case _:
            return type(node).__name__.lower()


def _given(node: Node) -> str:
    if isinstance(node, Literal):
        return repr(node.value)
    return node.name if isinstance(node, NumberParam) else "·"


# ---------------------------------------------------------------- layers


WIDE, HIGH, GAP, BETWEEN = 7.3, 40.0, 22.0, 34.0
"""Width of a character, height of a box, and the gaps between boxes and between layers, in pixels."""

SWEEPS = 6
"""Number of passes that reorder the boxes of all layers by the positions of their neighbours."""


@dataclass
class PlacedNode:
    """A box of the drawing, or a bend of a long edge (``node`` is -1)."""

    node: int
    width: float
    x: float = 0.0
    y: float = 0.0


def layers_of(count: int, edges: Sequence[Sequence[int]]) -> list[int]:
    """Return the layer of each node: one more than that of its latest argument.

    Sources lie one layer above their first use.

    Example:
        >>> layers_of(4, [(0, 1), (1, 3), (2, 3)])
        [0, 1, 1, 2]
    """
    layer = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layer[target] = max(layer[target], layer[source] + 1)
    uses: dict[int, list[int]] = defaultdict(list)
    given = {target for _, target in edges}
    for source, target in edges:
        uses[source].append(layer[target])
    return [min(uses[at]) - 1 if at not in given and uses[at] else one for at, one in enumerate(layer)]


def drawn(graph: Mapping[str, Any]) -> str:
    """Return the drawing of a graph as SVG, with arguments above the values that use them.

    Args:
        graph: as `graph_of` returns it.
    """
    nodes, edges = graph["nodes"], graph["edges"]
    layer = layers_of(len(nodes), edges)
    rows: list[list[PlacedNode]] = [[] for _ in range(max(layer, default=-1) + 1)]
    boxes: dict[int, PlacedNode] = {}
    for node in nodes:
        width = WIDE * max(len(node["label"]), len(node["type"])) + 20
        box = boxes[node["id"]] = PlacedNode(node["id"], width)
        rows[layer[node["id"]]].append(box)
    paths: list[tuple[int, int, list[PlacedNode]]] = []
    for source, target in edges:
        path = [boxes[source]]
        for between in range(layer[source] + 1, layer[target]):
            bend = PlacedNode(-1, 8)
            rows[between].append(bend)
            path.append(bend)
        path.append(boxes[target])
        paths.append((source, target, path))
    near: dict[int, list[PlacedNode]] = defaultdict(list)
    for _, _, path in paths:
        for above, below in pairwise(path):
            near[id(above)].append(below)
            near[id(below)].append(above)
    _arrange(rows, near)
    wide = round(max((box.x + box.width / 2 for row in rows for box in row), default=0) + 12)
    high = round(len(rows) * (HIGH + BETWEEN) - BETWEEN + 24)
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    parts = [f'<svg class="graph" {size} role="img" aria-label="graph of the flow">']
    for source, target, path in paths:
        points = list[tuple[float, float]]()
        for at, box in enumerate(path):
            points += [(box.x, box.y)] * (at > 0)
            points += [(box.x, box.y + HIGH)] * (at < len(path) - 1)
        curve = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        for (x0, y0), (x1, y1) in pairwise(points):
            middle = (y0 + y1) / 2
            curve += f" C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
        parts.append(f'<path class="edge" data-from="{source}" data-to="{target}" d="{curve}"/>')
    parts += [_node(node, boxes[node["id"]]) for node in nodes]
    return "\n".join([*parts, "</svg>"])


def _arrange(rows: Sequence[list[PlacedNode]], near: Mapping[int, Sequence[PlacedNode]]) -> None:
    """Place the boxes: each near the mean of its neighbours, without overlaps."""
    for number, row in enumerate(rows):
        _place(row, number)
    for _ in range(SWEEPS):
        for row in (*rows, *reversed(rows)):
            wanted = {
                id(box): sum(one.x for one in near[id(box)]) / len(near[id(box)]) if near[id(box)] else box.x
                for box in row
            }
            row.sort(key=lambda box: wanted[id(box)])
            _spread(row, wanted)
    left = min((box.x - box.width / 2 for row in rows for box in row), default=0.0)
    for row in rows:
        for box in row:
            box.x += 12 - left


def _place(row: Sequence[PlacedNode], number: int) -> None:
    x = 0.0
    for box in row:
        box.x, box.y = x + box.width / 2, 12 + number * (HIGH + BETWEEN)
        x += box.width + GAP


def _spread(row: Sequence[PlacedNode], wanted: Mapping[int, float]) -> None:
    """Move boxes to their wanted places as far as their neighbours leave room.

    Boxes that would overlap form a group, whose middle is the mean of their wanted places.
    """
    groups: list[tuple[list[PlacedNode], list[float], float]] = []  # boxes, offsets in the group, left end
    for box in row:
        groups.append(([box], [0.0], wanted[id(box)]))
        while len(groups) > 1:
            (first, offsets, at), (second, others, other) = groups[-2:]
            room = at + offsets[-1] + first[-1].width / 2 + GAP + second[0].width / 2
            if other >= room:
                break
            shift = offsets[-1] + first[-1].width / 2 + GAP + second[0].width / 2
            joined = [*offsets, *(shift + one for one in others)]
            both = [*first, *second]
            begin = sum(wanted[id(one)] - joined[at] for at, one in enumerate(both)) / len(both)
            groups[-2:] = [(both, joined, begin)]
    for members, offsets, at in groups:
        for box, offset in zip(members, offsets, strict=True):
            box.x = at + offset


def _node(node: Mapping[str, Any], box: PlacedNode) -> str:
    names = escape(" ".join(node["names"]), quote=True)
    place = escape(node["at"], quote=True)
    return (
        f'<g class="node {node["kind"]}" data-n="{names}" data-l="{place}">'
        f'<rect x="{box.x - box.width / 2:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{HIGH:.0f}" rx="7"/>'
        f'<text class="label" x="{box.x:.1f}" y="{box.y + 17:.1f}">{escape(node["label"])}</text>'
        f'<text class="type" x="{box.x:.1f}" y="{box.y + 32:.1f}">{escape(node["type"])}</text></g>'
    )
