"""Atoms are records: targets know nothing else about them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.errors import LayoutError
from tilewright.ir import verify
from tilewright.ir.mma import MmaAtom
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda
from tilewright.targets.atoms import wgmma
from tilewright.targets.cuda.instructions import AsyncForm, function
from tilewright.targets.cuda.legality import violations
from tilewright.threads.distribution import Distribution, Mode

from .products import ATOMS, DEPTH_BYTES, OF_FEWER_BITS, PRODUCTS, Product, product

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


@pytest.mark.parametrize("from_registers", [False, True])
def test_lanes_that_hold_copies(from_registers: bool) -> None:
    mma = tw.TiledMma(WMMA_LIKE, warps=(2, 1), repeats=(1, 2))
    bound = product.bind(mma=mma, depth=32, from_registers=from_registers)
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((rows, 80)).astype(np.float16) for rows in (50, 41))
    c = np.full((50, 41), np.nan, np.float32)
    assert bound(a, b, c, target="reference").target == "reference"
    compare_gemm(a, b.T, c, Accumulation.of(WMMA_LIKE)).raise_if_wrong()
    assert WMMA_LIKE.a.copies == 2


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("made", PRODUCTS, ids=str)
def test_every_row_is_right_on_the_reference_and_compiles(made: Product) -> None:
    a, b, c = made.arrays((70, 48, 320 // made.atom.a_dtype.bytes))
    assert made.bound(a, b, c, target="reference").target == "reference"
    made.compare(a, b, c).raise_if_wrong()
    text = cuda.emit(made.bound.trace(*made.specs()), "sm_90a").text
    binary = compile_text(text, "sm_90a")
    # No array lies in memory; of f64 a few words may, where 64 registers let more blocks run at once.
    spilled = binary.resources["spill_store_bytes"]
    assert spilled == binary.resources["stack_bytes"] <= (32 if made.atom.a_dtype == tw.f64 else 0)
    assert not any(code in binary.log for code in FATAL)


@pytest.mark.parametrize("made", OF_FEWER_BITS, ids=str)
def test_bits_that_are_not_multiplied_are_lost_as_the_record_says(made: Product) -> None:
    arrays, expected = made.around_the_middle()
    assert made.bound(*arrays, target="reference").target == "reference"
    assert (arrays[2] == expected).all()


def test_what_is_in_no_table_is_refused_before_anything_is_compiled() -> None:
    spec = tw.like("f16", 64, 64)
    bound = product.bind(mma=tw.TiledMma(WMMA_LIKE), depth=16, from_registers=False)
    broken = violations(bound.trace(spec, spec, tw.like("f32", 64, 64)), "sm_90a")
    assert any("does not execute 16x16x16 with copies" in found.message for found in broken)
    other = replace(tw.atoms.MMA_F16, sum_bits=13)
    bound = product.bind(mma=tw.TiledMma(other), depth=16, from_registers=False)
    assert violations(bound.trace(spec, spec, tw.like("f32", 64, 64)), "sm_90a")


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_nothing_is_read_from_a_name(atom: MmaAtom) -> None:
    called = replace(atom, name="fma.mma.wgmma")
    assert function(called) == function(atom)
    if atom.asynchronous:
        assert function(called, AsyncForm(from_registers=True)) == function(
            atom, AsyncForm(from_registers=True)
        )
        return
    texts = []
    for chosen in (atom, called):
        made = Product(chosen, from_registers=False)
        texts.append(cuda.emit(made.bound.trace(*made.specs()), "sm_90a").text)
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


WIDE_OR_NARROW = ("f16", "f32")


@tw.kernel(A="M K", B="K N", C="M N")
def along_n(A, B, C, *, mma):
    """One tile of C = A B; B is contiguous along N in shared memory, as only 16-bit operands may be."""
    width = DEPTH_BYTES // A.dtype.bytes
    sA, sB = (tw.shared((rows, width), A.dtype, swizzle=128) for rows in (64, width))
    acc = tw.accumulator(mma)
    tw.hopper.mma_fence()
    tw.hopper.mma_async(sA, sB.permute(1, 0), acc)
    tw.hopper.mma_commit()
    tw.hopper.mma_wait(0)
    tw.copy(acc, C.tile((64, width), (0, 0)))


@pytest.mark.parametrize("dtype", WIDE_OR_NARROW)
def test_only_operands_of_16_bits_run_along_n(dtype: str) -> None:
    width = DEPTH_BYTES // tw.dtype(dtype).bytes
    spec = tw.like(dtype, 64, 64)
    kernel = along_n.bind(mma=tw.TiledMma(wgmma(dtype, width))).trace(spec, spec, tw.like("f32", 64, 64))
    broken = verify.violations(kernel)
    if dtype == "f16":
        assert not broken
        return
    assert f"runs along N in shared memory; {wgmma(dtype, width)} takes operands that" in broken[0].message


@pytest.mark.parametrize(
    ("dtype", "acc"),
    [
        ("f16", "f32"),
        ("f64", "f64"),
        ("i8", "i32"),
        ("u32", "i32"),
        ("i64", "i64"),
        ("u64", "u64"),
        ("c64", "c64"),
    ],
)
def test_sums_of_multiply_adds_are_as_wide_as_what_is_multiplied(dtype: str, acc: str) -> None:
    assert tw.atoms.fma(dtype).c_dtype == tw.dtype(acc)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_products_of_64_bits_are_not_cut(target: str) -> None:
    mma = tw.TiledMma(tw.atoms.fma("u64", each=(2, 2)), warps=(2, 2), repeats=(1, 1))
    rng = np.random.default_rng(11)
    a, b = (rng.integers(0, 2**29, (rows, 21), np.uint64) for rows in (19, 23))
    c = np.zeros((19, 23), np.uint64)
    assert product.bind(mma=mma, depth=8, from_registers=False)(a, b, c, target=target).target == target
    assert np.array_equal(c, a @ b.T)
    assert c.max() > 2**32
