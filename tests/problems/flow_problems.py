"""Random dataflow kernels with several loops, and with sums of rows of operands."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.errors import ScheduleError
from tilewright.schedule.inner import inner_unit
from tilewright.schedule.schedule import Schedule

from .partitions import PARTITIONS
from .placing import Placed
from .schedules import SUMS, schedule_for
from .sets import extents, generators

LARGEST = {"reference": 90, "cpu": 200, "cuda": 700}
"""Of an extent."""

KINDS = ("f16", "f16", "bf16", "f32", "f32", "f64", "i8", "f8e4m3")
WITHOUT = ("split", "stream", "groups", "lists", "batches")
"""Words in the names of partitions that divide K, or have other kernels."""


@tw.kernel(X="M K", W="N K", T="M R", B="N R", Y="M N", s=tw.f32)
def adapted(X, W, T, B, Y, s):
    for m, n in tw.tiles(Y):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
        for r in tw.steps(T.shape[1]):
            low += T[m, r] @ B[n, r].T
        Y[m, n] = acc + s * low


@tw.kernel(X="M K", W="N K", T="M R", B="N R", U="M L", V="N L", Y="M N")
def three(X, W, T, B, U, V, Y):
    for m, n in tw.tiles(Y):
        acc = tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
        for r in tw.steps(T.shape[1]):
            acc += T[m, r] @ B[n, r].T
        for j in tw.steps(U.shape[1]):
            acc += U[m, j] @ V[n, j].T
        Y[m, n] = acc


@tw.kernel(X="M K", W="N K", G="N K", T="M R", B="N R", Y="M N", s=tw.f32)
def gated(X, W, G, T, B, Y, s):
    for m, n in tw.tiles(Y):
        up, gate = tw.zeros(), tw.zeros()
        for r in tw.steps(T.shape[1]):
            up += T[m, r] @ B[n, r].T
        up *= s
        for k in tw.steps(X.shape[1]):
            up += X[m, k] @ W[n, k].T
            gate += X[m, k] @ G[n, k].T
        Y[m, n] = tw.maximum(up, gate)


@tw.kernel(X="M K", W="N K", Y="M N")
def normalised(X, W, Y):
    for m, n in tw.tiles(Y):
        acc, square = tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            x = X[m, k].to(tw.f32)
            square += (x * x).sum(axis=1)
        Y[m, n] = acc * tw.rsqrt(square + 1)[:, None]


@tw.kernel(X="M K", W="N K", T="M R", B="N R", Y="M N", total="M")
def centred(X, W, T, B, Y, total):
    """Sum both operands, and store one sum, in two loops."""
    for m, n in tw.tiles(Y):
        acc, row, column = tw.zeros(), tw.zeros((m,), tw.f32), tw.zeros((n,), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            row += X[m, k].to(tw.f32).sum(axis=1)
        for r in tw.steps(T.shape[1]):
            acc += T[m, r] @ B[n, r].T
            column += abs(B[n, r].to(tw.f32)).sum(axis=1)
        Y[m, n] = acc - row[:, None] * column
        total[m] = row


@tw.kernel(X="M K", W="N K", A="R K", B="N R", Y="M N", s=tw.f32)
def low_rank(X, W, A, B, Y, s):
    for m, n in tw.tiles(Y):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            low += X[m, k] @ A[:, k].T
        Y[m, n] = acc + (s * low).to(X.dtype) @ B[n].T


@tw.kernel(X="M K", W="N K", A="R K", B="N R", Y="M N", s=tw.f32)
def low_rank_after(X, W, A, B, Y, s):
    """The scale after the second product: two accumulators."""
    for m, n in tw.tiles(Y):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            low += X[m, k] @ A[:, k].T
        Y[m, n] = tw.relu(acc + s * (low.to(X.dtype) @ B[n].T))


@tw.kernel(X="K N", W="M K", A="R K", B="M R", Y="M N", s=tw.f32)
def low_rank_right(X, W, A, B, Y, s):
    """The inner product is the right operand."""
    for m, n in tw.tiles(Y):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[0]):
            acc += W[m, k] @ X[k, n]
            low += A[:, k] @ X[k, n]
        Y[m, n] = acc + B[m] @ (s * low).to(X.dtype)


@tw.kernel(X="M K", W="N K", G="N K", A="R K", B="N R", C="Q K", D="N Q", Y="M N")
def low_rank_pair(X, W, G, A, B, C, D, Y):
    """Two totals, each with an inner product of its own, and a function that maps 0 to another number."""
    for m, n in tw.tiles(Y):
        up, gate, low, lower = tw.zeros(), tw.zeros(), tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            up += X[m, k] @ W[n, k].T
            gate += X[m, k] @ G[n, k].T
            low += X[m, k] @ A[:, k].T
            lower += X[m, k] @ C[:, k].T
        up -= tw.relu(low + 1).to(X.dtype) @ B[n].T
        Y[m, n] = tw.maximum(up, gate + lower.to(X.dtype) @ D[n].T)


@tw.kernel(Z="M Q", X="M K", W="N K", A="R Q", B="N R", Y="M N")
def low_rank_apart(Z, X, W, A, B, Y):
    """The inner product has operands and a loop of its own, and is transposed."""
    for m, n in tw.tiles(Y):
        acc, low = tw.zeros(), tw.zeros()
        for q in tw.steps(Z.shape[1]):
            low += A[:, q] @ Z[m, q].T
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
        Y[m, n] = acc + low.T.to(X.dtype) @ B[n].T


LOOPS = {one.__name__: one for one in (adapted, three, gated)}
INNER = {
    one.__name__: one for one in (low_rank, low_rank_after, low_rank_right, low_rank_pair, low_rank_apart)
}
ROWS = {one.__name__: one for one in (normalised, centred)}
EXACT_INTEGERS = ("three",)
"""Kernels whose sums of integers are stored as they are."""


def several_loops(number: int, target: str) -> str:
    """Compute a random kernel with several loops; see `_carried_out`."""
    return _carried_out(number, target, LOOPS)


def row_sums(number: int, target: str) -> str:
    """Compute a random kernel with sums of rows; see `_carried_out`."""
    return _carried_out(number, target, ROWS)


def inner_products(number: int, target: str) -> str:
    """Compute a random kernel with a product of a product; see `_carried_out`."""
    return _carried_out(number, target, INNER)


def _carried_out(number: int, target: str, kernels: dict[str, Any]) -> str:
    """Compute a problem, and compare every element and the memory between elements.

    Args:
        number: which; numbers of one set need the same few kernels.
        target: where.
        kernels: the kernels that it is drawn from.

    Returns:
        What is wrong; empty if nothing is, or if the schedule that was drawn is refused.
    """
    terms, rng = generators(number, target)
    draw = random.Random(int(terms.integers(1 << 30)))
    name, kind = draw.choice([*kernels]), draw.choice(KINDS)
    kind = kind if name in EXACT_INTEGERS or kind != "i8" else "f16"
    kernel, aligned = kernels[name], draw.random() < 0.6
    names = ("M", "N", "K", "R", "L")
    sizes = dict(zip(names, extents(terms, rng, LARGEST[target], 5, 16 if aligned else None), strict=True))
    sizes["R"], sizes["L"] = (int(rng.choice((0, 1, sizes[dim] // 2, sizes[dim]))) for dim in "RL")
    sizes["Q"] = sizes["L"]
    schedule = _schedule(draw, kind, target, aligned=aligned)
    if kernels is INNER:
        sizes["R"], sizes["Q"] = (min(sizes[dim], int(rng.integers(65))) for dim in "RQ")
        if name == "low_rank_apart":
            sizes["Q"] = sizes["L"]
        if schedule is not None:
            unit = inner_unit(schedule)
            width = max(-(-max(sizes["R"], sizes["Q"]) // unit), 1) * unit
            swapped = name == "low_rank_right"
            schedule = replace(schedule, width=width, promote=0, split_k=1, swap_ab=swapped)
    if schedule is not None and kernels is ROWS:  # a block has all of K, and shares store no single rows
        without = schedule.is_split or schedule.along_k > 1 or (schedule.balanced and name == "centred")
        schedule = None if without else schedule
    arrays, layouts = {}, {}
    for parameter in kernel.program.parameters:
        if parameter.dims:
            stored = parameter.name in ("Y", "total")
            own = ("f32" if kind != "f64" else "f64") if parameter.name == "total" else SUMS.get(kind, "f32")
            dtype = tw.dtype(own if stored else kind)
            layouts[parameter.name] = draw.choice(("row", "row", "column"))
            shape = [sizes[dim] for dim in parameter.dims]
            arrays[parameter.name] = _array(rng, shape, dtype, layouts[parameter.name], stored=stored)
    has_scale = "s" in [one.name for one in kernel.program.parameters]
    numbers = {"s": float(rng.uniform(-2, 2))} if has_scale else {}
    given = {one: array.copy() for one, array in arrays.items()}
    there = {one: Placed(array, target) for one, array in arrays.items()}
    about = f"{name}, {kind}, {sizes}, {layouts}, {'chosen' if schedule is None else schedule}"
    try:
        ran = kernel.bind(schedule=schedule)(*(one.there for one in there.values()), **numbers, target=target)
    except ScheduleError as error:
        return "" if schedule is not None else f"{about}: {error}"
    if ran.target != target:
        return f"{about}: it ran on {ran.target}"
    stored = {one: there[one].fetched() for one in there if one in ("Y", "total")}
    for one in given.keys() - stored.keys():
        if there[one].fetched().tobytes() != given[one].tobytes():
            return f"{about}: {one} was written"
    how = Accumulation.of(ran.schedule.atom, ran.schedule.promote * ran.schedule.block_k or None)
    read = {one: array for one, array in given.items() if one not in stored}
    found = compare_flow(kernel.flow(*given.values(), **numbers), stored, read, numbers, how)
    return "" if found.ok else f"{about}: {found}"


def _schedule(draw: random.Random, kind: str, target: str, *, aligned: bool) -> Schedule | None:
    """Draw a schedule, or None for the chosen one."""
    if draw.random() < 0.4:
        return None
    partitions = [
        one for one in PARTITIONS if not any(word in one for word in ("groups", "lists", "batches"))
    ]
    return schedule_for(draw, kind, target, draw.choice(partitions), aligned=aligned)


def _array(
    rng: np.random.Generator, shape: list[int], dtype: tw.DType, layout: str, *, stored: bool
) -> np.ndarray[Any, Any]:
    """Return an array whose rows, or columns, begin at multiples of 16 bytes, or of its elements."""
    turned = layout == "column" and len(shape) == 2
    order = shape[::-1] if turned else shape
    unit = max(16 // dtype.bytes, 1) if rng.integers(3) else 1
    whole = np.zeros((*order[:-1], max(-(-order[-1] // unit), 1) * unit), dtype.numpy)
    part = whole[..., : order[-1]]
    if dtype.is_float:
        part[...] = np.nan if stored else rng.standard_normal(part.shape).astype(dtype.numpy)
    else:
        part[...] = 99 if stored else rng.integers(-4, 5, part.shape)
    return part.T if turned else part
