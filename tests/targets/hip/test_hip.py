"""Kernels in HIP, compiled for warps of 64 lanes and of 32.

A compiler from a package registry makes the listings; the tests look for the instructions that a kernel
should have.  Nothing runs on an AMD GPU here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.errors import MissingRuleError
from tilewright.ir.async_ops import RoleBarrier
from tilewright.ir.ops import AsyncCommit, AsyncWait, Copy
from tilewright.ir.verify import violations
from tilewright.runtime import amdgcn
from tilewright.targets.amd import GFX942, GFX1151
from tilewright.targets.hip.emit import HIP_RULES, emit
from tilewright.targets.hip.emit import violations as refusals
from tilewright.targets.hip.prelude import DIALECT
from tilewright.targets.rules import EmittedText

from .examples import KERNELS, turnstile
from .machine import machines

EXECUTED = {arch.name: arch for arch in (GFX942, GFX1151)}


class Made(NamedTuple):
    """A text, its listing, and the count of each instruction in it."""

    listing: EmittedText
    assembly: str
    count: Counter[str]

    def of(self, pattern: str) -> int:
        """Return the number of instructions with a name."""
        return sum(n for name, n in self.count.items() if re.fullmatch(pattern, name))

    def fact(self, name: str) -> int:
        """Return a figure of the compiler's metadata."""
        found = re.search(rf"^\s+\.{name}:\s+(\d+)$", self.assembly, re.MULTILINE)
        assert found is not None, name
        return int(found[1])


def compiled(listing: EmittedText, arch: Arch) -> Made:
    text = amdgcn.compile_text(listing.text, arch.name, listing.entry)
    return Made(listing, text, Counter(re.findall(r"^\t([a-z]\w+)", text, re.MULTILINE)))


@pytest.fixture(scope="module")
def made() -> Iterator[dict[tuple[str, str], Made]]:
    """Every example's kernel for every architecture."""
    wanted = {(name, arch.name): arch for name in KERNELS for arch in EXECUTED.values()}
    listings = {}
    for (name, of), arch in wanted.items():
        kernel = KERNELS[name](arch)
        assert kernel.lanes == arch.lanes
        assert [*violations(kernel), *refusals(kernel, arch)] == []
        listings[name, of] = emit(kernel, arch)
    with ThreadPoolExecutor(2) as pool:
        jobs = {key: pool.submit(compiled, listing, wanted[key]) for key, listing in listings.items()}
        yield {key: job.result() for key, job in jobs.items()}


FUSED = r"v_(pk_fma|fma|fmac|fma_mix|fma_mixlo|dual_fmac)_f32\w*|v_(mad|mul)_\w*[iu](16|24|32)\w*"
GLOBAL_16 = r"global_load_(dwordx4|b128)"
READ_SHARED, WRITTEN_SHARED = r"ds_(read|load)\w*", r"ds_(write|store)\w*"


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("arch", EXECUTED)
@pytest.mark.parametrize("name", KERNELS)
def test_an_example_is_machine_code_without_spills(
    name: str, arch: str, made: dict[tuple[str, str], Made]
) -> None:
    one = made[name, arch]
    assert one.fact("wavefront_size") == EXECUTED[arch].lanes
    assert one.fact("private_segment_fixed_size") == 0, "no scratch"
    assert one.fact("vgpr_spill_count") == one.fact("sgpr_spill_count") == 0
    assert one.fact("group_segment_fixed_size") == one.listing.shared_bytes
    assert one.fact("max_flat_workgroup_size") == one.listing.kernel.threads
    assert not one.of(r"(flat|scratch|buffer)_(load|store)\w*"), "each access knows its memory"
    assert one.of(r"global_store\w*") > 0
    if name not in ("04 matrices", "05 f32"):
        assert one.of(FUSED) > 0
    in_background = arch == "gfx942" and name in ("07 buffered", "07 prefetched")
    if name in ("05 f32", "06 f32"):
        assert not one.of(READ_SHARED) + one.of(WRITTEN_SHARED) + one.of("s_barrier")
    else:
        assert one.of(READ_SHARED) > 0
        assert one.of("global_load_lds_dword" if in_background else WRITTEN_SHARED) > 0
        assert one.of(r"s_barrier\w*") > 0
    if "padded" not in name and name != "06 f32" and not in_background:
        assert one.of(GLOBAL_16) > 0, "16 bytes at a time"


def test_atoms_of_matrix_instructions_are_rows(made: dict[tuple[str, str], Made]) -> None:
    """An atom adds only its record and its builtin; all atoms share the rest of the text."""
    assert made["04 matrices", "gfx942"].of("v_mfma_f32_32x32x8_f16") > 0
    assert made["04 matrices", "gfx1151"].of("v_wmma_f32_16x16x16_f16") > 0
    for arch in EXECUTED:
        assert made["04 matrices", arch].of(r"ds_(read|load)_b(64|128)|ds_read2_b64") > 0


def test_sums_are_of_pairs_where_the_hardware_has_them(made: dict[tuple[str, str], Made]) -> None:
    assert made["06 f32", "gfx942"].of("v_pk_fma_f32") > 0
    assert made["06 f32", "gfx1151"].of(r"v_(dual_)?fmac_f32\w*|v_fma_f32") > 0


@pytest.mark.parametrize("arch", EXECUTED)
def test_a_barrier_leaves_the_prefetch_on_its_way(arch: str, made: dict[tuple[str, str], Made]) -> None:
    """The next tile's loads begin before the multiplies; only the stores after them wait for them."""
    parts = re.split(r"^\.LBB0_\d+:", made["04 f16", arch].assembly, flags=re.MULTILINE)
    loop = max(parts, key=lambda part: (part.count("s_barrier"), part.count("global_load"))).splitlines()

    def places(pattern: str) -> list[int]:
        return [at for at, line in enumerate(loop) if re.match(rf"\t({pattern})", line)]

    loads, sums, barriers = places(GLOBAL_16), places(FUSED), places("s_barrier")
    waits, stores = places("s_waitcnt.*vmcnt"), places(WRITTEN_SHARED)
    assert len(loads) == len(stores) >= 2
    assert len(barriers) == 2
    assert max(loads) < min(place for place in waits if place > max(loads))
    assert len([at for at in sums if max(loads) < at < min(waits)]) > len(sums) // 4
    assert max(sums) < barriers[0] < min(waits) < min(stores) < barriers[1]


@tw.kernel(A="M K", B="N K", C="M N")
def doubled_on_the_way(A, B, C, *, mma):
    """``C = 2A B^T``: the next tile of A is loaded before the multiply, and doubled in place after it."""
    sA, sB = tw.shared((32, 16), A.dtype), tw.shared((32, 16), B.dtype)
    spread = tw.blocked((32, 16), (32, 2))
    a, b = tw.fragment(spread, A.dtype), tw.fragment(spread, B.dtype)
    acc = tw.accumulator(mma)
    tw.copy(A.tile((32, 16), (0, 0)), a)
    tw.copy(B.tile((32, 16), (0, 0)), b)
    a.assign(a * 2.0)
    for k in tw.range(tw.ceil_div(A.shape[1], 16)):
        tw.barrier()
        tw.copy(a, sA)
        tw.copy(b, sB)
        tw.barrier()
        tw.copy(A.tile((32, 16), (0, k + 1)), a)
        tw.copy(B.tile((32, 16), (0, k + 1)), b)
        tw.mma(sA, sB, acc)
        a.assign(a * 2.0)
    tw.copy(acc, C.tile((32, 32), (0, 0)))


@pytest.mark.parametrize("arch", EXECUTED)
def test_what_changes_a_prefetched_tile_in_place_is_seen_in_the_next_turn(arch: str) -> None:
    atom = tw.atoms.fma(tw.f32, lanes=(EXECUTED[arch].lanes // 8, 8), each=(4, 4))
    mma = tw.TiledMma(atom, tile=(32, 32), warps=(64 // EXECUTED[arch].lanes, 1))
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((29, 55), (30, 55)))
    c = np.full((29, 30), np.nan, np.float32)
    with machines():
        assert doubled_on_the_way.bind(mma=mma)(a, b, c, target=arch).target == arch
    compare_gemm(2 * a, b.T, c, Accumulation.of(atom)).raise_if_wrong()


@pytest.mark.parametrize(("name", "arch"), [("02 f16", GFX942), ("05 f32", GFX1151)])
def test_golden(name: str, arch: Arch, golden: Callable[[str, str], None]) -> None:
    golden(emit(KERNELS[name](arch), arch).text, f"{name.replace(' ', '_')}_{arch.name}.hip")


@tw.kernel(X="M N")
def too_much(X):
    s = tw.shared((160, 128), tw.f32)
    tw.copy(X.tile((160, 128), (0, 0)), s, threads=1280)


def test_limits_are_those_of_the_architecture() -> None:
    matrix = tw.TensorSpec(tw.f32, 2, 1, (1, 1), (1, 1), 4, False)
    found = refusals(too_much.program.trace({"X": matrix}, {}, GFX942), GFX942)
    assert [one.message for one in found] == [
        "1280 threads per block; gfx942 has at most 1024",
        "81920 bytes of shared memory (s 81920); gfx942 has 65536",
    ]
    narrow = KERNELS["06 f32"](GFX1151)
    [found] = refusals(narrow, GFX942)
    assert found.message == "the kernel is written for warps of 32 lanes, gfx942 has 64"
    assert refusals(narrow, GFX1151) == []


@tw.kernel(X="M N", Y="M P", Z="M N")
def everything(X, Y, Z):
    """Row sums over lanes, special numbers, functions, and a barrier between accesses to a global array."""
    x = tw.load(X.tile((8, 64), (0, 0)).partition((1, 8)), other=-float("inf"))
    s = tw.shared((8, 64), tw.f32)
    tw.copy(tw.exp(x - tw.reduce_max(x, dim=1)), s)
    tw.warp_barrier()
    z = Z.tile((8, 64), (0, 0)).partition((1, 8))
    tw.copy(tw.load(s.partition((1, 8))) + tw.load(z), z)
    tw.barrier()
    y = tw.reduce_sum(tw.load(z), dim=1)
    tw.copy(tw.minimum(y, 3.0) // 2, Y.tile((8, 1), (0, 0)))


@pytest.mark.parametrize("arch", EXECUTED.values(), ids=EXECUTED)
def test_lanes_exchange_values_and_barriers_order_global_memory(arch: Arch) -> None:
    matrix = tw.TensorSpec(tw.f32, 2, 1, (1, 1), (1, 1), 4, False)
    kernel = everything.program.trace({"X": matrix, "Y": matrix, "Z": matrix}, {}, arch)
    assert violations(kernel) == []
    one = compiled(emit(kernel, arch), arch)
    assert "block_barrier();" in one.listing.text
    assert one.of(r"ds_bpermute_b32|ds_swizzle\w*|v_\w+_dpp|v_permlane\w+") > 0
    assert one.of(r"v_exp_f32\w*") > 0


@pytest.mark.parametrize("arch", EXECUTED.values(), ids=EXECUTED)
def test_blocks_signal_and_reduce(arch: Arch) -> None:
    """A split-K product whose blocks add in turn, and a sum into global memory by all blocks at once."""
    kernel = turnstile(arch)
    assert [*violations(kernel), *refusals(kernel, arch)] == []
    one = compiled(emit(kernel, arch), arch)
    assert "block_barrier();" in one.listing.text, "others read what this block wrote to global memory"
    assert f"if (tid < {arch.lanes}) await_counter(" in one.listing.text
    assert one.of(r"global_atomic_inc(_u32)?") == 1
    assert one.of("s_sleep") == 1
    assert one.fact("private_segment_fixed_size") == 0
    vector = tw.TensorSpec(tw.f32, 1, 0, (1,), (1,), 4, False)
    kernel = summed.program.trace({"X": vector, "Y": vector}, {}, arch)
    one = compiled(emit(kernel, arch), arch)
    assert one.of(r"global_atomic_add_f32|global_atomic_cmpswap\w*") > 0


@tw.kernel(X="N", Y="P")
def summed(X, Y):
    x = tw.load(X.tile((64,), (tw.block_index(tw.ceil_div(X.shape[0], 64)),)).partition((32,)))
    tw.copy(tw.reduce_sum(x, dim=0), Y.tile((1,), (0,)), reduction="add")


def test_the_table_has_the_rules_of_loads_into_shared_memory_and_of_turns_alone() -> None:
    """So a new target is a dialect, architectures and passes; errors name the operations that it lacks."""
    background = {(Copy, "async"), (AsyncCommit, ""), (AsyncWait, "")}
    assert set(vars(HIP_RULES)["_rules"]) == background | {(RoleBarrier, "")}
    with pytest.raises(MissingRuleError, match="target hip has no rule for operation mbarrier"):
        emit(_with_barrier(), GFX942)


def _with_barrier() -> tw.ir.Kernel:
    @tw.kernel(X="M N")
    def author(X):
        tw.hopper.mbarrier(1, arrivals=1)

    return author.program.trace({"X": tw.TensorSpec(tw.f32, 2, 1, (1, 1), (1, 1), 4, False)}, {}, GFX942)


def test_the_dialect_reserves_what_its_text_uses() -> None:
    assert {"block_barrier", "word_16", "fmaf", "tid", "shared_memory"} <= DIALECT.reserved
