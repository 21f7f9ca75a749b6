template <class A, class B>
__device__ __forceinline__ decltype(A() + B()) max_int(A a, B b) {
  return a > b ? a : b;
}

template <class Word>
__device__ __forceinline__ Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
}

template <class Word>
__device__ __forceinline__ Word load_or(bool exists, const void* from, Word other) {
  if (exists) other = *(const Word*)from;
  return other;
}

extern "C" __global__ void __launch_bounds__(64) rows(
    const float* X, const int* I, float* Y, int M, int X_stride0, int N, int P, int Y_stride0) {
  const int tid = threadIdx.x;
  const int p = blockIdx.x;  // of (P + 127) / 128
  const int n = blockIdx.y;  // of (N + 48) / 64
  extern __shared__ __align__(128) unsigned char shared_memory[];
  // kernels.py:226: staged: f32 128x64
  float* const staged = (float*)shared_memory;
  // kernels.py:228: chosen -> staged, 16 bytes at a time
  {
    const int row = tid / 16;
    const int col = 4*(tid % 16);
    #pragma unroll 1
    for (int j = 0; j < 4; ++j) {
      int chosen_1[8];
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        chosen_1[i] = 128*p + 32*j + 4*i + row < P && 64*n
            + col < N ? I[128*p + 32*j + 4*i + row] : -1;
      }
      const float* from = X + 64*n + col;
      const bool inside = 64*n + col < N;
      float* to = staged + 2048*j + 64*row + col;
      uint4 moved[8];
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        moved[i] =
            load_or<uint4>(inside && -1 < chosen_1[i] && chosen_1[i] < M && 128*p + 32*j + 4*i
            + row < P, from + chosen_1[i]*X_stride0, uint4{0xbf800000u, 0xbf800000u, 0xbf800000u,
            0xbf800000u});
      }
      #pragma unroll
      for (int i = 0; i < 8; ++i) *(uint4*)(to + 256*i) = moved[i];
    }
  }
  // kernels.py:229: barrier
  __syncthreads();
  // kernels.py:230: staged -> Y.tile((128, 64), (p, n)), 16 bytes at a time
  {
    const int row = tid / 16;
    const int col = 4*(tid % 16);
    const float* from = staged + 64*row + col;
    float* to = Y + 64*n + (128*p + row)*Y_stride0 + col;
    const bool inside = 64*n + col < N;
    #pragma unroll 1
    for (int j = 0; j < 4; ++j) {
      uint4 moved[8];
      #pragma unroll
      for (int i = 0; i < 8; ++i) moved[i] = *(const uint4*)(from + 2048*j + 256*i);
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (inside && 128*p + 32*j + 4*i + row < P) {
          *(uint4*)(to + 4*(8*j + i)*Y_stride0) = moved[i];
        }
      }
    }
  }
  const int first = I[128*p];
  const int k_end = max_int(first, 0);
  for (int k = 0; k < k_end; ++k) {
    // kernels.py:233: X.tile((1, 64), (k, n)) -> Y.rows(I).tile((1, 64), (128*p, n)), 16 bytes at a time
    if (tid < 8) {
      const int col = 8*tid;
      const float* from = X + 64*n + X_stride0*k + col;
      const bool inside = k < M;
      const int chosen_1 = 128*p < P ? I[128*p] : -1;
      float* to = Y + 64*n + Y_stride0*chosen_1 + col;
      const bool inside_1 = -1 < chosen_1 && chosen_1 < P && 128*p < P;
      uint4 moved[2];
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        moved[i] = load_if<uint4>(inside && 64*n + 4*i + col < N, from + 4*i);
      }
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (inside_1 && 64*n + 4*i + col < N) *(uint4*)(to + 4*i) = moved[i];
      }
    }
  }
}
