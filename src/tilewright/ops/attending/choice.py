"""Chooses the kernel of attention, and its tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilewright.arch import REFERENCE, Arch
from tilewright.dtypes import bf16, f16
from tilewright.errors import LaunchError
from tilewright.ops.attending import by_warpgroups, flow
from tilewright.ops.attending.by_warpgroups import ROWS
from tilewright.ops.attending.softmax import BySoftmax
from tilewright.ops.attending.tiles import ByActivation, WarpgroupTiles, for_warpgroups
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.binding import spec_of
from tilewright.runtime.kernel import Bound
from tilewright.schedule.bulk_views import against_array, against_store
from tilewright.schedule.partition import parts_of_k

WARPS, WARPGROUPS = "warps", "warpgroups"
KERNELS = (WARPS, WARPGROUPS)
"""Values of the argument ``kernel`` of `attention`."""

CACHE_SHARE = 0.7
"""Fraction of the L2 cache that keys and values in use may fill."""

WIDTHS = 32
"""Number of band widths to compare, from the widest that fits the cache down to half of that."""

AS_EVEN = 1.02
"""Tolerated increase of the longest block's time for a narrower band, whose keys stay cached better."""

MOST_DEALT = 1 << 16
"""Tiles of queries beyond which every band is balanced, so that widths are not compared."""

ITEM = 0.6
"""Overhead of a tile of queries, in units of the time for a tile of keys."""

CACHE_BYTES = 40e6
"""Assumed L2 cache of an unknown machine, in bytes."""


class AttentionQuestion(NamedTuple):
    """A problem of attention, and the machine that computes it.

    Args:
        infos: the arrays with four dimensions each, by name: queries, keys, values and the result.
        arch: the architecture.
        processors: the machine's number of processors; 0 if unknown.
        scale: factor of the scores.
        diagonal: row i sees the keys up to i + diagonal; None: all keys.
        with_lse: whether the kernel stores logarithms of sums too.
        window: number of keys that a row sees at most; None: all up to the diagonal.
        soft_cap: bound of the scores; None: they have none.
        has_bias: whether an array is added to the scores.
    """

    infos: Mapping[str, ArrayInfo]
    arch: Arch
    processors: int
    scale: float = 1.0
    diagonal: int | None = None
    with_lse: bool = False
    window: int | None = None
    soft_cap: float | None = None
    has_bias: bool = False

    @property
    def softmax(self) -> tuple[BySoftmax, float]:
        """The softmax of the scores, and its exponent; a bound or a bias needs scores with their scale."""
        return BySoftmax.of(1.0 if self.has_bias or self.soft_cap is not None else self.scale)

    @property
    def scores(self) -> flow.Scores:
        """How the dataflow kernel computes scores."""
        cap = None if self.soft_cap is None else (self.scale / self.soft_cap, self.soft_cap)
        scale = self.scale if self.has_bias and cap is None else None
        return flow.Scores(self.diagonal is not None, self.window, cap, scale)

    @property
    def queries(self) -> ArrayInfo:
        """The first array: queries, or A of a chain."""
        return next(iter(self.infos.values()))

    @property
    def keys(self) -> ArrayInfo:
        """The second array: keys, or B of a chain."""
        return tuple(self.infos.values())[1]

    @property
    def columns(self) -> tuple[int, int]:
        """Numbers of columns of keys and of values."""
        return self.keys.shape[3], tuple(self.infos.values())[2].shape[3]

    @property
    def keys_by_column(self) -> bool:
        """Whether keys are contiguous along their columns instead of rows."""
        return self.keys.strides[2] == 1 != self.keys.strides[3]


@dataclass(frozen=True)
class Answer:
    """A kernel, and the scalar arguments that follow its arrays."""

    kernel: Bound
    numbers: tuple[float | int, ...] = ()

    def views(self, infos: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
        """The arrays as the kernel takes them, in the order of its parameters.

        The kernel for warpgroups finds the head of keys of each head of queries.  The dataflow kernel has a
        dimension of heads of keys, and one of the heads of queries that share them.

        Args:
            infos: the arrays with four dimensions each: queries, keys, values, results, logarithms, bias.
        """
        if self.kernel.program.function.__module__ == by_warpgroups.__name__:
            return dict(infos)
        names = list(infos)
        made = {
            name: infos[name] if name in names[1:3] else _by_head_of_keys(info, infos[names[1]])
            for name, info in infos.items()
        }
        for name in names[4:5]:  # logarithms have no columns
            made[name] = replace(made[name], shape=made[name].shape[:-1], strides=made[name].strides[:-1])
        return made


def _by_head_of_keys(info: ArrayInfo, keys: ArrayInfo) -> ArrayInfo:
    """View an array (B, H, M, D) as (B, G, H / G, M, D)."""
    (b, heads, *rest), (step_b, step, *steps), groups = info.shape, info.strides, keys.shape[1]
    ratio = heads // groups
    return replace(info, shape=(b, groups, ratio, *rest), strides=(step_b, step * ratio, step, *steps))


def chosen(question: AttentionQuestion, wanted: str | None) -> Answer:
    """Return the caller's kernel; by default that for warpgroups if it serves the problem, else for warps.

    Raises:
        LaunchError: the caller wants warpgroups, and they do not serve the problem; lists every reason.
    """
    between = question.softmax[0]
    constants: dict[str, Any] = {"between": between, "with_lse": question.with_lse}
    by_flow = flow.biased_attention if question.has_bias else flow.attention
    if wanted != WARPGROUPS and keys_in_parts(question):
        # States merge if scores are subtracted first: the other form chooses the exponent by the base.
        constants["between"] = replace(between, power=0.0)
        return Answer(by_flow.bind(**constants, scores=question.scores), _numbers(question))
    # The reference executes both kernels; that for warps is faster there.
    if wanted == WARPGROUPS or (wanted is None and question.arch != REFERENCE):
        reasons = list(against_warpgroups(question))
        if not reasons:
            plain = question.diagonal is None
            sizes = _of_warpgroups(question, plain=plain)
            kernel = by_warpgroups.attention.bind(causal=not plain, **constants, **sizes)
            return Answer(kernel, (*_numbers(question), band(question, **sizes)))
        if wanted == WARPGROUPS:
            raise LaunchError(
                f"attention: kernel={WARPGROUPS!r} cannot serve this call: {'; '.join(reasons)}; nearest "
                f"legal choice: kernel={WARPS!r}"
            )
    return Answer(by_flow.bind(**constants, scores=question.scores), _numbers(question))


def keys_in_parts(question: AttentionQuestion) -> bool:
    """Whether several blocks take parts of the keys of each head, e.g. to decode one row of queries.

    Otherwise each tile of queries has one block, and these would be fewer than half of the processors.
    """
    q, k = question.queries, question.keys
    tiles = q.shape[0] * q.shape[1] * -(-q.shape[2] // ROWS)
    parts = parts_of_k(tiles, k.shape[2] // ROWS, question.processors)
    return isinstance(parts, int) and parts > 1


def chained(question: AttentionQuestion, activation: str | None) -> Answer:
    """Return the kernel of a chain: for warpgroups if it serves the problem, else for warps."""
    if question.arch != REFERENCE and not any(against_warpgroups(question)):
        between = ByActivation(activation)
        sizes = _of_warpgroups(question, plain=False)
        return Answer(by_warpgroups.gemm_chain.bind(between=between, **sizes))
    return Answer(flow.gemm_chain.bind(activation=activation))


def _of_warpgroups(question: AttentionQuestion, *, plain: bool) -> dict[str, Any]:
    """Return the constants of a kernel for warpgroups that depend on the problem's size."""
    tiles = for_warpgroups(
        question.columns,
        question.queries.shape[2],
        question.arch,
        plain=plain,
        keys_by_column=question.keys_by_column,
    )
    return {"tiles": tiles, "blocks": question.processors or 1}


def against_warpgroups(question: AttentionQuestion) -> Iterator[str]:
    """Yield the reasons why kernels for warpgroups do not serve a problem."""
    arch, kind = question.arch, question.queries.dtype
    if arch != REFERENCE and "wgmma" not in arch.features:
        yield f"{arch.name} has no warpgroups that multiply in the background"
    if kind not in (f16, bf16):
        yield f"the arrays are {kind}, and wgmma with weights in registers takes f16 and bf16"
    if (written := tuple(question.infos.values())[3].dtype) != kind:
        yield f"the result is {written}, and its tiles lie in the memory of the queries, which are {kind}"
    if question.keys.shape[2] == 0:
        yield "there are no keys"
    for name, value in (("window", question.window), ("soft_cap", question.soft_cap)):
        if value is not None:
            yield f"{name}={value}, and the explicit kernel has none"
    if question.has_bias:
        yield "bias is an array, and the explicit kernel has none"
    for place, (name, info) in enumerate(question.infos.items()):
        spec = spec_of(info)
        if place == 3:
            yield from against_store(name, spec)
        else:
            yield from (text for text, _ in against_array(name, spec))
        if spec.unit_dim not in ((3, 2) if place == 1 else (3,)) and spec.unit_dim is not None:
            yield f"{name} is contiguous along dimension {spec.unit_dim - 4}, not along its columns"


def _numbers(question: AttentionQuestion) -> tuple[float, int]:
    """Return the exponent, and the diagonal, clamped to the range of the keys."""
    rows, keys = question.queries.shape[2], question.keys.shape[2]
    diagonal = min(max(question.diagonal or 0, -rows), keys)
    return question.softmax[1], diagonal


def band(question: AttentionQuestion, tiles: WarpgroupTiles, blocks: int) -> int:
    """Return how many heads of queries the blocks compute at the same time if there is a mask.

    Keys and values of these heads fit the cache.  Of all such bands, this one balances the blocks best.
    """
    q, k = question.queries, question.keys
    heads, ratio = q.shape[0] * q.shape[1], q.shape[1] // k.shape[1]
    boards = question.arch.rates.boards if question.arch.rates else ()
    cache = CACHE_SHARE * (boards[0].l2_mbytes * 1e6 if boards else CACHE_BYTES)
    of_head = k.shape[2] * sum(question.columns) * k.dtype.bytes
    at_once = max(int(cache // of_head), 1) * ratio
    rounds = -(-heads // at_once)
    rows = tiles.groups * ROWS
    ends = np.arange(1, -(-q.shape[2] // rows) + 1) * rows
    widest = -(-heads // rounds)  # of bands that are equally long
    if question.diagonal is None or heads * ends.size > MOST_DEALT:
        return widest
    lengths = -(-np.clip(ends + question.diagonal, 0, k.shape[2]) // tiles.keys) + ITEM
    most = min(at_once, heads)
    widths = range(most, max(most - WIDTHS, most // 2, 1) - 1, -1)
    longest_of = {width: longest(lengths, heads, width, blocks) for width in widths}
    return min(width for width, found in longest_of.items() if found <= AS_EVEN * min(longest_of.values()))


def longest(lengths: npt.NDArray[Any], heads: int, band: int, blocks: int) -> float:
    """Return the time of the slowest block with a causal mask.

    Args:
        lengths: time of each tile of a head, in order.
        heads: number of heads in all batches.
        band: number of heads in a band; the order of tiles is that of `Items`.
        blocks: number of blocks that run at the same time.
    """
    tiles = len(lengths)
    drawing = max(min(heads * tiles, blocks), 1)
    load = np.zeros(drawing)
    for number, first in enumerate(range(0, heads, band)):
        beside = min(heads - first, band)
        within = np.arange(beside * tiles)
        turn, drawn = within // drawing, within % drawing
        block = np.where((number + turn) % 2, drawing - 1 - drawn, drawn)
        np.add.at(load, block, lengths[tiles - 1 - within // beside])
    return float(load.max())
