"""Every operator of fragments, for every dtype, equals NumPy's on the reference and on the CPU."""

from __future__ import annotations

import pytest

from tilewright.dtypes import DType

from .operators import FLOATS, INTEGERS, compare, kernel_of, operands, outputs


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_operators_are_numpys(dtype: DType, target: str) -> None:
    x, y = operands(dtype)
    made = outputs(dtype, len(x))
    assert kernel_of(dtype)(x, y, *made.values(), target=target).target == target
    compare(dtype, x, y, made)
