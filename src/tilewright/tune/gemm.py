"""A product to tune: its candidates, arrays, and check; compiling its schedules in parallel processes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.checking.compare import compare_gemm
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
from tilewright.tune.trial import accumulation_of

Array = npt.NDArray[Any]
Arrays = tuple[Any, Any, Any]

MOST_FLOPS = 1 << 34
"""Operations of the largest product that is compared as a whole each time; of larger ones some rows are."""

COLUMNS = 4096
"""Columns of the sums of a `checksum`."""

_UNWRITTEN = 0xFF
"""Bytes that are NaN in every float dtype, so that unwritten elements are found."""


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
        """Bytes of A, B and C: the fewest that move."""
        (m, n, k), each = self.shape, dtype_named(self.dtype).bytes
        return (m * k + k * n) * each + m * n * self.out.bytes

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each m, n, k."""
        m, n, k = self.shape
        return 2 * m * n * k

    @property
    def specimens(self) -> tuple[Specimen, Specimen, Specimen]:
        """Specimens of A, B and C."""
        m, n, k = self.shape
        orders: dict[str, Order] = {"n": "C", "t": "F"}
        a, b = (orders[letter] for letter in self.layout)
        return like(self.dtype, m, k, order=a), like(self.dtype, k, n, order=b), like(self.out, m, n)

    def bound(self, schedule: Schedule | None = None) -> Bound:
        """Return the kernel under a schedule; default: the schedule that `matmul` chooses."""
        return plain(0).bind(precision=self.precision, schedule=schedule)

    def question(self, arch: str | None = None) -> Question:
        """Return the problem that the rules propose schedules for.

        Args:
            arch: the architecture; default: that of this machine.
        """
        found = self.bound().question(*self.specimens, target=self.target, arch=arch)
        assert found is not None, "the kernel of matmul is a dataflow kernel"
        return found

    def candidates(self, arch: str | None = None) -> tuple[Candidate, ...]:
        """Return the candidates of the rules, the untuned choice first."""
        return candidates(self.question(arch))

    def subject(self, about: str) -> ContestSubject:
        """Return the subject of a contest, on numbers that ``about`` describes."""
        return ContestSubject(str(self), self.target, self.flops, self.bytes, about)


class GemmArrays:
    """The arrays of a product, in several sets, and the check of its results.

    Args:
        gemm: the product.
        seed: seed of the numbers.
        sets: number of sets; default: `sets_for` the bytes of one.
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
        host = (self.made.a, self.made.b, self._blank)
        self.sets: list[Arrays] = []
        for _ in range(count):
            a, b, c = (device_put(array.copy(order="K"), gemm.target) for array in host)
            self.sets.append((a, b, c))
        self._sums = checksum(self.made.a), checksum(self.made.b)

    def bind(self, schedule: Schedule) -> Callable[[Arrays], Work]:
        """Return a function that prepares the kernel under a schedule for a set of arrays."""
        bound = self.gemm.bound(schedule)
        return lambda arrays: bound.prepare(*arrays, target=self.gemm.target)

    def check(self, schedule: Schedule, *, whole: bool = False) -> Check[Arrays]:
        """Return a check that runs the kernel under a schedule on a poisoned output, and compares the result.

        Args:
            schedule: its order of additions gives the bound of each element.
            whole: whether every element is compared, also of large products.

        Returns:
            A check for a `Contest`.  It raises `WrongResultError` if an element is beyond its bound or was
            not written, if another target ran, and if A or B changed.
        """
        m, n, k = self.gemm.shape
        rows: Any = slice(None)
        if not whole and self.gemm.flops > MOST_FLOPS:  # the first row, the last one, and some others
            count = max(MOST_FLOPS // (2 * n * k), 2)
            inner = np.random.default_rng(m).permutation(np.arange(1, m - 1))[: count - 2]
            rows = np.unique([0, m - 1, *inner])

        def run(call: Work, arrays: Arrays) -> dict[str, Any]:
            fill(arrays[2], self._blank)
            ran = getattr(call(), "target", self.gemm.target)
            synchronize(self.gemm.target)
            if ran != self.gemm.target:
                raise WrongResultError(f"asked for target {self.gemm.target}, but {ran} ran")
            self.check_inputs([arrays])
            made, c = self.made, np.asarray(device_get(arrays[2]))
            if self.gemm.out.is_float and (count := unwritten(c)):
                raise WrongResultError(f"wrong: {count} of {c.size} elements were not written")
            found = compare_gemm(made.a[rows], made.b, c[rows], accumulation_of(schedule))
            found.raise_if_wrong()
            off = found.error / found.bound if found.bound else 0.0
            return {"error_of_bound": off, "compared": c[rows].size}

        return run

    def check_inputs(self, sets: Sequence[Arrays]) -> None:
        """Check that A and B of some sets are unchanged, and restore them.

        Raises:
            WrongResultError: A or B changed.
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


def fill(array: Any, source: Array) -> None:
    """Copy a host array to an array of any memory and the same order of dimensions."""
    if isinstance(array, DeviceArray):
        array.write(source)
    else:
        np.copyto(_bytes(array), _bytes(source))


def _bytes(array: Array) -> Array:
    """Return the bytes of a matrix in the order of memory."""
    return (array if array.flags.c_contiguous else array.T).view(np.uint8)


def unwritten(c: Array) -> int:
    """Return the number of elements whose bytes are all `_UNWRITTEN`."""
    words = c.view(f"u{c.dtype.itemsize}")
    return int(np.count_nonzero(words == np.iinfo(words.dtype).max))


def checksum(array: Array) -> int:
    """Return a checksum of the bytes of a matrix, at the speed of memory.

    It adds up words of 8 bytes that lie `COLUMNS` words apart. The CRC covers the sums and the other bytes.
    """
    data = np.ascontiguousarray(_bytes(array)).reshape(-1)
    whole = data.size // (8 * COLUMNS) * 8 * COLUMNS
    sums = data[:whole].view(np.uint64).reshape(-1, COLUMNS).sum(axis=0, dtype=np.uint64)
    return zlib.crc32(data[whole:].data, zlib.crc32(sums.data))


# ----------------------------------------------------------------
# Parallel compilation, into the cache that all processes share.


Done = Callable[[int], object]
"""Receives the number of compiled schedules."""


def build(gemm: Gemm, schedules: Sequence[Schedule], processes: int, done: Done = int) -> dict[Schedule, str]:
    """Compile the kernel of a product under several schedules, into the cache.

    Args:
        gemm: the product.
        schedules: the schedules.
        processes: number of processes; 1: this one.
        done: receives the number of compiled schedules.

    Returns:
        The reason for each schedule that cannot be compiled.
    """
    failed: dict[Schedule, str] = {}
    if processes <= 1 or len(schedules) <= 1:
        for count, schedule in enumerate(schedules, 1):
            if why := compiled(gemm, schedule):
                failed[schedule] = why
            done(count)
        return failed
    # Spawned: a forked child of a process that uses a GPU cannot compile.
    with ProcessPoolExecutor(min(processes, len(schedules)), get_context("spawn")) as pool:
        running = {pool.submit(compiled, gemm, schedule): schedule for schedule in schedules}
        for count, future in enumerate(as_completed(running), 1):
            try:
                why = future.result()
            except BrokenProcessPool:
                why = "the process that compiled it ended"
            if why:
                failed[running[future]] = why
            done(count)
    return failed


def compiled(gemm: Gemm, schedule: Schedule) -> str:
    """Compile one kernel; returns the reason if that fails, or ""."""
    try:
        gemm.bound(schedule).compile(*gemm.specimens, target=gemm.target)
    except TilewrightError as error:
        return str(error).strip()
    return ""
