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

__device__ __forceinline__ void ldmatrix_x4(void* to, const void* from) {
  unsigned* r = (unsigned*)to;
  const unsigned shared = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void stmatrix_x4(void* to, const void* from) {
  const unsigned* r = (const unsigned*)from;
  const unsigned shared = __cvta_generic_to_shared(to);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(shared), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
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

// - sC re-laid out: swizzle<3, 3, 4>
extern "C" __global__ void __launch_bounds__(256) optimized_gemm(
    const half_t* A, const half_t* B, half_t* C, int M, int A_stride0, int K, int N, int B_stride0,
    int C_stride0) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of M / 256
  const int n = blockIdx.y;  // of N / 128
  extern __shared__ __align__(128) unsigned char shared_memory[];
  // 04_optimized_gemm.py:24: sA: f16 4x256x8
  half_t* const sA = (half_t*)shared_memory;
  // 04_optimized_gemm.py:24: sB: f16 4x128x8
  half_t* const sB = (half_t*)(shared_memory + 16512);
  // 04_optimized_gemm.py:38: sC: f16 256x128
  half_t* const sC = (half_t*)(shared_memory + 24832);
  // 04_optimized_gemm.py:39: acc: f32 256x128, 128 per thread
  float acc[128] = {};
  // 04_optimized_gemm.py:41: rA: f16 4x256x8, 32 per thread
  __align__(16) half_t rA[32];
  // 04_optimized_gemm.py:41: A_part -> rA, 16 bytes at a time
  {
    const int x0 = tid % 4;
    const int x1 = 4*(tid / 4);
    const half_t* from = A + 8*x0 + (256*m + x1)*A_stride0;
    const bool inside = 8*x0 < K;
    #pragma unroll
    for (int i = 0; i < 4; ++i) *(uint4*)&rA[8*i] = load_if<uint4>(inside, from + A_stride0*i);
  }
  // 04_optimized_gemm.py:42: rB: f16 4x128x8, 16 per thread
  __align__(16) half_t rB[16];
  // 04_optimized_gemm.py:42: B_part -> rB, 16 bytes at a time
  {
    const int x0 = tid % 4;
    const int x1 = 2*(tid / 4);
    const half_t* from = B + 8*x0 + (128*n + x1)*B_stride0;
    const bool inside = 8*x0 < K;
    #pragma unroll
    for (int i = 0; i < 2; ++i) *(uint4*)&rB[8*i] = load_if<uint4>(inside, from + B_stride0*i);
  }
  // 04_optimized_gemm.py:43: rA -> sA, 16 bytes at a time
  {
    const int x0 = tid % 4;
    const int x1 = 4*(tid / 4);
    half_t* to = sA + 2056*x0 + 8*x1;
    #pragma unroll
    for (int i = 0; i < 4; ++i) *(uint4*)(to + 8*i) = *(const uint4*)&rA[8*i];
  }
  // 04_optimized_gemm.py:44: rB -> sB, 16 bytes at a time
  {
    const int x0 = tid % 4;
    const int x1 = 2*(tid / 4);
    half_t* to = sB + 1032*x0 + 8*x1;
    #pragma unroll
    for (int i = 0; i < 2; ++i) *(uint4*)(to + 8*i) = *(const uint4*)&rB[8*i];
  }
  // 04_optimized_gemm.py:45: barrier
  __syncthreads();
  const int k_end = K / 32;
  for (int k = 1; k < k_end; ++k) {
    // 04_optimized_gemm.py:47: A_permuted_1 -> rA, 16 bytes at a time
    {
      const int x0 = tid % 4;
      const int x1 = 4*(tid / 4);
      const half_t* from = A + 32*k + 8*x0 + (256*m + x1)*A_stride0;
      #pragma unroll
      for (int i = 0; i < 4; ++i) *(uint4*)&rA[8*i] = *(const uint4*)(from + A_stride0*i);
    }
    // 04_optimized_gemm.py:48: B_permuted_1 -> rB, 16 bytes at a time
    {
      const int x0 = tid % 4;
      const int x1 = 2*(tid / 4);
      const half_t* from = B + 32*k + 8*x0 + (128*n + x1)*B_stride0;
      #pragma unroll
      for (int i = 0; i < 2; ++i) *(uint4*)&rB[8*i] = *(const uint4*)(from + B_stride0*i);
    }
    #pragma unroll
    for (int k_step = 0; k_step < 2; ++k_step) {
      // 04_optimized_gemm.py:49: sA_frag: f16 256x16, 32 per thread
      __align__(4) half_t sA_frag[32];
      // 04_optimized_gemm.py:49: sA_step -> sA_frag, 4 matrices at a time
      {
        const int row = 64*((tid / 32) % 4) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const half_t* from = sA + 4112*k_step + 257*col + 8*row;
        #pragma unroll
        for (int i = 0; i < 4; ++i) ldmatrix_x4(&sA_frag[8*i], from + 128*i);
      }
      // 04_optimized_gemm.py:49: sB_frag: f16 128x16, 32 per thread
      __align__(4) half_t sB_frag[32];
      // 04_optimized_gemm.py:49: sB_step -> sB_frag, 4 matrices at a time
      {
        const int row = 64*(tid / 128) + 8*((tid / 16) % 2) + (tid % 8);
        const int col = 8*((tid / 8) % 2);
        const half_t* from = sB + 2064*k_step + 129*col + 8*row;
        #pragma unroll
        for (int i = 0; i < 4; ++i) ldmatrix_x4(&sB_frag[8*i], from + 128*i);
      }
      // 04_optimized_gemm.py:49: acc += sA_frag * sB_frag, by mma.m16n8k16.f32.f16
      #pragma unroll
      for (int j = 0; j < 8; ++j) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          mma_m16n8k16_f16(&acc[16*j + 4*i], &sA_frag[8*i], &sB_frag[4*j]);
        }
      }
    }
    // 04_optimized_gemm.py:50: barrier
    __syncthreads();
    // 04_optimized_gemm.py:51: rA -> sA, 16 bytes at a time
    {
      const int x0 = tid % 4;
      const int x1 = 4*(tid / 4);
      half_t* to = sA + 2056*x0 + 8*x1;
      #pragma unroll
      for (int i = 0; i < 4; ++i) *(uint4*)(to + 8*i) = *(const uint4*)&rA[8*i];
    }
    // 04_optimized_gemm.py:52: rB -> sB, 16 bytes at a time
    {
      const int x0 = tid % 4;
      const int x1 = 2*(tid / 4);
      half_t* to = sB + 1032*x0 + 8*x1;
      #pragma unroll
      for (int i = 0; i < 2; ++i) *(uint4*)(to + 8*i) = *(const uint4*)&rB[8*i];
    }
    // 04_optimized_gemm.py:53: barrier
    __syncthreads();
  }
  #pragma unroll
  for (int k_step_1 = 0; k_step_1 < 2; ++k_step_1) {
    // 04_optimized_gemm.py:54: sA_frag_1: f16 256x16, 32 per thread
    __align__(4) half_t sA_frag_1[32];
    // 04_optimized_gemm.py:54: sA_step_1 -> sA_frag_1, 4 matrices at a time
    {
      const int row = 64*((tid / 32) % 4) + (tid % 16);
      const int col = 8*((tid / 16) % 2);
      const half_t* from = sA + 4112*k_step_1 + 257*col + 8*row;
      #pragma unroll
      for (int i = 0; i < 4; ++i) ldmatrix_x4(&sA_frag_1[8*i], from + 128*i);
    }
    // 04_optimized_gemm.py:54: sB_frag_1: f16 128x16, 32 per thread
    __align__(4) half_t sB_frag_1[32];
    // 04_optimized_gemm.py:54: sB_step_1 -> sB_frag_1, 4 matrices at a time
    {
      const int row = 64*(tid / 128) + 8*((tid / 16) % 2) + (tid % 8);
      const int col = 8*((tid / 8) % 2);
      const half_t* from = sB + 2064*k_step_1 + 129*col + 8*row;
      #pragma unroll
      for (int i = 0; i < 4; ++i) ldmatrix_x4(&sB_frag_1[8*i], from + 128*i);
    }
    // 04_optimized_gemm.py:54: acc += sA_frag_1 * sB_frag_1, by mma.m16n8k16.f32.f16
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        mma_m16n8k16_f16(&acc[16*j + 4*i], &sA_frag_1[8*i], &sB_frag_1[4*j]);
      }
    }
  }
  // 04_optimized_gemm.py:56: acc -> sC, 4 matrices at a time
  {
    const int row = 64*((tid / 32) % 4) + (tid % 32);
    const int col = 64*(tid / 128);
    const int start = 128*row + 8*(row % 8) + col;
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        __align__(4) half_t packed[8];
        #pragma unroll
        for (int e = 0; e < 8; ++e) packed[e] = float_to_half(acc[16*j + 8*i + e]);
        stmatrix_x4(sC + 4096*i + ((8*j) ^ start), packed);
      }
    }
  }
  // 04_optimized_gemm.py:57: barrier
  __syncthreads();
  // 04_optimized_gemm.py:58: sC -> C.tile((256, 128), (m, n)), 16 bytes at a time
  {
    const int row = tid / 16;
    const int col = 8*(tid % 16);
    const half_t* from = sC + 128*row + ((8*(row % 8)) ^ col);
    half_t* to = C + 128*n + (256*m + row)*C_stride0 + col;
    #pragma unroll 1
    for (int j = 0; j < 2; ++j) {
      uint4 moved[8];
      #pragma unroll
      for (int i = 0; i < 8; ++i) moved[i] = *(const uint4*)(from + 16384*j + 2048*i);
      #pragma unroll
      for (int i = 0; i < 8; ++i) *(uint4*)(to + 16*(8*j + i)*C_stride0) = moved[i];
    }
  }
}
