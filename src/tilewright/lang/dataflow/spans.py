"""Spans for authors: the loop variables of `tiles` and `steps`, which index arrays."""

from __future__ import annotations

from typing import NoReturn

from tilewright.dataflow.nodes import Span
from tilewright.errors import Location, TraceError
from tilewright.lang.source import here


class SpanIndex:
    """A run of one dimension, as an index: ``m`` of ``for m, n in tw.tiles(C)``, and ``m // 128``.

    Args:
        span: the run.
        home: the loop whose variable it is.
        shared: number of neighbours that share one index.
    """

    __slots__ = ("home", "shared", "span")

    def __init__(self, span: Span, home: SpanLoop, shared: int = 1) -> None:
        self.span = span
        self.home = home
        self.shared = shared

    def check(self) -> None:
        """Refuse it after its loop.

        Raises:
            TraceError: the loop has ended.
        """
        if not self.home.is_open:
            raise ended(self.span.name, self.home)

    def __floordiv__(self, count: object) -> SpanIndex:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            self._no_arithmetic()
        return SpanIndex(self.span, self.home, self.shared * count)

    def _no_arithmetic(self, *_: object) -> NoReturn:
        name = self.span.name
        raise TraceError(
            f"{name} stands for all places of a run at once: it indexes arrays, A[{name}, ...] or, where "
            f"neighbours share an element, A[{name} // 128, ...], and has no other arithmetic and no order; "
            "nearest legal choice: a view of the array, A[1:] for places that are shifted, or an explicit "
            "kernel, whose tw.block_index and tw.range give integers",
            here(),
        )

    def __iter__(self) -> NoReturn:
        raise TraceError(
            f"{self.span.name} is one span, there is nothing to unpack; nearest legal choice: as many "
            "variables in the `for` statement as the array has dimensions",
            here(),
        )

    __add__ = __sub__ = __mul__ = __truediv__ = __mod__ = __pow__ = _no_arithmetic
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _no_arithmetic
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __matmul__ = _no_arithmetic
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __rmatmul__ = _no_arithmetic
    __neg__ = __pos__ = __abs__ = __invert__ = __bool__ = __index__ = __int__ = __float__ = _no_arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic
    __eq__ = __ne__ = _no_arithmetic
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.span.name if self.shared == 1 else f"{self.span.name} // {self.shared}"


class SpanLoop:
    """A loop over spans: whether its body is being recorded."""

    what = "loop"

    def __init__(self, text: str, location: Location) -> None:
        self.text = text
        self.location = location
        self.is_open = False


def ended(what: str, home: SpanLoop) -> TraceError:
    """Return the error for the use of a loop's value after the loop."""
    return TraceError(
        f"{what} belongs to the loop over {home.text} at {home.location.frame}, which has ended; nearest "
        "legal choice: use it inside, or carry its sum out in an accumulator of tw.zeros",
        here(),
    )
