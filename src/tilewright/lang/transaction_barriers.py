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
from tilewright.lang.verbs import verb
from tilewright.layout.limits import ARRIVALS, BARRIERS
from tilewright.symbolic.nodes import Int


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
