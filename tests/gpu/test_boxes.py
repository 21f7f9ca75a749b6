"""TMA of tensors of two to five dimensions on a GPU: over every edge, strides of all kinds, every byte."""

from __future__ import annotations

import pytest
from tests.targets.cuda.boxes import CASES, KERNELS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_every_byte(name: str, kernel: str) -> None:
    assert CASES[name].is_right(KERNELS[kernel], "cuda")
