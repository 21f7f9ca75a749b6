"""One dataflow kernel, classes of arrays, and a schedule of every form, for the tests of schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tilewright as tw
from tilewright.dataflow.nodes import Flow
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.expand import Expanded
from tilewright.targets.target import TARGETS

HOPPER = TARGETS["cuda"].architecture("sm_90a")
AMPERE = TARGETS["cuda"].architecture("sm_80")


def linear(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.maximum(acc + bias[n], 0)


PROGRAM = Program(linear, {"A": "M K", "B": "N K", "bias": "N", "C": "M N"})

SYNC = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2))
WGMMA = tw.Schedule(tw.atoms.wgmma("f16", 64), (64, 64, 64))
BULK = replace(
    WGMMA,
    tile=(128, 64, 64),
    stages=3,
    staging="tma",
    roles="cooperative",
    groups=2,
    blocks=3,
    group_m=2,
    epilogue="staged",
)

FORMS = {
    "direct": SYNC,
    "registers": replace(SYNC, staging="registers"),
    "double": replace(SYNC, stages=2, staging="double"),
    "double, blocks that stay": replace(SYNC, stages=3, staging="double", blocks=1),
    "registers, past shared memory": replace(SYNC, staging="registers", bypass="a"),
    "cp_async": replace(SYNC, stages=3, staging="cp_async"),
    "persistent": replace(SYNC, stages=4, staging="cp_async", blocks=3, group_m=2),
    "fragments": replace(SYNC, stages=3, staging="fragments"),
    "wgmma, direct": WGMMA,
    "wgmma, cp_async": replace(WGMMA, stages=3, staging="cp_async"),
    "cooperative": BULK,
    "cooperative, promoted": replace(BULK, promote=2),
    "ping-pong": replace(BULK, tile=(64, 64, 64), roles="ping-pong", stages=4),
}
"""A legal schedule of every form for `linear` of f16."""


def specs(
    dtype: Any = tw.f16, out: Any = None, align: int = 16, major: int = 1, multiple: int = 16
) -> dict[str, TensorSpec]:
    """Return classes of the arrays of `linear`.

    Args:
        dtype: of A and B.
        out: of bias and C; default: that of A.
        align: of addresses, in bytes.
        major: 1: rows of A and B are contiguous, 0: their columns.
        multiple: what extents and strides are multiples of.
    """
    dtype, out = tw.dtype(dtype), tw.dtype(dtype if out is None else out)
    strides = (multiple, 1) if major else (1, multiple)
    operand = TensorSpec(dtype, 2, major, (multiple, multiple), strides, align, False)
    result = TensorSpec(out, 2, 1, (multiple, multiple), (multiple, 1), align, False)
    bias = TensorSpec(out, 1, 0, (multiple,), (1,), align, False)
    return {"A": operand, "B": operand, "bias": bias, "C": result}


def flow_of(arrays: Mapping[str, TensorSpec], program: Program = PROGRAM) -> Flow:
    """Return the kernel's flow for arrays of these classes."""
    flow = program.run(arrays)
    assert isinstance(flow, Flow)
    return flow


def expanded(
    schedule: tw.Schedule, arrays: Mapping[str, TensorSpec] | None = None, arch: Any = HOPPER
) -> Kernel:
    """Return the explicit kernel."""
    given = specs() if arrays is None else arrays
    return Expanded(PROGRAM, flow_of(given), schedule).trace(given, arch=arch)
