"""Every atom that has an instruction, on a GPU, element by element under the bound that its record states."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets.products import PRODUCTS, Product

from tilewright.runtime import cuda
from tilewright.runtime.device_array import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("made", PRODUCTS, ids=str)
@pytest.mark.parametrize("shape", [(136, 152, 208), (70, 48, 1040), (64, 32, 16)])
def test_products(made: Product, shape: tuple[int, int, int]) -> None:
    a, b, c = made.arrays(shape, seed=sum(shape))
    given = [DeviceArray.of(x) for x in (a, b, c)]
    assert made.bound(*given).target == "cuda"
    cuda.synchronize()
    made.compare(a, b, given[2].host()).raise_if_wrong()


@pytest.mark.parametrize("made", [made for made in PRODUCTS if made.atom.precision], ids=str)
def test_bits_that_are_not_multiplied_are_lost_as_the_record_says(made: Product) -> None:
    """Numbers just below and above the middle between two that the atom multiplies: rounded or truncated."""
    a, b, c = made.arrays((64, 32, 8))
    last = 2.0**-made.atom.precision  # type: ignore[operator]
    a[:], b[:] = 0, 0
    a[:, 0], b[:, 0] = np.tile([1 + 0.49 * last, 1 + 0.51 * last], 32), 1
    given = [DeviceArray.of(x) for x in (a, b, c)]
    made.bound(*given)
    cuda.synchronize()
    rounded = 1 + last if made.atom.rounding == "nearest" else 1.0
    assert (given[2].host() == np.tile([1.0, rounded], 32)[:, None]).all()
