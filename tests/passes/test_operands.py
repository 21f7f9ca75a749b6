"""Operands of atoms that are 1 deep are read from shared memory 16 bytes at a time, however they lie."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.ir.copies import Copy
from tilewright.ir.types import Memory
from tilewright.ops.config import default_config
from tilewright.ops.gemm import gemm
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.targets.atoms import fma
from tilewright.targets.cuda.banks import passes_per_access


def matrix(dtype: tw.DType, unit: int) -> tw.TensorSpec:
    step = 16 // dtype.bytes
    return tw.TensorSpec(dtype, 2, unit, (step, step), (step, 1) if unit else (1, step), 16, False)


@pytest.mark.parametrize(("dtype", "each"), [(tw.f32, 8), (tw.f32, 4), (tw.f64, 4)], ids=str)
@pytest.mark.parametrize("units", [(1, 1), (1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("paired", [False, True])
def test_every_access_is_16_bytes_wide_and_meets_no_other(dtype, each, units, paired) -> None:
    mma = tw.TiledMma(fma(dtype, each=(each, each), paired=paired), (4, 2))
    bound = gemm.bind(tile=(*mma.tile[:2], 16), mma=mma, stages=3)
    kernel = bound.trace(*(matrix(dtype, unit) for unit in units), matrix(dtype, 1))
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
    mma = tw.TiledMma(fma("f32", each=(4, 4)), (2, 2))
    bound = gemm.bind(tile=(*mma.tile[:2], 6), mma=mma, stages=1)
    kernel = bound.trace(*(matrix(tw.f32, 1) for _ in range(3)))
    text = cuda.emit(kernel, "sm_90a").text
    assert "sA_step -> sA_frag, 8 bytes at a time" in text


def test_the_library_s_kernel_for_f32_spills_nothing() -> None:
    config = default_config("cuda", tw.f32, (4096, 4096, 4096))
    bound = gemm.bind(tile=config.tile, mma=config.mma, stages=config.stages)
    listing = cuda.emit(bound.trace(*(matrix(tw.f32, 1) for _ in range(3))), "sm_90a")
    assert "sA_step -> sA_frag, 16 bytes at a time" in listing.text
    resources = compile_text(listing.text, "sm_90a").resources
    assert resources["spill_store_bytes"] == resources["stack_bytes"] == 0
