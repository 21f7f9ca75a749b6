"""Legality rules of shared-memory tensors: elements must be in bounds and have different offsets."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import Violation
from tilewright.ir.ops import Shared
from tilewright.layout.layout import Layout
from tilewright.views.questions import footprint, strides
from tilewright.views.view import View


def verify_shared(op: Shared) -> Iterator[Violation]:
    """Yield the rules of `Shared` that an allocation breaks."""
    shape = op.view.shape
    if empty := [dim for dim, extent in enumerate(shape) if isinstance(extent, int) and extent < 1]:
        least = tuple(max(extent, 1) if isinstance(extent, int) else extent for extent in shape)
        yield op.violation(
            "shared allocation",
            f"{op.result} of shape {shape} has the extent {shape[empty[0]]} along dimension {empty[0]}; "
            "the least is 1",
            f"tw.shared({least}, tw.{op.dtype})",
        )
        return
    if op.at is not None and (op.at < 0 or op.at % op.align):
        yield op.violation(
            "shared allocation",
            f"{op.result} lies at byte {op.at}; it wants a multiple of its alignment, {op.align} bytes",
            f"at={max(-(-op.at // op.align), 0) * op.align}",
        )
    if isinstance(op.view.elems, int) and op.view.elems > op.elems:
        yield op.violation(
            "shared allocation",
            f"{op.result} reaches {op.view.elems} elements (the cosize of its layout) "
            f"but allocates {op.elems}",
            f"elems={op.view.elems}",
        )
    reached = footprint(op.view)
    if reached is None:
        return
    nearest = _nearest(op.view)
    if reached.first < 0:
        yield op.violation(
            "shared allocation",
            f"the layout {_spelled(op.view)} of {op.result} begins at element {reached.first}, not at 0",
            nearest,
        )
    if reached.twice is not None:
        one, other = (f"[{', '.join(map(str, at))}]" for at in reached.twice)
        yield op.violation(
            "shared layout",
            f"the layout {_spelled(op.view)} of {op.result} puts {one} and {other} into one element",
            nearest,
        )


def _spelled(view: View) -> str:
    """Format a view as a layout, if it has a stride along each dimension."""
    known = _strides(view)
    return str(view) if known is None else str(Layout(view.shape, known))


def _strides(view: View) -> tuple[int, ...] | None:
    found = strides(view) or ()
    known = tuple(step for step in found if isinstance(step, int))
    return known if len(known) == view.rank else None


def _nearest(view: View) -> str:
    """Return the layout with the same order of dimensions and large enough strides."""
    given = _strides(view) or (0,) * view.rank
    made, span = list(given), 1
    for dim in sorted(range(view.rank), key=lambda d: (given[d] == 0, abs(given[d]), -d)):
        made[dim], extent = max(abs(given[dim]), span), view.shape[dim]
        span += (extent - 1) * made[dim] if isinstance(extent, int) else 0
    return f"layout=tw.Layout({view.shape}, {tuple(made)})"
