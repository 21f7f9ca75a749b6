typedef unsigned word_16 __attribute__((ext_vector_type(4), may_alias));

__attribute__((device)) inline int quotient(int n, long long inverse) {
  // n / d, with inverse = (2^63 - 1) / d
  const unsigned long long twice = 2u * (unsigned)n + 2u;
  return (twice * (unsigned)(inverse >> 32) + (twice * (unsigned)inverse >> 32)) >> 32;
}

__attribute__((device)) inline int remainder(int n, int d, long long inverse) {
  return n - quotient(n, inverse) * d;
}

// Loads read these instead of elements that do not exist.  Nothing writes them; they are not declared
// constant, because the compiler would then not know that an address is in global memory.
__attribute__((device, aligned(16))) static unsigned zeros[4] = {0, 0, 0, 0};

template <class Word>
__attribute__((device)) inline Word load_or_zeros(bool exists, const void* from) {
  return *(const Word*)(exists ? from : (const void*)zeros);
}

extern "C" __attribute__((global)) void __attribute__((amdgpu_flat_work_group_size(128, 128))) im2col(
    const float* X, float* Y, int N, int X_stride0, int D, int X_stride1, int H, int X_stride2,
    int W, int X_stride3, int G, int X_stride4, int C, int Y_stride0, int P, int Y_stride1, int T,
    long long inverse, long long inverse_1, long long inverse_2, long long inverse_3,
    long long inverse_4, long long inverse_5, long long inverse_6, long long inverse_7) {
  const int tid = __builtin_amdgcn_workitem_id_x();
  const int j = __builtin_amdgcn_workgroup_id_x();  // of T / 64
  const int i = __builtin_amdgcn_workgroup_id_y();  // of (P + 31) / 32
  const int group = __builtin_amdgcn_workgroup_id_z();  // of G
  // 05_im2col.py:32: matrix_5[group].tile((32, 64), (i, j)) -> Y[group].tile((32, 64), (i, j)), 16 bytes at a time
  {
    const int row = tid / 16;
    const int col = 4*(tid % 16);
    const float* from = X + remainder(64*j, C, inverse) + (quotient(64*j, inverse_3) % 3)*X_stride2
        + (quotient(64*j, inverse) % 3)*X_stride3 + quotient(64*j, inverse_4)*X_stride1
        + X_stride4*group + col;
    const bool inside = 64*j + col < 27*C;
    float* to = Y + 64*j + (32*i + row)*Y_stride1 + Y_stride0*group + col;
    word_16 moved[4];
    #pragma unroll
    for (int i_1 = 0; i_1 < 4; ++i_1) {
      moved[i_1] =
          load_or_zeros<word_16>(inside && 32*i + 8*i_1 + row < (D - 2)*(H - 2)*(W - 2)*N, from
          + remainder(quotient(32*i + 8*i_1 + row, inverse_6), D - 2, inverse_5)*X_stride1
          + remainder(quotient(32*i + 8*i_1 + row, inverse_2), H - 2, inverse_1)*X_stride2
          + remainder(32*i + 8*i_1 + row, W - 2, inverse_2)*X_stride3
          + quotient(32*i + 8*i_1 + row, inverse_7)*X_stride0);
    }
    #pragma unroll
    for (int i_1 = 0; i_1 < 4; ++i_1) {
      if (32*i + 8*i_1 + row < P) *(word_16*)(to + 8*Y_stride1*i_1) = moved[i_1];
    }
  }
}
