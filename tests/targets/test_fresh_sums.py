"""Asynchronous MMA that overwrites its sums: right on the reference, compiled for CUDA, and printed."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import operands
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda

from .fresh_sums import CASES, bind, fresh_gemm, out_of


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("poison", [None, 1000])
@pytest.mark.parametrize("name", CASES)
def test_the_reference_multiplies_and_finds_no_hazard(name: str, poison: int | None) -> None:
    """The accumulator may hold anything before, or never have been written."""
    dtype, period = CASES[name][0], CASES[name][4]
    made = operands("random", tw.dtype(dtype), (72, 136, 656), layout="nt", seed=11)
    c = np.full((72, 136), 99, tw.dtype(out_of(dtype)).numpy)
    bound = bind(name, poison=poison)
    bound.check(made.a, made.b.T, c).raise_if_any()
    assert bound(made.a, made.b.T, c, target="reference").target == "reference"
    how = Accumulation.of(bound.constants["mma"].atom, period and period * 128 // tw.dtype(dtype).bytes)
    compare_gemm(made.a, made.b, c, how).raise_if_wrong()


@pytest.mark.parametrize("name", CASES)
def test_it_compiles_without_spills_or_warnings(name: str) -> None:
    dtype = CASES[name][0]
    arrays = [tw.like(kind, 256, 256) for kind in (dtype, dtype, out_of(dtype))]
    text = cuda.emit(bind(name).trace(*arrays, target="cuda", arch="sm_90a"), "sm_90a").text
    assert "_or_fresh(" in text
    binary = compile_text(text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert not any(code in binary.log for code in FATAL)


def test_it_prints_and_reads_back() -> None:
    arrays = [tw.like(kind, 256, 256) for kind in ("bf16", "bf16", "f32")]
    text = tw.ir.print_kernel(bind("once").trace(*arrays))
    assert "fresh=" in text
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text
    always = fresh_gemm.bind(mma=tw.TiledMma(tw.atoms.wgmma("bf16", 64)), period=1).trace(*arrays)
    text = tw.ir.print_kernel(always)
    assert "fresh=True" in text
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text


def test_sums_that_nobody_has_begun_are_found() -> None:
    """The checker requires that sums are written before products are added to them."""

    @tw.kernel(A="M K", B="N K", C="M N")
    def late(A, B, C):
        sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        tw.hopper.fence_async()
        tw.barrier()
        acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)), None)
        for k in tw.range(2):
            tw.hopper.mma_fence()
            tw.hopper.mma_async(sA, sB, acc, fresh=k == 1)
            tw.hopper.mma_commit()
            tw.hopper.mma_wait()
        tw.copy(acc, C.tile((64, 8), (0, 0)))

    a, b, c = (np.ones(shape, np.float16) for shape in ((64, 64), (8, 64), (64, 8)))
    with pytest.raises(tw.HazardError, match="unwritten"):
        late.bind().check(a, b, c.astype(np.float32)).raise_if_any()


def test_a_number_is_no_condition() -> None:
    @tw.kernel(A="M K", C="M N")
    def wrong(A, C):
        held = tw.shared((64, 64), A.dtype, swizzle=128)
        acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 64)))
        tw.hopper.mma_async(held, held, acc, fresh=1)

    with pytest.raises(tw.TraceError, match="fresh"):
        wrong.bind().trace(tw.like("bf16", 64, 64), tw.like("f32", 64, 64))
