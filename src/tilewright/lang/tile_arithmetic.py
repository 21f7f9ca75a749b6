"""Functions of whole tiles in registers: reductions, prefix sums, changes of the map, coordinates, masks."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.dtypes import DType, f32
from tilewright.errors import TraceError
from tilewright.ir.fragment_ops import Coordinates, PrefixOp, Redistribute, ReduceOp
from tilewright.ir.ops import Copy, FragmentOp
from tilewright.ir.types import Memory
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.roles import meeting
from tilewright.lang.scalars import Index, constant, maximum, minimum, unwrap
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current, located, verb
from tilewright.layout.limits import divisor_at_most
from tilewright.symbolic.nodes import bounds
from tilewright.threads.distribution import Distribution, Mode
from tilewright.threads.registers import Keep, reduction, run_in_warps, thread_digits

SHARE = "the warps of a role share a tile through shared memory, and"
"""Start of the error message for a role without a barrier."""

SMALL = 1 << 30
"""Bound on integers that are added to a coordinate, so that the sum fits in 32 bits."""


@verb
def reduce_sum(
    x: Fragment,
    dim: int,
    *,
    block: int | None = None,
    per_thread: bool = False,
    scratch: Tensor | None = None,
    barrier: Index | None = None,
) -> Fragment:
    """``y[i, 0] = sum_j x[i, j]`` for ``dim=1``; computed in f32 for narrower floats, rounded once.

    The sum runs over registers first, then over pairs of lanes, then over warps; a target without threads may
    use another order.  Any order is within ``(n - 1) u sum(|x|)`` of the exact sum, u the unit roundoff.

    Args:
        x: the tile.
        dim: the dimension; the result has it with extent 1, so it broadcasts in ``x - y``.
        block: length of the runs of neighbours that give one result each; default: the whole dimension.
        per_thread: whether each thread with a part gives its own result, to be reduced later.
        scratch: shared memory for the values of several warps, with one element for each result and warp,
            e.g. ``tw.shared((64, 2), tw.f32)``.  All threads of the block then meet at two barriers.
        barrier: inside a role, the number (1 to 15) of the barrier at which the role's threads meet instead;
            no other threads may use it, as in `role_barrier`.

    Returns:
        The sums, in the dtype of ``x``; threads that held different coordinates along ``dim`` hold copies.

    Raises:
        TraceError: the dimension does not exist; ``block`` does not divide it; a role of several warps has no
            ``barrier``, or ``barrier`` is given outside of a role.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def normalise(X, Y):
        ...     x = tw.load(X.tile((8, 16), (0, 0)).partition((8, 4)))
        ...     tw.copy(x / tw.reduce_sum(x, dim=1), Y.tile((8, 16), (0, 0)))
        >>> x, y = np.ones((8, 16), np.float32), np.empty((8, 16), np.float32)
        >>> normalise(x, y, target="reference").target
        'reference'
        >>> float(y[3, 5])
        0.0625
    """
    return _reduce("sum", x, dim, block, per_thread, scratch, barrier)


@verb
def reduce_max(
    x: Fragment,
    dim: int,
    *,
    block: int | None = None,
    per_thread: bool = False,
    scratch: Tensor | None = None,
    barrier: Index | None = None,
) -> Fragment:
    """``y[i, 0] = max_j x[i, j]`` for ``dim=1``; NaN if any element is NaN.  See `reduce_sum`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M ONE")
        ... def greatest(X, Y):
        ...     x = tw.load(X.tile((2, 32), (0, 0)).partition((2, 16)), other=-float("inf"))
        ...     tw.copy(tw.reduce_max(x, dim=1), Y.tile((2, 1), (0, 0)))
        >>> y = np.empty((2, 1), np.float32)
        >>> greatest(np.float32([[1, 3, 2], [-5, -7, -6]]), y, target="reference").target, y.tolist()
        ('reference', [[3.0], [-5.0]])
    """
    return _reduce("max", x, dim, block, per_thread, scratch, barrier)


@verb
def reduce_min(
    x: Fragment,
    dim: int,
    *,
    block: int | None = None,
    per_thread: bool = False,
    scratch: Tensor | None = None,
    barrier: Index | None = None,
) -> Fragment:
    """``y[i, 0] = min_j x[i, j]`` for ``dim=1``; NaN if any element is NaN.  See `reduce_sum`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M ONE")
        ... def least(X, Y):
        ...     x = tw.load(X.tile((2, 32), (0, 0)).partition((2, 16)), other=float("inf"))
        ...     tw.copy(tw.reduce_min(x, dim=1), Y.tile((2, 1), (0, 0)))
        >>> y = np.empty((2, 1), np.float32)
        >>> least(np.float32([[1, 3, 2], [-5, -7, -6]]), y, target="reference").target, y.tolist()
        ('reference', [[1.0], [-7.0]])
    """
    return _reduce("min", x, dim, block, per_thread, scratch, barrier)


def _reduce(
    function: str,
    x: Fragment,
    dim: int,
    block: int | None,
    per_thread: bool,
    scratch: Tensor | None,
    barrier: Index | None,
) -> Fragment:
    along = _dimension(x.distribution, dim)
    keep = _kept(x, along, block, per_thread)
    with located():
        plan = reduction(x.distribution, along, keep)
    tracer, lanes = current(), current().lanes
    if scratch is None or plan.span <= lanes:
        if barrier is not None:  # report a wrong barrier for every number of warps
            meeting(barrier, SHARE)
        return _reduced(function, x, along, keep)
    if keep:
        raise TraceError("scratch: reductions of blocks or threads do not cross warps", here())
    # Each warp stores its values in shared memory; every thread then loads and reduces them.
    meet = meeting(barrier, SHARE)
    wide = x.to("f32") if x.dtype.is_float and x.dtype.bits < 32 else x
    per_warp = thread_digits(x.distribution, along, lanes)
    count = math.prod(extent for extent, _ in per_warp)
    _check_scratch(scratch, wide.dtype, tuple(count if d == along else n for d, n in enumerate(x.shape)))
    name = f"{x.value.name}_{function}"
    partial = Fragment(
        tracer.builder.define(
            *(ReduceOp, f"{name}_of_warp", here()),
            source=wide.value,
            function=function,
            dim=along,
            keep=per_warp,
        )
    )
    tracer.emit(Copy, source=partial.value, target=scratch.value)
    meet()
    # Every thread holds all coordinates along the dimension.
    shape = partial.shape
    rest = partial.distribution.projected(tuple(1 if d == along else n for d, n in enumerate(shape)))
    spread = Distribution(shape, rest.threads, (Mode(shape[along], along, 1), *rest.values))
    gathered = Fragment(
        tracer.builder.define(FragmentOp, f"{name}_of_warps", here(), dtype=wide.dtype, distribution=spread)
    )
    tracer.emit(Copy, source=scratch.value, target=gathered.value)
    meet()
    made = _reduced(function, gathered, along, ())
    return made if wide is x else made.to(x.dtype)


def _kept(x: Fragment, dim: int, block: int | None, per_thread: bool) -> Keep:
    if block is not None and per_thread:
        raise TraceError("block and per_thread exclude each other", here(), "one of them")
    if per_thread:
        return thread_digits(x.distribution, dim)
    if block is None:
        return ()
    size, extent = constant("block", block), x.shape[dim]
    if size < 1 or extent % size:
        nearest = divisor_at_most(extent, size)
        raise TraceError(
            f"block={size} does not divide the extent {extent} of dimension {dim}", here(), f"block={nearest}"
        )
    return ((extent // size, size),) if extent > size else ()


def _reduced(function: str, x: Fragment, dim: int, keep: Keep) -> Fragment:
    name = f"{x.value.name}_{function}"
    return Fragment(current().define(ReduceOp, name, source=x.value, function=function, dim=dim, keep=keep))


def _check_scratch(scratch: Tensor, dtype: DType, shape: tuple[int, ...]) -> None:
    """Require shared memory of a dtype and a shape."""
    kind = scratch.value.tensor
    if (kind.memory, kind.dtype, kind.shape) != (Memory.SHARED, dtype, shape):
        raise TraceError(
            f"scratch is {kind.memory.value} memory for {kind.dtype} of shape {kind.shape}, and {dtype} of "
            f"shape {shape} are exchanged",
            here(),
            f"tw.shared({shape}, tw.{dtype})",
        )


@verb
def redistribute(
    x: Fragment, like: Fragment | Distribution, *, scratch: Tensor | None = None, barrier: Index | None = None
) -> Fragment:
    """``y[i, j] = x[i, j]``, with elements assigned to other threads and registers.

    An accumulator of one MMA becomes operand A of the next by ``tw.redistribute(acc.to(tw.f16),
    tw.operand_a(mma, k))``.  Each thread already holds its elements, so only registers are renamed.

    Args:
        x: the tile.
        like: the new map, or a fragment that has it.
        scratch: shared memory of the tile's shape and dtype, through which elements pass between threads; all
            threads of the block then meet at two barriers.  Default: no element may leave its thread.
        barrier: inside a role, the number of the barrier at which its threads meet, as in `reduce_sum`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> by_rows, by_columns = tw.blocked((4, 32), (1, 32)), tw.blocked((4, 32), (4, 8))
        >>> @tw.kernel(X="M N", Y="M N")
        ... def other_threads(X, Y):
        ...     x = tw.load(X.tile((4, 32), (0, 0)), by_rows)
        ...     y = tw.redistribute(x, by_columns, scratch=tw.shared((4, 32), tw.f32))
        ...     tw.copy(y, Y.tile((4, 32), (0, 0)))
        >>> x, y = np.random.default_rng(0).random((4, 32), np.float32), np.empty((4, 32), np.float32)
        >>> other_threads(x, y, target="reference").target, bool((x == y).all())
        ('reference', True)
    """
    wanted = like if isinstance(like, Distribution) else like.distribution
    tracer = current()
    if scratch is None:
        if barrier is not None:
            meeting(barrier, SHARE)
        start = (0,) * len(x.shape)
        return Fragment(
            tracer.define(Redistribute, "moved", source=x.value, start=start, distribution=wanted)
        )
    meet = meeting(barrier, SHARE)
    tracer.emit(Copy, source=x.value, target=scratch.value)
    meet()
    made = Fragment(tracer.define(FragmentOp, "moved", dtype=x.dtype, distribution=wanted))
    tracer.emit(Copy, source=scratch.value, target=made.value)
    meet()
    return made


@verb
def coordinates(like: Fragment | Distribution, dim: int) -> Fragment:
    """``y[i, j] = i`` for ``dim=0``, ``j`` for ``dim=1``, in i32; for masks, add the origin of the tile.

    Args:
        like: a fragment, or a distribution.
        dim: the dimension.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(Y="M N")
        ... def lower(Y):
        ...     m = tw.block_index(tw.ceil_div(Y.shape[0], 4))
        ...     y = tw.fragment(tw.blocked((4, 8), (4, 8), (1, 0)), tw.f32, 1)
        ...     rows, columns = tw.coordinates(y, 0) + 4 * m, tw.coordinates(y, 1)
        ...     tw.copy(tw.where(columns <= rows, y, 0.0), Y.tile((4, 8), (m, 0)))
        >>> y = np.empty((8, 8), np.float32)
        >>> lower(y, target="reference").target
        'reference'
        >>> bool((y == np.tril(np.ones((8, 8)))).all())
        True
    """
    spread = like if isinstance(like, Distribution) else like.distribution
    return Fragment(current().define(Coordinates, "at", distribution=spread, dim=_dimension(spread, dim)))


@verb
def causal_mask(scores: Fragment, row: Index, column: Index) -> Fragment:
    """``scores[i, j]`` where ``column + j <= row + i``, else minus infinity.

    Args:
        scores: a tile of scores, a row for each query and a column for each key.
        row: the last key that the tile's first query sees; its own position, if positions are aligned.  Any
            integer of 32 bits; the largest lets every query see every key.
        column: the position of the tile's first key; any integer of 32 bits.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(S="M N")
        ... def masked(S):
        ...     scores = tw.load(S.tile((4, 8), (0, 0)).partition((4, 8)))
        ...     tw.copy(tw.exp(tw.causal_mask(scores, 0, 0)), S.tile((4, 8), (0, 0)))
        >>> s = np.zeros((3, 3), np.float32)
        >>> masked(s, target="reference").target, s.tolist()
        ('reference', [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    """
    rows, columns = scores.shape
    ahead = _difference(row, column, -rows, columns)
    # This form of the comparison keeps the fewest registers alive.
    seen = coordinates(scores, 1) - ahead <= coordinates(scores, 0)
    made: Fragment = elementwise("select", seen, scores, -math.inf)
    return made


def _difference(left: Index, right: Index, low: int, high: int) -> Index:
    """Return ``left - right`` in 32 bits: exact from ``low`` to ``high``, otherwise some number outside."""
    exact = left - right
    least, most = bounds(unwrap(exact))
    if least > -SMALL and most < SMALL:
        return exact
    halves = minimum(maximum(left // 2 - right // 2, low // 2 - 1), high // 2 + 1)
    return 2 * halves + left % 2 - right % 2


def _dimension(spread: Distribution, dim: int) -> int:
    asked = constant("dim", dim)
    if not -spread.rank <= asked < spread.rank:
        nearest = min(max(asked, -spread.rank), spread.rank - 1)
        raise TraceError(f"dim={asked} of a tile of shape {spread.shape}", here(), f"dim={nearest}")
    return asked % spread.rank


# ---------------------------------------------------------------- functions of rows


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


MOST_RUNS = 32
"""Runs of a row, one or more for each warp, whose sums a thread adds up; rows of more runs take rounds."""


@verb
def prefix_sum(
    x: Fragment, dim: int, *, scratch: Tensor | None = None, barrier: int | None = None
) -> Fragment:
    """``y[i, j] = sum of x[i, k] for k <= j`` for ``dim=1``; in f32 for narrower floats, rounded once.

    Threads add their own elements, then lanes exchange sums, then warps do through shared memory.  Any order
    is within ``(n - 1) u sum(|x|)`` of the exact sum of n numbers, u the unit roundoff.  If several warps
    share a row, elements beyond the edge of an array must be 0, as for `reduce_sum`.

    Args:
        x: the tile, with any map.
        dim: the dimension of the sums.
        scratch: shared memory of the tile's shape, in f32 for narrower floats.  Rows that each lie in one
            warp need none.
        barrier: inside a role, the number of the barrier at which its threads meet, as in `reduce_sum`.

    Raises:
        TraceError: the dimension does not exist, or ``scratch`` has the wrong shape or dtype, or is missing.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def running(X, Y):
        ...     x = tw.load(X.tile((8, 16), (0, 0)).partition((8, 4)))
        ...     tw.copy(tw.prefix_sum(x, dim=1), Y.tile((8, 16), (0, 0)))
        >>> y = np.empty((1, 5), np.float32)
        >>> running(np.float32([[1, 2, 3, 4, 5]]), y, target="reference").target, y.tolist()
        ('reference', [[1.0, 3.0, 6.0, 10.0, 15.0]])
    """
    along = _dimension(x.distribution, dim)
    sums = x.to("f32") if x.dtype.is_float and x.dtype.bits < 32 else x
    spread, lanes = sums.distribution, current().lanes
    shape, run = exchanged_shape(spread, along, lanes), run_in_warps(spread, along, lanes)
    if scratch is not None:
        _check_scratch(scratch, sums.dtype, x.shape if scratch.shape != shape else shape)
    if shape is None:
        if barrier is not None:  # report a wrong barrier for every number of warps
            meeting(barrier, SHARE)
        made = _of_runs(sums, along, run, None)
        return made if sums.dtype == x.dtype else made.to(x.dtype)
    if scratch is None:
        text = f"several warps share a row of {x.value.name}, and there is no scratch"
        raise TraceError(text, here(), f"scratch=tw.shared({x.shape}, tw.{sums.dtype})")
    if scratch.shape != shape:
        scratch = scratch[tuple(slice(0, extent) for extent in shape)]
    meet, step = meeting(barrier, SHARE), 1
    if shape == x.shape:
        while step < x.shape[along]:
            _emit_store(sums, scratch, meet)
            sums = sums + _before(sums, along, step, scratch)
            meet()
            step *= 2
        return sums if sums.dtype == x.dtype else sums.to(x.dtype)
    runs = _reduced("sum", sums, along, ((shape[along], run),))
    _emit_store(runs, scratch, meet)
    before = _before(runs, along, shape[along] - 1, scratch)
    for step in range(shape[along] - 2, 0, -1):
        before = before + _before(runs, along, step, scratch)
    meet()
    made = _of_runs(sums, along, run, before)
    return made if sums.dtype == x.dtype else made.to(x.dtype)


def exchanged_shape(spread: Distribution, dim: int, lanes: int) -> tuple[int, ...] | None:
    """Return the shape of the numbers that warps exchange for prefix sums; None if each row is in one warp.

    Args:
        spread: the map of the tile to threads.
        dim: the dimension of the sums.
        lanes: threads of a warp.
    """
    run, extent = run_in_warps(spread, dim, lanes), spread.shape[dim]
    if run == extent:
        return None
    few = run > 1 and extent // run <= MOST_RUNS
    return tuple(extent // run if few and d == dim else n for d, n in enumerate(spread.shape))


def reduced_shape(spread: Distribution, dim: int, lanes: int) -> tuple[int, ...] | None:
    """Return the shape of the numbers that warps exchange for a reduction; None if each row is in one warp.

    Args:
        spread: the map of the tile to threads.
        dim: the dimension that is reduced.
        lanes: threads of a warp.
    """
    warps = math.prod(extent for extent, _ in thread_digits(spread, dim, lanes))
    return None if warps == 1 else tuple(warps if d == dim else n for d, n in enumerate(spread.shape))


def exchanged_dtype(dtype: DType) -> DType:
    """Return the dtype of sums and extremes that warps exchange: f32 for narrower floats."""
    return f32 if dtype.is_float and dtype.bits < f32.bits else dtype


def _of_runs(x: Fragment, dim: int, run: int, before: Fragment | None) -> Fragment:
    name = f"{x.value.name}_prefixes"
    start = None if before is None else before.value
    return Fragment(current().define(PrefixOp, name, source=x.value, dim=dim, run=run, before=start))


def _emit_store(x: Fragment, scratch: Tensor, meet: Callable[[], object]) -> None:
    """Store a tile in shared memory for all threads."""
    current().emit(Copy, source=x.value, target=scratch.value)
    meet()


def _before(x: Fragment, dim: int, step: int, scratch: Tensor) -> Fragment:
    """Return ``y[i, j] = x[i, j - step]``, or 0 if ``j < step``; ``scratch`` has x."""
    tracer = current()
    padded = scratch.pad(
        tuple(step if d == dim else 0 for d in range(len(x.shape))), tuple(0 for _ in x.shape)
    )
    moved = padded[tuple(slice(0, extent) for extent in x.shape)]
    made = tracer.builder.define(
        *(FragmentOp, f"{x.value.name}_before", here()), dtype=x.dtype, distribution=x.distribution
    )
    tracer.emit(Copy, source=moved.value, target=made)
    # The checker takes what the padding gives for elements beyond an edge.
    inside: Fragment = where(coordinates(x, dim) >= step, Fragment(made), 0)
    return inside
