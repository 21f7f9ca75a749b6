"""The ladder's hand-written kernels: their text, their resources, and refusals with their advice."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.ir import ops, verify
from tilewright.ir.kernel import Kernel
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.threads.banks import bank_conflicts
from tilewright.views.transforms import Merge, Permute, Tile

pytestmark = pytest.mark.in_turns(3)

EXAMPLES = Path(__file__).parents[3] / "examples"
IM2COL = runpy.run_path(str(EXAMPLES / "05_im2col.py"))
OPTIMIZED = runpy.run_path(str(EXAMPLES / "04_optimized_gemm.py"))
LARGE = OPTIMIZED["LARGE"]


def matrices(dtype: tw.DType, extents: int, strides: int, out: tw.DType | None = None) -> list[tw.TensorSpec]:
    """Return row-major arrays A, B, C whose extents and strides have known divisors."""
    return [
        tw.TensorSpec(each, 2, 1, (extents, extents), (strides, 1), 16, False)
        for each in (dtype, dtype, out or dtype)
    ]


def optimized(dtype: tw.DType = tw.f16, extents: int = 256, strides: int = 16, **choices: Any) -> Kernel:
    return (
        OPTIMIZED["optimized_gemm"]
        .bind(**{**LARGE.constants, **choices})
        .trace(*matrices(dtype, extents, strides))
    )


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("extents", [256, 8], ids=["whole", "ragged"])
def test_the_optimized_gemm_keeps_its_prefetch_in_registers(arch: str, extents: int) -> None:
    kernel = optimized(extents=extents)
    assert [*verify.violations(kernel), *cuda.violations(kernel, arch)] == []
    binary = compile_text(cuda.emit(kernel, arch).text, arch)
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert binary.resources["registers"] <= 255


@pytest.mark.parametrize("dtype", OPTIMIZED["ATOMS"], ids=str)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_padded_optimized_gemm_compiles(dtype: tw.DType, arch: str) -> None:
    bound = OPTIMIZED["padded"](OPTIMIZED["ATOMS"][dtype])
    kernel = bound.trace(*matrices(dtype, 1, 1, tw.i32 if dtype is tw.i8 else dtype))
    assert [*verify.violations(kernel), *cuda.violations(kernel, arch)] == []
    text = cuda.emit(kernel, arch).text
    assert ("ldmatrix_x4" in text) == (dtype is not tw.f32), "16 bytes along K are what ldmatrix takes"
    binary = compile_text(text, arch)
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0


def test_golden_of_the_optimized_gemm(golden: Any) -> None:
    golden(cuda.emit(optimized(), "sm_90a").text, "optimized_gemm_f16.cu")


def test_the_next_tile_is_on_its_way_before_the_multiply_begins() -> None:
    """In the loop: both loads into registers, the multiply, and then the operations that need the loads."""
    [loop] = [op for op in optimized().walk() if isinstance(op, ops.For)]
    order = [op.name for op in loop.body.ops if op.name != "view"]
    assert order == ["copy", "copy", "mma", "barrier", "copy", "copy", "barrier"]


def test_the_layout_is_the_tutorials_and_is_not_exchanged() -> None:
    kernel, notes = cuda.lower(optimized(), cuda.architecture("sm_90a"))
    shared = {op.result.name: op for op in kernel.walk() if isinstance(op, ops.Shared)}
    assert [shared[name].elems for name in ("sA", "sB")] == [8216, 4120]
    assert shared["sA"].view.offset == tw.View.strided((4, 256, 8), (257 * 8, 8, 1)).offset
    assert notes == ("sC re-laid out: swizzle<3, 3, 4>",)


def rows(shared: ops.Shared) -> tw.View:
    """Return (K0, M, K1) as (M, K)."""
    turned = Permute((1, 0, 2)).apply(shared.view)
    return Merge(1, 2).apply(turned)


@pytest.mark.parametrize(("name", "written"), [("sA", 1), ("sB", 2)])
def test_conflicts_of_the_spared_layout(name: str, written: int) -> None:
    """ldmatrix reads 8 rows of 16 bytes one after another; four K0 and eight rows of A share no bank.

    A thread has two rows of B, so eight lanes write rows 0 and 2 of four K0: two of the eight share a bank.
    """
    kernel = optimized()
    shared = {op.result.name: op for op in kernel.walk() if isinstance(op, ops.Shared)}[name]
    copies = [op for op in kernel.walk() if isinstance(op, ops.Copy) and op.target.buffer.name == name]
    assert {bank_conflicts(shared.view, op.spread, 8, 2) for op in copies} == {written}
    whole = tw.Distribution(
        (16, 16), (tw.Mode(8, 0, 1), tw.Mode(2, 0, 8), tw.Mode(2, 1, 8)), (tw.Mode(8, 1, 1),)
    )
    tile = Tile((16, 16), (0, 0)).apply(rows(shared))
    assert bank_conflicts(tile, whole, 8, 2) == 1


def im2col() -> Kernel:
    """Return the arrays of the seed's problem: channels a multiple of 64, tiles that divide the matrix."""
    image = tw.TensorSpec(tw.f32, 6, 5, (32, 1, 1, 1, 4, 64), (16, 16, 16, 16, 16, 1), 16, False)
    return IM2COL["LARGE"].trace(image, tw.TensorSpec(tw.f32, 3, 2, (4, 32, 64), (16, 16, 1), 16, False))


def test_golden_of_im2col(golden: Any) -> None:
    golden(cuda.emit(im2col(), "sm_90a").text, "im2col_f32.cu")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_im2col_moves_16_bytes_on_both_sides_in_few_registers(arch: str) -> None:
    kernel = im2col()
    assert [*verify.violations(kernel), *cuda.violations(kernel, arch)] == []
    listing = cuda.emit(kernel, arch)
    [copy] = [op for op in listing.kernel.walk() if isinstance(op, ops.Copy)]
    assert copy.vector == 4
    assert "load_if<uint4>" in listing.text
    assert "*(uint4*)(to" in listing.text
    binary = compile_text(listing.text, arch)
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert binary.resources["registers"] <= 40, "12 blocks of 128 threads fill a multiprocessor"
