"""Atoms as records: what they state is all that targets know of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.errors import LayoutError
from tilewright.ir.mma import MmaAtom
from tilewright.targets import cuda
from tilewright.targets.atoms import MMA_SYNC, WGMMA, wgmma
from tilewright.targets.cuda.instructions import Form, function
from tilewright.targets.cuda.legality import violations
from tilewright.threads.distribution import Distribution, Mode

WMMA_LIKE = MmaAtom(
    "16x16x16 with copies",
    "f16",
    "f16",
    "f32",
    Distribution((16, 16), (Mode(16, 0, 1), Mode(2, None, 0)), (Mode(16, 1, 1),)),
    Distribution((16, 16), (Mode(16, 0, 1), Mode(2, None, 0)), (Mode(16, 1, 1),)),
    Distribution((16, 16), (Mode(16, 1, 1), Mode(2, 0, 1)), (Mode(8, 0, 2),)),
    instruction="wmma",
    feature="gfx11",
    sum_bits=24,
)
"""Lanes 16 to 31 hold copies of what lanes 0 to 15 hold of A and B, and other rows of C: as on gfx11."""


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C, *, mma, tile, from_registers):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, tile[:2]))
    sA, sB = tw.shared((tile_m, tile_k), A.dtype), tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=mma.threads)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=mma.threads)
        tw.barrier()
        if from_registers:
            tw.mma(tw.load(sA, tw.operand_a(mma, tile_k)), tw.load(sB, tw.operand_b(mma, tile_k)), acc)
        else:
            tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile(tile[:2], (m, n)))


@pytest.mark.parametrize("from_registers", [False, True])
def test_lanes_that_hold_copies(from_registers: bool) -> None:
    mma = tw.TiledMma(WMMA_LIKE, warps=(2, 1), repeats=(1, 2))
    bound = product.bind(mma=mma, tile=(32, 32, 32), from_registers=from_registers)
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((rows, 80)).astype(np.float16) for rows in (50, 41))
    c = np.full((50, 41), np.nan, np.float32)
    assert bound(a, b, c, target="reference").target == "reference"
    compare_gemm(a, b.T, c, Accumulation.of(WMMA_LIKE)).raise_if_wrong()
    assert WMMA_LIKE.a.copies == 2


def test_what_is_in_no_table_is_refused_before_anything_is_compiled() -> None:
    spec = tw.like("f16", 64, 64)
    bound = product.bind(mma=tw.TiledMma(WMMA_LIKE), tile=(16, 16, 16), from_registers=False)
    broken = violations(bound.trace(spec, spec, tw.like("f32", 64, 64)), "sm_90a")
    assert any("does not execute 16x16x16 with copies" in found.message for found in broken)
    other = replace(tw.atoms.MMA_F16, sum_bits=13)
    bound = product.bind(mma=tw.TiledMma(other), tile=(16, 16, 16), from_registers=False)
    assert violations(bound.trace(spec, spec, tw.like("f32", 64, 64)), "sm_90a")


@pytest.mark.parametrize("atom", [*MMA_SYNC, *(wgmma(row.a, 32, row.b, row.c) for row in WGMMA)], ids=str)
def test_nothing_is_read_from_a_name(atom: MmaAtom) -> None:
    called = replace(atom, name="fma.mma.wgmma")
    assert function(called) == function(atom)
    if atom.asynchronous:
        assert function(called, Form(from_registers=True)) == function(atom, Form(from_registers=True))
        return
    texts = []
    for chosen in (atom, called):
        m, n, k = chosen.shape
        bound = product.bind(mma=tw.TiledMma(chosen), tile=(m, n, 2 * k), from_registers=False)
        specs = (tw.like(str(kind), 64, 64) for kind in (atom.a_dtype, atom.b_dtype, atom.c_dtype))
        texts.append(cuda.emit(bound.trace(*specs), "sm_90a").text)
    assert texts[0] == texts[1].replace("fma.mma.wgmma", atom.name)


@pytest.mark.parametrize(
    "fields", [{"rounding": "up"}, {"a_places": ()}, {"b_places": ("global",)}, {"majors": ("m",)}]
)
def test_fields_that_mean_nothing_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(LayoutError, match="nearest legal choice: some of"):
        replace(tw.atoms.MMA_F16, **fields)  # type: ignore[arg-type]


def test_columns_and_dtypes_that_no_wgmma_has() -> None:
    with pytest.raises(LayoutError, match="wgmma has no atom of 260 columns; nearest legal choice: 256"):
        wgmma("f16", 260)
    with pytest.raises(LayoutError, match="no wgmma atom for f64; nearest legal choice: one of f16 by f16"):
        wgmma("f64", 64)
