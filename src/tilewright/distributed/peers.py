"""Memory that the ranks of one host share.

Each rank has one allocation, which the others map: counters, and two slots for data.  Calls take the slots
in turn.  A copy engine writes a shard into a peer's slot and then sets the peer's counter.  A rank that no
longer reads a slot clears the slot's counters, and tells all peers the number of the call, the epoch; they
write to it again two calls later, after a wait for this.  `PeerMemory` runs the steps of `exchange.py` on
CUDA streams; tests run them under the checker of ranks (`tilewright.testing.ranks`).
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.distributed.exchange import (
    COUNTERS_BYTES,
    MOST_COUNTERS,
    SLOTS,
    AwaitCounter,
    ClearCounters,
    PeerByte,
    RankCall,
    SendBytes,
    SetCounter,
    SlotUse,
    Step,
    arrived,
    parts_to_peers,
    pieces_of,
    shard_to_itself,
    shards_to_peers,
)
from tilewright.errors import LaunchError, ToolchainError
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import UNTIMED
from tilewright.runtime.gpu_memory import DeviceMemory
from tilewright.targets.target import GPU

MOST_TENSORS = 256
"""Tensors in peers' memory that are kept for later calls."""

ALIGNMENT = 256
"""Alignment of a slot in bytes."""

IPC_HANDLE_BYTES = 64
"""Bytes of a handle by which another process maps memory. Source: "CUDA Driver API", `CUipcMemHandle`."""

AT_LEAST = 0
"""Flag of a stream's wait until a counter is at least a value.

Source: "CUDA Driver API", `CU_STREAM_WAIT_VALUE_GEQ`.
"""

MOST_WRITTEN = 16
"""Most counters that a stream clears one by one; it sets more by one fill, which is a kernel."""

MOST_TOGETHER = 128
"""Most waits and writes of one call of the driver. Source: "CUDA Driver API": fewer than 256."""

MOST_EPOCHS = (1 << 31) - 1
"""Largest epoch; streams compare counters as signed numbers of 32 bits."""


# ---------------------------------------------------------------- on CUDA streams


def current_stream(index: int) -> int:
    """Return the handle of PyTorch's current stream on a GPU."""
    handle: int = torch._C._cuda_getCurrentRawStream(index)
    return handle


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies on an NVIDIA GPU."""
    return tensor.is_cuda and not torch.version.hip


class CounterSteps:
    """Waits for counters and writes to them, which one call of the driver enqueues together."""

    def __init__(self) -> None:
        self._made: list[Any] = []
        self._count = 0
        self._kinds: tuple[Any, Any] | None = None

    def begin(self) -> None:
        """Discard the steps that a failed call has left."""
        self._count = 0

    def add(self, address: int, value: int, *, waits: bool) -> None:
        """Add a wait until a counter has a value or more, or a write of the value."""
        if self._kinds is None:
            kinds = CUDA_DRIVER.bindings().CUstreamBatchMemOpType
            self._kinds = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32, kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
        if self._count == len(self._made):
            self._made.append(CUDA_DRIVER.bindings().CUstreamBatchMemOpParams())
        one = self._made[self._count]
        self._count += 1
        step = one.waitValue if waits else one.writeValue
        step.operation, step.flags = self._kinds[waits], AT_LEAST if waits else 0
        step.address, step.value = address, value

    def enqueue(self, stream: int) -> None:
        """Enqueue the steps on a stream, in the order in which they were added; none are left."""
        count, self._count = self._count, 0
        if count:
            CUDA_DRIVER.call("cuStreamBatchMemOp", stream, count, self._made[:count], 0)

    @property
    def is_full(self) -> bool:
        """Whether the steps must be enqueued before the next is added."""
        return self._count >= MOST_TOGETHER


class _Bytes:
    """Bytes at an address of a GPU, for `torch.as_tensor`."""

    def __init__(self, memory: DeviceMemory, address: int, size: int) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
        }


def tensor_at(memory: DeviceMemory, address: int, size_bytes: int) -> torch.Tensor:
    """Return bytes of a GPU's memory as a tensor, which keeps the memory alive."""
    return torch.as_tensor(_Bytes(memory, address, size_bytes), device=torch.device(GPU, memory.index))


_MAPPED: list[DeviceMemory] = []
"""Memory that peers may have mapped. It stays here after its group ends: freeing it would be undefined."""


class PeerMemory:
    """The memory of one rank on its GPU, and the mapped memory of its peers.

    Args:
        call: the call that needs it first, through which ranks exchange handles.
        device: this rank's GPU.
    """

    def __init__(self, call: RankCall, device: torch.device) -> None:
        self.device = device
        self.index: int = torch.cuda.current_device() if device.index is None else device.index
        self.rank, self.size = call.ranks.rank, call.ranks.size
        self.epoch = 0
        self.last = [0] * SLOTS
        self.counts = [0] * MOST_COUNTERS
        self.slot_bytes = 0
        self.memory: DeviceMemory | None = None
        self._bases: dict[int, int] = {}
        self.idle = deque[Any]()
        self._steps = CounterSteps()
        self._sent: Any = None
        self._ends: list[Any] = [None] * SLOTS
        self._tensors: dict[Any, torch.Tensor] = {}
        self.reason = ""

    # ------------------------------------------------------------ memory

    def reserve(self, call: RankCall, slot_bytes: int) -> bool:
        """Enlarge the slots to a size, the same on all ranks; return False if ranks cannot map the memory."""
        if not self.reason and slot_bytes > self.slot_bytes:
            CUDA_DRIVER.synchronize(self.index)
            self.reason = self._map(call, max(slot_bytes, 2 * self.slot_bytes))
        return not self.reason

    def _map(self, call: RankCall, slot_bytes: int) -> str:
        """Allocate memory, and map that of all peers; return the reason if a rank cannot, or ""."""
        size = -(-slot_bytes // ALIGNMENT) * ALIGNMENT
        memory, own = self._allocated(COUNTERS_BYTES + SLOTS * size)
        found = call.trade_headers(json.dumps(own), self.device)
        why = next((f"rank {rank}: {one['why']}" for rank, one in enumerate(found) if "why" in one), "")
        if not why and len({one["host"] for one in found}) > 1:
            why = "ranks on several hosts"
        bases = dict[int, int]()
        try:
            for rank, one in enumerate(found if memory is not None and not why else ()):
                is_own = rank == self.rank
                bases[rank] = memory.address if is_own else self._opened(one["bus"], one["handle"])  # type: ignore[union-attr]
        except (LaunchError, ToolchainError) as error:
            why = f"rank {self.rank}: {str(error)[:200]}"
        with CUDA_DRIVER.current(self.index):
            for rank, base in self._bases.items():
                if rank != self.rank:
                    CUDA_DRIVER.call("cuIpcCloseMemHandle", base)
        # After the second exchange no peer has mapped the memory from before, which is freed then.
        answers = [one["why"] for one in call.trade_headers(json.dumps({"why": why}), self.device)]
        if self.memory is not None:
            _MAPPED.remove(self.memory)
        self.memory, self._bases, self.slot_bytes = memory, bases, size
        self.epoch, self.last, self.counts = 0, [0] * SLOTS, [0] * MOST_COUNTERS
        self._ends, self._tensors = [None] * SLOTS, {}
        call.ranks.known.clear()  # they have addresses of the memory from before
        if memory is None or any(answers):
            with CUDA_DRIVER.current(self.index):
                for rank, base in bases.items():
                    if rank != self.rank:
                        CUDA_DRIVER.call("cuIpcCloseMemHandle", base)
            call.trade_headers("{}", self.device)  # no peer has mapped the new memory any more
            self.memory, self._bases, self.slot_bytes = None, {}, 0
            return next(filter(None, answers))
        _MAPPED.append(memory)
        self._held = torch.cuda.Stream(self.device, priority=-1)
        self.side: int = self._held.cuda_stream
        return ""

    def _allocated(self, size_bytes: int) -> tuple[DeviceMemory | None, dict[str, str]]:
        """Allocate zeroed memory; return it with what peers need to map it, or the reason of a failure."""
        driver, host = CUDA_DRIVER, {"host": _host()}
        try:
            memory = DeviceMemory(size_bytes, self.index)
            memory.clear(0)
            with driver.current(self.index):
                # A driver that does not let streams wait for memory says so here.
                self._steps.add(memory.address, 0, waits=False)
                self._steps.add(memory.address, 0, waits=True)
                self._steps.enqueue(0)
                driver.synchronize(self.index)
                handle = driver.call("cuIpcGetMemHandle", memory.address)
                bus = driver.call("cuDeviceGetPCIBusId", 64, driver.call("cuDeviceGet", self.index))
        except (LaunchError, ToolchainError) as error:
            return None, {**host, "why": str(error)[:200]}
        text = ctypes.string_at(handle.getPtr(), IPC_HANDLE_BYTES).hex()
        return memory, {**host, "handle": text, "bus": bus.split(b"\0")[0].decode()}

    def _opened(self, bus: str, text: str) -> int:
        """Map the memory of a peer."""
        driver = CUDA_DRIVER
        with driver.current(self.index):
            peer = driver.call("cuDeviceGetByPCIBusId", bus.encode())
            own = driver.call("cuDeviceGet", self.index)
            if int(peer) != int(own) and not driver.call("cuDeviceCanAccessPeer", own, peer):
                raise LaunchError(f"GPU {int(own)} cannot address the memory of GPU {int(peer)}")
            handle = driver.bindings().CUipcMemHandle()
            ctypes.memmove(handle.getPtr(), bytes.fromhex(text), IPC_HANDLE_BYTES)
            lazy = driver.constant("CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS")
            return int(driver.call("cuIpcOpenMemHandle", handle, int(lazy)))

    def tensor(self, place: PeerByte, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor in this rank's memory."""
        key = place.offset, (*shape,), dtype
        if (found := self._tensors.get(key)) is not None:
            return found
        assert self.memory is not None
        size = math.prod(shape) * dtype.itemsize
        made = tensor_at(self.memory, self.memory.address + place.offset, size).view(dtype).view(*shape)
        if len(self._tensors) >= MOST_TENSORS:
            self._tensors.clear()
        return self._tensors.setdefault(key, made)

    def pieces(self, sizes: Sequence[int], row_bytes: int) -> int:
        """Return the pieces of each shard; see `pieces_of`."""
        return pieces_of(sizes, row_bytes, self.size)

    def address(self, place: PeerByte) -> int:
        """Return the address of a byte in the address space of this rank's GPU."""
        return self._bases[place.rank] + place.offset

    # ------------------------------------------------------------ calls

    def _turn(self) -> SlotUse:
        """Return the use of the next slot by a new call."""
        if self.epoch >= MOST_EPOCHS:
            raise LaunchError(
                f"{self.epoch} calls of one group", "a new process group, whose counters begin with 0"
            )
        self.epoch += 1
        slot = self.epoch % SLOTS
        turn = SlotUse(self.rank, self.size, slot, self.epoch, self.last[slot], self.slot_bytes)
        self.last[slot] = self.epoch
        return turn

    def run(self, steps: Iterable[Step], stream: int, source: int = 0) -> None:
        """Enqueue steps on a stream.

        Args:
            steps: the steps.
            stream: the handle of the stream.
            source: the address of the tensor whose bytes are sent.
        """
        with CUDA_DRIVER.current(self.index):
            self._enqueue(steps, stream, source)

    def _enqueue(self, steps: Iterable[Step], stream: int, source: int = 0) -> None:
        """`run` while this rank's GPU is current."""
        together, bases, call = self._steps, self._bases, CUDA_DRIVER.call
        together.begin()
        for step in steps:
            if isinstance(step, SendBytes):
                together.enqueue(stream)
                target, offset = step.target
                call("cuMemcpyAsync", bases[target] + offset, source + step.begin, step.size, stream)
            elif isinstance(step, ClearCounters):
                rank, offset = step.first
                if step.extent > MOST_WRITTEN:
                    together.enqueue(stream)
                    call("cuMemsetD32Async", bases[rank] + offset, 0, step.extent, stream)
                    continue
                for at in range(step.extent):
                    together.add(bases[rank] + offset + 4 * at, 0, waits=False)
                continue
            rank, offset = step.counter
            together.add(bases[rank] + offset, step.value, waits=isinstance(step, AwaitCounter))
            if together.is_full:
                together.enqueue(stream)
        together.enqueue(stream)

    @contextmanager
    def gathering(self, call: RankCall, own: torch.Tensor, sizes: Sequence[int]) -> Iterator[ArrivingRows]:
        """Send this rank's rows to all peers; yield the rows of all ranks, which arrive meanwhile.

        Args:
            call: the call.
            own: this rank's rows, a contiguous matrix.
            sizes: rows of all ranks.
        """
        columns, source = own.shape[1], own.data_ptr()
        row_bytes = columns * own.element_size()
        pieces = pieces_of(sizes, row_bytes, self.size)
        with self._used(call, self.size * pieces) as (turn, stream, begin):
            # Copies are enqueued before the kernel that waits for those of peers: streams may share a queue.
            CUDA_DRIVER.call("cuStreamWaitEvent", self.side, begin, 0)
            self._enqueue(shards_to_peers(turn, sizes, row_bytes, pieces), self.side, source)
            if (before := self._ends[turn.slot]) is not None:
                # The last reader of the slot, on whatever stream that was.
                CUDA_DRIVER.call("cuStreamWaitEvent", stream, before, 0)
            self._enqueue(shard_to_itself(turn, sizes, row_bytes, pieces), stream, source)
            yield ArrivingRows(self, turn, tuple(sizes), columns, own.dtype, pieces, stream)

    @contextmanager
    def scattering(
        self, call: RankCall, rows: int, columns: int, dtype: torch.dtype
    ) -> Iterator[LeavingParts]:
        """Yield parts that a kernel stores, to be sent to the ranks that own them.

        Args:
            call: the call.
            rows: rows of each part.
            columns: columns of each part.
            dtype: the dtype in which parts are sent.
        """
        pieces = pieces_of([rows] * self.size, columns * dtype.itemsize, self.size)
        with self._used(call, self.size * pieces) as (turn, stream, _):
            shape = self.size * pieces, rows // pieces, columns
            local = torch.empty(shape, dtype=dtype, device=self.device)
            for index in turn.sent_pieces(pieces):
                self.counts[index] += 1
            # Calls before this one, on whatever stream: their counts of parts, and arrivals in the slot.
            for before in self._ends:
                if before is not None:
                    CUDA_DRIVER.call("cuStreamWaitEvent", stream, before, 0)
            yield LeavingParts(self, turn, local, pieces, stream)

    def _event(self) -> Any:
        """Return an event of this rank's GPU that no call watches."""
        try:
            return self.idle.pop()
        except IndexError:
            return CUDA_DRIVER.call("cuEventCreate", UNTIMED)

    @contextmanager
    def _used(self, call: RankCall, counters: int) -> Iterator[tuple[SlotUse, int, Any]]:
        """Take the next slot; then tell the peers that this rank no longer reads it.

        Later work of the stream may write what was sent.

        Args:
            call: the call.
            counters: counters of pieces, which are cleared at the end.

        Yields:
            The use of the slot; the handle of the current stream; and an event of its work before the call.
            This rank's GPU is current meanwhile.
        """
        enqueue, turn, stream = CUDA_DRIVER.call, self._turn(), current_stream(self.index)
        with CUDA_DRIVER.current(self.index):
            begin, end = self._event(), self._event()
            self._sent = self._sent or self._event()
            enqueue("cuEventRecord", begin, stream)
            try:
                yield turn, stream, begin
            except BaseException as error:
                # Pieces may come after their counters are cleared: a later call would not wait for them.
                call.ranks.failed = f"{call} on rank {self.rank}: {type(error).__name__}: {error}"
                raise
            finally:
                self._enqueue(turn.released(counters), stream)
                enqueue("cuEventRecord", self._sent, self.side)
                enqueue("cuStreamWaitEvent", stream, self._sent, 0)
                enqueue("cuEventRecord", end, stream)
                self._ends[turn.slot] = end
                WATCH.add(PendingCall(self, begin, end, call))


@dataclass(frozen=True)
class ArrivingRows:
    """The rows of all ranks in a slot of this rank, whose own rows are already stored.

    Args:
        memory: the memory.
        turn: the call.
        sizes: rows of each rank.
        columns: elements of a row.
        dtype: dtype of the elements.
        pieces: pieces of each rank's rows.
        stream: the handle of the stream of the call.
    """

    memory: PeerMemory
    turn: SlotUse
    sizes: tuple[int, ...]
    columns: int
    dtype: torch.dtype
    pieces: int
    stream: int

    @property
    def whole(self) -> torch.Tensor:
        """The rows."""
        return self.memory.tensor(self.turn.data(self.turn.rank), (sum(self.sizes), self.columns), self.dtype)

    @property
    def counters(self) -> torch.Tensor:
        """A counter for each piece, which is `ARRIVED` once the piece is there."""
        place = self.turn.ready(self.turn.rank, 0)
        return self.memory.tensor(place, (self.turn.ranks * self.pieces,), torch.uint32)

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of `whole` and of `counters`."""
        me, turn = self.turn.rank, self.turn
        return self.memory.address(turn.data(me)), self.memory.address(turn.ready(me, 0))

    def arrivals(self) -> Iterator[int]:
        """Return each other rank, in the order of a ring, after making the stream wait for its rows."""
        for rank in self.turn.peers(1):
            self.memory.run(arrived(self.turn, self.pieces, [rank]), self.stream)
            yield rank

    def wait(self) -> None:
        """Make the stream wait for the rows of all ranks."""
        self.memory.run(arrived(self.turn, self.pieces, self.turn.peers(1)), self.stream)


@dataclass(frozen=True)
class LeavingParts:
    """Parts of a result in the order of the ranks that own them, each in pieces.

    Args:
        memory: the memory.
        turn: the call.
        local: tensor (ranks * pieces, rows of a piece, columns), which this rank stores; its own part may
            stay undefined.
        pieces: pieces of a part.
        stream: the handle of the stream of the call.
    """

    memory: PeerMemory
    turn: SlotUse
    local: torch.Tensor
    pieces: int
    stream: int

    @property
    def counters(self) -> torch.Tensor:
        """A counter for each piece, which the kernel increments after its last tile."""
        return self.memory.tensor(self.turn.sent(0), (len(self.local),), torch.uint32)

    @property
    def sent(self) -> int:
        """The address of `counters`."""
        return self.memory.address(self.turn.sent(0))

    @property
    def part_bytes(self) -> int:
        """Bytes of the part of one rank."""
        return self.local.nbytes // self.turn.ranks

    def take(self, stored: torch.Tensor) -> None:
        """Store all parts from a tensor with their rows in order, and count those of the peers."""
        self.local.copy_(stored.reshape(self.local.shape))
        self.count()

    def count(self) -> None:
        """Count the parts of the peers, after earlier work of the stream has stored them."""
        turn, counts = self.turn, self.memory.counts
        stored_pieces = turn.sent_pieces(self.pieces)
        self.memory.run([SetCounter(turn.sent(at), counts[at]) for at in stored_pieces], self.stream)

    def send(self) -> None:
        """Send the parts of all peers.

        Copies are enqueued after the kernel whose counters they wait for: streams may share a queue.
        """
        memory = self.memory
        steps = parts_to_peers(self.turn, self.part_bytes, self.pieces, memory.counts)
        memory.run(steps, memory.side, self.local.data_ptr())

    @property
    def inbox(self) -> torch.Tensor:
        """The parts that all ranks send to this one; its own part stays undefined."""
        _, rows, columns = self.local.shape
        shape = self.turn.ranks, self.pieces * rows, columns
        return self.memory.tensor(self.turn.data(self.turn.rank), shape, self.local.dtype)

    def arrivals(self, peer: int) -> torch.Tensor:
        """A counter for each piece from a peer, which is `ARRIVED` once the piece is there."""
        place = self.turn.ready(self.turn.rank, peer * self.pieces)
        return self.memory.tensor(place, (self.pieces,), torch.uint32)

    def addresses(self, peer: int) -> tuple[int, int]:
        """The addresses of a peer's part of `inbox`, and of its `arrivals`."""
        me, turn = self.turn.rank, self.turn
        part, counter = turn.data(me, peer * self.part_bytes), turn.ready(me, peer * self.pieces)
        return self.memory.address(part), self.memory.address(counter)

    def wait(self) -> torch.Tensor:
        """Make the stream wait for the parts of all peers; return `inbox`."""
        self.memory.run(arrived(self.turn, self.pieces, self.turn.peers(1)), self.stream)
        return self.inbox


def memory_of(call: RankCall, like: torch.Tensor, slot_bytes: int) -> PeerMemory | None:
    """Return the memory through which the ranks of a call exchange bytes; None if they cannot map each other.

    All ranks of a call get the same answer, because it depends on values that all of them share.

    Args:
        call: the call.
        like: a tensor on this rank's device.
        slot_bytes: bytes that each rank receives at most, the same on all ranks.

    Raises:
        LaunchError: earlier calls of the group had tensors on another GPU.
    """
    ranks = call.ranks
    if not is_on_gpu(like) or not 1 < ranks.size <= MOST_COUNTERS or not slot_bytes:
        return None
    if not ranks.maps_peers or torch.cuda.is_current_stream_capturing():
        return None
    memory: PeerMemory = ranks.memory or PeerMemory(call, like.device)
    if memory.device != like.device:  # its streams are those of the first GPU
        raise LaunchError(
            f"{call}: tensors on {like.device}, and those of earlier calls of the group on {memory.device}",
            "a process group for each GPU of a process",
        )
    ranks.memory = memory
    return memory if memory.reserve(call, slot_bytes) else None


def known_call(call: RankCall, key: Any) -> Any:
    """Return the record of an earlier call with this key; None if there is no record, or a graph is captured.

    Args:
        call: the call.
        key: all that the record depends on, by `exact`; None: the call is not recorded.
    """
    ranks = call.ranks
    found = None if key is None else ranks.known.get(key)
    if found is None or not ranks.maps_peers or ranks.group is None:
        return None
    return None if torch.cuda.is_current_stream_capturing() else found


def _host() -> str:
    """Return a name of the running system, which containers of one host share."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else os.uname().nodename


# ---------------------------------------------------------------- late peers


PAUSE_S = 0.5
"""Seconds between two checks of the calls that have not ended."""

EXIT_STATUS = 70
"""Exit status of a process whose peer did not come."""


@dataclass
class PendingCall:
    """A call whose kernels may wait for peers.

    Args:
        memory: the memory of this rank, whose GPU the kernels run on.
        begin: an event before them.
        end: an event after them.
        call: the call, with the seconds that they may wait.
        limit: the end of that time, by `time.monotonic`; None before the first kernel starts.
    """

    memory: PeerMemory
    begin: Any
    end: Any
    call: RankCall
    limit: float | None = None

    def __str__(self) -> str:
        where = f"{self.call} on rank {self.memory.rank}"
        return f"{where}: another rank did not come within {self.call.timeout:g} s"

    def has_ended(self) -> bool:
        """Return whether the call has ended; its time begins when its first kernel may start.

        Later calls record both events again.  A call may still wait for `end` as the last use of its slot:
        this use is over, so a wait for a newer record is longer, but not wrong.
        """
        with CUDA_DRIVER.current(self.memory.index), CUDA_DRIVER.any_capture():
            if CUDA_DRIVER.has_passed(self.end):
                self.memory.idle.extend((self.begin, self.end))
                return True
            if self.limit is None and CUDA_DRIVER.has_passed(self.begin):
                self.limit = time.monotonic() + self.call.timeout
            return False


class LateRanks:
    """A thread that ends the process if a kernel waits for a peer that does not come.

    A kernel that waits cannot be interrupted, and its result would be wrong if the wait were skipped.
    """

    def __init__(self) -> None:
        self._pending: deque[PendingCall] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, call: PendingCall) -> None:
        """Watch a call."""
        self._pending.append(call)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="tilewright ranks", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        while True:
            time.sleep(PAUSE_S)
            while self._pending and self._pending[0].has_ended():
                self._pending.popleft()
            limit = self._pending[0].limit if self._pending else None
            if limit is not None and time.monotonic() > limit:
                sys.stderr.write(f"RankError: {self._pending[0]}; this process ends (timeout=)\n")
                sys.stderr.flush()
                os._exit(EXIT_STATUS)


WATCH = LateRanks()
"""The watch of this process."""
