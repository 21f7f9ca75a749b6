"""Reductions into shared memory of this block and of others: every kind and dtype compiles."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.ir.copies import REDUCTIONS
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda


@tw.kernel(X="N", Y="N")
def reduced(X, Y, *, clustered):
    """Apply each reduction that the dtype of X has, each into its own tensor."""
    block = tw.block_index(2)
    if clustered:
        tw.hopper.cluster_index(2)
    x = tw.load(X.tile((64,), (block,)).partition((32,)))
    for kind, dtypes in REDUCTIONS.items():
        if X.dtype.name in dtypes:
            held = tw.shared((64,), X.dtype)
            tw.copy(x, held)
            if clustered:
                tw.hopper.cluster_barrier()
                tw.copy(x, tw.hopper.peer(held, 1), reduction=kind)
                tw.hopper.cluster_barrier()
            else:
                tw.barrier()
                tw.copy(x, held, reduction=kind)
                tw.barrier()
            tw.copy(held, Y.tile((64,), (block,)), threads=32)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("dtype", sorted({name for names in REDUCTIONS.values() for name in names}))
def test_every_reduction_into_shared_memory_compiles(dtype: str, clustered: bool) -> None:
    kernel = reduced.trace(tw.like(dtype, 128), tw.like(dtype, 128), clustered=clustered)
    for arch in ("sm_90a",) if clustered else ("sm_80", "sm_90a"):
        if cuda.violations(kernel, arch):
            continue  # an architecture before that of the dtype's reductions
        text = cuda.emit(kernel, arch).text
        assert ("red.relaxed.cluster." if clustered else "red.relaxed.cta.shared.") in text
        assert compile_text(text, arch)
    assert not cuda.violations(kernel, "sm_90a")
