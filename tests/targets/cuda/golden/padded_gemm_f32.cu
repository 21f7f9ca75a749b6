// sA re-laid out: swizzle<1, 2, 4>
// sB re-laid out: swizzle<3, 2, 4>
template <class Word>
__device__ __forceinline__ Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
}

// - sA re-laid out: swizzle<1, 2, 4>
// - sB re-laid out: swizzle<3, 2, 4>
extern "C" __global__ void __launch_bounds__(128) basic_gemm(
    const float* A, const float* B, float* C, int M, int A_stride0, int K, int N, int B_stride0,
    int C_stride0) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of (M + 31) / 32
  const int n = blockIdx.y;  // of (N + 63) / 64
  extern __shared__ __align__(128) unsigned char shared_memory[];
  // kernels.py:16: sA: f32 32x16
  float* const sA = (float*)shared_memory;
  // kernels.py:17: sB: f32 64x16
  float* const sB = (float*)(shared_memory + 2048);
  // kernels.py:18: acc: f32 32x64, 16 per thread
  float acc[16] = {};
  const int k_end = (K + 15) / 16;
  for (int k = 0; k < k_end; ++k) {
    // kernels.py:20: A.tile((32, 16), (m, k)) -> sA, 4 bytes at a time
    {
      const int row = tid / 16;
      const int col = tid % 16;
      const float* from = A + 16*k + (32*m + row)*A_stride0 + col;
      const bool inside = 16*k + col < K;
      float* to = sA + 16*row + ((4*(row / 4)) ^ col);
      float moved[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        moved[i] = load_if<float>(inside && 32*m + 8*i + row < M, from + 8*A_stride0*i);
      }
      #pragma unroll
      for (int i = 0; i < 4; ++i) to[128*i] = moved[i];
    }
    // kernels.py:21: B.tile((64, 16), (n, k)) -> sB, 4 bytes at a time
    {
      const int row = tid / 16;
      const int col = tid % 16;
      const float* from = B + 16*k + (64*n + row)*B_stride0 + col;
      const bool inside = 16*k + col < K;
      const int start = 16*row + ((4*(row / 4)) ^ col);
      float moved[8];
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        moved[i] = load_if<float>(inside && 64*n + 8*i + row < N, from + 8*B_stride0*i);
      }
      #pragma unroll
      for (int i = 0; i < 8; ++i) sB[128*i + ((8*(i % 4)) ^ start)] = moved[i];
    }
    // kernels.py:22: barrier
    __syncthreads();
    #pragma unroll
    for (int k_step = 0; k_step < 4; ++k_step) {
      // kernels.py:23: sA_frag: f32 32x4, 16 per thread
      __align__(16) float sA_frag[16];
      // kernels.py:23: sA_step -> sA_frag, 16 bytes at a time
      {
        const int row = 4*((tid / 8) % 8);
        const int start = 16*row + (row % 8);
        const float* from = sA + ((4*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 4; ++i) *(uint4*)&sA_frag[4*i] = *(const uint4*)(from + 16*i);
      }
      // kernels.py:23: sA_frag_1 = sA_frag[0:32, 0:4]
      float sA_frag_1[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) sA_frag_1[i] = sA_frag[4*(i % 4) + (i / 4)];
      // kernels.py:23: sB_frag: f32 64x4, 16 per thread
      __align__(16) float sB_frag[16];
      // kernels.py:23: sB_step -> sB_frag, 16 bytes at a time
      {
        const int row = 32*(tid / 64) + 4*(tid % 8);
        const int start = 16*row + (row % 32);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          *(uint4*)&sB_frag[4*i] = *(const uint4*)(sB + ((16*i + 4*k_step) ^ start));
        }
      }
      // kernels.py:23: sB_frag_1 = sB_frag[0:64, 0:4]
      float sB_frag_1[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) sB_frag_1[i] = sB_frag[4*(i % 4) + (i / 4)];
      // kernels.py:23: acc += sA_frag_1 * sB_frag_1
      #pragma unroll
      for (int step = 0; step < 4; ++step) {
        #pragma unroll
        for (int x = 0; x < 4; ++x) {
          #pragma unroll
          for (int y = 0; y < 4; ++y) {
            acc[4*x + y] = fmaf(sA_frag_1[4*step + x], sB_frag_1[4*step + y], acc[4*x + y]);
          }
        }
      }
    }
    // kernels.py:24: barrier
    __syncthreads();
  }
  // kernels.py:25: acc -> C.tile((32, 64), (m, n)), 4 bytes at a time
  {
    const int row = 4*((tid / 8) % 8);
    const int col = 32*(tid / 64) + 4*(tid % 8);
    float* to = C + 64*n + (32*m + row)*C_stride0 + col;
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (32*m + j + row < M && 64*n + col + i < N) to[C_stride0*j + i] = acc[4*j + i];
      }
    }
  }
}
