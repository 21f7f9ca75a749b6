// gemm for aarch64
// - one thread does the work of 32; 4 synchronisations are removed
// - asynchronous copies complete at once
// - accumulators of 48x64 lie in micro-tiles of 12x8
// - sB re-laid out: (64, 32) -> 256*(i0 // 8) + 8*i1 + (i0 % 8)

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define INDEPENDENT _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#endif

typedef long long Index;

// a * b + c. If the processor has the instruction, it rounds once; otherwise the product is rounded too.
template <typename Real>
static inline Real fused(Real a, Real b, Real c) {
#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF)
  if constexpr (sizeof(Real) == sizeof(float)) return __builtin_fmaf(a, b, c);
  else return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

static inline Index min_int(Index a, Index b) { return a < b ? a : b; }

static inline Index max_int(Index a, Index b) { return a > b ? a : b; }

static inline Index within(Index x, Index most) { return x < 0 ? 0 : x < most ? x : most; }

// SIGN * a[l] * b[l] + c[l] for each lane l, by one instruction.
template <int SIGN, typename Vector>
static inline Vector fused_lanes(Vector a, Vector b, Vector c) {
#if defined(__FMA__) && !defined(__clang__)
#if defined(__AVX512F__)
  if constexpr (sizeof a == 64 && sizeof a[0] == 4)
    return SIGN > 0 ? __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4) : __builtin_ia32_vfnmaddps512_mask(a, b, c, -1, 4);
  if constexpr (sizeof a == 64 && sizeof a[0] == 8)
    return SIGN > 0 ? __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4) : __builtin_ia32_vfnmaddpd512_mask(a, b, c, -1, 4);
#endif
  if constexpr (sizeof a == 32 && sizeof a[0] == 4)
    return SIGN > 0 ? __builtin_ia32_vfmaddps256(a, b, c) : __builtin_ia32_vfnmaddps256(a, b, c);
  if constexpr (sizeof a == 32 && sizeof a[0] == 8)
    return SIGN > 0 ? __builtin_ia32_vfmaddpd256(a, b, c) : __builtin_ia32_vfnmaddpd256(a, b, c);
  if constexpr (sizeof a == 16 && sizeof a[0] == 4)
    return SIGN > 0 ? __builtin_ia32_vfmaddps(a, b, c) : __builtin_ia32_vfnmaddps(a, b, c);
  if constexpr (sizeof a == 16 && sizeof a[0] == 8)
    return SIGN > 0 ? __builtin_ia32_vfmaddpd(a, b, c) : __builtin_ia32_vfnmaddpd(a, b, c);
#endif
  Vector sum{};
  const Index lanes = sizeof a / sizeof a[0];
  UNROLL for (Index l = 0; l < lanes; ++l) sum[l] = fused(SIGN > 0 ? a[l] : -a[l], b[l], c[l]);
  return sum;
}

struct gemm_arguments {
  const float* A;
  const float* B;
  float* C;
  int M;
  int A_stride0;
  int K;
  int N;
  int B_stride0;
  int C_stride0;
};

// from[l] for l < count, else 0
template <typename Vector>
static inline Vector load_f32_part(const float* from, Index count) {
  Vector value{};
  for (Index l = 0; l < count && l < 4; ++l) value[l] = from[l];
  return value;
}

// to[l] = value[l] for l < count
template <typename Vector>
static inline void store_f32_part(float* to, Vector value, Index count) {
  for (Index l = 0; l < count && l < 4; ++l) to[l] = value[l];
}

template <int ROWS>
static inline __attribute__((always_inline)) void multiply_shallow_f32_of_4_vectors(const float* a, Index apart, Index along, const float* b, Index step, float* c, Index pitch,
    Index stored, Index, Index depth, bool adds) {
  typedef float vector __attribute__((vector_size(16), aligned(4)));
  vector sum[ROWS][4], right[4];
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < 4; ++j) sum[i][j] = vector{};
  for (Index k = 0; k < depth; ++k, a += along, b += step) {
    UNROLL for (Index j = 0; j < 4; ++j) right[j] = *(const vector*)(b + 4 * j);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = a[i * apart] - vector{};
      UNROLL for (Index j = 0; j < 4; ++j) sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);
    }
  }
  UNROLL for (Index i = 0; i < ROWS; ++i)
    if (i >= stored)
      UNROLL for (Index j = 0; j < 4; ++j) {
        if (adds) sum[i][j] += *(const vector*)(c + i * pitch + 4 * j);
        *(vector*)(c + i * pitch + 4 * j) = sum[i][j];
      }
}

template <int ROWS>
static inline __attribute__((always_inline)) void multiply_shallow_f32_of_4_lanes(const float* a, Index apart, Index along, const float* b, Index step, float* c, Index pitch,
    Index stored, Index columns, Index depth, bool adds) {
  typedef float vector __attribute__((vector_size(16), aligned(4)));
  vector sum[ROWS][1], right[1];
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < 1; ++j) sum[i][j] = vector{};
  for (Index k = 0; k < depth; ++k, a += along, b += step) {
    UNROLL for (Index j = 0; j < 1; ++j) right[j] = load_f32_part<vector>(b, columns);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = a[i * apart] - vector{};
      UNROLL for (Index j = 0; j < 1; ++j) sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);
    }
  }
  UNROLL for (Index i = 0; i < ROWS; ++i)
    if (i >= stored)
      UNROLL for (Index j = 0; j < 1; ++j) {
        if (adds) sum[i][j] += load_f32_part<vector>(c + i * pitch, columns);
        store_f32_part(c + i * pitch, sum[i][j], columns);
      }
}

template <int ROWS>
static inline __attribute__((always_inline)) void multiply_shallow_f32_rows(const float* a, Index apart, Index along, const float* b, Index step, float* c, Index pitch,
    Index stored, Index columns, Index depth, bool adds) {
  Index n = 0;
  for (; n + 16 <= columns; n += 16)
    multiply_shallow_f32_of_4_vectors<ROWS>(a, apart, along, b + n, step, c + n, pitch, stored, columns - n, depth, adds);
  for (; n < columns; n += 4)
    if (columns - n > 0) multiply_shallow_f32_of_4_lanes<ROWS>(a, apart, along, b + n, step, c + n, pitch, stored, columns - n, depth, adds);
}

// c[i][n] = (adds ? c[i][n] : 0) + sum of a[i][k] * b[k][n] over k, for i < rows and n < columns
__attribute__((noinline)) static void multiply_shallow_f32(const float* a, Index apart, Index along, const float* b, Index step, float* c, Index pitch,
    Index rows, Index columns, Index depth, bool adds) {
  const Index part = max_int(2048 / max_int(depth, 1), 1) * 16;
  for (Index n = 0; n < columns; n += part) {
    const Index wide = min_int(columns - n, part);
    for (Index i = 0; i < rows;) {
      // Some of the last rows may be computed twice, but each is stored once.
      const Index high = rows - i <= 3 ? 3 : 6, first = min_int(i, rows - high);
      const float* const from = a + first * apart;
      float* const to = c + first * pitch + n;
      if (high == 3) multiply_shallow_f32_rows<3>(from, apart, along, b + n, step, to, pitch, i - first, wide, depth, adds);
      else multiply_shallow_f32_rows<6>(from, apart, along, b + n, step, to, pitch, i - first, wide, depth, adds);
      i = first + high;
    }
  }
}

// target[j * target_step + i] = source[i * source_step + j] for i < rows, j < columns
static void transpose_f32(float* target, Index target_step, const float* source, Index source_step,
    Index rows, Index columns) {
  typedef float vector
    __attribute__((vector_size(16), aligned(4)));
  if ((rows < 4 || columns < 4)) {
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) target[j * target_step + i] = source[i * source_step + j];
    return;
  }
  vector row[4];
  UNROLL for (Index i = 0; i < 4; ++i) row[i] = *(const vector*)(source + i * source_step);
  vector next[4];
  UNROLL for (Index i = 0; i < 2; ++i) {
    const vector upper = row[i], lower = row[i + 2];
    next[2 * i] = __builtin_shufflevector(upper, lower, 0, 4, 1, 5);
    next[2 * i + 1] = __builtin_shufflevector(upper, lower, 2, 6, 3, 7);
  }
  UNROLL for (Index i = 0; i < 2; ++i) {
    const vector upper = next[i], lower = next[i + 2];
    row[2 * i] = __builtin_shufflevector(upper, lower, 0, 4, 1, 5);
    row[2 * i + 1] = __builtin_shufflevector(upper, lower, 2, 6, 3, 7);
  }
  UNROLL for (Index j = 0; j < 4; ++j)
    *(vector*)(target + j * target_step) = row[j];
}

// multiply_shallow_f32 of columns that are contiguous along k, which are copied to memory for 256 elements
static void multiply_shallow_f32_along_k(const float* a, Index apart, Index along, const float* b, Index step, float* c, Index pitch,
    Index rows, Index columns, Index depth, bool adds, float* memory) {
  const Index most = 64 / max_int(depth, 1), needed = (columns + 3) / 4;
  const Index part = 4 * min_int(most, needed);
  for (Index n = 0; n < columns; n += part) {
    const Index wide = min_int(columns - n, part);
    for (Index j = 0; j < wide; j += 4)
      for (Index k = 0; k < depth; k += 4)
        transpose_f32(memory + k * part + j, part, b + (n + j) * step + k, step, min_int(wide - j, 4),
            min_int(depth - k, 4));
    multiply_shallow_f32(a, apart, along, memory, part, c + n, pitch, rows, wide, depth, adds);
  }
}

// c[i][j] = (adds ? c[i][j] : 0) + sum of a[i][k] * b[k][j] over k, for i < ROWS and j < 4 * VECTORS
template <int ROWS, int VECTORS>
__attribute__((noinline)) static void multiply_f32(const float* a, Index apart, const float* b, float* c, Index pitch, Index rows, Index columns, Index depth, bool adds) {
  typedef float vector __attribute__((vector_size(16), aligned(4)));
  vector sum[ROWS][VECTORS], right[VECTORS];
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) {
      sum[i][j] = vector{};
      __builtin_prefetch(c + i * pitch + j * 4);
    }
  for (Index k = 0; k < depth; ++k, a += 1) {
    UNROLL for (Index j = 0; j < VECTORS; ++j) right[j] = *(const vector*)(b + k * 8 + j * 4);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = a[i * apart] - vector{};
      UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);
    }
  }
  if (adds) {
    if (columns >= VECTORS * 4) {
      UNROLL for (Index i = 0; i < ROWS; ++i)
        if (i < rows)
          UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] += *(const vector*)(c + i * pitch + j * 4);
    } else {
      UNROLL for (Index i = 0; i < ROWS; ++i)
        if (i < rows)
          UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] += load_f32_part<vector>(c + i * pitch + j * 4, columns - j * 4);
    }
  }
  if (columns >= VECTORS * 4) {
    UNROLL for (Index i = 0; i < ROWS; ++i)
      if (i < rows)
        UNROLL for (Index j = 0; j < VECTORS; ++j) *(vector*)(c + i * pitch + j * 4) = sum[i][j];
  } else {
    UNROLL for (Index i = 0; i < ROWS; ++i)
      if (i < rows)
        UNROLL for (Index j = 0; j < VECTORS; ++j) store_f32_part(c + i * pitch + j * 4, sum[i][j], columns - j * 4);
  }
}

// c[i][n] = (adds ? c[i][n] : 0) + sum of a[i][k] * b[k][n] over k, for i < ROWS and n < columns;
// c consists of panels of 8 columns
template <int ROWS>
__attribute__((noinline)) static void multiply_along_k(const float* a, const float* b, Index step, float* c,
    Index columns, Index depth, bool adds) {
  typedef float vector __attribute__((vector_size(16), aligned(4)));
  constexpr Index LANES = 4;
  for (Index n = 0; n < columns; n += LANES) {
    const float* from[LANES];  // past the last column: the last one again, for sums that nothing reads
    for (Index j = 0; j < LANES; ++j) from[j] = b + min_int(n + j, columns - 1) * step;
    vector sum[ROWS];
    UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = vector{};
    Index k = 0;
    for (; k + LANES <= depth; k += LANES) {
      vector row[LANES];
      UNROLL for (Index j = 0; j < LANES; ++j) row[j] = *(const vector*)(from[j] + k);
      UNROLL for (Index i = 0; i < 4; ++i)
        if (!(i & 1)) {
          const vector low = row[i], high = row[i + 1];
          row[i] = __builtin_shufflevector(low, high, 0, 4, 1, 5);
          row[i + 1] = __builtin_shufflevector(low, high, 2, 6, 3, 7);
        }
      UNROLL for (Index i = 0; i < 4; ++i)
        if (!(i & 2)) {
          const vector low = row[i], high = row[i + 2];
          row[i] = __builtin_shufflevector(low, high, 0, 1, 4, 5);
          row[i + 2] = __builtin_shufflevector(low, high, 2, 3, 6, 7);
        }
      UNROLL for (Index i = 0; i < 4; i += 4) {
        const vector second = row[i + 2];
        row[i + 2] = row[i + 1];
        row[i + 1] = second;
      }
      UNROLL for (Index u = 0; u < LANES; ++u)
        UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = fused_lanes<1>(a[32 * i + 1 * (k + u)] - vector{}, row[u], sum[i]);
    }
    for (; k < depth; ++k) {
      const Index u = 0;
      vector row;
      UNROLL for (Index j = 0; j < LANES; ++j) row[j] = from[j][k];
      UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = fused_lanes<1>(a[32 * i + 1 * (k + u)] - vector{}, row, sum[i]);
    }
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      vector* const to = (vector*)(c + n / 8 * 384 + 8 * i + n % 8);
      *to = adds ? *to + sum[i] : sum[i];
    }
  }
}

// One block.
static void gemm_block(const gemm_arguments& given, long long block, char* scratch) {
  const float* const A = given.A;
  const float* const B = given.B;
  float* const C = given.C;
  const Index M = given.M;
  const Index A_stride0 = given.A_stride0;
  const Index K = given.K;
  const Index N = given.N;
  const Index B_stride0 = given.B_stride0;
  const Index C_stride0 = given.C_stride0;
  const Index m = block % ((M + 44) / 48);
  const Index n = block / ((M + 44) / 48);
  float* const sA = (float*)(scratch + 0);
  float* const sB = (float*)(scratch + 6720);
  float* const acc = (float*)(scratch + 7744);
  if ((K + 28) / 32 < 1) {
    // test_text.py:46: acc = 0
    for (Index e1 = 0; e1 < within(-8*n + (N / 8), 8); ++e1) {
      INDEPENDENT
      for (Index e = 0; e < 96 * within(-4*m + ((M + 8) / 12), 4); ++e) {
        const float acc_e = 0.0f;
        acc[e1 * 384 + e] = acc_e;
      }
    }
  }
  const Index k_end = (K + 28) / 32;
  for (Index k = 0; k < k_end; ++k) {
    // test_text.py:53: acc += sA * sB
    {
      const Index m_needed = within(-48*m + M, 48);
      const Index m_panels = (m_needed + 11) / 12;
      const Index n_needed = within(-64*n + N, 64);
      const Index n_panels = (n_needed + 7) / 8;
      const Index depth = within(-32*k + K, 32);
      const bool is_shallow = 0 < (K + 28) / 32 && (K + 28) / 32 < 3 && 4 < -48*m + M
          && m_needed >= 6 && n_needed > 2 && depth <= 64;
      if (is_shallow) {
        multiply_shallow_f32_along_k(A + 48*A_stride0*m + 32*k, A_stride0, 1, B + 64*B_stride0*n
            + 32*k, B_stride0, C + 64*n + 48*C_stride0*m, C_stride0, m_needed, n_needed, depth,
            !(k == 0), sB);
      }
      else {
        const Index whole = n_panels <= 4 && m_needed > 4 ? m_needed / 12 : 0;
        for (Index m_panel = whole; m_panel < m_panels; ++m_panel) {
          // test_text.py:48: a panel of sA = A.tile((48, 32), (m, k))
          {
            const Index limit1 = within(-32*k + K, 32);
            const Index inside0 = within(-48*m - 12*m_panel + M, 12);
            if (inside0 < 12) {
              for (Index i0 = inside0; i0 < 12; ++i0) {
                if (limit1 == 32) {
                  INDEPENDENT
                  for (Index i1 = 0; i1 < 32; ++i1) sA[384*m_panel + 32*i0 + i1] = 0;
                }
                else {
                  INDEPENDENT
                  for (Index i1 = 0; i1 < limit1; ++i1) sA[384*m_panel + 32*i0 + i1] = 0;
                }
              }
            }
            for (Index i0 = 0; i0 < inside0; ++i0) {
              if (limit1 == 32) {
                INDEPENDENT
                for (Index i1 = 0; i1 < 32; ++i1) {
                  sA[384*m_panel + 32*i0 + i1] =
                      A[48*A_stride0*m + 32*k + 12*A_stride0*m_panel + A_stride0*i0 + i1];
                }
              }
              else {
                INDEPENDENT
                for (Index i1 = 0; i1 < limit1; ++i1) {
                  sA[384*m_panel + 32*i0 + i1] =
                      A[48*A_stride0*m + 32*k + 12*A_stride0*m_panel + A_stride0*i0 + i1];
                }
              }
            }
          }
        }
        const bool in_result = 0 < (K + 28) / 32 && (K + 28) / 32 < 3 && 4 < -48*m + M;
        const Index pitch = in_result ? C_stride0 : 8;
        if (m_needed <= 1) {
          multiply_along_k<1>(sA + 0, B + 64*B_stride0*n + 32*k, B_stride0, acc + 0, n_needed,
              depth, !(k == 0));
        }
        else {
          if (m_needed <= 4) {
            multiply_along_k<4>(sA + 0, B + 64*B_stride0*n + 32*k, B_stride0, acc + 0, n_needed,
                depth, !(k == 0));
          }
          else {
            for (Index n_panel = 0; n_panel < n_panels; ++n_panel) {
              {
                // test_text.py:49: a panel of sB = B.tile((64, 32), (n, k))
                {
                  const Index limit1 = within(-32*k + K, 32);
                  const Index inside0 = within(-64*n - 8*n_panel + N, 8);
                  if (inside0 < 8) {
                    for (Index i1 = 0; i1 < limit1; ++i1) {
                      INDEPENDENT
                      for (Index i0 = 0; i0 < 8; ++i0) sB[8*i1 + i0] = 0;
                    }
                  }
                  for (Index i0 = 0; i0 < inside0; i0 += 4) {
                    for (Index i1 = 0; i1 < limit1; i1 += 4) {
                      transpose_f32(sB + 8*i1 + i0, 8, B + 64*B_stride0*n + 32*k
                          + 8*B_stride0*n_panel + B_stride0*i0 + i1, B_stride0,
                          within(inside0 - i0, 4), within(limit1 - i1, 4));
                    }
                  }
                }
              }
              const Index ahead = n_panel + 1 < n_panels ? 8 : 0;
              const Index share = (ahead + m_panels - 1) / m_panels;
              for (Index m_panel = 0; m_panel < m_panels; ++m_panel) {
                for (Index row =
                    m_panel * share; row < within((m_panel + 1) * share, ahead); ++row) {
                  __builtin_prefetch(B + 64*B_stride0*n + 32*k + 8*B_stride0*n_panel + 8*B_stride0
                      + B_stride0*row + 15);
                  __builtin_prefetch(B + 64*B_stride0*n + 32*k + 8*B_stride0*n_panel + 8*B_stride0
                      + B_stride0*row + 31);
                }
                const float* const rows = m_panel < whole ? A + 48*A_stride0*m + 32*k
                    + 12*A_stride0*m_panel : sA + 384*m_panel;
                const Index apart = m_panel < whole ? A_stride0 : 32;
                float* const sums = in_result ? C + 64*n + 48*C_stride0*m + 12*C_stride0*m_panel
                    + 8*n_panel : acc + 384*n_panel + 96*m_panel;
                const Index high = in_result ? m_needed - (12*m_panel) : 12;
                const Index wide = in_result ? n_needed - (8*n_panel) : 8;
                if (m_needed - (12*m_panel) <= 1) {
                  if (n_needed - (8*n_panel) <= 4) {
                    multiply_f32<1,1>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                        !(k == 0));
                  }
                  else {
                    multiply_f32<1,2>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                        !(k == 0));
                  }
                }
                else {
                  if (m_needed - (12*m_panel) <= 3) {
                    if (n_needed - (8*n_panel) <= 4) {
                      multiply_f32<3,1>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                          !(k == 0));
                    }
                    else {
                      multiply_f32<3,2>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                          !(k == 0));
                    }
                  }
                  else {
                    if (m_needed - (12*m_panel) <= 6) {
                      if (n_needed - (8*n_panel) <= 4) {
                        multiply_f32<6,1>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                            !(k == 0));
                      }
                      else {
                        multiply_f32<6,2>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                            !(k == 0));
                      }
                    }
                    else {
                      if (m_needed - (12*m_panel) <= 9) {
                        if (n_needed - (8*n_panel) <= 4) {
                          multiply_f32<9,1>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                              !(k == 0));
                        }
                        else {
                          multiply_f32<9,2>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                              !(k == 0));
                        }
                      }
                      else {
                        if (n_needed - (8*n_panel) <= 4) {
                          multiply_f32<12,1>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                              !(k == 0));
                        }
                        else {
                          multiply_f32<12,2>(rows, apart, sB + 0, sums, pitch, high, wide, depth,
                              !(k == 0));
                        }
                      }
                    }
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  if (!(0 < (K + 28) / 32 && (K + 28) / 32 < 3 && 4 < -48*m + M)) {
    // test_text.py:55: C.tile((48, 64), (m, n)) = acc
    {
      const Index limit0 = within(-48*m + M, 48);
      const Index limit1 = within(-64*n + N, 64);
      for (Index i0 = 0; i0 < limit0; ++i0) {
        for (Index i1 = 0; 8*i1 < limit1; ++i1) {
          const Index run = within(limit1 - (8*i1), 8);
          if (run == 8) {
            INDEPENDENT
            for (Index i1_1 = 0; i1_1 < 8; ++i1_1) {
              C[64*n + 48*C_stride0*m + 8*i1 + C_stride0*i0 + i1_1] = acc[384*i1 + 8*i0 + i1_1];
            }
          }
          else {
            INDEPENDENT
            for (Index i1_1 = 0; i1_1 < run; ++i1_1) {
              C[64*n + 48*C_stride0*m + 8*i1 + C_stride0*i0 + i1_1] = acc[384*i1 + 8*i0 + i1_1];
            }
          }
        }
      }
    }
  }
}

extern "C" __attribute__((visibility("default")))
void gemm(const void* arguments, long long* next_block, void* scratch, long long blocks) {
  for (;;) {
    const long long block = __atomic_fetch_add(next_block, 1, __ATOMIC_RELAXED);
    if (block >= blocks) break;
    gemm_block(*(const gemm_arguments*)arguments, block, (char*)scratch);
  }
}
