"""Kernels that execute the small programs of `interleavings`."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import f32
from tilewright.ir import async_ops, ops
from tilewright.ir.builder import Builder, make
from tilewright.ir.kernel import Kernel, TensorParam
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.targets.reference import Report, run
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.view import View

from .interleavings import MEET, Search, Small, Step, random_program

LANES, ELEMS = 2, 256
"""A tensor takes 1024 bytes, so that a bulk copy may begin at each."""

SPREAD = Distribution((ELEMS,), (Mode(LANES, 0, ELEMS // LANES),), (Mode(ELEMS // LANES, 0, 1),))


def build(program: Small) -> Kernel:
    """Build the program's kernel: one warp for each role; all tensors are written before the roles begin."""
    view = View.strided((ELEMS,), (1,))
    source = Value("G", TensorType(Memory.GLOBAL, f32, view))
    builder = Builder()
    builder.names.unique("G")
    tensors = [
        builder.define(ops.Shared, "S", dtype=f32, view=view, elems=ELEMS) for _ in range(program.tensors)
    ]
    barriers = [
        builder.define(async_ops.MBarrier, "m", stages=stages, arrivals=arrivals)
        for stages, arrivals in program.barriers
    ]
    held = builder.define(ops.FragmentOp, "held", dtype=f32, distribution=SPREAD, fill=1)
    for tensor in tensors:
        builder.append(ops.Copy(held, tensor))
    builder.append(async_ops.FenceAsync())
    builder.append(ops.Barrier())

    def made(step: Step) -> list[ops.Op]:
        """Yield the operations of a step; operations of a warp's lanes are in order, and fenced."""
        match step:
            case ("write", tensor):
                mine = make(ops.FragmentOp, "mine", dtype=f32, distribution=SPREAD, fill=1)
                return [mine, ops.Copy(mine.result, tensors[tensor]), async_ops.FenceAsync()]
            case ("read", tensor):
                mine = make(ops.FragmentOp, "mine", dtype=f32, distribution=SPREAD)
                return [mine, ops.Copy(tensors[tensor], mine.result), async_ops.FenceAsync()]
            case ("arrive", barrier, stage, boxes):
                size = boxes * ELEMS * f32.bytes
                return [async_ops.Arrive(barriers[barrier], stage, size, "warp")]
            case ("wait", barrier, stage, parity):
                return [async_ops.Wait(barriers[barrier], stage, parity)]
            case ("load", tensor, barrier, stage):
                full = {"barrier": barriers[barrier], "stage": stage, "completion": "barrier"}
                load = ops.Copy(source, tensors[tensor], engine="bulk", **full)
                return [ops.WarpBarrier(), load]
            case ("meet", number):
                return [async_ops.RoleBarrier(number, MEET * LANES)]
            case other:
                raise ValueError(other)

    for role, steps in enumerate(program.roles):
        body = ops.Block(tuple(op for step in steps for op in made(step)))
        builder.append(async_ops.Role(role, 1, body))
    return Kernel(
        "small", (TensorParam(source),), (), LANES * len(program.roles), builder.close(), lanes=LANES
    )


def check(program: Small) -> Report:
    """Return the checker's findings."""
    return run(build(program), {"G": np.zeros(ELEMS, np.float32)})


def disagreement(seed: int) -> str:
    """Compare the search of all schedules and the checker on a random program; return any disagreement."""
    program = random_program(seed)
    fault, report = Search(program).run(), check(program)
    if (fault is None) == report.is_clean:
        return ""
    return f"seed {seed}: some schedule: {fault or 'none goes wrong'}; {report}\n{program}"
