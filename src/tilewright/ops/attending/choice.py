"""Which kernel of attention serves a problem, with which tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.arch import REFERENCE, Arch
from tilewright.dtypes import bf16, f16
from tilewright.errors import LaunchError
from tilewright.ops.attending import by_warpgroups, by_warps
from tilewright.ops.attending.tiles import for_warpgroups, for_warps
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.kernel import Bound
from tilewright.runtime.specialise import spec_of
from tilewright.schedule.bulk_arrays import against_array, against_store

WARPS, WARPGROUPS = "warps", "warpgroups"
KERNELS = (WARPS, WARPGROUPS)
"""What `attention` may be told to take."""

CACHE_SHARE = 0.5
"""Of the second-level cache: keys and values that are in use at one time."""

CACHE_BYTES = 40e6
"""Of a machine that nobody has said the cache of."""

NEVER_0 = 1e-30
"""Stands for a scale of 0: a score that is hidden is -inf, which times 0 is no number."""


class Question(NamedTuple):
    """What is computed, and where.

    Args:
        infos: the arrays with four dimensions each: q, k, v and out.
        scale: of the scores.
        diagonal: row i sees the keys up to i + diagonal; None: all of them.
        with_lse: whether logarithms of sums are stored too.
        arch: the machine.
        processors: how many it has; 0: nobody knows.
    """

    infos: Mapping[str, ArrayInfo]
    scale: float
    diagonal: int | None
    with_lse: bool
    arch: Arch
    processors: int


@dataclass(frozen=True)
class Answer:
    """A kernel, and the numbers that it takes behind the arrays."""

    kernel: Bound
    numbers: tuple[float | int, ...]


def chosen(question: Question, wanted: str | None) -> Answer:
    """The kernel for a problem: the one that is wanted, or warpgroups where they can, else warps.

    Raises:
        LaunchError: warpgroups are wanted, and cannot; with every reason.
    """
    # The reference executes either; warps are executed sooner.
    if wanted == WARPGROUPS or (wanted is None and question.arch != REFERENCE):
        reasons = list(_against_warpgroups(question))
        if not reasons:
            return _by_warpgroups(question)
        if wanted == WARPGROUPS:
            raise LaunchError(
                f"attention: kernel={WARPGROUPS!r} cannot serve this call: {'; '.join(reasons)}; nearest "
                f"legal choice: kernel={WARPS!r}"
            )
    return _by_warps(question)


def _against_warpgroups(question: Question) -> Iterator[str]:
    """Why the kernel for warpgroups does not serve a problem."""
    infos, arch = question.infos, question.arch
    if arch != REFERENCE and "sm_90a" not in arch.features:
        yield f"{arch.name} has no warpgroups that multiply in the background"
    if infos["q"].dtype not in (f16, bf16):
        yield f"the arrays are {infos['q'].dtype}, and wgmma with weights in registers takes f16 and bf16"
    if infos["k"].shape[2] == 0:
        yield "there are no keys"
    for name in ("q", "k", "v"):
        yield from (text for text, _ in against_array(name, spec_of(infos[name])))
    yield from against_store("out", spec_of(infos["out"]))


def _by_warpgroups(question: Question) -> Answer:
    infos, causal = question.infos, question.diagonal is not None
    tiles = for_warpgroups(_columns(infos), infos["q"].shape[2], question.arch, causal=causal)
    kernel = by_warpgroups.attention.bind(
        causal=causal,
        negated=question.scale < 0,
        with_lse=question.with_lse,
        tiles=tiles,
        blocks=question.processors or 1,
    )
    return Answer(kernel, (*_numbers(question), band(question)))


def _by_warps(question: Question) -> Answer:
    infos = question.infos
    kernel = by_warps.attention.bind(
        causal=question.diagonal is not None,
        negated=question.scale < 0,
        with_lse=question.with_lse,
        tiles=for_warps(_columns(infos), infos["q"].dtype, question.arch),
    )
    return Answer(kernel, _numbers(question))


def _columns(infos: Mapping[str, ArrayInfo]) -> tuple[int, int]:
    return infos["k"].shape[3], infos["v"].shape[3]


def _numbers(question: Question) -> tuple[float, int]:
    """The exponent and the diagonal; a diagonal beyond all keys is as good as any other."""
    rows, keys = question.infos["q"].shape[2], question.infos["k"].shape[2]
    diagonal = min(max(question.diagonal or 0, -rows), keys)
    return max(abs(question.scale), NEVER_0) * math.log2(math.e), diagonal


def band(question: Question) -> int:
    """How many heads of queries are worked at side by side: their keys and values fit the cache."""
    q, k, v = (question.infos[name] for name in ("q", "k", "v"))
    heads, ratio = q.shape[0] * q.shape[1], q.shape[1] // k.shape[1]
    boards = question.arch.rates.boards if question.arch.rates else ()
    cache = CACHE_SHARE * (boards[0].l2_mbytes * 1e6 if boards else CACHE_BYTES)
    of_head = k.shape[2] * (k.shape[3] + v.shape[3]) * k.dtype.bytes
    at_once = max(int(cache // of_head), 1) * ratio
    rounds = -(-heads // at_once)
    return -(-heads // rounds)  # of bands that are equally long
