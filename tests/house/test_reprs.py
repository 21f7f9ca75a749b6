"""The text of a value describes it in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw


@tw.kernel(X="M N", alpha=tw.f32)
def scale(X, alpha, *, rows=8):
    m = tw.block_index(tw.ceil_div(X.shape[0], rows))
    part = X.tile((rows, 8), (m, 0)).partition((8, 4))
    seen.extend([X, part, tw.load(part), m, m > 3, alpha, full := tw.hopper.mbarrier(2, 1), full[1]])


seen: list[Any] = []


@tw.kernel(X="M N")
def careless(X):
    sX = tw.shared((8, 8), tw.f32)
    tw.copy(X.tile((8, 8), (0, 0)), sX, threads=(8, 4))
    tw.copy(sX.permute(1, 0), X.tile((8, 8), (0, 0)), threads=(8, 4))


@tw.kernel(X="M N")
def double(X):
    part = X.tile((8, 8), (0, 0)).partition((8, 4))
    tw.copy(tw.load(part) * 2, part)


ARRAY = np.ones((8, 8), np.float32)


def shown() -> list[Any]:
    """Values that programs hold, each with what it shows."""
    traced = double.trace(ARRAY)
    report = careless.check(ARRAY)
    line = next(at for at, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "permute" in text)
    view = "(M, N) -> X_stride0*i0 + i1"
    f16 = "mma.m16n8k16.f32.f16"
    tiled = f"<{f16} by (2, 2) warps of (2, 4): 64 x 64 x 16, 128 threads>"
    return [
        (scale, "<kernel scale(X, alpha, *, rows)>"),
        (scale.bind(rows=16), "<kernel scale(X, alpha), rows=16>"),
        (double.compile(ARRAY, target="reference"), "<double for reference numpy>"),
        (double.bind().prepare(ARRAY, target="cpu"), r"<prepared launch of double for cpu [\w-]+>"),
        (tw.like("f32", (3, 4)), "<like f32[3x4], strides (4, 1), align 16>"),
        (tw.atoms.MMA_F16, f"<atom {f16}: 16 x 8 x 16, f16 * f16 + f32, 32 lanes, sm_80>"),
        (tw.TiledMma(tw.atoms.MMA_F16, (2, 2), (2, 4)), tiled),
        (traced, f"<double: 6 operations, 32 threads, grid 1; X: global f32 {view}>"),
        (traced.tensors[0], f"<X: global f32 {view}>"),
        (double.check(ARRAY), "<kernel double: no findings>"),
        (double.check_sizes(tw.like("f32", (8, 8))), r"<kernel double: no findings at \d+ sizes>"),
        (report, "<kernel careless: 1 finding>"),
        (
            report.findings[0],
            (
                r"<write-read race on shared sX\[1, 0\], 56 elements in all: read by warp 0, lane 0, "
                rf"in copy\(sX.permute\(1, 0\), X.tile\(\(8, 8\), \(0, 0\)\)\) "
                rf"at test_reprs.py:{line}:5 in careless>"
            ),
        ),
    ]


@pytest.mark.parametrize("at", range(len(shown())))
def test_a_value_says_what_it_is_in_a_line(at: int) -> None:
    value, line = shown()[at]
    assert repr(value) == line or re.fullmatch(line, repr(value)), repr(value)


def test_values_of_the_language_show_their_name_and_type() -> None:
    seen.clear()
    scale.trace(ARRAY, 1.0)
    assert [repr(value) for value in seen] == [
        "X: global f32 (M, N) -> X_stride0*i0 + i1",
        "part: global f32 (8, 8) -> (8*m + i0)*X_stride0 + i1 if i1 < N",
        "loaded: f32 fragment (8, 8)",
        "m",
        "3 < m",
        "alpha",
        "full: 2 barriers of 1 arrivals",
        "full[1]",
    ]
