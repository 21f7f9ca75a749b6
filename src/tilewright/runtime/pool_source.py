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
int pthread_cond_broadcast(void*);
int sched_yield(void);
#if defined(__linux__)
int sched_getcpu(void);
#endif
}

namespace tilewright {

typedef void (*Entry)(const void* arguments, long long* next_block, void* scratch, long long blocks);
typedef unsigned long long State;  // generation << 32 | OPEN | number of workers inside

constexpr State OPEN = 1 << 16, INSIDE = OPEN - 1, GENERATION = 1ull << 32;
constexpr int POLLS = 2000, POLLS_BEFORE_YIELD = 64;

struct alignas(128) Pool {
  State state;
  int closing, sleeping, caller_cpu;
  Entry entry;
  const void* arguments;
  void* const* scratch;
  long long blocks;
  alignas(128) long long next_block;
  alignas(128) char mutex[256];
  alignas(128) char condition[256];
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

static void wait_for_news(Pool* pool, State last) {
  for (int poll = 0; poll < POLLS; ++poll) {
    if (news(pool, last)) return;
    pause(poll);
  }
  pthread_mutex_lock(pool->mutex);
  __atomic_fetch_add(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
  while (!news(pool, last)) pthread_cond_wait(pool->condition, pool->mutex);
  __atomic_fetch_sub(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(pool->mutex);
}

static void wake(Pool* pool) {
  if (__atomic_load_n(&pool->sleeping, __ATOMIC_SEQ_CST) == 0) return;
  pthread_mutex_lock(pool->mutex);
  pthread_cond_broadcast(pool->condition);
  pthread_mutex_unlock(pool->mutex);
}

}  // namespace tilewright

#define TILEWRIGHT_EXPORT extern "C" __attribute__((visibility("default")))

TILEWRIGHT_EXPORT void tilewright_open(tilewright::Pool* pool) {
  static_assert(sizeof(tilewright::Pool) <= 4096, "the interpreter allocates 4096 bytes");
  pthread_mutex_init(pool->mutex, nullptr);
  pthread_cond_init(pool->condition, nullptr);
}

TILEWRIGHT_EXPORT void tilewright_close(tilewright::Pool* pool) {
  __atomic_store_n(&pool->closing, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_lock(pool->mutex);
  pthread_cond_broadcast(pool->condition);
  pthread_mutex_unlock(pool->mutex);
}

// The life of worker `index`, bound to processor `cpu` or to none (-1).
TILEWRIGHT_EXPORT void tilewright_serve(tilewright::Pool* pool, int index, int cpu) {
  using namespace tilewright;
  for (State last = 0;;) {
    wait_for_news(pool, last);
    if (__atomic_load_n(&pool->closing, __ATOMIC_SEQ_CST)) return;
    State now = load(pool);
    if (!(now & OPEN) || now / GENERATION == last) continue;
    if (!__atomic_compare_exchange_n(&pool->state, &now, now + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      continue;
    last = now / GENERATION;
    if (cpu < 0 || cpu != pool->caller_cpu)
      pool->entry(pool->arguments, &pool->next_block, pool->scratch[index], pool->blocks);
    __atomic_fetch_sub(&pool->state, 1, __ATOMIC_SEQ_CST);
  }
}

// Run all blocks on the caller and on whichever workers come; `scratch` has one entry per worker, then the
// caller's.
TILEWRIGHT_EXPORT void tilewright_run(tilewright::Pool* pool, tilewright::Entry entry, const void* arguments,
                                      void* const* scratch, int workers, long long blocks) {
  using namespace tilewright;
  pool->entry = entry;
  pool->arguments = arguments;
  pool->scratch = scratch;
  pool->blocks = blocks;
  pool->caller_cpu = current_cpu();
  pool->next_block = 0;
  State generation = load(pool) / GENERATION + 1;
  __atomic_store_n(&pool->state, generation * GENERATION | OPEN, __ATOMIC_SEQ_CST);
  wake(pool);
  entry(arguments, &pool->next_block, scratch[workers], blocks);
  __atomic_fetch_and(&pool->state, ~OPEN, __ATOMIC_SEQ_CST);
  for (int poll = 0; load(pool) & INSIDE; ++poll) pause(poll);
}
"""
"""Freestanding C++; the functions it declares come from the C library that the interpreter already uses."""
