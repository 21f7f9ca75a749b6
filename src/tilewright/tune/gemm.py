"""A product to tune: its candidates, arrays, and check; compiling its schedules in parallel processes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import Operands, operands
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import TilewrightError, WrongResultError
from tilewright.ops.products import output_dtype, plain
from tilewright.runtime.drivers import synchronize
from tilewright.runtime.gpu_memory import DeviceArray, device_get, device_put
from tilewright.runtime.kernel import Bound
from tilewright.runtime.specimens import Order, Specimen, like
from tilewright.schedule.choice import candidates
from tilewright.schedule.question import Candidate, Question
from tilewright.schedule.schedule import Schedule
from tilewright.tune.contest import Check, ContestSubject, Work, sets_for

Array = npt.NDArray[Any]
Arrays = tuple[Any, Any, Any]

MOST_FLOPS = 1 << 34
"""Up to how many operations a result is compared as a whole each time; of larger ones some rows are."""

COLUMNS = 4096
"""Of the sums of a `checksum`."""

_UNWRITTEN = 0xFF
"""Bytes that are NaN in every float dtype: an element that nobody writes is found."""


@dataclass(frozen=True)
class Gemm:
    """``C = A @ B`` for matrices of one shape, as `matmul` computes it.

    Args:
        shape: extents (M, N, K).
        dtype: of A and B, by name.
        layout: how A and B are stored, a letter for each, as in `operands`.
        precision: ``"exact"``, or ``"tf32"`` to multiply f32 on tensor cores.
        target: where it is computed.

    Example:
        >>> gemm = Gemm((40, 50, 60), "f32", "nn", "exact", "reference")
        >>> str(gemm), gemm.candidates()[0].schedule.tile
        ('f32 nn 40x50x60 on reference', (32, 32, 32))
    """

    shape: tuple[int, int, int]
    dtype: str
    layout: str
    precision: str
    target: str

    def __str__(self) -> str:
        tf32 = f" as {self.precision}" if self.precision != "exact" else ""
        return f"{self.dtype}{tf32} {self.layout} {'x'.join(map(str, self.shape))} on {self.target}"

    @property
    def out(self) -> DType:
        """The dtype of C."""
        return output_dtype(dtype_named(self.dtype))

    @property
    def bytes(self) -> int:
        """Of A, B and C: the fewest that move."""
        (m, n, k), each = self.shape, dtype_named(self.dtype).bytes
        return (m * k + k * n) * each + m * n * self.out.bytes

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each m, n, k."""
        m, n, k = self.shape
        return 2 * m * n * k

    @property
    def specimens(self) -> tuple[Specimen, Specimen, Specimen]:
        """What stands for A, B and C."""
        m, n, k = self.shape
        orders: dict[str, Order] = {"n": "C", "t": "F"}
        a, b = (orders[letter] for letter in self.layout)
        return like(self.dtype, m, k, order=a), like(self.dtype, k, n, order=b), like(self.out, m, n)

    def bound(self, schedule: Schedule | None = None) -> Bound:
        """The kernel under a schedule; without one under that which is chosen."""
        return plain(0).bind(precision=self.precision, schedule=schedule)

    def question(self, arch: str | None = None) -> Question:
        """The problem that schedules are proposed for.

        Args:
            arch: the architecture; default: that of this machine.
        """
        found = self.bound().question(*self.specimens, target=self.target, arch=arch)
        assert found is not None, "the kernel of matmul says in tiles what is computed"
        return found

    def candidates(self, arch: str | None = None) -> tuple[Candidate, ...]:
        """What the rules propose, the untuned choice first."""
        return candidates(self.question(arch))

    def subject(self, about: str) -> ContestSubject:
        """What all calls of a contest do, on numbers that ``about`` tells of."""
        return ContestSubject(str(self), self.target, self.flops, self.bytes, about)


class GemmArrays:
    """The arrays of a product, in as many sets as are needed, and the check of what is written to them.

    Args:
        gemm: the product.
        seed: of the numbers.
        sets: how many; default: as many as lie twice the second-level cache between two uses of one.
    """

    def __init__(self, gemm: Gemm, seed: int, sets: int | None = None) -> None:
        self.gemm = gemm
        self.made: Operands = operands(
            "random", dtype_named(gemm.dtype), gemm.shape, seed=seed, layout=gemm.layout
        )
        m, n, _ = gemm.shape
        blank = np.full(m * n * gemm.out.bytes, _UNWRITTEN, np.uint8)
        self._blank = blank.view(gemm.out.numpy).reshape(m, n)
        count = sets_for(gemm.bytes, gemm.target) if sets is None else sets
        self.sets: Sequence[Arrays] = [self._set() for _ in range(count)]
        self._sums = checksum(self.made.a), checksum(self.made.b)

    def _set(self) -> Arrays:
        a, b, c = (
            device_put(array.copy(order="K"), self.gemm.target)
            for array in (self.made.a, self.made.b, self._blank)
        )
        return a, b, c

    def bind(self, schedule: Schedule) -> Callable[[Arrays], Work]:
        """What calls the kernel under a schedule on a set of arrays."""
        bound = self.gemm.bound(schedule)
        return lambda arrays: bound.prepare(*arrays, target=self.gemm.target)

    def check(self, schedule: Schedule, *, whole: bool = False) -> Check[Arrays]:
        """What runs the kernel under a schedule on a poisoned output, and compares what it wrote.

        Args:
            schedule: says how sums are added up, and so how far they may be off.
            whole: whether every element is compared of however large a product.

        Returns:
            A check for a `Contest`.  It raises `WrongResultError` where an element is off by more than its
            bound, where one was not written, where another target ran, and where A or B changed.
        """

        def run(call: Work, arrays: Arrays) -> dict[str, Any]:
            fill(arrays[2], self._blank)
            ran = getattr(call(), "target", self.gemm.target)
            synchronize(self.gemm.target)
            if ran != self.gemm.target:
                raise WrongResultError(f"asked for target {self.gemm.target}, but {ran} ran")
            self.check_inputs([arrays])
            return self._compared(schedule, np.asarray(device_get(arrays[2])), whole=whole)

        return run

    def check_inputs(self, sets: Sequence[Arrays]) -> None:
        """Whether A and B of some sets are what they were; for who comes next they are again.

        Raises:
            WrongResultError: one changed.
        """
        changed = set()
        for arrays in sets:
            known = zip("AB", arrays, (self.made.a, self.made.b), self._sums, strict=False)
            for name, given, made, checked in known:
                if checksum(np.asarray(device_get(given))) != checked:
                    fill(given, made)
                    changed.add(name)
        if changed:
            raise WrongResultError(f"{' and '.join(sorted(changed))}, only to be read, was written")

    def _compared(self, schedule: Schedule, c: Array, *, whole: bool) -> dict[str, Any]:
        period = schedule.promote * schedule.block_k or None
        rows = slice(None) if whole or self.gemm.flops <= MOST_FLOPS else self._sampled()
        if self.gemm.out.is_float and (count := unwritten(c)):
            raise WrongResultError(f"wrong: {count} of {c.size} elements were not written")
        found = compare_gemm(self.made.a[rows], self.made.b, c[rows], Accumulation.of(schedule.atom, period))
        found.raise_if_wrong()
        return {
            "error_of_bound": found.error / found.bound if found.bound else 0.0,
            "compared": c[rows].size,
        }

    def _sampled(self) -> Any:
        """Rows that cost no more than is worth it: the first, the last, and others by chance."""
        m, n, k = self.gemm.shape
        count = max(MOST_FLOPS // (2 * n * k), 2)
        inner = np.random.default_rng(m).permutation(np.arange(1, m - 1))[: count - 2]
        return np.unique([0, m - 1, *inner])


def fill(array: Any, source: Array) -> None:
    """Write to an array, wherever it lies, one of the host that lies in the same order."""
    if isinstance(array, DeviceArray):
        array.write(source)
    else:
        np.copyto(_bytes(array), _bytes(source))


def _bytes(array: Array) -> Array:
    """The bytes of a matrix, in the order in which they lie."""
    return (array if array.flags.c_contiguous else array.T).view(np.uint8)


def unwritten(c: Array) -> int:
    """How many elements are still as `_UNWRITTEN` has them."""
    words = c.view(f"u{c.dtype.itemsize}")
    return int(np.count_nonzero(words == np.iinfo(words.dtype).max))


def checksum(array: Array) -> int:
    """Of the bytes of a matrix, in the order in which they lie, as fast as memory gives them.

    Words of 8 bytes that lie `COLUMNS` words apart are added up; the CRC is of the sums and of what is left.
    """
    data = np.ascontiguousarray(_bytes(array)).reshape(-1)
    whole = data.size // (8 * COLUMNS) * 8 * COLUMNS
    sums = data[:whole].view(np.uint64).reshape(-1, COLUMNS).sum(axis=0, dtype=np.uint64)
    return zlib.crc32(data[whole:].data, zlib.crc32(sums.data))


# ----------------------------------------------------------------
# Parallel compilation, into the cache that all processes share.


Done = Callable[[int], object]
"""Is told how many are done."""


def build(
    gemm: Gemm, schedules: Sequence[Schedule], processes: int, arch: str | None = None, done: Done = int
) -> dict[Schedule, str]:
    """Compile the kernel of a product under each of some schedules.

    Args:
        gemm: the product.
        schedules: how it is computed.
        processes: that compile; with 1 it is this one.
        arch: the architecture; default: that of this machine.
        done: is told how many are done.

    Returns:
        Why those cannot be compiled that cannot be; the others lie in the cache.
    """
    failed: dict[Schedule, str] = {}
    if processes <= 1 or len(schedules) <= 1:
        for count, schedule in enumerate(schedules, 1):
            if why := compiled(gemm, schedule, arch):
                failed[schedule] = why
            done(count)
        return failed
    # Spawned, for a forked child of a process that uses a GPU cannot.
    with ProcessPoolExecutor(min(processes, len(schedules)), get_context("spawn")) as pool:
        running = {pool.submit(compiled, gemm, schedule, arch): schedule for schedule in schedules}
        for count, future in enumerate(as_completed(running), 1):
            if why := _why(future):
                failed[running[future]] = why
            done(count)
    return failed


def _why(future: Future[str]) -> str:
    try:
        return future.result()
    except BrokenProcessPool:
        return "the process that compiled it ended"


def compiled(gemm: Gemm, schedule: Schedule, arch: str | None) -> str:
    """Compile one kernel; why it cannot be, or nothing."""
    try:
        gemm.bound(schedule).compile(*gemm.specimens, target=gemm.target, arch=arch)
    except TilewrightError as error:
        return str(error).strip()
    return ""
