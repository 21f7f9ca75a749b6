"""Ranks of one process, each with a GPU that is not there: streams are threads, and memory is the host's.

A stream does its work in order, and now and then sleeps before a step; two streams meet only at events and
counters, as on a GPU.  A kernel waits for all counters of its arrays, computes its flow in NumPy, and counts
the parts that it stored.
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cuda.bindings import driver as bindings

import tilewright as tw
from tilewright.distributed import calls, exchange, functions, gradients, peers
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.kernel import Bound

LIMIT_S = 15.0
"""Seconds after which a wait is a deadlock."""

FAILED = threading.Event()
"""Set by the first stream that fails, which ends the waits of all others."""

WAITS = bindings.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32

HANDLE_BYTES = 64
"""Bytes of a handle of memory that other ranks map; the first eight are its address."""


def words(address: int, count: int) -> np.ndarray[Any, Any]:
    """Counters at an address."""
    return np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))


def until(is_there: Callable[[], bool], what: str) -> None:
    """Wait until something is there."""
    limit = time.monotonic() + LIMIT_S
    while not is_there():
        assert not FAILED.is_set(), f"another stream failed: {what}"
        assert time.monotonic() < limit, f"deadlock: {what}"
        time.sleep(0.0002)


class Event:
    """An event; a wait means the work before its last record."""

    def __init__(self) -> None:
        self.last: threading.Event | None = None

    @property
    def has_passed(self) -> bool:
        return self.last is None or self.last.is_set()


class Stream:
    """A queue of work, and the thread that does it."""

    def __init__(self, seed: int) -> None:
        self.queue = SimpleQueue[Callable[[], None] | None]()
        self.errors: list[BaseException] = []
        self.draw = random.Random(seed)
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self) -> None:
        while (step := self.queue.get()) is not None:
            if self.draw.random() < 0.15:
                time.sleep(0.001)
            try:
                if not self.errors:
                    step()
            except BaseException as error:  # noqa: BLE001 the test shows it
                self.errors.append(error)
                FAILED.set()


class Rank:
    """A rank: its streams, and the calls of the driver that it made."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.streams: dict[int, Stream] = {0: Stream(100 * rank)}
        self.current = self.new_stream()
        self.called: list[str] = []
        self.planned: list[str] = []
        self.capturing = False

    def new_stream(self) -> int:
        handle = 10 * len(self.streams)
        self.streams[handle] = Stream(100 * self.rank + handle)
        return handle

    def wait(self) -> None:
        """Wait for all streams."""
        for stream in self.streams.values():
            done = threading.Event()
            stream.queue.put(done.set)
            until(lambda done=done: done.is_set() or FAILED.is_set(), "a stream")  # type: ignore[misc]
        errors = [error for stream in self.streams.values() for error in stream.errors]
        for error in sorted(errors, key=lambda one: "another stream" in str(one)):
            raise error


class Launch:
    """The launches of a kernel on arrays like those of the first call."""

    def __init__(self, fake: Ranks, bound: Bound, arguments: Sequence[Any]) -> None:
        self.fake = fake
        self.names = [parameter.name for parameter in bound.program.parameters]
        self.like = {
            name: (tuple(one.shape), tuple(one.stride()), one.dtype)
            for name, one in zip(self.names, arguments, strict=True)
            if isinstance(one, torch.Tensor)
        }
        self.flow = bound.flow(*arguments)
        self.executable = SimpleNamespace(holders=set())

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        assert stream is None, "PyTorch's current stream"
        numbers = {
            name: one for name, one in zip(self.names, arguments, strict=True) if name not in self.like
        }
        places = dict(zip(self.like, pointers, strict=True))
        self.fake.enqueue("launch", self.fake.here.current, lambda: self.run(places, numbers))

    def run(self, places: Mapping[str, int], numbers: Mapping[str, Any]) -> None:
        given = {name: self.array(name, place) for name, place in places.items()}
        for name, counters in given.items():
            if name.startswith("READY"):
                until(lambda counters=counters: bool((counters >= exchange.ARRIVED).all()), f"{name}")  # type: ignore[misc]
        stored = {store.operand.name for store in self.flow.stores}
        plain = {
            name: one for name, one in given.items() if name not in stored and not name.startswith("SENT")
        }
        used = {name: tw.ir.evaluate(self.flow, plain, numbers) for name in stored}
        for name, found in used.items():
            given[name][...] = found[name].astype(given[name].dtype)
        if "SENT" in given:
            given["SENT"] += np.uint32(1)

    def array(self, name: str, place: int) -> np.ndarray[Any, Any]:
        shape, strides, dtype = self.like[name]
        size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        memory = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(place)
        flat = np.frombuffer(memory, NUMPY[dtype])
        return np.lib.stride_tricks.as_strided(flat, shape, [one * dtype.itemsize for one in strides])


NUMPY = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.bfloat16: tw.bf16.numpy,
    torch.uint32: np.dtype(np.uint32),
}


class Ranks:
    """The ranks of a group, and the driver of their GPUs.

    Args:
        size: the number of ranks.
        monkeypatch: replaces the driver and PyTorch's functions for GPUs.
    """

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size, self.of_thread, self.copy_s = size, threading.local(), [0.0] * size
        FAILED.clear()
        self.ranks = [Rank(rank) for rank in range(size)]
        groups = [
            SimpleGroup(rank=lambda rank=rank: rank, size=lambda: size, _device_types=[torch.device("cpu")])
            for rank in range(size)
        ]
        self.groups = [exchange.Ranks(group) for group in groups]  # type: ignore[arg-type]
        self.kept: list[Any] = [*groups]
        self.barrier = threading.Barrier(size)
        self.posted: dict[int, Any] = {}
        self.pending: list[Any] = []
        driver = CUDA_DRIVER
        monkeypatch.setattr(driver, "call", self.call)
        monkeypatch.setattr(driver, "bindings", lambda: bindings)
        monkeypatch.setattr(driver, "current", lambda index: nullcontext())
        monkeypatch.setattr(driver, "any_capture", nullcontext)
        monkeypatch.setattr(driver, "synchronize", lambda index=0: self.here.wait())
        monkeypatch.setattr(driver, "has_passed", lambda event: event.has_passed)
        monkeypatch.setattr(peers, "is_on_gpu", lambda tensor: True)
        monkeypatch.setattr(peers, "current_stream", lambda index: self.here.current)
        monkeypatch.setattr(peers, "tensor_at", tensor_at)
        monkeypatch.setattr(peers, "WATCH", SimpleNamespace(add=self.pending.append))
        monkeypatch.setattr(peers, "_MAPPED", [])
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.here.rank)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.here.capturing)
        monkeypatch.setattr(
            torch.cuda, "Stream", lambda *_, **__: SimpleNamespace(cuda_stream=self.here.new_stream())
        )
        monkeypatch.setattr(exchange.RankCall, "trade", self.trade)
        monkeypatch.setattr(exchange.RankCall, "trade_headers", self.trade_headers)
        monkeypatch.setattr(functions, "ranks_of", lambda group: self.groups[self.here.rank])
        monkeypatch.setattr(Bound, "planned", self.planned(Bound.planned))
        # The allocator of a GPU uses memory again in a stream's order; ours at once, so nothing is freed.
        for name in ("new_empty", "contiguous", "reshape"):
            monkeypatch.setattr(torch.Tensor, name, self.keeping(getattr(torch.Tensor, name)), raising=False)
        for name in ("empty", "empty_like"):
            monkeypatch.setattr(torch, name, self.keeping(getattr(torch, name)))
        # Products on the processor, and PyTorch's gradients, are in no stream.
        monkeypatch.setattr(calls.of_matmul, "matmul", self.waiting(calls.of_matmul.matmul))
        for name in ("clone", "copy_"):
            monkeypatch.setattr(torch.Tensor, name, self.waiting(getattr(torch.Tensor, name)), raising=False)
        for name in ("gather", "gather_products", "reduce_products"):
            monkeypatch.setattr(gradients, name, self.waiting(getattr(gradients, name)))

    def waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wait for all streams before and after a function."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.here.wait()
            made = function(*args, **kwargs)
            self.here.wait()
            return made

        return call

    def keeping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            self.kept.append(made)
            return made

        return call

    @property
    def here(self) -> Rank:
        """The rank of this thread."""
        return self.ranks[self.of_thread.rank]

    # ------------------------------------------------------------ programs

    def run(self, program: Callable[[int], Any]) -> list[Any]:
        """Run a program on all ranks, each in a thread; return their results when their streams are done."""
        found, errors = [None] * self.size, list[BaseException]()

        def work(rank: int) -> None:
            self.of_thread.rank = rank
            try:
                found[rank] = program(rank)
                self.here.wait()
            except BaseException as error:  # noqa: BLE001 raised below
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
            raise error
        return found

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Make another stream current."""
        before, self.here.current = self.here.current, stream
        try:
            yield
        finally:
            self.here.current = before

    def exchanged(self, mine: Any) -> list[Any]:
        """Return what all ranks give."""
        self.posted[self.here.rank] = mine
        self.barrier.wait(LIMIT_S)
        found = [self.posted[rank] for rank in range(self.size)]
        self.barrier.wait(LIMIT_S)
        return found

    def trade_headers(self, text: str, device: torch.device) -> list[dict[str, Any]]:
        self.here.called.append("headers")
        return [exchange.json.loads(one) for one in self.exchanged(text)]

    def trade(self, outgoing: Mapping[int, Any], incoming: Mapping[int, Any], what: str) -> None:
        self.here.wait()
        self.here.called.append(what)
        for rank, of_rank in enumerate(self.exchanged(outgoing)):
            if rank in incoming:
                incoming[rank].copy_(of_rank[self.here.rank])
        self.exchanged(None)

    def planned(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Plan a launch of the kernels over ranks; others run on the processor, after the streams."""

        def plan(bound: Bound, arguments: tuple[Any, ...], target: str | None) -> Any:
            names = {parameter.name for parameter in bound.program.parameters}
            if not any(name.startswith(("READY", "SENT")) for name in names):
                self.here.wait()
                return real(bound, arguments, target)
            self.here.planned.append(bound.program.name)
            made = Launch(self, bound, arguments)
            self.kept.append(made)
            found = [one.data_ptr() for one in arguments if isinstance(one, torch.Tensor)]
            return SimpleNamespace(prepared=made), found

        return plan

    # ------------------------------------------------------------ the driver

    def enqueue(self, name: str, stream: int, step: Callable[[], None]) -> None:
        self.here.called.append(name)
        self.here.streams[int(stream)].queue.put(step)

    def call(self, name: str, *given: Any) -> Any:
        if name == "cuStreamBatchMemOp":
            stream, count, steps, _ = given
            assert len(steps) == count < 256
            of_steps = [
                (one.waitValue.operation == WAITS, int(one.waitValue.address), int(one.waitValue.value))
                for one in steps
            ]
            return self.enqueue(name, stream, lambda: together(of_steps))
        if name == "cuMemcpyAsync":
            target, source, size, stream = given
            seconds = self.copy_s[self.here.rank] if stream != self.here.current else 0

            def copy() -> None:
                time.sleep(seconds)
                ctypes.memmove(target, source, size)

            return self.enqueue(name, stream, copy)
        if name == "cuMemsetD32Async":
            target, value, count, stream = given
            return self.enqueue(name, stream, lambda: words(target, count).fill(value))
        if name == "cuMemsetD8Async":
            target, value, size, stream = given
            return self.enqueue(name, stream, lambda: ctypes.memset(target, value, size) and None)
        if name == "cuEventRecord":
            event, stream = given
            event.last = threading.Event()
            return self.enqueue(name, stream, event.last.set)
        if name == "cuStreamWaitEvent":
            stream, event, _ = given
            awaited = event.last
            return self.enqueue(
                name, stream, lambda: None if awaited is None else until(awaited.is_set, "an event")
            )
        return getattr(self, name)(*given)

    def cuEventCreate(self, flags: int) -> Event:  # noqa: N802
        self.here.called.append("cuEventCreate")
        return Event()

    def cuMemAlloc(self, size: int) -> int:  # noqa: N802
        held = ctypes.create_string_buffer(size + 256)
        self.kept.append(held)
        return -(-ctypes.addressof(held) // 256) * 256

    def cuIpcGetMemHandle(self, address: int) -> Any:  # noqa: N802
        held = ctypes.create_string_buffer(address.to_bytes(8, "little"), HANDLE_BYTES)
        return SimpleNamespace(getPtr=lambda: ctypes.addressof(held))

    def cuIpcOpenMemHandle(self, handle: Any, flags: int) -> int:  # noqa: N802
        return int.from_bytes(ctypes.string_at(handle.getPtr(), 8), "little")

    def cuIpcCloseMemHandle(self, address: int) -> None:  # noqa: N802
        self.here.called.append("cuIpcCloseMemHandle")

    def cuDeviceGet(self, index: int) -> int:  # noqa: N802
        return index

    def cuDeviceGetPCIBusId(self, size: int, index: int) -> bytes:  # noqa: N802
        return b"%d\0" % index

    def cuDeviceGetByPCIBusId(self, bus: bytes) -> int:  # noqa: N802
        return int(bus)

    def cuDeviceCanAccessPeer(self, own: int, peer: int) -> bool:  # noqa: N802
        return own != peer


class SimpleGroup(SimpleNamespace):
    """A process group, of which nobody asks more than its size."""


def together(steps: Sequence[tuple[bool, int, int]]) -> None:
    """Wait for counters and write them, in their order."""
    for waits, address, value in steps:
        [counter] = [words(address, 1)]
        if waits:
            until(lambda counter=counter, value=value: int(counter[0]) >= value, f"a counter, for {value}")  # type: ignore[misc]
        else:
            counter[0] = value


def tensor_at(memory: Any, address: int, size_bytes: int) -> torch.Tensor:
    """A tensor of the host's memory."""
    return torch.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), dtype=torch.uint8)
