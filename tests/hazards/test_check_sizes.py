"""`check_sizes` tries sizes by itself: kernels that are wrong only at some sizes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference import Kind

from .kernels import basic_gemm

GEMM = tw.kernel(A="M K", B="N K", C="M N")(basic_gemm)


def like(*shape: int, dtype: str = "f32", order: str = "C") -> object:
    return tw.like(dtype, *shape, order=order)


@tw.kernel(X="M N", Y="M N")
def ring(X, Y, *, stages, ahead, drain=True, edge=True):
    """Tiles along N pass through a ring of stages; ``ahead`` of them are copied in the background."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 16))
    held = tw.shared((stages, 16, 32), X.dtype)
    count = tw.ceil_div(X.shape[1], 32) if edge else X.shape[1] // 32

    def start(n):
        with tw.when(n < count):
            tw.copy_async(X.tile((16, 32), (m, n)), held[n % stages], threads=64)
        tw.async_commit()

    for n in tw.unroll(ahead):
        start(n)
    for n in tw.range(count):
        tw.async_wait(ahead - 1 if drain else ahead)
        tw.barrier()
        start(n + ahead)
        tw.copy(held[n % stages], Y.tile((16, 32), (m, n)), threads=(2, 32))


def bad(report) -> set[int]:
    return {dict(sizes)["N"] for sizes, one in report.reports if not one.is_clean}


def test_a_right_ring_is_clean_at_every_size() -> None:
    report = ring.check_sizes(like(40, 70), like(40, 70), stages=3, ahead=2)
    assert report.is_clean, report
    tried = [dict(sizes) for sizes, _ in report.reports]
    turns = {-(-sizes["N"] // 32) for sizes in tried}
    assert turns >= {0, 1, 2, 3, 4, 7}
    assert any(sizes["N"] % 32 and sizes["M"] % 16 for sizes in tried)
    assert {-(-sizes["M"] // 16) for sizes in tried} == {1, 2}
    assert report.idle == report.short == ()
    report.raise_if_any()


def test_a_ring_without_room_is_found_once_it_comes_round() -> None:
    report = ring.check_sizes(like(16, 32), like(16, 32), stages=2, ahead=2)
    assert not report.is_clean
    assert min(bad(report)) > 2 * 32
    with pytest.raises(tw.HazardError, match=r"at M = 16, N = \d+"):
        report.raise_if_any()
    assert ring.check(*(np.zeros((16, 32), np.float32),) * 2, stages=2, ahead=2, partial="Y").is_clean


def test_elements_behind_the_last_whole_tile_are_found_at_ragged_sizes() -> None:
    report = ring.check_sizes(like(16, 64), like(16, 64), stages=3, ahead=2, edge=False)
    assert {finding.kind for finding in report.findings} == {Kind.UNCOVERED}
    assert all(n % 32 for n in bad(report))


@tw.kernel(X="N", Y="N")
def counted(X, Y, *, stages):
    """The number of iterations has a name."""
    held = tw.shared((stages, 64), X.dtype)
    count = tw.let(tw.ceil_div(X.shape[0], 64))
    for n in tw.range(count):
        tw.copy(X.tile((64,), (n,)), held[n % stages], threads=64)
        tw.barrier()
        tw.copy(held[n % stages], Y.tile((64,), (n,)), threads=32)


def test_turns_that_are_counted_by_name_are_varied_too() -> None:
    report = counted.check_sizes(like(64), like(64), stages=2)
    assert {-(-dict(sizes)["N"] // 64) for sizes, _ in report.reports} >= {0, 1, 2, 3, 5}
    assert report.short == ()


def test_a_finding_is_told_once_with_all_sizes_that_show_it() -> None:
    report = ring.check_sizes(like(16, 64), like(16, 64), stages=3, ahead=2, drain=False)
    places = [(f.kind, f.tensor, str(f.earlier and f.earlier.op.location)) for f in report.findings]
    assert len(places) == len(set(places))
    assert str(report).count("  at M = ") == len(places)


def test_sizes_that_a_kernel_does_not_take_are_rounded_and_told() -> None:
    """Vectors of 8 elements need rows of a multiple of 8."""
    gemm = GEMM.bind(
        tile=(32, 32, 16),
        threads=64,
        mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(1, 2), repeats=(2, 2)),
        vector=8,
    )
    report = gemm.check_sizes(*(like(64, 64, dtype="f16"),) * 3)
    assert report.is_clean, report
    assert any("vector width" in why for _, why in report.refused)
    ragged = {dict(sizes)["K"] for sizes, _ in report.reports if dict(sizes)["K"] % 16}
    assert ragged
    assert all(k % 8 == 0 for k in ragged)


def test_columns_stay_columns_and_extents_that_are_asked_for_are_taken() -> None:
    seen = []

    @tw.kernel(X="M N", Y="M N", n=int)
    def copied(X, Y, n):
        m = tw.block_index(tw.ceil_div(X.shape[0], 32))
        seen.append(X.unit_dim)
        tw.copy(X.tile((32, 8), (m, n)), Y.tile((32, 8), (m, n)), threads=32)

    specimens = (like(64, 8, order="F"), like(64, 8, order="F"))
    report = copied.check_sizes(*specimens, 0, sizes={"N": 8, "M": (32, 33, 1)})
    assert [dict(sizes) for sizes, _ in report.reports] == [{"M": m, "N": 8} for m in (32, 33, 1)]
    assert 0 in seen


def test_no_further_size_is_begun_when_time_is_up() -> None:
    report = ring.check_sizes(like(16, 64), like(16, 64), stages=3, ahead=2, seconds=0)
    assert not report.reports
    assert not report.is_clean, "nothing ran"
    assert report.left_out
    assert "not tried, as time was up" in str(report)


# ---------------------------------------------------------------- what the kernel says of its sizes


def shown(kernel, *arguments, **how):
    """Report right and wrong runs, and the sizes with findings."""
    report = kernel.check_sizes(*arguments, **how)
    return report, [dict(sizes) for sizes, one in report.reports if not one.is_clean]


@tw.kernel(X="M N", Y="M N")
def by_tiles(X, Y, *, condition=None):
    """Copy a tile through shared memory; the barrier may be under a condition on the extents."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 8))
    held = tw.shared((8, 32), X.dtype)
    tw.copy(X.tile((8, 32), (m, 0)), held, threads=64)
    if condition is None:
        tw.barrier()
    else:
        with tw.when(condition(*X.shape)):
            tw.barrier()
    tw.copy(held, Y.tile((8, 32), (m, 0)), threads=(8, 8))


THRESHOLDS = {
    "below a constant": (lambda m, n: m <= 700, lambda size: size["M"] > 700),
    "above a constant": (lambda m, n: m > 3, lambda size: 0 < size["M"] <= 3),
    "all but one": (lambda m, n: (m < 555) | (m > 555), lambda size: size["M"] == 555),
    "of the columns": (lambda m, n: n < 20, lambda size: size["N"] >= 20 and size["M"]),
    "of a product": (lambda m, n: m * n <= 9000, lambda size: size["M"] * size["N"] > 9000),
    "by tiles": (lambda m, n: tw.ceil_div(m, 8) <= 40, lambda size: size["M"] > 320),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_both_sides_of_a_comparison_of_extents_with_a_constant_are_tried(name) -> None:
    condition, is_wrong = THRESHOLDS[name]
    report, wrong = shown(by_tiles, like(64, 32), like(64, 32), condition=condition, partial="Y")
    assert wrong, report
    assert all(map(is_wrong, wrong)), wrong
    assert "a condition at " in str(report)


def test_a_kernel_without_conditions_is_tried_as_before() -> None:
    report, wrong = shown(by_tiles, like(64, 32), like(64, 32), partial="Y")
    assert not wrong
    assert len(report.reports) < 10
    assert "(2 blocks along axis 0)" in str(report)


@tw.kernel(X="M N", Y="M N")
def in_one_run(X, Y, *, blocks, ends=True):
    """A fixed number of blocks divide the tiles of both dimensions, which are numbered together."""
    block = tw.block_index(blocks)
    held = tw.shared((8, 32), X.dtype)
    rows, columns = tw.ceil_div(X.shape[0], 8), tw.ceil_div(X.shape[1], 32)
    for turn in tw.range(tw.ceil_div(rows * columns - block, blocks)):
        tile = tw.let(turn * blocks + block)
        at = tw.let(tile // columns), tw.let(tile % columns)
        tw.copy(X.tile((8, 32), at), held, threads=64)
        tw.barrier()
        tw.copy(held, Y.tile((8, 32), at), threads=(8, 8))
        if ends:
            tw.barrier()


def test_sizes_of_dimensions_that_count_together_are_not_0_at_once() -> None:
    report, wrong = shown(in_one_run, like(16, 64), like(16, 64), blocks=3)
    assert not wrong
    assert sum(dict(sizes)["M"] * dict(sizes)["N"] > 0 for sizes, _ in report.reports) > 5
    assert shown(in_one_run, like(16, 64), like(16, 64), blocks=3, ends=False)[1]


def test_a_condition_that_no_size_reaches_is_named() -> None:
    report, wrong = shown(
        by_tiles, like(64, 32), like(64, 32), condition=lambda m, n: m <= 10**6, partial="Y"
    )
    assert not wrong
    (where,) = report.one_sided
    assert f"true at all of them: the condition at {where}" in str(report)


@tw.kernel(X="M N", Y="M N")
def by_turns(X, Y, *, condition=None):
    """Copy one tile after another through shared memory; some iterations lack the first barrier."""
    held = tw.shared((8, 32), X.dtype)
    turns = tw.ceil_div(X.shape[0], 8)
    for turn in tw.range(turns):
        tw.copy(X.tile((8, 32), (turn, 0)), held, threads=64)
        if condition is None:
            tw.barrier()
        else:
            with tw.when(condition(turn, turns)):
                tw.barrier()
        tw.copy(held, Y.tile((8, 32), (turn, 0)), threads=(8, 8))
        tw.barrier()


@pytest.mark.parametrize(
    ("condition", "first"),
    [
        (None, None),
        (lambda turn, turns: turn < 9, 10),
        (lambda turn, turns: (turn < 12) | (turn > 12), 13),
        (lambda turn, turns: turn + 7 > turns - 7, 14),
        (lambda turn, turns: tw.minimum(turn, 20) < 20, 21),
    ],
)
def test_turns_at_which_a_condition_changes_are_tried(condition, first) -> None:
    report, wrong = shown(by_turns, like(24, 32), like(24, 32), condition=condition, partial="Y")
    assert bool(wrong) == (first is not None), report
    assert all(-(-size["M"] // 8) >= first for size in wrong)
    assert not wrong or min(-(-size["M"] // 8) for size in wrong) == first


@tw.kernel(X="N", Y="N")
def named_slots(X, Y, *, slots, room):
    """The slot of a ring has a name: ``slots`` are used in turn, and the ring holds ``room`` of them."""
    held = tw.shared((10, 32), X.dtype)
    for turn in tw.range(tw.ceil_div(X.shape[0], 32)):
        slot = tw.let(turn % slots)
        tw.copy(X.tile((32,), (turn,)), held[slot], threads=32)
        with tw.when(turn % room == room - 1):
            tw.barrier()
        tw.copy(held[slot], Y.tile((32,), (turn,)), threads=32)


def test_a_ring_whose_slot_has_a_name_comes_round() -> None:
    report, _ = shown(named_slots, like(64), like(64), slots=10, room=10)
    assert {-(-dict(sizes)["N"] // 32) for sizes, _ in report.reports} >= {0, 1, 9, 10, 11, 21}
    assert report.short == ()


@tw.kernel(X="M N", Y="M N", rows=int)
def by_number(X, Y, rows, *, ends, way="turns"):
    """Copy as many tiles as a number says; without ``ends`` the next tile overwrites the last one."""
    held = tw.shared((8, 32), X.dtype)
    if way == "turns":
        for turn in tw.range(rows):
            tw.copy(X.tile((8, 32), (turn, 0)), held, threads=64)
            tw.barrier()
            tw.copy(held, Y.tile((8, 32), (turn, 0)), threads=(8, 8))
            if ends:
                tw.barrier()
        return
    tw.copy(X.tile((8, 32), (0, 0)), held, threads=64)
    if ends:
        tw.barrier()
    else:
        with tw.when(rows <= 6):
            tw.barrier()
    tw.copy(held, Y.tile((8, 32), (0, 0)), threads=(8, 8))


@pytest.mark.parametrize(("way", "least"), [("turns", 2), ("condition", 7)])
def test_an_integer_that_decides_what_runs_is_varied(way, least) -> None:
    report, wrong = shown(by_number, like(8, 32), like(8, 32), 1, ends=False, way=way)
    assert min(size["rows"] for size in wrong) == least
    assert {dict(sizes)["rows"] for sizes, _ in report.reports} >= {0, 1, 2}
    # Fewer turns leave elements as they are, which nobody has asked for.
    assert shown(by_number, like(8, 32), like(8, 32), 1, ends=True, way=way)[0].is_clean
    asked, _ = shown(by_number, like(8, 32), like(8, 32), 1, ends=False, way=way, sizes={"rows": 1})
    assert {dict(sizes)["rows"] for sizes, _ in asked.reports} == {1}


@tw.kernel(X="M N", Y="M N", parts=int)
def in_parts(X, Y, parts):
    """An integer gives the number of blocks of the grid; 0 causes a division by zero."""
    block = tw.block_index(parts)
    each = tw.ceil_div(tw.ceil_div(X.shape[0], 8), parts)
    for turn in tw.range(each):
        tw.copy(
            X.tile((8, 32), (block * each + turn, 0)), Y.tile((8, 32), (block * each + turn, 0)), threads=64
        )


def test_an_integer_that_a_kernel_is_not_written_for_is_no_finding() -> None:
    report, wrong = shown(in_parts, like(24, 32), like(24, 32), 3)
    assert not wrong, report
    assert {dict(sizes)["parts"] for sizes, _ in report.reports} >= {1, 2, 3, 4}
    assert all(dict(sizes)["parts"] == 0 for sizes, _ in report.refused)


@tw.kernel(X="M N", Y="M N")
def all_wait(X, Y, *, limit=None):
    """Every block waits for all blocks, or for the blocks before it."""
    blocks = tw.ceil_div(X.shape[0], 8)
    block, came, left = tw.block_index(blocks), tw.counter(1), tw.counter(1)
    tw.copy(X.tile((8, 32), (block, 0)), Y.tile((8, 32), (block, 0)), threads=64)
    if limit is None:
        tw.await_(came[0], block)
        tw.signal(came[0])
    else:
        tw.signal(came[0])
        tw.await_(came[0], blocks)
    with tw.when(tw.ticket(left[0], of=blocks) == blocks - 1):
        tw.reset(came[0])


def test_more_blocks_than_are_resident_are_tried_where_blocks_wait() -> None:
    report, wrong = shown(all_wait, like(32, 32), like(32, 32), limit=132)
    assert {finding.kind for finding in report.findings} == {Kind.RESIDENT}
    assert [-(-size["M"] // 8) for size in wrong] == [133]
    report, wrong = shown(all_wait, like(32, 32), like(32, 32))
    assert not wrong
    assert max(-(-dict(sizes)["M"] // 8) for sizes, _ in report.reports) == 133


def test_how_many_are_resident_is_the_architectures() -> None:
    """An A100 has 108 multiprocessors."""
    how = {"limit": 108, "target": "cuda", "arch": "sm_80"}
    report, wrong = shown(all_wait, like(32, 32), like(32, 32), **how)
    assert [-(-size["M"] // 8) for size in wrong] == [109], report
    x = np.zeros((8 * 109, 32), np.float32)
    assert {f.kind for f in all_wait.check(x, x.copy(), **how).findings} == {Kind.RESIDENT}
    assert all_wait.check(x, x.copy(), limit=132).is_clean


# ---------------------------------------------------------------- names that check has too


@tw.kernel(X="N", Y="N")
def in_blocks(X, Y, *, blocks, lanes=32):
    block = tw.block_index(blocks)
    tw.copy(X.tile((lanes,), (block,)), Y.tile((lanes,), (block,)), threads=32)


def test_a_constant_with_the_name_of_an_option_is_the_kernels() -> None:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    assert in_blocks.check(x, y, blocks=2).is_clean
    assert [f.kind for f in in_blocks.check(x, y, blocks=1).findings] == [Kind.UNCOVERED]
    assert in_blocks.bind(blocks=2).check(x, y, blocks=[(1,)]).blocks == 1
    assert not in_blocks.check_sizes(like(64), like(64), blocks=2, partial="Y").findings


@tw.kernel(outputs="N", blocks=int)
def named_alike(outputs, blocks):
    block = tw.block_index(blocks)
    tw.copy(tw.fragment(tw.blocked((32,), (32,)), outputs.dtype, 1), outputs.tile((32,), (block,)))


def test_a_parameter_with_the_name_of_an_option_is_given_by_its_position() -> None:
    y = np.zeros(64, np.float32)
    assert named_alike.check(y, 2).is_clean
    assert named_alike.check(y, 2, outputs="outputs", blocks="all").is_clean
    for call in (
        lambda: named_alike.check(y, blocks=2),
        lambda: named_alike.check(outputs=y, blocks=2),
        lambda: named_alike.bind().check(y, blocks=2),
        lambda: named_alike.check_sizes(y, blocks=2),
    ):
        with pytest.raises(tw.LaunchError, match="nearest legal choice: give the parameter by its position"):
            call()


@pytest.mark.parametrize("sizes", [{"Q": 3}, {"N": -1}, {"N": []}, {"N": 1.5}, 7])
def test_extents_of_no_dimension_are_refused(sizes) -> None:
    with pytest.raises(tw.LaunchError, match="nearest legal choice: extents of M, N"):
        ring.check_sizes(like(16, 64), like(16, 64), stages=3, ahead=2, sizes=sizes)


def test_a_kernel_that_is_illegal_at_every_size_is_refused() -> None:
    with pytest.raises(tw.LegalityError, match="threads x slice"):
        GEMM.check_sizes(
            *(like(64, 64, dtype="f16"),) * 3,
            tile=(32, 32, 16),
            threads=(5, 7),
            mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(1, 2), repeats=(2, 2)),
            vector=1,
        )
