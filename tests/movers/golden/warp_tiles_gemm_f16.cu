struct half_t { unsigned short bits; };

__device__ __forceinline__ half_t float_to_half(float x) {
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

template <class Word>
__device__ __forceinline__ Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
}

__device__ __forceinline__ void mma_m16n8k16_f16(float* c, const void* a, const void* b) {
  const unsigned* x = (const unsigned*)a;
  const unsigned* y = (const unsigned*)b;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]),
                 "r"(y[0]), "r"(y[1]));
}

extern "C" __global__ void __launch_bounds__(128) warp_tiles_gemm(
    const half_t* A, const half_t* B, half_t* C, int M, int A_stride0, int K, int N, int B_stride0,
    int C_stride0) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of (M + 127) / 128
  const int n = blockIdx.y;  // of (N + 56) / 64
  // 06_warp_tiles_gemm.py:23: acc: f32 128x64, 64 per thread
  float acc[64] = {};
  const int k_end = (K + 24) / 32;
  for (int k = 0; k < k_end; ++k) {
    // 06_warp_tiles_gemm.py:25: rA: f16 128x32, 64 per thread
    __align__(4) half_t rA[64];
    // 06_warp_tiles_gemm.py:25: A.tile((128, 32), (m, k)) -> rA, 4 bytes at a time
    {
      const int row = 64*((tid / 32) % 2) + ((tid / 4) % 8);
      const int col = 2*(tid % 4);
      const half_t* from = A + 32*k + (128*m + row)*A_stride0 + col;
      #pragma unroll
      for (int v = 0; v < 2; ++v) {
        #pragma unroll
        for (int u = 0; u < 4; ++u) {
          #pragma unroll
          for (int j = 0; j < 2; ++j) {
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
              *(unsigned*)&rA[32*v + 8*u + 4*j + 2*i] =
                  load_if<unsigned>(128*m + 16*u + 8*i + row < M && 32*k + 16*v + 8*j + col < K,
                  from + 16*v + 8*(2*u + i)*A_stride0 + 8*j);
            }
          }
        }
      }
    }
    // 06_warp_tiles_gemm.py:26: rB: f16 64x32, 32 per thread
    __align__(4) half_t rB[32];
    // 06_warp_tiles_gemm.py:26: B.tile((64, 32), (n, k)) -> rB, 4 bytes at a time
    {
      const int row = 32*(tid / 64) + ((tid / 4) % 8);
      const int col = 2*(tid % 4);
      const half_t* from = B + 32*k + (64*n + row)*B_stride0 + col;
      #pragma unroll
      for (int u = 0; u < 2; ++u) {
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            *(unsigned*)&rB[16*u + 4*j + 2*i] =
                load_if<unsigned>(64*n + 8*j + row < N && 32*k + 16*u + 8*i + col < K, from + 16*u
                + 8*B_stride0*j + 8*i);
          }
        }
      }
    }
    // 06_warp_tiles_gemm.py:27: acc += rA * rB, by mma.m16n8k16.f32.f16
    #pragma unroll
    for (int step = 0; step < 2; ++step) {
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          mma_m16n8k16_f16(&acc[16*j + 4*i], &rA[32*step + 8*i], &rB[16*step + 4*j]);
        }
      }
    }
  }
  // 06_warp_tiles_gemm.py:28: acc -> C.tile((128, 64), (m, n)), 4 bytes at a time
  {
    const int row = 64*((tid / 32) % 2) + ((tid / 4) % 8);
    const int col = 32*(tid / 64) + 2*(tid % 4);
    half_t* to = C + 64*n + (128*m + row)*C_stride0 + col;
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        __align__(4) half_t packed[2];
        #pragma unroll
        for (int e = 0; e < 2; ++e) packed[e] = float_to_half(acc[16*j + 2*i + e]);
        if (128*m + 8*i + row < M && 64*n + 8*j + col < N) {
          *(unsigned*)(to + 8*C_stride0*i + 8*j) = *(const unsigned*)packed;
        }
      }
    }
  }
}
