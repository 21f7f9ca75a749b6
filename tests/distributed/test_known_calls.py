"""Calls through peers' memory, repeated: later calls repeat the launches of the first on other data.

All numbers are small integers, so results must be equal to those of PyTorch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.distributed.fake_gpus import Event, Launch, Ranks

import tilewright.distributed as td
from tilewright.distributed import exchange, peers, products
from tilewright.distributed.calls import How
from tilewright.errors import LaunchError
from tilewright.runtime.cuda import CUDA_DRIVER

TURNS = 6

Call = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]
"""A call of a rank in a turn; returns its result, and the expected one."""


class Drawn:
    """Operands of the ranks, which streams read after the calls return."""

    def __init__(self, size: int) -> None:
        self.size, self.kept = size, list[torch.Tensor]()

    def __call__(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        made = torch.Generator().manual_seed(seed)
        self.kept.append(torch.randint(-4, 5, shape, generator=made).to(dtype))
        return self.kept[-1]

    def of_ranks(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        return [self(*shape, seed=1000 * seed + rank, dtype=dtype) for rank in range(self.size)]


def repeated(fake: Ranks, call: Call, turns: int = TURNS) -> None:
    """Make calls one after the other without a wait; compare all results at the end."""
    found = fake.run(lambda rank: [call(rank, turn) for turn in range(turns)])
    for rank, of_rank in enumerate(found):
        for turn, (y, expected) in enumerate(of_rank):
            assert torch.equal(y, expected), f"rank {rank}, turn {turn}"


def headers(fake: Ranks) -> int:
    return fake.ranks[0].called.count("headers")


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("size", [2, 3, 4])
def test_gathered_rows(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, drawn = Ranks(size, monkeypatch), Drawn(size)

    def call(rank: int, turn: int) -> Any:
        rows, k = (6, 8) if turn % 3 else (4, 16)
        shards, b = drawn.of_ranks(rows, k, seed=turn), drawn.of_ranks(k, 8, seed=50 + turn)[rank]
        bias = drawn(8, seed=turn)
        words: dict[str, Any] = {"sizes": [rows] * size, "bias": bias, "activation": "relu"}
        return td.all_gather_matmul(shards[rank], b, **words), torch.relu(torch.cat(shards) @ b + bias)

    repeated(fake, call, 9)
    assert [len(rank.planned) for rank in fake.ranks] == [2] * size  # one launch for each shape


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_over_ranks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, drawn = Ranks(size, monkeypatch), Drawn(size)

    def call(rank: int, turn: int) -> Any:
        rows, k = (2, 8) if turn % 3 else (3, 5)
        lefts, rights = drawn.of_ranks(size * rows, k, seed=turn), drawn.of_ranks(k, 4, seed=50 + turn)
        c, residual = drawn(rows, 4, seed=turn), drawn.of_ranks(rows, 4, seed=70 + turn)[rank]
        bias = drawn(4, seed=turn)
        words: dict[str, Any] = {
            "c": c,
            "beta": 2.0,
            "bias": bias,
            "activation": "relu",
            "residual": residual,
        }
        y = td.matmul_reduce_scatter(lefts[rank], rights[rank], **words)
        whole = sum(a @ b for a, b in zip(lefts, rights, strict=True))
        return y, torch.relu(whole.split(rows)[rank] + 2 * c + bias) + residual

    repeated(fake, call, 9)
    # Of each shape: the parts of later ranks, those of earlier ranks, and the own part.
    launches = [2 * (2 + (0 < rank < size - 1)) for rank in range(size)]
    assert [len(rank.planned) for rank in fake.ranks] == launches


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("most", [products.MOST_COPIED_BYTES, 64])
def test_the_whole_sum_on_all_ranks(size: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy engines carry finished rows, if they are few and no wider than the parts."""
    monkeypatch.setattr(products, "MOST_COPIED_BYTES", most)
    fake, drawn = Ranks(size, monkeypatch), Drawn(size)
    kinds = torch.float64, torch.float32, torch.float32  # the largest first

    def call(rank: int, turn: int) -> Any:
        kind, wire = kinds[turn % 3], torch.bfloat16 if turn % 3 == 2 else None
        lefts = drawn.of_ranks(size, 3, 8, seed=turn, dtype=kind)
        rights = drawn.of_ranks(8, 4, seed=50 + turn, dtype=kind)
        bias = drawn(4, seed=turn, dtype=kind)
        y = td.matmul_all_reduce(lefts[rank], rights[rank], bias=bias, wire_dtype=wire)
        whole = sum(a @ b for a, b in zip(lefts, rights, strict=True))
        return y, whole + bias

    repeated(fake, call, 9)
    launches = [3 * (2 + (0 < rank < size - 1)) for rank in range(size)]
    assert [len(rank.planned) for rank in fake.ranks] == launches
    assert fake.ranks[0].called.count("sums") == (9 if most == 64 else 3)


@pytest.mark.parametrize("wire", [None, torch.bfloat16])
def test_sums_of_several_products(wire: torch.dtype | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are added where copy engines read them, or rounded after the last one."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        lefts = [drawn.of_ranks(8, 3, seed=turn + 9 * at) for at in range(3)]
        rights = [drawn.of_ranks(3, 4, seed=50 + turn + 9 * at) for at in range(3)]
        bias, own = drawn(4, seed=turn), [[one[rank] for one in given] for given in (lefts, rights)]
        y = td.matmul_reduce_scatter(*own, bias=bias, activation="relu", wire_dtype=wire)
        both = zip(chain(*lefts), chain(*rights), strict=True)
        whole = sum(a @ b for a, b in both)
        assert isinstance(whole, torch.Tensor)
        return y, torch.relu(whole.split(4)[rank] + bias)

    repeated(fake, call)
    assert all(len(ranks.known) == 1 for ranks in fake.groups)


def test_parts_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        kind = torch.bfloat16
        lefts, rights = (
            drawn.of_ranks(8, 4, seed=turn, dtype=kind),
            drawn.of_ranks(4, 4, seed=9 + turn, dtype=kind),
        )
        wire = kind if turn % 2 else None
        y = td.matmul_reduce_scatter(lefts[rank], rights[rank], wire_dtype=wire)
        whole = sum(a.double() @ b.double() for a, b in zip(lefts, rights, strict=True))
        return y, whole.split(4)[rank].to(kind)

    repeated(fake, call)


def test_results_of_another_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        kind = (torch.float32, torch.bfloat16)[turn % 2]
        shards, b = drawn.of_ranks(4, 6, seed=turn), drawn(6, 4, seed=turn)
        y = td.all_gather_matmul(shards[rank], b, sizes=[4, 4], out_dtype=kind)
        return y, (torch.cat(shards) @ b).to(kind)

    repeated(fake, call)
    assert all(len(ranks.known) == 2 for ranks in fake.groups)


def test_several_matrices_batches_and_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are not contiguous are copied at each call; strides are part of the key."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        shards, bs = drawn.of_ranks(1, 4, 6, seed=turn), [drawn(6, 4, seed=turn), drawn(8, 6, seed=turn).mT]
        given = shards if turn % 2 else [one.mT.contiguous().mT for one in shards]
        drawn.kept.extend(given)
        one, other = td.all_gather_matmul(given[rank], bs, sizes=[4, 4])
        fake.here.wait()
        whole = torch.cat(shards, -2)
        return torch.cat([one, other], -1), torch.cat([whole @ bs[0], whole @ bs[1]], -1)

    repeated(fake, call)
    assert all(len(rank.planned) == 4 for rank in fake.ranks)


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a gathering is a sum, and the other way around."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        shards, bs = drawn.of_ranks(4, 6, seed=turn), drawn.of_ranks(6, 4, seed=50 + turn)
        lefts = drawn.of_ranks(4, 4, seed=70 + turn)
        a, b = shards[rank].clone().requires_grad_(), bs[rank].clone().requires_grad_()
        hidden = td.all_gather_matmul(a, b, sizes=[4, 4])
        y = td.matmul_reduce_scatter(hidden, lefts[rank])
        weight = drawn(4, 4, seed=turn)
        fake.here.wait()
        found = torch.autograd.grad((y * weight).sum(), [a, b])
        drawn.kept.extend([a, b, hidden, y, *found])
        leaves = [one.clone().requires_grad_() for one in (*shards, *bs)]
        rows = torch.cat(leaves[:2])
        whole = (rows @ leaves[2]) @ lefts[0] + (rows @ leaves[3]) @ lefts[1]
        total = (whole * torch.cat([weight, weight])).sum()
        expected = torch.autograd.grad(total, [leaves[rank], leaves[2 + rank]])
        fake.here.wait()
        return torch.cat([one.flatten() for one in found]), torch.cat([one.flatten() for one in expected])

    repeated(fake, call)


@pytest.mark.parametrize("most", [products.MOST_COPIED_BYTES, 64])
def test_rows_that_gradients_gather(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy engines carry small ones, messages the others; shards may have any extents."""
    monkeypatch.setattr(products, "MOST_COPIED_BYTES", most)
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        sizes, inner, dim = (((2, 3), (5,), -2), ((4, 4), (3, 2), -3), ((0, 2), (5,), -2))[turn % 3]
        shards = [drawn(rows, *inner, seed=turn + at) for at, rows in enumerate(sizes)]
        how = How("gathered", fake.groups[rank], dim=dim, sizes=sizes)
        return products.gather(how, shards[rank]), torch.cat(shards)

    repeated(fake, call, 9)
    traded, size_bytes = fake.ranks[0].called.count("a shard"), [4 * 25, 4 * 48, 4 * 10]
    assert traded == 3 * sum(one > most for one in size_bytes)
    assert all(len(ranks.known) == sum(one <= most for one in size_bytes) for ranks in fake.groups)


def test_an_empty_shard_and_uneven_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard has its own product; the counter of an empty shard is awaited, too."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        sizes = ([1, 0], [1, 3], [0, 2])[turn % 3]
        shards = [drawn(rows, 3, seed=turn + at) for at, rows in enumerate(sizes)]
        b = drawn(3, 2, seed=turn)
        return td.all_gather_matmul(shards[rank], b, sizes=sizes), torch.cat(shards) @ b

    repeated(fake, call)
    assert not fake.ranks[0].planned


# ---------------------------------------------------------------- what a known call repeats, and what ends it


def gather_of(drawn: Drawn, rows: int = 4, **words: Any) -> Call:
    def call(rank: int, turn: int) -> Any:
        shards, b = drawn.of_ranks(rows, 6, seed=turn), drawn(6, 4, seed=turn)
        return td.all_gather_matmul(shards[rank], b, sizes=[rows] * drawn.size, **words), torch.cat(
            shards
        ) @ b

    return call


def scatter_of(drawn: Drawn, **words: Any) -> Call:
    def call(rank: int, turn: int) -> Any:
        lefts, b = drawn.of_ranks(4 * drawn.size, 6, seed=turn), drawn(6, 4, seed=turn)
        y = td.matmul_reduce_scatter(lefts[rank], b, **words)
        return y, torch.stack(lefts).sum(0).split(4)[rank] @ b

    return call


OF_GATHER = [
    "cuEventRecord",  # the beginning
    "cuStreamWaitEvent",  # by the side stream
    "cuStreamBatchMemOp",  # the peer no longer reads the slot
    "cuMemcpyAsync",
    "cuStreamBatchMemOp",  # the peer's counter
    "cuStreamWaitEvent",  # the last reader of the slot
    "cuMemcpyAsync",  # the own rows
    "cuStreamBatchMemOp",
    "launch",
]

OF_SCATTER = [
    "cuEventRecord",
    "cuStreamWaitEvent",  # the last users of both slots
    "cuStreamWaitEvent",
    "launch",
    "cuStreamBatchMemOp",  # the part is stored, and the peer no longer reads the slot
    "cuMemcpyAsync",
    "cuStreamBatchMemOp",
    "launch",
]

AT_THE_END = [
    "cuStreamBatchMemOp",  # counters are cleared, and the peer is told
    "cuEventRecord",  # of the side stream
    "cuStreamWaitEvent",
    "cuEventRecord",
]


@pytest.mark.parametrize(
    ("make", "expected"), [(gather_of, OF_GATHER), (scatter_of, OF_SCATTER)], ids=["gather", "scatter"]
)
def test_a_known_call_asks_the_driver_for_little(
    make: Callable[[Drawn], Call], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    repeated(fake, make(drawn), 3)
    for one in fake.pending:
        assert one.has_ended()  # its events are used again
    before, described = [len(rank.called) for rank in fake.ranks], list[Any]()
    monkeypatch.setattr(exchange.Ranks, "recall", lambda *given: described.append(given))
    repeated(fake, make(drawn), 1)
    assert [rank.called[at:] for rank, at in zip(fake.ranks, before, strict=True)] == 2 * [
        [*expected, *AT_THE_END]
    ]
    assert not described


def test_larger_memory_ends_known_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their addresses are those of the memory from before."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    small, large = gather_of(drawn), gather_of(drawn, 64)
    repeated(fake, lambda rank, turn: (large if turn in (3, 4) else small)(rank, turn), 9)
    assert [len(rank.planned) for rank in fake.ranks] == [3, 3]  # the small call was planned again
    assert fake.ranks[0].called.count("cuIpcCloseMemHandle") == 1


@pytest.mark.parametrize("make", [gather_of, scatter_of])
def test_tensors_on_another_gpu_are_refused(
    make: Callable[[Drawn], Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams of the memory do not wait for work on that GPU."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    call = make(drawn)
    repeated(fake, call, 2)
    for ranks in fake.groups:
        ranks.memory.device = torch.device("cuda", 1)
        ranks.known.clear()  # their keys have the device

    def refused(rank: int) -> None:
        with pytest.raises(LaunchError, match=r"tensors on cpu, and .* on cuda:1; .* group for each GPU"):
            call(rank, 0)

    fake.run(refused)


def test_headers_that_are_asked_for_are_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    repeated(fake, gather_of(drawn), 3)
    before = headers(fake)
    repeated(fake, gather_of(drawn), 2)
    assert headers(fake) == before
    repeated(fake, gather_of(drawn, check=True), 2)
    assert headers(fake) == before + 2


def test_calls_that_are_no_longer_agreed_exchange_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks forget at the same call which headers they have compared, and so do their known calls."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    repeated(fake, gather_of(drawn), 3)
    monkeypatch.setattr(exchange, "MOST_AGREED", 1)
    assert all(ranks.known for ranks in fake.groups)
    repeated(fake, scatter_of(drawn), 1)
    assert all(len(ranks.known) == len(ranks.agreed) == 1 for ranks in fake.groups)
    before = headers(fake)
    repeated(fake, gather_of(drawn), 1)
    assert headers(fake) == before + 1


def test_known_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    monkeypatch.setattr(exchange, "MOST_KNOWN", 2)
    calls = [gather_of(drawn, rows) for rows in (6, 4, 2)]
    repeated(fake, lambda rank, turn: calls[turn % 3](rank, turn), 7)
    assert all(len(ranks.known) <= 2 for ranks in fake.groups)


@pytest.mark.parametrize("make", [gather_of, scatter_of])
def test_captured_calls_and_others_without_peers_memory(
    make: Callable[[Drawn], Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    call = make(drawn)

    def changing(rank: int, turn: int) -> Any:
        fake.here.capturing, fake.groups[rank].maps_peers = turn == 2, turn != 4
        found = call(rank, turn)
        fake.here.wait()
        return found

    repeated(fake, changing)
    traded = [one for one in fake.ranks[0].called if one in ("a shard", "partial sums")]
    assert len(traded) == 2


def test_code_that_was_dropped_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    repeated(fake, scatter_of(drawn), 2)
    for made in (one for one in fake.kept if isinstance(one, Launch)):
        for launch in made.executable.holders:
            launch.forget(made.executable)
    repeated(fake, scatter_of(drawn), 2)
    assert [len(rank.planned) for rank in fake.ranks] == [4, 4]


def test_other_numbers_are_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros of both signs are equal, and not the same factor."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        lefts, b, c = drawn.of_ranks(4, 2, seed=turn), drawn(2, 4, seed=turn), drawn(2, 4, seed=turn)
        beta = (1.0, 3.0, 0.0, -0.0)[turn % 4]
        y = td.matmul_reduce_scatter(lefts[rank], b, c=c, beta=beta)
        return y, (lefts[0] + lefts[1]).split(2)[rank] @ b + beta * c

    repeated(fake, call, 8)
    assert all(len(ranks.known) == 4 for ranks in fake.groups)


def test_calls_of_two_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    calls, streams = (gather_of(drawn), scatter_of(drawn)), dict[int, int]()

    def call(rank: int, turn: int) -> Any:
        other = streams.setdefault(rank, fake.here.new_stream())
        with fake.on(other if turn % 3 else fake.here.current):
            return calls[turn // 3 % 2](rank, turn)

    repeated(fake, call, 18)


OF_THE_SIDE, OF_EARLIER_CALLS, AT_LAST = 0, 1, 2
"""The waits for events of a call that gathers, in their order."""


@pytest.mark.parametrize("left_out", [None, OF_THE_SIDE, AT_LAST])
def test_rows_that_other_kernels_write(left_out: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before the call writes the rows, and one after it writes them again."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    real, waits = fake.call, [0, 0]

    def call_but_one(name: str, *given: Any) -> Any:
        rank = fake.here.rank
        waits[rank] += name == "cuStreamWaitEvent"
        if name == "cuStreamWaitEvent" and (waits[rank] - 1) % 3 == left_out:
            return None
        return real(name, *given)

    def call(rank: int, turn: int) -> Any:
        shards, b = drawn.of_ranks(4, 6, seed=turn), drawn(6, 4, seed=turn)
        rows = torch.zeros(4, 6)
        drawn.kept.append(rows)

        def write(value: torch.Tensor) -> None:
            time.sleep(0.003)
            rows.numpy()[...] = value.numpy()

        fake.enqueue("before", fake.here.current, lambda: write(shards[rank]))
        y = td.all_gather_matmul(rows, b, sizes=[4, 4])
        fake.enqueue("after", fake.here.current, lambda: write(torch.full((4, 6), 7.0)))
        return y, torch.cat(shards) @ b

    repeated(fake, gather_of(drawn), 4)
    if left_out == AT_LAST:  # the copy to the peer takes longer than all else
        fake.copy_s[0] = 0.02
    monkeypatch.setattr(CUDA_DRIVER, "call", call_but_one)
    if left_out is None:
        repeated(fake, call)
    else:
        with pytest.raises(AssertionError, match="turn"):
            repeated(fake, call)


def test_an_error_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank that raised has not waited for all pieces; it tells its peers that its slot is free."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    repeated(fake, gather_of(drawn), 2)

    def fails(*given: Any) -> None:
        raise LaunchError("no launch")

    monkeypatch.setattr(products.ArrivingProduct, "run", fails)

    def call(rank: int) -> str:
        operands = drawn(4, 6, seed=rank), drawn(6, 4)
        with pytest.raises(LaunchError, match="no launch"):
            td.all_gather_matmul(*operands, sizes=[4, 4])
        with pytest.raises(td.RankError, match="after an earlier failure") as raised:
            td.all_gather_matmul(*operands, sizes=[4, 4])
        assert fake.here.called[-4:] == AT_THE_END
        return str(raised.value)

    for rank, said in enumerate(fake.run(call)):
        assert f"all_gather_matmul (call 3 of the group) on rank {rank}: LaunchError: no launch" in said


def test_a_sum_without_memory_for_its_result_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next call of this rank would send its parts to the peers' call, and all results be wrong."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)
    call = scatter_of(drawn)
    repeated(fake, call, 2)

    def fails(*given: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(products.SumExtents, "result", fails)

    def failing(rank: int) -> None:
        with pytest.raises(torch.OutOfMemoryError):
            call(rank, 2)
        with pytest.raises(td.RankError, match=r"after an earlier failure.*OutOfMemoryError: no memory"):
            call(rank, 3)

    fake.run(failing)


def test_the_time_of_a_call_begins_when_its_kernels_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Ranks(2, monkeypatch)
    memory: Any = SimpleNamespace(index=1, rank=1, idle=deque())
    begin, end = Event(), Event()
    begin.last, end.last = threading.Event(), threading.Event()
    call = exchange.RankCall(fake.groups[1], "a sum", 5, 3.0)
    pending = peers.PendingCall(memory, begin, end, call)
    assert not pending.has_ended()
    assert pending.limit is None
    begin.last.set()
    assert not pending.has_ended()
    assert pending.limit is not None
    assert 0 < pending.limit - time.monotonic() <= 3
    assert str(pending) == "a sum (call 5 of the group) on rank 1: another rank did not come within 3 s"
    assert not memory.idle
    end.last.set()
    assert pending.has_ended()
    assert [*memory.idle] == [begin, end]


def test_arguments_that_launches_can_tell_apart_differ() -> None:
    a = torch.ones(3, 4)
    others = [
        a.mT,
        a.double(),
        a[1:],
        a[:, :2],
        torch.ones(13)[1:].view(3, 4),
        torch._neg_view(a),
    ]
    assert len({exchange.exact(one) for one in (a, *others)}) == 1 + len(others)
    assert exchange.exact({"c": a, "beta": 1}) != exchange.exact({"c": a, "beta": 1.0})
    assert exchange.exact([a, None]) == exchange.exact((a.clone(), None))
    assert exchange.exact(np.float64(0.0)) != exchange.exact(np.float64(-0.0))
    with pytest.raises(TypeError):
        exchange.exact(torch.nn.Buffer(a)._make_subclass(type("Own", (torch.Tensor,), {}), a))


def test_only_sums_of_floats_are_rounded_for_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """257 and -256 add up to 1; 257 becomes 256 in bf16, if it travels as bf16."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int, turn: int) -> Any:
        integers, wide = turn % 3 == 0, turn % 3 == 1
        a = torch.ones(4, 257 - rank, dtype=torch.int8 if integers else torch.bfloat16)
        b = torch.full((257 - rank, 4), 1 - 2 * rank, dtype=a.dtype)
        drawn.kept.extend([a, b])
        words = {"out_dtype": torch.bfloat16} if integers else {"wire_dtype": torch.float32 if wide else None}
        y = td.matmul_reduce_scatter(a, b, **words)
        # Rank 0 owns the part 257, and rank 1 gets it.
        return y, torch.full((2, 4), float(integers or wide or rank == 0), dtype=torch.bfloat16)

    repeated(fake, call)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_tensors_as_numbers_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known call would repeat the value of the first one."""
    fake, drawn = Ranks(2, monkeypatch), Drawn(2)

    def call(rank: int) -> None:
        a, b, c = drawn(4, 2), drawn(2, 4), drawn(2, 4)
        words: dict[str, Any] = {name: torch.tensor(2.0)}
        with pytest.raises(LaunchError, match=f"{name} is a tensor.* {name}.item()"):
            td.matmul_reduce_scatter(a, b, c=c, **words)
        with pytest.raises(LaunchError, match=f"{name} is a tensor.* {name}.item()"):
            td.all_gather_matmul(c, b, c=a, sizes=[2, 2], **words)

    fake.run(call)
