"""What the threads of a block share: the buffer of shared memory, and barriers."""

from __future__ import annotations

from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Barrier, Shared, WarpBarrier
from tilewright.ir.types import Memory
from tilewright.targets.simt.dialect import SHARED_MEMORY
from tilewright.targets.simt.emitter import SIMT_RULES, SimtEmitter
from tilewright.targets.statements import call, code, named


@SIMT_RULES.rule(Shared)
def shared(emitter: SimtEmitter, op: Shared) -> None:
    """A pointer into the block's one buffer."""
    shape = "x".join(str(extent) for extent in op.view.shape)
    emitter.comment(op, f"{op.result.name}: {op.dtype} {shape}")
    kind, offset = emitter.type(op.dtype), emitter.shared_offsets[op.result]
    place = code("({} + {})" if offset else "{}", named(SHARED_MEMORY), offset)
    emitter.declare(code("{}* const", kind), emitter.name(op.result), code("({}*){}", kind, place))


@SIMT_RULES.rule(Barrier)
def barrier(emitter: SimtEmitter, op: Barrier) -> None:
    """All threads of the block wait; their accesses to memory are ordered, where some need it."""
    emitter.comment(op, "barrier")
    meet(emitter)


def meet(emitter: SimtEmitter) -> None:
    """A barrier of all threads of the block."""
    dialect = emitter.dialect
    shared_alone = dialect.barrier_of_shared and not reads_what_it_writes(emitter.kernel)
    emitter.do(call(dialect.barrier_of_shared if shared_alone else dialect.barrier))


@SIMT_RULES.rule(WarpBarrier)
def warp_barrier(emitter: SimtEmitter, op: WarpBarrier) -> None:
    """The lanes of each warp wait."""
    emitter.comment(op, "barrier of each warp")
    emitter.do(call(emitter.dialect.warp_barrier))


def reads_what_it_writes(kernel: Kernel) -> bool:
    """Whether a kernel reads an array in global memory that it also writes."""
    ops = list(kernel.walk())
    read, written = (
        {value.buffer for values in each for value in values if value.is_tensor}
        for each in ([op.read for op in ops], [op.written for op in ops])
    )
    return any(value.tensor.memory is Memory.GLOBAL for value in read & written)
