"""Timelines of recorded runs equal a pipeline in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import HazardError, LaunchError, LayoutError
from tilewright.inspect.draw import draw_timeline
from tilewright.inspect.draw.timelines import TimelineRow, background_rows, slot_rows, warp_rows
from tilewright.inspect.from_files import from_file
from tilewright.inspect.subject import Subject, library_gemm
from tilewright.inspect.timeline import Event, Lengths, Timeline, timeline
from tilewright.targets.reference.asynchronous import REFERENCE
from tilewright.targets.reference.recorder import ExecutionRecorder
from tilewright.targets.reference.run import run

from .pictures import check_picture

EXAMPLES = Path(__file__).parents[2] / "examples"
TILE_K = 64


def hopper(stages: int, tiles: int, steps: int, buffers: int = 1) -> Timeline:
    """The Hopper GEMM with one block, which computes its tiles of 128 x 64 one after the other."""
    given = {"mma": "tw.TiledMma(tw.atoms.wgmma(tw.bf16, 64))", "buffers": buffers}
    given |= {"stages": stages, "blocks": 1, "group": 1}
    constants = [f"{name}={value}" for name, value in given.items()]
    shape = f"M={128 * tiles},N=64,K={TILE_K * steps}"
    return from_file(f"{EXAMPLES / '03_hopper_gemm.py'}:hopper_gemm", "bf16", shape, constants).timeline()


def of(made: Timeline, agent: str, kind: str = "") -> list[Event]:
    return [event for event in made.events if event.agent == agent and kind in ("", event.kind)]


class Ring:
    """Begin of each load, multiply and store of the Hopper GEMM, in plain Python, step by step."""

    def __init__(self, stages: int, tiles: int, steps: int, buffers: int, lengths: Lengths) -> None:
        self.loads: list[int] = []
        self.multiplies: dict[int, list[int]] = {4: [], 8: []}
        self.stores: list[int] = []
        full: list[int] = []
        released: list[int] = []
        free = {4: 0, 8: 0}  # the units, by their first warp
        ends: dict[int, list[int]] = {4: [], 8: []}
        at = dict.fromkeys(range(4, 12), 0)
        stored: dict[int, list[int]] = {4: [], 8: []}
        producer = 0

        def load() -> None:
            nonlocal producer
            number = len(full)
            if number >= stages:
                producer = max(producer, released[number - stages])
            for _ in "AB":
                producer += lengths.issue
                self.loads.append(producer)
            full.append(producer + lengths.load)

        def release() -> None:
            released.append(max(at.values()))

        for _ in range(tiles):
            for k in range(steps):
                while len(full) < tiles * steps and len(full) - len(released) < stages:
                    load()
                number = len(ends[4])
                for warp in at:
                    at[warp] = max(at[warp], full[number]) + lengths.issue
                for unit in (4, 8):
                    start = max(free[unit], *(at[warp] for warp in range(unit, unit + 4)))
                    free[unit] = start + lengths.mma_async
                    self.multiplies[unit].append(start)
                    ends[unit].append(free[unit])
                if k:
                    for warp in at:
                        at[warp] = max(at[warp], ends[warp // 4 * 4][number - 1])
                    release()
            for warp in at:
                at[warp] = max(at[warp], ends[warp // 4 * 4][-1])
            release()
            for unit in (4, 8):
                if len(stored[unit]) >= buffers:
                    at[unit] = max(at[unit], stored[unit][-buffers])
                together = max(at[warp] for warp in range(unit, unit + 4)) + lengths.copy
                at.update(dict.fromkeys(range(unit, unit + 4), together))
                at[unit] += lengths.issue
                self.stores.append(at[unit])
                stored[unit].append(at[unit] + lengths.store)


@pytest.mark.parametrize(
    ("stages", "tiles", "steps", "buffers"),
    [(1, 1, 1, 1), (2, 2, 2, 1), (3, 2, 4, 1), (3, 1, 4, 1), (4, 2, 3, 1), (4, 1, 2, 2)],
)
def test_the_ring_of_the_hopper_gemm(stages: int, tiles: int, steps: int, buffers: int) -> None:
    made = hopper(stages, tiles, steps, buffers)
    expected = Ring(stages, tiles, steps, buffers, made.lengths)
    assert [event.start for event in of(made, "TMA loads")] == expected.loads
    assert [event.start for event in of(made, "MMA unit 4")] == expected.multiplies[4]
    assert [event.start for event in of(made, "MMA unit 8")] == expected.multiplies[8]
    assert [event.start for event in of(made, "TMA stores")] == sorted(expected.stores)

    loads, steps_of_all = of(made, "TMA loads"), tiles * steps
    assert len(loads) == 2 * steps_of_all
    assert [(event.stage, event.phase) for event in loads] == [
        (step % stages, step // stages) for step in range(steps_of_all) for _ in "AB"
    ]
    ends = [max(of(made, f"MMA unit {unit}")[n].end for unit in (4, 8)) for n in range(steps_of_all)]
    for step in range(steps_of_all):
        first, second = loads[2 * step : 2 * step + 2]
        for unit in (4, 8):
            multiply = of(made, f"MMA unit {unit}")[step]
            # Each load comes before the multiplies that read its part of shared memory ...
            assert multiply.start >= max(first.end, second.end)
            assert {touch.buffer for touch in multiply.touches} == {"sA", "sB"}
            for load in (first, second):
                assert any(touch.overlaps(load.touches[0]) for touch in multiply.touches)
        # ... and the loading warp is never more than a ring ahead of them.
        if step >= stages:
            assert first.start > ends[step - stages]
    waits = [event for event in of(made, "warp 0", "wait") if event.barrier == "empty"]
    assert [event.phase for event in waits] == [step // stages - 1 for step in range(steps_of_all)]


def test_rows_of_a_ring() -> None:
    made = hopper(3, 2, 4)
    assert [row.name for row in warp_rows(made)] == [
        "warp 0 (loads)",
        "warps 1-3 (idle)",
        "warp 4 (multiplies)",
        "warps 5-7 (multiplies)",
        "warp 8 (multiplies)",
        "warps 9-11 (multiplies)",
    ]
    names = [row.name for row in background_rows(made)]
    assert [name for name in names if name] == ["TMA loads", "MMA unit 4", "MMA unit 8", "TMA stores"]
    slots = {row.name: row for row in slot_rows(made)}
    assert list(slots) == [f"{buffer}[{stage}]" for buffer in ("sA", "sB") for stage in range(3)] + [
        "sC[0]",
        "sC[1]",
    ]
    for name, row in slots.items():
        check_turns(row, ("copy", "store") if name.startswith("sC") else ("load", "mma"))
    texts = [bar.text[0] for bar in slots["sA[1]"].bars if bar.kind == "load"]
    assert texts == ["phase 0", "phase 1", "phase 2"]


def check_turns(row: TimelineRow, kinds: tuple[str, str]) -> None:
    """Check that each stage is filled, full, read, and filled again, and never filled and read at once."""
    bars = sorted((bar for bar in row.bars if bar.kind != "full"), key=lambda bar: bar.start)
    assert bars
    assert [bar.kind for bar in bars] == [kinds[at % 2] for at in range(len(bars))]
    assert all(before.end <= after.start for before, after in itertools.pairwise(bars))


IN_THE_BACKGROUND = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 64), warps=(2, 2), stages=4, staging="cp_async")


def test_asynchronous_copies_and_their_waits() -> None:
    made = library_gemm("f16", "64x64x256", "nt", schedule=IN_THE_BACKGROUND).timeline()
    loads = of(made, "asynchronous copies")
    assert {event.kind for event in loads} == {"load"}
    for row in slot_rows(made):
        check_turns(row, ("load", "mma"))
    assert {row.name for row in warp_rows(made)} == {f"warps 0-{made.warps - 1}"}


@tw.kernel(X="N", Y="N")
def late(X, Y):
    """Warps 1 to 3 wait at the barrier for warp 0, which first copies and computes."""
    s = tw.shared((128,), X.dtype)
    with tw.role(warps=1):
        x = tw.load(X.tile((128,), (0,)).partition((32,)))
        tw.copy(x + x, s.partition((32,)))
    with tw.role(warps=3):
        tw.warp_barrier()
    tw.barrier()
    tw.copy(s, Y.tile((128,), (0,)), threads=128)


def record(kernel: tw.Kernel, **arrays: np.ndarray) -> tuple[ExecutionRecorder, Timeline]:
    recorder = ExecutionRecorder(REFERENCE)
    traced = kernel.trace(*arrays.values())
    run(traced, arrays, rules=recorder).raise_if_any()
    return recorder, timeline(traced.name, recorder.executions, traced.lanes)


def test_a_barrier_ends_for_all_when_the_last_has_come() -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    _, made = record(late, X=x, Y=y)
    assert (y == x + x).all()
    assert [(e.op, e.start, e.end) for e in of(made, "warp 0")] == [
        ("copy", 0, 2),
        ("elementwise", 2, 3),
        ("copy", 3, 5),
        ("barrier", 5, 5),
        ("copy", 5, 7),
    ]
    for warp in (1, 2, 3):
        assert [(e.op, e.start, e.end) for e in of(made, f"warp {warp}")] == [
            ("barrier", 0, 5),
            ("copy", 5, 7),
        ]
    assert [row.name for row in warp_rows(made)] == ["warp 0", "warps 1-3"]


def test_recording_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(128).astype(np.float32)
    plain, recorded = np.zeros(128, np.float32), np.zeros(128, np.float32)
    traced = late.trace(x, plain)
    alone = run(traced, {"X": x, "Y": plain})
    recorder = ExecutionRecorder(REFERENCE)
    noted = run(traced, {"X": x, "Y": recorded}, rules=recorder)
    assert plain.tobytes() == recorded.tobytes()
    assert str(alone) == str(noted)
    assert alone.counters == noted.counters
    assert all(execution.ended > execution.began for execution in recorder.executions)


def test_operations_take_the_steps_that_are_given() -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    recorder, _ = record(late, X=x, Y=y)
    slow = timeline("late", recorder.executions, lengths=Lengths(copy=10, arithmetic=5))
    assert slow.steps == 35
    assert slow.lengths == Lengths(copy=10, arithmetic=5)


@tw.kernel(X="N", Y="N")
def racy(X, Y):
    s = tw.shared((128,), X.dtype)
    tw.copy(X.tile((128,), (0,)), s, threads=128)
    tw.copy(s.permute(0), Y.tile((128,), (0,)), threads=tw.Layout(128, 1), vector=1)
    with tw.role(warps=1):
        x = tw.load(s.partition((32,)))
        tw.copy(x, Y.tile((128,), (0,)).partition((32,)))


def test_a_kernel_with_hazards_has_no_timeline() -> None:
    subject = Subject(racy.bind(), {"X": tw.f32, "Y": tw.f32}, {"N": 128})
    with pytest.raises(HazardError):
        subject.timeline()


def test_what_has_no_timeline_is_refused() -> None:
    with pytest.raises(LaunchError, match="takes time"):
        timeline("nothing", [])
    subject = library_gemm("f16", "64x64x64", "nt", schedule=IN_THE_BACKGROUND)
    with pytest.raises(LaunchError, match=r"block \(0,\) is outside of the grid; nearest legal choice: 0,0"):
        subject.timeline((0,))
    with pytest.raises(LaunchError, match=r"nearest legal choice: 0,0"):
        subject.timeline((0, 7))


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize(("stages", "tiles", "steps"), [(1, 1, 1), (3, 2, 4), (4, 1, 4)])
def test_pictures_of_timelines_are_in_order(stages: int, tiles: int, steps: int) -> None:
    check_picture(draw_timeline(hopper(stages, tiles, steps)))


def test_a_long_timeline_is_shown_in_parts() -> None:
    made = library_gemm("f16", "64x64x256", "nt", schedule=IN_THE_BACKGROUND).timeline()
    whole = draw_timeline(made)
    check_picture(whole)
    part = draw_timeline(made, first=5, steps=10)
    check_picture(part)
    assert "steps 5 to 15 of" in part.text
    rows = [line.partition("|")[2].rstrip("|") for line in whole.text.splitlines() if "|" in line]
    shown = [line.partition("|")[2].rstrip("|") for line in part.text.splitlines() if "|" in line]
    assert shown == [row[5:15] for row in rows]
    with pytest.raises(LayoutError, match="nearest legal choice: 200"):
        draw_timeline(made, steps=1000)
    with pytest.raises(LayoutError, match=f"nearest legal choice: {made.steps - 1}"):
        draw_timeline(made, first=9999)


def test_a_timeline_as_text(golden: Callable[[str, str], None]) -> None:
    picture = draw_timeline(hopper(2, 1, 3))
    golden(picture.svg, "timeline.svg")
    golden(picture.text + "\n", "timeline.txt")


def test_a_kernel_that_takes_numbers() -> None:
    """Causal attention: the last queries see the most keys, so the first block multiplies most often."""
    given = ("causal=True", "keys=64", "depth=64", "stages=2", "groups=2", "atom=tw.atoms.wgmma")
    kernel, shape = f"{EXAMPLES / '10_hopper_attention.py'}:hopper_attention", "B=1,H=1,M=256,N=256,D=64"
    subject = from_file(kernel, "bf16", shape, (*given, "scale=0.5", "shift=0"))
    products = [sum("mma_async" in event.op for event in subject.timeline((m, 0, 0)).events) for m in (0, 1)]
    assert products[0] > products[1] > 0
