// sA re-laid out: swizzle<2, 4, 3>
// sB re-laid out: swizzle<2, 4, 3>
__device__ __forceinline__ void ldmatrix_x4(void* to, const void* from) {
  unsigned* r = (unsigned*)to;
  const unsigned shared = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void mma_m16n8k32_s8(int* c, const void* a, const void* b) {
  const unsigned* x = (const unsigned*)a;
  const unsigned* y = (const unsigned*)b;
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]),
                 "r"(y[0]), "r"(y[1]));
}

// - sA re-laid out: swizzle<2, 4, 3>
// - sB re-laid out: swizzle<2, 4, 3>
extern "C" __global__ void __launch_bounds__(128) basic_gemm(
    const signed char* A, const signed char* B, int* C, int M, int A_stride0, int K, int N,
    int B_stride0, int C_stride0) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of M / 64
  const int n = blockIdx.y;  // of N / 64
  extern __shared__ __align__(128) unsigned char shared_memory[];
  // kernels.py:16: sA: i8 64x64
  signed char* const sA = (signed char*)shared_memory;
  // kernels.py:17: sB: i8 64x64
  signed char* const sB = (signed char*)(shared_memory + 4096);
  // kernels.py:18: acc: i32 64x64, 32 per thread
  __align__(8) int acc[32] = {};
  const int k_end = K / 64;
  for (int k = 0; k < k_end; ++k) {
    // kernels.py:20: A.tile((64, 64), (m, k)) -> sA, 16 bytes at a time
    {
      const int row = tid / 4;
      const int col = 16*(tid % 4);
      const signed char* from = A + 64*k + (64*m + row)*A_stride0 + col;
      signed char* to = sA + 64*row + ((16*((row / 2) % 4)) ^ col);
      uint4 moved[2];
      #pragma unroll
      for (int i = 0; i < 2; ++i) moved[i] = *(const uint4*)(from + 32*A_stride0*i);
      #pragma unroll
      for (int i = 0; i < 2; ++i) *(uint4*)(to + 2048*i) = moved[i];
    }
    // kernels.py:21: B.tile((64, 64), (n, k)) -> sB, 16 bytes at a time
    {
      const int row = tid / 4;
      const int col = 16*(tid % 4);
      const signed char* from = B + 64*k + (64*n + row)*B_stride0 + col;
      signed char* to = sB + 64*row + ((16*((row / 2) % 4)) ^ col);
      uint4 moved[2];
      #pragma unroll
      for (int i = 0; i < 2; ++i) moved[i] = *(const uint4*)(from + 32*B_stride0*i);
      #pragma unroll
      for (int i = 0; i < 2; ++i) *(uint4*)(to + 2048*i) = moved[i];
    }
    // kernels.py:22: barrier
    __syncthreads();
    #pragma unroll
    for (int k_step = 0; k_step < 2; ++k_step) {
      // kernels.py:23: sA_frag: i8 64x32, 32 per thread
      __align__(4) signed char sA_frag[32];
      // kernels.py:23: sA_step -> sA_frag, 4 matrices at a time
      {
        const int row = 32*((tid / 32) % 2) + (tid % 16);
        const int col = 16*((tid / 16) % 2);
        const int start = 64*row + ((16*((row / 2) % 4)) ^ col);
        const signed char* from = sA + ((32*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 2; ++i) ldmatrix_x4(&sA_frag[16*i], from + 1024*i);
      }
      // kernels.py:23: sB_frag: i8 64x32, 32 per thread
      __align__(4) signed char sB_frag[32];
      // kernels.py:23: sB_step -> sB_frag, 4 matrices at a time
      {
        const int row = 32*(tid / 64) + 8*((tid / 16) % 2) + (tid % 8);
        const int col = 16*((tid / 8) % 2);
        const int start = 64*row + ((16*((row / 2) % 4)) ^ col);
        const signed char* from = sB + ((32*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 2; ++i) ldmatrix_x4(&sB_frag[16*i], from + 1024*i);
      }
      // kernels.py:23: acc += sA_frag * sB_frag, by mma.m16n8k32.i32.s8
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) mma_m16n8k32_s8(&acc[8*j + 4*i], &sA_frag[16*i], &sB_frag[8*j]);
      }
    }
    // kernels.py:24: barrier
    __syncthreads();
  }
  // kernels.py:25: acc -> C.tile((64, 64), (m, n)), 8 bytes at a time
  {
    const int row = 32*((tid / 32) % 2) + ((tid / 4) % 8);
    const int col = 32*(tid / 64) + 2*(tid % 4);
    int* to = C + 64*n + (64*m + row)*C_stride0 + col;
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        *(uint2*)(to + 8*C_stride0*i + 8*j) = *(const uint2*)&acc[8*j + 2*i];
      }
    }
  }
}
