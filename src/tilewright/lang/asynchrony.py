"""Warp roles, transaction barriers, bulk tensor copies, asynchronous MMA: what the fastest use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tilewright.errors import Location, TraceError
from tilewright.ir import async_ops as ops
from tilewright.ir.copies import Copy
from tilewright.ir.indices import loop_index
from tilewright.ir.mma import TiledMma
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import Barrier, WarpBarrier
from tilewright.ir.types import BarrierType, Value
from tilewright.lang.clusters import other_block, shared_axes
from tilewright.lang.control import Region
from tilewright.lang.scalars import Index, Scalar, unwrap
from tilewright.lang.source import author_frame, here, stored_names
from tilewright.lang.tensors import Fragment, Tensor, constant
from tilewright.lang.tracer import current
from tilewright.lang.verbs import verb
from tilewright.layout.limits import ARRIVALS, BARRIERS, WARPS
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.ranges import bounds


@verb(warps=WARPS, groups=WARPS)
def role(warps: int, *, registers: int | None = None, groups: int = 1) -> AbstractContextManager[Index]:
    """``with tw.role(warps=4):`` is executed by the next ``warps`` warps of the block, beside other roles.

    Operations inside are collective over the role's threads.  A role inside of a role takes warps of that
    one: ``with tw.role(warps=4, registers=40), tw.role(warps=1):`` leaves three of four warps idle.
    ``with tw.role(warps=4, groups=2) as g:`` is executed by two groups of four warps, side by side, each
    collectively for itself; ``g`` is 0 in the first of them and 1 in the second.

    Args:
        warps: how many warps of each group; the first role takes warps from 0 on, the next one those that
            follow.
        registers: registers that each thread may use from here on; whole warpgroups only, and only in the
            outermost role.  All roles together may not take more than the block is launched with: of sm_90a's
            65536, each of 384 threads has at most 168, which is (40, 232, 232) for three warpgroups.
        groups: how many groups of warps execute the role, each for itself.

    Returns:
        What ``with`` enters; ``as g`` names the group's index, which is 0 if there is one group.

    Example:
        Each of two groups of one warp fills its own row:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N")
        ... def rows(X):
        ...     with tw.role(warps=1, groups=2) as g:
        ...         x = tw.fragment(tw.blocked((1, 32), (1, 32)), tw.f32)
        ...         tw.fill(x, 1.0)
        ...         tw.copy(x, X.tile((1, 32), (g, 0)))
        >>> x = np.zeros((2, 32), np.float32)
        >>> rows(x, target="reference").target, x.sum(1).tolist()
        ('reference', [32.0, 32.0])
    """
    tracer = current()
    first = tracer.warps[-1]
    count, many = constant("warps", warps), constant("groups", groups)
    budget = None if registers is None else constant("registers", registers)
    tracer.warps[-1] += count * many
    made = _Role("role", lambda block, location: made.op(block, location))
    made.count, made.groups, made.first, made.registers = count, many, first, budget
    return made


class _Role(Region):
    """Records a role; those inside count its warps."""

    first: int
    count: int
    groups: int
    registers: int | None
    index: Sym | None = None

    def op(self, block: Block, location: Location) -> Op:
        """What is recorded."""
        return ops.Role(
            self.first, self.count, block, self.registers, self.groups, self.index, location=location
        )

    def enter(self) -> Index:
        """Name the groups' index."""
        tracer = current()
        if self.groups > 1:
            name = (*(stored_names(author_frame()) or ()), "group")[0]
            self.index = loop_index(tracer.name(name), 0, self.groups, 1)
        tracer.warps.append(0)
        tracer.roles.append(self.count)
        return 0 if self.index is None else Scalar(self.index)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        current().warps.pop()
        current().roles.pop()
        super().__exit__(kind, error, traceback)


@dataclass(frozen=True, repr=False)
class Barriers:
    """Transaction barriers, one per stage; index them by the stage; made by `mbarrier`."""

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


@dataclass(frozen=True, repr=False)
class BarrierStage:
    """One of several transaction barriers; see `Barriers`."""

    value: Value
    stage: Int

    def __repr__(self) -> str:
        return f"{self.value.name}[{self.stage}]"


@verb(stages=BARRIERS, arrivals=ARRIVALS)
def mbarrier(stages: int, arrivals: int) -> Barriers:
    """``stages`` transaction barriers, each completing a phase after ``arrivals`` arrivals.

    They are initialised at once; other threads may use them after the next `barrier`, other blocks after the
    next `cluster_barrier`.
    """
    count, needed = constant("stages", stages), constant("arrivals", arrivals)
    return Barriers(current().define(ops.MBarrier, "mbarrier", stages=count, arrivals=needed))


@verb
def wait(barrier: BarrierStage, parity: Index) -> None:
    """Wait until the phase of this parity has completed; parity 1 of a fresh barrier passes at once."""
    current().emit(ops.Wait, barrier=barrier.value, stage=barrier.stage, parity=unwrap(parity))


@verb
def arrive(
    barrier: BarrierStage,
    *,
    expect_bytes: int = 0,
    each: str = "role",
    block: Index | Sequence[Index] | None = None,
) -> None:
    """Arrive at a transaction barrier.

    Args:
        barrier: one stage of `mbarrier`.
        expect_bytes: bytes of bulk copies that the present phase must wait for.
        each: ``"role"``: one arrival by the role's first thread; ``"warp"``: one by each warp, after its
            lanes came together.
        block: whose barrier: the coordinate in the cluster of another block, or its rank; default: one's own.
    """
    if each not in ("role", "warp"):
        raise TraceError(f"arrive(each={each!r}); choose 'role' or 'warp'", here())
    size = constant("expect_bytes", expect_bytes)
    rank = None if block is None else other_block(block)
    current().emit(
        ops.Arrive, barrier=barrier.value, stage=barrier.stage, expect_bytes=size, each=each, block=rank
    )


@verb
def tma_load(
    source: Tensor,
    target: Tensor,
    barrier: BarrierStage,
    *,
    multicast: int | Sequence[int] = (),
) -> None:
    """``target = source``, a box of a tensor parameter to shared memory, by TMA in the background.

    Elements outside of the tensor become 0.  The box's bytes count for the barrier's present phase.

    Args:
        source: a tile of a tensor parameter, or another view of one (a slice, permuted, padded, of an im2col
            view the part under one tap) that is a box of it, cut at its edges alone: what else it is that TMA
            cannot walk is said before anything is compiled.
        target: a tile in shared memory, of the same shape, in rows of 128 bytes under ``swizzle=128``.
        barrier: one stage of `mbarrier`.
        multicast: axes of the cluster; all blocks that differ from this one only along them get the box too,
            at the same place of their shared memory, and its bytes count at their own barriers.
    """
    current().emit(
        Copy,
        source=source.value,
        target=target.value,
        engine="bulk",
        completion="barrier",
        barrier=barrier.value,
        stage=barrier.stage,
        multicast=shared_axes(multicast),
    )


@verb
def tma_store(source: Tensor, target: Tensor, *, reduction: str | None = None) -> None:
    """``target = source``, a tile in shared memory to a box of a tensor, by TMA in the background.

    Args:
        source: a tile in shared memory, in rows of 128 bytes under ``swizzle=128``.
        target: as the source of `tma_load`; it begins nowhere before the tensor, whose rows are multiples of
            16 bytes: hardware stores units of 16 bytes, and would overwrite what follows other rows.
        reduction: ``"add"`` (f32, f16, bf16, i32), ``"min"``, ``"max"``, ``"and"``, ``"or"`` (i32): elements
            are combined with those that are there, as by `copy`.
    """
    ends = {"source": source.value, "target": target.value}
    current().emit(Copy, **ends, engine="bulk", completion="group", reduction=reduction)


@verb
def bulk_commit() -> None:
    """Close the group of `tma_store` copies that the role's first thread issued."""
    current().emit(ops.BulkCommit)


@verb
def bulk_wait(pending: int = 0) -> None:
    """The role's first thread waits until at most ``pending`` of its groups still read shared memory."""
    current().emit(ops.BulkWait, pending=constant("pending", pending))


@verb
def fence_async(memory: str = "shared") -> None:
    """Let bulk copies and asynchronous MMA see what ordinary accesses did to a memory before.

    They reach memory by another path than threads do.  What threads wrote is seen after a fence: of each
    thread that wrote, before the barrier that the thread which issues the copy waits at, or of that thread,
    after the barrier.  What a copy brought needs none, nor does a copy over what threads have only read
    before a barrier.

    Args:
        memory: ``"shared"``, or ``"global"``: for `tma_load` of what the same kernel has written.

    Raises:
        TraceError: another memory.

    Source: PTX ISA, "membar, fence", "Async proxy", and "Causality order" of the memory consistency model.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def through_shared(X, Y):
        ...     held = tw.shared((8, 64), X.dtype, swizzle=128)
        ...     with tw.role(warps=1):
        ...         tw.copy(X.tile((8, 64), (0, 0)), held, threads=(8, 4))
        ...         tw.hopper.fence_async()
        ...         tw.warp_barrier()
        ...         tw.hopper.tma_store(held, Y.tile((8, 64), (0, 0)))
        ...         tw.hopper.bulk_commit()
        ...         tw.hopper.bulk_wait()
        >>> x = np.ones((8, 64), np.float16)
        >>> y = np.zeros_like(x)
        >>> _ = through_shared(x, y, target="reference")
        >>> bool((x == y).all())
        True
    """
    if memory not in ops.FENCED:
        raise TraceError(f"fence_async({memory!r}); choose 'shared' or 'global'", here())
    current().emit(ops.FenceAsync, memory=memory)


@verb
def mma_fence() -> None:
    """Order register accesses before the asynchronous MMAs that follow."""
    current().emit(ops.MmaFence)


@verb
def mma_async(a: Tensor | Fragment, b: Tensor, acc: Fragment, tiled: TiledMma | None = None) -> None:
    """``acc[m, n] += sum_k a[m, k] * b[n, k]`` in the background; complete after `mma_wait`."""
    chosen = tiled or acc.mma
    if chosen is None:
        raise TraceError(
            "mma_async needs the tiled MMA: make acc with tw.accumulator(mma), or pass it", here()
        )
    current().emit(ops.MmaAsync, a=a.value, b=b.value, c=acc.value, mma=chosen)


@verb
def mma_commit() -> None:
    """Close the group of asynchronous MMAs issued since the last commit."""
    current().emit(ops.MmaCommit)


@verb
def mma_wait(pending: int = 0) -> None:
    """Wait until at most ``pending`` groups of asynchronous MMAs are unfinished."""
    current().emit(ops.MmaWait, pending=constant("pending", pending))


@verb
def role_barrier(number: Index, threads: int) -> None:
    """The ``threads`` threads that name barrier ``number`` (1 to 15) wait for each other.

    The groups of a role name a number each: ``tw.role_barrier(1 + g, threads=128)``.
    """
    meet(unwrap(number), constant("threads", threads))


def meet(number: Int, threads: int) -> None:
    """Record a numbered barrier."""
    low, high = bounds(number)
    last = min(high, current().arch.named_barriers)
    current().numbers.update(range(int(low), int(last) + 1) if low > 0 else ())
    current().emit(ops.RoleBarrier, number=number, threads=threads)


def meeting(barrier: Index | None, why: str) -> Callable[[], object]:
    """What records the barrier at which threads that act together meet: the block's, or their role's own.

    Args:
        barrier: the number of the barrier of a role of several warps.
        why: who meets, the beginning of a sentence.

    Raises:
        TraceError: a role of several warps without a number, or one outside of a role.
    """
    tracer = current()
    number = None if barrier is None else unwrap(barrier)
    if not tracer.roles:
        if number is not None:
            text = f"barrier={number} outside of a role, where all threads of the block meet"
            raise TraceError(f"{text}; nearest legal choice: no barrier", here())
        return lambda: tracer.emit(Barrier)
    if number is None and tracer.roles[-1] == 1:
        return lambda: tracer.emit(WarpBarrier)
    most = tracer.arch.named_barriers
    if number is None or not 1 <= bounds(number)[0] <= bounds(number)[1] <= most:
        free = next((n for n in range(1, most + 1) if n not in tracer.numbers), 1)
        given = "" if number is None else f"barrier={number}: "
        raise TraceError(
            f"{given}{why} meet at a numbered barrier, 1 to {most}, which no other warps use; "
            f"nearest legal choice: barrier={free}",
            here(),
        )
    return lambda: meet(number, tracer.roles[-1] * tracer.lanes)


@verb
def prior_grid_wait() -> None:
    """Wait until the grid before this one in the stream has finished and its writes are visible.

    A kernel that says it is launched early: its blocks may begin when all blocks of the grid before have said
    `launch_dependents` or ended (programmatic dependent launch).  What comes before the wait runs beside that
    grid: set-up of shared memory and barriers, integers, sizes and numbers.  All accesses to arrays and
    workspaces, bulk copies too, must come after it, and every block must wait: once where all threads pass,
    or in each role that touches global memory, outside of loops and branches.  On ``reference``, where one
    launch follows the other, it does nothing.

    Source: PTX ISA, "griddepcontrol"; CUDA programming guide, "programmatic dependent launch".

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def double(X):
        ...     part = X.tile((64,), (tw.block_index(tw.ceil_div(X.shape[0], 64)),))
        ...     tw.hopper.prior_grid_wait()
        ...     x = tw.load(part.partition((32,)))
        ...     tw.hopper.launch_dependents()
        ...     tw.copy(x + x, part)
        >>> x = np.ones(100, np.float32)
        >>> for _ in range(3):
        ...     _ = double(x, target="reference")
        >>> float(x.min()), float(x.max())
        (8.0, 8.0)
    """
    current().emit(ops.PriorGridWait)


@verb
def launch_dependents() -> None:
    """Let the next grid in the stream begin once every block of this one has said so or ended.

    It matters only if that grid's kernel has `prior_grid_wait`; any other begins when this grid has finished.
    It may stand anywhere: the next grid's wait is for the end of this one.  See `prior_grid_wait`.
    """
    current().emit(ops.LaunchDependents)
