"""Gradients of a bias of attention, with any broadcast dimensions, and of sinks.

The gradient of a bias is ``dS = P (dO Vᵀ - delta)`` without the slope of the soft cap, summed along the
dimensions that the bias is broadcast along.  The order of the sum is always the same:

- A bias with rows and columns: a launch for each batch and head that is summed adds a tile of ``dS`` to a sum
  in f32, in the order of batches and then of heads.
- A bias without rows or columns: a loop along the keys, or along the queries, sums each head to scratch
  memory.  Another loop adds these sums up, batch after batch.

The gradient of a sink is ``-sum exp(sink - lse) delta``, first over the rows of a batch, then over batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from tilewright.dtypes import f32, u64
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.exact_functions import minimum
from tilewright.lang.functions import exp2
from tilewright.ops.attending.choice import by_head_of_keys
from tilewright.ops.attending.flow import Dropped, KeyLoop, QueryRows, Scores
from tilewright.ops.attending.gradients import STEPPED, WEIGHED, slopes
from tilewright.ops.launching import ALIGNED, OWN, Launch
from tilewright.ops.tiled_product import kernel_by_name
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.kernel import kernel

OF_HEAD = ("q", "k", "v", "dout", "shift", "delta", "bias")
"""Arrays that all kernels of a bias read."""


def _slopes(
    given: Any,
    at: tuple[Any, Any, Any],
    m: Any,
    n: Any,
    scores: Scores,
    factor: float,
    drops: bool,
    *,
    of_keys: bool = False,
) -> Any:
    """Return ``dS``, the derivatives of a loss with respect to scores after the soft cap.

    Args:
        given: the arrays and numbers of the kernel; ``start`` and ``heads``, if its queries are a part of all
            heads, are the number of the first head and those of a batch.
        at: batch, head of keys, and head of queries.
        m: the queries.
        n: the keys.
        scores: as in `slopes`.
        factor: as in `slopes`.
        drops: whether weights are dropped.
        of_keys: whether a row of the tile is a key, not a query.
    """
    Q, (b, g, r) = given.Q, at
    rows = QueryRows(Q, None, None, at, m, given.bias)
    if drops:
        heads, start = getattr(given, "heads", Q.shape[1] * Q.shape[2]), getattr(given, "start", 0)
        head = positions(b).to(u64) * heads + positions(g).to(u64) * Q.shape[2] + positions(r).to(u64)
        rows = rows._replace(dropped=Dropped(given, (head + start) * Q.shape[3], given.K.shape[2]))
    keys = KeyLoop(given.K, given.V, (b, g), None)
    return slopes(given, rows, keys, n, scores, factor, of_keys=of_keys, of_products=False)[1]


@kernel_by_name(**WEIGHED, prior="B G R M N", dB="B G R M N", start=int, heads=int, **STEPPED)
def gradient_of_bias(given: Any, *, scores: Scores, factor: float, drops: bool, adds: str) -> None:
    """``dB = dS``, plus ``prior`` with ``adds="prior"``, or plus the old dB with ``adds="in place"``."""
    for b, g, r, m, n in tiles(given.dB, batch=3):
        ds = _slopes(given, (b, g, r), m, n, scores, factor, drops)
        if adds:
            ds = ds + (given.dB if adds == "in place" else given.prior)[b, g, r, m, n]
        given.dB[b, g, r, m, n] = ds


@kernel_by_name(**WEIGHED, dB="B G R M", **STEPPED)
def gradient_of_rows(given: Any, *, scores: Scores, factor: float, drops: bool) -> None:
    """``dB = sum_n dS``, the gradient of a bias that all keys share, for each head."""
    for b, g, r, m in tiles(given.dB, batch=3):
        total = zeros((m,), f32)
        for n in steps(given.K.shape[2]):
            ds = _slopes(given, (b, g, r), m, n, scores, factor, drops)
            total.assign(total + ds.sum(axis=1))
        given.dB[b, g, r, m] = total


@kernel_by_name(**WEIGHED, dB="B G R N", **STEPPED)
def gradient_of_columns(given: Any, *, scores: Scores, factor: float, drops: bool) -> None:
    """``dB = sum_m dS``, the gradient of a bias that all queries share, for each head."""
    for b, g, r, n in tiles(given.dB, batch=3):
        total = zeros((n,), f32)
        for m in steps(given.Q.shape[3]):
            ds = _slopes(given, (b, g, r), m, n, scores, factor, drops, of_keys=True)
            total.assign(total + ds.sum(axis=1))
        given.dB[b, g, r, n] = total


@kernel(shift="B H M", delta="B H M", sinks="H", P="B H")
def gradient_of_sinks(shift: Any, delta: Any, sinks: Any, P: Any) -> None:
    """``P = -sum_m exp(sinks - lse) delta`` of each batch."""
    for b, h in tiles(P, batch=1):
        total, sink = zeros((h,), f32), sinks[h].to(f32) * math.log2(math.e)
        for m in steps(shift.shape[2]):
            share = minimum(exp2(sink[:, None] - shift[b, h, m]), 1.0)
            total.assign(total + (share * delta[b, h, m]).sum(axis=1))
        P[b, h] = -total


@kernel(shift="H T", delta="H T", sinks="H", q_starts="B", q_ends="B", P="B H")
def packed_gradient_of_sinks(shift: Any, delta: Any, sinks: Any, q_starts: Any, q_ends: Any, P: Any) -> None:
    """`gradient_of_sinks` of each sequence b."""
    for b, h in tiles(P, batch=1):
        total, sink = zeros((h,), f32), sinks[h].to(f32) * math.log2(math.e)
        for m in steps(shift.shape[1], begin=q_starts[b], end=q_ends[b]):
            share = minimum(exp2(sink[:, None] - shift[h, m]), 1.0)
            total.assign(total + (share * delta[h, m]).sum(axis=1))
        P[b, h] = -total


@kernel(P="B H T N S", O="B H N")
def sum_of_heads(P: Any, O: Any) -> None:
    """``O = sum_ts P``, in the order of t, then of s."""
    for b, h, n in tiles(O, batch=2):
        total = zeros((n,), f32)
        for t, s in steps((P.shape[2], P.shape[4])):
            total.assign(total + P[b, h, t, n, s].sum(axis=1))
        O[b, h, n] = total


# ---------------------------------------------------------------- launches


class ScratchLayout:
    """Offsets of arrays in the scratch memory of a call."""

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, like: ArrayInfo, shape: tuple[int, ...], unit: int = 1) -> ArrayInfo:
        """Return an array of f32 whose rows begin at multiples of ``unit`` elements.

        Args:
            like: an array of the same device.
            shape: the shape.
            unit: the divisor of the distance between rows, in elements.
        """
        apart = -(-shape[-1] // unit) * unit
        extents = (*shape[:-1], apart)
        strides = tuple(prod(extents[at + 1 :]) for at in range(len(extents)))
        made = replace(like, dtype=f32, shape=shape, strides=strides, pointer=self.bytes, readonly=False)
        self.bytes += -(-prod(extents) * f32.bytes // ALIGNED) * ALIGNED
        return made


class BiasTerm(NamedTuple):
    """The gradient of a bias to compute.

    Args:
        infos: the arrays of `OF_HEAD` with four dimensions; rows have three.
        result: the gradient, with four dimensions.
        bound: constants of the kernels.
        numbers: scalar arguments of the kernels, from the exponent to those of dropout.
        launch: makes a launch from a kernel, the views that it takes, and numbers; ``of=`` names the arrays
            of views, and ``own=`` has numbers of its own.
        scratch: scratch memory.
    """

    infos: Mapping[str, ArrayInfo]
    result: ArrayInfo
    bound: Mapping[str, Any]
    numbers: tuple[Any, ...]
    launch: Callable[..., Launch]
    scratch: ScratchLayout

    def launches(self) -> list[Launch]:
        """Return the launches, in order."""
        whole = self.infos["bias"].shape
        sums = tuple(one != extent for one, extent in zip(self.result.shape, whole, strict=True))
        if not any(sums[2:]):
            return self._of_tiles(sums)
        # A bias without rows or columns: one launch sums each head, and another adds up these sums.
        of, along = (gradient_of_rows, 2) if sums[3] else (gradient_of_columns, 3)
        batches, heads, extent = (self.infos["bias"].shape[at] for at in (0, 1, along))
        parts = self.scratch.take(self.result, (batches, heads, extent))
        launches = []
        if 0 not in parts.shape:
            by_head = {
                name: info if name in "kv" else by_head_of_keys(info, self.infos["k"])
                for name, info in {**{one: self.infos[one] for one in OF_HEAD}, "dbias": parts}.items()
            }
            launches.append(self.launch(of.bind(**self.bound), by_head, *self.numbers, of={"dbias": OWN}))
        # Batches and heads that are summed are neighbours in memory.
        summed = prod(n for n, is_summed in zip((batches, heads), sums[:2], strict=True) if is_summed)
        step = extent if sums[1] else heads * extent
        kept = tuple(0 if one else stride for one, stride in zip(sums[:2], parts.strides, strict=False))
        if sums[2] and sums[3]:
            shape, strides = (summed, 1, extent), (step, 0, 1)
        else:
            shape, strides = (1, extent, summed), (0, 1, step)
        source = replace(parts, shape=(*self.result.shape[:2], *shape), strides=(*kept, *strides))
        flat = replace(
            self.result,
            shape=(*self.result.shape[:2], shape[1]),
            strides=(*self.result.strides[:2], self.result.strides[2 if not sums[2] else 3]),
        )
        return [*launches, self.launch(sum_of_heads.bind(), {"terms": source, "dbias": flat})]

    def _of_tiles(self, sums: Sequence[bool]) -> list[Launch]:
        """Launches for a bias with rows and columns: one for each batch and head that is summed."""
        batches, heads = self.infos["q"].shape[:2]
        turns = [(b, h) for b in range(batches if sums[0] else 1) for h in range(heads if sums[1] else 1)]
        keys, result = self.infos["k"], self.result
        if not turns:
            # There are no batches or no heads: store 0, the sum of no terms.
            batches, heads, *tile = result.shape
            batch, step = (batches, result.strides[0]) if heads == 1 else (heads, result.strides[1])
            flat = replace(result, shape=(batch, *tile), strides=(step, *result.strides[2:]))
            none = replace(
                self.scratch.take(result, (1,)), shape=(batch, tile[0], 1, tile[1], 0), strides=(0,) * 5
            )
            return [self.launch(sum_of_heads.bind(), {"terms": none, "dbias": flat})]
        own = self.scratch.take(result, result.shape) if len(turns) > 1 else result
        made = []
        for turn, (b, h) in enumerate(turns):
            group = h // max(heads // keys.shape[1], 1)
            views: dict[str, ArrayInfo] = {}
            for name in OF_HEAD:
                views[name] = _one(
                    _one(self.infos[name], 0, b, sums[0]), 1, group if name in "kv" else h, sums[1]
                )
            last = turn == len(turns) - 1
            adds = "" if not turn else "prior" if last else "in place"
            views["prior"] = (
                own if adds == "prior" else replace(views["delta"], shape=own.shape, strides=(0,) * 4)
            )
            views["dbias"] = result if last else own
            by_head = {
                name: info if name in "kv" else by_head_of_keys(info, views["k"])
                for name, info in views.items()
            }
            held = {"prior": OWN, "dbias": "dbias" if last else OWN}
            bound = {**self.bound, "adds": adds}
            made.append(
                self.launch(
                    gradient_of_bias.bind(**bound),
                    by_head,
                    *self.numbers,
                    of=held,
                    own=(b * heads + h, heads),
                )
            )
        return made


def _one(info: ArrayInfo, dim: int, at: int, cuts: bool) -> ArrayInfo:
    """View one element of a dimension if ``cuts``, otherwise the whole array."""
    if not cuts:
        return info
    shape = (*info.shape[:dim], 1, *info.shape[dim + 1 :])
    step = info.strides[dim] * info.dtype.bytes
    return replace(info, shape=shape, pointer=info.pointer + at * step)
