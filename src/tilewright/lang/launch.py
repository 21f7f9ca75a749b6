"""Launch properties of a kernel: grid and indices, clusters, workspaces, derived integers, requirements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import TraceError
from tilewright.ir.integer_ops import grid_index
from tilewright.ir.kernel import ClusterAxis, Derived, GridAxis, SizeParam, Workspace
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.lang.fragments import element_type
from tilewright.lang.scalars import Condition, Index, Scalar, as_tuple, static, unwrap, unwrap_condition
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current, verb
from tilewright.symbolic.expr import mul
from tilewright.symbolic.nodes import Cond, Constant, Int, Sym, bits, bounds, divisor
from tilewright.symbolic.rebuilding import Guard, symbols
from tilewright.views.view import View


@verb
def block_index(extents: Index | Sequence[Index]) -> Any:
    """The block's index in a grid of ``extents``; declares the grid.

    Args:
        extents: number of blocks per axis, the first axis fastest; at most three with `batch_index`.

    Returns:
        One index, or a tuple with one index per extent.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N")
        ... def tiles(X):
        ...     m, n = tw.block_index((tw.ceil_div(X.shape[0], 2), tw.ceil_div(X.shape[1], 4)))
        ...     x = tw.fragment(tw.blocked((2, 4), (2, 4)), tw.f32, 0)
        ...     tw.copy(x + 10 * m + n, X.tile((2, 4), (m, n)))
        >>> x = np.zeros((4, 6), np.float32)
        >>> tiles(x, target="reference").target, x[::2].astype(int).tolist()
        ('reference', [[0, 0, 0, 0, 1, 1], [10, 10, 10, 10, 11, 11]])
    """
    return _grid(extents, ("block_m", "block_n", "block_k"), "block")


@verb
def batch_index(extent: Index) -> Scalar:
    """The block's index along the batch axis of the grid; declares that axis.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="B N")
        ... def number(X):
        ...     batch = tw.batch_index(X.shape[0])
        ...     x = tw.fragment(tw.blocked((1, 32), (1, 32)), tw.f32, 0)
        ...     tw.copy(x + batch, X.tile((1, 32), (batch, 0)))
        >>> x = np.zeros((3, 2), np.float32)
        >>> number(x, target="reference").target, x.tolist()
        ('reference', [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    """
    made: Scalar = _grid(extent, ("batch",), "batch")
    return made


def _grid(extents: Any, defaults: tuple[str, ...], kind: str) -> Any:
    tracer = current()
    tracer.refuse_in_flow(f"tw.{kind}_index")
    given = as_tuple(extents)
    if len(tracer.grid) + len(given) > 3:
        raise TraceError(f"a grid of {len(tracer.grid) + len(given)} axes; at most 3 are possible", here())
    made = []
    for name, extent in zip(tracer.names(defaults[: len(given)]), given, strict=True):
        sym = grid_index(
            name, _at_launch(f"a number of {'blocks' if kind == 'block' else 'batches'}", extent)
        )
        tracer.grid.append(GridAxis(sym, unwrap(extent), kind))
        made.append(Scalar(sym))
    return tuple(made) if isinstance(extents, tuple | list) else made[0]


def _at_launch(what: str, value: Index) -> Int:
    """Check that the launcher can compute an integer, and return it."""
    known = unwrap(value)
    _check_known(what, known, symbols(known))
    return known


def _check_known(what: str, known: Int | Cond, named: set[Sym]) -> None:
    inside = sorted(sym.name for sym in named - current().sizes)
    if inside:
        raise TraceError(
            f"{what} {known} depends on {', '.join(inside)}, which is known only when the kernel runs; it "
            "may depend on sizes and constants",
            here(),
        )


@verb
def cluster_index(shape: int | Sequence[int]) -> Any:
    """The block's index in its cluster of ``shape`` blocks; declares the cluster, which must divide the grid.

    Blocks of a cluster run at the same time and can use `cluster_barrier`, ``tma_load(multicast=...)`` and
    ``arrive(block=...)`` on each other.  In a cluster of one block these act only on the block.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def rank(X):
        ...     block, member = tw.block_index(4), tw.hopper.cluster_index(2)
        ...     x = tw.fragment(tw.blocked((32,), (32,)), tw.f32, 0.0)
        ...     tw.copy(x + member, X.tile((32,), (block,)))
        ...     tw.hopper.cluster_barrier()
        >>> x = np.zeros(128, np.float32)
        >>> rank(x, target="reference").target, x[::32].tolist()
        ('reference', [0.0, 1.0, 0.0, 1.0])
    """
    tracer = current()
    tracer.refuse_in_flow("tw.hopper.cluster_index")
    given = static("the cluster's shape", shape)
    if tracer.cluster_shape:
        raise TraceError("the cluster is declared already", here())
    if min(given, default=0) < 1:
        raise TraceError(f"a cluster of {given} blocks; every extent is at least 1", here())
    tracer.cluster_shape = given
    made: list[Index] = []
    defaults = ("cluster_m", "cluster_n", "cluster_k")[: len(given)]
    for axis, (name, extent) in enumerate(zip(tracer.names(defaults), given, strict=True)):
        sym = Sym(name, 0, extent - 1)
        if extent > 1:
            tracer.cluster.append(ClusterAxis(sym, axis, extent))
        made.append(Scalar(sym) if extent > 1 else 0)
    return tuple(made) if isinstance(shape, tuple | list) else made[0]


@verb
def workspace(shape: Index | Sequence[Index], element: DType | str, *, zeroed: bool = False) -> Tensor:
    """Global memory that the launcher allocates and keeps between launches; shared by all blocks.

    Args:
        shape: extents, over the kernel's sizes.
        element: element type.
        zeroed: whether every launch first clears it to zero; `counter` needs no clearing.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def add_what_is_kept(X):
        ...     kept = tw.workspace((32,), tw.f32, zeroed=True)
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(x + tw.load(kept.partition((32,))), X.tile((32,), (0,)))
        >>> x = np.ones(32, np.float32)
        >>> add_what_is_kept(x, target="reference").target, float(x[0])
        ('reference', 1.0)
    """
    return launcher_memory(shape, element_type(element), zeroed=zeroed)


def launcher_memory(
    shape: Index | Sequence[Index], element: DType, *, zeroed: bool = False, resets: bool = False
) -> Tensor:
    """Record global memory that the launcher owns, named after the author's variable; see `Workspace`."""
    tracer = current()
    tracer.refuse_in_flow("tw.workspace")
    extents = tuple(_at_launch("an extent of a workspace", extent) for extent in as_tuple(shape))
    count: Int = 1
    for extent in extents:
        if bounds(extent)[1] < 0:
            raise TraceError(f"an extent of a workspace is {extent}", here(), "0")
        count = mul(count, extent)
    view = View(extents, View.strided(extents, packed(extents)).offset, count)
    value = Value(tracer.names(("workspace",))[0], TensorType(Memory.GLOBAL, element, view))
    tracer.workspaces.append(Workspace(value, count, zeroed, resets))
    return Tensor(value)


@verb
def derived(value: Index) -> Index:
    """An integer that the launcher computes once from the kernel's sizes, and passes to the kernel.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def halves(X):
        ...     half = tw.derived(tw.ceil_div(X.shape[0], 2))
        ...     part = X[half:].tile((32,), (0,)).partition((32,))
        ...     tw.copy(tw.load(part), part)
        >>> "Derived" in tw.ir.print_kernel(halves(np.ones(64, np.float32), target="reference").kernel)
        True
    """
    tracer = current()
    tracer.refuse_in_flow("tw.derived")
    known = _at_launch("a derived integer", value)
    if isinstance(known, int):
        return known
    low, high = (None if abs(end) == float("inf") else int(end) for end in bounds(known))
    sym = Sym(tracer.names(("derived",))[0], -(2**63) if low is None else low, high, divisor(known))
    if tracer.depends_on_data(known):
        tracer.data.add(sym)
    tracer.derived.append(SizeParam(sym, Derived(known), bits(known)))
    tracer.sizes.add(sym)
    return Scalar(sym)


@verb
def require(condition: Condition | bool, message: str) -> None:
    """The launcher raises `LaunchError` with ``message`` unless ``condition`` holds for the launch's sizes.

    It is checked for every launch before the kernel starts, wherever the call is, at no cost to the kernel.
    Calls on arrays with the same metadata as before do not check it again.

    Args:
        condition: over extents, strides, integer arguments, derived integers and constants.
        message: the caller's error, and what to do instead.

    Raises:
        TraceError: the condition depends on values that only the running kernel knows.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def double(X, *, tile):
        ...     tw.require(X.shape[0] % tile == 0, f"N must be a multiple of {tile}")
        ...     part = X.tile((tile,), (tw.block_index(X.shape[0] // tile),)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(x + x, part)
        >>> double(np.ones(96, np.float32), tile=64, target="reference")
        Traceback (most recent call last):
        tilewright.errors.LaunchError: kernel double: N must be a multiple of 64
    """
    tracer = current()
    known = unwrap_condition(condition)
    _check_known("a requirement", known, symbols(known))
    if known != Constant(True):
        tracer.guards.append(Guard(known, message))


def packed(extents: Sequence[Int]) -> tuple[Int, ...]:
    """Return the strides of a packed tensor whose last dimension is contiguous."""
    strides: list[Int] = []
    total: Int = 1
    for extent in reversed(extents):
        strides.insert(0, total)
        total = mul(total, extent)
    return tuple(strides)
