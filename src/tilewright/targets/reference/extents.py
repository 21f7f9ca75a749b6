"""What a run shows of views: whether the slices and tiles that are taken of tensors lie in them.

A slice past the end of a dimension addresses the next row, or the next stage of a ring; if it begins at an
integer that memory or an argument holds, its elements outside are invalid.  What tracing cannot prove is
asked here whenever an operation accesses memory through the view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Op, Reshape
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.views.spans import Span, unproven_spans
from tilewright.views.transforms import Slice, Tile


@dataclass(frozen=True)
class Beyond:
    """A span that leaves its tensor.

    Args:
        op: the operation that made the view.
        dim: the dimension.
        is_masked: whether elements outside are invalid: nothing is accessed, and 0 is read.
        reason: what is wrong.
    """

    op: Op
    dim: int
    is_masked: bool
    reason: str


class Extents:
    """The spans of each view of a kernel that only a run can show to be inside."""

    def __init__(self, kernel: Kernel) -> None:
        self._spans: dict[Value, tuple[tuple[Op, Span], ...]] = {}
        for op in kernel.walk():
            for result in op.results:
                sources = (self._spans.get(source, ()) for source in op.operands)
                if spans := (*(span for known in sources for span in known), *own_spans(op)):
                    self._spans[result] = spans

    def beyond(self, value: Value, env: Mapping[Sym, int]) -> Beyond | None:
        """The first span of a view that leaves its tensor, for these values of the symbols."""
        for op, span in self._spans.get(value, ()):
            low, high, extent = (int(evaluate(part, env)) for part in (span.low, span.high, span.extent))
            if low < 0 or max(low, high) > extent:
                here, written = span.shown(low, high), span.shown(span.low, span.high)
                whole = f"{extent} tile{'s' * (extent != 1)}" if span.kind == "tile" else f"{extent}"
                what = (
                    "no element of it exists"
                    if span.is_masked
                    else "what lies there belongs to other rows or stages"
                )
                reason = (
                    f"{here} of dimension {span.dim}, whose extent is {whole}"
                    f"{f' (written {written})' * (here != written)}: {what}"
                )
                return Beyond(op, span.dim, span.is_masked, reason)
        return None


def own_spans(op: Op) -> tuple[tuple[Op, Span], ...]:
    """What a view takes itself.  Tiles past the edge of global memory are legal: they read as 0."""
    if not isinstance(op, Reshape):
        return ()
    match op.transform:
        case Slice() as part:
            return tuple((op, span) for span in unproven_spans(part, op.source.tensor.view))
        case Tile() as part if op.source.tensor.memory is Memory.SHARED:
            return tuple((op, span) for span in unproven_spans(part, op.source.tensor.view))
        case _:
            return ()
