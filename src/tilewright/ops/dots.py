"""Dot products of long vectors: two launches that read the vectors as matrices.

As a product of one row by one column, a dot product would leave most of each tile empty.  So the first launch
reads each vector as a matrix of `DOT_ROWS` rows, and multiplies these matrices, with results in f32.  The
second launch adds up the diagonal of the result, and the products of the last elements, which fill no row.
All other elements of the result are wasted, but multiplications are cheap: memory limits both launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import f32
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, load
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import reduce_sum
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.planning import MOST_ITEMS
from tilewright.ops.problem import Problem
from tilewright.ops.products import plain
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import kernel
from tilewright.targets.target import TARGETS
from tilewright.threads.distribution import raked

DOT_ROWS = 64
"""Rows of the matrices: those of one `wgmma`."""

DOT_UNIT_BYTES = 16
"""Unit of the length of a row, in bytes: bulk copies need it."""

DOT_LANES = 32
"""Threads of a block of the second launch."""

DOT_FROM = 2**19
"""Least length of vectors that are read as matrices.  As vectors, an H200 needs 90 us for 2**22 elements."""

DOT_DTYPES = (dtypes.f16, dtypes.bf16, dtypes.f32)
"""Dtypes whose products are added up in f32."""

DOT_LEFT = DOT_ROWS * DOT_UNIT_BYTES // min(kind.bytes for kind in DOT_DTYPES)
"""Most elements at the end of a vector that its matrix does not have."""


@kernel(squares="L R", a="L T", b="L T", out="L U")
def diagonal_sum(squares: Any, a: Any, b: Any, out: Any, *, on_host: bool) -> None:
    """``out[l, 0] = sum_r squares[l, r] + sum_t a[l, t] * b[l, t]``.

    Args:
        squares: the diagonals (L, R).
        a: the last elements of the vectors on the left, (L, T).
        b: those of the vectors on the right, (L, T).
        out: the results (L, 1).
        on_host: whether a block is one thread.
    """
    item = block_index(out.shape[0])

    def row(array: Tensor, length: int) -> Fragment:
        spread = raked((1, length), (1, 1 if on_host else DOT_LANES), 1, 1)
        held: Fragment = load(array.tile((1, length), (item, 0)), spread).to(f32)
        return held

    total = reduce_sum(row(squares, DOT_ROWS), 1) + reduce_sum(row(a, DOT_LEFT) * row(b, DOT_LEFT), 1)
    copy(total.to(out.dtype), out.tile((1, 1), (item, 0)))


def is_long_dot(infos: Mapping[str, ArrayInfo], problem: Problem) -> bool:
    """Whether a product is dot products of long vectors that bulk copies can load.

    Args:
        infos: the arrays of the call.
        problem: the product of these arrays.
    """
    kind, (a, b) = infos["a"].dtype, (problem.operands[name] for name in ("a", "b"))
    if (problem.m, problem.n) != (1, 1) or problem.k < DOT_FROM or len(problem.batch) > 1:
        return False
    if kind not in DOT_DTYPES or infos["b"].dtype != kind or prod(problem.batch) > MOST_ITEMS:
        return False
    unit, steps = DOT_UNIT_BYTES // kind.bytes, (*a.strides[:-2], *b.strides[:-2])
    starts = all(infos[name].pointer % DOT_UNIT_BYTES == 0 for name in ("a", "b"))
    return (a.strides[-1], b.strides[-2]) == (1, 1) and starts and all(step % unit == 0 for step in steps)


def plan_dot(call: Call, problem: Problem, precision: str) -> LaunchPlan:
    """Plan the product of the vectors as matrices, and the sum of its diagonal.

    Args:
        call: the arrays of the call.
        problem: the product of these arrays.
        precision: precision of the sums.
    """
    seen = {name: call.seen(name, problem.operands[name]) for name in ("a", "b", "out")}
    rank, items = len(problem.batch), prod(problem.batch)
    kind = seen["a"].info.dtype
    unit = DOT_UNIT_BYTES // kind.bytes
    length = problem.k // (DOT_ROWS * unit) * unit
    left, shape = problem.k - DOT_ROWS * length, (*problem.batch, DOT_ROWS, DOT_ROWS)
    matrices, tails, offset = list[Strided](), list[Strided](), DOT_ROWS * length * kind.bytes
    for name in ("a", "b"):
        array, info = seen[name].array, seen[name].info
        lead, steps = info.strides[:rank], (length, 1)
        extents = (DOT_ROWS, length)
        if name == "b":
            extents, steps = extents[::-1], steps[::-1]
        rows = replace(info, shape=(*problem.batch, *extents), strides=(*lead, *steps))
        matrices.append(Strided(array, rows))
        step = lead[0] if rank else 0
        last = replace(info, shape=(items, left), strides=(step, 1), pointer=info.pointer + offset)
        tails.append(Strided(array, last))
    given = seen["out"]
    square = replace(given.info, pointer=0, dtype=f32, shape=shape, readonly=False)
    wasted = replace(square, strides=(*(DOT_ROWS * DOT_ROWS,) * rank, DOT_ROWS, 1))
    diagonal = replace(square, shape=(items, DOT_ROWS), strides=(DOT_ROWS * DOT_ROWS, DOT_ROWS + 1))
    step = given.info.strides[0] if rank else 0
    out = Strided(given.array, replace(given.info, shape=(items, 1), strides=(step, 0)))
    first = Launch(
        plain(rank).bind(precision=precision, schedule=None),
        (*matrices, Strided(given.array, wasted)),
        ("a", "b", OWN),
    )
    second = Launch(
        diagonal_sum.bind(on_host=not TARGETS[call.target].warps),
        (Strided(given.array, diagonal), *tails, out),
        (OWN, "a_left", "b_left", "out"),
    )
    call.inside = {**(call.inside or {}), "a_left": ("a", offset), "b_left": ("b", offset)}
    size = items * DOT_ROWS * DOT_ROWS * f32.bytes
    reason = (
        f"vectors are multiplied as matrices of {DOT_ROWS} rows, only the diagonal of their product is used"
    )
    return call.plan(first, second, scratch_bytes=size, reason=reason)
