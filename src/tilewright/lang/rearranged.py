"""Methods of tensors that rearrange their elements; every method returns a new view."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from tilewright.ir.types import Value
from tilewright.lang.scalars import Index, InMemory, constant, ints, static, unwrap
from tilewright.lang.tracer import current, located, verb
from tilewright.symbolic.expr import equal, product, prove
from tilewright.symbolic.rebuilding import symbols
from tilewright.views import transforms as t
from tilewright.views.im2col import Geometry
from tilewright.views.transforms import Transform


class Rearranged(InMemory):
    """Base class of tensors: the methods that rearrange elements."""

    value: Value

    @abstractmethod
    def _view(self, transform: Transform, suffix: str) -> Self:
        """Return a new view of the tensor."""

    @verb
    def permute(self, *order: int) -> Self:
        """``new.shape[d] == old.shape[order[d]]``: dimensions in another order.

        Args:
            order: the old dimension of each new dimension; each occurs once.

        Raises:
            TraceError: the order is not a permutation of the dimensions.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", Y="N M")
            ... def transpose(X, Y):
            ...     tw.copy(X.permute(1, 0).tile((8, 8), (0, 0)), Y.tile((8, 8), (0, 0)), threads=32)
            >>> x, y = np.array([[1, 2, 3], [4, 5, 6]]), np.zeros((3, 2), int)
            >>> transpose(x, y, target="reference").target, y.tolist()
            ('reference', [[1, 4], [2, 5], [3, 6]])
        """
        return self._view(t.Permute(static("dimensions", order)), "permuted")

    @property
    def T(self) -> Self:  # noqa: N802 NumPy's name
        """The dimensions in reverse order, as in NumPy.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", Y="N M")
            ... def transpose(X, Y):
            ...     tw.copy(X.T.tile((8, 8), (0, 0)), Y.tile((8, 8), (0, 0)), threads=32)
            >>> x, y = np.array([[1, 2, 3], [4, 5, 6]]), np.zeros((3, 2), int)
            >>> transpose(x, y, target="reference").target, y.tolist()
            ('reference', [[1, 4], [2, 5], [3, 6]])
        """
        return self.permute(*reversed(range(len(self.value.tensor.shape))))

    @verb
    def pad(self, before: Sequence[Index], after: Sequence[Index]) -> Self:
        """``new[i] = old[i - before]``: each dimension grows by elements before and after.

        The new elements read as 0, or as the value of ``other=``, and are not written.

        Args:
            before: number of new elements before the first one, for each dimension.
            after: number of new elements after the last one, for each dimension.

        Raises:
            TraceError: a dimension has no number, or a number is negative.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="N", Y="M")
            ... def framed(X, Y):
            ...     tw.copy(X.pad((1,), (2,)).tile((8,), (0,)), Y.tile((8,), (0,)), threads=8)
            >>> x, y = np.array([1, 2, 3]), np.full(6, 9)
            >>> framed(x, y, target="reference").target, y.tolist()
            ('reference', [0, 1, 2, 3, 0, 0])
        """
        return self._view(t.Pad(ints(before), ints(after)), "padded")

    @verb
    def pad_to(self, multiple: Sequence[int]) -> Self:
        """Grow each dimension at its end to the next multiple of ``multiple[d]``.

        The new elements read as 0, or as the value of ``other=``, and are not written.

        Args:
            multiple: a static integer for each dimension.

        Raises:
            TraceError: a dimension has no multiple, or a multiple is below 1.

        Example:
            An array of any length, as pairs:

            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="N", Y="R two")
            ... def pairs(X, Y):
            ...     even = X.pad_to((2,))
            ...     rows = even.unmerge(0, (even.shape[0] // 2, 2))
            ...     tw.copy(rows.tile((4, 2), (0, 0)), Y.tile((4, 2), (0, 0)), threads=8)
            >>> x, y = np.array([1, 2, 3, 4, 5]), np.zeros((3, 2), int)
            >>> pairs(x, y, target="reference").target, y.tolist()
            ('reference', [[1, 2], [3, 4], [5, 0]])
        """
        return self._view(t.PadTo(static("multiples", multiple)), "padded")

    @verb
    def unmerge(self, dim: int, lengths: Sequence[Index]) -> Self:
        """``new[i, j] = old[i*n + j]``: a dimension becomes several, of lengths (m, n), the last one fastest.

        Args:
            dim: the dimension to split.
            lengths: lengths of the new dimensions; their product is the extent, by proof or because the
                kernel requires it: ``tw.require(X.shape[0] == 2 * n, "two halves")``.

        Raises:
            TraceError: the product is not known to be the extent, or the dimension does not exist.

        Example:
            Each row holds three pairs; the second part of each is copied:

            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", Y="M P")
            ... def second(X, Y):
            ...     paired = X.unmerge(1, (X.shape[1] // 2, 2))
            ...     tw.copy(paired[:, :, 1].tile((8, 4), (0, 0)), Y.tile((8, 4), (0, 0)), threads=32)
            >>> x, y = np.arange(6).reshape(1, 6), np.zeros((1, 3), int)
            >>> second(x, y, target="reference").target, y.tolist()
            ('reference', [[1, 3, 5]])
        """
        dim, made, source = constant("dimension", dim), ints(lengths), self
        shape, count = self.value.tensor.shape, product(*made)
        is_required = bool(made) and 0 <= dim < len(shape) and current().are_equal(count, shape[dim])
        if is_required and prove(equal(count, shape[dim])) is not True:  # the same, its extent as a product
            whole = tuple((0, count) if at == dim else None for at in range(len(shape)))
            source = self._view(t.Slice(whole), "slice")
        return source._view(t.Unmerge(dim, made), "unmerged")

    @verb
    def merge(self, dim: int, count: int = 2) -> Self:
        """``new[i*n + j] = old[i, j]``: neighbouring dimensions become one, the last of them fastest.

        Args:
            dim: the first dimension to join.
            count: the number of dimensions to join.

        Raises:
            TraceError: the dimensions do not exist.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", Y="L")
            ... def flat(X, Y):
            ...     tw.copy(X.merge(0).tile((8,), (0,)), Y.tile((8,), (0,)), threads=8)
            >>> x, y = np.array([[1, 2, 3], [4, 5, 6]]), np.zeros(6, int)
            >>> flat(x, y, target="reference").target, y.tolist()
            ('reference', [1, 2, 3, 4, 5, 6])
        """
        return self._view(t.Merge(constant("dimension", dim), constant("count", count)), "merged")

    @verb
    def embed(self, dim: int, lengths: Sequence[Index], strides: Sequence[Index], offset: Index = 0) -> Self:
        """``new[i, j] = old[i*strides[0] + j*strides[1] - offset]``: a window slides along a dimension.

        Elements outside the old dimension read as 0, or as the value of ``other=``, and are not written.

        Args:
            dim: the old dimension.
            lengths: lengths of the new dimensions.
            strides: the step in the old dimension for one step along each new dimension.
            offset: distance by which the new dimensions start before the old one.

        Raises:
            TraceError: lengths and strides differ in number, or the dimension does not exist.

        Example:
            Each row is a window of three neighbours; the first window begins one element before the array:

            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="N", Y="N three")
            ... def windows(X, Y):
            ...     window = X.embed(0, (X.shape[0], 3), (1, 1), offset=1)
            ...     tw.copy(window.tile((8, 3), (0, 0)), Y.tile((8, 3), (0, 0)), threads=8)
            >>> x, y = np.array([1, 2, 3, 4]), np.zeros((4, 3), int)
            >>> windows(x, y, target="reference").target, y.tolist()
            ('reference', [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0]])
        """
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
            TraceError: the dimensions do not name each of the tensor's once, or a filter does not fit.  If an
                extent is known only at launch, the launcher raises `LaunchError` for the latter.

        Example:
            The four positions of a filter of 2 x 2 in an image of 3 x 3, as rows of their taps:

            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="B H W C", Y="R T")
            ... def rows(X, Y):
            ...     matrix = X.im2col(spatial=(1, 2), filter=(2, 2))
            ...     tw.copy(matrix.tile((4, 4), (0, 0)), Y.tile((4, 4), (0, 0)), threads=16)
            >>> x, y = np.arange(9).reshape(1, 3, 3, 1), np.zeros((4, 4), int)
            >>> rows(x, y, target="reference").target, y.tolist()
            ('reference', [[0, 1, 3, 4], [1, 2, 4, 5], [3, 4, 6, 7], [4, 5, 7, 8]])
        """
        made, shape, tracer = self, self.value.tensor.shape, current()
        with located():
            how = Geometry(spatial, filter, **geometry)
            for transform in how.transforms(shape):
                made = made._view(transform, "im2col")
            for needed in how.requirements(shape):
                if symbols(needed.condition) <= tracer.sizes:
                    tracer.guards.append(needed)
        return made

    @verb
    def broadcast(self, dim: int, extent: Index) -> Self:
        """Insert a dimension along which the element is the same: for ``dim=0``, ``new[i, ...] = old[...]``.

        Args:
            dim: position of the new dimension.
            extent: extent of the new dimension.

        Raises:
            TraceError: the position does not exist.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="N", Y="M N")
            ... def repeat(X, Y):
            ...     rows = X.broadcast(0, Y.shape[0])
            ...     tw.copy(rows.tile((4, 8), (0, 0)), Y.tile((4, 8), (0, 0)), threads=32)
            >>> x, y = np.array([1, 2]), np.zeros((3, 2), int)
            >>> repeat(x, y, target="reference").target, y.tolist()
            ('reference', [[1, 2], [1, 2], [1, 2]])
        """
        return self._view(t.Broadcast(constant("dimension", dim), unwrap(extent)), "broadcast")

    @verb
    def swizzle(self, bits: int, base: int, shift: int) -> Self:
        """``offset ^ (offset >> shift & mask)``, where the ``bits`` bits of the mask begin at bit ``base``.

        A swizzle spreads accesses along another dimension over different banks.  `shared` takes one as
        ``swizzle=``.

        Args:
            bits: number of offset bits that change.
            base: the lowest bit that changes.
            shift: distance from the changed bits up to the bits that are combined with them.

        Raises:
            TraceError: the numbers are illegal, for example ``shift`` is less than ``bits``.

        Example:
            Elements are written in swizzled order, and read as rows in the order of memory:

            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", Y="M N")
            ... def swizzled(X, Y):
            ...     rows = tw.shared((4, 4), X.dtype)
            ...     tw.copy(X.tile((4, 4), (0, 0)), rows.swizzle(2, 0, 2), threads=16)
            ...     tw.barrier()
            ...     tw.copy(rows, Y.tile((4, 4), (0, 0)), threads=16)
            >>> x, y = np.arange(16).reshape(4, 4), np.zeros((4, 4), int)
            >>> swizzled(x, y, target="reference").target, y[:2].tolist(), y[2:].tolist()
            ('reference', [[0, 1, 2, 3], [5, 4, 7, 6]], [[10, 11, 8, 9], [15, 14, 13, 12]])
        """
        with located():
            made = t.Swizzle(*(constant("swizzle", part) for part in (bits, base, shift)))
        return self._view(made, "swizzled")
