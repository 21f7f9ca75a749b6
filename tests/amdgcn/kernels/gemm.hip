// A product of f16 with sums in f32, by WMMA where a wave has 32 lanes, by MFMA where it has 64.
#include "prelude.h"
// C (M,N) f32 = A (M,K) @ B (N,K)^T, f16; tile 128x128x32, 256 threads.
#define BM 128
#define BN 128
#define BK 32
#define LD (BK + 8)
extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(256, 256)))
void gemm(const f16* __restrict A, const f16* __restrict B, float* __restrict C, int M, int N, int K) {
  __shared__ f16 sA[BM * LD]; __shared__ f16 sB[BN * LD];
  int t = THREAD_X;
  int m0 = BLOCK_Y * BM, n0 = BLOCK_X * BN;
  int row = t >> 1, col = (t & 1) * 16;
  f16x8 zero = {0,0,0,0,0,0,0,0};
#ifdef __GFX11__
  int wave = t >> 5, lane = t & 31;
  int wm = (wave >> 2) * 64, wn = (wave & 3) * 32;
  f32x8 acc[4][2] = {};
#else
  int wave = t >> 6, lane = t & 63;
  int wm = (wave >> 1) * 64, wn = (wave & 1) * 64;
  f32x16 acc[2][2] = {};
#endif
  for (int k0 = 0; k0 < K; k0 += BK) {
    f16x8 a[2], b[2];
    for (int i = 0; i < 2; ++i) {
      a[i] = (m0 + row < M && k0 + col + 8 * i < K) ? *(const f16x8*)(A + (long)(m0 + row) * K + k0 + col + 8 * i) : zero;
      b[i] = (n0 + row < N && k0 + col + 8 * i < K) ? *(const f16x8*)(B + (long)(n0 + row) * K + k0 + col + 8 * i) : zero;
    }
    block_barrier();
    for (int i = 0; i < 2; ++i) {
      *(f16x8*)&sA[row * LD + col + 8 * i] = a[i];
      *(f16x8*)&sB[row * LD + col + 8 * i] = b[i];
    }
    block_barrier();
#ifdef __GFX11__
    for (int kk = 0; kk < BK; kk += 16) {
      f16x16 fa[4], fb[2];
      for (int i = 0; i < 4; ++i) fa[i] = *(f16x16*)&sA[(wm + 16 * i + (lane & 15)) * LD + kk];
      for (int j = 0; j < 2; ++j) fb[j] = *(f16x16*)&sB[(wn + 16 * j + (lane & 15)) * LD + kk];
      for (int i = 0; i < 4; ++i) for (int j = 0; j < 2; ++j)
        acc[i][j] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(fa[i], fb[j], acc[i][j]);
    }
#else
    for (int kk = 0; kk < BK; kk += 8) {
      f16x4 fa[2], fb[2];
      for (int i = 0; i < 2; ++i) fa[i] = *(f16x4*)&sA[(wm + 32 * i + (lane & 31)) * LD + kk + 4 * (lane >> 5)];
      for (int j = 0; j < 2; ++j) fb[j] = *(f16x4*)&sB[(wn + 32 * j + (lane & 31)) * LD + kk + 4 * (lane >> 5)];
      for (int i = 0; i < 2; ++i) for (int j = 0; j < 2; ++j)
        acc[i][j] = __builtin_amdgcn_mfma_f32_32x32x8f16(fa[i], fb[j], acc[i][j], 0, 0, 0);
    }
#endif
  }
#ifdef __GFX11__
  for (int i = 0; i < 4; ++i) for (int j = 0; j < 2; ++j) for (int r = 0; r < 8; ++r) {
    int m = m0 + wm + 16 * i + 2 * r + (lane >> 4), n = n0 + wn + 16 * j + (lane & 15);
    if (m < M && n < N) C[(long)m * N + n] = acc[i][j][r];
  }
#else
  for (int i = 0; i < 2; ++i) for (int j = 0; j < 2; ++j) for (int r = 0; r < 16; ++r) {
    int m = m0 + wm + 32 * i + 8 * (r >> 2) + 4 * (lane >> 5) + (r & 3), n = n0 + wn + 32 * j + (lane & 31);
    if (m < M && n < N) C[(long)m * N + n] = acc[i][j][r];
  }
#endif
}
