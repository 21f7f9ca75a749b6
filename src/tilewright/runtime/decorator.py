"""The decorator that makes a kernel of a function: `tw.kernel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from tilewright.calls import launches
from tilewright.lang.program import EXPLICIT, Program
from tilewright.runtime.kernel import Kernel


@overload
def kernel(function: Callable[..., None], /) -> Kernel: ...
@overload
def kernel(*, sync: str = ..., **declared: Any) -> Callable[[Callable[..., None]], Kernel]: ...
@launches
def kernel(function: Callable[..., None] | None = None, /, *, sync: str = EXPLICIT, **declared: Any) -> Any:
    """Make a kernel from a Python function that describes it.

    The function runs once for every class of arrays.  Beside its parameters it may read global variables,
    variables of an enclosing function and attributes of modules; so may the functions that it calls.  Their
    values count as compile-time constants.  They are compared whenever the kernel meets arrays of a new
    shape, and if one has changed, all is compiled anew; until then launches use the old values, and prepared
    launches always do.  Not compared are attributes of arbitrary objects, arrays of more than 1 MiB, and
    what the function itself changes.  A value that is meant to change is better a constant, or a number.

    Args:
        function: takes tensors, numbers and integers positionally, compile-time constants by keyword only.
            Numbers, integers and constants may have defaults.
        sync: ``"explicit"``: the author writes `barrier`, `async_commit` and `async_wait` where they are
            needed.  ``"auto"``: they are placed when the kernel is traced, from what its operations read and
            write: as few as serve, which `tilewright inspect` lists with the accesses that need them.  A
            `barrier` of the author's stays.  For kernels without roles, transaction barriers, multiplies in
            the background, clusters and signals; others are refused at their line.
        declared: for each positional parameter the names of its dimensions (``A="M K"``; equal names must
            have equal extents), a dtype for a number (``alpha=tw.f32``), or ``int`` for an integer.

    Returns:
        A `Kernel`, or a decorator when called with declarations alone.  Kernels are pickled by name, as
        functions are, so define them at the top of a module to send them to other processes.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", factor=tw.f32)
        ... def scale(X, factor, *, tile):
        ...     part = X.tile((tile,), (tw.block_index(tw.ceil_div(X.shape[0], tile)),)).partition((32,))
        ...     tw.copy(tw.load(part) * factor, part)
        >>> x = np.float32([1, 2, 3])
        >>> scale(x, 0.5, tile=64, target="reference").target, x.tolist()
        ('reference', [0.5, 1.0, 1.5])

        One tile in shared memory serves turn after turn: threads read what others wrote, and overwrite what
        others have read.  Two barriers are placed:

        >>> @tw.kernel(X="M N", Y="N M", sync="auto")
        ... def transpose(X, Y):
        ...     held = tw.shared((32, 32), tw.f32)
        ...     for m in tw.range(tw.ceil_div(X.shape[0], 32)):
        ...         tw.copy(X.tile((32, 32), (m, 0)), held, threads=64)
        ...         tw.copy(held.permute(1, 0), Y.tile((32, 32), (0, m)), threads=64)
        >>> x, y = np.random.default_rng(0).random((70, 30), np.float32), np.empty((30, 70), np.float32)
        >>> executable = transpose(x, y, target="reference")
        >>> bool((y == x.T).all()), executable.ir.count("barrier()")
        (True, 2)
    """
    if function is not None:
        return Kernel(Program(function, declared, sync))

    @launches.of("kernel")
    def decorate(function: Callable[..., None]) -> Kernel:
        return Kernel(Program(function, declared, sync))

    return decorate
