"""Bulk copies of tiles, slices, permuted, padded and im2col views: meaning, text, and legality errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import verify
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda

from .bulk_views import CASES, ViewCase

EACH = [pytest.param(case, way, id=f"{name}, {way}") for name, case, way in CASES]


@pytest.mark.parametrize(("made", "way"), EACH)
def test_on_the_reference(made: ViewCase, way: str) -> None:
    assert made.is_right(way, "reference")


@pytest.mark.parametrize(("made", "way"), EACH)
def test_one_tensor_map_and_a_text_that_compiles(made: ViewCase, way: str) -> None:
    traced = made.trace(way)
    assert [*verify.violations(traced), *cuda.violations(traced, "sm_90a")] == []
    listing = cuda.emit(traced, "sm_90a")
    [mapped] = listing.kernel.tensor_maps
    assert sorted(mapped.order) == list(range(len(made.shape)))
    assert tw.ir.parse_kernel(tw.ir.print_kernel(listing.kernel)).tensor_maps == (mapped,)
    assert f"tma_{way}_{len(made.shape)}d(&X_map, " in listing.text
    binary = compile_text(listing.text, "sm_90a")
    assert not any(code in binary.log for code in FATAL)


def test_the_order_and_the_steps_of_a_box() -> None:
    found = {name: cuda.emit(case.trace("load"), "sm_90a").kernel.tensor_maps[0] for name, case, _ in CASES}
    assert (found["permuted"].box, found["permuted"].order) == ((3, 8, 64), (1, 0, 2))
    assert (found["a row of each"].box, found["a row of each"].order) == ((8, 1, 64), (1, 0, 2))
    windows = found["im2col, stride 2"]
    assert (windows.box, windows.steps) == ((1, 8, 16, 64), (1, 2, 2, 1))
    assert found["both turned"].box == (16, 64)


REFUSED = {
    "a slice that ends within a tile": (
        lambda X: X[:30, :].tile((16, 64), (1, 0)),
        (
            "elements of the tile are valid only if i0 + 16 < 30, which is no edge of X; only edges may "
            "cut a box"
        ),
        "a tile that divides its tensor, or tw.copy",
    ),
    "every second column": (
        lambda X: X.embed(1, (64,), (2,), 0).tile((16, 64), (0, 0)),
        "the box takes one of every 2 elements of dimension 1 of X",
        "steps of up to 8 along other dimensions than the contiguous one, in loads",
    ),
    "windows that overlap": (
        lambda X: X.embed(0, (4, 4), (1, 1), 0).merge(0).tile((16, 64), (0, 0)),
        "2 dimensions of the tile walk along dimension 0 of X",
        "a tile of extent 1 along all but one of them, or tw.copy",
    ),
    "a row again and again": (
        lambda X: X[0].broadcast(0, 16).tile((16, 64), (0, 0)),
        "16 elements of the tile refer to one element of X",
        "tw.copy",
    ),
    "columns as rows": (
        lambda X: X.permute(1, 0).tile((16, 64), (0, 0)),
        "rows of the tile lie along dimension 0 of X, which has stride",
        "rows along the dimension of unit stride, or tw.copy",
    ),
    "an odd column": (
        lambda X: X[:, 4:].tile((16, 64), (0, 0)),
        "the box begins at 4 along dimension 1 of X, which is no known multiple of 8 f16, 16 bytes",
        "a multiple of 8, or tw.copy",
    ),
    "another shape": (
        lambda X: X.tile((8, 64), (0, 0)),
        "copy between X.tile((8, 64), (0, 0)) of shape (8, 64) and held of shape (16, 64)",
        "a tile of shape (16, 64) of X",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_box_is_refused_with_the_reason(name: str) -> None:
    view, reason, nearest = REFUSED[name]

    def kernel(X: Any) -> None:
        held = tw.shared((16, 64), X.dtype, swizzle=128)
        full = tw.hopper.mbarrier(1, arrivals=1)
        tw.hopper.tma_load(view(X), held, full[0])

    [found] = verify.violations(tw.kernel(X="M N")(kernel).trace(np.zeros((64, 128), np.float16)))
    assert found.message.startswith(reason)
    assert found.nearest.startswith(nearest)


def test_rows_that_are_pieces_of_a_box_are_refused() -> None:
    """For each piece, hardware begins a row of 128 bytes in shared memory."""

    @tw.kernel(X="M P N")
    def kernel(X: Any) -> None:
        held = tw.shared((16, 64), X.dtype, swizzle=128)
        full = tw.hopper.mbarrier(1, arrivals=1)
        tw.hopper.tma_load(X.tile((16, 8, 8), (0, 0, 0)).merge(1), held, full[0])

    [found] = verify.violations(kernel.trace(np.zeros((16, 8, 64), np.float16)))
    assert found.message == "rows of the tile are pieces of 8 elements of dimension 2 of X"
    assert found.nearest == "rows of 64 elements of that dimension, 128 bytes, or tw.copy"
