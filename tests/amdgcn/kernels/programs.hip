// Small kernels, each for some instructions: copies, reductions, atomics, branches, divisions, conversions.
#include "prelude.h"
extern "C" __global__ void axpy(const float* x, const float* y, float* out, float alpha, int n) {
  int i = BLOCK_X * 256 + THREAD_X;
  if (i < n) out[i] = alpha * x[i] + y[i];
}
extern "C" __global__ void copy_u8(const u8* x, u8* out, int n) {
  int i = BLOCK_X * 256 + THREAD_X;
  if (i < n) out[i] = x[i] + 1;
}
extern "C" __global__ void copy_f16(const f16* x, f16* out, int n) {
  int i = BLOCK_X * 256 + THREAD_X;
  if (i < n) out[i] = x[i] * (f16)2 + (f16)1;
}
extern "C" __global__ void reduce(const float* x, float* out, int n) {
  __shared__ float part[256];
  int t = THREAD_X; float s = 0;
  for (int i = BLOCK_X * 1024 + t; i < (BLOCK_X + 1) * 1024 && i < n; i += 256) s += x[i];
  part[t] = s; block_barrier();
  for (int h = 128; h; h >>= 1) { if (t < h) part[t] += part[t + h]; block_barrier(); }
  if (t == 0) out[BLOCK_X] = part[0];
}
extern "C" __global__ void shuffle(const float* x, float* out) {
  float s = x[BLOCK_X * 64 + THREAD_X];
  int lane = THREAD_X & 31;
  for (int d = 16; d; d >>= 1) s += __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(((THREAD_X ^ d) & 63) * 4, __builtin_bit_cast(int, s)));
  out[BLOCK_X * 64 + THREAD_X] = s;
}
extern "C" __global__ void histogram(const int* x, int* out, float* total, int n) {
  __shared__ int bins[64];
  int t = THREAD_X;
  if (t < 64) bins[t] = 0;
  block_barrier();
  int i = BLOCK_X * 256 + t;
  if (i < n) __hip_atomic_fetch_add(&bins[x[i] & 63], 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  block_barrier();
  if (t < 64) __hip_atomic_fetch_add(&out[t], bins[t], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  if (i < n) __hip_atomic_fetch_add(total, 1.0f, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
extern "C" __global__ void ticket(int* counter, int* out) {
  __shared__ int mine;
  if (THREAD_X == 0) mine = __hip_atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
  block_barrier();
  out[mine * 64 + THREAD_X] = BLOCK_X;
}
extern "C" __global__ void collatz(const u32* x, u32* out, int n) {
  int i = BLOCK_X * 64 + THREAD_X; if (i >= n) return;
  u32 v = x[i], c = 0; while (v != 1) { v = (v & 1) ? 3 * v + 1 : v >> 1; ++c; }
  out[i] = c;
}
extern "C" __global__ void divide(const float* a, const float* b, float* q, const int* c, const int* d, int* r, u64* e, int n) {
  int i = BLOCK_X * 64 + THREAD_X; if (i >= n) return;
  q[i] = a[i] / b[i]; r[i] = c[i] / d[i] + c[i] % d[i]; e[i] = (u64)(u32)c[i] * (u64)(u32)d[i] + 5;
}
extern "C" __global__ void softish(const float* a, float* o, double* p, int n) {
  int i = BLOCK_X * 64 + THREAD_X; if (i >= n) return;
  float x = a[i]; o[i] = __builtin_expf(x) + __builtin_logf(x * x + 1.0f) + __builtin_sqrtf(x * x) ;
  p[i] = (double)x * 1.5 + (double)i;
}
extern "C" __global__ void spill(const float* a, float* o, int n) {
  volatile float t[16];
  for (int i = 0; i < 16; ++i) t[i] = a[THREAD_X + i];
  float s = 0;
  for (int i = 0; i < 16; ++i) s += t[(i * 5 + n) & 15] * i;
  o[THREAD_X] = s;
}
extern "C" __global__ void narrow(const float* a, f16* h, bf16* b, u16* q, signed char* c, int n) {
  int i = BLOCK_X * 64 + THREAD_X; if (i >= n) return;
  h[i] = (f16)a[i]; b[i] = (bf16)a[i]; c[i] = (signed char)(int)a[i];
#ifndef __GFX11__
  q[i] = __builtin_amdgcn_cvt_pk_fp8_f32(a[i], a[i] * 2, 0, false);
#endif
}
