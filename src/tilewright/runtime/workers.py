"""Running a compiled kernel's blocks on several threads.

A kernel's entry takes block numbers from a counter until none are left:

    extern "C" void NAME(const void* arguments, long long* board, void* scratch, long long blocks);

Any number of threads may run it at once. The counter is the first number on the board. The other numbers
serve blocks that wait for each other: the wait that cannot end, the threads inside, and those of them that
wait. The threads belong to Python. Each spends its life in one call of ``tilewright_serve``, which is
compiled into every library and does not hold the interpreter's lock. It polls for some microseconds after a
launch and then sleeps. The caller works too, and never waits for a thread that has not begun, so a slow
wake-up costs nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import sys
import threading
import time
from collections.abc import Sequence

from tilewright.errors import LaunchError
from tilewright.runtime.environment import renew_after_fork, settings, usable_processors
from tilewright.runtime.libraries import Library

INLINE_NS = 25_000
"""A launch that takes less time than this on one thread stays on the caller's thread."""

LOCKED_NS = 100_000
"""A launch by compiled code holds the interpreter's lock if it takes less time than this: a fiftieth of the
time after which Python's threads take turns."""

_HUGE = 2 << 20
# By default, Python would share the memory with forked children.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
_POOL_BYTES, _SEAT_BYTES = 1024, 512


class Scratch:
    """Zeroed private memory at a 64-byte boundary; large memory uses huge pages if the system has them.

    Raises:
        LaunchError: there is not that much memory.
    """

    def __init__(self, size_bytes: int) -> None:
        align = _HUGE if size_bytes >= _HUGE // 2 else 64
        self.size_bytes = size_bytes
        try:
            self._pages = mmap.mmap(-1, size_bytes + align, **_PRIVATE)
        except (OSError, OverflowError) as problem:
            raise LaunchError(
                f"cannot have {size_bytes} bytes of memory for workspaces and packed tiles ({problem}); "
                "nearest: a smaller tile, or fewer threads (TILEWRIGHT_THREADS)"
            ) from problem
        if align == _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._pages.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                align = 64  # a kernel without huge pages
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.address = -(-start // align) * align


class Pool:
    """Threads that run the blocks of one launch after another.

    Args:
        library: any library from `tilewright.runtime.native.compile_library`; its pool code is used.
        threads: how many threads work on a launch, the caller's included.
    """

    def __init__(self, library: Library, threads: int) -> None:
        self._library = library
        cpus: Sequence[int] = ()
        if threads == usable_processors() and hasattr(os, "sched_setaffinity"):
            cpus = sorted(os.sched_getaffinity(0))
        # One bound worker per processor; the worker on the caller's processor stays out of a launch.
        bound = list(cpus) or [-1] * (threads - 1)
        self.workers = len(bound)
        self._memory = Scratch(_POOL_BYTES + _SEAT_BYTES * self.workers)
        self._pool = ctypes.c_void_p(self._memory.address)
        self._run = library.function("tilewright_run")
        self._scratch: list[Scratch] = []
        self._addresses = (ctypes.c_void_p * (self.workers + 1))()
        library.function("tilewright_open")(self._pool, self.workers, (ctypes.c_int * self.workers)(*bound))
        self._threads: list[threading.Thread] = []
        for worker, cpu in enumerate(bound):
            thread = threading.Thread(
                target=_serve,
                args=(library, self._memory, worker, cpu),
                name=f"tilewright-{worker}",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:
                break  # no more threads; a launch never waits for a thread that has not begun
            self._threads.append(thread)
        self.threads = min(threads, len(self._threads) + 1)

    @property
    def address(self) -> int:
        """The address of the pool, for exported code that runs blocks on it."""
        return self._memory.address

    def run(self, entry: int, arguments: int, blocks: int, scratch_bytes: int) -> int:
        """Run all blocks; one launch at a time.

        Args:
            entry: address of the kernel's function.
            arguments: address of the argument buffer.
            blocks: number of blocks.
            scratch_bytes: scratch memory that each thread needs.

        Returns:
            The number of a wait that cannot end, from 1; 0 if all blocks ended.
        """
        if not self._scratch or self._scratch[0].size_bytes < scratch_bytes:
            self._scratch = [Scratch(scratch_bytes) for _ in range(self.workers + 1)]
            for index, memory in enumerate(self._scratch):
                self._addresses[index] = memory.address
        return int(self._run(self._pool, entry, arguments, self._addresses, blocks))

    def close(self) -> None:
        """End the threads; one that has not ended after a second keeps the memory and the library."""
        self._library.function("tilewright_close")(self._pool)
        for thread in self._threads:
            thread.join(1.0)


def _serve(library: Library, memory: Scratch, worker: int, cpu: int) -> None:
    """Run a worker; its frame keeps references to all that it uses, even if the interpreter ends first."""
    if cpu >= 0:
        with contextlib.suppress(OSError):  # the processor is no longer ours; run anywhere
            os.sched_setaffinity(0, {cpu})  # of this thread
    library.function("tilewright_serve")(memory.address, worker)


class _Bench:
    """The board and the scratch memory of one launch on its caller's thread."""

    def __init__(self) -> None:
        self.board = (ctypes.c_longlong * 4)()
        self.board_address = ctypes.addressof(self.board)
        self.scratch = Scratch(1)


class _Shared:
    """The pool of this process, and the benches for launches without the pool.

    A launch takes a bench and gives it back, so a signal handler that launches in between gets another one.
    No launch waits for another.
    """

    def __init__(self) -> None:
        self.is_unlocked = ctypes.c_longlong(0)
        """Whether compiled code runs a launch without the interpreter's lock."""
        self._unlocked = Scratch(1)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the pool in a forked child, which does not have its threads."""
        self.is_unlocked.value = 0
        self.pool: Pool | None = None
        self.threads = 0  # 0: not read from the environment yet
        self.benches: list[_Bench] = []
        self.taken: dict[str, object] = {}
        self._opening = threading.Lock()

    def take(self, library: Library, launch: object) -> Pool | None:
        """Take the pool for one launch; None if there is no pool, or it is busy."""
        if self.threads == 1:
            return None
        pool = self.pool or self._open(library)
        return pool if pool is not None and self.taken.setdefault("by", launch) is launch else None

    def unlocked_scratch(self, size_bytes: int) -> Scratch:
        """Return scratch memory for launches without the interpreter's lock."""
        if self._unlocked.size_bytes < size_bytes:
            self._unlocked = Scratch(max(size_bytes, 2 * self._unlocked.size_bytes))
        return self._unlocked

    def _open(self, library: Library) -> Pool | None:
        """Make the pool; None if it has one thread, or another thread is making it."""
        # A thread started while the interpreter ends never begins, and `Thread.start` waits for ever.
        if sys.is_finalizing() or not self._opening.acquire(blocking=False):
            return None
        try:
            self.threads = self.threads or settings().threads
            if self.threads > 1 and self.pool is None:
                made = Pool(library, self.threads)
                self.threads = made.threads
                self.pool = made if made.threads > 1 else None
            return self.pool
        finally:
            self._opening.release()

    def close(self) -> None:
        """End the threads when the interpreter ends; later launches run on their callers' threads."""
        self.threads = 1
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()


_shared = _Shared()
atexit.register(lambda: _shared.close())


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
        self.address = library.address(entry)
        self.scratch_bytes = max(scratch_bytes, 1)
        self._block_ns = float("inf")

    def stays(self, blocks: int) -> bool:
        """Return whether a launch stays on the caller's thread, by the time of the last one."""
        return blocks == 1 or blocks * self._block_ns <= INLINE_NS or _shared.threads == 1

    def inline_scratch(self, blocks: int) -> tuple[Scratch, ctypes.c_longlong | None]:
        """Return scratch memory for a launch by compiled code, and the word that guards it.

        A launch that may take long releases the interpreter's lock, and sets the word meanwhile. All such
        launches share memory, and only one runs at a time. Without a word, the launch holds the lock.
        """
        if blocks * self._block_ns <= LOCKED_NS:
            return Scratch(self.scratch_bytes), None
        return _shared.unlocked_scratch(self.scratch_bytes), _shared.is_unlocked

    def launch(self, arguments: int, blocks: int) -> int:
        """Run all blocks and return when they are done; any number of threads may call it at once.

        Args:
            arguments: address of the argument buffer.
            blocks: number of blocks of the grid.

        Returns:
            The number of a wait for other blocks that cannot end, from 1; 0 if all blocks ended.
        """
        if blocks < 1:
            return 0
        shared = _shared
        if blocks > 1 and blocks * self._block_ns > INLINE_NS:
            launch, taken = object(), shared.taken
            try:
                pool = shared.take(self._library, launch)
                if pool is not None:
                    start = time.perf_counter_ns()
                    stuck = pool.run(self.address, arguments, blocks, self.scratch_bytes)
                    took = (time.perf_counter_ns() - start) * min(pool.threads, blocks)
                    self._block_ns = took / blocks
                    return stuck
            finally:
                # No calls here: Ctrl-C between two calls would leave the pool taken for ever.
                try:
                    if taken["by"] is launch:
                        del taken["by"]
                except KeyError:
                    pass
        start = time.perf_counter_ns()
        try:
            bench = shared.benches.pop()
        except IndexError:
            bench = _Bench()
        if bench.scratch.size_bytes < self.scratch_bytes:
            bench.scratch = Scratch(self.scratch_bytes)
        bench.board[:] = [0, 0, 0, 0]
        self._function(arguments, bench.board_address, bench.scratch.address, blocks)
        shared.benches.append(bench)
        self._block_ns = (time.perf_counter_ns() - start) / blocks
        return int(bench.board[1])


# ----------------------------------------------------------------
# The C++ side, compiled into every library; the first one loaded runs it.


POOL_SOURCE = """
// ---------------------------------------------------------------- worker threads

extern "C" {
int pthread_mutex_init(void*, const void*);
int pthread_mutex_lock(void*);
int pthread_mutex_unlock(void*);
int pthread_cond_init(void*, const void*);
int pthread_cond_wait(void*, void*);
int pthread_cond_signal(void*);
int sched_yield(void);
#if defined(__linux__)
int sched_getcpu(void);
#endif
}

namespace tilewright {

typedef void (*Entry)(const void* arguments, long long* board, void* scratch, long long blocks);
typedef unsigned long long State;  // generation << 32 | OPEN | number of workers inside

constexpr State OPEN = 1 << 16, INSIDE = OPEN - 1, GENERATION = 1ull << 32;
constexpr int POLLS = 200, POLLS_BEFORE_YIELD = 64;

// Where one worker sleeps; bound to processor `cpu`, or to none (-1).
struct alignas(128) Seat {
  int asleep, cpu;
  alignas(128) char mutex[128];
  alignas(128) char condition[128];
};

struct alignas(128) Pool {
  State state;
  int closing, caller_cpu, workers;
  Entry entry;
  const void* arguments;
  void* const* scratch;
  long long blocks;
  // The next block; which wait cannot end; threads inside; those of them that wait.
  alignas(128) long long board[4];
  alignas(128) Seat seats[1];  // one for each worker
};

static inline void pause(int poll) {
  if (poll >= POLLS_BEFORE_YIELD) sched_yield();
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static inline int current_cpu() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

static inline State load(Pool* pool) { return __atomic_load_n(&pool->state, __ATOMIC_SEQ_CST); }

static inline bool news(Pool* pool, State last) {
  State now = load(pool);
  return ((now & OPEN) && now / GENERATION != last) || __atomic_load_n(&pool->closing, __ATOMIC_SEQ_CST);
}

// A worker on the processor where the caller goes on would only take its time.
static inline bool stays_out(Pool* pool, const Seat* seat) {
  return seat->cpu >= 0 && seat->cpu == pool->caller_cpu;
}

static void wait_for_news(Pool* pool, Seat* seat, State last) {
  const int polls = stays_out(pool, seat) ? 0 : POLLS;
  for (int poll = 0; poll < polls; ++poll) {
    if (news(pool, last)) return;
    pause(poll);
  }
  pthread_mutex_lock(seat->mutex);
  __atomic_store_n(&seat->asleep, 1, __ATOMIC_SEQ_CST);
  while (!news(pool, last)) pthread_cond_wait(seat->condition, seat->mutex);
  __atomic_store_n(&seat->asleep, 0, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(seat->mutex);
}

static void wake(Seat* seat) {
  pthread_mutex_lock(seat->mutex);
  pthread_cond_signal(seat->condition);
  pthread_mutex_unlock(seat->mutex);
}

}  // namespace tilewright

#define TILEWRIGHT_EXPORT extern "C" __attribute__((visibility("default")))

// The memory is zeroed; `cpus` tells which processor each worker is bound to.
TILEWRIGHT_EXPORT void tilewright_open(tilewright::Pool* pool, int workers, const int* cpus) {
  static_assert(sizeof(tilewright::Pool) <= 1024, "the interpreter allocates 1024 bytes");
  static_assert(sizeof(tilewright::Seat) <= 512, "and 512 for each worker");
  pool->workers = workers;
  for (int worker = 0; worker < workers; ++worker) {
    pool->seats[worker].cpu = cpus[worker];
    pthread_mutex_init(pool->seats[worker].mutex, nullptr);
    pthread_cond_init(pool->seats[worker].condition, nullptr);
  }
}

TILEWRIGHT_EXPORT void tilewright_close(tilewright::Pool* pool) {
  __atomic_store_n(&pool->closing, 1, __ATOMIC_SEQ_CST);
  for (int worker = 0; worker < pool->workers; ++worker) tilewright::wake(&pool->seats[worker]);
}

// The life of one worker.
TILEWRIGHT_EXPORT void tilewright_serve(tilewright::Pool* pool, int worker) {
  using namespace tilewright;
  Seat* seat = &pool->seats[worker];
  for (State last = 0;;) {
    wait_for_news(pool, seat, last);
    if (__atomic_load_n(&pool->closing, __ATOMIC_SEQ_CST)) return;
    State now = load(pool);
    if (!(now & OPEN) || now / GENERATION == last) continue;
    if (!__atomic_compare_exchange_n(&pool->state, &now, now + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      continue;
    last = now / GENERATION;
    if (!stays_out(pool, seat))
      pool->entry(pool->arguments, pool->board, pool->scratch[worker], pool->blocks);
    __atomic_fetch_sub(&pool->state, 1, __ATOMIC_SEQ_CST);
  }
}

// Run all blocks on the caller and on whichever workers come; `scratch` has one entry per worker, then the
// caller's.  Returns the number of a wait that cannot end; 0 if all blocks ended.
TILEWRIGHT_EXPORT long long tilewright_run(tilewright::Pool* pool, tilewright::Entry entry,
                                           const void* arguments, void* const* scratch, long long blocks) {
  using namespace tilewright;
  pool->entry = entry;
  pool->arguments = arguments;
  pool->scratch = scratch;
  pool->blocks = blocks;
  pool->caller_cpu = current_cpu();
  for (long long& each : pool->board) each = 0;
  State generation = load(pool) / GENERATION + 1;
  __atomic_store_n(&pool->state, generation * GENERATION | OPEN, __ATOMIC_SEQ_CST);
  long long wanted = blocks - 1;
  for (int worker = 0; worker < pool->workers && wanted > 0; ++worker) {
    Seat* seat = &pool->seats[worker];
    if (stays_out(pool, seat)) continue;
    if (__atomic_load_n(&seat->asleep, __ATOMIC_SEQ_CST)) wake(seat);
    --wanted;
  }
  entry(arguments, pool->board, scratch[pool->workers], blocks);
  __atomic_fetch_and(&pool->state, ~OPEN, __ATOMIC_SEQ_CST);
  for (int poll = 0; load(pool) & INSIDE; ++poll) pause(poll);
  return pool->board[1];
}
"""
"""Freestanding C++. The functions that it declares come from the interpreter's own C library."""
