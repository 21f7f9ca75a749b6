"""Cases of ranks with a GPU each: copies into peers' memory, kernels that wait for them, and their rates.

    python -m tests.distributed.on_gpus [--ranks 2]

prints rates and times of this machine.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from cProfile import Profile
from functools import partial
from io import StringIO
from itertools import combinations
from pathlib import Path
from pstats import Stats
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed import cases
from tests.distributed.cases import compare, f64
from tests.distributed.problems import solve
from tests.distributed.ranks import GPUS, Failed, failures, run_ranks

import tilewright as tw
import tilewright.distributed as td
import tilewright.torch as tt
from tilewright.distributed.calls import ArrivingProduct, LeavingProduct, OwnProduct, scattering, sums_of
from tilewright.distributed.exchange import AwaitCounter, RankCall, SetCounter, ranks_of
from tilewright.distributed.peers import PeerMemory, memory_of
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

DATA = 3
"""Problems that take turns. Every second call uses a slot, so it holds the data of another problem."""

CALLS = 51
"""Calls of each kernel, whose results must have equal bits."""


@contextmanager
def held(size_bytes: int) -> Iterator[tuple[RankCall, PeerMemory]]:
    """Hold the default group, with peers' memory of a size."""
    with ranks_of(None).call("a test", 60.0) as call:
        memory = memory_of(call, torch.empty(1, device="cuda"), size_bytes)
        assert memory is not None, ranks_of(None).memory.reason
        yield call, memory


def delay(call: int, rank: int) -> None:
    """Make one rank late, another one at each call."""
    draw = random.Random(100 * call)
    if draw.randrange(2) == rank % 2 and draw.random() < 0.4:
        torch.cuda._sleep(draw.randrange(1_000_000))


def sets(*shape: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    made = [torch.Generator("cuda").manual_seed(sum(shape, 977 * seed + data)) for data in range(DATA)]
    return [torch.randn(shape, generator=one).to(dtype) for one in made]


def copies(rank: int, size: int) -> None:
    """Uneven shards, each of which arrives whole, call after call."""
    for rows, width, dtype in ((16384, 2048, torch.bfloat16), (1001, 37, torch.float32), (3, 5, torch.int8)):
        wholes = sets(rows, width, dtype=dtype)
        for even in (True, False):
            sizes = list(td.shares(rows, size)) if even else cases.uneven(rows, size)
            with held(wholes[0].nbytes) as (call, memory):
                for turn in range(CALLS):
                    whole = wholes[turn % DATA]
                    delay(turn, rank)
                    with memory.gathering(call, whole.split(sizes)[rank].contiguous(), sizes) as arriving:
                        arriving.wait()
                        found = arriving.whole.clone()
                    assert torch.equal(found, whole), f"call {turn} of {rows}x{width}"


SHAPES = ((8192, 512, 2048), (4096, 384, 256), (1001, 300, 200), (7, 5, 3))
"""M, N and K of products. The shards of the first one travel in pieces."""


def arriving(rank: int, size: int) -> None:
    """Products whose kernels wait for shards, compared with float64; equal bits at every call."""
    for dtype in (torch.bfloat16, torch.float32):
        for shape in SHAPES if dtype == torch.bfloat16 else SHAPES[2:3]:
            m, n, k = shape
            wholes, b, bias = (
                sets(m, k, dtype=dtype),
                sets(k, n, dtype=dtype, seed=rank)[0],
                sets(n, dtype=dtype)[0],
            )
            sizes, first = list(td.shares(m, size)), list[torch.Tensor]()
            with held(wholes[0].nbytes) as (call, memory):
                begin = rank * memory.pieces(sizes, k * b.element_size())
                product = ArrivingProduct(begin, "relu", has_bias=True, sums=sums_of(b))
                for turn in range(CALLS):
                    whole = wholes[turn % DATA]
                    delay(turn, rank)
                    out = torch.full((m, n), float("nan"), dtype=dtype)
                    with memory.gathering(call, whole.split(sizes)[rank].contiguous(), sizes) as rows:
                        product.run(rows, b, out, bias)
                    if turn < DATA:
                        wide = whole.to(f64)
                        expected = torch.relu(wide @ b.to(f64) + bias.to(f64))
                        magnitudes = wide.abs() @ b.to(f64).abs() + bias.to(f64).abs()
                        compare(out, expected, magnitudes, k)
                        first.append(out)
                    assert torch.equal(out, first[turn % DATA]), f"call {turn} of {shape} in {dtype}"
            assert not any(torch.equal(one, other) for one, other in combinations(first, 2))


def not_awaited(rank: int, size: int) -> None:
    """A kernel that does not wait for the last rank reads its old rows: the comparison sees it."""
    m, n, k = 8192, 512, 2048
    wholes, b = sets(m, k, dtype=torch.bfloat16), sets(k, n, dtype=torch.bfloat16)[0]
    sizes = list(td.shares(m, size))
    with held(wholes[0].nbytes) as (call, memory):
        begin = rank * memory.pieces(sizes, k * b.element_size())
        product = ArrivingProduct(begin, None, has_bias=False, sums=sums_of(b))
        for turn in range(4):
            whole, out = wholes[turn % DATA], torch.empty(m, n, dtype=torch.bfloat16)
            dist.barrier()
            is_late, is_wrong = rank == size - 1, rank == 0 and turn == 3
            if is_late:
                torch.cuda._sleep(200_000_000)
            with memory.gathering(call, whole.split(sizes)[rank].contiguous(), sizes) as rows:
                if is_wrong:  # as if the rows were there already
                    rows.counters.view(torch.int32).fill_(1)
                product.run(rows, b, out, None)
                torch.cuda.current_stream().synchronize()
                expected = whole.to(f64) @ b.to(f64)
                is_right = bool(((out.to(f64) - expected).abs() < 1).all())
                assert is_right != is_wrong, f"call {turn}: {is_right}"
                if is_wrong:
                    time.sleep(1)  # the late rows come before the counters are cleared


def leaving(rank: int, size: int) -> None:
    """Sums over ranks of parts that copy engines take away while the kernel multiplies."""
    for dtype in (torch.bfloat16, torch.float32, f64):
        for m, n, k in SHAPES[:3] if dtype == torch.bfloat16 else SHAPES[2:3]:
            rows, sums = -(-m // size), f64 if dtype == f64 else torch.float32
            lefts = [sets(rows * size, k + other, dtype=dtype, seed=other) for other in range(size)]
            rights = [sets(k + other, n, dtype=dtype, seed=other) for other in range(size)]
            first = list[torch.Tensor]()
            left, own = LeavingProduct(size, rank), OwnProduct(size, rank, sums_of(rights[rank][0]))
            with held(size * rows * n * sums.itemsize) as (call, memory):
                for turn in range(CALLS):
                    at = turn % DATA
                    delay(turn, rank)
                    out = torch.full((rows, n), float("nan"), dtype=dtype)
                    with memory.scattering(call, rows, n, sums) as parts:
                        parts.local.fill_(float("nan"))
                        left.run(parts, lefts[rank][at], rights[rank][at])
                        parts.send()
                        own.run(parts, lefts[rank][at], rights[rank][at], out)
                    if turn < DATA:
                        mine = [one[at].split(rows)[rank].to(f64) for one in lefts]
                        others = [one[at].to(f64) for one in rights]
                        expected = sum(a @ b for a, b in zip(mine, others, strict=True))
                        magnitudes = sum(a.abs() @ b.abs() for a, b in zip(mine, others, strict=True))
                        compare(out, expected, magnitudes, size * (k + size))
                        first.append(out)
                    assert torch.equal(out, first[at]), f"call {turn} of {(m, n, k)} in {dtype}"


def stores_to_peers(rank: int, size: int) -> None:
    """A kernel that stores its tiles into the memory of two ranks, and counts them there."""
    if size != 2:
        return
    rows, n, k = 500, 384, 160
    lefts = [sets(2 * rows, k, dtype=torch.bfloat16, seed=one) for one in range(2)]
    b = sets(k, n, dtype=torch.bfloat16)[0]
    owners = [rank, 1 - rank]  # this rank first: the driver asks whose memory an array begins in
    with held(4 * size * rows * n) as (_, memory):
        data, counted = (memory._turn() for _ in range(2))  # neither slot is used for copies meanwhile
        bases = [memory.address(data.data(owner, rank * rows * n * 4)) for owner in owners]
        counts = [memory.address(counted.ready(owner, 40 + rank)) for owner in owners]

        def across(addresses: Sequence[int], shape: tuple[int, ...], element: tw.DType) -> Any:
            """An array whose first dimension is the owner, in the memory of two ranks."""
            held = SimpleNamespace(address=addresses[0], index=rank, driver=CUDA_DRIVER)
            inner = (4 * n, 4) if len(shape) == 3 else ()
            return DeviceArray(held, shape, (addresses[1] - addresses[0], *inner), element)

        parts, sent = across(bases, (2, rows, n), tw.f32), across(counts, (2,), tw.u32)
        own = memory.tensor(data.data(rank), (2, rows, n), torch.float32)
        for turn in range(CALLS):
            own.fill_(float("nan"))
            torch.cuda.synchronize()
            dist.barrier()
            delay(turn, rank)
            left = lefts[rank][turn % DATA].view(2, rows, k)[owners]
            scattering(left, b, parts, sent, 1)
            stream = torch.cuda.current_stream().cuda_stream
            waits = [AwaitCounter(counted.ready(rank, 40 + peer), turn + 1) for peer in range(2)]
            memory.run(waits, stream)
            for peer in range(2):
                expected = lefts[peer][turn % DATA].split(rows)[rank].to(f64) @ b.to(f64)
                assert ((own[peer].to(f64) - expected).abs() < 1e-3).all(), f"call {turn}, part {peer}"
            torch.cuda.synchronize()
            dist.barrier()
        for place in (data, counted):
            memory.run(place.released(), torch.cuda.current_stream().cuda_stream)


def host_us(call: Callable[[], object], calls: int = 10) -> float:
    """Microseconds of the host for a call: the median over groups of calls that the GPU's queue can hold."""
    took = []
    for turn in range(23):
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        took += [(time.perf_counter() - begin) * 1e6 / calls] if turn >= 3 else []
    return median(took)


def host_times(rank: int, size: int) -> None:
    """Print where the host's time of small calls goes.

    The mode of `torch.set_default_device` is off meanwhile: it looks at each operation of PyTorch.
    """
    kind, device = torch.bfloat16, torch.device("cuda", rank)
    a, dy, b = (torch.randn(*shape, dtype=kind) for shape in ((128, 64), (128, 64), (64, 96)))
    whole, leaf = torch.empty(128 * size, 64, dtype=kind), b.clone().requires_grad_()
    own = torch.empty(128 // size, 96, dtype=kind)
    mlp = td.ParallelGatedMLP(64, 96, sequence_parallel=True, equal_rows=True, dtype=kind, device=device)
    x, words = a.clone().requires_grad_(), {"sizes": [128] * size}
    calls: dict[str, Callable[[], object]] = {
        "all_gather_matmul": lambda: td.all_gather_matmul(a, b, **words),
        "matmul_reduce_scatter": lambda: td.matmul_reduce_scatter(a, b),
        "matmul_reduce_scatter, bf16 on the wire": lambda: td.matmul_reduce_scatter(a, b, wire_dtype=kind),
        "matmul_all_reduce": lambda: td.matmul_all_reduce(a, b),
        "all_gather_matmul, with a gradient": lambda: td.all_gather_matmul(x, leaf, **words),
        "a gated MLP": lambda: mlp(a),
        "a gated MLP, forward and backward": lambda: torch.autograd.grad(mlp(x), [x, *mlp.parameters()], dy),
        "NCCL + cuBLAS: all-gather, product": lambda: (dist.all_gather_into_tensor(whole, a), whole @ b),
        "NCCL + cuBLAS: product, reduce-scatter": lambda: dist.reduce_scatter_tensor(own, a @ b),
    }
    torch.set_default_device(None)
    try:
        for name, call in calls.items():
            took = host_us(call)
            if rank == 0:
                print(f"{took:7.0f} µs of the host for each call: {name}", flush=True)
        for name, took in driver_us(rank, size).items():
            if rank == 0:
                print(f"{took:7.1f} µs of the host: {name}", flush=True)
        for name in list(calls)[:2]:
            with Profile() as found:
                for _ in range(100):
                    calls[name]()
            torch.cuda.synchronize()
            text = StringIO()
            Stats(found, stream=text).sort_stats("tottime").print_stats(30)
            if rank == 0:
                print(name, text.getvalue(), flush=True)
    finally:
        torch.set_default_device(device)


def driver_us(rank: int, size: int) -> dict[str, float]:
    """Microseconds of the host for each function of the driver that a call uses."""
    made, source = dict[str, float](), torch.ones(1 << 14, dtype=torch.uint8, device="cuda")
    with held(1 << 20) as (_, memory):
        turn, stream, event = memory._turn(), torch.cuda.current_stream().cuda_stream, memory._event()
        own, peer = memory.address(turn.data(rank)), memory.address(turn.data((rank + 1) % size))
        counter = turn.ready(rank, 0)
        at = memory.address(counter)
        writes = [SetCounter(turn.ready(rank, index), 0) for index in range(8)]
        call = CUDA_DRIVER.call
        of_driver: dict[str, Callable[[], object]] = {
            "cuCtxGetCurrent": lambda: call("cuCtxGetCurrent"),
            "cuStreamIsCapturing": lambda: CUDA_DRIVER.is_capturing(memory.side),
            "cuEventRecord": lambda: call("cuEventRecord", event, stream),
            "cuStreamWaitEvent": lambda: call("cuStreamWaitEvent", stream, event, 0),
            "cuStreamWriteValue32": lambda: call("cuStreamWriteValue32", stream, at, 0, 0),
            "cuStreamWaitValue32": lambda: call("cuStreamWaitValue32", stream, at, 0, 0),
            "cuStreamBatchMemOp, one wait": lambda: memory.run([AwaitCounter(counter, 0)], stream),
            "cuStreamBatchMemOp, eight writes": lambda: memory.run(writes, stream),
            "cuMemsetD32Async": lambda: call("cuMemsetD32Async", at, 0, 64, stream),
            "cuMemcpyAsync, this GPU": lambda: call("cuMemcpyAsync", own, source.data_ptr(), 1 << 14, stream),
            "cuMemcpyAsync, peer": lambda: call("cuMemcpyAsync", peer, source.data_ptr(), 1 << 14, stream),
            "torch.Tensor.new_empty": lambda: source.new_empty(1 << 14),
        }
        for name, one in of_driver.items():
            made[name] = host_us(one, 20)
        torch.cuda.synchronize()
        dist.barrier()
        memory.run(turn.released(), stream)
    return made


def grows(rank: int, size: int) -> None:
    """A larger call gets larger memory, and counters that begin again."""
    for rows in (64, 4096, 256, 65536):
        a, b = sets(rows, 256, dtype=torch.float32, seed=rank)[0], torch.ones(256, 16)
        found = td.all_gather_matmul(a, b, sizes=[rows] * size)
        assert (found.split(rows)[rank] - a @ b).abs().max() < 1e-3


def streams(rank: int, size: int) -> None:
    """Calls on two streams of one thread, which take turns."""
    both = [torch.cuda.Stream() for _ in range(2)]
    a, b = sets(1024, 512, dtype=torch.bfloat16, seed=rank), sets(512, 256, dtype=torch.bfloat16)[0]
    torch.cuda.synchronize()
    for call in (partial(td.all_gather_matmul, sizes=[1024] * size), td.matmul_reduce_scatter):
        expected = [call(one, b) for one in a]
        torch.cuda.synchronize()
        found = []
        for turn in range(24):
            with torch.cuda.stream(both[turn % 3 % 2]):
                found.append(call(a[turn % DATA], b))
        torch.cuda.synchronize()
        assert all(torch.equal(one, expected[turn % DATA]) for turn, one in enumerate(found))


def captured(rank: int, size: int) -> None:
    """A captured call replays with other data: it exchanges by NCCL."""
    a, b = sets(256, 512, dtype=torch.bfloat16, seed=rank), sets(512, 256, dtype=torch.bfloat16)[0]
    words = {"sizes": [256] * size}
    expected = [td.all_gather_matmul(one, b, **words) for one in a]
    summed = [td.matmul_reduce_scatter(one, b) for one in a]
    x = a[0].clone()
    ranks_of(None).maps_peers = False
    td.all_gather_matmul(x, b, **words), td.matmul_reduce_scatter(x, b)  # NCCL connects before a capture
    ranks_of(None).maps_peers = True
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y, z = td.all_gather_matmul(x, b, **words), td.matmul_reduce_scatter(x, b)
    for turn in range(6):
        x.copy_(a[turn % DATA])
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(y, expected[turn % DATA], rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(z, summed[turn % DATA], rtol=1e-2, atol=1e-2)


def by_nccl(case: Callable[[int, int], None], rank: int, size: int) -> None:
    """A case without peers' memory."""
    ranks = ranks_of(None)
    ranks.maps_peers = False
    try:
        case(rank, size)
    finally:
        ranks.maps_peers = True


def problems(first: int, count: int, rank: int, size: int) -> None:
    """Random problems, whatever number of ranks they name."""
    failed = []
    for number in range(first, first + count):
        try:
            solve(number, rank, size)
        except AssertionError as error:
            failed.append(f"{number}: {error}")
    assert not failed, failed


PEERS = {
    case.__name__: case
    for case in (copies, not_awaited, arriving, leaving, stores_to_peers, grows, streams, captured)
}
"""Cases of peers' memory."""

LIBRARY = {
    case.__name__: case
    for case in (
        cases.gathers,
        cases.scatters,
        cases.narrow_parts,
        cases.equal_bits,
        cases.orders,
        cases.gradients,
        cases.invariant,
        cases.quantised,
        cases.modules,
        cases.placements,
        cases.disagreements,
    )
}
"""Cases of the library's functions."""

EVERY = {
    **PEERS,
    "host_times": host_times,
    **LIBRARY,
    **{
        f"{name} by NCCL": partial(by_nccl, case)
        for name, case in LIBRARY.items()
        if case is not cases.disagreements
    },
    **{f"problems from {first}": partial(problems, first, 25) for first in range(1000, 1100, 25)},
}
"""All cases by name."""


# ---------------------------------------------------------------- rates


def timed(work: Callable[[], object], turns: int = 15) -> float:
    """Median milliseconds of work that all ranks begin together."""
    took = []
    for turn in range(turns + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda._sleep(400_000)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        took += [begin.elapsed_time(end)] if turn >= 3 else []
    return median(took)


def rates(rank: int, size: int) -> dict[str, float]:
    """GB/s of copies to the next rank, alone and by all ranks at once; milliseconds of products."""
    made = dict[str, float]()
    source, size_bytes = torch.ones(256 << 20, dtype=torch.uint8), 256 << 20
    with held(size_bytes) as (_, memory):
        turn = memory._turn()
        target = memory.address(turn.data((rank + 1) % size))
        stream = torch.cuda.current_stream().cuda_stream

        def copy() -> None:
            CUDA_DRIVER.call("cuMemcpyAsync", target, source.data_ptr(), size_bytes, stream)

        for name, everyone in (("one rank copies, GB/s", False), ("all ranks copy, GB/s", True)):
            took = timed(copy if everyone or rank == 0 else lambda: None)
            made[name] = round(size_bytes / took / 1e6, 1)
        torch.cuda.synchronize()
        dist.barrier()
        memory.run(turn.released(), stream)
    for m, n, k in ((8192, 28672 // size, 4096), (4096, 6144 // size, 4096), (8192, 57344 // size, 8192)):
        for name, call in gathers(m, n, k, rank, size).items():
            made[f"all-gather {m}x{n}x{k}, {name}, ms"] = round(timed(call), 3)
    for m, n, k in ((8192, 4096, 14336 // size), (4096, 4096, 4096 // size), (8192, 8192, 28672 // size)):
        for name, call in scatters(m, n, k, size).items():
            made[f"reduce-scatter {m}x{n}x{k}, {name}, ms"] = round(timed(call), 3)
    return made


def gathers(m: int, n: int, k: int, rank: int, size: int) -> dict[str, Callable[[], object]]:
    """Calls of gathered rows times a matrix."""
    a, b = (torch.randn(*one, dtype=torch.bfloat16) for one in ((m // size, k), (k, n)))
    whole, words = torch.empty(m, k, dtype=torch.bfloat16), {"sizes": [m // size] * size}
    return {
        "tilewright": lambda: td.all_gather_matmul(a, b, **words),
        "tilewright by NCCL": lambda: by_nccl(lambda *_: td.all_gather_matmul(a, b, **words), rank, size),
        "tilewright alone": lambda: tt.matmul(whole, b),
        "NCCL + torch": lambda: (dist.all_gather_into_tensor(whole, a), whole @ b),
        "torch alone": lambda: whole @ b,
        "NCCL alone": lambda: dist.all_gather_into_tensor(whole, a),
    }


def scatters(m: int, n: int, k: int, size: int) -> dict[str, Callable[[], object]]:
    """Calls of a product whose rows are added over ranks."""
    a, b = (torch.randn(*one, dtype=torch.bfloat16) for one in ((m, k), (k, n)))
    own = torch.empty(m // size, n, dtype=torch.bfloat16)
    return {
        "tilewright": lambda: td.matmul_reduce_scatter(a, b),
        "tilewright, bf16 on the wire": lambda: td.matmul_reduce_scatter(a, b, wire_dtype=torch.bfloat16),
        "NCCL + torch": lambda: dist.reduce_scatter_tensor(own, a @ b),
        "tilewright alone": lambda: tt.matmul(a, b, out_dtype=torch.float32),
        "torch alone": lambda: a @ b,
    }


def told_when_done(name: str, case: Callable[[int, int], Any], rank: int, size: int) -> Any:
    """Run a case, and print how long it took; a time limit may end the program before its last line."""
    begin, said = time.monotonic(), "right"
    try:
        return case(rank, size)
    except Exception as error:
        said = f"{type(error).__name__}: {str(error)[:300]}"
        raise
    finally:
        print(f"{name}, rank {rank}, after {time.monotonic() - begin:.1f} s: {said}\n", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cases", nargs="*", default=[], help="names of cases; * stands for all")
    parser.add_argument("--seconds", type=float, default=30, help="limit of a case")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--log", type=Path, help="a file that gets the tracebacks")
    asked = parser.parse_args()
    chosen = EVERY if asked.cases == ["*"] else {name: EVERY[name] for name in asked.cases}
    work: dict[str, Any] = {**({"rates": rates} if asked.rates else {}), **chosen}
    begin = time.monotonic()
    with TemporaryDirectory() as folder:
        told = [partial(told_when_done, name, case) for name, case in work.items()]
        answers = run_ranks(asked.ranks, Path(folder), told, asked.seconds, GPUS)
    failed = failures(list(work), answers)
    if asked.log is not None:
        asked.log.write_text(failed)
    for name, of_case in zip(work, answers, strict=True):
        last = [str(one).strip().splitlines()[-1][:300] for one in of_case if isinstance(one, Failed)]
        print(f"{name}: {' | '.join(last) or 'right'}")
    if asked.rates:
        for rank, of_rank in enumerate(answers[0]):
            print(f"rank {rank}:", json.dumps(of_rank, indent=1) if isinstance(of_rank, dict) else of_rank)
    print(f"{time.monotonic() - begin:.1f} s")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
