"""Arrays of any strides in ordinary kernels: negative, 0, without a stride of 1; offsets beyond 2**31."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cpu, cuda

pytestmark = pytest.mark.in_turns(3)

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
Array = np.ndarray[Any, Any]


@tw.kernel(X="M N", Y="M N")
def through_shared(X, Y, *, tile):
    """``Y = X + X`` through shared memory, with ragged tiles."""
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    held = tw.shared(tile, X.dtype)
    tw.copy(X.tile(tile, (m, n)), held, threads=32)
    tw.barrier()
    x = tw.load(held.partition((8, 4)))
    tw.copy(x + x, Y.tile(tile, (m, n)))


DOUBLED = through_shared.bind(tile=(16, 32))


@st.composite
def slices_of(draw: st.DrawFn, extent: int) -> slice:
    """Draw a slice of a dimension: any start, direction and step."""
    low, step = draw(st.integers(0, extent - 1)), draw(st.sampled_from([1, 1, 2, 3, -1, -1, -2, -5]))
    taken = range(extent)[low :: abs(step)]
    return slice(low, None, step) if step > 0 else slice(taken[-1], low - 1 if low else None, step)


@st.composite
def views(draw: st.DrawFn, base: Array, repeats: bool) -> Array:
    """Draw a view of a matrix: transposed, sliced, and, if it is only read, repeated."""
    view = base.T if draw(st.booleans()) else base
    view = view[draw(slices_of(view.shape[0])), draw(slices_of(view.shape[1]))]
    dim = draw(st.sampled_from([None, None, 0, 1])) if repeats else None
    if dim is not None:
        view = np.broadcast_to(np.take(view, [0], dim), view.shape)
        view = view if dim == 0 else view[::-1]
    return view


@TARGETS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_view_is_read_and_any_view_is_written(target: str, data: st.DataObject) -> None:
    base = np.random.default_rng(1).standard_normal((45, 70)).astype(np.float32)
    x = data.draw(views(base, True))
    around = np.full((3 * x.shape[0] + 2, 2 * x.shape[1] + 3), np.nan, np.float32)
    rows, columns = (data.draw(st.sampled_from(steps)) for steps in ((1, 2, 3, -1, -3), (1, 2, -1, -2)))
    y = around[1:-1][::rows][: x.shape[0]][:, 1:-1][:, ::columns][:, : x.shape[1]]
    written = np.zeros(around.shape, bool)
    written[1:-1][::rows][: x.shape[0]][:, 1:-1][:, ::columns][:, : x.shape[1]] = True
    assert DOUBLED(x, y, target=target).target == target
    np.testing.assert_array_equal(y, x + x)
    assert np.isnan(around[~written]).all()


@tw.kernel(X="N", Y="N")
def fixed(X, Y):
    """Copy 32 elements, whatever the extent."""
    tw.copy(tw.load(X[0:32].partition((32,))), Y[0:32])


def test_the_checker_names_elements_of_arrays_that_run_backwards() -> None:
    x, y = np.arange(40, dtype=np.float32), np.zeros(40, np.float32)
    report = fixed.check(x[::-1], y[::-1])
    [finding] = [f for f in report.findings if f.tensor == "Y"]
    assert str(finding.kind.value) == "elements never written"
    assert "Y[39]" in str(finding)
    assert fixed.check(x[::-1], y[::-1], partial="Y").is_clean
    with pytest.raises(tw.HazardError, match=r"out-of-bounds access on global X\[0\]"):
        fixed(x[:20][::-1], y[:20][::-1], target="reference")


@TARGETS
def test_packed_elements_in_rows_that_run_backwards(target: str) -> None:
    @tw.kernel(W="N K", Y="N K")
    def widen(W, Y):
        tile = tw.fragment(tw.blocked((4, 8), (4, 1)), tw.f32)
        tw.copy(W.tile((4, 8), (0, 0)), tile)
        tw.copy(tile, Y.tile((4, 8), (0, 0)))

    numbers = np.random.default_rng(2).integers(-8, 8, (4, 8))
    packed, y = tw.pack(numbers, tw.i4), np.zeros((4, 8), np.float32)
    widen(tw.packed(packed[::-1], tw.i4), y[:, ::-1], target=target)
    np.testing.assert_array_equal(y[:, ::-1], numbers[::-1])


@tw.kernel(X="M N", Y="M N")
def moved(X, Y):
    part = X.tile((4, 8), (0, 0)).partition((4, 8))
    tw.copy(tw.load(part), Y.tile((4, 8), (0, 0)))


def test_offsets_beyond_two_to_the_31_in_either_direction() -> None:
    """The memory is only reserved; a few of its pages are used."""
    pitch = 1_200_000_003
    memory = np.zeros(3 * pitch, np.int8)
    x = np.lib.stride_tricks.as_strided(memory[2 * pitch :], (3, 8), (-pitch, 1))
    y = np.lib.stride_tricks.as_strided(memory[2 * pitch + 107 :], (3, 8), (-pitch, -1))
    x[...] = np.arange(24).reshape(3, 8)
    assert moved(x, y).target == "cpu"
    np.testing.assert_array_equal(y, x)
    text = cuda.emit(moved.trace(x, y), "sm_90a").text
    assert "long long X_stride0" in text
    assert compile_text(text, "sm_90a", "moved")


def test_kernels_for_ordinary_arrays_stay_as_they_are() -> None:
    """Arrays with negative strides have another class, with no other difference."""
    x, y = np.zeros((40, 40), np.float32), np.zeros((40, 40), np.float32)
    plain, signed = (DOUBLED.trace(x, out) for out in (y, y[::-1]))
    assert "low=-" not in tw.ir.print_kernel(plain)
    assert tw.ir.print_kernel(signed).count("low=-9223372036854775808") == 1
    reread = tw.ir.parse_kernel(tw.ir.print_kernel(signed))
    assert tw.ir.print_kernel(reread) == tw.ir.print_kernel(signed)
    for emit in (lambda kernel: cuda.emit(kernel, "sm_90a"), lambda kernel: cpu.emit(kernel, "x86-64-v3")):
        assert emit(plain).text == emit(signed).text
