"""Messages between the ranks of a process group: what each rank calls, then the shards and partial sums.

A call has two exchanges.  First every rank sends a header to every other rank: the operation, its number,
the caller's line, shapes, dtypes and options.  All ranks compare all headers, so that all raise the same
error before anything is computed.  Then tensors travel from rank to rank, as bytes: nothing adds them on the
way.  They travel as messages of the process group, or copy engines write them into memory of the peers: the
last section has the steps of such a call.
"""

from __future__ import annotations

import json
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath
from threading import RLock
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from tilewright.errors import LaunchError, TilewrightError
from tilewright.targets.target import HOST

TIMEOUT_S = 120.0
"""Default time in seconds that a rank waits for the others in one exchange."""

HEADER_BYTES = 2048
"""Bytes of a header, a JSON text padded with zeros."""

MOST_AGREED = 4096
"""Largest number of headers that a rank remembers as compared."""

MOST_KNOWN = 256
"""Largest number of records of calls that a rank keeps."""

_OTHERS_S = 0.02
"""Seconds that a rank whose wait has failed still gives each other rank, to name all that are missing."""

BYTES = torch.uint8
"""Dtype as which all tensors are sent, because transports do not know all other dtypes."""

_TAG = 7433
"""Tag of the library's messages, which keeps them apart from the user's own."""


class RankError(TilewrightError):
    """Another rank raised, ended, was late, or called something else; names the ranks and the calls."""


# ---------------------------------------------------------------- groups

_KNOWN: dict[str, Ranks] = {}
"""The ranks of each process group, by the group's name."""

_KNOWN_LOCK = RLock()


def ranks_of(group: Any) -> Ranks:
    """Return the ranks of a process group.

    Args:
        group: a process group, a `DeviceMesh` of one dimension, or None for the default group.

    Raises:
        LaunchError: there is no default group, this process is not in the group, or a mesh has several
            dimensions.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise LaunchError(
            "tilewright.distributed: this process has no process group",
            "call torch.distributed.init_process_group first",
        )
    if group is not None and hasattr(group, "mesh_dim_names"):
        if group.ndim != 1:
            raise LaunchError(
                f"tilewright.distributed: group is a DeviceMesh of {group.ndim} dimensions",
                "one of its dimensions, such as mesh['tp']",
            )
        group = group.get_group()
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise LaunchError(
            "tilewright.distributed: this process is not a rank of the group",
            "call it only where dist.get_rank(group) is not -1",
        )
    with _KNOWN_LOCK:
        known = _KNOWN.get(group.group_name)
        if known is None or known.group is not group:
            for name in [name for name, one in _KNOWN.items() if one.group is None]:
                del _KNOWN[name]
            known = _KNOWN[group.group_name] = Ranks(group)
    return known


def chunks(extent: int, count: int) -> tuple[int, ...]:
    """Return the extents of the parts of `torch.chunk`, with zeros for parts that it does not have.

    Example:
        >>> chunks(10, 4), chunks(5, 4)
        ((3, 3, 3, 1), (2, 2, 1, 0))
    """
    most = -(-extent // count)
    return tuple(max(0, min(most, extent - part * most)) for part in range(count))


class Described:
    """The header of a call, made after its checks.

    Args:
        shared: the entries that all ranks must share.
        own: the entries of this rank alone.
        found: other results of the checks, for this rank.
    """

    def __init__(self, shared: Mapping[str, Any], own: Mapping[str, Any], found: Any = None) -> None:
        self.shared, self.own, self.found = shared, own, found
        self.shared_text = json.dumps(shared, default=str)
        self.own_text = json.dumps(own, default=str)


def facts_of(argument: Any) -> Any:
    """Return a hashable value that is equal for arguments that checks cannot tell apart.

    Example:
        >>> facts_of([torch.ones(2, 3), None]) == facts_of([torch.zeros(2, 3), None])
        True
    """
    if isinstance(argument, torch.Tensor):
        return argument.shape, argument.dtype, argument.device
    if isinstance(argument, Mapping):
        return tuple((name, facts_of(one)) for name, one in argument.items())
    if isinstance(argument, list | tuple):
        return tuple(map(facts_of, argument))
    return type(argument), argument


def exact(argument: Any) -> Any:
    """Return a hashable key; arguments with equal keys have the same launches, but for addresses.

    Raises:
        TypeError: an argument is a tensor of a subclass, or cannot be compared.
        RuntimeError: a tensor has no strides, or no memory.

    Example:
        >>> exact([torch.ones(2, 3), None]) == exact([torch.zeros(2, 3), None])
        True
        >>> exact(torch.ones(2, 3)) == exact(torch.ones(3, 2).mT)
        False
    """
    kind = type(argument)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        at = argument.data_ptr() & 15
        return argument.shape, argument.stride(), argument.dtype, argument.device, at, argument.is_neg()
    if kind is list or kind is tuple:
        return tuple(map(exact, argument))
    if kind is dict:
        return (*argument, *map(exact, argument.values()))
    if isinstance(argument, torch.Tensor):
        raise TypeError
    return argument.hex() if isinstance(argument, float) else (kind, argument)  # else 0.0 == -0.0


class Ranks:
    """The ranks of one process group, seen by one of them; a copy is the same object.

    A thread that calls holds the group until the call's messages have arrived; threads with different groups
    do not wait for each other.

    Args:
        group: the process group. It is not kept alive.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self.rank: int = group.rank()
        self.size: int = group.size()
        self.calls = 0
        self.failed = ""
        self._lock = RLock()
        self.agreed: set[str] = set()
        self.known: dict[Any, Any] = {}
        self.described: dict[Any, Described] = {}
        self.maps_peers = True
        self.memory: Any = None  # a `PeerMemory`, once a call needs it

    def __deepcopy__(self, memo: Any) -> Ranks:
        return self

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group; None after its end."""
        return self._group()

    @property
    def others(self) -> list[int]:
        """The other ranks, beginning with the next one."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def recall(self, key: Any, describe: Callable[[], Described]) -> Described:
        """Return the header of an earlier call with this key, or describe and remember this call.

        Args:
            key: a value by `facts_of` of all that ``describe`` reads.
            describe: checks this rank's arguments; its errors are not remembered.
        """
        try:
            found = self.described.get(key)
        except TypeError:  # an argument that cannot be compared
            return describe()
        if found is None:
            if len(self.described) >= MOST_AGREED:
                self.described.clear()
            found = self.described[key] = describe()
        return found

    def keep(self, key: Any, record: Any) -> None:
        """Keep the record of a call for later calls with the same key; None: the call has no key."""
        if key is None:
            return
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[key] = record

    @contextmanager
    def call(self, name: str, timeout: float | None) -> Iterator[RankCall]:
        """Hold the group during a call.

        Args:
            name: the operation.
            timeout: seconds that each exchange may take; None: `TIMEOUT_S`.

        Raises:
            RankError: an earlier call of the group failed while messages were under way.
        """
        with self._lock:
            if self.failed:
                raise RankError(
                    f"{name}: this group cannot be used after an earlier failure; nearest legal choice: a "
                    f"new process group, among the processes that still run. The failure was: {self.failed}"
                )
            self.calls += 1
            yield RankCall(self, name, self.calls, TIMEOUT_S if timeout is None else timeout)


NOTHING = Described({}, {})
"""The header of a call that was refused before its checks ended."""


class RankCall:
    """One call by all ranks of a group.

    Args:
        ranks: the ranks.
        name: the operation.
        number: number of the group's calls so far.
        timeout: seconds that each exchange may take.
    """

    def __init__(self, ranks: Ranks, name: str, number: int, timeout: float) -> None:
        self.ranks = ranks
        self.name = name
        self.number = number
        self.timeout = timeout
        self.found: Any = None

    def __str__(self) -> str:
        return f"{self.name} (call {self.number} of the group)"

    def agree(
        self,
        device: torch.device,
        describe: Callable[[], Described],
        check: bool | None,
        *,
        is_uneven: bool,
        key: Any = None,
    ) -> list[dict[str, Any]]:
        """Exchange headers and compare them.

        All ranks of a legal call decide alike whether they exchange headers: by values that are the same on
        all ranks, never by the entries of one.

        Args:
            device: where the call's tensors lie.
            describe: checks this rank's arguments.
            check: whether to exchange headers; None: always on processors; on GPUs if ``is_uneven``, or if
                no earlier call had these shared entries.
            is_uneven: whether extents of messages are known only from the headers of other ranks.
            key: all that ``describe`` reads, by `facts_of`: it is not called again for a known key.

        Returns:
            The entries of each rank alone; without an exchange those of this rank for all of them.

        Raises:
            RankError: ranks called other operations, or one of them refused its arguments.
            LaunchError: this rank refuses its arguments, or the ranks' arguments do not fit each other.
        """
        refusal: Exception | None = None
        said = NOTHING
        try:
            kinds = sorted(one.type for one in self._process_group()._device_types)
            if device.type not in kinds:
                raise LaunchError(
                    f"{self.name}: tensors on {device}, and the process group takes those on "
                    f"{' and '.join(kinds)}",
                    f"tensors on {kinds[0]}",
                )
            said = describe() if key is None else self.ranks.recall(key, describe)
            self.found = said.found
        except Exception as error:  # noqa: BLE001 raised below, when the other ranks know
            refusal = error
        ranks = self.ranks
        agreed = f"{self.name} {said.shared_text}"
        if check is None:
            is_new = refusal is None and agreed not in ranks.agreed
            check = device.type == HOST or is_uneven or is_new
        if ranks.size == 1 or not check:
            if refusal is not None:
                raise refusal
            return [dict(said.own)] * ranks.size
        begin = json.dumps({"of": self.name, "call": self.number, "at": _caller()})[:-1]
        text = f'{begin}, "shared": {said.shared_text}, "own": {said.own_text}}}'
        if len(text) > HEADER_BYTES and refusal is None:
            refusal = LaunchError(
                f"{self.name}: the shapes and options need {len(text)} bytes as text, and a header has "
                f"{HEADER_BYTES}",
                "check=False on all ranks",
            )
        if refusal is not None:
            why = f"{type(refusal).__name__}: {refusal}".encode("ascii", "replace").decode()
            text = f'{begin}, "refused": {json.dumps(why[: HEADER_BYTES // 4])}}}'
        headers = list[dict[str, Any]]()
        try:
            headers = self.trade_headers(text, device)
        except RankError:
            if refusal is None:
                raise
        if refusal is not None:
            raise refusal
        self._compare(headers)
        if len(ranks.agreed) >= MOST_AGREED:
            ranks.agreed.clear()  # on all ranks at the same call
            ranks.known.clear()  # their calls exchange no headers
        ranks.agreed.add(agreed)
        return [one["own"] for one in headers]

    def trade_headers(self, text: str, device: torch.device) -> list[dict[str, Any]]:
        """Send a header, a JSON text, to each other rank; return the headers of all ranks."""
        kinds = {one.type for one in self._process_group()._device_types}
        there = torch.device(HOST) if HOST in kinds or device.type not in kinds else device
        padded = bytearray(text.encode().ljust(HEADER_BYTES, b"\0"))
        mine = torch.frombuffer(padded, dtype=torch.uint8).to(there)
        others = self.ranks.others
        received = {rank: torch.empty_like(mine) for rank in others}
        self.trade(dict.fromkeys(others, mine), received, "its header")
        received[self.ranks.rank] = mine
        texts = [bytes(received[rank].cpu().numpy()) for rank in range(self.ranks.size)]
        return [json.loads(one.rstrip(b"\0")) for one in texts]

    def _process_group(self) -> dist.ProcessGroup:
        group = self.ranks.group
        if group is None:
            raise RankError(f"{self}: the process group was destroyed")
        return group

    def _compare(self, headers: Sequence[Mapping[str, Any]]) -> None:
        """Refuse calls that do not fit each other; all ranks raise the same."""
        first = headers[0]
        for rank, other in enumerate(headers):
            if (other["of"], other["call"]) != (first["of"], first["call"]):
                calls = ", ".join(
                    f"{h['of']} (call {h['call']}, {h['at']}) on rank {r}" for r, h in enumerate(headers)
                )
                raise RankError(
                    f"ranks of one group called different operations: {calls}; all ranks must make the same "
                    f"calls in the same order, and rank {rank} is the first that differs from rank 0"
                )
        refused = {rank: one["refused"] for rank, one in enumerate(headers) if "refused" in one}
        if refused:
            said = "; ".join(f"rank {rank} ({headers[rank]['at']}): {why}" for rank, why in refused.items())
            raise RankError(f"{self}: nothing was computed, because the arguments were refused on {said}")
        for rank, other in enumerate(headers):
            for what, value in first["shared"].items():
                if other["shared"].get(what) != value:
                    raise LaunchError(
                        f"{self}: {what} is {_shown(value)} on rank 0 ({first['at']}) and "
                        f"{_shown(other['shared'].get(what))} on rank {rank} ({other['at']})",
                        f"the same {what} on all ranks",
                    )

    # ------------------------------------------------------------ tensors

    def trade(
        self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor], what: str
    ) -> None:
        """Send a tensor to each other rank, and receive one from each.

        Args:
            outgoing: contiguous tensors by the ranks that get them; those without elements are not sent.
            incoming: contiguous tensors by the ranks that send them; they are written.
            what: the tensors, for messages.

        Raises:
            RankError: a rank ended, or its tensor did not arrive in time.
        """
        for _ in self.arrivals(outgoing, incoming, what):
            pass

    def arrivals(
        self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor], what: str
    ) -> Iterator[int]:
        """Begin to exchange; yield each other rank, in the order of a ring, when its tensor has arrived.

        On GPUs a tensor has arrived for later work of the current stream.  Arguments are those of `trade`.
        """
        group, size, me = self._process_group(), self.ranks.size, self.ranks.rank
        begin = time.monotonic()
        posted: list[tuple[int, list[tuple[int, Any]]]] = []
        to = rank = me
        try:
            for rank in self.ranks.others:
                to = (2 * me - rank) % size  # the rank as far behind this one as `rank` is ahead
                given = [(dist.isend, outgoing.get(to), to), (dist.irecv, incoming.get(rank), rank)]
                ops = [
                    dist.P2POp(op, one.detach().view(-1).view(BYTES), group=group, tag=_TAG, group_peer=peer)
                    for op, one, peer in given
                    if one is not None and one.numel()
                ]
                works = dist.batch_isend_irecv(ops) if ops else []
                peers = [op.group_peer for op in ops][-len(works) :] if works else []
                # One work object for each message; NCCL returns one for both.
                posted.append((rank, list(zip(peers, works, strict=True))))
        except RuntimeError as error:
            raise self._failure(_named([to, rank], " or "), what, begin, error) from error
        on_gpu = any(one.is_cuda for one in (*outgoing.values(), *incoming.values()))
        return self._waited(posted, what, begin, on_gpu=on_gpu)

    def _waited(
        self,
        posted: Sequence[tuple[int, Sequence[tuple[int, Any]]]],
        what: str,
        begin: float,
        *,
        on_gpu: bool,
    ) -> Iterator[int]:
        have_all = False
        try:
            for at, (rank, works) in enumerate(posted):
                for peer, work in works:
                    left = max(begin + self.timeout - time.monotonic(), 0.001)
                    try:
                        # NCCL makes the stream wait; with a limit it would make the host wait, too.
                        work.wait() if on_gpu else work.wait(timedelta(seconds=left))
                    except RuntimeError as error:
                        late = [peer, *self._also_missing(posted[at + 1 :])]
                        raise self._failure(_named(late, " and "), what, begin, error) from error
                have_all = at + 1 == len(posted)
                yield rank
        finally:
            if posted and not have_all and not self.ranks.failed:
                self.ranks.failed = f"{self} ended on rank {self.ranks.rank} while {what} were under way"

    def _also_missing(self, waiting: Sequence[tuple[int, Sequence[tuple[int, Any]]]]) -> list[int]:
        """Return the other ranks whose messages have not arrived either."""
        missing = list[int]()
        for _, works in waiting:
            for peer, work in works:
                try:
                    work.wait(timedelta(seconds=_OTHERS_S))
                except RuntimeError:
                    missing.append(peer)
        return missing

    def _failure(self, who: str, what: str, begin: float, error: Exception) -> RankError:
        """Return the error about late or ended ranks, named in ``who``; later calls of the group fail."""
        waited = time.monotonic() - begin
        text = str(error)
        ended = "onnection" in text or "reset" in text or "roken pipe" in text
        why = f"{who} ended, or left the call with an error" if ended else f"{who} did not come"
        limit = "" if ended else f" of at most {self.timeout:g} s (timeout=)"
        said = (
            f"{self} on rank {self.ranks.rank}, at {_caller()}: {why}; this rank waited {waited:.1f} s"
            f"{limit} for {what}"
        )
        self.ranks.failed = said
        return RankError(f"{said}. The transport said: {text.splitlines()[0][:200]}")


def _named(ranks: Sequence[int], word: str) -> str:
    return word.join(f"rank {rank}" for rank in dict.fromkeys(ranks))


def _shown(value: Any) -> str:
    return "missing" if value is None else str(value)


def _caller() -> str:
    """Return the file and line that called the library."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("tilewright.", "torch.", "contextlib")) and module != "torch":
            break
        frame = frame.f_back
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"


# ---------------------------------------------------------------- copies into peers' memory


SLOTS = 2
"""Slots for data. With two, no rank waits for a peer's previous call."""

MOST_COUNTERS = 64
"""Counters of a slot: the number of ranks times the pieces of a shard is at most this."""

ARRIVED = 1
"""Value of a counter whose piece has arrived. A constant, because each new integer needs a launch plan."""

COUNTERS_BYTES = 4096
"""Bytes before the first slot, which hold the counters."""

PIECE_ROWS = 256
"""Rows of a piece are a multiple of this, so that pieces end where tiles of products do."""

PIECE_BYTES = 8 << 20
"""Least bytes of a piece: a link of 400 GB/s copies them in 20 µs, ten times as long as the copy's start."""


class PeerByte(NamedTuple):
    """A byte of the memory of a rank."""

    rank: int
    offset: int


class AwaitCounter(NamedTuple):
    """The stream waits until a counter of this rank has a value or more."""

    counter: PeerByte
    value: int


class SetCounter(NamedTuple):
    """The stream sets a counter after its earlier steps."""

    counter: PeerByte
    value: int


class ClearCounters(NamedTuple):
    """The stream sets neighbouring counters of this rank to 0 after its earlier steps."""

    first: PeerByte
    extent: int


class SendBytes(NamedTuple):
    """A copy engine copies bytes of this rank's tensor to a peer, then sets a counter of the peer."""

    begin: int
    size: int
    target: PeerByte
    counter: PeerByte
    value: int


Step: TypeAlias = AwaitCounter | SetCounter | ClearCounters | SendBytes
"""A step of a stream."""


@dataclass(frozen=True)
class SlotUse:
    """The use of a slot by one call.

    Args:
        rank: this rank.
        ranks: the number of ranks.
        slot: the slot.
        epoch: the number of the call.
        before: the call that used the slot before; 0: none.
        slot_bytes: size of a slot.
    """

    rank: int
    ranks: int
    slot: int
    epoch: int
    before: int
    slot_bytes: int

    def data(self, rank: int, offset: int = 0) -> PeerByte:
        """Return the address of a byte of the slot."""
        return PeerByte(rank, COUNTERS_BYTES + self.slot * self.slot_bytes + offset)

    def ready(self, rank: int, index: int) -> PeerByte:
        """Return the address of the counter of a piece, in the memory of a rank."""
        return PeerByte(rank, 4 * (self.slot * 2 * MOST_COUNTERS + index))

    def free(self, rank: int, peer: int) -> PeerByte:
        """Return the address of a rank's counter that holds the last call in which a peer read its slot."""
        return PeerByte(rank, 4 * ((self.slot * 2 + 1) * MOST_COUNTERS + peer))

    def sent(self, index: int) -> PeerByte:
        """Return the address of the counter of a piece that this rank's own kernel stores."""
        return PeerByte(self.rank, COUNTERS_BYTES // 2 + 4 * index)

    def sent_pieces(self, pieces: int) -> list[int]:
        """Return the indices of pieces that leave this rank: all but those of its own part."""
        return [peer * pieces + piece for peer in self.peers(1) for piece in range(pieces)]

    def peers(self, step: int) -> Iterator[int]:
        """Yield the other ranks, forwards or backwards from this one."""
        return ((self.rank + step * turn) % self.ranks for turn in range(1, self.ranks))

    def released(self, counters: int = MOST_COUNTERS) -> list[ClearCounters | SetCounter]:
        """Clear the counters of the pieces, then tell all peers that this rank no longer reads its slot."""
        cleared = ClearCounters(self.ready(self.rank, 0), counters)
        return [cleared, *(SetCounter(self.free(peer, self.rank), self.epoch) for peer in self.peers(1))]

    def vacant(self, peer: int) -> list[AwaitCounter]:
        """Wait until a peer no longer reads what the slot held before."""
        return [AwaitCounter(self.free(self.rank, peer), self.before)] if self.before else []


def shards_to_peers(turn: SlotUse, sizes: Sequence[int], row_bytes: int, pieces: int) -> list[Step]:
    """Copy this rank's shard into the slots of all peers; the rank that needs it next comes first.

    Args:
        turn: the call.
        sizes: rows of the ranks' shards.
        row_bytes: bytes of a row.
        pieces: pieces of a shard, each with a counter; they divide its rows.
    """
    steps, first = list[Step](), sum(sizes[: turn.rank])
    each = sizes[turn.rank] // pieces * row_bytes
    for peer in turn.peers(-1):
        steps += turn.vacant(peer)
        for piece in range(pieces):
            counter = turn.ready(peer, turn.rank * pieces + piece)
            target = turn.data(peer, first * row_bytes + piece * each)
            sent = SendBytes(piece * each, each, target, counter, ARRIVED)
            steps.append(sent if each else SetCounter(counter, ARRIVED))
    return steps


def shard_to_itself(turn: SlotUse, sizes: Sequence[int], row_bytes: int, pieces: int) -> list[Step]:
    """Copy this rank's shard into its own slot; arguments are those of `shards_to_peers`."""
    rank, size = turn.rank, sizes[turn.rank] * row_bytes
    first, *others = (turn.ready(rank, rank * pieces + piece) for piece in range(pieces))
    sent = SendBytes(0, size, turn.data(rank, sum(sizes[:rank]) * row_bytes), first, ARRIVED)
    return [sent if size else SetCounter(first, ARRIVED), *(SetCounter(one, ARRIVED) for one in others)]


def parts_to_peers(turn: SlotUse, part_bytes: int, pieces: int, counts: Sequence[int]) -> list[Step]:
    """Copy each part of a result to the rank that owns it, as soon as this rank's kernel has stored it.

    Args:
        turn: the call.
        part_bytes: bytes of the part of one rank.
        pieces: pieces of a part, each with a counter.
        counts: the values of this rank's counters of stored pieces, which grow by `SlotUse.sent_pieces`.
    """
    steps, each = list[Step](), part_bytes // pieces
    for peer in turn.peers(1):
        for piece in range(pieces):
            index = peer * pieces + piece
            steps.append(AwaitCounter(turn.sent(index), counts[index]))
            steps += turn.vacant(peer) if not piece else []
            counter = turn.ready(peer, turn.rank * pieces + piece)
            target = turn.data(peer, turn.rank * part_bytes + piece * each)
            steps.append(SendBytes(index * each, each, target, counter, ARRIVED))
    return steps


def arrived(turn: SlotUse, pieces: int, peers: Iterable[int]) -> list[AwaitCounter]:
    """Return the waits for the pieces of peers."""
    indices = (peer * pieces + piece for peer in peers for piece in range(pieces))
    return [AwaitCounter(turn.ready(turn.rank, index), ARRIVED) for index in indices]


def pieces_of(sizes: Sequence[int], row_bytes: int, ranks: int) -> int:
    """Return the number of pieces of each shard: the most that divide its rows and are large enough.

    Args:
        sizes: rows of the shards.
        row_bytes: bytes of a row.
        ranks: the number of ranks.
    """
    rows = sizes[0] if len(set(sizes)) == 1 else 0
    for pieces in (8, 4, 2):
        is_legal = rows and pieces * ranks <= MOST_COUNTERS and rows % (pieces * PIECE_ROWS) == 0
        if is_legal and rows // pieces * row_bytes >= PIECE_BYTES:
            return pieces
    return 1
