"""``tw.mma`` takes asynchronous atoms, too, and is complete when it returns."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.async_ops import MmaAsync, MmaCommit, MmaFence, MmaWait
from tilewright.ir.ops import Mma
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda
from tilewright.targets.atoms import wgmma

from .products import Product, product

CASES = [("bf16", False), ("bf16", True), ("f32", False), ("f8e4m3", False), ("i8", True)]


def bind(dtype: str, from_registers: bool, **more: object) -> tuple[Product, object]:
    made = Product(wgmma(dtype, 32), from_registers)
    depth = 128 // made.atom.a_dtype.bytes
    mma = tw.TiledMma(made.atom)
    return made, product.bind(mma=mma, depth=depth, from_registers=from_registers, **more)


@pytest.mark.parametrize(("dtype", "from_registers"), CASES)
def test_it_is_right_on_the_reference_and_clean(dtype, from_registers) -> None:
    made, bound = bind(dtype, from_registers)
    a, b, c = made.arrays((70, 48, 320 // made.atom.a_dtype.bytes))
    bound.check(a, b, c).raise_if_any()
    assert bound(a, b, c, target="reference").target == "reference"
    made.compare(a, b, c).raise_if_wrong()


@pytest.mark.parametrize(("dtype", "from_registers"), CASES)
def test_it_becomes_a_fence_a_multiply_a_commit_and_a_wait(dtype, from_registers) -> None:
    made, bound = bind(dtype, from_registers)
    kernel = bound.trace(*made.specs())
    assert any(isinstance(op, Mma) for op in kernel.walk())
    assert kernel.lanes == 32
    assert cuda.violations(kernel, "sm_90a") == []
    listing = cuda.emit(kernel, "sm_90a")
    kinds = [type(op) for op in listing.kernel.walk() if type(op).__name__.startswith("Mma")]
    assert kinds == [MmaFence, MmaAsync, MmaCommit, MmaWait]
    binary = compile_text(listing.text, "sm_90a")
    assert not any(code in binary.log for code in FATAL)
    older = [violation.message for violation in cuda.violations(kernel, "sm_80")]
    assert f"sm_80 does not execute {made.atom}" in older


def test_what_threads_wrote_without_a_fence_is_found() -> None:
    made, bound = bind("bf16", False, fence=False)
    report = bound.check(*made.arrays((64, 32, 64)))
    assert "missing proxy fence on shared sA" in str(report)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_cpu_multiplies_what_the_record_says(dtype) -> None:
    made, bound = bind(dtype, False, fence=False)
    a, b, c = made.arrays((70, 48, 320 // made.atom.a_dtype.bytes))
    assert bound(a, b, c, target="cpu").target == "cpu"
    made.compare(a, b, c).raise_if_wrong()
    if made.atom.precision is not None:
        arrays, expected = made.around_the_middle()
        bound(*arrays, target="cpu")
        assert np.array_equal(arrays[2], expected)
