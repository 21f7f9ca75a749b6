// sA re-laid out: swizzle<2, 3, 3>
// sB re-laid out: swizzle<2, 3, 3>
struct half_t { unsigned short bits; };

__device__ __forceinline__ half_t float_to_half(float x) {
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

__device__ __forceinline__ void ldmatrix_x4(void* to, const void* from) {
  unsigned* r = (unsigned*)to;
  const unsigned shared = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
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

// - sA re-laid out: swizzle<2, 3, 3>
// - sB re-laid out: swizzle<2, 3, 3>
extern "C" __global__ void __launch_bounds__(256) basic_gemm(
    const half_t* A, const half_t* B, half_t* C, int M, int A_stride0, int K, int N, int B_stride0,
    int C_stride0) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of M / 256
  const int n = blockIdx.y;  // of N / 128
  extern __shared__ __align__(128) unsigned char shared_memory[];
  // kernels.py:16: sA: f16 256x32
  half_t* const sA = (half_t*)shared_memory;
  // kernels.py:17: sB: f16 128x32
  half_t* const sB = (half_t*)(shared_memory + 16384);
  // kernels.py:18: acc: f32 256x128, 128 per thread
  float acc[128] = {};
  const int k_end = K / 32;
  for (int k = 0; k < k_end; ++k) {
    // kernels.py:20: A.tile((256, 32), (m, k)) -> sA, 16 bytes at a time
    {
      const int row = tid / 4;
      const int col = 8*(tid % 4);
      const half_t* from = A + 32*k + (256*m + row)*A_stride0 + col;
      half_t* to = sA + 32*row + ((8*((row / 2) % 4)) ^ col);
      uint4 moved[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) moved[i] = *(const uint4*)(from + 64*A_stride0*i);
      #pragma unroll
      for (int i = 0; i < 4; ++i) *(uint4*)(to + 2048*i) = moved[i];
    }
    // kernels.py:21: B.tile((128, 32), (n, k)) -> sB, 16 bytes at a time
    {
      const int row = tid / 4;
      const int col = 8*(tid % 4);
      const half_t* from = B + 32*k + (128*n + row)*B_stride0 + col;
      half_t* to = sB + 32*row + ((8*((row / 2) % 4)) ^ col);
      uint4 moved[2];
      #pragma unroll
      for (int i = 0; i < 2; ++i) moved[i] = *(const uint4*)(from + 64*B_stride0*i);
      #pragma unroll
      for (int i = 0; i < 2; ++i) *(uint4*)(to + 2048*i) = moved[i];
    }
    // kernels.py:22: barrier
    __syncthreads();
    #pragma unroll
    for (int k_step = 0; k_step < 2; ++k_step) {
      // kernels.py:23: sA_frag: f16 256x16, 32 per thread
      __align__(4) half_t sA_frag[32];
      // kernels.py:23: sA_step -> sA_frag, 4 matrices at a time
      {
        const int row = 64*((tid / 32) % 4) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 32*row + ((8*((row / 2) % 4)) ^ col);
        const half_t* from = sA + ((16*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 4; ++i) ldmatrix_x4(&sA_frag[8*i], from + 512*i);
      }
      // kernels.py:23: sB_frag: f16 128x16, 32 per thread
      __align__(4) half_t sB_frag[32];
      // kernels.py:23: sB_step -> sB_frag, 4 matrices at a time
      {
        const int row = 64*(tid / 128) + 8*((tid / 16) % 2) + (tid % 8);
        const int col = 8*((tid / 8) % 2);
        const int start = 32*row + ((8*((row / 2) % 4)) ^ col);
        const half_t* from = sB + ((16*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 4; ++i) ldmatrix_x4(&sB_frag[8*i], from + 512*i);
      }
      // kernels.py:23: acc += sA_frag * sB_frag, by mma.m16n8k16.f32.f16
      #pragma unroll
      for (int j = 0; j < 8; ++j) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          mma_m16n8k16_f16(&acc[16*j + 4*i], &sA_frag[8*i], &sB_frag[4*j]);
        }
      }
    }
    // kernels.py:24: barrier
    __syncthreads();
  }
  // kernels.py:25: acc -> C.tile((256, 128), (m, n)), 4 bytes at a time
  {
    const int row = 64*((tid / 32) % 4) + ((tid / 4) % 8);
    const int col = 64*(tid / 128) + 2*(tid % 4);
    half_t* to = C + 128*n + (256*m + row)*C_stride0 + col;
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        __align__(4) half_t packed[2];
        #pragma unroll
        for (int e = 0; e < 2; ++e) packed[e] = float_to_half(acc[16*j + 2*i + e]);
        *(unsigned*)(to + 8*C_stride0*i + 8*j) = *(const unsigned*)packed;
      }
    }
  }
}
