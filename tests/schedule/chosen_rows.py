"""Dataflow kernels whose rows are chosen by integers in memory, and random arrays for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.flows import StoredComparison, compare_flow

Arrays = dict[str, np.ndarray[Any, Any]]


@tw.kernel(A="T K", B="N K", rows="M", C="M N")
def gathered(A, B, rows, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A.rows(rows, padded=True)[m, k] @ B[n, k].T
        C[m, n] = acc


@tw.kernel(A="M K", B="K V", columns="N", C="M N")
def chosen_columns(A, B, columns, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B.rows(columns, 1, padded=True)[k, n]
        C[m, n] = acc


@tw.kernel(A="M V", B="V N", features="K", C="M N")
def chosen_features(A, B, features, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(features.shape[0]):
            acc += A.rows(features, 1, padded=True)[m, k] @ B.rows(features, padded=True)[k, n]
        C[m, n] = acc


@tw.kernel(A="M K", B="N K", rows="M", C="T N")
def scattered(A, B, rows, C):
    for m, n in tw.tiles((A.shape[0], B.shape[0])):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C.rows(rows, padded=True)[m, n] = acc


@tw.kernel(A="T K", B="N K", bias="T", rows="M", C="T N")
def added(A, B, bias, rows, C):
    """Gather rows, and add their results to the same rows."""
    for m, n in tw.tiles((rows.shape[0], B.shape[0])):
        acc = tw.zeros()
        chosen = C.rows(rows, padded=True)
        for k in tw.steps(A.shape[1]):
            acc += A.rows(rows, padded=True)[m, k] @ B[n, k].T
        chosen[m, n] = chosen[m, n] + acc * bias.rows(rows, padded=True)[m][:, None]


@tw.kernel(A="T K", B="E N K", rows="M", ends="E", C="M N")
def grouped(A, B, rows, ends, C):
    for g, m, n in tw.tiles(C, groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A.rows(rows, padded=True)[m, k] @ B[g, n, k].T
        C[m, n] = acc


@tw.kernel(A="M K", B="E N K", w="M", rows="M", ends="E", C="T N")
def grouped_scatter(A, B, w, rows, ends, C):
    for g, m, n in tw.tiles((A.shape[0], B.shape[1]), groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[g, n, k].T
        C.rows(rows, padded=True)[m, n] = acc * w[m][:, None]


@tw.kernel(A="T K", U="E N K", V="E N K", rows="M", ends="E", C="M N")
def gated(A, U, V, rows, ends, C):
    for g, m, n in tw.tiles(C, groups=ends):
        up, gate = tw.zeros(), tw.zeros()
        for k in tw.steps(A.shape[1]):
            chosen = A.rows(rows, padded=True)[m, k]
            up += chosen @ U[g, n, k].T
            gate += chosen @ V[g, n, k].T
        C[m, n] = up * gate / (1 + tw.exp(-gate))


@tw.kernel(A="B M K", W="E N K", experts="B", C="B M N")
def chosen_matrices(A, W, experts, C):
    for b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ W.rows(experts, padded=True)[b, n, k].T
        C[b, m, n] = acc


@tw.kernel(A="M K", codes="V K", scale="V G", rows="N", C="M N")
def dequantised(A, codes, scale, rows, C):
    tw.require(scale.shape[1] == tw.ceil_div(codes.shape[1], 32), "a scale for 32 neighbours")
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            number = codes.rows(rows, padded=True)[n, k].to(A.dtype)
            acc += A[m, k] @ (number * scale.rows(rows, padded=True)[n, k // 32].to(A.dtype)).T
        C[m, n] = acc


KERNELS = {
    "gathered": (gathered, "A T K, B N K, rows M<T, C M N"),
    "chosen_columns": (chosen_columns, "A M K, B K V, columns N<V, C M N"),
    "chosen_features": (chosen_features, "A M V, B V N, features K<V, C M N"),
    "scattered": (scattered, "A M K, B N K, rows M<T once, C T N"),
    "added": (added, "A T K, B N K, bias T, rows M<T once, C T N"),
    "grouped": (grouped, "A T K, B E N K, rows M<T, ends E ends M, C M N"),
    "grouped_scatter": (grouped_scatter, "A M K, B E N K, w M, rows M<T once, ends E ends M, C T N"),
    "gated": (gated, "A T K, U E N K, V E N K, rows M<T, ends E ends M, C M N"),
    "chosen_matrices": (chosen_matrices, "A B M K, W E N K, experts B<E, C B M N"),
    "dequantised": (dequantised, "A M K, codes V K, scale V G, rows N<V, C M N"),
}
"""Each kernel, and its arrays: for integers the extent that they index, and whether they are distinct."""

INTEGERS = ("i32", "i64", "u8", "i16")


EXTENTS = (1, 3, 17, 33, 40, 70)


def problem(name: str, seed: int, dtype: str, extents: tuple[int, ...] = EXTENTS) -> tuple[Arrays, Arrays]:
    """Return random arrays of a kernel, with odd sizes and strides; gaps hold 99, and C old numbers.

    Args:
        name: name of the kernel.
        seed: seed of everything that is random.
        dtype: dtype of numbers.
        extents: the extents from which each dimension draws one.

    Returns:
        The arrays by parameter, and the buffers around the results.
    """
    draw = np.random.default_rng(seed)
    sizes = {dim: int(draw.choice(extents)) for dim in "TNKMVB"}
    sizes |= {"E": int(draw.integers(1, 5)), "G": -(-sizes["K"] // 32)}
    made: Arrays = {}
    buffers: Arrays = {}
    for text in KERNELS[name][1].split(", "):
        array, *dims = text.split()
        flags = {one for one in dims if one in ("once", "ends")}
        shape = [sizes[one[0]] for one in dims if one not in flags]
        if "ends" in flags:
            ends = np.sort(draw.integers(0, sizes[dims[-1]] + 1, shape[0]))
            made[array] = ends.astype(np.int32)
        elif "<" in dims[0]:
            made[array] = _integers(draw, shape[0], sizes[dims[0][2]], once="once" in flags)
        else:
            made[array], buffer = _spread(draw, shape, np.int8 if array == "codes" else tw.dtype(dtype).numpy)
            if array == "C":
                buffers[array] = buffer
                made[array][...] = draw.standard_normal(shape)
    return made, buffers


def _legal(rows: np.ndarray[Any, Any], extent: int) -> list[int]:
    return [int(row) for row in rows if 0 <= row < extent]


def _integers(draw: Any, count: int, extent: int, *, once: bool) -> np.ndarray[Any, Any]:
    """Return integers from -3 to the extent plus 3, with or without repetitions."""
    kind = tw.dtype(INTEGERS[draw.integers(len(INTEGERS))]).numpy
    low = 0 if kind == np.uint8 else -3
    if not once:
        return draw.integers(low, extent + 3, count).astype(kind)
    places = draw.permutation(max(extent + 3 - low, count))[:count] + low
    if kind == np.uint8 and places.max(initial=0) > 255:
        kind = np.int32
    return np.asarray(places).astype(kind)


def _spread(draw: Any, shape: list[int], kind: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a random array inside of a larger buffer; its last or its first dimension is contiguous."""
    gaps = [int(draw.integers(0, 4)) for _ in shape]
    order = [*range(len(shape))] if draw.random() < 0.75 else [*reversed(range(len(shape)))]
    larger = np.full([shape[dim] + gaps[dim] for dim in order], 99, kind)
    inside = larger[tuple(slice(0, shape[dim]) for dim in order)]
    inside[...] = (
        draw.integers(-4, 5, inside.shape) if kind == np.int8 else draw.standard_normal(inside.shape)
    )
    return inside.transpose([order.index(dim) for dim in range(len(shape))]), larger


def check(name: str, bound: Any, seed: int, dtype: str, target: str) -> tuple[Any, StoredComparison]:
    """Run a kernel on a random problem; compare what it stored, and check that the rest is unchanged."""
    arrays, buffers = problem(name, seed, dtype)
    before = {key: array.copy() for key, array in arrays.items()}
    launch = bound(*arrays.values(), target=target)
    assert launch.target == target
    found = compare_flow(launch.flow, {"C": np.ascontiguousarray(arrays["C"])}, before)
    others = untouched(before, arrays, name)
    assert (arrays["C"][others] == before["C"][others]).all(), "rows that are not chosen"
    outside = buffers["C"].astype(np.float64)
    assert (outside == 99).sum() >= buffers["C"].size - arrays["C"].size, "gaps of the stored array"
    return launch, found


def untouched(before: Mapping[str, Any], arrays: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    """Return rows of the result that the kernel must not change."""
    count = len(arrays["C"])
    kept = np.zeros(count, np.bool_)
    if "ends" in before and name != "grouped_scatter":
        kept[max([0, *before["ends"]]) :] = True
    if name in ("scattered", "added", "grouped_scatter"):
        rows = before["rows"]
        rows = rows[: max([0, *before["ends"]])] if "ends" in before else rows
        kept[...] = True
        kept[_legal(rows, count)] = False
    return kept
