"""Predicted accesses to shared memory equal those that an H200 counted, and those that kernels imply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.inspect.comparison import (
    ASYNC_PASSES,
    CONFLICTS,
    FEWEST,
    LOAD_PASSES,
    MATRIX_LOAD_PASSES,
    MATRIX_STORE_PASSES,
    PASSES,
    STORE_PASSES,
    STORES,
    SharedTraffic,
    predicted_figures,
    predicted_traffic,
    with_derived,
)
from tilewright.inspect.from_files import from_file
from tilewright.inspect.subject import Subject
from tilewright.targets.simt.banks import Conflicts

pytestmark = pytest.mark.in_turns(3)

EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPE = "512x384x320"

COUNTED = {
    "02_basic_gemm.py": {
        LOAD_PASSES: 0,
        MATRIX_LOAD_PASSES: 30720,
        STORES: 2880,
        STORE_PASSES: 11520,
        MATRIX_STORE_PASSES: 0,
        PASSES: 42240,
        FEWEST: 42240,
    },
    "04_optimized_gemm.py": {
        LOAD_PASSES: 3072,
        MATRIX_LOAD_PASSES: 30720,
        STORES: 2880,
        STORE_PASSES: 15360,
        MATRIX_STORE_PASSES: 3072,
        PASSES: 52224,
        FEWEST: 48384,
    },
}
"""What an H200 counted, by ncu 2025.3.1, in every run."""


def traffic(
    kernel: str, shape: str, *constants: str, arch: str = "sm_80", dtypes: str = "f16"
) -> SharedTraffic:
    subject = from_file(str(EXAMPLES / kernel), dtypes, shape, constants)
    listing = subject.compile("cuda", arch).listing
    assert listing is not None
    return predicted_traffic(listing.kernel, subject.binding(listing.kernel))


@pytest.mark.parametrize(("kernel", "counted"), COUNTED.items())
def test_what_is_predicted_is_what_an_h200_counted(kernel: str, counted: dict[str, float]) -> None:
    predicted = predicted_figures(traffic(f"{kernel}:LARGE", SHAPE, arch="sm_90a"))
    assert {name: predicted[name] for name in counted} == counted


def test_conflicts_of_the_optimised_gemm_are_predicted() -> None:
    """A block stores 24 KiB for each step of K; the store of B uses each bank twice."""
    blocks, steps = 2 * 3, 10
    found = traffic("04_optimized_gemm.py:LARGE", SHAPE)
    assert found.stores.passes - found.stores.fewest == blocks * steps * 16 * 4
    assert found.loads.passes == found.loads.fewest
    assert found.matrix_loads.passes == found.matrix_loads.fewest
    assert found.stores.accesses == blocks * (steps * (32 + 16) + 512)
    assert with_derived(predicted_figures(found))[CONFLICTS] == blocks * steps * 16 * 4


def test_matrix_stores_are_counted_apart() -> None:
    """`stmatrix` takes a quarter of the instructions to store C; all other figures stay the same."""
    plain = traffic("04_optimized_gemm.py:LARGE", SHAPE)
    matrices = traffic("04_optimized_gemm.py:LARGE", SHAPE, arch="sm_90a")
    fewer = plain.stores.accesses - matrices.stores.accesses
    assert fewer == 4 * matrices.matrix_stores.accesses == 6 * 512
    assert plain.all.passes == matrices.all.passes
    assert plain.matrix_stores == Conflicts()
    assert (matrices.loads, matrices.matrix_loads) == (plain.loads, plain.matrix_loads)


def test_asynchronous_copies_are_counted_apart() -> None:
    """Asynchronous copies write the same tiles as stores, and one more: that of the step after the last."""
    constants = ("tile=(128,128,32)", "mma=tw.TiledMma(tw.atoms.MMA_F16,(2,2),(4,8))")
    serial = traffic("07_three_levels_gemm.py:serial", "256x256x64", *constants)
    buffered = traffic("07_three_levels_gemm.py:buffered", "256x256x64", *constants)
    blocks, steps, each = 4, 2, 2 * 16
    assert serial.stores == Conflicts(each, 4 * each, 4 * each) * (blocks * steps)
    copied = Conflicts(each, 4 * each, 4 * each) * (blocks * (steps + 1))
    assert buffered == SharedTraffic(matrix_loads=serial.matrix_loads, async_copies=copied)
    # Nor are sums with them predicted: how their data arrives is not known.
    assert {ASYNC_PASSES, PASSES, FEWEST}.isdisjoint(predicted_figures(buffered))
    assert predicted_figures(serial)[ASYNC_PASSES] == 0


def test_narrow_matrix_loads_take_fewer_passes() -> None:
    """A has four matrices and B two, so ``ldmatrix.x2`` takes two passes."""
    mma = "mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(1, 1), repeats=(1, 1))"
    constants = ("tile=(16, 8, 16)", "threads=(8, 2)", mma, "vector=8")
    found = traffic("02_basic_gemm.py:basic_gemm", "16x8x16", *constants)
    assert found.matrix_loads.accesses == 2
    assert found.matrix_loads.fewest == 4 + 2


def served(instructions: int, wavefronts: int = 4) -> Conflicts:
    """Return a number of instructions without a conflict."""
    return Conflicts(instructions, instructions * wavefronts, instructions * wavefronts)


def test_persistent_blocks_and_roles() -> None:
    """Each of five tiles of 128 x 64 is stored in matrices of 8 x 8, four at a time."""
    constants = (
        "stages=2",
        "buffers=1",
        "blocks=2",
        "group=1",
        "mma=tw.TiledMma(tw.atoms.wgmma(tw.f16, 64))",
    )
    found = traffic("03_hopper_gemm.py:hopper_gemm", "M=600,N=64,K=72", *constants, arch="sm_90a")
    assert found == SharedTraffic(matrix_stores=served(5 * 128 * 64 // 256))


def test_what_the_last_step_does_not_fetch() -> None:
    constants = ("tile=(64, 64, 32, 128)", "atom=tw.atoms.MMA_F16", "warps=4")
    dtypes, shape = "A=f16,B=f16,C=f16,D=f32", "M=512,N=192,K=128,P=256"
    found = traffic("08_fused_gemms.py:fused_gemms", shape, *constants, dtypes=dtypes)
    steps, a, b, c = (512 // 64) * (256 // 128) * (192 // 64), 64 * 32, 64 * 32, 128 * 64
    copied = served(steps * ((a + b) * (128 // 32) + c) // 8 // 32)
    # The four warps load their own rows of A, and all of B and C.
    loaded = served(steps * ((a + 4 * b) * (128 // 32) + 4 * c) // 256)
    assert found == SharedTraffic(matrix_loads=loaded, async_copies=copied)


@pytest.mark.parametrize("shift", [0, 256, -256])
def test_causal_attention_reads_what_each_block_sees(shift: int) -> None:
    """A block has 128 queries, and reads 64 keys at a time."""
    constants = ("causal=True", "tile=TILES[64][0]", "warps=4", "atom=tw.atoms.MMA_F16", "scale=0.1")
    shape = "B=2,H=3,M=512,N=512,D=64"
    found = traffic("09_attention.py:attention", shape, *constants, f"shift={shift}")
    seen = [min(max((m + 1) * 128 + shift, 0), 512) // 64 for m in range(4)]
    q, tile = 128 * 64, 64 * 64
    copied = sum(2 * tile * max(count, 1) for count in seen)  # the first tiles are fetched in any case
    loaded = sum((q + 4 * 2 * tile) * count for count in seen)
    assert found == SharedTraffic(
        matrix_loads=served(6 * loaded // 256),
        stores=served(6 * 4 * q // 8 // 32),
        async_copies=served(6 * copied // 8 // 32),
    )


def test_hopper_attention_stores_what_it_has_multiplied() -> None:
    constants = ("causal=True", "keys=128", "depth=64", "stages=2", "groups=2", "atom=tw.atoms.wgmma")
    numbers = ("scale=0.1", "shift=0")
    shape = "B=2,H=3,M=500,N=300,D=64"
    found = traffic("10_hopper_attention.py:hopper_attention", shape, *constants, *numbers, arch="sm_90a")
    assert found == SharedTraffic(matrix_stores=served(6 * 4 * 128 * 64 // 256))


@tw.kernel(X="M N", Y="M N")
def one_and_a_half_warps(X, Y):
    held = tw.shared((48, 32), X.dtype)
    tw.copy(X.tile((48, 32), (0, 0)), held, threads=tw.raked((48, 32), (48, 1), vector=8, vector_dim=1))
    tw.barrier()
    tw.copy(held, Y.tile((48, 32), (0, 0)), threads=tw.raked((48, 32), (16, 4), vector=8, vector_dim=1))


@tw.kernel(X="M N", Y="M N")
def held_twice(X, Y):
    mma = tw.TiledMma(tw.atoms.MMA_F16, warps=(1, 2), repeats=(1, 1))
    held = tw.shared((16, 16), X.dtype)
    tw.copy(tw.load(X.tile((16, 16), (0, 0)), tw.operand_a(mma, 16)), held)
    tw.barrier()
    tw.copy(tw.load(held, tw.operand_a(mma, 16)), Y.tile((16, 16), (0, 0)))


def of(program: Any, m: int, n: int) -> SharedTraffic:
    subject = Subject(program.bind(), dict.fromkeys("XY", tw.f16), {"M": m, "N": n})
    listing = subject.compile("cuda", "sm_80").listing
    assert listing is not None
    return predicted_traffic(listing.kernel, subject.binding(listing.kernel))


def test_half_a_warp_asks_for_half() -> None:
    """Accesses of 16 bytes are served for eight lanes at a time: a warp has four parts, half a warp two."""
    found = of(one_and_a_half_warps, 48, 32)
    assert found.stores.accesses == 4 * 2
    assert found.stores.fewest == 4 * (4 + 2)
    assert found.loads.accesses == 3 * 2
    assert found.loads.fewest == 3 * (4 + 4)


def test_what_two_warps_hold_is_stored_once_and_loaded_twice() -> None:
    found = of(held_twice, 16, 16)
    assert found.stores == served(4, 1)
    assert found.matrix_loads == served(2)
