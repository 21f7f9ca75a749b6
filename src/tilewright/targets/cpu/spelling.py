"""The CPU target's rules: everything that differs from the C family."""

from __future__ import annotations

from tilewright.ir.fragment_ops import Coordinates, Reduce
from tilewright.ir.ops import (
    AsyncCommit,
    AsyncWait,
    Barrier,
    Copy,
    Elementwise,
    Fill,
    Fragment,
    Mma,
    Op,
    Redistribute,
    Shared,
    WarpBarrier,
)
from tilewright.ir.packed_ops import AsBytes, Pack, Unpack
from tilewright.targets.cfamily import C_RULES
from tilewright.targets.cpu.copies import emit_copy, emit_redistribute, emit_twins
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.cpu.fuse import Pointwise
from tilewright.targets.cpu.micro import emit_mma, emit_multiply
from tilewright.targets.cpu.multiply import Multiply
from tilewright.targets.cpu.packed import emit_pack, emit_unpack
from tilewright.targets.cpu.pointwise import emit_pointwise, emit_scalar
from tilewright.targets.cpu.reductions import emit_reduce
from tilewright.targets.cpu.twins import Twins
from tilewright.targets.rules import RuleTable
from tilewright.targets.target import CPU

CPU_RULES = RuleTable(CPU.name, C_RULES)
"""Operations on single elements come as `Pointwise`; only those on the kernel's numbers come alone."""

for _engine in ("direct", "matrix", "async"):  # one thread makes each of them at once
    CPU_RULES.rule(Copy, variant=_engine)(emit_copy)
CPU_RULES.rule(Redistribute)(emit_redistribute)
CPU_RULES.rule(Twins)(emit_twins)
CPU_RULES.rule(Mma)(emit_mma)
CPU_RULES.rule(Multiply)(emit_multiply)
CPU_RULES.rule(Pointwise)(emit_pointwise)
CPU_RULES.rule(Elementwise)(emit_scalar)
CPU_RULES.rule(Reduce)(emit_reduce)
CPU_RULES.rule(Unpack)(emit_unpack)
CPU_RULES.rule(Pack)(emit_pack)


@CPU_RULES.rule(Shared, Fragment, Fill, Coordinates, AsBytes)
def _placed(emitter: CpuEmitter, op: Op) -> None:
    """The array is declared at the start of the function; fills and coordinates come as `Pointwise`."""


@CPU_RULES.rule(Barrier, WarpBarrier, AsyncCommit, AsyncWait)
def _nothing_to_wait_for(emitter: CpuEmitter, op: Op) -> None:
    """One thread runs the block, and its copies complete at once."""
