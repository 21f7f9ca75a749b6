"""A transform that gives a one-dimensional view new extents and strides, from any start."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int
from tilewright.views.view import View, coordinates


@layouts
@dataclass(frozen=True, slots=True)
class AsStrided:
    """Replace one dimension by ``lengths`` and ``strides``: ``old = start + sum(n_i * strides_i)``.

    As with `Slice`, the new elements must be elements of the old view.  If the numbers are known only to the
    running kernel, the author must ensure this.

    Example:
        >>> print(AsStrided((4, 8), (16, 1), 3).apply(View.strided((100,), (1,))))
        (4, 8) -> 16*i0 + i1 + 3
    """

    lengths: tuple[Int, ...]
    strides: tuple[Int, ...]
    start: Int = 0

    @layouts
    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        if view.rank != 1:
            raise LayoutError(f"as_strided of a tensor of rank {view.rank}; nearest: a view of rank 1 first")
        if len(self.lengths) != len(self.strides):
            raise LayoutError(
                f"as_strided: lengths {self.lengths} and strides {self.strides} differ in number"
            )
        steps = zip(coordinates(self.lengths), self.strides, strict=True)
        return view.map(self.lengths, [add(self.start, *(mul(i, stride) for i, stride in steps))])
