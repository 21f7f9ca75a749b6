"""Operands of atoms of depth 1 are read from shared memory in 16 bytes at a time, in any layout."""

from __future__ import annotations

import pytest
from tests.eight_lines import product as gemm

import tilewright as tw
from tilewright.ir.copies import Copy
from tilewright.ir.types import Memory
from tilewright.ops.products import plain
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.targets.atoms import fma
from tilewright.targets.simt.banks import passes_per_access

pytestmark = pytest.mark.in_turns(3)


def matrix(dtype: tw.DType, unit: int) -> tw.TensorSpec:
    step = 16 // dtype.bytes
    return tw.TensorSpec(dtype, 2, unit, (step, step), (step, 1) if unit else (1, step), 16, False)


@pytest.mark.parametrize(("dtype", "each"), [(tw.f32, 8), (tw.f32, 4), (tw.f64, 4)], ids=str)
@pytest.mark.parametrize("units", [(1, 1), (1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("paired", [False, True])
def test_every_access_is_16_bytes_wide_and_meets_no_other(dtype, each, units, paired) -> None:
    atom = fma(dtype, each=(each, each), paired=paired)
    m, n, _ = atom.shape
    schedule = tw.Schedule(atom, (4 * m, 2 * n, 16), (4, 2), stages=3, staging="cp_async")
    kernel = gemm.trace(*(matrix(dtype, unit) for unit in units), matrix(dtype, 1), schedule=schedule)
    lowered = cuda.emit(kernel, "sm_90a").kernel
    loads = [
        op
        for op in lowered.walk()
        if isinstance(op, Copy)
        and op.source.is_tensor
        and op.source.tensor.memory is Memory.SHARED
        and op.target.is_fragment
    ]
    assert [op.vector * dtype.bytes for op in loads if op.vector] == [16, 16]
    assert [passes_per_access(op) for op in loads] == [1.0, 1.0]


def test_depths_that_16_bytes_do_not_divide_take_what_they_can() -> None:
    schedule = tw.Schedule(fma("f32", each=(4, 4)), (32, 64, 6), (2, 2))
    kernel = gemm.trace(*(matrix(tw.f32, 1) for _ in range(3)), schedule=schedule)
    text = cuda.emit(kernel, "sm_90a").text
    assert "sA_step -> sA_frag, 8 bytes at a time" in text


def test_the_library_s_kernel_for_f32_spills_nothing() -> None:
    arrays = [tw.like("f32", 4096, 4096)] * 3
    listing = cuda.emit(plain(0).trace(*arrays, precision="exact", target="cuda", arch="sm_90a"), "sm_90a")
    assert "sA_step -> sA_frag, 16 bytes at a time" in listing.text
    resources = compile_text(listing.text, "sm_90a").resources
    assert resources["spill_store_bytes"] == resources["stack_bytes"] == 0
