"""Every atom with an instruction runs on a GPU; elements are within the bound of its record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.targets.products import DEPTH_BYTES, OF_FEWER_BITS, PRODUCTS, Product, product

import tilewright as tw
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("made", PRODUCTS, ids=str)
@pytest.mark.parametrize("shape", [(136, 152, 208), (70, 48, 1040), (64, 32, 16)])
def test_products(made: Product, shape: tuple[int, int, int]) -> None:
    a, b, c = made.arrays(shape, seed=sum(shape))
    given = [DeviceArray.of(x) for x in (a, b, c)]
    assert made.bound(*given).target == "cuda"
    CUDA_DRIVER.synchronize()
    made.compare(a, b, given[2].host()).raise_if_wrong()


def of_wide_ranges(made: Product, shape: tuple[int, int, int], seed: int) -> list[Any]:
    """Return A and B of many exponents, with zeros and cancelling pairs, and C of NaN."""
    rng = np.random.default_rng(seed)
    a, b, c = made.arrays(shape, seed)
    reach = 3 if a.dtype.itemsize == 1 else 6
    a, b = (
        (x.astype(np.float32) * np.exp2(rng.integers(-reach, reach + 1, x.shape))).astype(x.dtype)
        for x in (a, b)
    )
    half = shape[2] // 2
    a[:, half : 2 * half : 3], b[:, half : 2 * half : 3] = -a[:, :half:3], b[:, :half:3]
    a[:, 5::7] = 0
    return [a, b, c]


MEASURED = tuple(
    made
    for made in PRODUCTS
    if made.atom.sums is not None and (made.atom.asynchronous or made.atom.a_dtype.bits > 8)
)
"""Atoms whose sums are known bit by bit; Hopper makes ``mma.sync`` of 8-bit floats of that of f16."""


@pytest.mark.parametrize("made", MEASURED, ids=str)
@pytest.mark.parametrize("shape", [(72, 48, 208), (64, 32, 1040)])
def test_sums_are_those_of_the_reference_bit_by_bit(made: Product, shape: tuple[int, int, int]) -> None:
    """The kept bits were measured on Hopper only."""
    a, b, c = of_wide_ranges(made, shape, seed=sum(shape))
    given, want = [DeviceArray.of(x) for x in (a, b, c)], c.copy()
    assert made.bound(*given).target == "cuda"
    CUDA_DRIVER.synchronize()
    assert made.bound(a, b, want, target="reference").target == "reference"
    np.testing.assert_array_equal(given[2].host(), want)


@pytest.mark.parametrize("made", OF_FEWER_BITS, ids=str)
def test_bits_that_are_not_multiplied_are_lost_as_the_record_says(made: Product) -> None:
    arrays, expected = made.around_the_middle()
    given = [DeviceArray.of(x) for x in arrays]
    assert made.bound(*given).target == "cuda"
    CUDA_DRIVER.synchronize()
    assert (given[2].host() == expected).all()


@pytest.mark.parametrize("made", [made for made in PRODUCTS if made.atom.asynchronous], ids=str)
def test_asynchronous_atoms_in_a_multiply_that_is_done_when_it_returns(made: Product) -> None:
    a, b, c = made.arrays((136, 152, 208))
    given = [DeviceArray.of(x) for x in (a, b, c)]
    depth = DEPTH_BYTES // made.atom.a_dtype.bytes
    mma = tw.TiledMma(made.atom)
    bound = product.bind(mma=mma, depth=depth, from_registers=made.from_registers)
    assert bound(*given).target == "cuda"
    CUDA_DRIVER.synchronize()
    made.compare(a, b, given[2].host()).raise_if_wrong()
