"""Every atom that has an instruction, on a GPU, element by element under the bound that its record states."""

from __future__ import annotations

import pytest
from tests.targets.products import OF_FEWER_BITS, PRODUCTS, Product

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


@pytest.mark.parametrize("made", OF_FEWER_BITS, ids=str)
def test_bits_that_are_not_multiplied_are_lost_as_the_record_says(made: Product) -> None:
    arrays, expected = made.around_the_middle()
    given = [DeviceArray.of(x) for x in arrays]
    assert made.bound(*given).target == "cuda"
    cuda.synchronize()
    assert (given[2].host() == expected).all()
