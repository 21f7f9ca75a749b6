"""Real and imaginary parts that are neighbours in memory are copied in one loop of vector code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.runtime import native

from .test_vector_code import loops, vectorised

pytestmark = pytest.mark.in_turns(3)

M, N, K = 37, 50, 41
BLOCKS = native.host_arch() in ("x86-64-v3", "x86-64-v4")


def drawn(rows: int, columns: int, seed: int) -> np.ndarray:
    """Return complex numbers whose products and sums f32 holds exactly."""
    numbers = np.random.default_rng(seed).integers(-8, 9, (rows, columns, 2)).astype(np.float32)
    return numbers.view(np.complex64)[..., 0]


A, B = drawn(M, K, 1), drawn(K, N, 2)


def parts(whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return whole.real, whole.imag


def apart(whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    re, im = parts(whole)
    return re.copy(), im.copy()


def swapped(whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbouring planes, the imaginary parts first."""
    other = np.empty_like(whole)
    other.real, other.imag = whole.imag, whole.real
    return other.imag, other.real


LIES = {
    "whole": lambda whole: whole,
    "turned": np.asfortranarray,
    "parts": parts,
    "apart": apart,
    "swapped": swapped,
}


@pytest.mark.parametrize("lies", LIES)
def test_parts_are_right_however_they_lie(lies: str) -> None:
    """One kernel serves all of them, and checks at run time whether parts are neighbours."""
    place: Any = LIES[lies]
    out = place(np.full((M, N), np.nan + 1j * np.nan, np.complex64))
    made = tw.complex_matmul(place(A), place(B), out=out, target="cpu")
    re, im = made if isinstance(made, tuple) else parts(made)
    assert np.array_equal(re + 1j * im, A @ B)
    made = tw.complex_matmul(place(A), place(B), place(A @ B), beta=-1, target="cpu")
    re, im = made if isinstance(made, tuple) else parts(made)
    assert not np.any(re)
    assert not np.any(im)
    for rows in (A[:1], A[:3]):
        for right in (B, np.asfortranarray(B)):
            made = tw.complex_matmul(place(rows), place(right), target="cpu")
            re, im = made if isinstance(made, tuple) else parts(made)
            assert np.array_equal(re + 1j * im, rows @ B)


def test_parts_that_begin_side_by_side_in_rows_of_unlike_lengths_are_apart() -> None:
    room = np.random.default_rng(3).integers(-8, 9, 4 * M * K).astype(np.float32)
    step, view = room.itemsize, np.lib.stride_tricks.as_strided
    re = view(room, (M, K), (2 * K * step, 2 * step))
    im = view(room[1:], (M, K), (2 * (K + 1) * step, 2 * step))
    found = tw.complex_matmul((re, im), parts(B), target="cpu")
    assert np.array_equal(found[0] + 1j * found[1], (re + 1j * im) @ B)


EXTENTS = [(5, 33, 40), (37, 29, 43), (64, 100, 9), (13, 8, 130), (70, 65, 129), (8, 40, 200)]


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
@pytest.mark.parametrize("sizes", EXTENTS)
def test_pairs_along_the_other_axis_are_transposed_in_registers(
    sizes: tuple[int, int, int], kind: type
) -> None:
    """A and B along K, and a result along M, in tiles that end inside of blocks."""
    m, n, k = sizes
    a, b = drawn(m, k, m).astype(kind), drawn(n, k, n).astype(kind).T
    room = np.full((n + 3, m + 5), np.nan + 1j * np.nan, kind)
    out = room.T[2 : m + 2, 1 : n + 1]
    (ran,) = plan_complex({"a": a, "b": b, "c": None, "out": out}, ComplexWanted(target="cpu")).run()
    assert ran.target == "cpu"
    assert np.array_equal(out, a @ b)
    assert np.count_nonzero(np.isnan(room)) == room.size - out.size
    if BLOCKS:
        assert "transpose_pairs_from_memory(" in ran.source
        assert "transpose_pairs_to_memory(" in ran.source


@tw.kernel(X="M K", Y="M K", B="N K", C="M N", D="R N")
def further_of_one(X, Y, B, C, D):
    """``C = X @ B.T`` and ``D = Y @ B.T``, whose rows past those of Y are 0."""
    tile, mma = (48, 16), tw.TiledMma(tw.atoms.fma(tw.f32), repeats=(12, 2))
    (m,) = tw.block_index((tw.ceil_div(C.shape[0], 48),))
    sX, sY, sB = tw.shared((48, 8), tw.f32), tw.shared((48, 8), tw.f32), tw.shared((16, 8), tw.f32)
    tw.copy(B.tile((16, 8), (0, 0)), sB, threads=32)
    tw.copy(X.tile((48, 8), (m, 0)), sX, threads=32)
    tw.copy(Y.tile((48, 8), (m, 0)), sY, threads=32)
    tw.barrier()
    one, other = tw.accumulator(mma), tw.accumulator(mma)
    tw.mma(sX, sB, one)
    tw.mma(sY, sB, other)
    tw.copy(one, C.tile(tile, (m, 0)))
    tw.copy(other, D.tile(tile, (m, 0)))


def test_rows_that_only_one_of_both_needs_are_filled() -> None:
    """The second block has 5 rows of X, Y and C, and 48 of D, in memory that the first block used."""
    whole, right = drawn(53, 7, 4), drawn(9, 7, 5).real.copy()
    c, d = np.full((53, 9), np.nan, np.float32), np.full((96, 9), np.nan, np.float32)
    further_of_one(whole.real, whole.imag, right, c, d, target="cpu")
    assert np.array_equal(c, whole.real @ right.T)
    assert np.array_equal(d[:53], whole.imag @ right.T)
    assert not np.any(d[53:])


def test_few_rows_of_pairs_do_not_pack_b() -> None:
    for right in (B, np.asfortranarray(B)):
        given = {"a": A[:2], "b": right, "c": None, "out": np.empty((2, N), np.complex64)}
        (ran,) = plan_complex(given, ComplexWanted(target="cpu")).run()
        for name in ("along_k<1>", "along_k<", "along_columns<1>", "along_columns<2>"):
            assert f"multiply_pairs_{name}" in ran.source


def test_both_parts_are_one_loop_of_vectors(toolchain: native.Toolchain, tmp_path: Path) -> None:
    """The loop copies whole runs of A, of a panel of B and of the result."""
    out = np.empty((M, N), np.complex64)
    product = plan_complex({"a": A, "b": B, "c": None, "out": out}, ComplexWanted(target="cpu"))
    (ran,) = product.run()
    lines, _ = vectorised(toolchain, ran.source, tmp_path)
    both = {
        places: body
        for places, body in loops(ran.source).items()
        if body.count("] =") == 2 and "= 0;" not in body
    }
    whole = [places for places, body in both.items() if "2*" in body]
    assert len(whole) == 6  # with and without an edge
    assert [both[places] for places in whole if lines.isdisjoint(places)] == []
