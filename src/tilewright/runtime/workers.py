"""Running a compiled kernel's blocks on several threads.

A kernel's entry draws block numbers from a counter until none are left:

    extern "C" void NAME(const void* arguments, long long* next_block, void* scratch, long long blocks);

so any number of threads may run it at once.  The threads belong to Python; each spends its life in one
call of ``tilewright_serve`` (`tilewright.runtime.pool_source`), which is compiled into every library and
holds no lock of the interpreter.  It polls for some microseconds after a launch and then sleeps.  The caller
works too and never waits for a thread that has not begun, so a slow wake-up costs nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import ToolchainError
from tilewright.runtime.environment import settings, usable_processors

INLINE_NS = 25_000
"""A launch that takes less time than this on one thread stays on the caller's."""

_HUGE = 2 << 20
_POOL_BYTES, _SEAT_BYTES = 1024, 512


class Scratch:
    """Uninitialised memory at a 64-byte boundary, in huge pages where it is large and they exist."""

    def __init__(self, size_bytes: int) -> None:
        align = _HUGE if size_bytes >= _HUGE // 2 else 64
        self.size_bytes = size_bytes
        self._pages = mmap.mmap(-1, size_bytes + align)
        if align == _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._pages.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                align = 64  # a kernel without huge pages
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.address = -(-start // align) * align


class Library:
    """A loaded shared library.

    Args:
        path: a file with the bytes that `tilewright.runtime.native.compile_library` made.

    Raises:
        ToolchainError: the file cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ToolchainError(f"cannot load the compiled library {path.name}: {error}") from error

    def function(self, name: str) -> ctypes._NamedFuncPointer:
        """A function of the library; addresses are passed as integers, everything else by its C type."""
        found = self._library[name]
        found.restype = None
        found.argtypes = _SIGNATURES.get(name, _ENTRY)
        return found

    def address(self, name: str) -> int:
        """The address of a function."""
        return ctypes.cast(self._library[name], ctypes.c_void_p).value or 0


_ADDRESS = ctypes.c_void_p
_ENTRY: list[Any] = [_ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_longlong]
_SIGNATURES: dict[str, list[Any]] = {
    "tilewright_open": [_ADDRESS, ctypes.c_int, _ADDRESS],
    "tilewright_close": [_ADDRESS],
    "tilewright_serve": [_ADDRESS, ctypes.c_int],
    "tilewright_run": [_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_longlong],
}


class Pool:
    """Threads that run the blocks of one launch after another.

    Args:
        library: any library from `tilewright.runtime.native.compile_library`; its pool code is used.
        threads: how many threads work on a launch, the caller's included.
    """

    def __init__(self, library: Library, threads: int) -> None:
        self.threads = threads
        self._library = library  # the threads run its code: it must stay loaded
        cpus: Sequence[int] = ()
        if threads == usable_processors() and hasattr(os, "sched_setaffinity"):
            cpus = sorted(os.sched_getaffinity(0))
        # A bound worker for every processor: the one on the caller's own stays out of a launch.
        bound = list(cpus) or [-1] * (threads - 1)
        self.workers = len(bound)
        self._memory = Scratch(_POOL_BYTES + _SEAT_BYTES * self.workers)
        self._pool = ctypes.c_void_p(self._memory.address)
        self._run = library.function("tilewright_run")
        self.lock = threading.Lock()
        self._scratch: list[Scratch] = []
        self._addresses = (ctypes.c_void_p * (self.workers + 1))()
        library.function("tilewright_open")(self._pool, self.workers, (ctypes.c_int * self.workers)(*bound))
        serve = library.function("tilewright_serve")
        self._threads = [
            threading.Thread(
                target=_serve,
                args=(serve, self._pool, worker, cpu),
                name=f"tilewright-{worker}",
                daemon=True,
            )
            for worker, cpu in enumerate(bound)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, entry: int, arguments: int, blocks: int, scratch_bytes: int) -> None:
        """Run all blocks; the caller holds `lock`.

        Args:
            entry: address of the kernel's function.
            arguments: address of the packed arguments.
            blocks: number of blocks.
            scratch_bytes: scratch memory that each thread needs.
        """
        if not self._scratch or self._scratch[0].size_bytes < scratch_bytes:
            self._scratch = [Scratch(scratch_bytes) for _ in range(self.workers + 1)]
            for index, memory in enumerate(self._scratch):
                self._addresses[index] = memory.address
        self._run(self._pool, entry, arguments, self._addresses, blocks)

    def close(self) -> None:
        """Send the threads home."""
        self._library.function("tilewright_close")(self._pool)
        for thread in self._threads:
            thread.join(1.0)


def _serve(serve: ctypes._NamedFuncPointer, pool: ctypes.c_void_p, worker: int, cpu: int) -> None:
    if cpu >= 0:
        with contextlib.suppress(OSError):  # the processor was taken from us; run anywhere
            os.sched_setaffinity(0, {cpu})  # of this thread
    serve(pool, worker)


class _Shared:
    """The pool of this process and the scratch memory of each calling thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pool: Pool | None = None
        self.threads = 0  # 0 until the environment was asked
        self.callers = threading.local()

    def acquire(self, library: Library) -> Pool | None:
        """The pool, locked for one launch; None if one thread is all there is, or the pool is busy."""
        if self.threads == 1:
            return None
        if self.pool is None:
            with self.lock:
                self.threads = self.threads or settings().threads
                if self.threads == 1:
                    return None
                if self.pool is None:
                    self.pool = Pool(library, self.threads)
        return self.pool if self.pool.lock.acquire(blocking=False) else None

    def scratch(self, size_bytes: int) -> int:
        """The calling thread's own scratch memory."""
        memory: Scratch | None = getattr(self.callers, "scratch", None)
        if memory is None or memory.size_bytes < size_bytes:
            memory = self.callers.scratch = Scratch(size_bytes)
        return memory.address

    def counter(self) -> ctypes.c_longlong:
        """The calling thread's own block counter, at 0."""
        found: ctypes.c_longlong | None = getattr(self.callers, "counter", None)
        if found is None:
            found = self.callers.counter = ctypes.c_longlong()
        found.value = 0
        return found

    def close(self) -> None:
        """At the interpreter's end."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()


_shared = _Shared()
atexit.register(lambda: _shared.close())


def _after_fork() -> None:
    """A forked child has none of its parent's threads: it makes its own pool when it first needs one."""
    global _shared
    _shared = _Shared()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Launcher:
    """Launches one function of a library.

    Args:
        library: the loaded library.
        entry: name of the kernel's function.
        scratch_bytes: scratch memory that each thread needs.
    """

    def __init__(self, library: Library, entry: str, scratch_bytes: int) -> None:
        self._library = library
        self._function = library.function(entry)
        self._address = library.address(entry)
        self._scratch_bytes = max(scratch_bytes, 1)
        self._block_ns = float("inf")

    def launch(self, arguments: int, blocks: int) -> None:
        """Run all blocks and return when they are done.

        Args:
            arguments: address of the arguments, packed by `tilewright.runtime.arguments`.
            blocks: number of blocks of the grid.
        """
        if blocks < 1:
            return
        shared = _shared
        pool = shared.acquire(self._library) if blocks > 1 and blocks * self._block_ns > INLINE_NS else None
        start = time.perf_counter_ns()
        if pool is None:
            counter = ctypes.addressof(shared.counter())
            self._function(arguments, counter, shared.scratch(self._scratch_bytes), blocks)
            self._block_ns = (time.perf_counter_ns() - start) / blocks
            return
        try:
            pool.run(self._address, arguments, blocks, self._scratch_bytes)
        finally:
            pool.lock.release()
        self._block_ns = (time.perf_counter_ns() - start) * min(pool.threads, blocks) / blocks
