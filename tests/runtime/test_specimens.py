"""Compiling, tracing and checking without arrays: `tw.like`, and arrays in other memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.dtypes import ALL
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import spec_of

SMALL, LONG = tw.like("f32", 8, 64), tw.like("f32", 2**31, 8)


@tw.kernel(X="M N", Y="M N", by=tw.f32)
def scale(X, Y, by, *, tile=(8, 64)):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    part = X.tile(tile, (m, n)).partition((1, 32))
    tw.copy(tw.load(part) * by, Y.tile(tile, (m, n)))


@pytest.mark.parametrize("target", ["cuda", "cpu", "reference"])
def test_arrays_by_name_or_place_and_specimens_compile_one_kernel(target: str) -> None:
    x, like = np.zeros((130, 96), np.float32), tw.like("f32", 130, 96)
    arch = "sm_90a" if target == "cuda" else None
    made = [
        scale.compile(x, x, 2.0, target=target, arch=arch),
        scale.compile(like, like, None, target=target, arch=arch),
        scale.compile(X=like, Y=x, target=target, arch=arch, tile=(8, 64)),
        scale.bind().compile(like, Y=like, target=target, arch=arch),
    ]
    assert {executable.target for executable in made} == {target}
    assert len({executable.source for executable in made}) == 1
    assert "scale" in made[0].source
    if target == "cuda":
        assert made[0].arch == "sm_90a"
        assert made[0].resources["registers"] > 0
        assert made[0].resources["shared_bytes"] == 0


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, np.dtype[Any]]:
    """Return slices of larger arrays: odd strides, extents and addresses."""
    element = ALL[draw(st.sampled_from(sorted(ALL)))].numpy
    extents = draw(st.lists(st.integers(1, 33), min_size=1, max_size=3))
    order = draw(st.permutations(range(len(extents))))
    whole = np.zeros([2 * extent + 3 for extent in extents], element).transpose(order)
    cut = tuple(
        slice(draw(st.integers(0, 2)), None, draw(st.sampled_from((1, 1, 2)))) for _ in range(len(extents))
    )
    return whole[cut]


@given(arrays())
def test_a_specimen_is_of_the_class_of_its_array(array: np.ndarray[Any, np.dtype[Any]]) -> None:
    info = describe(array)
    steps = [stride // array.itemsize for stride in array.strides]
    align = info.pointer & 15 or 16
    specimen = tw.like(info.dtype, *array.shape, strides=steps, align=align)
    assert spec_of(specimen.info) == spec_of(info)
    made = specimen.filled(np.random.default_rng(0))
    assert spec_of(describe(made)) == spec_of(info)
    assert made.shape == array.shape
    assert made.strides == array.strides


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_packed_specimen_lies_as_numpy_says(order: Any) -> None:
    array = np.zeros((6, 16, 32), ml_dtypes.bfloat16, order=order)
    assert tw.like("bf16", (6, 16, 32), order=order).strides == describe(array).strides
    assert tw.like("bf16", 6, 16, 32, order=order) == tw.like(tw.bf16, (6, 16, 32), order=order)


def test_a_launch_takes_arguments_by_name() -> None:
    x = np.random.default_rng(0).standard_normal((13, 70), np.float32)
    for target in ("reference", "cpu"):
        for call in (
            lambda y, t=target: scale(x, Y=y, by=2.0, target=t),
            lambda y, t=target: scale(by=2.0, Y=y, X=x, tile=(4, 64), target=t),
            lambda y, t=target: scale.bind()(x, y, by=2.0, target=t),
        ):
            y = np.full_like(x, np.nan)
            assert call(y).target == target
            assert (y == 2 * x).all()
    with pytest.raises(tw.LaunchError, match=r"kernel scale: missing arguments by$"):
        scale(X=x, Y=x)
    with pytest.raises(tw.LaunchError, match="kernel scale: X given twice"):
        scale(x, X=x, Y=x, by=1.0)


def test_what_numpy_calls_a_dtype_is_one() -> None:
    assert tw.like(np.float32, 3) == tw.like(np.dtype("f4"), 3) == tw.like("f32", 3)


def test_no_memory_is_taken() -> None:
    huge = tw.like("f32", 2**20, 2**20)
    assert "long long" in scale.compile(huge, huge, target="cuda", arch="sm_80", by=None).source


def test_specimens_are_checked_with_random_numbers() -> None:
    @tw.kernel(X="N", Y="N")
    def racy(X, Y, *, width):
        s = tw.shared((64,), X.dtype)
        tw.copy(X.tile((64,), (0,)), s, threads=(32,))
        tw.copy(s.tile((width,), (0,)), Y.tile((width,), (0,)), threads=(width,))

    assert racy.check(X=tw.like("f16", 64), Y=tw.like("f16", 64), width=16).findings
    assert not scale.check(tw.like("f32", 13, 70), tw.like("f32", 13, 70), by=3.0).findings
    rng = np.random.default_rng(0)
    for name, dtype in ALL.items():
        filled, empty = (tw.like(name, *shape).filled(rng) for shape in ((64,), (0, 4)))
        assert filled.dtype == empty.dtype == (dtype if dtype.is_packed else dtype.numpy)
        held = filled.array if dtype.is_packed else filled  # bytes with the name of what they hold
        assert len(np.unique(held.view(np.uint8))) > 1, name


def test_a_launch_needs_memory() -> None:
    x = SMALL
    for call in (scale.bind(), scale.bind().prepare, scale):
        with pytest.raises(tw.LaunchError, match=r"<like f32\[8x64\].*> has no memory; nearest: an array"):
            call(x, x, 2.0, target="cpu")
    with pytest.raises(tw.LaunchError, match="has no memory"):
        tw.matmul(x, x)


def test_a_launch_still_needs_arrays_where_the_target_is() -> None:
    x = np.zeros((8, 64), np.float32)
    said = "cannot reach arrays in host memory; nearest: target='cpu', or move the arrays"
    with pytest.raises(tw.LaunchError, match=said):
        scale(x, x, 2.0, target="cuda")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tw.like("f16", 4, align="16"), "align must be an integer"),
        (lambda: tw.like(np.zeros(3), 3), "pass a dtype such as 'f16'"),
        (lambda: tw.like("f16", 3.5), r"extents \(3.5,\) are not whole numbers"),
        (lambda: tw.like("f16", "64x64"), r"extents \('64x64',\) are not whole numbers"),
        (lambda: tw.like("f16", -1), "extent -1 is out of range; nearest legal choice: 0"),
        (lambda: tw.like("f16", 4, 4, strides=(4,)), "1 strides"),
        (lambda: tw.like("f16", 4, strides=(-1,)), "stride -1 is out of range"),
        (lambda: tw.like("f16", 4, 4, order="K"), "order must be 'C', the last dimension fastest, or 'F'"),
        (lambda: tw.like("f32", 4, align=6), "nearest legal choice: 4"),
        (lambda: tw.like("f32", 4, align=0), "nearest legal choice: 4"),
        (lambda: tw.like("half8", 4), "half8"),
        (lambda: scale.compile(SMALL, SMALL, 1.0), "pass target="),
        (lambda: scale.compile(X=SMALL, target="cpu"), "missing arguments Y; e.g. Y=tw.like"),
        (
            lambda: scale.compile(SMALL, X=SMALL, target="cpu"),
            "X given twice",
        ),
        (
            lambda: scale.compile(SMALL, SMALL, 1.0, target="cpu", arch="sm_90a"),
            "it belongs to target cuda: pass target='cuda' too",
        ),
        (lambda: scale.compile(SMALL, SMALL, 1.0, target="gpu"), "did you mean 'cuda'"),
        (lambda: scale.bind().compile(Z=tw.like("f32", 8), target="cpu"), "Z not among its parameters"),
        (lambda: scale.compile(Z=tw.like("f32", 8), target="cpu"), "Z"),
        (lambda: scale.compile(LONG, LONG, 1.0, target="cpu"), "extent 2147483648 of dimension 0"),
    ],
)
def test_what_is_refused(call: Any, message: str) -> None:
    with pytest.raises(tw.TilewrightError, match=message):
        call()


def test_a_class_of_arrays_cannot_be_launched_on() -> None:
    @tw.kernel(X="M N", alpha=tw.f32)
    def scaled(X, alpha):
        part = X.tile((8, 8), (0, 0)).partition((8, 4))
        tw.copy(tw.load(part) * alpha, part)

    spec = tw.TensorSpec("f16", 2, 1, (256, 32), (16, 1), 16, False)
    with pytest.raises(tw.LaunchError, match="describes a class of arrays and has no memory"):
        scaled(spec, 2.0, target="reference")
