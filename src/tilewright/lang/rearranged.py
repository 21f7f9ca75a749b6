"""Views of tensors that rearrange their elements: every method gives a new view."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from tilewright.ir.kernel import Guard
from tilewright.ir.types import Value
from tilewright.lang.constants import constant, ints, static
from tilewright.lang.scalars import Index, InMemory, unwrap
from tilewright.lang.tracer import current, located
from tilewright.lang.verbs import verb
from tilewright.symbolic.rebuilding import symbols
from tilewright.views import transforms as t
from tilewright.views.im2col import im2col_requirements, im2col_transforms
from tilewright.views.transforms import Transform


class Rearranged(InMemory):
    """What a tensor has to rearrange its elements."""

    value: Value

    @abstractmethod
    def _view(self, transform: Transform, suffix: str) -> Self:
        """A new view of the tensor."""

    @verb
    def permute(self, *order: int) -> Self:
        """Reorder dimensions: ``new.shape[d] == old.shape[order[d]]``."""
        return self._view(t.Permute(static("dimensions", order)), "permuted")

    @verb
    def pad(self, before: Sequence[Index], after: Sequence[Index]) -> Self:
        """Grow each dimension by invalid elements before and after."""
        return self._view(t.Pad(ints(before), ints(after)), "padded")

    @verb
    def pad_to(self, multiple: Sequence[int]) -> Self:
        """Grow each dimension at its end to a multiple."""
        return self._view(t.PadTo(static("multiples", multiple)), "padded")

    @verb
    def unmerge(self, dim: int, lengths: Sequence[Index]) -> Self:
        """Split a dimension, the last length fastest."""
        return self._view(t.Unmerge(constant("dimension", dim), ints(lengths)), "unmerged")

    @verb
    def merge(self, dim: int, count: int = 2) -> Self:
        """Join neighbouring dimensions, the last one fastest."""
        return self._view(t.Merge(constant("dimension", dim), constant("count", count)), "merged")

    @verb
    def embed(self, dim: int, lengths: Sequence[Index], strides: Sequence[Index], offset: Index = 0) -> Self:
        """Sliding window: ``old = sum(new_i * strides_i) - offset``."""
        return self._view(
            t.Embed(constant("dimension", dim), ints(lengths), ints(strides), unwrap(offset)), "embedded"
        )

    @verb
    def im2col(self, spatial: Sequence[int], filter: Sequence[int], **geometry: Any) -> Self:  # noqa: A002
        """The matrix of a convolution's input: a row per filter position, a column per tap and channel.

        Args:
            spatial: the spatial dimensions, outermost first.
            filter: extents of the filter, one per spatial dimension.
            geometry: ``stride``, ``dilation``, ``padding``, ``batch``, ``channel``, ``group``, ``groups``, as
                in `tilewright.views.im2col.im2col`.

        Raises:
            TraceError: the dimensions do not name each of the tensor's once, or a filter does not fit.  Where
                an extent is known at launch only, the launcher raises `LaunchError` for the latter.
        """
        made, shape, tracer = self, self.value.tensor.shape, current()
        with located():
            for transform in im2col_transforms(shape, spatial=spatial, filter=filter, **geometry):
                made = made._view(transform, "im2col")
            for needed in im2col_requirements(shape, spatial=spatial, filter=filter, **geometry):
                if symbols(needed.condition) <= tracer.sizes:
                    tracer.guards.append(Guard(*needed))
        return made

    @verb
    def broadcast(self, dim: int, extent: Index) -> Self:
        """Insert a dimension along which the element is the same."""
        return self._view(t.Broadcast(constant("dimension", dim), unwrap(extent)), "broadcast")

    @verb
    def swizzle(self, bits: int, base: int, shift: int) -> Self:
        """Exclusive-or swizzle of the offsets."""
        with located():
            made = t.Swizzle(*(constant("swizzle", part) for part in (bits, base, shift)))
        return self._view(made, "swizzled")
