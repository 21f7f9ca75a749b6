"""Subjects to tune: a matrix product, and the product of an operation's call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import LaunchError, TilewrightError
from tilewright.ops.launching import OWN
from tilewright.ops.products import output_dtype, plain
from tilewright.ops.replay import recorded_calls
from tilewright.runtime.gpu_memory import device_put
from tilewright.runtime.kernel import Bound
from tilewright.runtime.specimens import Order, Specimen, like
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.tune.contest import Work
from tilewright.tune.rivals import rivals
from tilewright.tune.subject import Arrays, TuningSubject, by_name


@dataclass(frozen=True)
class Gemm(TuningSubject):
    """``C = A @ B`` for matrices of one shape, as `matmul` computes it.

    Args:
        shape: extents (M, N, K).
        dtype: name of the dtype of A and B.
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
    def arguments(self) -> tuple[Specimen, Specimen, Specimen]:
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
        found = super().question(arch)
        assert isinstance(found, Question), "the kernel of matmul is a product"
        return found

    def rivals(self, arrays: Arrays) -> dict[str, Work]:
        """Return calls of other libraries that compute ``A @ B``, by name."""
        a, b, c = arrays
        return rivals(a, b, c, self.target, tf32=self.precision == "tf32")


@dataclass(frozen=True)
class OperationLaunch(TuningSubject):
    """The product of a call of an operation: the last kernel that the call launches, on arrays like its own.

    Args:
        text: the call, for messages.
        kernel: the kernel.
        given: specimens of the arrays, and the numbers.
        target: where it is computed.
        same: pairs of parameters that get the same memory.
    """

    text: str
    kernel: Bound
    given: tuple[Any, ...]
    target: str
    same: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.text

    @staticmethod
    def of(
        operation: str,
        given: Mapping[str, Specimen],
        words: Mapping[str, Any],
        target: str,
        first: Sequence[Any] = (),
    ) -> OperationLaunch:
        """Return the product of a call of an operation on random numbers; nothing is launched.

        Args:
            operation: its name in `tilewright`.
            given: specimens of its arrays, by the names of its arguments.
            words: its other arguments, by name.
            target: where it is computed.
            first: arguments by position, such as the subscripts of `einsum`.

        Raises:
            LaunchError: the call launches no kernel.
        """
        rng, arrays = np.random.default_rng(0), dict[str, Any]()
        shortest = min((one.shape[0] for one in given.values() if len(one.shape) > 1), default=1)
        for name, one in given.items():
            made: Any = one.filled(rng)
            if not one.dtype.is_float and len(one.shape) == 1:  # bounds of groups, or numbers of rows
                made[...] = np.linspace(0, shortest - 1, one.shape[0]).astype(np.int64)
            arrays[name] = device_put(made, target)
        call = getattr(sys.modules["tilewright"], operation)
        text = f"{operation} of {by_name({**given, **words})} on {target}"
        return OperationLaunch.of_call(text, call, first, {**arrays, **words}, target)

    @staticmethod
    def of_call(
        text: str, call: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any], target: str
    ) -> OperationLaunch:
        """Return the product of a call on given arrays; nothing is launched.

        Args:
            text: the call, for messages.
            call: the operation.
            arguments: its arguments by position.
            named: its arguments by name, without the target.
            target: where it is computed.

        Raises:
            LaunchError: the call launches no kernel.
        """
        plans = [one.plan for one in recorded_calls(call, *arguments, **named, target=target)]
        launched = [plan for plan in plans if plan is not None and plan.launches]
        if not launched:
            raise LaunchError(f"{text} launches no kernel", "arrays with elements")
        launch = launched[-1].product
        specimens = [like(one.info.dtype, one.info.shape, strides=one.info.strides) for one in launch.arrays]
        names = [one.name for one in launch.kernel.program.parameters if one.kind == "tensor"]
        first_of: dict[object, str] = {}
        pairs = zip(names, launch.arrays, launch.names, specimens, strict=True)
        same = tuple(
            (name, first_of[key])
            for name, array, called, specimen in pairs
            if first_of.setdefault(key := (called == OWN, array.info.pointer, specimen.dtype), name) != name
        )
        return OperationLaunch(text, launch.kernel, (*specimens, *launch.numbers), target, same)

    @property
    def aliases(self) -> Mapping[str, str]:
        """The parameters that get the memory of another one, such as the second factor of a Gram matrix."""
        return dict(self.same)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Specimens of the arrays, and the numbers."""
        return self.given

    def bound(self, schedule: Schedule | None = None) -> Bound:
        """Return the kernel under a schedule; default: the schedule that the operation chooses."""
        return self.kernel if schedule is None else self.kernel.under(schedule)

    @property
    def is_portable(self) -> bool:
        """False: another process would have to call the operation to get the kernel."""
        return False


# ----------------------------------------------------------------
# Parallel compilation, into the cache that all processes share.


Done = Callable[[int], object]
"""Receives the number of compiled schedules."""


def build(
    subject: TuningSubject, schedules: Sequence[Schedule], processes: int, done: Done = int
) -> dict[Schedule, str]:
    """Compile the kernel of a subject under several schedules, into the cache.

    Args:
        subject: the subject.
        schedules: the schedules.
        processes: number of processes; 1: this one, as for subjects that other processes cannot make.
        done: receives the number of compiled schedules.

    Returns:
        The reason for each schedule that cannot be compiled.
    """
    failed: dict[Schedule, str] = {}
    if processes <= 1 or not subject.is_portable or len(schedules) <= 1:
        for count, schedule in enumerate(schedules, 1):
            if why := compiled(subject, schedule):
                failed[schedule] = why
            done(count)
        return failed
    # Spawned: a forked child of a process that uses a GPU cannot compile.
    with ProcessPoolExecutor(min(processes, len(schedules)), get_context("spawn")) as pool:
        running = {pool.submit(compiled, subject, schedule): schedule for schedule in schedules}
        for count, future in enumerate(as_completed(running), 1):
            try:
                why = future.result()
            except BrokenProcessPool:
                why = "the process that compiled it ended"
            if why:
                failed[running[future]] = why
            done(count)
    return failed


def compiled(subject: TuningSubject, schedule: Schedule) -> str:
    """Compile one kernel; returns the reason if that fails, or ""."""
    try:
        subject.bound(schedule).compile(*subject.arguments, target=subject.target)
    except TilewrightError as error:
        return str(error).strip()
    return ""
