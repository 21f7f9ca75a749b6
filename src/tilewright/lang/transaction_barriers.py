"""Transaction barriers: they count arrivals and the bytes of bulk copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import TraceError
from tilewright.ir import async_ops as ops
from tilewright.ir.types import BarrierType, Value
from tilewright.lang.clusters import other_block
from tilewright.lang.constants import constant
from tilewright.lang.scalars import Index, unwrap
from tilewright.lang.source import here
from tilewright.lang.tracer import current
from tilewright.lang.verbs import inline, verb
from tilewright.layout.limits import ARRIVALS, BARRIERS
from tilewright.symbolic.nodes import Int


@inline.made("tw.hopper.mbarrier(stages) in a kernel makes them")
@dataclass(frozen=True, repr=False)
class Barriers:
    """Transaction barriers, one per stage; index them by the stage; made by `mbarrier`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     full = tw.hopper.mbarrier(2, arrivals=1)
        ...     print(full)
        >>> _ = look(np.ones(64, np.float32), target="reference")
        full: 2 barriers of 1 arrivals
    """

    value: Value

    def __repr__(self) -> str:
        return f"{self.value.name}: {self.value.type!r}"

    def __getitem__(self, stage: Index) -> BarrierStage:
        kind = self.value.type
        assert isinstance(kind, BarrierType)
        at = unwrap(stage)
        if isinstance(at, int) and not 0 <= at < kind.stages:
            raise TraceError(f"stage {at} of {kind.stages} barriers {self.value}", here())
        return BarrierStage(self.value, at)


@inline.made("an entry of tw.hopper.mbarrier(stages) is one")
@dataclass(frozen=True, repr=False)
class BarrierStage:
    """One of several transaction barriers; see `Barriers`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     full = tw.hopper.mbarrier(2, arrivals=1)
        ...     print(full[1])
        >>> _ = look(np.ones(64, np.float32), target="reference")
        full[1]
    """

    value: Value
    stage: Int

    def __repr__(self) -> str:
        return f"{self.value.name}[{self.stage}]"


@verb(stages=BARRIERS, arrivals=ARRIVALS)
def mbarrier(stages: int, arrivals: int) -> Barriers:
    """``stages`` transaction barriers, each completing a phase after ``arrivals`` arrivals.

    They are initialised immediately.  Other threads may use them after the next `barrier`, and other blocks
    after the next `cluster_barrier`.

    Args:
        stages: number of barriers.
        arrivals: number of arrivals that complete a phase, together with all bytes that they announced.

    Source: PTX ISA, "mbarrier".

    Example:
        A bulk copy's bytes complete the phase that was told to expect them:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def through_shared(X, Y):
        ...     held = tw.shared((8, 64), X.dtype, swizzle=128)
        ...     full = tw.hopper.mbarrier(1, arrivals=1)
        ...     tw.barrier()
        ...     tw.hopper.arrive(full[0], expect_bytes=8 * 128)
        ...     tw.hopper.tma_load(X.tile((8, 64), (0, 0)), held, full[0])
        ...     tw.hopper.wait(full[0], 0)
        ...     tw.copy(held, Y.tile((8, 64), (0, 0)), threads=32)
        >>> x, y = np.ones((2, 8), np.float16), np.zeros((2, 8), np.float16)
        >>> through_shared(x, y, target="reference").target, y.sum(1).tolist()
        ('reference', [8.0, 8.0])
    """
    count, needed = constant("stages", stages), constant("arrivals", arrivals)
    return Barriers(current().define(ops.MBarrier, "mbarrier", stages=count, arrivals=needed))


@verb
def wait(barrier: BarrierStage, parity: Index) -> None:
    """Wait until the phase of this parity has completed; parity 1 of a fresh barrier passes at once.

    The waiting threads see everything before the arrivals, unless these were relaxed.

    Args:
        barrier: one stage of `mbarrier`.
        parity: 0 for phases 0, 2, 4 ..., and 1 for phases 1, 3, 5 ....

    Source: PTX ISA, "mbarrier.try_wait".

    Example:
        One warp fills what another one empties, tile after tile:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def hand_over(X, Y):
        ...     held = tw.shared((32,), X.dtype)
        ...     full, empty = tw.hopper.mbarrier(1, arrivals=1), tw.hopper.mbarrier(1, arrivals=1)
        ...     tw.barrier()
        ...     with tw.role(warps=1):
        ...         for i in tw.range(tw.ceil_div(X.shape[0], 32)):
        ...             tw.hopper.wait(empty[0], 1 - i % 2)
        ...             tw.copy(X.tile((32,), (i,)), held, threads=32)
        ...             tw.hopper.arrive(full[0], each="warp")
        ...     with tw.role(warps=1):
        ...         for i in tw.range(tw.ceil_div(X.shape[0], 32)):
        ...             tw.hopper.wait(full[0], i % 2)
        ...             tw.copy(held, Y.tile((32,), (i,)), threads=32)
        ...             tw.hopper.arrive(empty[0], each="warp")
        >>> x, y = np.arange(100), np.zeros(100, int)
        >>> hand_over(x, y, target="reference").target, y[[0, 50, 99]].tolist()
        ('reference', [0, 50, 99])
    """
    current().emit(ops.Wait, barrier=barrier.value, stage=barrier.stage, parity=unwrap(parity))


@verb
def arrive(
    barrier: BarrierStage,
    *,
    expect_bytes: int = 0,
    each: str = "role",
    block: Index | Sequence[Index] | None = None,
    relaxed: bool = False,
) -> None:
    """Arrive at a transaction barrier.

    Args:
        barrier: one stage of `mbarrier`.
        expect_bytes: bytes of bulk copies that the current phase must wait for.
        each: ``"role"``: one arrival by the role's first thread; ``"warp"``: one by each warp, after its
            lanes came together.
        block: the block whose barrier is meant: its coordinate or rank in the cluster; default: this block.
        relaxed: for another block's barrier: the waiting thread may let bulk copies overwrite shared memory,
            but sees no writes before the arrival.  This is enough to release a stage if bulk copies or
            asynchronous MMAs have read it, or if threads have read it and then called `fence_async`.  An
            arrival that is not relaxed orders memory over the whole cluster if that is needed, and then waits
            for all accesses of a warp.  Refused if threads access `peer` memory.

    Example:
        Each of two warps says that its half is there:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def hand_over(X, Y):
        ...     held = tw.shared((64,), X.dtype)
        ...     full = tw.hopper.mbarrier(1, arrivals=2)
        ...     tw.barrier()
        ...     with tw.role(warps=2):
        ...         tw.copy(X.tile((64,), (0,)), held, threads=64)
        ...         tw.hopper.arrive(full[0], each="warp")
        ...     with tw.role(warps=1):
        ...         tw.hopper.wait(full[0], 0)
        ...         tw.copy(held, Y.tile((64,), (0,)), threads=32)
        >>> x, y = np.arange(64), np.zeros(64, int)
        >>> hand_over(x, y, target="reference").target, y[[0, 40, 63]].tolist()
        ('reference', [0, 40, 63])
    """
    if each not in ("role", "warp"):
        raise TraceError(f"arrive(each={each!r}); choose 'role' or 'warp'", here())
    size = constant("expect_bytes", expect_bytes)
    rank = None if block is None else other_block(block)
    current().emit(
        ops.Arrive,
        barrier=barrier.value,
        stage=barrier.stage,
        expect_bytes=size,
        each=each,
        block=rank,
        relaxed=relaxed and rank is not None,
    )
