"""Schedules chosen on Hopper for decoded operands are legal, use bulk copies, and need one kernel."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tilewright.schedule.choice import choose, proposals
from tilewright.schedule.legality import reasons
from tilewright.schedule.question import Question
from tilewright.schedule.wgmma_forms import WgmmaForm

from .small_flows import decoded, shifted

SHAPES = [(1, 4096, 4096), (16, 14336, 4096), (64, 4096, 4096), (256, 4096, 4096), (4096, 4096, 4096)]


def arrays(shape: tuple[int, int, int], kind: str, wide: str = "f16", order: Any = "C") -> list[Any]:
    m, n, k = shape
    return [tw.like(wide, m, k), tw.like(kind, n, k, order=order), tw.like(wide, m, n)]


def question(kernel: Any, given: list[Any], arch: str = "sm_90a") -> Question:
    found = kernel.bind().question(*given, target="cuda", arch=arch)
    assert found is not None
    return found


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_that_is_proposed_in_bulk_is_legal(shape: tuple[int, int, int], order: str) -> None:
    asked = question(decoded, arrays(shape, "f8e4m3", order=order))
    found = [one for one in proposals(asked) if one.schedule.staging == "tma"]
    assert found
    assert found[0].schedule == choose(asked)
    for one in found:
        assert one.schedule.swap_ab
        assert one.schedule.atom.asynchronous
        assert not reasons(one.schedule, asked.form, asked.specs, asked.arch)
        assert one.estimate >= asked.memory_us


def test_few_rows_take_a_tile_of_few_rows() -> None:
    for rows in (1, 8, 16):
        assert choose(question(decoded, arrays((rows, 4096, 4096), "i8"))).tile[1] < 64


@pytest.mark.parametrize(("rows", "columns"), [(312, 160), (240, 120), (520, 176), (472, 120)])
def test_columns_are_divided_evenly_among_the_tiles(rows: int, columns: int) -> None:
    asked = question(decoded, arrays((rows, 4096, 14336 if rows == 312 else 5120), "f8e4m3"))
    tile = choose(asked).tile
    tiles = -(-rows // tile[1])
    assert tile[1] == -(-rows // tiles // 8) * 8
    assert WgmmaForm(64, columns + 8, 2, 4, 1).narrowed(rows).columns == columns


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_few_rows_have_few_short_stages_and_copies_of_the_loop(rows: int) -> None:
    chosen = choose(question(decoded, arrays((rows, 4096, 4096), "f8e4m3")))
    assert (chosen.tile[0], chosen.block_k, chosen.unroll, chosen.epilogue) == (64, 256, 4, "direct")
    assert chosen.stages <= 6
    assert (chosen.split_k, chosen.reduction) == (2, "cluster")


def test_many_rows_go_through_two_narrow_buffers() -> None:
    chosen = choose(question(decoded, arrays((4096, 4096, 4096), "f8e4m3")))
    assert (chosen.buffers, chosen.unroll, chosen.epilogue) == (2, 2, "staged")
    turned = [*arrays((4096, 4096, 4096), "f8e4m3")[:2], tw.like("f16", 4096, 4096, order="F")]
    assert choose(question(decoded, turned)).buffers == 1


def test_an_operand_a_is_decoded_where_it_is() -> None:
    given = [tw.like("f16", 512, 512) for _ in range(3)]
    chosen = choose(question(shifted, given))
    assert (chosen.staging, chosen.swap_ab) == ("tma", False)


def test_narrow_bytes_count_as_such() -> None:
    wide, narrow = (question(decoded, arrays((16, 4096, 4096), kind)) for kind in ("f16", "f8e5m2"))
    assert 1.9 < wide.memory_us / narrow.memory_us < 2.0


@pytest.mark.parametrize(
    ("shape", "kind", "arch"),
    [((64, 100, 100), "i8", "sm_90a"), ((256, 4096, 4096), "f8e4m3", "sm_80")],
    ids=str,
)
def test_what_bulk_copies_do_not_carry_is_decoded_between_other_multiplications(
    shape: tuple[int, int, int], kind: str, arch: str
) -> None:
    assert choose(question(decoded, arrays(shape, kind), arch)).staging == "fragments"


@pytest.mark.parametrize(
    ("shape", "kind", "wide", "order"),
    [
        ((16, 4096, 4096), "f8e4m3", "f16", "C"),
        ((4096, 4096, 4096), "i8", "bf16", "C"),
        ((4096, 4096, 4096), "i8", "bf16", "F"),
        ((4096, 4096, 4096), "f8e5m2", "f16", "F"),
        ((240, 5120, 27648), "f8e4m3", "f16", "C"),  # K in parts
    ],
    ids=str,
)
def test_nothing_spills(shape: tuple[int, int, int], kind: str, wide: str, order: str) -> None:
    made = decoded.compile(*arrays(shape, kind, wide, order), target="cuda", arch="sm_90a")
    assert made.schedule is not None
    assert made.schedule.staging == "tma"
    assert made.resources["spill_store_bytes"] == 0
