"""Ranks that end, raise or come late: each runs on a process of its own, whose answers end with its life."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import tilewright.distributed as td
import tilewright.torch as tt
from tilewright.distributed import exchange

LATE_S = 2.0
"""Limit of a call that waits for a late rank, in seconds."""


def raised(*operands: torch.Tensor, timeout: float) -> tuple[str, float]:
    """The message of a call that must fail, and the seconds that it took when its kernel was there."""
    tt.matmul(*operands)
    begin = time.monotonic()
    try:
        td.matmul_all_reduce(*operands, timeout=timeout)
    except td.RankError as error:
        return str(error), time.monotonic() - begin
    return "nothing was raised", time.monotonic() - begin


def ends_before(rank: int, size: int) -> tuple[str, float]:
    """The last rank ends before the call."""
    if rank == size - 1:
        os._exit(7)
    return raised(torch.ones(4, 3), torch.ones(3, 2), timeout=60)


def ends_during(rank: int, size: int) -> tuple[str, float]:
    """The last rank ends when its header has been sent, before its partial sums."""
    if rank == size - 1:
        exchange.RankCall.trade = _at_second(exchange.RankCall.trade, lambda: os._exit(8))  # type: ignore[method-assign]
    return raised(torch.ones(4, 3), torch.ones(3, 2), timeout=60)


def ends_before_sends(rank: int, size: int) -> tuple[str, float]:
    """As `ends_during`, and the other ranks send their partial sums when the last rank has ended."""
    if rank == size - 1:
        return ends_during(rank, size)
    exchange.RankCall.trade = _at_second(exchange.RankCall.trade, lambda: time.sleep(LATE_S))  # type: ignore[method-assign]
    return raised(torch.ones(4, 3), torch.ones(3, 2), timeout=60)


def _at_second(trade: object, do: Callable[[], object]) -> object:
    """The exchange of tensors, with something to do before the second one."""
    seen = list[str]()

    def changed(call: object, outgoing: object, incoming: object, what: str) -> None:
        seen.append(what)
        if len(seen) == 2:
            do()
        trade(call, outgoing, incoming, what)  # type: ignore[operator]

    return changed


def comes_late(rank: int, size: int) -> None:
    """The last rank lives, and does not call; a later call says that the group has failed."""
    group = dist.new_group(list(range(size)))
    dist.barrier()  # the others come together, however late they started
    try:
        if rank < size - 1:
            _waits_for_the_last(size, group)
    finally:
        dist.barrier()


def _waits_for_the_last(size: int, group: object) -> None:
    words = {"group": group, "timeout": LATE_S}
    begin = time.monotonic()
    said = rf"rank {size - 1} did not come; this rank waited \d+\.\d s of at most {LATE_S:g} s"
    with pytest.raises(td.RankError, match=said):
        td.matmul_all_reduce(torch.ones(4, 3), torch.ones(3, 2), **words)
    assert LATE_S <= time.monotonic() - begin < LATE_S + 20
    with pytest.raises(td.RankError, match="this group cannot be used after an earlier failure"):
        td.matmul_all_reduce(torch.ones(4, 3), torch.ones(3, 2), **words)
