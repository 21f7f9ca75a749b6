"""Random products under masks of positions: triangles, bands and windows of results and of operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.schedule.forms import BULK, FORMS, SYNC

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow

from .placing import Placed
from .sets import extents, generators

Array = np.ndarray[Any, Any]


@tw.kernel(A="M K", B="N K", C="M N", shift=int)
def lower(A, B, C, shift):
    """The product on and below a diagonal, and 0 above it."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.where(tw.positions(n) <= tw.positions(m)[:, None] + shift, acc, 0)


@tw.kernel(A="M K", B="N K", C="M N", shift=int)
def others(A, B, C, shift):
    """-1 below a diagonal, and the product elsewhere."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.where(tw.positions(m)[:, None] + shift > tw.positions(n), -1, acc)


@tw.kernel(A="M K", B="N K", R="M N", C="M N", shift=int, window=int)
def windowed(A, B, R, C, shift, window):
    """The product in a window before each row's diagonal, added to an array that stays elsewhere."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        last = tw.positions(m)[:, None] + shift
        inside = (tw.positions(n) <= last) & (tw.positions(n) > last - window)
        C[m, n] = tw.where(inside, tw.maximum(acc, 0) + R[m, n], R[m, n])


@tw.kernel(A="M K", B="N K", C="M N", shift=int)
def against(A, B, C, shift):
    """The product before a falling diagonal."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.where(tw.positions(m)[:, None] + tw.positions(n) < shift + A.shape[0], acc, 0)


@tw.kernel(A="M K", B="N K", C="M N", shift=int)
def corner(A, B, C, shift):
    """The product between a rising diagonal and a falling one."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        rows, columns = tw.positions(m)[:, None], tw.positions(n)
        C[m, n] = tw.where((rows >= columns) & (rows + columns >= shift), acc, 0)


@tw.kernel(A="M K", B="N K", C="M N", shift=int)
def triangular(A, B, C, shift):
    """A triangular operand."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            kept = tw.positions(k) <= tw.positions(m)[:, None] + shift
            acc += tw.where(kept, A[m, k], 0) @ B[n, k].T
        C[m, n] = acc


@tw.kernel(A="M K", B="N K", C="M N", shift=int, window=int)
def banded(A, B, C, shift, window):
    """B has a band, and only one triangle of the result is stored."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            first = tw.positions(n)[:, None] + shift
            kept = (tw.positions(k) >= first) & (tw.positions(k) < first + window)
            acc += A[m, k] @ tw.where(kept, B[n, k], 0).T
        C[m, n] = tw.where(tw.positions(m)[:, None] >= tw.positions(n), acc, 0)


@tw.kernel(A="B M K", D="B N K", C="B M N", shift=int)
def batched(A, D, C, shift):
    """Triangles of the products of a batch, with a triangular operand along columns."""
    for b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += tw.where(tw.positions(k) >= tw.positions(m)[:, None], A[b, m, k], 0) @ D[b, n, k].T
        C[b, m, n] = tw.where(tw.positions(n) < tw.positions(m)[:, None] + shift, 2 * acc, 1)


@tw.kernel(A="M K", C="M M")
def gram(A, C):
    """A symmetric result: blocks below the diagonal are also stored above it."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ A[n, k].T
        C[m, n] = tw.maximum(acc, -2)
        C[n, m] = tw.maximum(acc, -2).T


@tw.kernel(A="B M K", D="B M K", C="B M M", shift=int)
def anticommutator(A, D, C, shift):
    """A symmetric sum of two products, of a batch."""
    for b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ D[b, n, k].T + D[b, m, k] @ A[b, n, k].T
        apart = (tw.positions(m)[:, None] - tw.positions(n)).to(tw.f32)
        value = acc + shift * apart * apart
        C[b, m, n] = value
        C[b, n, m] = value.T


KERNELS: dict[str, tuple[Any, str]] = {
    "lower": (lower, "A MK, B NK, C MN"),
    "others": (others, "A MK, B NK, C MN"),
    "windowed": (windowed, "A MK, B NK, R MN, C MN"),
    "against": (against, "A MK, B NK, C MN"),
    "corner": (corner, "A MK, B NK, C MN"),
    "triangular": (triangular, "A MK, B NK, C MN"),
    "banded": (banded, "A MK, B NK, C MN"),
    "batched": (batched, "A BMK, D BNK, C BMN"),
    "gram": (gram, "A MK, C MM"),
    "anticommutator": (anticommutator, "A BMK, D BMK, C BMM"),
}
"""Each kernel, and the dimensions of its arrays."""

DECODED = ("triangular", "banded", "batched")
"""Kernels with a masked operand."""

SYMMETRIC = ("gram", "anticommutator")
"""Kernels whose result is symmetric."""

LARGEST = {"reference": 100, "cpu": 200, "cuda": 700}
"""Of an extent."""

SCHEDULES = {
    **FORMS,
    "bands of columns": replace(SYNC, stages=2, staging="double", group_n=2),
    "wide tiles": replace(SYNC, tile=(32, 96, 32), warps=(2, 1), stages=2, staging="cp_async", group_m=3),
    "persistent, wide": replace(
        SYNC, tile=(64, 48, 32), warps=(4, 1), stages=2, staging="cp_async", blocks=2, group_m=2
    ),
    "clusters": replace(BULK, cluster=(2, 1), blocks=4, epilogue="direct"),
    "clusters along columns": replace(BULK, cluster=(1, 2), blocks=0, group_m=0, epilogue="direct"),
    "ping-pong of columns": replace(FORMS["ping-pong"], group_m=0, group_n=2),
    "persistent fragments": replace(SYNC, stages=3, staging="fragments", blocks=3, group_n=2),
    "deep": replace(BULK, tile=(128, 64, 128)),
    "deep ping-pong": replace(FORMS["ping-pong"], tile=(64, 64, 128)),
    "parts of K": replace(SYNC, stages=3, staging="cp_async", split_k=2),
    "stream": replace(SYNC, stages=3, staging="cp_async", blocks=3, split_k="stream"),
    "shares": replace(SYNC, stages=3, staging="cp_async", balanced=True),
}
"""A schedule of every form, and of every order of tiles."""

DECODING = ("registers", "fragments", "persistent fragments", "deep", "deep ping-pong")
"""Schedules that decode operands; if an instruction reads B from shared memory, only A."""


UNEVEN = ("parts of K", "stream", "shares", "persistent, wide")
"""Schedules that do not compute symmetric results."""


@dataclass(frozen=True)
class MaskedProblem:
    """A random problem.

    Args:
        name: its kernel.
        shape: the extents of M, N, K and the batch.
        dtype: of the operands.
        numbers: the integers of the masks.
        schedule: the schedule; None: the one that is chosen.
        gaps: elements between rows of an array, for each dimension.
        turned: whether dimensions lie in memory in the opposite order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    numbers: dict[str, int]
    schedule: str | None
    gaps: int
    turned: bool

    def arrays(self, number: int) -> tuple[dict[str, Array], Array]:
        """Return random arrays, and the memory around the result, which holds NaN."""
        sizes, draw = dict(zip("MNKB", self.shape, strict=True)), np.random.default_rng(number)
        made: dict[str, Array] = {}
        around = np.zeros(0)
        for text in KERNELS[self.name][1].split(", "):
            array, dims = text.split()
            shape = [sizes[dim] for dim in dims]
            kind = np.float32 if array == "C" else tw.dtype(self.dtype).numpy
            turned = self.turned and array != "R"
            wide = np.full([one + self.gaps for one in (reversed(shape) if turned else shape)], np.nan, kind)
            inside = wide.transpose() if turned else wide
            made[array] = inside[tuple(slice(0, extent) for extent in shape)]
            if array == "C":
                around = wide
            else:
                made[array][...] = draw.standard_normal(shape).astype(kind)
        return made, around


def problem(number: int, target: str) -> MaskedProblem:
    """Return the problem of a number."""
    terms, rng = generators(number, target)
    name = str(terms.choice([*KERNELS]))
    dtype = str(terms.choice(["f16", "bf16", "f32"]))
    schedule: str | None = None
    if target == "reference" and rng.random() < 0.7:
        known = [*SCHEDULES] if name not in DECODED else [*DECODING]
        known = [one for one in known if name not in SYMMETRIC or one not in UNEVEN]
        known = [one for one in known if not (SCHEDULES[one].by_bulk and name in ("banded", "batched"))]
        schedule, dtype = str(rng.choice(known)), "f16"
    m, n, k = extents(terms, rng, LARGEST[target], 3)
    if rng.random() < 0.3 and target == "reference":
        n = m
    numbers = {"shift": int(rng.integers(-m, n + 1)) if rng.random() < 0.7 else int(rng.integers(-2, 3))}
    names = KERNELS[name][0].program.function.__code__.co_varnames
    numbers = {} if "shift" not in names else numbers
    if "window" in names:
        numbers["window"] = int(rng.integers(-2, max(n, k) + 2))
    gaps, turned = int(terms.choice([0, 0, 16])), bool(terms.random() < 0.25)
    return MaskedProblem(name, (m, n, k, int(rng.integers(1, 4))), dtype, numbers, schedule, gaps, turned)


def carried_out(number: int, target: str) -> str:
    """Compute a problem, and compare every element.

    Args:
        number: which; numbers of one set need the same few kernels.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.

    Returns:
        What is wrong; empty if nothing is.
    """
    made = problem(number, target)
    arrays, around = made.arrays(number)
    before = {name: array.copy() for name, array in arrays.items()}
    placed = {name: Placed(array, target) for name, array in arrays.items()}
    kernel = KERNELS[made.name][0]
    bound = kernel if made.schedule is None else kernel.bind(schedule=SCHEDULES[made.schedule])
    launch = bound(*(one.there for one in placed.values()), **made.numbers, target=target)
    if launch.target != target:
        return f"{made}: ran on {launch.target}"
    found = {"C": np.ascontiguousarray(placed["C"].fetched())}
    if np.isfinite(around).sum() > found["C"].size:
        return f"{made}: memory around the result was written"
    how: Callable[..., Any] = Accumulation.of
    compared = compare_flow(launch.flow, found, before, made.numbers, how=how(launch.schedule.atom))
    return "" if compared.ok else f"{made}: {compared}"
