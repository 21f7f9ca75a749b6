"""Products over 2 to 8 ranks of one host, beside NCCL + cuBLAS and PyTorch's asynchronous tensor parallelism.

    python benchmarks/distributed.py --ranks 2 [--seconds 140] [--wire f32] [--quick] [--json FILE]
    python benchmarks/distributed.py --ranks 2 --target cpu --quick

Gathered rows times a matrix, and a product whose rows are added over ranks, in bf16, with the weights of
models of 8 and 70 billion parameters; then the gated MLP of a block, forward, and forward and backward.  All
ranks begin each call together; a sample is the time of the slowest rank.  Calls take turns, and the most
important rows come first.  The host's work is hidden, and reported apart.

For each row: the bytes that a rank must receive, over the rate of copies by all ranks at once, measured in
the same run; the time of the product alone, the faster of ours and cuBLAS; and the most that overlap can
give, (wire + multiply) / max(wire, multiply).  Partial sums travel in bf16, as those of the peers do, or with
--wire f32 in f32.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reporting import arguments, keep, table

from tilewright.errors import TilewrightError
from tilewright.tune.measure import Measurement, Timing

NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""Variables that keep NVLink multicast off in all libraries."""

OURS, NCCL, ASYNC = "tilewright", "NCCL + cuBLAS", "torch async TP"
ALONE, CUBLAS = "tilewright alone", "cuBLAS alone"

MODELS = {"8B": (4096, 14336, 6144), "70B": (8192, 28672, 10240)}
"""The widths of the residual stream, the MLP, and queries, keys and values."""

ROWS = (8192, 4096, 16384, 2048, 1024)
"""Rows of all ranks, the most important first."""

UNITS = {"bf16": 2.0**-8, "f32": 2.0**-24}


def problems(ranks: int, quick: bool) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Kind, name, and (M, N, K) on one rank."""
    if quick:
        yield "all-gather", "small", (64 * ranks, 96, 64)
        yield "reduce-scatter", "small", (64 * ranks, 96, 64)
        yield "MLP", "small", (32 * ranks, 64, 128)
        yield "MLP, backward", "small", (32 * ranks, 64, 128)
        return
    for m in ROWS:
        for model, (width, inner, heads) in MODELS.items():
            yield "all-gather", f"{model} gate, up", (m, 2 * inner // ranks, width)
            yield "reduce-scatter", f"{model} down", (m, width, inner // ranks)
            yield "all-gather", f"{model} q, k, v", (m, heads // ranks, width)
            yield "reduce-scatter", f"{model} out", (m, width, width // ranks)
        if m in (8192, 2048):
            for model, (width, inner, _) in MODELS.items():
                yield "MLP", model, (m, width, inner)
                yield "MLP, backward", model, (m, width, inner)


# ---------------------------------------------------------------- one rank


class Worker:
    """A rank: its calls, and the clock that all ranks share.

    Args:
        rank: its number.
        asked: the arguments of the program.
    """

    def __init__(self, rank: int, asked: Any) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank, self.ranks = torch, dist, rank, asked.ranks
        self.on_gpu, self.deadline = asked.target == "cuda", time.monotonic() + asked.seconds
        self.has_async = self.on_gpu and not asked.without_async
        self.sleep = 2_000_000  # cycles: a millisecond
        self.rounds = 3 if asked.quick else 11
        self.dtype = "bf16" if self.on_gpu else "f32"
        self.kind = torch.bfloat16 if self.on_gpu else torch.float32
        self.device = torch.device("cuda", rank) if self.on_gpu else torch.device("cpu")
        self.wire = torch.float32 if asked.wire == "f32" else self.kind
        self.one = torch.ones(1, device=self.device)
        self.wire_gbs = self.rate() if self.on_gpu else 1.0

    def drawn(self, *shape: int, seed: int) -> Any:
        made = self.torch.Generator(self.device).manual_seed(seed)
        return self.torch.randn(shape, generator=made, device=self.device).to(self.kind)

    def wait(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def once(self, call: Callable[[], object]) -> tuple[float, float]:
        """Microseconds of a call that all ranks begin together, and of the host."""
        torch = self.torch
        self.wait()
        if not self.on_gpu:
            self.dist.barrier()
            begin = time.perf_counter()
            call()
            took = (time.perf_counter() - begin) * 1e6
            return took, took
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.dist.all_reduce(self.one)
        torch.cuda._sleep(self.sleep)  # the host enqueues meanwhile
        self.dist.all_reduce(self.one)  # all ranks begin together
        first.record()
        begin = time.perf_counter()
        call()
        host = (time.perf_counter() - begin) * 1e6
        last.record()
        self.wait()
        return first.elapsed_time(last) * 1e3, host

    def measured(self, calls: Mapping[str, Callable[[], object]]) -> tuple[Measurement, dict[str, float]]:
        """Time calls in turns; a sample is that of the slowest rank."""
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for turn in range(self.rounds + 2):
            for name, call in calls.items():
                sample = self.once(call)
                samples[name] += [sample] if turn >= 2 else []
        found = self.torch.tensor([[list(one) for one in of] for of in samples.values()], device=self.device)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        of_calls = dict(zip(samples, found.tolist(), strict=True))
        timings = tuple(Timing(name, tuple(us for us, _ in of)) for name, of in of_calls.items())
        how = "CUDA events after a wait of all ranks" if self.on_gpu else "wall clock after a barrier"
        host = {name: statistics.median(us for _, us in of) for name, of in of_calls.items()}
        return Measurement(f"{how}; the slowest rank", timings), host

    def rate(self) -> float:
        """GB/s that each rank receives while every rank copies to the next one by its copy engine."""
        from tilewright.distributed.exchange import ranks_of
        from tilewright.distributed.peers import memory_of
        from tilewright.runtime.cuda import CUDA_DRIVER

        size_bytes = 256 << 20
        source = self.torch.ones(size_bytes, dtype=self.torch.uint8, device=self.device)
        with ranks_of(None).call("rate of copies", 60.0) as call:
            memory = memory_of(call, source, size_bytes)
            if memory is None:
                sys.exit(f"ranks do not map each other's memory: {ranks_of(None).memory.reason}")
            turn = memory._turn()
            target = memory.address(turn.data((self.rank + 1) % self.ranks))

            def copy() -> None:
                stream = self.torch.cuda.current_stream().cuda_stream
                CUDA_DRIVER.call("cuMemcpyAsync", target, source.data_ptr(), size_bytes, stream)

            took, _ = self.measured({"copy": copy})
            self.wait()
            self.dist.barrier()
            memory.run(turn.released(), self.torch.cuda.current_stream().cuda_stream)
        return size_bytes / took["copy"].us.median / 1e3

    # ------------------------------------------------------------ problems

    def gathered(self, m: int, n: int, k: int) -> tuple[dict[str, Any], Any, float]:
        """Calls of gathered rows times a matrix, the rows to compare, and the bytes that a rank receives."""
        import tilewright.distributed as td
        import tilewright.torch as tt

        torch, dist = self.torch, self.dist
        a = self.drawn(m // self.ranks, k, seed=self.rank)
        b = self.drawn(n, k, seed=100 + self.rank).mT
        whole = torch.empty(m, k, dtype=self.kind, device=self.device)
        words = {"sizes": [m // self.ranks] * self.ranks}

        def nccl() -> Any:
            dist.all_gather_into_tensor(whole, a)
            return whole @ b

        nccl()
        calls: dict[str, Any] = {OURS: lambda: td.all_gather_matmul(a, b, **words), NCCL: nccl}
        if self.has_async:
            name = dist.group.WORLD.group_name
            fused = torch.ops.symm_mem.fused_all_gather_matmul
            calls[ASYNC] = lambda: fused(a, [b], 0, name, return_A=False)[1][0]
        calls |= {ALONE: lambda: tt.matmul(whole, b), CUBLAS: lambda: whole @ b}

        def reference(rows: Any) -> tuple[Any, Any, Any]:
            wide = whole[rows].double()
            return wide @ b.double(), wide.abs() @ b.double().abs(), 0.0

        return calls, reference, (self.ranks - 1) / self.ranks * m * k * whole.element_size()

    def scattered(self, m: int, n: int, k: int) -> tuple[dict[str, Any], Any, float]:
        """Calls of a product whose rows are added over ranks; see `gathered`."""
        import tilewright.distributed as td
        import tilewright.torch as tt

        torch, dist = self.torch, self.dist
        a, b = self.drawn(m, k, seed=self.rank), self.drawn(n, k, seed=100 + self.rank).mT
        own = torch.empty(m // self.ranks, n, dtype=self.kind, device=self.device)

        def nccl() -> Any:
            dist.reduce_scatter_tensor(own, a @ b)
            return own

        calls: dict[str, Any] = {OURS: lambda: td.matmul_reduce_scatter(a, b, wire_dtype=self.wire)}
        if self.on_gpu:
            calls[NCCL] = nccl
        if self.has_async:
            name = dist.group.WORLD.group_name
            fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
            calls[ASYNC] = lambda: fused(a, b, "sum", 0, name)
        calls |= {ALONE: lambda: tt.matmul(a, b), CUBLAS: lambda: a @ b}

        def reference(rows: Any) -> tuple[Any, Any, Any]:
            sums = []
            for owner in range(self.ranks):  # each rank has a part of the sums of these rows
                there = rows + owner * (m // self.ranks)
                left, right = a[there].double(), b.double()
                part = left @ right
                three = torch.stack([part, left.abs() @ right.abs(), part.abs()])
                dist.all_reduce(three)
                sums.append(three)
            return tuple(sums[self.rank])

        return calls, reference, (self.ranks - 1) / self.ranks * m * n * self.wire.itemsize

    def block(self, m: int, width: int, inner: int, *, backward: bool) -> tuple[dict[str, Any], Any, float]:
        """Calls of a gated MLP whose rows are cut among ranks, as its weights are."""
        import tilewright.distributed as td

        torch, dist, functional = self.torch, self.dist, self.torch.nn.functional
        words: dict[str, Any] = {"sequence_parallel": True, "wire_dtype": self.wire}
        words["equal_rows"] = True  # the peers exchange no headers either
        mlp = td.ParallelGatedMLP(width, inner, dtype=self.kind, device=self.device, **words)
        x = self.drawn(m // self.ranks, width, seed=self.rank).requires_grad_(backward)
        dy = self.drawn(m // self.ranks, width, seed=50 + self.rank)
        weights = [one.detach().requires_grad_(backward) for one in mlp.parameters()]
        gate, up, down = weights
        leaves = [x, *mlp.parameters()]
        gathers, scatters = _torch_collectives(torch, dist, self.ranks)

        def ours() -> Any:
            y = mlp(x)
            return torch.autograd.grad(y, leaves, dy) if backward else y

        def like(rows: Callable[[Any], Any], sums: Callable[[Any], Any]) -> Any:
            whole = rows(x)
            y = sums((functional.silu(whole @ gate.mT) * (whole @ up.mT)) @ down.mT)
            return torch.autograd.grad(y, [x, *weights], dy) if backward else y

        calls: dict[str, Any] = {OURS: ours}
        if self.on_gpu:
            calls[NCCL] = lambda: like(gathers, scatters)
            name = dist.group.WORLD.group_name

            def fused() -> Any:
                both = torch.ops.symm_mem.fused_all_gather_matmul(
                    x, [gate.mT, up.mT], 0, name, return_A=False
                )
                hidden = functional.silu(both[1][0]) * both[1][1]
                return torch.ops.symm_mem.fused_matmul_reduce_scatter(hidden, down.mT, "sum", 0, name)

            calls |= {ASYNC: fused} if self.has_async and not backward else {}
        calls[CUBLAS] = lambda: like(lambda one: torch.cat([one] * self.ranks), lambda one: one[: len(x)])
        exchanges = (3, 2) if backward else (1, 1)  # of rows, and of sums
        received = (self.ranks - 1) / self.ranks * m * width
        return calls, None, received * (2 * exchanges[0] + self.wire.itemsize * exchanges[1])

    def row(self, kind: str, name: str, shape: tuple[int, int, int]) -> dict[str, Any]:
        """Verify a problem and time its calls."""
        torch = self.torch
        if kind.startswith("MLP"):
            calls, reference, received = self.block(*shape, backward=kind.endswith("backward"))
        else:
            calls, reference, received = (self.gathered if kind == "all-gather" else self.scattered)(*shape)
        without, context = (
            dict[str, str](),
            torch.no_grad() if "backward" not in kind else torch.enable_grad(),
        )
        with context:
            for label in list(calls):
                if label not in (OURS, ALONE, CUBLAS):
                    try:  # PyTorch decides at the call which operations it has
                        calls[label]()
                        self.wait()
                    except (RuntimeError, AttributeError, ValueError) as error:
                        without[label] = str(error).partition("\n")[0]
                        del calls[label]
            error = self.error(calls[OURS], reference, shape) if reference is not None else None
            taken, host = self.measured(calls)
        us = {label: taken[label].us.median for label in calls}
        wire, multiply = received / self.wire_gbs / 1e3, min(us[one] for one in (ALONE, CUBLAS) if one in us)
        products = 2 if not kind.startswith("MLP") else 6 / self.ranks * (3 if "backward" in kind else 1)
        best = min((us[label] for label in (NCCL, ASYNC) if label in us), default=None)
        return {
            "name": f"{kind}<{self.ranks} ranks, {self.dtype}, {'x'.join(map(str, shape))}>",
            "kind": kind,
            "of": name,
            "ranks": self.ranks,
            "dtype": self.dtype,
            "wire_dtype": str(self.wire).removeprefix("torch."),
            "shape": list(shape),
            "error_of_bound": error,
            "wire_gbs": self.wire_gbs,
            "received_bytes": received,
            "wire_us": wire,
            "multiply_us": multiply,
            "most_gain": (wire + multiply) / max(wire, multiply),
            "gain": (wire + multiply) / us[OURS],
            "of_limit": max(wire, multiply) / us[OURS],
            "of_best": None if best is None else best / us[OURS],
            "rate_of_alone": us[ALONE] / us[OURS] if ALONE in us else None,
            "tflops": products * shape[0] * shape[1] * shape[2] / us[OURS] / 1e6,
            "host_us": host,
            "without": without,
            **taken.record(),
        }

    def error(self, call: Callable[[], Any], reference: Any, shape: tuple[int, int, int]) -> float:
        """The largest error of some rows, relative to its bound; they begin the shard of each rank."""
        torch, (m, _, k) = self.torch, shape
        found = call()
        each = len(found) // self.ranks if len(found) == m else len(found)
        first = torch.arange(min(each, 16), device=self.device)
        rows = torch.cat([first + shard * each for shard in range(len(found) // each)])
        expected, magnitudes, parts = reference(rows)
        unit = 2.0**-24
        bound = (k * self.ranks + 8) * unit * magnitudes + UNITS[self.dtype] * expected.abs() + 1e-30
        bound = bound + (1.01 * UNITS["bf16"] * parts if self.wire == torch.bfloat16 else 0.0)
        worst = float(((found[rows].double() - expected).abs() / bound).nan_to_num(1e9).max())
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst


def _torch_collectives(torch: Any, dist: Any, ranks: int) -> tuple[Any, Any]:
    """Gathering of rows and sums of rows over ranks, each the other's gradient, by `torch.distributed`."""

    def gather(x: Any) -> Any:
        made = x.new_empty((len(x) * ranks, *x.shape[1:]))
        dist.all_gather_into_tensor(made, x.contiguous())
        return made

    def scatter(x: Any) -> Any:
        made = x.new_empty((len(x) // ranks, *x.shape[1:]))
        dist.reduce_scatter_tensor(made, x.contiguous())
        return made

    class Gather(torch.autograd.Function):  # type: ignore[misc]
        forward = staticmethod(lambda ctx, x: gather(x))
        backward = staticmethod(lambda ctx, dy: scatter(dy))

    class Scatter(torch.autograd.Function):  # type: ignore[misc]
        forward = staticmethod(lambda ctx, x: scatter(x))
        backward = staticmethod(lambda ctx, dy: gather(dy))

    return Gather.apply, Scatter.apply


def work(rank: int, rendezvous: str, asked: Any) -> None:
    """Run a rank: rank 0 prints and writes."""
    os.environ.update(NO_MULTICAST)
    import torch
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if asked.target == "cuda" else "gloo"
    if asked.target == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=asked.ranks)
    if asked.target == "cuda" and not asked.without_async:
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        enable_symm_mem_for_group(dist.group.WORLD.group_name)
    worker, rows = Worker(rank, asked), list[dict[str, Any]]()
    for kind, name, shape in problems(asked.ranks, asked.quick):
        left = torch.tensor([worker.deadline - time.monotonic()])
        dist.all_reduce(left, op=dist.ReduceOp.MIN)
        if asked.only and asked.only not in kind:
            continue
        if float(left) < 5:
            break
        try:
            rows.append(worker.row(kind, name, shape))
            print(HEAD_LINE if rank == 0 and len(rows) == 1 else "", end="", flush=True)
            if rank == 0:
                print("  ".join(map(str, columns(rows[-1]))), flush=True)
        except (AssertionError, TilewrightError, RuntimeError) as error:
            rows.append(
                {"kind": kind, "of": name, "shape": list(shape), "ranks": asked.ranks, "failed": str(error)}
            )
            print(f"FAILED on rank {rank}: {rows[-1]}", flush=True)
        if rank == 0:
            keep(asked, "distributed", asked.target, rows)
        if worker.on_gpu:
            torch.cuda.empty_cache()
    if rank == 0:
        print(table(HEAD, [columns(one) for one in rows if "failed" not in one]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


HEAD = (
    "problem",
    "ranks",
    "M x N x K",
    "ours µs",
    "NCCL + cuBLAS",
    "async TP",
    "multiply",
    "wire",
    "gain",
    "most",
    "of limit",
    "of best",
    "host µs",
)
HEAD_LINE = "  ".join(HEAD) + "\n"


def columns(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row."""
    us = {name: f"{found['median_us']:.0f}" for name, found in row["timings"].items()}
    shape = "x".join(map(str, row["shape"]))
    return [
        f"{row['kind']}, {row['of']}",
        str(row["ranks"]),
        shape,
        us[OURS],
        us.get(NCCL, ""),
        us.get(ASYNC, ""),
        f"{row['multiply_us']:.0f}",
        f"{row['wire_us']:.0f}",
        f"{row['gain']:.2f}",
        f"{row['most_gain']:.2f}",
        f"{row['of_limit']:.2f}",
        "" if row["of_best"] is None else f"{row['of_best']:.2f}",
        f"{row['host_us'][OURS]:.0f}",
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes, each with a GPU")
    parser.add_argument("--target", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=140, help="limit; rows that do not fit are left out")
    said_wire = "f32: parts of sums are not rounded before they travel; default: bf16 on GPUs"
    parser.add_argument("--wire", choices=["f32"], help=said_wire)
    parser.add_argument("--only", default="", help="a part of the kinds' names, such as MLP")
    said = "leave out PyTorch's asynchronous tensor parallelism"
    parser.add_argument("--without-async", action="store_true", help=said)
    asked = parser.parse_args()
    from torch.multiprocessing import get_context

    os.environ.update(NO_MULTICAST)
    limit = time.monotonic() + asked.seconds + 15
    with TemporaryDirectory() as folder:
        given = (str(Path(folder) / "rendezvous"), asked)
        context = get_context("spawn")
        ranks = [context.Process(target=work, args=(rank, *given)) for rank in range(asked.ranks)]
        for one in ranks:
            one.start()
        try:
            for one in ranks:
                one.join(max(limit - time.monotonic(), 0.1))
        finally:
            late = [rank for rank, one in enumerate(ranks) if one.is_alive()]
            for one in ranks:
                one.kill()
    codes: Sequence[int | None] = [one.exitcode for one in ranks]
    sys.exit(f"ranks {late} did not end in time" if late else int(any(codes)))


if __name__ == "__main__":
    main()
