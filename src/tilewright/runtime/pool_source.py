"""The C++ side of the worker threads; compiled into every library, used from the first one loaded."""

from __future__ import annotations

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
"""Freestanding C++; the functions it declares come from the C library that the interpreter already uses."""
