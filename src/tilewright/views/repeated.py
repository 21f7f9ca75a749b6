"""A transform that repeats each element of a dimension."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.symbolic.expr import ceil_div, floordiv, less_equal, mul, prove
from tilewright.symbolic.nodes import Int
from tilewright.views.view import View, coordinates


@layouts
@dataclass(frozen=True, slots=True)
class Repeat:
    """``new[i] = old[i // count]`` along ``dim``: each element appears ``count`` times.

    The last element may appear fewer times.  The new ``extent`` must not reach past the old elements.

    Example:
        >>> print(Repeat(1, 128, 300).apply(View.strided((4, 3), (3, 1))))
        (4, 300) -> 3*i0 + (i1 // 128)
    """

    dim: int
    count: int
    extent: Int

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if not 0 <= self.dim < view.rank:
            raise LayoutError(
                f"repeat along dimension {self.dim} of a tensor of rank {view.rank}; dimensions are 0 to "
                f"{view.rank - 1}"
            )
        if self.count < 1:
            raise LayoutError(f"repeat of each element {self.count} times; the least is 1")
        reached = ceil_div(self.extent, self.count)
        if prove(less_equal(reached, view.shape[self.dim])) is False:
            raise LayoutError(
                f"repeat of {view.shape[self.dim]} elements, {self.count} times each, to {self.extent}; "
                f"nearest legal extent: {mul(view.shape[self.dim], self.count)}"
            )
        shape = (*view.shape[: self.dim], self.extent, *view.shape[self.dim + 1 :])
        index = coordinates(shape)
        old = floordiv(index[self.dim], self.count)
        return view.map(shape, [*index[: self.dim], old, *index[self.dim + 1 :]])
