"""The launches of a call as data: every operation makes a `LaunchPlan`, which tools can read."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.calls import is_ours
from tilewright.dtypes import DType
from tilewright.errors import SlowWarning
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.mma import MmaAtom
from tilewright.ir.ops import Mma
from tilewright.namespaces import part
from tilewright.ops.problem import MatrixBatch
from tilewright.ops.replay import (
    IN_SCRATCH,
    SCRATCH,
    Clear,
    Done,
    Located,
    Replay,
    ReplayedLaunch,
    is_recorded,
    stream_on,
)
from tilewright.runtime.arrays import ArrayInfo, Fresh, describe, fresh, is_same, overlap, reach, sharing
from tilewright.runtime.backends import arch_of, backend_for
from tilewright.runtime.binding import check_output
from tilewright.runtime.call_log import CALL_LOG
from tilewright.runtime.executable import Backend, Executable, Prepared
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Bound
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import multiplied_without_tensor_cores
from tilewright.targets.target import TARGETS

OWN = ""
"""Name of an array in scratch memory."""

ALIGNED = 256
"""Alignment in bytes of scratch memory, and of the arrays in it."""


@dataclass
class Call:
    """The arrays of a call, by the names of its arguments.

    Args:
        op: the operation's name in messages.
        names: names of all possible arrays, in the order that a replay takes them.
        given: names of the arrays that the caller passed.
        arrays: the arrays, by name.
        infos: their descriptions.
        backend: the backend that serves them; `serve` sets it.
        fresh: allocators of the results that the caller did not pass, with their indices in ``names``.
        clear: pairs of the caller's arrays that must share no memory, for replays.
        inside: arrays that begin inside another array of the call: its name, and an offset in bytes.
    """

    op: str
    names: tuple[str, ...]
    given: frozenset[str]
    arrays: dict[str, Any]
    infos: dict[str, ArrayInfo]
    backend: Backend | None = None
    fresh: tuple[tuple[int, Fresh], ...] = ()
    clear: tuple[Clear, ...] = ()
    inside: Mapping[str, tuple[str, int]] | None = None

    @staticmethod
    def of(
        op: str,
        given: Mapping[str, Any],
        needed: Iterable[str] = ("a", "b"),
        located: Sequence[Located] = (),
        *,
        real: bool = False,
    ) -> Call:
        """Describe the arrays of a call, each once.

        Args:
            op: the operation's name in messages.
            given: all possible arrays, in order; None for an absent one.
            needed: names of the arrays that the caller must pass.
            located: the key and the address of each array, if the caller has read them.
            real: whether to stop at a complex operand, because another operation then serves the call.

        Raises:
            LaunchError: a value is not an array.
        """
        arrays = {name: array for name, array in given.items() if array is not None or name in needed}
        read = dict(zip(given, located, strict=False))
        there = frozenset(name for name, array in given.items() if array is not None)
        call = Call(op, tuple(given), there, arrays, {})
        for name, array in arrays.items():
            if real and name not in needed and call.is_complex:
                break
            call.infos[name] = describe(array, f"{op}, argument {name}", located=read.get(name))
        return call

    @property
    def is_complex(self) -> bool:
        """Whether ``a`` or ``b`` has complex elements."""
        return any(self.infos[name].dtype.components == 2 for name in ("a", "b"))

    @property
    def dtypes(self) -> dict[str, DType]:
        """Dtypes of the arrays, by name."""
        return {name: info.dtype for name, info in self.infos.items()}

    @property
    def layouts(self) -> dict[str, MatrixBatch]:
        """Extents and strides of the arrays, by name."""
        return {name: MatrixBatch(info.shape, info.strides) for name, info in self.infos.items()}

    @property
    def number(self) -> DType:
        """The dtype of alpha and beta, and of all computations but the sums.

        It is f64 for integers and arrays of f64, so that only the result is rounded.
        """
        kinds = self.dtypes
        is_wide = dtypes.f64 in kinds.values() or not kinds["a"].is_float
        return dtypes.f64 if is_wide else dtypes.f32

    def serve(self, target: str | None) -> Backend:
        """Find the backend that serves the arrays.

        Raises:
            LaunchError: the target does not exist, or cannot access the arrays.
        """
        self.backend = backend_for(self.op, list(self.infos.items()), target)
        return self.backend

    @property
    def machine(self) -> tuple[Arch, int]:
        """Architecture and number of processors of the backend's machine."""
        assert self.backend is not None, "`serve` comes first"
        return arch_of(self.backend, None), self.backend.processors()

    @property
    def target(self) -> str:
        """Name of the backend's target."""
        assert self.backend is not None, "`serve` comes first"
        return self.backend.name

    def seen(self, name: str, matrices: MatrixBatch) -> Strided:
        """Return an array with the shape and strides of its matrices in a problem."""
        info = replace(self.infos[name], shape=matrices.shape, strides=matrices.strides)
        return Strided(self.arrays[name], info)

    def check_apart(self, written: str = "out", updated: Collection[str] = ()) -> None:
        """Check that a written array is writable, and shares no memory with another array.

        Args:
            written: the name of the written array.
            updated: arrays that may be the same array, element for element.  Each thread reads an element of
                them before it stores that element.

        Raises:
            LaunchError: it cannot be written, or shares memory.
        """
        out = self.infos[written]
        check_output("the call", written, out)
        for name, info in self.infos.items():
            if name != written and not (name in updated and is_same(info, out)) and overlap(out, info):
                why = f"elements of {name} would be overwritten before they are read"
                raise sharing(f"{written} and {name}", why, written)
        self.keep_apart(written, updated)

    def keep_apart(self, written: str, updated: Collection[str] = ()) -> None:
        """Record that a written array must share no memory with other arrays of the caller, as checked.

        Args:
            written: the name of the written array.
            updated: arrays that may be the same array, element for element.
        """
        fresh = {self.names[place] for place, _ in self.fresh}  # new results share no memory
        there = [name for name in self.infos if name in self.given and name not in fresh]
        if written not in there:
            return
        mine, stored = self.infos[written], self.names.index(written)
        for name in there:
            theirs, other = self.infos[name], self.names.index(name)
            if name == written or any((one.other, one.stored) == (stored, other) for one in self.clear):
                continue
            in_place = name in updated and is_same(replace(theirs, pointer=mine.pointer), mine)
            (low, high), (other_low, other_high) = reach(mine), reach(theirs)
            self.clear += (Clear(stored, other, other_low - high, other_high - low, in_place),)

    def make(self, name: str, shape: tuple[int, ...], kind: DType) -> None:
        """Allocate an array that the caller did not pass, in the framework of the first array."""
        if name in self.arrays:
            return
        maker = fresh(self.arrays[self.names[0]], shape, kind)
        self.arrays[name] = maker.make()
        self.infos[name] = describe(self.arrays[name])
        self.fresh = (*self.fresh, (self.names.index(name), maker))

    @property
    def there(self) -> frozenset[str]:
        """Names of the arrays that the caller passed, and of those allocated for it."""
        return frozenset(self.given & self.arrays.keys()) | {self.names[at] for at, _ in self.fresh}

    def stand_ins(
        self, names: Iterable[str], others: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[str, ...]:
        """Return the names of a kernel's arguments; other arrays replace absent ones, which are not read.

        Args:
            names: the arrays of the kernel.
            others: the replacement of each absent array; default: ``out``.
        """
        there = self.there
        return tuple(name if name in there else others.get(name, "out") for name in names)

    def plan(self, *launches: Launch, result: Any = None, **more: Any) -> LaunchPlan:
        """Make a plan of the call, which returns ``out`` by default."""
        result = self.arrays.get("out") if result is None else result
        return LaunchPlan(self, tuple(launches), result, **more)

    def plan_with_prepass(
        self, before: Prepass, product: Launch, scratch_bytes: int, reason: str
    ) -> LaunchPlan:
        """Make a plan of a prepass, and of a product that reads the arrays that the prepass writes.

        Args:
            before: the prepass.
            product: the product on the caller's arrays; arrays of the prepass replace those with their names.
            scratch_bytes: bytes of scratch memory.
            reason: why the call needs both.
        """
        made = before.made
        arrays = tuple(made.get(*pair) for pair in zip(product.names, product.arrays, strict=True))
        names = tuple(OWN if name in made else name for name in product.names)
        product = replace(product, arrays=arrays, names=names)
        return self.plan(before, product, scratch_bytes=scratch_bytes, reason=reason)


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments.

    Args:
        kernel: the kernel.
        arrays: its array arguments.  A pointer into scratch memory is an offset in bytes.
        names: for each of them the name of the call's array, or `OWN` in scratch memory.
        numbers: its scalar arguments.
        own: scalar arguments of this launch alone, which precede ``numbers``.
    """

    kernel: Bound
    arrays: tuple[Strided, ...]
    names: tuple[str, ...]
    numbers: tuple[Any, ...] = ()
    own: tuple[int, ...] = ()

    def prepare(self, start: int, target: str) -> tuple[Prepared, tuple[Any, ...], list[int]]:
        """Return the prepared launch, its arguments, and their addresses.

        Args:
            start: the address of scratch memory.
            target: the target to compile for.
        """
        arrays = [
            Strided(one.array, replace(one.info, pointer=start + one.info.pointer)) if name == OWN else one
            for one, name in zip(self.arrays, self.names, strict=True)
        ]
        arguments = (*arrays, *self.own, *self.numbers)
        plan, pointers = self.kernel.planned(arguments, target)
        return plan.prepared, arguments, pointers

    def schedule(self, target: str) -> Schedule | None:
        """Return the schedule of the kernel on a target; None for an explicit kernel."""
        return self.kernel.schedule_for(*self.arrays, *self.own, *self.numbers, target=target)

    @property
    def moved_bytes(self) -> int:
        """Bytes that it reads and writes.

        A broadcast element counts once, and so does an array that replaces several absent ones.
        """
        found = dict[tuple[str, int], int]()
        for one, name in zip(self.arrays, self.names, strict=True):
            at = name, one.info.pointer
            found[at] = max(found.get(at, 0), moved_by(one.info))
        return sum(found.values())


def moved_by(info: ArrayInfo) -> int:
    """Return the bytes of an array that a launch moves; a broadcast element counts once."""
    count = prod(n for n, step in zip(info.shape, info.strides, strict=True) if step or not n)
    return count * info.dtype.bits // 8


@dataclass(frozen=True)
class Prepass(Launch):
    """A launch that converts or copies operands of a product to scratch memory.

    Args:
        made: the arrays that it writes, as the product reads them, by name.
    """

    made: Mapping[str, Strided] = field(kw_only=True)


@dataclass(frozen=True)
class LaunchPlan:
    """The launches of a call, in order; the last one is the product.

    Args:
        call: the arrays of the call.
        launches: the launches; none if there is nothing to compute.
        result: what the call returns.
        scratch_bytes: bytes of scratch memory that the launches share.
        reason: why the call needs these launches.
        warns: whether to warn if the product is far slower than the hardware.
        numbers: scalar arguments of a replay, if they differ from those of the call.
        takes_more: whether the numbers of each call follow ``numbers``.
        details: the strategy of a complex product, or the contraction of `einsum`.
    """

    call: Call
    launches: tuple[Launch, ...]
    result: Any
    scratch_bytes: int = 0
    reason: str = "one kernel reads the arrays without a copy"
    warns: bool = False
    numbers: tuple[float | int, ...] = ()
    details: Any = None
    takes_more: bool = False

    @property
    def product(self) -> Launch:
        """The launch that multiplies."""
        return self.launches[-1]

    @property
    def target(self) -> str:
        """Name of the target that runs it."""
        return self.call.target

    @property
    def schedule(self) -> Schedule | None:
        """Schedule of the product; None for an explicit kernel, or if there is nothing to compute."""
        return self.product.schedule(self.target) if self.launches else None

    @property
    def moved_bytes(self) -> int:
        """Bytes that all launches read and write."""
        return sum(one.moved_bytes for one in self.launches)

    @property
    def kernels(self) -> tuple[Bound, ...]:
        """The kernels, in order."""
        return tuple(one.kernel for one in self.launches)

    def __str__(self) -> str:
        return plan_text(self.kernels, self.scratch_bytes, self.moved_bytes, self.reason)

    def start(self, stream: Any = None) -> tuple[Prepared, ...]:
        """Launch all kernels, and return the prepared launches.

        Args:
            stream: the CUDA stream; None: the framework's current one.
        """
        if not self.launches:
            return ()
        if len(self.launches) == 1:
            return self._started(0, stream)
        device = self.launches[0].arrays[0].info.device
        handle, stream = stream_on(device, [*self.call.arrays.values()], stream)
        with part(SCRATCH)(self.scratch_bytes or 1, device, handle) as start:
            return self._started(start, stream)

    def prepared(self) -> tuple[Prepared, ...]:
        """Compile all kernels, and return the prepared launches without a launch."""
        return tuple(one.prepare(ALIGNED, self.target)[0] for one in self.launches)

    def _started(self, start: int, stream: Any) -> tuple[Prepared, ...]:
        made = [one.prepare(start, self.target) for one in self.launches]
        if self.warns and TARGETS[self.target].warps and TARGETS[self.target].machine_code:
            warn(made[-1][0].executable)
        for prepared, arguments, pointers in made:
            prepared.launch(arguments, pointers, stream)
        if CALL_LOG is not None:
            CALL_LOG.note((prepared.executable for prepared, _, _ in made), replayed=False)
        return tuple(prepared for prepared, _, _ in made)

    def run(self, stream: Any = None) -> tuple[Executable, ...]:
        """Launch all kernels without a warning, and return the executables in order; for measurements."""
        return tuple(one.executable for one in replace(self, warns=False).start(stream))

    def launch(self, stream: Any = None) -> Done:
        """Launch all kernels, and return the result with its replay, if the target supports replays.

        Args:
            stream: the CUDA stream; None: the framework's current one.
        """
        prepared = self.prepared() if is_recorded() else self.start(stream)
        # The reference reads arrays, not addresses.
        is_kept = prepared and TARGETS[self.target].machine_code
        if not is_kept:
            return Done(self.result, None, plan=self)
        launches = []
        for made, one in zip(prepared, self.launches, strict=True):
            places, offsets = list[int](), list[int]()
            for name, seen in zip(one.names, one.arrays, strict=True):
                if name == OWN and len(prepared) == 1:  # scratch memory of one launch is empty: any address
                    places.append(0)
                    offsets.append(0)
                elif name == OWN:
                    places.append(IN_SCRATCH)
                    offsets.append(seen.info.pointer)
                else:
                    whole, offset = (self.call.inside or {}).get(name, (name, 0))
                    places.append(self.call.names.index(whole))
                    offsets.append(offset)
            launches.append(ReplayedLaunch.of(made, tuple(places), tuple(offsets), one.own))
        fresh, device = self.call.fresh, self.launches[0].arrays[0].info.device
        record = Replay(tuple(launches), self.call.clear, fresh, device, self.scratch_bytes, self.numbers)
        record.takes_more = self.takes_more
        return Done(self.result, record, plan=self)


def plan_text(kernels: Sequence[Bound], scratch_bytes: int, moved_bytes: int, reason: str) -> str:
    """Return the text of a plan.

    Args:
        kernels: the kernels, in order; none if there is nothing to compute.
        scratch_bytes: bytes of scratch memory.
        moved_bytes: bytes that all launches read and write.
        reason: why the call needs these launches.
    """
    if not kernels:
        return "no launch: the result is empty"
    names = ", then ".join(one.program.name for one in kernels)
    return f"{names}: {scratch_bytes} bytes of scratch, {moved_bytes} moved; {reason}"


# ---------------------------------------------------------------- slow products

_SAID: set[str] = set()


def warn_if_slow(atom: MmaAtom, arch: Arch) -> None:
    """Warn, once for each dtype, if the atom does not use tensor cores that the architecture has for it."""
    said = multiplied_without_tensor_cores(atom, arch.name, arch.features)
    if not said or atom.a_dtype.name in _SAID:
        return
    _SAID.add(atom.a_dtype.name)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"matmul: {said}", SlowWarning, stacklevel=level)


def warn(executable: Executable) -> None:
    """Warn if the executable's instruction is slow for the dtype on the machine."""
    for op in executable.kernel.walk():
        if isinstance(op, Mma | MmaAsync):
            warn_if_slow(op.mma.atom, TARGETS[executable.target].architecture(executable.arch))
            return
