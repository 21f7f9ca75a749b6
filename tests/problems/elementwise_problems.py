"""Random flows without products: elementwise, sums and prefix sums of rows or columns, sums by lists."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from tests.movers.random_movers import Array

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.schedule.folds.form import fold_form_of

from .drawing import placed
from .placing import Placed
from .sets import extents, generators

LARGEST = {"reference": 70, "cpu": 300, "cuda": 1500}
"""Of an extent of a matrix."""

KINDS = ("f16", "bf16", "f32", "f32", "f64", "i8", "i32", "f8e4m3")

ROUNDED = ("A", "B", "C", "D", "x", "y", "z", "b", "r")
"""Arrays of the drawn dtypes; the others have integers, and `weight` f32."""


@tw.kernel(A="M N", b="N", r="M", C="M N", alpha=tw.f32)
def scaled(A, b, r, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = tw.relu(alpha * A[m, n].to(tw.f32) + b[n].to(tw.f32)) - r[m].to(tw.f32)[:, None]


@tw.kernel(A="N M", C="M N")
def turned(A, C):
    for m, n in tw.tiles(C):
        C[m, n] = A[n, m].T.to(tw.f32)


@tw.kernel(A="M N", B="M N", C="M N", D="N M", r="M")
def several(A, B, C, D, r):
    """Three results; the old values of one are read after it is stored."""
    for m, n in tw.tiles(C):
        a, b, c = A[m, n].to(tw.f32), B[m, n].to(tw.f32), C[m, n].to(tw.f32)
        C[m, n] = tw.maximum(a, b)
        D[n, m] = (a - c).T
        r[m] = tw.positions(m).to(tw.f32)


@tw.kernel(A="L M N", b="L N", C="L M N")
def batched(A, b, C):
    for i, m, n in tw.tiles(C):
        C[i, m, n] = A[i, m, n].to(tw.f32) + b[i, n].to(tw.f32) * tw.positions(i).to(tw.f32)


@tw.kernel(A="M N", codes="M N", C="M N", shift=int)
def chosen(A, codes, C, shift):
    for m, n in tw.tiles(C):
        lower = tw.positions(m)[:, None] + shift >= tw.positions(n)
        C[m, n] = tw.where(lower, tw.take((-1.0, 0.5, 3.0), codes[m, n]), A[m, n].to(tw.f32))


@tw.kernel(C="M N", r="M", seed=tw.u32)
def dropped(C, r, seed):
    """In place: a row is kept, or an element is dropped."""
    for m, n in tw.tiles(C):
        index = tw.positions(m)[:, None] * C.shape[1] + tw.positions(n)
        kept = tw.dropout(C[m, n].to(tw.f32), index, 1 << 30, 2.0, seed)
        C[m, n] = tw.where(r[m].to(tw.f32)[:, None] > 0, kept, C[m, n].to(tw.f32))


@tw.kernel(x="N", y="N", z="N", alpha=tw.f32)
def line(x, y, z, alpha):
    for n in tw.tiles(y):
        old = y[n].to(tw.f32)
        y[n] = alpha * x[n].to(tw.f32) + old
        z[n] = tw.minimum(old, tw.positions(n).to(tw.f32))


@tw.kernel(A="T N", rows="M", C="M N")
def gathered(A, rows, C):
    for m, n in tw.tiles(C):
        C[m, n] = abs(A.rows(rows, padded=True)[m, n].to(tw.f32))


@tw.kernel(A="M N", b="G N", ends="G", C="M N")
def grouped(A, b, ends, C):
    for g, m, n in tw.tiles(C, groups=ends):
        C[m, n] = A[m, n].to(tw.f32) * b[g, n].to(tw.f32)


@tw.kernel(A="M N", y="M", z="M")
def of_rows(A, y, z):
    """Sums and extremes of rows of tiles."""
    for m, n in tw.tiles(A):
        a = A[m, n].to(tw.f32)
        y[m] = (a * a).sum(axis=1)
        z[m] = tw.where(tw.positions(m)[:, None] >= tw.positions(n), a, float("inf")).min(axis=1)


@tw.kernel(A="L M N", b="L N", y="L N")
def of_columns(A, b, y):
    for i, n in tw.tiles(y, batch=1):
        y[i, n] = b[i, n].to(tw.f32) * A[i, :, n].to(tw.f32).sum(axis=0)


@tw.kernel(A="M N", weight="N", C="M N")
def normalised(A, weight, C):
    for m in tw.tiles(C.shape[0]):
        a = A[m].to(tw.f32)
        C[m] = a * tw.rsqrt((a * a).sum(axis=1) / A.shape[1] + 0.5)[:, None] * weight


@tw.kernel(A="M N", C="M N", y="M")
def softmax(A, C, y):
    for m, n in tw.tiles(C):
        a = A[m, n].to(tw.f32)
        top = a.max(axis=1)
        power = tw.exp(a - top[:, None])
        C[m, n] = power / power.sum(axis=1)[:, None]
        y[m] = tw.log(power.sum(axis=1)) + top


@tw.kernel(A="M N", C="N M")
def softmax_of_columns(A, C):
    for m, n in tw.tiles(A):
        C[n, m] = tw.softmax(A[m, n].to(tw.f32), axis=0).T


@tw.kernel(x="N", y="T")
def total(x, y):
    for i in tw.tiles(y):
        acc, top = tw.zeros((i,), tw.f32), tw.full((i,), -float("inf"), tw.f32)
        for n in tw.steps(x.shape[0]):
            acc.assign(acc + x[n].to(tw.f32).sum(axis=0))
            top.assign(tw.maximum(top, x[n].to(tw.f32).max(axis=0)))
        y[i] = acc / (1 + abs(top))


@tw.kernel(A="M N", C="M N", y="M")
def scan(A, C, y):
    """In place, next to a sum of rows."""
    for m, n in tw.tiles(C):
        c = C[m, n].to(tw.f32)
        y[m] = c.sum(axis=1)
        C[m, n] = (c * A[m, n].to(tw.f32)).cumsum(axis=1)


@tw.kernel(A="M N", C="M N", y="M")
def scan_back(A, C, y):
    """From the last element, in place, with positions and a sum of rows."""
    for m, n in tw.tiles(C):
        c = C[m, n].to(tw.f32)
        y[m] = c.sum(axis=1)
        far = (tw.positions(n) % 7).to(tw.f32)
        C[m, n] = (c * A[m, n].to(tw.f32)).cumsum(axis=1, reverse=True) - far


@tw.kernel(A="L M N", b="L N", C="L N M")
def columns_back(A, b, C):
    for i, m, n in tw.tiles(A):
        a = A[i, m, n].to(tw.f32)
        C[i, n, m] = (a.cumsum(axis=0, reverse=True) + b[i, n].to(tw.f32)).T


@tw.kernel(A="L M N", b="L N", C="L N M")
def scan_of_columns(A, b, C):
    for i, m, n in tw.tiles(A):
        a = A[i, m, n].to(tw.f32)
        C[i, n, m] = (a.cumsum(axis=0) + b[i, n].to(tw.f32)).T


@tw.kernel(x="N", y="N", z="N")
def scan_of_a_line(x, y, z):
    for n in tw.tiles(y):
        once = x[n].to(tw.f32).cumsum(axis=0)
        y[n] = once
        z[n] = once.cumsum(axis=0) * 0.01


@tw.kernel(A="M N", C="M N", D="N M", y="M")
def masses(A, C, D, y):
    for m in tw.tiles(y):
        p = tw.softmax(A[m].to(tw.f32))
        mass = p.cumsum(axis=1)
        C[m] = mass
        D[:, m] = (mass - p).T
        y[m] = p.max(axis=1)


@tw.kernel(A="T N", rows="M", b="G N", ends="G", C="M N")
def ranks(A, rows, b, ends, C):
    """The number of an element among the positive ones of its row, of chosen rows in groups."""
    for g, m, n in tw.tiles(C, groups=ends):
        a = A.rows(rows, padded=True)[m, n].to(tw.f32) + b[g, n].to(tw.f32)
        C[m, n] = tw.where(a > 0, (a > 0).cumsum(axis=1), -1).to(tw.f32)


@tw.kernel(A="M N", C="N M", D="M N", y="M", z="M")
def by_a_loop(A, C, D, y, z):
    """A loop of an author, whose state is stored, too."""
    for m in tw.tiles(y):
        total, top = tw.full((m,), 1, tw.f32), tw.full((m,), -float("inf"), tw.f32)
        for n in tw.steps(A.shape[1]):
            a = A[m, n].to(tw.f32)
            C[n, m] = (total[:, None] + a.cumsum(axis=1)).T
            D[m, n] = a * tw.positions(n).to(tw.f32)
            total.assign(total + a.sum(axis=1))
            top.assign(tw.maximum(top, a.max(axis=1)))
        y[m] = total
        z[m] = top


@tw.kernel(A="P N", order="P", begins="T", ends="T", weight="P", C="T N")
def added_in_order(A, order, begins, ends, weight, C):
    """Contributions to rows, in the order of a list that is sorted by row; a row may have none."""
    for t, n in tw.tiles(C, batch=1):
        total = tw.zeros((n,), tw.f32)
        for p in tw.steps(order.shape[0], begin=begins[t], end=ends[t]):
            more = A.rows(order, padded=True)[p, n].to(tw.f32)
            total.assign(total + (more * weight.rows(order, padded=True)[p][:, None]).sum(axis=0))
        C[t, n] = C[t, n].to(tw.f32) + total


@tw.kernel(A="M N", y="M")
def added_to_a_vector(A, y):
    """Sums in place: several lanes hold the old value of an element."""
    for m in tw.tiles(y):
        y[m] = y[m].to(tw.f32) + abs(A[m].to(tw.f32)).sum(axis=1)


IN_ORDER = {one.__name__: one for one in (added_in_order, added_to_a_vector)}
SCANNED = {
    one.__name__: one
    for one in (scan, scan_of_columns, scan_of_a_line, masses, ranks, by_a_loop, scan_back, columns_back)
}
REDUCED = {one.__name__: one for one in (of_rows, of_columns, normalised, softmax, softmax_of_columns, total)}
KERNELS = {
    one.__name__: one for one in (scaled, turned, several, batched, chosen, dropped, line, gathered, grouped)
}
IN_PARTS = {
    kernel.name: kernel.bind(
        schedule=tw.Schedule(
            tw.atoms.fma("f32", lanes=lanes, each=each), tile, (down, 1), split_k="auto", blocks=blocks
        )
    )
    for kernel, lanes, each, tile, down, blocks in (
        (scan, (2, 16), (1, 4), (4, 64, 1), 1, 60),
        (scan_back, (1, 32), (1, 1), (2, 32, 1), 2, 132),
        (columns_back, (1, 32), (1, 1), (2, 32, 1), 2, 132),
        (masses, (2, 16), (1, 2), (2, 64, 1), 1, 30),
        (scan_of_columns, (32, 1), (1, 1), (32, 3, 1), 1, 40),
    )
}
"""Kernels whose rows several blocks share."""

OUTPUTS = {
    "several": ("C", "D", "r"),
    "line": ("y", "z"),
    "of_rows": ("y", "z"),
    "of_columns": ("y",),
    "softmax": ("C", "y"),
    "total": ("y",),
    "scan": ("C", "y"),
    "scan_back": ("C", "y"),
    "scan_of_a_line": ("y", "z"),
    "masses": ("C", "D", "y"),
    "by_a_loop": ("C", "D", "y", "z"),
    "added_to_a_vector": ("y",),
}
"""Results of the kernels that have not only C."""

LONG = ("line", "total", "normalised", "softmax", "scan", "scan_back", "scan_of_a_line", "masses")
"""Kernels whose rows may be long."""

IN_PLACE = {
    "several": "C",
    "dropped": "C",
    "line": "y",
    "scan": "C",
    "scan_back": "C",
    "added_in_order": "C",
    "added_to_a_vector": "y",
}
"""Results whose old values are read."""


def carried_out(number: int, target: str) -> str:
    """Compute an elementwise problem; see `_carried_out`."""
    return _carried_out(number, target, KERNELS)


def reduced(number: int, target: str) -> str:
    """Reduce rows or columns; see `_carried_out`."""
    return _carried_out(number, target, REDUCED)


def scanned(number: int, target: str) -> str:
    """Sum prefixes of rows or columns; see `_carried_out`."""
    return _carried_out(number, target, SCANNED)


def scanned_in_parts(number: int, target: str) -> str:
    """Sum prefixes of rows that several blocks share; see `_carried_out`."""
    return _carried_out(number, target, IN_PARTS)


def in_order(number: int, target: str) -> str:
    """Add to rows in the order of a list; see `_carried_out`."""
    return _carried_out(number, target, IN_ORDER)


def _carried_out(number: int, target: str, kernels: dict[str, Any]) -> str:
    """Compute a problem, and compare every element and the memory between elements.

    Args:
        number: which; numbers of one set need the same few kernels.
        target: where.
        kernels: the kernels that it is drawn from.

    Returns:
        What is wrong; empty if nothing is.
    """
    terms, rng = generators(number, target)
    draw, name = random.Random(int(terms.integers(1 << 30))), str(terms.choice([*kernels]))
    kernel, outputs = kernels[name], OUTPUTS.get(name, ("C",))
    M, N = extents(terms, rng, LARGEST[target], 2)
    N = N * int(terms.choice((1, 20))) if name in LONG else N
    sizes = {"M": M, "N": N, "P": M, "L": int(rng.integers(1, 4)), "T": int(rng.integers(1, 40)), "G": 3}
    layout = draw.choice("nnt"), draw.random() < 0.5, draw.random() < 0.3
    held: dict[str, Array] = {}
    kinds = {}
    for parameter in kernel.program.parameters:
        if not parameter.dims:
            continue
        one, stored = parameter.name, parameter.name in outputs
        kind = kinds[one] = tw.dtype(
            draw.choice(KINDS) if one in ROUNDED else "f32" if one == "weight" else "i32"
        )
        letter, padded, odd = layout if len(parameter.dims) > 1 else ("n", False, False)
        shape = tuple(sizes[dim] for dim in parameter.dims)
        held[one] = Array(shape, placed(draw, shape, kind, letter, padded, stored, odd), kind)
        held[one].array[...] = _drawn(rng, one, shape, kind, sizes, stored and IN_PLACE.get(name) != one)
    numbers: dict[str, Any] = {"alpha": 0.75, "shift": int(rng.integers(-M, N)), "seed": number % 1000}
    known = {parameter.name for parameter in kernel.program.parameters}
    numbers = {one: value for one, value in numbers.items() if one in known}
    if "order" in held:
        counts = np.bincount(rng.integers(0, sizes["T"], M), minlength=sizes["T"])
        held["ends"].array[...] = np.cumsum(counts)
        held["begins"].array[...] = np.cumsum(counts) - counts
        held["order"].array[...] = rng.permutation(M)
        if M > 1:
            held["order"].array[0] = -1
    given = {one: array.array.copy() for one, array in held.items()}
    there = {one: Placed(array.array, target) for one, array in held.items()}
    about = f"{name}, {kinds}, {sizes}, {layout}"
    ran = kernel(**{one: at.there for one, at in there.items()}, **numbers, target=target)
    if ran.target != target:
        return f"{about}: it ran on {ran.target}"
    stored = {one: there[one].fetched() for one in outputs}
    for one, array in held.items():
        if one not in outputs and there[one].fetched().tobytes() != given[one].tobytes():
            return f"{about}: {one} was written"
        if not array.is_whole_around():
            return f"{about}: memory around {one} was written"
    flow, run = kernel.flow(**given, **numbers), None
    if kernels is not KERNELS:
        form = fold_form_of(flow, ran.schedule.fold)
        flow, run = form.flow, max(ran.schedule.tile[1] // (2 if ran.schedule.is_split else 1), 1)
    found = compare_flow(flow, stored, given, numbers, run=run)
    return "" if found.ok else f"{about}: {found}, {ran.schedule}"


def _drawn(
    rng: np.random.Generator,
    name: str,
    shape: tuple[int, ...],
    kind: tw.DType,
    sizes: dict[str, int],
    poisoned: bool,
) -> np.ndarray[Any, Any]:
    """Draw the elements of an array."""
    if name == "ends":
        return np.sort(rng.integers(0, sizes["M"] + 1, shape))
    if name == "rows":
        return rng.integers(-1, sizes["T"] + 1, shape)
    if name == "codes":
        return rng.integers(-1, 4, shape)
    if poisoned:
        return np.full(shape, np.nan if kind.is_float else 99).astype(kind.numpy)
    return (4 * rng.standard_normal(shape)).astype(kind.numpy)
