"""Where the elements of a tile stand, as a value of a dataflow kernel."""

from __future__ import annotations

from typing import Any

from tilewright.dataflow.nodes import BATCH, STEPS, Position
from tilewright.dtypes import i32
from tilewright.errors import TraceError, shown
from tilewright.lang.dataflow.spans import SpanIndex
from tilewright.lang.dataflow.tiles import Tile
from tilewright.lang.source import here
from tilewright.lang.tracer import current
from tilewright.lang.verbs import verb


@verb
def positions(span: Any) -> Tile:
    """``y[i] = i``: for each element of a span of `tiles`, its index in the whole dimension, in i32.

    What is computed from it depends on where an element stands, and not on how tiles are cut.

    Args:
        span: a variable of the loop over `tiles`, none of whose places fall into groups.

    Raises:
        TraceError: something else.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", C="M N")
        ... def lower(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = tw.where(tw.positions(n) <= tw.positions(m)[:, None], acc, 0)
        >>> a, c = np.ones((3, 2), np.float32), np.empty((3, 3), np.float32)
        >>> lower(a, a.T, c, target="reference").target, c.tolist()
        ('reference', [[2.0, 0.0, 0.0], [2.0, 2.0, 0.0], [2.0, 2.0, 2.0]])
    """
    flow: Any = current().flow
    if not isinstance(span, SpanIndex) or flow is None or span.shared != 1:
        raise TraceError(
            f"positions of {shown(span)}; nearest legal choice: m, or n, of `for m, n in tw.tiles(C)`", here()
        )
    span.check()
    if span.span.kind == STEPS or span.span.groups is not None:
        what = "is stepped along" if span.span.kind == STEPS else "falls into groups"
        raise TraceError(
            f"positions of {span.span.name}, which {what}; nearest legal choice: a span of tw.tiles", here()
        )
    axes = () if span.span.kind == BATCH else (span.span,)
    return Tile(flow, flow.make(Position, i32, axes, span.span), {span.home})
