// sA re-laid out: swizzle<2, 2, 3>
// sB re-laid out: swizzle<2, 2, 3>
// Like cvt.rna.tf32.f32, in the same number of instructions; but truncates numbers that would become
// infinite, and NaNs: a NaN whose upper bits are zero becomes infinite.
__device__ __forceinline__ float round_to_tf32(float x) {
  const unsigned bits = __float_as_uint(x);
  return __uint_as_float((fabsf(x) < 0x1.ffep127f ? bits + 0x1000u : bits) & 0xffffe000u);
}

__device__ __forceinline__ void ldmatrix_x4(void* to, const void* from) {
  unsigned* r = (unsigned*)to;
  const unsigned shared = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void mma_m16n8k8_tf32(float* c, const void* a, const void* b) {
  const unsigned* x = (const unsigned*)a;
  const unsigned* y = (const unsigned*)b;
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]),
                 "r"(y[0]), "r"(y[1]));
}

// - sA re-laid out: swizzle<2, 2, 3>
// - sB re-laid out: swizzle<2, 2, 3>
extern "C" __global__ void __launch_bounds__(128) basic_gemm(
    const float* A, const float* B, float* C, int M, int A_stride0, int K, int N, int B_stride0,
    int C_stride0) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of M / 64
  const int n = blockIdx.y;  // of N / 64
  extern __shared__ __align__(128) unsigned char shared_memory[];
  // kernels.py:16: sA: f32 64x16
  float* const sA = (float*)shared_memory;
  // kernels.py:17: sB: f32 64x16
  float* const sB = (float*)(shared_memory + 4096);
  // kernels.py:18: acc: f32 64x64, 32 per thread
  __align__(8) float acc[32] = {};
  const int k_end = K / 16;
  for (int k = 0; k < k_end; ++k) {
    // kernels.py:20: A.tile((64, 16), (m, k)) -> sA, 16 bytes at a time
    {
      const int row = tid / 4;
      const int col = 4*(tid % 4);
      const float* from = A + 16*k + (64*m + row)*A_stride0 + col;
      float* to = sA + 16*row + ((4*((row / 2) % 4)) ^ col);
      uint4 moved[2];
      #pragma unroll
      for (int i = 0; i < 2; ++i) moved[i] = *(const uint4*)(from + 32*A_stride0*i);
      #pragma unroll
      for (int i = 0; i < 2; ++i) *(uint4*)(to + 512*i) = moved[i];
    }
    // kernels.py:21: B.tile((64, 16), (n, k)) -> sB, 16 bytes at a time
    {
      const int row = tid / 4;
      const int col = 4*(tid % 4);
      const float* from = B + 16*k + (64*n + row)*B_stride0 + col;
      float* to = sB + 16*row + ((4*((row / 2) % 4)) ^ col);
      uint4 moved[2];
      #pragma unroll
      for (int i = 0; i < 2; ++i) moved[i] = *(const uint4*)(from + 32*B_stride0*i);
      #pragma unroll
      for (int i = 0; i < 2; ++i) *(uint4*)(to + 512*i) = moved[i];
    }
    // kernels.py:22: barrier
    __syncthreads();
    #pragma unroll
    for (int k_step = 0; k_step < 2; ++k_step) {
      // kernels.py:23: sA_frag: f32 64x8, 8 per thread
      float sA_frag[8];
      // kernels.py:23: sA_step -> sA_frag, 4 matrices at a time
      {
        const int row = 32*((tid / 32) % 2) + (tid % 16);
        const int col = 4*((tid / 16) % 2);
        const int start = 16*row + ((4*((row / 2) % 4)) ^ col);
        const float* from = sA + ((8*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 2; ++i) ldmatrix_x4(&sA_frag[4*i], from + 256*i);
      }
      // kernels.py:23: sB_frag: f32 64x8, 8 per thread
      float sB_frag[8];
      // kernels.py:23: sB_step -> sB_frag, 4 matrices at a time
      {
        const int row = 32*(tid / 64) + 8*((tid / 16) % 2) + (tid % 8);
        const int col = 4*((tid / 8) % 2);
        const int start = 16*row + ((4*((row / 2) % 4)) ^ col);
        const float* from = sB + ((8*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 2; ++i) ldmatrix_x4(&sB_frag[4*i], from + 256*i);
      }
      // kernels.py:23: acc += sA_frag * sB_frag, by mma.m16n8k8.f32.tf32
      {
        float sA_frag_rounded[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) sA_frag_rounded[i] = round_to_tf32(sA_frag[i]);
        float sB_frag_rounded[8];
        #pragma unroll
        for (int i_1 = 0; i_1 < 8; ++i_1) sB_frag_rounded[i_1] = round_to_tf32(sB_frag[i_1]);
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
          #pragma unroll
          for (int i_2 = 0; i_2 < 2; ++i_2) {
            mma_m16n8k8_tf32(&acc[8*j + 4*i_2], &sA_frag_rounded[4*i_2], &sB_frag_rounded[2*j]);
          }
        }
      }
    }
    // kernels.py:24: barrier
    __syncthreads();
  }
  // kernels.py:25: acc -> C.tile((64, 64), (m, n)), 8 bytes at a time
  {
    const int row = 32*((tid / 32) % 2) + ((tid / 4) % 8);
    const int col = 32*(tid / 64) + 2*(tid % 4);
    float* to = C + 64*n + (64*m + row)*C_stride0 + col;
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        *(float2*)(to + 8*C_stride0*i + 8*j) = *(const float2*)&acc[8*j + 2*i];
      }
    }
  }
}
