"""Which arrays share a kernel, and which must not: classes, views, results along one dimension."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel(A="M K", B="K N", C="M N")
def decided(A, B, C):
    scale = 2.0 if A.shape[1] % 16 == 0 else 1.0
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = scale * acc


@tw.kernel(A="M K", B="K N", C="M N", s="M", r="M")
def doubled(A, B, C, s, r):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
        r[m] = s[m] * 2


def test_python_decides_nothing_for_other_arrays_of_a_class() -> None:
    for depth in (32, 33):
        a, b = np.ones((4, depth), np.float32), np.ones((depth, 4), np.float32)
        c = np.zeros((4, 4), np.float32)
        with pytest.raises(tw.TraceError):  # nobody knows what divides K for all arrays that share the kernel
            decided(a, b, c, target="cpu")


def test_a_line_is_stored_once_however_many_tiles_there_are() -> None:
    a, b = np.ones((5, 3), np.float32), np.ones((3, 5000), np.float32)
    c, s, r = np.zeros((5, 5000), np.float32), np.ones(5, np.float32), np.zeros(5, np.float32)
    assert doubled(a, b, c, s, r, target="cpu").target == "cpu"
    np.testing.assert_array_equal(r, np.full(5, 2, np.float32))
    with pytest.raises(tw.LaunchError, match="r and s share memory"):  # which other tiles read meanwhile
        doubled(a, b, c, r, r, target="cpu")
    said = tw.Schedule(tw.atoms.fma("f32"), (32, 32, 16), balanced=True)
    with pytest.raises(tw.TraceError, match="balanced=False"):
        doubled.bind(schedule=said)(a, b, c, s, r, target="cpu")


def test_integers_lose_nothing_on_their_way_out() -> None:
    a = np.full((1, 2001), 127, np.int8)
    exact = 2001 * 127 * 127
    for target in ("reference", "cpu"):
        assert tw.matmul(a, a.T, bias=np.zeros(1, np.int32), target=target)[0, 0] == exact
        assert tw.matmul(a, a.T, c=np.ones((1, 1), np.int32), target=target)[0, 0] == exact + 1
        assert tw.matmul(a, a.T, alpha=2, target=target)[0, 0] == 2 * exact
    with pytest.raises(tw.DTypeError, match="does not fit i8"):
        tw.matmul(a, a.T, out_dtype="i8", target="cpu")
    with pytest.raises(tw.DTypeError, match="alpha: the result has fractions"):
        tw.matmul(a, a.T, alpha=0.5, target="cpu")
