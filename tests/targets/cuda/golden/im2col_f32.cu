__device__ __forceinline__ int quotient(int n, long long inverse) {
  // n / d, with inverse = (2^63 - 1) / d
  const unsigned long long twice = 2u * (unsigned)n + 2u;
  return (twice * (unsigned)(inverse >> 32) + (twice * (unsigned)inverse >> 32)) >> 32;
}

__device__ __forceinline__ int remainder(int n, int d, long long inverse) {
  return n - quotient(n, inverse) * d;
}

template <class Word>
__device__ __forceinline__ Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
}

extern "C" __global__ void __launch_bounds__(128) im2col(
    const float* X, float* Y, int N, int X_stride0, int D, int X_stride1, int H, int X_stride2,
    int W, int X_stride3, int G, int X_stride4, int C, int Y_stride0, int P, int Y_stride1, int T,
    long long inverse, long long inverse_1, long long inverse_2, long long inverse_3,
    long long inverse_4, long long inverse_5, long long inverse_6, long long inverse_7) {
  const int tid = threadIdx.x;
  const int j = blockIdx.x;  // of T / 64
  const int i = blockIdx.y;  // of P / 32
  const int group = blockIdx.z;  // of G
  // 05_im2col.py:32: matrix_5[group].tile((32, 64), (i, j)) -> Y[group].tile((32, 64), (i, j)), 16 bytes at a time
  {
    const int row = tid / 16;
    const int col = 4*(tid % 16);
    const float* from = X + remainder(64*j, C, inverse) + (quotient(64*j, inverse_3) % 3)*X_stride2
        + (quotient(64*j, inverse) % 3)*X_stride3 + quotient(64*j, inverse_4)*X_stride1
        + X_stride4*group + col;
    const bool inside = 64*j + col < 27*C;
    float* to = Y + 64*j + (32*i + row)*Y_stride1 + Y_stride0*group + col;
    uint4 moved[4];
    #pragma unroll
    for (int i_1 = 0; i_1 < 4; ++i_1) {
      moved[i_1] =
          load_if<uint4>(inside && 32*i + 8*i_1 + row < (D - 2)*(H - 2)*(W - 2)*N, from
          + remainder(quotient(32*i + 8*i_1 + row, inverse_6), D - 2, inverse_5)*X_stride1
          + remainder(quotient(32*i + 8*i_1 + row, inverse_2), H - 2, inverse_1)*X_stride2
          + remainder(32*i + 8*i_1 + row, W - 2, inverse_2)*X_stride3
          + quotient(32*i + 8*i_1 + row, inverse_7)*X_stride0);
    }
    #pragma unroll
    for (int i_1 = 0; i_1 < 4; ++i_1) *(uint4*)(to + 8*Y_stride1*i_1) = moved[i_1];
  }
}
