"""Compiling many schedules of one product in parallel processes, into the cache that all processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from tilewright.errors import TilewrightError
from tilewright.schedule.schedule import Schedule
from tilewright.tune.gemm import Gemm

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
