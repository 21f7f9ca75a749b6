"""The model of an iteration's clocks, compared with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.instances.cost import Turn, cost_of

import tilewright as tw
from tilewright.arch import Arch
from tilewright.inspect.isa import Body, Conflicts, Isa, IsaKind, IsaLine, ListingLoop
from tilewright.targets.amd import GFX942, GFX1151

TURN = Turn(tile=(64, 64, 16), multiplied="f16", bytes=(2, 1), warps=4, band=2)
KINDS = [
    *(IsaKind.VECTOR, IsaKind.SHARED_STORE, IsaKind.BARRIER),
    *(IsaKind.SHARED_LOAD, IsaKind.MATRIX, IsaKind.MATRIX, IsaKind.WAIT, IsaKind.BARRIER),
    *(IsaKind.GLOBAL_LOAD, IsaKind.VECTOR),
]
"""A turn in two phases: the first goes on behind the last barrier."""


def isa(arch: Arch) -> Isa:
    wide = (IsaKind.SHARED_STORE, IsaKind.SHARED_LOAD, IsaKind.GLOBAL_LOAD)
    lines = tuple(
        IsaLine(at, "", "", kind, bytes=16 * (kind in wide), accesses=int(kind in wide))
        for at, kind in enumerate(KINDS, 1)
    )
    return Isa(arch, "k", Body(lines), (ListingLoop(lines, "again", 1, 1, ""),), {}, {})


def test_clocks_of_each_part() -> None:
    """gfx1151: 2 SIMDs; a clock has one vector instruction, 512 operations, and 128 bytes of LDS."""
    first, second = cost_of(isa(GFX1151), TURN).phases
    assert (first.matrix, first.vector, first.other) == (0, 2 * 4 / 2, 3 * 4 / 2)
    assert first.shared == 4 * 4, "16 bytes of 32 lanes take 4 passes, of each of 4 warps"
    assert first.clocks == 16
    assert second.matrix == 2 * 64 * 64 * 16 / 512 == 256
    assert (second.vector, second.other, second.shared) == (0, 3 * 4 / 2, 4 * 4)
    whole = cost_of(isa(GFX1151), TURN)
    assert (whole.whole.matrix, whole.whole.vector, whole.whole.shared) == (256, 4, 32)
    assert (sum(one.clocks for one in whole.phases), whole.whole.clocks) == (16 + 256, 256 + 4)
    assert whole.alone == whole.overlapped == whole.memory > 16 + 256
    assert whole.shares == (256 / whole.memory, 256 / whole.memory)


def test_matrix_units_of_cdna_work_beside_vector_units() -> None:
    """gfx942: 4 SIMDs; an instruction of 64 lanes takes four clocks; a clock has 2048 operations."""
    found = cost_of(isa(GFX942), TURN)
    assert (found.whole.matrix, found.whole.vector, found.whole.other) == (64, 2 * 4, 6 * 4)
    assert found.whole.shared == 2 * 8 * 4, "16 bytes of 64 lanes take 8 passes"
    assert found.overlapped == 64
    assert found.alone == 32 + 64


def test_groups_that_take_turns_are_each_in_another_phase() -> None:
    """Half of the warps load while the other half multiplies, and then they swap."""
    found = cost_of(isa(GFX942), replace(TURN, groups=2))
    assert found.phases == cost_of(isa(GFX942), TURN).phases
    assert found.alone == 2 * max(64 / 2, 64 / 2) == found.overlapped == 64


def test_conflicts_and_memory_are_counted() -> None:
    found = cost_of(isa(GFX1151), TURN, {2: Conflicts(accesses=10, passes=640, fewest=40)})
    assert found.phases[0].shared == 64 * 4
    assert found.alone == 64 * 4 + 256 > found.memory
    # 2 rows of 20 columns of tiles, on 40 multiprocessors at 2900 MHz, of 256 GB/s
    moved = (2 * 64 * 2 + 20 * 64 * 1) * 16
    assert found.memory == pytest.approx(moved * 2.9 / 256)
    slow = Turn(**{**TURN.__dict__, "bytes": (64, 64)})
    assert cost_of(isa(GFX1151), slow).overlapped == cost_of(isa(GFX1151), slow).memory


def test_what_no_rate_is_known_of_is_refused() -> None:
    with pytest.raises(tw.LaunchError, match="no rate of f8e4m3 is known for gfx1151; known: f16, bf16, i8"):
        cost_of(isa(GFX1151), Turn((64, 64, 16), "f8e4m3", (1, 1), 4))
