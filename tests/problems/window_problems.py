"""Random convolutions in dataflow: depthwise sums over taps, maxima of windows, and groups of channels."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow

from .placing import Placed
from .sets import generators

Array = np.ndarray[Any, Any]


def windows(X: Any, positions: Any, taps: Any, how: Any) -> Any:
    """(N, O, R, Q, S, C): the element under each tap of the window at each position; 0 in the padding."""
    stride, dilation, padding = how
    columns = X.embed(2, (positions[1], taps[1]), (stride, dilation), padding)
    return columns.embed(1, (positions[0], taps[0]), (stride, dilation), padding)


@tw.kernel(X="N H W C", F="R S C", Y="N O Q C")
def depthwise(X, F, Y, *, how):
    """Each channel has a filter of its own."""
    found = windows(X, Y.shape[1:3], F.shape[:2], how)
    for n, y, x, c in tw.tiles(Y):
        acc = tw.zeros((x, c), tw.f32)
        for r, s, _ in tw.steps((F.shape[0], F.shape[1], 1)):
            acc.assign(acc + found[n, y, r, x, s, c].to(tw.f32) * F[r, s, c].to(tw.f32))
        Y[n, y, x, c] = acc


@tw.kernel(X="N H W C", F="R S C", Y="N O Q C")
def largest(X, F, Y, *, how):
    """The largest weighted element of each window, with 0 in the padding."""
    found = windows(X, Y.shape[1:3], F.shape[:2], how)
    for n, y, x, c in tw.tiles(Y):
        top = tw.full((x, c), -float("inf"), tw.f32)
        for r, s, _ in tw.steps((F.shape[0], F.shape[1], 1)):
            top.assign(tw.maximum(top, found[n, y, r, x, s, c].to(tw.f32) * F[r, s, c].to(tw.f32)))
        Y[n, y, x, c] = top


@tw.kernel(X="N H W C", F="G O T", Y="P G O")
def grouped(X, F, Y, *, taps, how, groups):
    """Groups of channels, each with filters of its own."""
    stride, dilation, padding = how
    image = X.im2col(
        spatial=(1, 2), filter=taps, stride=stride, dilation=dilation, padding=padding, groups=groups
    )
    tw.require(image.shape[1] == Y.shape[0], "Y has a row for each position")
    tw.require(image.shape[2] == F.shape[2], "F has a column for each channel of each tap")
    tw.require(F.shape[0] == groups, "F has filters for each group")
    for g, m, n in tw.tiles((groups, Y.shape[0], Y.shape[2])):
        acc = tw.zeros()
        for k in tw.steps(image.shape[2]):
            acc += image[g, m, k] @ F[g, n, k].T
        Y[m, g, n] = acc


ALONE = {"depthwise": depthwise, "largest": largest}
"""Kernels in which each channel is alone."""


@dataclass(frozen=True)
class WindowProblem:
    """A random convolution.

    Args:
        name: its kernel.
        image: the extents (N, H, W, C).
        taps: the extents of the filter.
        how: stride, dilation and padding.
        groups: groups of channels.
        outputs: results of each group.
        dtype: of the images and filters.
        gaps: elements between the rows of an array.
    """

    name: str
    image: tuple[int, int, int, int]
    taps: tuple[int, int]
    how: tuple[int, int, int]
    groups: int
    outputs: int
    dtype: str
    gaps: int

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions of the filter along both spatial dimensions."""
        stride, dilation, padding = self.how
        pairs = zip(self.image[1:3], self.taps, strict=True)
        return tuple((extent + 2 * padding - dilation * (t - 1) - 1) // stride + 1 for extent, t in pairs)

    def array(self, draw: np.random.Generator, shape: tuple[int, ...], kind: Any) -> tuple[Array, Array]:
        """Random numbers inside of NaN, and all of the memory."""
        wide = np.full((*shape[:-1], shape[-1] + self.gaps), np.nan, kind)
        inside = wide[..., : shape[-1]]
        inside[...] = draw.standard_normal(shape).astype(kind)
        return inside, wide

    def seen(self, x: Array) -> Array:
        """(N, O, Q, R, S, C) in f64, by plain loops over taps."""
        stride, dilation, padding = self.how
        rows = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        n, (o, q), c = self.image[0], self.positions, self.image[3]
        made = np.empty((n, o, q, *self.taps, c))
        for r, s in itertools.product(*map(range, self.taps)):
            first, left = r * dilation, s * dilation
            part = rows[:, first : first + o * stride : stride, left : left + q * stride : stride]
            made[:, :, :, r, s] = part[:, :o, :q]
        return made


def problem(number: int, target: str) -> WindowProblem:
    """Return the problem of a number."""
    terms, rng = generators(number, target)
    name = str(terms.choice([*ALONE, "grouped"]))
    dtype, gaps = str(terms.choice(["f16", "bf16", "f32"])), int(terms.choice([0, 0, 3, 8]))
    stride, dilation, padding = (int(terms.integers(low, 3)) for low in (1, 1, 0))
    taps = int(terms.integers(1, 4)), int(terms.integers(1, 5))
    groups, each, outputs = (int(terms.integers(*ends)) for ends in ((2, 6), (1, 6), (1, 20)))
    most = 12 if target == "reference" else 40
    height, width = (int(rng.integers(dilation * (t - 1) + 1, most + 1)) for t in taps)
    channels = groups * each * int(terms.choice([1, 8])) if name == "grouped" else int(terms.integers(1, 70))
    image = int(rng.integers(1, 4)), height, width, channels
    return WindowProblem(name, image, taps, (stride, dilation, padding), groups, outputs, dtype, gaps)


def carried_out(number: int, target: str) -> str:
    """Compute a problem, and compare every element.

    Args:
        number: which; numbers of one set need the same few kernels.
        target: ``"reference"``, ``"cpu"`` or ``"cuda"``.

    Returns:
        What is wrong; empty if nothing is.
    """
    made, draw = problem(number, target), np.random.default_rng(number)
    kind, channels = tw.dtype(made.dtype).numpy, made.image[3]
    x, _ = made.array(draw, made.image, kind)
    if made.name == "grouped":
        each = channels // made.groups
        f, _ = made.array(draw, (made.groups, made.outputs, math.prod(made.taps) * each), kind)
        shape: tuple[int, ...] = (made.image[0] * math.prod(made.positions), made.groups, made.outputs)
        bound = grouped.bind(taps=made.taps, how=made.how, groups=made.groups)
    else:
        f, _ = made.array(draw, (*made.taps, channels), kind)
        shape = made.image[0], *made.positions, channels
        bound = ALONE[made.name].bind(how=made.how)
    y, wide = made.array(draw, shape, np.float32)
    y[...] = np.nan
    placed = [Placed(one, target) for one in (x, f, y)]
    launch = bound(*(one.there for one in placed), target=target)
    if launch.target != target:
        return f"{made}: ran on {launch.target}"
    found = placed[2].fetched()
    if np.isfinite(wide).sum() > found.size:
        return f"{made}: memory around the result was written"
    if made.name == "grouped":
        how = Accumulation.of(launch.schedule.atom)
        compared = compare_flow(launch.flow, {"Y": found}, {"X": x, "F": f, "Y": y}, how=how)
        return "" if compared.ok else f"{made}: {compared}"
    terms = made.seen(x) * f.astype(np.float64)
    exact = terms.sum((3, 4)) if made.name == "depthwise" else terms.max((3, 4))
    room = 2.0**-24 * (math.prod(made.taps) + 1) * np.abs(terms).sum((3, 4)) + 2.0**-140
    off = np.abs(found.astype(np.float64) - exact)
    return "" if (off <= room).all() else f"{made}: an element is off by {np.nanmax(off)}, or is no number"
