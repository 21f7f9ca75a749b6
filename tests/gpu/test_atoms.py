"""Every atom that has an instruction, on a GPU, element by element under the bound that its record states."""

from __future__ import annotations

import pytest
from tests.targets.products import DEPTH_BYTES, OF_FEWER_BITS, PRODUCTS, Product, product

import tilewright as tw
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


@pytest.mark.parametrize("made", [made for made in PRODUCTS if made.atom.asynchronous], ids=str)
def test_asynchronous_atoms_in_a_multiply_that_is_done_when_it_returns(made: Product) -> None:
    a, b, c = made.arrays((136, 152, 208))
    given = [DeviceArray.of(x) for x in (a, b, c)]
    depth = DEPTH_BYTES // made.atom.a_dtype.bytes
    mma = tw.TiledMma(made.atom)
    bound = product.bind(mma=mma, depth=depth, from_registers=made.from_registers)
    assert bound(*given).target == "cuda"
    cuda.synchronize()
    made.compare(a, b, given[2].host()).raise_if_wrong()
