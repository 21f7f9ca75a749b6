
// ---------------------------------------------------------------- processors

extern "C" long long tilewright_run(void* pool, void (*entry)(const void*, long long*, void*, long long),
                                    const void* arguments, void* const* scratch, long long blocks);
extern "C" int tilewright_pool_workers(const void* pool);

namespace {

struct Program {
  void (*entry)(const void*, long long*, void*, long long);
  Bytes scratch_bytes;  // of each thread
  unsigned zeroed;      // a bit for each workspace that begins with zeros
};

#if defined(__x86_64__)
struct Words {
  unsigned a, b, c, d;
};

Words cpuid(unsigned leaf, unsigned part) {
  Words found;
  asm volatile("cpuid" : "=a"(found.a), "=b"(found.b), "=c"(found.c), "=d"(found.d) : "a"(leaf), "c"(part));
  return found;
}

// 1: x86-64; 3: with AVX2, FMA and BMI2; 4: with AVX-512 F, BW, DQ, VL and CD.
int level() {
  if (cpuid(0, 0).a < 7) return 1;
  const unsigned first = cpuid(1, 0).c;
  if (!(first >> 27 & 1)) return 1;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const unsigned more = cpuid(7, 0).b;
  const bool three = (low & 6) == 6 && (first >> 12 & 1) && (first >> 29 & 1) && (more >> 5 & 1) && (more >> 3 & 1) && (more >> 8 & 1);
  if (!three) return 1;
  const unsigned wanted = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  return (low & 0xe6) == 0xe6 && (more & wanted) == wanted ? 4 : 3;
}
#else
int level() { return 1; }
#endif

struct Processor {
  const char* arch;
  int level;
};

// The widest exported architecture that this processor has; null if it has none.
const char* processor(const Processor* archs, int count) {
  static int known = 0;
  int own = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (own == 0) __atomic_store_n(&known, own = level(), __ATOMIC_RELAXED);
  const Processor* best = nullptr;
  for (int at = 0; at < count; ++at)
    if (archs[at].level <= own && (best == nullptr || archs[at].level > best->level)) best = &archs[at];
  return best == nullptr ? nullptr : best->arch;
}

Bytes scratch_of(const Program& program, int threads) {
  return (program.scratch_bytes + 8 + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN * threads + SPACE_ALIGN;
}

int run_cpu(const Kernel& kernel, const Call& call, const Bound& bound, void* workspace, Bytes workspace_bytes, void* pool) {
  const Program& program = *(const Program*)kernel.code;
  const int threads = pool == nullptr ? 1 : tilewright_pool_workers(pool) + 1;
  const Wide blocks = bound.grid[0] * bound.grid[1] * bound.grid[2];
  if (blocks == 0) return 0;
  if (workspace_bytes < bound.bytes + scratch_of(program, threads) || workspace == nullptr || (Bytes)workspace % SPACE_ALIGN)
    return error(TILEWRIGHT_WORKSPACE, 0);
  char* memory = (char*)workspace;
  for (int at = 0; at < MOST_SPACES; ++at)
    if (program.zeroed >> at & 1) __builtin_memset(memory + bound.offsets[at], 0, bound.spaces[at]);
  alignas(64) unsigned char buffer[4096];
  if (kernel.buffer_bytes > (int)sizeof buffer) return error(TILEWRIGHT_LIMIT, 0);
  kernel.fill(call, bound, memory, buffer);
  char* scratch = memory + bound.bytes;
  if (pool == nullptr) {
    long long board[4] = {0, 0, 0, 0};
    program.entry(buffer, board, scratch, blocks);
    return board[1] ? error(TILEWRIGHT_STUCK, 0) : 0;
  }
  // Each thread has its scratch memory; the addresses of all of them follow.
  const Bytes each = (program.scratch_bytes + 8 + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
  void* places[257];
  if (threads > 257) return error(TILEWRIGHT_LIMIT, 0);
  for (int thread = 0; thread < threads; ++thread) places[thread] = scratch + thread * each;
  return tilewright_run(pool, program.entry, buffer, places, blocks) ? error(TILEWRIGHT_STUCK, 0) : 0;
}

}  // namespace
