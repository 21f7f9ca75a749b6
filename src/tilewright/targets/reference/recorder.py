"""Recording of executed operations: rules that also note the begin and end of each execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.ir import async_ops, ops
from tilewright.ir.clusters import sharing
from tilewright.ir.copies import is_bulk, is_bulk_load
from tilewright.ir.fragment_ops import PrefixOp, ReduceOp
from tilewright.ir.op import Op
from tilewright.ir.types import Memory
from tilewright.targets.reference.machine import Simulator
from tilewright.targets.reference.state import Steps, Warp
from tilewright.targets.rules import RuleTable

RECORDED = (
    *(async_ops.Arrive, async_ops.Wait),
    *(ops.Copy, ops.AsyncCommit, ops.AsyncWait, ops.Mma, ops.Elementwise, ReduceOp, PrefixOp, ops.Barrier),
    *(async_ops.BulkCommit, async_ops.BulkWait, async_ops.RoleBarrier),
    *(async_ops.ClusterBarrier, async_ops.ClusterWait),
    *(async_ops.MmaAsync, async_ops.MmaCommit, async_ops.MmaWait),
)
"""Operations that take time or order others; integers, views and loops do neither."""

ONE_THREAD = (async_ops.BulkCommit, async_ops.BulkWait)
"""Operations that the first warp of a role executes for all, in addition to bulk copies."""


@dataclass(frozen=True)
class Touch:
    """The part of a shared tensor's buffer that an operation touches: elements ``first`` to ``last``.

    ``block`` is the rank of the block whose shared memory it is.
    """

    buffer: str
    first: int
    last: int
    is_written: bool
    block: int = 0

    def overlaps(self, other: Touch) -> bool:
        """Return whether two parts have elements in common."""
        same = (self.block, self.buffer) == (other.block, other.buffer)
        return same and self.first <= other.last and other.first <= self.last


@dataclass(eq=False)
class RecordedExecution:
    """One execution of an operation by one warp.

    Args:
        op: the operation.
        cluster: the index in the grid, x first, of each block of the warp's cluster, by rank.
        block: the rank of the warp's block in its cluster.
        warp: the warp's index in its block.
        rank: the warp's number in its role.
        began: place of its begin in the order of all begins and ends.
        ended: place of its end in this order; -1 while it runs.
        barrier: the transaction barrier that it arrives at, waits for or loads for, e.g. ``"full"``.
        stage: the stage of this barrier, or the number of a numbered barrier.
        phase: the phase that was over when its wait ended; phases count from 0, and -1 is before the first.
        reached: the rank of each block at whose barrier it arrives or for which it loads, and the phase of
            this barrier.
        touches: the shared memory that it touches.
    """

    op: Op
    cluster: tuple[tuple[int, ...], ...]
    block: int
    warp: int
    rank: int
    began: int
    ended: int = -1
    barrier: str = ""
    stage: int = 0
    phase: int = 0
    reached: tuple[tuple[int, int], ...] = ()
    touches: tuple[Touch, ...] = ()


class ExecutionRecorder(RuleTable):
    """The rules of another table, extended to note each execution.

    Args:
        rules: the other table; pass the recorder to `run` instead.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright.targets.reference.asynchronous import REFERENCE
        >>> from tilewright.targets.reference.run import run
        >>> @tw.kernel(X="N", Y="N")
        ... def double(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(x + x, Y.tile((32,), (0,)))
        >>> x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
        >>> recorder = ExecutionRecorder(REFERENCE)
        >>> report = run(double.trace(x, y), {"X": x, "Y": y}, rules=recorder)
        >>> [execution.op.name for execution in recorder.executions]
        ['copy', 'elementwise', 'copy']
    """

    def __init__(self, rules: RuleTable) -> None:
        super().__init__(rules.target, rules)
        self.executions: list[RecordedExecution] = []
        self._moments = 0

    def lookup(self, op: Op) -> Callable[..., Any]:
        """Return the rule of an operation; it notes operations that take time or order others."""
        rule = super().lookup(op)
        if type(op) not in RECORDED:
            return rule

        of_first = isinstance(op, ONE_THREAD) or is_bulk(op)
        of_first = of_first or (isinstance(op, async_ops.Arrive) and op.each != "warp")

        def followed(steps: Steps, warp: Warp, execution: RecordedExecution) -> Steps:
            yield from steps
            self._end(warp, execution)

        def recorded(machine: Simulator, warp: Warp, op: Op) -> Steps | None:
            if warp.rank and of_first:
                return rule(machine, warp, op)  # type: ignore[no-any-return]
            execution = self._begin(machine, warp, op)
            steps = rule(machine, warp, op)
            if steps is not None:
                return followed(steps, warp, execution)
            self._end(warp, execution)
            return None

        return recorded

    def _begin(self, machine: Simulator, warp: Warp, op: Op) -> RecordedExecution:
        cluster = tuple(block.index for block in warp.block.cluster.blocks)
        execution = RecordedExecution(op, cluster, warp.block.rank, warp.index, warp.rank, self._moment())
        self.executions.append(execution)
        # Blocks at whose barriers the warp arrives, or into whose shared memory it loads.
        ranks = [warp.block.rank]
        if isinstance(op, async_ops.Arrive) and op.block is not None:
            ranks = [rank for rank in range(len(cluster)) if rank == warp.int(op.block)]
        elif is_bulk_load(op):
            mask, shift = sharing(machine.kernel.cluster, op.multicast)
            ranks = [rank for rank in range(len(cluster)) if mask << warp.int(shift) >> rank & 1]
        execution.touches = tuple(_touches(machine, warp, op, ranks))
        if isinstance(op, async_ops.RoleBarrier):
            execution.stage = warp.int(op.number)
        if isinstance(op, async_ops.Arrive | async_ops.Wait) or is_bulk_load(op):
            assert op.barrier is not None
            execution.barrier, execution.stage = str(op.barrier), warp.int(op.stage)
            reached = {}
            for rank in ranks:
                stages = warp.block.cluster.blocks[rank].mbarriers[op.barrier]
                if 0 <= execution.stage < len(stages):
                    barrier = stages[execution.stage]
                    # A complete phase is over as soon as an agent arrives for the next one.
                    is_over = isinstance(op, async_ops.Arrive) and barrier.is_complete
                    reached[rank] = barrier.phase + is_over
            if reached:
                execution.phase = reached.get(warp.block.rank, min(reached.values()))
            execution.reached = tuple(reached.items())
        return execution

    def _end(self, warp: Warp, execution: RecordedExecution) -> None:
        execution.ended = self._moment()
        if isinstance(execution.op, async_ops.Wait):
            execution.phase = warp.block.mbarriers[execution.op.barrier][execution.stage].phase - 1

    def _moment(self) -> int:
        self._moments += 1
        return self._moments


def _touches(machine: Simulator, warp: Warp, op: Op, ranks: list[int]) -> list[Touch]:
    found = []
    for values, is_written in ((op.read, False), (op.written, True)):
        for value in values:
            if value.is_tensor and value.tensor.memory is Memory.SHARED:
                at = machine.footprints.box(value, machine.gathers.environment(warp, value))
                if at.size:
                    part = value.buffer.name, int(at.min()), int(at.max()), is_written
                    block = value.tensor.block
                    found += [Touch(*part, rank) for rank in (ranks if block is None else [warp.int(block)])]
    return found
