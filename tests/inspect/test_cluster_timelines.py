"""Timelines of kernels in clusters, and of kernels with number arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.errors import LaunchError
from tilewright.inspect.draw import draw_timeline
from tilewright.inspect.draw.timelines import slot_rows, warp_rows
from tilewright.inspect.from_files import from_file
from tilewright.inspect.subject import Subject
from tilewright.inspect.timeline import Event, Timeline

from .pictures import check_picture

ROOT = Path(__file__).parents[2]
STAGES = 2


def gemm(cluster: tuple[int, int], steps: int, block: tuple[int, ...] | None = None) -> Timeline:
    """One cluster of the Hopper GEMM, with a tile of 128 x 64 for each block."""
    given = {"mma": "tw.TiledMma(tw.atoms.wgmma(tw.bf16, 64))", "buffers": 1, "group": 1}
    given |= {"stages": STAGES, "cluster": cluster, "blocks": cluster[0] * cluster[1]}
    constants = [f"{name}={value}" for name, value in given.items()]
    shape = f"M={128 * cluster[0]},N={64 * cluster[1]},K={64 * steps}"
    where = f"{ROOT / 'tests' / 'hazards' / 'clusters.py'}:cluster_gemm"
    return from_file(where, "bf16", shape, constants).timeline(block)


def of(made: Timeline, block: int, agent: str, kind: str = "") -> list[Event]:
    return [e for e in made.events if (e.block, e.agent) == (block, agent) and kind in ("", e.kind)]


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)], ids=str)
def test_blocks_multiply_what_all_of_them_loaded_and_load_what_all_have_multiplied(cluster) -> None:
    across, along = cluster
    steps = 4  # at most 256 of K are run
    made = gemm(cluster, steps)
    blocks = range(across * along)
    assert len(made.blocks) == len(blocks)
    loads = [event for event in made.events if event.agent == "TMA loads"]
    multiplies = {rank: [of(made, rank, f"MMA unit {unit}") for unit in (4, 8)] for rank in blocks}
    for rank in blocks:
        assert len(of(made, rank, "TMA loads")) == 2 * steps
        assert [len(unit) for unit in multiplies[rank]] == [steps, steps]
        mine = [load for load in loads if any(touch.block == rank for touch in load.touches)]
        # From every block along M comes a part of B, from every one along N a part of A.
        assert len(mine) == steps * (across + along)
        row, column = rank % across, rank // across
        senders = {other for other in blocks if other % across == row or other // across == column}
        assert {load.block for load in mine} == senders
        for step, both in enumerate(zip(*multiplies[rank], strict=True)):
            parts = [load for load in mine if load.stage == step % STAGES and load.phase == step // STAGES]
            assert len(parts) == across + along
            assert min(multiply.start for multiply in both) >= max(load.end for load in parts)
            for load in parts:
                [here] = [touch for touch in load.touches if touch.block == rank]
                assert any(touch.overlaps(here) for multiply in both for touch in multiply.touches)
            for load in mine:
                if (load.stage, load.phase) == (step % STAGES, step // STAGES + 1):
                    assert load.start > max(multiply.end for multiply in both)
    for load in loads:
        other = {touch.block for touch in load.touches}
        name = load.touches[0].buffer
        assert len(other) == (along if name == "sA" else across)


@tw.kernel(X="N", Y="N")
def one_after_the_other(X, Y):
    """Block 1 waits until block 0 has computed, which takes longer than all of its own work."""
    n = tw.block_index(2)
    rank = tw.hopper.cluster_index(2)
    told = tw.hopper.mbarrier(1, arrivals=1)
    tw.hopper.cluster_barrier()
    x = tw.load(X.tile((32,), (n,)).partition((32,)))
    with tw.when(rank == 0):
        for _ in tw.unroll(7):
            x.assign(x + 1.0)
        tw.hopper.arrive(told[0], block=1)
    with tw.when(rank == 1):
        tw.hopper.wait(told[0], 0)
    tw.copy(x, Y.tile((32,), (n,)))
    tw.hopper.cluster_barrier()


@pytest.mark.parametrize("block", [None, (0,), (1,)])
def test_a_block_waits_for_the_arrival_of_another(block: tuple[int, ...] | None) -> None:
    subject = Subject(one_after_the_other.bind(), {"X": tw.f32, "Y": tw.f32}, {"N": 64})
    made = subject.timeline(block)
    assert made.blocks == ((0,), (1,))
    [arrival] = of(made, 0, "warp 0", "arrive")
    wait = next(event for event in of(made, 1, "warp 0", "wait") if event.op == "wait")
    copy, arithmetic = made.lengths.copy, made.lengths.arithmetic
    assert (arrival.start, wait.start, wait.end) == (copy + 7 * (arithmetic + copy), copy, arrival.start)
    assert (wait.barrier, wait.stage, wait.phase) == ("told", 0, 0)
    # The cluster's last barrier is over when both have copied.
    last = [of(made, rank, "warp 0")[-1] for rank in (0, 1)]
    assert [event.op for event in last] == ["cluster_barrier"] * 2
    assert {event.end for event in last} == {wait.end + copy}


def test_a_cluster_has_a_group_of_rows_for_each_block(golden: Callable[[str, str], None]) -> None:
    made = gemm((2, 1), 3)
    picture = draw_timeline(made)
    check_picture(picture)
    assert picture.title == "Timeline of cluster_gemm, the cluster of blocks (0, 0) (1, 0)"
    sections = re.findall(r"^block (\(.*\)): (.*):$", picture.text, re.MULTILINE)
    names = ("warps", "in the background", "shared memory")
    assert sections == [(block, name) for block in ("(0, 0)", "(1, 0)") for name in names]
    for rank in (0, 1):
        assert warp_rows(made, rank)[0].name == "warp 0 (loads)"
        # Two copies, from two blocks, fill a stage of B.
        rows = ["sA[0]", "sA[1]", "sB[0]", "sB[1]", "sC[0]", "sC[1]"]
        assert [row.name for row in slot_rows(made, rank)] == rows
    golden(picture.text + "\n", "cluster_timeline.txt")


def test_the_cluster_of_another_block_is_drawn() -> None:
    subject = Subject(one_after_the_other.bind(), {"X": tw.f32, "Y": tw.f32}, {"N": 64})
    with pytest.raises(LaunchError, match="block \\(2,\\) is outside of the grid; nearest legal choice: 1"):
        subject.timeline((2,))


# ---------------------------------------------------------------- numbers


def attention(*numbers: str, causal: bool) -> Timeline:
    given = {"tile": "(64,64,64)", "atom": "tw.atoms.MMA_F16", "warps": "4", "causal": str(causal)}
    constants = [f"{name}={value}" for name, value in given.items()]
    where = f"{ROOT / 'examples' / '09_attention.py'}:attention"
    return from_file(where, "f16", "B=1,H=1,M=64,N=192,D=64", [*constants, *numbers]).timeline()


@pytest.mark.parametrize(
    ("numbers", "causal", "tiles"),
    [
        (("scale=0.125", "shift=5"), False, 3),
        (("shift=128",), True, 3),
        (("shift=0",), True, 1),
        (("shift=1",), True, 2),
        (("shift=-64",), True, 0),
    ],
)
def test_numbers_are_those_that_are_given(numbers: tuple[str, ...], causal: bool, tiles: int) -> None:
    """With a mask, the last of 64 queries sees ``64 + shift`` keys, which determines the number of tiles."""
    made = attention("scale=0.5", "shift=0", *numbers, causal=causal)
    assert len(of(made, 0, "warp 0", "mma")) == 2 * tiles
    loads = {event.start for event in of(made, 0, "asynchronous copies")}
    # Keys and values of each tile; those of the first are fetched in any case.
    assert len(loads) == 2 * max(tiles, 1)
    check_picture(draw_timeline(made))


@tw.kernel(X="N", Y="N", alpha=tw.f32, count=int)
def scaled(X, Y, alpha, count):
    x = tw.load(X.tile((32,), (0,)).partition((32,)))
    for _ in tw.range(count):
        x.assign(x * alpha)
    tw.copy(x, Y.tile((32,), (0,)))


@pytest.mark.parametrize(
    ("numbers", "times"), [({"alpha": 2, "count": 4}, 4), ({"alpha": 0.5, "count": 0}, 0)]
)
def test_a_loop_runs_as_often_as_its_number_says(numbers: dict[str, float], times: int) -> None:
    subject = Subject(scaled.bind(), {"X": tw.f32, "Y": tw.f32}, {"N": 32}, numbers=numbers)
    assert len([event for event in subject.timeline().events if event.kind == "arithmetic"]) == times
    assert subject.on_reference().is_clean


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("count=1.5", "--set count=1.5: count is an integer"),
        ("count=True", "--set count=True: count is an integer"),
        ("alpha='x'", "--set alpha='x': alpha is a number"),
        ("X=1", "--set X: it is an array; give its --dtype and --shape"),
        ("beta=1", "bound already; leave out --set beta"),
    ],
)
def test_what_is_no_number_is_refused(given: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(
        "import tilewright as tw\n"
        "@tw.kernel(X='N', alpha=tw.f32, count=int)\n"
        "def twice(X, alpha, count):\n"
        "    part = X.tile((32,), (0,)).partition((32,))\n"
        "    tw.copy(tw.load(part) * alpha, part)\n"
        "bound = twice.bind()\n"
    )
    assert from_file(f"{file}:bound", "f32", "N=32", ["alpha=0.5", "count=3"]).timeline().steps
    with pytest.raises(LaunchError, match=re.escape(message)):
        from_file(f"{file}:bound", "f32", "N=32", [given])
