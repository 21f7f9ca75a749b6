"""Functions of the rows of a tile in registers: the index of the maximum, and prefix sums."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.errors import TraceError
from tilewright.ir.ops import Copy
from tilewright.ir.ops import Fragment as FragmentOp
from tilewright.ir.types import Memory
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment
from tilewright.lang.roles import meeting
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import SHARE, coordinates, reduce_max, reduce_min
from tilewright.lang.tracer import current
from tilewright.lang.verbs import verb

__all__ = ["argmax", "prefix_sum"]

NOWHERE = 2**31 - 1
"""Index larger than that of any element, so it never is a minimum."""


@verb
def argmax(
    x: Fragment,
    dim: int,
    *,
    scratch: Tensor | None = None,
    indices: Tensor | None = None,
    barrier: int | None = None,
) -> Fragment:
    """``y[i, 0] = argmax_j x[i, j]`` for ``dim=1``, in i32: the first of the largest, or the first NaN.

    Args:
        x: the tile.
        dim: the dimension; the result has it with extent 1.
        scratch: shared memory for the values of several warps, as in `reduce_max`.
        indices: the same in i32, for the indices of the values.
        barrier: inside a role, the number of the barrier at which its threads meet, as in `reduce_sum`.

    Raises:
        TraceError: as `reduce_sum`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M")
        ... def choose(X, Y):
        ...     x = tw.load(X.tile((8, 16), (0, 0)).partition((8, 4)), other=-float("inf"))
        ...     tw.copy(tw.argmax(x, dim=1), Y.unmerge(0, (Y.shape[0], 1)).tile((8, 1), (0, 0)))
        >>> x, y = np.float32([[1, 3, 3], [5, np.nan, 6]]), np.empty(2, np.int32)
        >>> choose(x, y, target="reference").target, y.tolist()
        ('reference', [1, 1])
    """
    most = reduce_max(x, dim, scratch=scratch, barrier=barrier)
    found = (x == most) | (x != x)
    places = where(found, coordinates(x, dim), NOWHERE)
    return reduce_min(places, dim, scratch=indices, barrier=barrier)


@verb
def prefix_sum(x: Fragment, dim: int, *, scratch: Tensor, barrier: int | None = None) -> Fragment:
    """``y[i, j] = sum of x[i, k] for k <= j`` for ``dim=1``; in f32 for narrower floats, rounded once.

    Sums of runs of 1, 2, 4, ... neighbours are exchanged through shared memory, so that a sum of n numbers
    is within ``log2(n) u sum(|x|)`` of the exact one, u the unit roundoff.

    Args:
        x: the tile, with any map.
        dim: the dimension of the sums.
        scratch: shared memory of the tile's shape, in f32 for narrower floats.
        barrier: inside a role, the number of the barrier at which its threads meet, as in `reduce_sum`.

    Raises:
        TraceError: the dimension does not exist, or ``scratch`` has the wrong shape or dtype.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def running(X, Y):
        ...     x = tw.load(X.tile((8, 16), (0, 0)).partition((8, 4)))
        ...     sums = tw.prefix_sum(x, dim=1, scratch=tw.shared((8, 16), tw.f32))
        ...     tw.copy(sums, Y.tile((8, 16), (0, 0)))
        >>> y = np.empty((1, 5), np.float32)
        >>> running(np.float32([[1, 2, 3, 4, 5]]), y, target="reference").target, y.tolist()
        ('reference', [[1.0, 3.0, 6.0, 10.0, 15.0]])
    """
    rank = len(x.shape)
    if not -rank <= dim < rank:
        nearest = f"nearest legal choice: dim={rank - 1}"
        raise TraceError(f"dim={dim} of a tile of {rank} dimensions; {nearest}", here())
    along = dim % rank
    sums = x.to("f32") if x.dtype.is_float and x.dtype.bits < 32 else x
    kind = scratch.value.tensor
    if (kind.memory, kind.dtype, kind.shape) != (Memory.SHARED, sums.dtype, x.shape):
        raise TraceError(
            f"scratch is {kind.memory.value} memory for {kind.dtype} of shape {kind.shape}, and "
            f"{sums.dtype} of shape {x.shape} are exchanged; nearest legal choice: "
            f"tw.shared({x.shape}, tw.{sums.dtype})",
            here(),
        )
    meet, step = meeting(barrier, SHARE), 1
    while step < x.shape[along]:
        sums = sums + _before(sums, along, step, scratch, meet)
        step *= 2
    return sums if sums.dtype == x.dtype else sums.to(x.dtype)


def _before(x: Fragment, dim: int, step: int, scratch: Tensor, meet: Callable[[], object]) -> Fragment:
    """Return ``y[i, j] = x[i, j - step]``, or 0 if ``j < step``."""
    tracer = current()
    tracer.emit(Copy, source=x.value, target=scratch.value)
    meet()
    padded = scratch.pad(
        tuple(step if d == dim else 0 for d in range(len(x.shape))), tuple(0 for _ in x.shape)
    )
    moved = padded[tuple(slice(0, extent) for extent in x.shape)]
    made = tracer.builder.define(
        *(FragmentOp, f"{x.value.name}_before", here()), dtype=x.dtype, distribution=x.distribution
    )
    tracer.emit(Copy, source=moved.value, target=made)
    meet()
    return Fragment(made)
