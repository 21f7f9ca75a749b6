"""Random products of a mixture of experts: groups along K, and rows that are added to chosen rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.schedule.forms import FORMS, SYNC

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.errors import ScheduleError

from .placing import Placed
from .sets import extents, generators

Array = np.ndarray[Any, Any]


@tw.kernel(X="T M", Y="T N", ends="G", C="G M N")
def gradients(X, Y, ends, C):
    """Products of adjacent groups."""
    for g, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(X.shape[0], begin=None, end=ends[g]):
            acc += X[k, m].T @ Y[k, n]
        C[g, m, n] = acc


@tw.kernel(X="M T", Y="N T", starts="G", ends="G", bias="G N", C="G M N")
def apart(X, Y, starts, ends, bias, C):
    """Groups with gaps or in any order; operands are contiguous along K or not."""
    for g, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(X.shape[1], begin=starts[g], end=ends[g]):
            acc += X[m, k] @ Y[n, k].T
        C[g, m, n] = tw.maximum(acc + bias[g, n], C[g, m, n])


@tw.kernel(X="T M", Y="T N", ends="G", C="G M N")
def prefixes(X, Y, ends, C):
    """All groups begin with 0."""
    for g, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(X.shape[0], end=ends[g]):
            acc += X[k, m].T @ Y[k, n]
        C[g, m, n] = acc


@tw.kernel(X="B T M", Y="T N", Z="B T N", ends="G", C="G B M N", D="G B M N")
def pairs(X, Y, Z, ends, C, D):
    """Two products of each group, in another batch dimension."""
    for g, b, m, n in tw.tiles(C):
        one, other = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1], begin=None, end=ends[g]):
            one += X[b, k, m].T @ Y[k, n]
            other += X[b, k, m].T @ Z[b, k, n]
        D[g, b, m, n] = other
        C[g, b, m, n] = one - other


@tw.kernel(X="T M", w="T", Y="T N", ends="G", C="G M N", shift=int)
def weighted(X, w, Y, ends, C, shift):
    """Rows have weights, and their positions leave some out."""
    for g, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(X.shape[0], begin=None, end=ends[g]):
            kept = tw.where(tw.positions(k)[:, None] >= shift, X[k, m] * w[k][:, None], 0)
            acc += kept.T @ Y[k, n]
        C[g, m, n] = acc


@tw.kernel(X="T M", rows="T", Y="T N", ends="G", C="G M N")
def gathered(X, rows, Y, ends, C):
    """Integers choose the rows of the groups."""
    for g, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(X.shape[0], begin=None, end=ends[g]):
            acc += X[rows[k], m].T @ Y[k, n]
        C[g, m, n] = acc


@tw.kernel(X="T M", Y="T N", ends="G", C="G M N", total="G M")
def with_sums(X, Y, ends, C, total):
    """The sums of each group's operand, next to its product."""
    for g, m, n in tw.tiles(C):
        acc, row = tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[0], begin=None, end=ends[g]):
            acc += X[k, m].T @ Y[k, n]
            row += X[k, m].T.to(tw.f32).sum(axis=1)
        C[g, m, n] = acc
        total[g, m] = row


# ---------------------------------------------------------------- rows that are added to chosen rows


@tw.kernel(A="M K", B="N K", rows="M", C="T N")
def scattered(A, B, rows, C):
    for m, n in tw.tiles((A.shape[0], B.shape[0])):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C.rows(rows, padded=True)[m, n] += acc


@tw.kernel(A="M K", B="G N K", w="M", rows="M", ends="G", C="T N", D="M N")
def mixture(A, B, w, rows, ends, C, D):
    """The products of groups of rows, weighted, are added to the rows of their tokens."""
    for g, m, n in tw.tiles((A.shape[0], B.shape[1]), groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[g, n, k].T
        D[m, n] = acc
        C.rows(rows, padded=True)[m, n] += acc * w[m][:, None]


@tw.kernel(A="M K", B="N K", rows="N", C="M T")
def columns(A, B, rows, C):
    for m, n in tw.tiles((A.shape[0], B.shape[0])):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C.rows(rows, 1, padded=True)[m, n] -= tw.maximum(acc, 0)


@tw.kernel(A="B M K", W="G N K", experts="B", rows="B", C="T M N")
def matrices(A, W, experts, rows, C):
    """Whole matrices, which integers choose, are added to matrices that other integers choose."""
    for b, m, n in tw.tiles((A.shape[0], A.shape[1], W.shape[1])):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ W.rows(experts, padded=True)[b, n, k].T
        C.rows(rows, padded=True)[b, m, n] += acc


@tw.kernel(A="M K", x="K", rows="M", total="T")
def vectors(A, x, rows, total):
    for m in tw.tiles(A.shape[0]):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ x[k]
        total.rows(rows, padded=True)[m] += acc


@tw.kernel(A="M K", B="N K", rows="M", C="M N", total="T")
def sums(A, B, rows, C, total):
    """The result, and the sums of its rows, which are added."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc
        total.rows(rows, padded=True)[m] += acc.sum(axis=1)


ADDED: dict[str, tuple[Any, str]] = {
    "scattered": (scattered, "A MK, B NK, rows M<T, C TN"),
    "mixture": (mixture, "A MK, B GNK, w M, rows M<T, ends G<M, C TN, D MN"),
    "columns": (columns, "A MK, B NK, rows N<T, C MT"),
    "matrices": (matrices, "A BMK, W GNK, experts B<G, rows B<T, C TMN"),
    "vectors": (vectors, "A MK, x K, rows M<T, total T"),
    "sums": (sums, "A MK, B NK, rows M<T, C MN, total T"),
}
"""Each kernel, and the dimensions of its arrays; of integers also the extent that they index."""

KERNELS: dict[str, tuple[Any, str]] = {
    "gradients": (gradients, "X TM, Y TN, ends G, C GMN"),
    "apart": (apart, "X MT, Y NT, starts G, ends G, bias GN, C GMN"),
    "prefixes": (prefixes, "X TM, Y TN, ends G, C GMN"),
    "pairs": (pairs, "X BTM, Y TN, Z BTN, ends G, C GBMN, D GBMN"),
    "weighted": (weighted, "X TM, w T, Y TN, ends G, C GMN"),
    "gathered": (gathered, "X TM, rows T, Y TN, ends G, C GMN"),
    "with_sums": (with_sums, "X TM, Y TN, ends G, C GMN, total GM"),
}
"""Each kernel, and the dimensions of its arrays."""

STORED = ("C", "D", "total")
"""Results; C is also read by one kernel."""

INTEGERS = ("starts", "ends", "rows", "experts")

LARGEST = {"reference": 90, "cpu": 200, "cuda": 900}
"""Of an extent."""

SCHEDULES = {
    **FORMS,
    "bands of columns": replace(SYNC, stages=2, staging="double", group_n=2),
    "persistent, wide": replace(
        SYNC, tile=(64, 48, 32), warps=(4, 1), stages=2, staging="cp_async", blocks=2, group_m=2
    ),
    "persistent fragments": replace(SYNC, stages=3, staging="fragments", blocks=3, group_n=2),
    "shares": replace(SYNC, staging="registers", balanced=True),
}
"""A schedule of every form without parts of K; those that a kernel cannot have are refused."""

PARTS = {
    "parts of K": replace(SYNC, stages=3, staging="cp_async", split_k=2),
    "stream": replace(SYNC, stages=3, staging="cp_async", blocks=3, split_k="stream"),
}
"""Schedules that rows that are added may have too."""


@dataclass(frozen=True)
class GroupProblem:
    """A random problem.

    Args:
        name: its kernel.
        sizes: the extents.
        dtype: of the operands.
        kind: dtype of the bounds.
        schedule: the name of the schedule; None: the one that is chosen.
        gaps: elements between rows of an array.
        turned: whether the dimensions of operands lie in memory in the opposite order.
    """

    name: str
    sizes: dict[str, int]
    dtype: str
    kind: str
    schedule: str | None
    gaps: int
    turned: bool

    def bounds(self, draw: np.random.Generator) -> tuple[Array, Array]:
        """Return the first place along K of each group, and one after its last; some are outside."""
        count, extent = self.sizes["G"], self.sizes["T"]
        places = np.sort(draw.integers(-2, extent + 3, 2 * count))
        starts, ends = places[::2], places[1::2]
        if self.name == "apart":
            order = draw.permutation(count)
            starts, ends = starts[order], ends[order]
        elif self.name != "prefixes":
            starts = np.concatenate([[0], ends])[:count]
        else:
            starts, ends = np.zeros(count, np.int64), draw.permutation(ends)
        return starts.astype(self.kind), ends.astype(self.kind)

    def arrays(self, number: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return random arrays, and the memory around the results, which holds NaN.

        Places along K that belong to no group are NaN, so that a product with one of them shows.
        """
        draw, made, around = np.random.default_rng(number), dict[str, Array](), dict[str, Array]()
        starts, ends = self.bounds(draw)
        used = np.zeros(self.sizes["T"], bool)
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            used[max(first, 0) : max(last, 0)] = True
        is_added = self.name in ADDED
        for text in {**KERNELS, **ADDED}[self.name][1].split(", "):
            name, (dims, _, chosen) = text.split()[0], text.split()[1].partition("<")
            shape = [self.sizes[dim] for dim in dims]
            if chosen:
                least, most = (0, 1) if name == "ends" else (-2, 3)
                drawn = draw.integers(least, self.sizes[chosen] + most, shape)
                made[name] = (np.sort(drawn) if name == "ends" else drawn).astype(self.kind)
                continue
            if name in INTEGERS:
                rows = draw.integers(0, max(self.sizes["T"], 1), shape)
                made[name] = {"starts": starts, "ends": ends, "rows": rows.astype(np.int32)}[name]
                continue
            kind = np.float32 if name in STORED else tw.dtype(self.dtype).numpy
            turned = self.turned and name not in STORED and len(shape) > 1
            wide = np.full([one + self.gaps for one in (reversed(shape) if turned else shape)], np.nan, kind)
            inside = (wide.transpose() if turned else wide)[tuple(slice(0, extent) for extent in shape)]
            inside[...] = draw.standard_normal(shape).astype(kind)
            if "T" in dims and self.name != "gathered" and not is_added:
                np.moveaxis(inside, dims.index("T"), 0)[~used] = np.nan
            made[name] = inside
            around |= {name: wide} if name in STORED else {}
        return made, around


def problem(number: int, target: str, *, added: bool = False) -> GroupProblem:
    """Return the problem of a number."""
    terms, rng = generators(number, target)
    name = str(terms.choice([*(ADDED if added else KERNELS)]))
    dtype = str(terms.choice(["f16", "bf16", "f32"]))
    schedule = None
    if target == "reference" and rng.random() < 0.7:
        schedule, dtype = str(rng.choice([*SCHEDULES, *(PARTS if added else ())])), "f16"
    t, m, n, k = extents(terms, rng, LARGEST[target], 4)
    sizes = {"T": t * int(rng.integers(1, 3)), "M": m, "N": n, "B": int(rng.integers(1, 3)), "K": k}
    if added:  # rows are added to few rows, or to many
        sizes |= {"T": int(rng.integers(1, 2 * t)), "B": int(rng.integers(1, 9))}
    if name == "sums" and schedule is not None:  # a tile has whole rows
        sizes["N"] = min(n, SCHEDULES.get(schedule, SYNC).tile[1])
    sizes["G"] = int(rng.integers(1, 7))
    kind = str(terms.choice(["i4", "i8"]))
    gaps, turned = int(terms.choice([0, 0, 16])), bool(terms.random() < 0.25)
    return GroupProblem(name, sizes, dtype, kind, schedule, gaps, turned)


def added(number: int, target: str) -> str:
    """Compute a problem of rows that are added; see `carried_out`."""
    return carried_out(number, target, added=True)


def carried_out(number: int, target: str, *, added: bool = False) -> str:
    """Compute a problem, and compare every element.

    Args:
        number: which; numbers of one set need the same few kernels.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.
        added: whether it is one of rows that are added, instead of groups along K.

    Returns:
        What is wrong; empty if nothing is, or if the schedule that was drawn is refused.
    """
    made = problem(number, target, added=added)
    arrays, around = made.arrays(number)
    before = {name: array.copy() for name, array in arrays.items()}
    placed = {name: Placed(array, target) for name, array in arrays.items()}
    kernel = {**KERNELS, **ADDED}[made.name][0]
    known = {**SCHEDULES, **PARTS}
    bound = kernel if made.schedule is None else kernel.bind(schedule=known[made.schedule])
    numbers = {"shift": int(made.sizes["T"] // 3)} if made.name == "weighted" else {}
    try:
        launch = bound(*(one.there for one in placed.values()), **numbers, target=target)
    except ScheduleError as error:
        return "" if made.schedule is not None else f"{made}: {error}"
    if launch.target != target:
        return f"{made}: ran on {launch.target}"
    found = {name: np.ascontiguousarray(placed[name].fetched()) for name in STORED if name in placed}
    for name, wide in around.items():
        if np.isfinite(wide).sum() > found[name].size:
            return f"{made}: memory around {name} was written"
    how = Accumulation.of(launch.schedule.atom)
    compared = compare_flow(launch.flow, found, before, numbers, how=how)
    return "" if compared.ok else f"{made}: {compared}"
