"""Divisions by sizes become multiplications by numbers of the launcher, and stay exact."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ir.kernel import Derived
from tilewright.passes.quotients import LARGEST, derive_inverses, inverses
from tilewright.targets import cpu, cuda

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "05_im2col.py"))


@given(n=st.integers(0, 2**31 - 2), d=st.integers(1, 2**31 - 1))
def test_the_formula_is_the_quotient(n: int, d: int) -> None:
    inverse = LARGEST // d
    for near in (n, n // d * d, max(n // d * d - 1, 0), min(d - 1, 2**31 - 2), min(d, 2**31 - 2)):
        twice = 2 * (near + 1)
        assert twice * inverse >> 64 == near // d
        # As the GPU computes it, in halves of 64 bits.
        low = twice * (inverse & (2**32 - 1)) >> 32
        assert twice * (inverse >> 32) + low < 2**64
        assert (twice * (inverse >> 32) + low) >> 32 == near // d


def traced() -> Any:
    image = tw.TensorSpec(tw.f32, 6, 5, (1, 1, 1, 1, 1, 16), (16, 16, 16, 16, 16, 1), 16, False)
    matrix = tw.TensorSpec(tw.f32, 3, 2, (1, 1, 16), (16, 16, 1), 16, False)
    return EXAMPLE["LARGE"].trace(image, matrix)


def test_every_divisor_of_im2col_gets_one_inverse() -> None:
    kernel = derive_inverses(traced())
    found = {str(divisor) for divisor in inverses(kernel)}
    assert {"W - 2", "H - 2", "D - 2", "C", "3*C", "9*C"} <= found
    derived = [param for param in kernel.sizes if isinstance(param.source, Derived)]
    assert len(derived) == len(found)
    assert derive_inverses(kernel) == kernel
    assert tw.ir.print_kernel(tw.ir.parse_kernel(tw.ir.print_kernel(kernel))) == tw.ir.print_kernel(kernel)


@pytest.mark.parametrize(("target", "arch"), [(cuda, "sm_90a"), (cpu, "x86-64-v3")])
def test_no_access_divides_by_a_size(target: Any, arch: str) -> None:
    text = target.emit(traced(), arch).text
    start = max(text.find("__launch_bounds__"), text.find("// 05_im2col.py"))
    assert "quotient(" in text[start:]
    body = [re.sub(r"//.*", "", line) for line in text[start:].splitlines()]
    divided = [line for line in body if re.search(r"[/%] [(A-Z]", line) and "Index" not in line]
    assert divided == []


def test_a_kernel_without_such_divisions_stays_as_it_is() -> None:
    @tw.kernel
    def double(X, Y):
        x = tw.load(X.tile((32,), (0,)).partition((32,)))
        tw.copy(x + x, Y.tile((32,), (0,)))

    x = np.ones(32, np.float32)
    kernel = double.trace(x, x.copy())
    assert derive_inverses(kernel) is kernel


def test_an_image_that_holds_no_position_is_refused_when_the_kernel_is_there() -> None:
    """The extents minus the filter are 0 or negative: the launch is refused before any division."""
    matrix = np.full((1, 2, 216), np.nan, np.float32)
    EXAMPLE["LARGE"](np.ones((2, 3, 3, 3, 1, 8), np.float32), matrix, target="cpu")
    for extents in ((2, 2, 3), (1, 2, 3), (3, 3, 2)):
        with pytest.raises(tw.LaunchError, match="a filter of 3 with dilation 1 spans 3"):
            EXAMPLE["LARGE"](np.ones((2, *extents, 1, 8), np.float32), matrix, target="cpu")
