"""Asynchronous MMA: the accumulator is complete after a wait."""

from __future__ import annotations

from tilewright.errors import TraceError
from tilewright.ir import async_ops as ops
from tilewright.ir.mma import TiledMma
from tilewright.lang.constants import constant
from tilewright.lang.scalars import Condition, unwrap_condition
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.lang.tracer import current
from tilewright.lang.verbs import verb
from tilewright.symbolic.nodes import Constant


@verb
def mma_fence() -> None:
    """Order register accesses before the asynchronous MMAs that follow.

    Call it before the first MMA, and again after threads have written the accumulator or operand A.

    Source: PTX ISA, "wgmma.fence".

    Example:
        What threads wrote into the accumulator is there when the MMA adds to it:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def multiply(A, B, C):
        ...     sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        ...     tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        ...     tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)))
        ...     tw.fill(acc, 10)
        ...     tw.hopper.mma_fence()
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_wait()
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        >>> a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[1, 0], [1, 1]], np.float16)
        >>> c = np.zeros((2, 2), np.float32)
        >>> multiply(a, b, c, target="reference").target, c.tolist()
        ('reference', [[11.0, 13.0], [13.0, 17.0]])
    """
    current().emit(ops.MmaFence)


@verb
def mma_async(
    a: Tensor | Fragment,
    b: Tensor,
    acc: Fragment,
    tiled: TiledMma | None = None,
    *,
    fresh: Condition | bool = False,
    negative: bool = False,
) -> None:
    """``acc[m, n] += sum_k a[m, k] * b[n, k]`` in the background; complete after `mma_wait`.

    Args:
        a: a tile in shared memory, or a fragment as the atom's operand A.
        b: a tile in shared memory.
        acc: the accumulator.
        tiled: the tiled MMA; default: the one from which ``acc`` was made.
        fresh: if true, the products overwrite ``acc`` instead of being added, so ``acc`` need not be filled.
        negative: whether to subtract the products; only for floats.

    Raises:
        TraceError: there is no tiled MMA, or ``fresh`` is not a condition.

    Source: PTX ISA, "wgmma.mma_async".

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def multiply(A, B, C):
        ...     sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        ...     tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        ...     tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)))
        ...     tw.hopper.mma_fence()
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_wait()
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        >>> a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[1, 0], [1, 1]], np.float16)
        >>> c = np.zeros((2, 2), np.float32)
        >>> multiply(a, b, c, target="reference").target, c.tolist()
        ('reference', [[1.0, 3.0], [3.0, 7.0]])
    """
    cond = unwrap_condition(fresh)
    known = cond.value if isinstance(cond, Constant) else cond
    chosen = tiled or acc.mma
    if chosen is None:
        raise TraceError(
            "mma_async needs the tiled MMA: make acc with tw.accumulator(mma), or pass it", here()
        )
    operands = {"a": a.value, "b": b.value, "c": acc.value}
    current().emit(ops.MmaAsync, **operands, mma=chosen, fresh=known, negative=negative)


@verb
def mma_commit() -> None:
    """Close the group of asynchronous MMAs issued since the last commit.

    Source: PTX ISA, "wgmma.commit_group".

    Example:
        Two MMAs are one group:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def multiply(A, B, C):
        ...     sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        ...     tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        ...     tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)))
        ...     tw.hopper.mma_fence()
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_wait()
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        >>> a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[1, 0], [1, 1]], np.float16)
        >>> c = np.zeros((2, 2), np.float32)
        >>> multiply(a, b, c, target="reference").target, c.tolist()
        ('reference', [[2.0, 6.0], [6.0, 14.0]])
    """
    current().emit(ops.MmaCommit)


@verb
def mma_wait(pending: int = 0) -> None:
    """Wait until at most ``pending`` groups of asynchronous MMAs are unfinished.

    Args:
        pending: number of the latest groups that may still run; no thread may touch their operands.

    Source: PTX ISA, "wgmma.wait_group".

    Example:
        After the first wait, ``acc`` is complete, while ``more`` may still be computed:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def multiply(A, B, C):
        ...     sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        ...     tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        ...     tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)))
        ...     more = tw.accumulator(acc.mma)
        ...     tw.hopper.mma_fence()
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_async(sA, sB, more)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_wait(1)
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        ...     tw.hopper.mma_wait(0)
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        >>> a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[1, 0], [1, 1]], np.float16)
        >>> c = np.zeros((2, 2), np.float32)
        >>> multiply(a, b, c, target="reference").target, c.tolist()
        ('reference', [[1.0, 3.0], [3.0, 7.0]])
    """
    current().emit(ops.MmaWait, pending=constant("pending", pending))
