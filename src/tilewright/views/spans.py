"""Spans: the range of each dimension that a slice or tile takes, and whether it is proven in bounds."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.symbolic.expr import add, ceil_div, less_equal, prove
from tilewright.symbolic.nodes import Int
from tilewright.views.transforms import Slice, Tile, slice_span
from tilewright.views.view import View


@dataclass(frozen=True, slots=True)
class Span:
    """The range that a view takes of one dimension of its parent; it must lie in ``[0, extent)``.

    Args:
        dim: the dimension.
        low: first index.
        high: end of the range, excluded.
        extent: extent of the dimension; for tiles, the number of tiles.
        kind: ``"index"``, ``"slice"`` or ``"tile"``.
        is_masked: whether elements outside are invalid; otherwise they are other elements of the buffer.
    """

    dim: int
    low: Int
    high: Int
    extent: Int
    kind: str
    is_masked: bool

    @property
    def is_proven(self) -> bool:
        """Whether the span lies in the dimension for all values of the symbols."""
        return prove(less_equal(0, self.low)) is True and prove(less_equal(self.high, self.extent)) is True

    def shown(self, low: object, high: object) -> str:
        """Return the span as an author writes it, with these ends."""
        return f"{self.kind} {low}:{high}" if self.kind == "slice" else f"{self.kind} {low}"


def unproven_spans(transform: Slice | Tile, view: View) -> tuple[Span, ...]:
    """Return the spans of a transform that are not proven to lie in a view.

    Example:
        >>> from tilewright.symbolic.nodes import Sym
        >>> view = View.strided((8, 4), (4, 1))
        >>> unproven_spans(Slice((Sym("r"), (0, 4))), view)
        (Span(dim=0, low=r, high=r + 1, extent=8, kind='index', is_masked=False),)
        >>> unproven_spans(Tile((4, 4), (Sym("r", 0, 1), 0)), view)
        ()
    """
    made = _slices(transform, view) if isinstance(transform, Slice) else _tiles(transform, view)
    return tuple(span for span in made if not span.is_proven)


def _slices(transform: Slice, view: View) -> list[Span]:
    made = []
    for dim, (part, extent) in enumerate(zip(transform.at, view.shape, strict=True)):
        is_slice = part is None or isinstance(part, tuple)
        kind, is_masked = "slice" if is_slice else "index", dim in transform.edges
        made.append(Span(dim, *slice_span(part, extent), extent, kind, is_masked))
    return made


def _tiles(transform: Tile, view: View) -> list[Span]:
    every = enumerate(zip(transform.shape, transform.at, view.shape, strict=True))
    return [
        Span(dim, at, add(at, 1), ceil_div(extent, length), "tile", True)
        for dim, (length, at, extent) in every
        if length is not None and at is not None
    ]
