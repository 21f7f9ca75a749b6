"""Copies in the background, straight into shared memory: listings are executed and read."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.amdgcn import MissingWaitError
from tilewright.arch import Arch
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.inspect.isa import IsaKind, execute_listing, read_isa
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import AsyncCommit, AsyncWait
from tilewright.ops.products import plain
from tilewright.runtime.kernel import Bound
from tilewright.targets.amd import GFX942, GFX950, GFX1151
from tilewright.targets.hip.emit import emit, lower
from tilewright.targets.matrix_cores import nearest

from .examples import KERNELS
from .executed import launched

pytestmark = pytest.mark.in_turns(3)


@functools.cache
def ring(dtype: tw.DType, stages: int, epilogue: str = "direct", **more: Any) -> Bound:
    """A product in tiles of 64 x 64 by 64 bytes, loaded through a ring in shared memory."""
    atom = nearest(dtype, tw.f32, GFX942.features)
    assert atom is not None
    tile = (64, 64, 64 // dtype.bytes)
    schedule = tw.Schedule(atom, tile, (2, 2), stages=stages, staging="cp_async", epilogue=epilogue, **more)
    return plain(0).bind(precision="exact", schedule=schedule)


def posed(dtype: tw.DType, m: int, n: int, k: int) -> dict[str, Any]:
    """Return random A and B, both along K, and a result of NaN."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((rows, k)).astype(dtype.numpy) for rows in (m, n))
    return {"A": a, "B": b.T, "D": np.full((m, n), np.nan, dtype.numpy)}


CASES = [
    (tw.f16, 3, (128, 128, 96), "staged"),
    (tw.f16, 3, (70, 130, 72), "direct"),
    (tw.f16, 2, (70, 130, 72), "staged"),
    (tw.f32, 3, (70, 99, 41), "direct"),
    (tw.f32, 2, (128, 128, 48), "direct"),
]


@pytest.mark.parametrize(("dtype", "stages", "shape", "epilogue"), CASES, ids=str)
def test_products_through_a_ring(
    dtype: tw.DType, stages: int, shape: tuple[int, int, int], epilogue: str
) -> None:
    """No tile passes through registers, and the next loads stay in flight after the wait for this tile.

    A result that is stored through shared memory uses the memory of the ring.
    """
    arrays = posed(dtype, *shape)
    made, _ = launched(ring(dtype, stages, epilogue), "gfx942", arrays)
    assert made.schedule is not None
    assert made.resources["shared_bytes"] == stages * 2 * 64 * 64
    compare_gemm(*arrays.values(), Accumulation.of(made.schedule.atom)).raise_if_wrong()
    isa = read_isa(made.assembly)
    loop = isa.main
    loads = 2 * 64 * 64 // 256 // 4
    assert loop.mix[IsaKind.SHARED_STORE] == 0
    assert loop.mix[IsaKind.GLOBAL_LOAD] == 0
    assert loop.mnemonics["global_load_lds_dword"] == loop.mix[IsaKind.TO_SHARED] == loads
    assert loop.widths(IsaKind.SHARED_LOAD) == {16: loop.mix[IsaKind.SHARED_LOAD]}
    assert loop.mnemonics["s_barrier"] == 1
    waits = [line.text for line in loop.lines if "vmcnt" in line.text]
    assert [re.findall(r"vmcnt\((\d+)\)", wait) for wait in waits] == [[str((stages - 2) * loads)]]
    assert isa.resources["spilled_registers"] == isa.resources["spilled_scalar_registers"] == 0


def test_blocks_that_fill_the_ring_again() -> None:
    """Three blocks share the steps of nine tiles: a block computes parts of two tiles."""
    arrays = posed(tw.f16, 130, 130, 72)
    made, _ = launched(ring(tw.f16, 3, split_k="stream", blocks=3), "gfx942", arrays)
    assert made.schedule is not None
    compare_gemm(*arrays.values(), Accumulation.of(made.schedule.atom)).raise_if_wrong()
    assert read_isa(made.assembly).main.mnemonics["global_load_lds_dword"] == 8


def test_a_weaker_wait_is_found() -> None:
    """If a wait leaves one more load under way, that load may be incomplete at the barrier."""
    arrays = posed(tw.f16, 70, 130, 72)
    made, _ = launched(ring(tw.f16, 3), "gfx942", arrays)
    weaker = made.assembly.replace("s_waitcnt vmcnt(8)", "s_waitcnt vmcnt(9)")
    assert weaker != made.assembly
    with pytest.raises(MissingWaitError, match="global_load_lds_dword"):
        execute_listing(replace(made, assembly=weaker), arrays)


def test_the_latest_hardware_loads_16_bytes() -> None:
    made = ring(tw.f16, 3).compile(**posed(tw.f16, 128, 128, 96), target="hip", arch="gfx950")
    loop = read_isa(made.assembly).main
    assert loop.mnemonics["global_load_lds_dwordx4"] == 2
    assert loop.mix[IsaKind.TO_SHARED] == 2
    assert loop.mix[IsaKind.GLOBAL_LOAD] == 0
    assert loop.mix[IsaKind.SHARED_STORE] == 0
    assert any("vmcnt(2)" in line.text for line in loop.lines)


# ---------------------------------------------------------------- what is copied at once


def notes(kernel: Kernel, arch: Arch) -> list[str]:
    """Return the reasons for ordinary copies; if only some are ordinary, check the waits for the others."""
    lowered, said = lower(kernel, arch)
    assert not [op for op in lowered.walk() if isinstance(op, AsyncCommit | AsyncWait)]
    return [note for note in said if "synchronously" in note]


def test_where_there_is_no_such_load_tiles_are_copied_at_once() -> None:
    found = notes(KERNELS["07 prefetched"](GFX1151), GFX1151)
    reason = "is copied synchronously: gfx1151 has no asynchronous copies"
    assert found == [f"A -> sA {reason}", f"B -> sB {reason}"]


@tw.kernel(X="M N", Y="M N")
def through_shared(X, Y, *, pitch, dtype, meet):
    """Copy a tile through shared memory; threads read what they copied themselves."""
    held = tw.shared((16, 32), dtype, layout=tw.Layout((16, 32), (pitch, 1)), name="held")
    tw.copy_async(X.tile((16, 32), (0, 0)), held, threads=64)
    tw.async_commit()
    tw.async_wait()
    if meet:
        tw.barrier()
    tw.copy(held, Y.tile((16, 32), (0, 0)), threads=64)


def traced(dtype: tw.DType, *, pitch: int = 32, meet: bool = True, unit: int = 16) -> Kernel:
    matrix = tw.TensorSpec(dtype, 2, 1, (unit, unit), (unit, 1), dtype.bytes * unit, False)
    constants = {"pitch": pitch, "dtype": dtype, "meet": meet}
    return through_shared.program.trace({"X": matrix, "Y": matrix}, constants, GFX942)


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (traced(tw.f32, pitch=36), "its tile does not lie in shared memory without gaps"),
        (traced(tw.f16, unit=1), "gfx942 loads 4 bytes at a time into shared memory, and no access"),
        (traced(tw.f64), "gfx942 loads 4 bytes at a time into shared memory, and no access"),
        (traced(tw.f32, meet=False), "there is no barrier where held, written by copy_async"),
    ],
)
def test_what_cannot_be_loaded_so_says_why(kernel: Kernel, why: str) -> None:
    [note] = notes(kernel, GFX942)
    assert note.startswith(f"X -> held is copied synchronously: {why}")


def test_what_can_be_loaded_says_nothing() -> None:
    for dtype, arch, width in ((tw.f32, GFX942, 4), (tw.f64, GFX950, 16), (tw.i8, GFX942, 4)):
        listing = emit(traced(dtype), arch)
        assert f"load_to_shared_{width}(" in listing.text
        assert not [note for note in listing.notes if "synchronously" in note]


# ---------------------------------------------------------------- what may be under way


@tw.kernel(X="M N", Y="M N")
def uneven(X, Y, *, tail):
    """A ring has fewer loads in the loop than before it; some of the former are certain to run."""
    held = tw.shared((3, 64, 32), tw.f32, name="held")
    for stage in tw.unroll(2):
        for part in tw.unroll(2):
            tw.copy_async(X.tile((32, 32), (stage, part)), held[stage].tile((32, 32), (part, 0)), threads=256)
        tw.async_commit()
    for k in tw.range(X.shape[0] // 32):
        tw.async_wait(1)
        tw.barrier()
        tw.copy_async(X.tile((32, 32), (k + 2, 0)), held[(k + 2) % 3].tile((32, 32), (0, 0)), threads=256)
        if tail:
            with tw.when(k < 3):
                tw.copy_async(X.tile((32, 32), (k, 1)), held[(k + 2) % 3].tile((32, 32), (1, 0)), threads=256)
        tw.async_commit()
    tw.async_wait(0)
    tw.barrier()
    tw.copy(held[0], Y.tile((64, 32), (0, 0)), threads=256)


@pytest.mark.parametrize("tail", [False, True])
def test_loads_that_certainly_began_are_counted(tail: bool) -> None:
    """Each thread begins 8 loads before the loop and 4 in it; loads under a condition are not certain."""
    matrix = tw.TensorSpec(tw.f32, 2, 1, (16, 16), (16, 1), 16, False)
    kernel = uneven.program.trace({"X": matrix, "Y": matrix}, {"tail": tail}, GFX942)
    lowered, _ = lower(kernel, GFX942)
    waits = [op.accesses for op in lowered.walk() if isinstance(op, AsyncWait)]
    assert waits == [4, 0]
