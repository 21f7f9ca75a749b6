"""Loops whose windows slide along rows: every element against f64, and the bits of one turn at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.problems.window_problems import ALONE, WindowProblem

import tilewright as tw
from tilewright.schedule.folds.choice import shares_windows
from tilewright.schedule.folds.form import fold_form_of

FMA = tw.atoms.fma
CASES = {
    "taps that fill groups": ((3, 6), (1, 1, 2), 3, 3),
    "a last tap alone": ((2, 4), (1, 1, 1), 3, 3),
    "fewer taps than a group": ((2, 2), (1, 1, 1), 2, 4),
    "stride 2": ((2, 5), (2, 1, 2), 3, 5),
    "dilation 2": ((2, 3), (1, 2, 2), 4, 3),
    "stride 3, dilation 2": ((1, 4), (3, 2, 1), 4, 4),
}
"""Taps; stride, dilation and padding; rows of a thread; taps that are computed together."""


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("case", CASES)
def test_windows_that_slide(case: str, name: str) -> None:
    taps, how, each, together = CASES[case]
    kind = "f16" if "dilation" in case else "f32"
    problem = WindowProblem(name, (1, 5, 13, 17), taps, how, 1, 1, kind, 3)
    draw = np.random.default_rng(len(case))
    x, _ = problem.array(draw, problem.image, tw.dtype(kind).numpy)
    f, _ = problem.array(draw, (*taps, 17), tw.dtype(kind).numpy)
    schedule = tw.Schedule(
        FMA("f32", lanes=(4, 8), each=(each, 2)), (4 * each, 16, together), width=16, resident=True
    )
    found = []
    for one in (schedule, replace(schedule, tile=(4 * each, 16, 1))):
        y, wide = problem.array(draw, (1, *problem.positions, 17), np.float32)
        y[...] = np.nan
        launch = ALONE[name].bind(how=how, schedule=one)(x, f, y, target="reference")
        assert launch.target == "reference"
        assert shares_windows(one, fold_form_of(launch.flow)) == (one is schedule)
        assert np.isfinite(wide).sum() == y.size
        found.append(y)
    terms = problem.seen(x) * f.astype(np.float64)
    exact = terms.sum((3, 4)) if name == "depthwise" else terms.max((3, 4))
    room = 2.0**-24 * (np.prod(taps) + 1) * np.abs(terms).sum((3, 4)) + 2.0**-140
    assert (np.abs(found[0] - exact) <= room).all()
    assert found[0].tobytes() == found[1].tobytes()


@tw.kernel(x="N", top="Q", total="Q")
def of_windows(x, top, total, *, taps):
    windows = x.embed(0, (top.shape[0], taps), (1, 1), taps // 2)
    for q in tw.tiles(top):
        top[q] = windows[q].max(axis=1)
        total[q] = tw.exp(windows[q]).sum(axis=1)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
def test_whole_windows_with_padding_are_reduced(taps: int, target: str) -> None:
    """The number of taps is a constant, and may be less than two steps of a trial."""
    x = np.random.default_rng(taps).uniform(-4, -1, 50).astype(np.float32)
    count = 50 + 2 * (taps // 2) - taps + 1
    top, total = np.full((2, count), np.nan, np.float32)
    of_windows.bind(taps=taps)(x, top, total, target=target)
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, taps // 2), taps)
    assert (top == seen.max(1)).all()
    exact = np.exp(seen.astype(np.float64)).sum(1)
    assert (np.abs(total - exact) <= 2.0**-24 * (taps + 8) * exact).all()
