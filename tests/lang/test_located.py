"""Errors of layouts, distributions, dtypes and atoms know no lines, but point to the author's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LayoutError, TraceError
from tilewright.ir.verify import violations
from tilewright.lang.program import Program

from .kernels import pointed, trace
from .refused import cases


def by_warps(A, n, alpha):
    tw.by_warps((100, 32), tw.atoms.MMA_F16.a, (2, 2))  # tw.by_warps((100, 32), tw.atoms.MMA_F16.a, (2, 2))


def base_tile(A, n, alpha):
    tw.base_tile((64, 4), tw.f16)  # tw.base_tile((64, 4), tw.f16)


def raked(A, n, alpha):
    tw.raked((64, 60), (8, 4), 8, 1)  # tw.raked((64, 60), (8, 4), 8, 1)


def blocked(A, n, alpha):
    tw.blocked((64, 60), (7, 4), order=(1, 0))  # tw.blocked((64, 60), (7, 4), order=(1, 0))


def projected(A, n, alpha):
    tw.atoms.MMA_F16.c.projected((16, 4))  # tw.atoms.MMA_F16.c.projected((16, 4))


def layout(A, n, alpha):
    tw.Layout((4, 8), (1, 4, 8))  # tw.Layout((4, 8), (1, 4, 8))


def swizzle(A, n, alpha):
    tw.Swizzle(3, 3, 2)  # tw.Swizzle(3, 3, 2)


def dtype(A, n, alpha):
    tw.dtype("float7")  # tw.dtype("float7")


def atom(A, n, alpha):
    tw.atoms.wgmma(tw.bf16, 12)  # tw.atoms.wgmma(tw.bf16, 12)


@pytest.mark.parametrize(("kernel", "caret"), cases(globals()))
def test_the_caret_is_under_the_call(kernel: Callable[..., Any], caret: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace(kernel, {"n": int, "alpha": tw.f32})
    assert pointed(caught.value) == caret
    assert f"in {kernel.__name__}\n" in str(caught.value)


def spread() -> tw.Distribution:
    return tw.base_tile((64, 4), tw.f16)


def test_a_function_that_the_kernel_calls_is_shown_with_its_caller() -> None:
    def kernel(A):
        tw.load(A, spread())

    with pytest.raises(TraceError) as caught:
        trace(kernel)
    assert caught.value.location is not None
    assert [frame.function for frame in caught.value.location.frames] == ["spread", "kernel"]
    assert pointed(caught.value) == "tw.base_tile((64, 4), tw.f16)"


def test_outside_of_a_kernel_they_stay_what_they_are() -> None:
    with pytest.raises(LayoutError, match="nearest legal choice"):
        spread()


def test_errors_of_the_author_stay_what_they_are() -> None:
    def kernel(A):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(kernel)


def test_a_fragment_that_is_only_made_takes_its_threads() -> None:
    """The block has as many threads, so the author need not give the number."""

    def kernel():
        tw.fragment(tw.raked((4, 16), (4, 16), 1, 1), tw.f32, fill=0)

    traced = Program(kernel).trace({})
    assert traced.threads == 64
    assert violations(traced) == []

    @tw.kernel(X="N")
    def unused(X):
        tw.block_index(1)
        tw.fragment(tw.raked((4, 16), (4, 16), 1, 1), tw.f32, fill=0)

    assert unused(np.zeros(4, np.float32), target="reference").target == "reference"


def without_element(A, n, alpha):
    tw.shared((32, 32))  # tw.shared((32, 32))


def unknown_keyword(A, n, alpha):
    tw.shared((32, 32), "f32", layot=None)  # tw.shared((32, 32), "f32", layot=None)


def without_distribution(A, n, alpha):
    tw.fragment()  # tw.fragment()


def without_extents(A, n, alpha):
    tw.ceil_div(n)  # tw.ceil_div(n)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (without_element, "shared() missing 1 required positional argument: 'element'"),
        (unknown_keyword, "shared() has no parameter 'layot'"),
        (without_distribution, "fragment() missing 1 required positional argument"),
        (without_extents, "ceil_div() missing 1 required positional argument: 'tiles'"),
    ],
)
def test_arguments_that_a_verb_does_not_have_or_lacks_are_shown(
    kernel: Callable[..., Any], said: str
) -> None:
    with pytest.raises(TraceError) as caught:
        trace(kernel)
    assert isinstance(caught.value, tw.SignatureError)
    assert said in str(caught.value)
    line, caret = str(caught.value).splitlines()[2:4]
    assert caret.index("^") == line.index("tw.")
