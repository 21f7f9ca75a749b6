"""The text of examples 06 and 07: loads under way at each level, and vector multiplies on the CPU."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.runtime.native import host_arch

pytestmark = pytest.mark.in_turns(3)

EXAMPLES = Path(__file__).parents[2] / "examples"
WARP_TILES = runpy.run_path(str(EXAMPLES / "06_warp_tiles_gemm.py"))
LEVELS = runpy.run_path(str(EXAMPLES / "07_three_levels_gemm.py"))
BOUND = {
    "warp_tiles_gemm": WARP_TILES["BOUND"][tw.f16],
    **{level.name: LEVELS["bind"](level) for level in LEVELS["LEVELS"]},
    "wide": LEVELS["bind"](LEVELS["prefetched"], tile=(128, 256, 32), warps=(2, 4)),
}
RAGGED = tw.TensorSpec(tw.f16, 2, 1, (1, 8), (8, 1), 16, False)


def compiled(name: str, target: str, arch: str | None = None):
    return BOUND[name].compile(RAGGED, RAGGED, RAGGED, target=target, arch=arch)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", BOUND)
def test_registers_suffice_and_shared_memory_fits_twice(name, arch) -> None:
    """A multiprocessor of 65536 registers has two blocks of 128 threads, or one of 256."""
    found = compiled(name, "cuda", arch).resources
    threads = BOUND[name].constants["mma"].threads
    assert (found["spill_store_bytes"], found["stack_bytes"]) == (0, 0)
    assert found["registers"] * threads * (256 // threads) <= 65536
    assert found["shared_bytes"] * (256 // threads) <= 163840


def kernel_text(name: str) -> str:
    source = compiled(name, "cuda", "sm_90a").source
    return source[source.index('extern "C"') :]


def test_the_first_uses_no_shared_memory() -> None:
    text = kernel_text("warp_tiles_gemm")
    assert "shared" not in text
    assert "__syncthreads" not in text


def test_operands_come_by_matrices_without_conflicts() -> None:
    for name in ("serial", "buffered", "prefetched"):
        listing = compiled(name, "cuda", "sm_90a").listing
        assert [note for note in listing.notes if "swizzle" in note], "rows of 64 bytes would meet in banks"
        assert kernel_text(name).count("ldmatrix_x4(") >= 4


def test_the_next_slice_is_loaded_before_this_one_is_multiplied() -> None:
    body = kernel_text("prefetched")
    body = body[body.index("for (int k = 0") :]
    steps = re.findall(r"ldmatrix_x4\(&(\w+)\[|mma_m16n8k16_f16\(&acc\[[^]]*\], &(\w+)\[", body)
    assert [loaded or f"*{multiplied}" for loaded, multiplied in steps] == [
        *("rA_1", "rB_1", "*rA"),
        *("rA", "rB", "*rA_1"),
    ]
    assert body.count("__syncthreads") == 1
    assert "copy_async<16>" in body


@pytest.mark.parametrize("name", BOUND)
def test_the_cpu_multiplies_in_vectors(name) -> None:
    """The micro-kernel of `tw.mma` keeps its sums in vector registers over the depth of a step."""
    source = compiled(name, "cpu").source
    # AVX-512 has 32 vector registers for the sums, others have 16.
    micro, rows, vectors = "multiply_f32", 8 if host_arch() == "x86-64-v4" else 4, 2
    assert f"__attribute__((noinline)) static void {micro}(" in source
    assert "sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);" in source
    assert "vector_size" in source
    assert f" {micro}<{rows},{vectors}>(" in source


@pytest.mark.parametrize("name", ["warp_tiles_gemm", "prefetched"])
def test_golden(name, golden) -> None:
    listing = compiled(name, "cuda", "sm_90a").listing
    golden("".join(f"// {note}\n" for note in listing.notes) + listing.text, f"{name}_f16.cu")
