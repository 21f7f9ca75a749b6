// Runs the text of CUDA kernels on the host: one fiber per thread of a block, blocks one after another.
//
// Warp instructions are written here from the PTX ISA ("Matrix fragments for mma.m16n8k*", "ldmatrix"), not from
// the library's maps, so that the maps are tested too.  Asynchronous copies happen at once.

#include <limits>
#include <ucontext.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __cluster_dims__(...)
#define __align__(bytes) alignas(bytes)

static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static double rsqrt(double x) { return 1.0 / sqrt(x); }

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct double2 { double x, y; };
struct Index { int x, y, z; };

static const int MOST_THREADS = 1024, STACK_BYTES = 1 << 16, SHARED_BYTES = 1 << 18;

struct Meeting { int arrived, generation; };
struct Warp { Meeting meeting; void* address[32]; unsigned a[32][4], b[32][2]; };

static Index threadIdx, blockIdx;
static int cluster_index[3];
static int thread, threads, progress;
static bool finished[MOST_THREADS];
static ucontext_t scheduler, fibers[MOST_THREADS];
static unsigned char* stacks[MOST_THREADS];
static Meeting block_meeting;
static Warp warps[MOST_THREADS / 32];
alignas(1024) static unsigned char emulated_shared[SHARED_BYTES];
static void (*entry)(void**);
static void** entry_arguments;

static void meet(Meeting& meeting, int members) {
  const int generation = meeting.generation;
  ++progress;
  if (++meeting.arrived == members) {
    meeting.arrived = 0;
    ++meeting.generation;
  }
  while (meeting.generation == generation) swapcontext(&fibers[thread], &scheduler);
}

static void __syncthreads() { meet(block_meeting, threads); }

static void __syncwarp() {
  const int first = thread / 32 * 32;
  meet(warps[thread / 32].meeting, threads - first < 32 ? threads - first : 32);
}

static void start() {
  entry(entry_arguments);
  finished[thread] = true;
  ++progress;
  swapcontext(&fibers[thread], &scheduler);
}

// Gives back 0, or 1 for a deadlock.
static int run_block() {
  memset(emulated_shared, 0xff, SHARED_BYTES);
  memset(warps, 0, sizeof warps);
  block_meeting = Meeting{};
  for (int i = 0; i < threads; ++i) {
    finished[i] = false;
    if (!stacks[i]) stacks[i] = (unsigned char*)malloc(STACK_BYTES);
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = stacks[i];
    fibers[i].uc_stack.ss_size = STACK_BYTES;
    fibers[i].uc_link = nullptr;
    makecontext(&fibers[i], start, 0);
  }
  for (int left = threads; left > 0;) {
    const int before = progress;
    for (thread = 0; thread < threads; ++thread) {
      if (finished[thread]) continue;
      threadIdx = Index{thread, 0, 0};
      swapcontext(&scheduler, &fibers[thread]);
      if (finished[thread]) --left;
    }
    if (before == progress) return 1;
  }
  return 0;
}

// ---------------------------------------------------------------- scalar instructions

static float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static float __int_as_float(int x) { return __uint_as_float((unsigned)x); }
template <class A, class B> static auto min(A a, B b) { return a < b ? a : b; }
template <class A, class B> static auto max(A a, B b) { return a > b ? a : b; }

template <class To, class From> static To truncated(From x, double low, double high) {
  if (x != x) return 0;
  if (x >= high) return std::numeric_limits<To>::max();
  return x <= low ? (To)low : (To)x;
}
static int __float2int_rz(float x) { return truncated<int>(x, -2147483648.0, 2147483648.0); }
static unsigned __float2uint_rz(float x) { return truncated<unsigned>(x, 0, 4294967296.0); }
static long long __float2ll_rz(float x) { return truncated<long long>(x, -0x1p63, 0x1p63); }
static unsigned long long __float2ull_rz(float x) {
  return truncated<unsigned long long>(x, 0, 0x1p64);
}
static int __double2int_rz(double x) { return truncated<int>(x, -2147483648.0, 2147483648.0); }
static unsigned __double2uint_rz(double x) { return truncated<unsigned>(x, 0, 4294967296.0); }
static long long __double2ll_rz(double x) { return truncated<long long>(x, -0x1p63, 0x1p63); }
static unsigned long long __double2ull_rz(double x) {
  return truncated<unsigned long long>(x, 0, 0x1p64);
}

static float __double2float_rz(double x) {
  const float y = (float)x;
  if (x != x || __builtin_isinf(x) || fabs((double)y) <= fabs(x)) return y;
  return nextafterf(y, 0.0f);
}
static float __ll2float_rz(long long x) {
  // A float of more than the largest integer is 2^63, which the conversion back would not hold.
  const float y = (float)x;
  const bool away = x < 0 ? y < -0x1p63f || (long long)y < x : y >= 0x1p63f || (long long)y > x;
  return away ? nextafterf(y, 0.0f) : y;
}
static float __ull2float_rz(unsigned long long x) {
  const float y = (float)x;
  return y >= 0x1p64f || (unsigned long long)y > x ? nextafterf(y, 0.0f) : y;
}

struct half_t;
struct bf16_t;

template <class Half> static float from_half(Half x) {
  _Float16 y;
  memcpy(&y, &x.bits, 2);
  return (float)y;
}
static unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = (unsigned long long)y << 32 | x;
  unsigned made = 0;
  for (int i = 0; i < 4; ++i) made |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return made;
}
template <class Function> static unsigned of_halves(Function f, unsigned x, unsigned y, unsigned z) {
  unsigned made = 0;
  for (int i = 0; i < 2; ++i) {
    _Float16 given[3];
    const unsigned short bits[3] = {(unsigned short)(x >> 16 * i), (unsigned short)(y >> 16 * i),
                                    (unsigned short)(z >> 16 * i)};
    memcpy(given, bits, 6);
    const _Float16 one = (_Float16)f(given[0], given[1], given[2]);
    unsigned short half;
    memcpy(&half, &one, 2);
    made |= (unsigned)half << 16 * i;
  }
  return made;
}
template <class Function> static unsigned of_bf16s(Function f, unsigned x, unsigned y, unsigned z) {
  unsigned made = 0;
  for (int i = 0; i < 2; ++i) {
    const unsigned shift = 16 * i;
    const float given[3] = {__uint_as_float(x >> shift << 16), __uint_as_float(y >> shift << 16),
                            __uint_as_float(z >> shift << 16)};
    unsigned bits = __float_as_uint(f(given[0], given[1], given[2]));
    bits = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits + 0x7fff + (bits >> 16 & 1);
    made |= (bits >> 16) << shift;
  }
  return made;
}
template <class Half, class From> static Half to_half(From x) {
  const _Float16 y = (_Float16)x;
  Half z;
  memcpy(&z.bits, &y, 2);
  return z;
}
template <class Half> static Half to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  bits = x != x ? 0x7fc00000 : bits + 0x7fff + (bits >> 16 & 1);
  return Half{(unsigned short)(bits >> 16)};
}
static float of_parts(unsigned char x, int fraction, int bias) {
  const int exponent = (x & 0x7f) >> fraction, rest = x & ((1 << fraction) - 1);
  const float size = exponent ? ldexpf(1 + ldexpf(rest, -fraction), exponent - bias)
                              : ldexpf(rest, 1 - bias - fraction);
  return x & 0x80 ? -size : size;
}
static float from_e4m3(unsigned char x) { return (x & 0x7f) == 0x7f ? NAN : of_parts(x, 3, 7); }
static float from_e5m2(unsigned char x) {
  if ((x & 0x7f) >= 0x7c) return (x & 3) ? NAN : x & 0x80 ? -INFINITY : INFINITY;
  return of_parts(x, 2, 15);
}

// ---------------------------------------------------------------- warp instructions

template <int count, bool transposed> static void ldmatrix(void* to, const void* from) {
  Warp& warp = warps[thread / 32];
  const int lane = thread % 32;
  warp.address[lane] = (void*)from;
  __syncwarp();
  for (int q = 0; q < count; ++q) {
    unsigned word;
    if (transposed) {
      unsigned short pair[2];
      for (int e = 0; e < 2; ++e) {
        memcpy(&pair[e], (const char*)warp.address[8 * q + 2 * (lane % 4) + e] + 2 * (lane / 4), 2);
      }
      memcpy(&word, pair, 4);
    } else {
      memcpy(&word, (const char*)warp.address[8 * q + lane / 4] + 4 * (lane % 4), 4);
    }
    if ((uintptr_t)warp.address[8 * q + lane % 8] % 16) abort();
    ((unsigned*)to)[q] = word;
  }
  __syncwarp();
}

template <int count, bool transposed> static void stmatrix(void* to, const void* from) {
  Warp& warp = warps[thread / 32];
  const int lane = thread % 32;
  warp.address[lane] = to;
  __syncwarp();
  for (int q = 0; q < count; ++q) {
    const unsigned word = ((const unsigned*)from)[q];
    if ((uintptr_t)warp.address[8 * q + lane % 8] % 16) abort();
    if (transposed) {
      for (int e = 0; e < 2; ++e) {
        const unsigned short half = (unsigned short)(word >> 16 * e);
        memcpy((char*)warp.address[8 * q + 2 * (lane % 4) + e] + 2 * (lane / 4), &half, 2);
      }
    } else {
      memcpy((char*)warp.address[8 * q + lane / 4] + 4 * (lane % 4), &word, 4);
    }
  }
  __syncwarp();
}

template <class T> static T __shfl_xor_sync(unsigned, T value, int mask) {
  static char values[MOST_THREADS][16];
  memcpy(values[thread], &value, sizeof value);
  __syncwarp();
  T other;
  memcpy(&other, values[thread / 32 * 32 + (thread % 32 ^ mask)], sizeof other);
  __syncwarp();
  return other;
}

struct F16 { static double value(unsigned word, int part) {
  const unsigned short bits = (unsigned short)(word >> 16 * part);
  _Float16 x;
  memcpy(&x, &bits, 2);
  return (double)x;
} };
struct BF16 { static double value(unsigned word, int part) {
  return __uint_as_float(word >> 16 * part << 16);
} };
struct TF32 { static double value(unsigned word, int) { return __uint_as_float(word & 0xffffe000); } };
struct S8 { static double value(unsigned word, int part) { return (signed char)(word >> 8 * part); } };

// parts: elements of a register; k = 8 * parts.
template <class Kind, int parts, class Sum> static void mma(Sum* c, const void* a, const void* b) {
  Warp& warp = warps[thread / 32];
  const int lane = thread % 32;
  memcpy(warp.a[lane], a, 16);
  memcpy(warp.b[lane], b, 8);
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), col = 2 * (lane % 4) + i % 2;
    double sum = (double)c[i];
    for (int k = 0; k < 8 * parts; ++k) {
      const int t = k % (4 * parts) / parts, high = k / (4 * parts), part = k % parts;
      sum += Kind::value(warp.a[4 * (row % 8) + t][row / 8 + 2 * high], part) *
             Kind::value(warp.b[4 * col + t][high], part);
    }
    c[i] = (Sum)sum;
  }
  __syncwarp();
}
