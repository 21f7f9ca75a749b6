// linear for x86-64-v3
// - accumulators of 768x2048 lie in micro-tiles of 6x16
// - sA holds its elements as f32, exactly
// - sB holds its elements as f32, exactly
// - sA re-laid out: strides (272, 1)

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

typedef unsigned short bf16;

static inline unsigned bits_of_f32(float x) { return __builtin_bit_cast(unsigned, x); }
static inline float f32_of_bits(unsigned x) { return __builtin_bit_cast(float, x); }

static inline float f32_of_bf16(bf16 x) { return f32_of_bits((unsigned)x << 16); }

static inline bf16 bf16_of_f32(float x) {
  const unsigned bits = bits_of_f32(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (bf16)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7fc0 : rounded);
}

static inline float exp2_f32(float x) {
  // x = n + r / ln 2; adding 1.5 * 2**23 leaves round(x) in the last bits.
  const float shifted = x + 12582912.0f, r = (x - (shifted - 12582912.0f)) * 0.6931471805599453f;
  const float near = 1.0f + fused(r * r, fused(r, fused(r, fused(r, fused(r, 0.0013933652080595493f, 0.008363181725144386f), 0.04166646674275398f), 0.16666576266288757f), 0.5f), r);
  // Two factors: 2**n alone may be no normal number.
  const int whole = bits_of_f32(shifted) - bits_of_f32(12582912.0f);
  const int half = whole >> 1, rest = whole - half;
  const float made = near * f32_of_bits((half + 127) << 23) * f32_of_bits((rest + 127) << 23);
  const float low = x < -151.0f ? 0.0f : made;
  return x > 129.0f ? __builtin_inff() : low;
}

static inline float silu_f32(float x) {
  const float z = x * x, t = x * (-1.4426950408889634f);
  return (x < -3.4028234663852886e+38f ? -3.4028234663852886e+38f : x) / (1 + exp2_f32(t));
}

static inline Index min_int(Index a, Index b) { return a < b ? a : b; }

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

struct linear_arguments {
  const bf16* A;
  const bf16* B;
  const bf16* bias;
  bf16* C;
  int M;
  int A_stride0;
  int K;
  int N;
  int B_stride0;
  int C_stride0;
};

static inline auto load_8_bf16(const bf16* from) {
  typedef float vector __attribute__((vector_size(32)));
#if defined(__AVX2__) && !defined(__clang__)
  typedef short halves __attribute__((vector_size(16), aligned(2), may_alias));
  typedef short eights __attribute__((vector_size(16)));
  typedef int words __attribute__((vector_size(32)));
  return (vector)(__builtin_ia32_pmovzxwd256((eights)*(const halves*)from) << 16);
#else
  typedef unsigned short halves __attribute__((vector_size(16), aligned(2), may_alias));
  typedef unsigned words __attribute__((vector_size(32)));
  return (vector)(__builtin_convertvector(*(const halves*)from, words) << 16);
#endif
}

static inline auto load_4_bf16(const bf16* from) {
  typedef float vector __attribute__((vector_size(16)));
  typedef unsigned short halves __attribute__((vector_size(8), aligned(2), may_alias));
  typedef unsigned words __attribute__((vector_size(16)));
  return (vector)(__builtin_convertvector(*(const halves*)from, words) << 16);
}

// target[i] = source[i] for i < count
static inline void copy_bf16_to_f32(float* target, const bf16* source, Index count) {
  Index i = 0;
  typedef float vector8 __attribute__((vector_size(32), aligned(4)));
  if (count >= 8) {
    for (; i + 8 <= count; i += 8) *(vector8*)(target + i) = (vector8)load_8_bf16(source + i);
    if (i < count) *(vector8*)(target + count - 8) = (vector8)load_8_bf16(source + count - 8);
    return;
  }
  typedef float vector4 __attribute__((vector_size(16), aligned(4)));
  if (count >= 4) {
    for (; i + 4 <= count; i += 4) *(vector4*)(target + i) = (vector4)load_4_bf16(source + i);
    if (i < count) *(vector4*)(target + count - 4) = (vector4)load_4_bf16(source + count - 4);
    return;
  }
  for (; i < count; ++i) target[i] = f32_of_bf16(source[i]);
}

// c[i][j] = (adds ? c[i][j] : 0) + sum of a[i][k] * b[k][j] over k, for i < ROWS and j < 8 * VECTORS
template <int ROWS, int VECTORS>
__attribute__((noinline)) static void multiply_f32(const float* a, const float* b, float* c, Index depth, bool adds) {
  typedef float vector __attribute__((vector_size(32), aligned(4)));
  vector sum[ROWS][VECTORS], right[VECTORS];
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) {
      sum[i][j] = vector{};
      __builtin_prefetch(c + i * 16 + j * 8);
    }
  for (Index k = 0; k < depth; ++k) {
    UNROLL for (Index j = 0; j < VECTORS; ++j) right[j] = *(const vector*)(b + k * 16 + j * 8);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = a[i * 272 + k] - vector{};
      UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);
    }
  }
  if (adds) {
    UNROLL for (Index i = 0; i < ROWS; ++i)
      UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] += *(const vector*)(c + i * 16 + j * 8);
  }
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) *(vector*)(c + i * 16 + j * 8) = sum[i][j];
}

// to[l] = value[l] for l < count
template <typename Vector>
static inline void store_f32_part(float* to, Vector value, Index count) {
#if defined(__AVX__)
  typedef float whole __attribute__((vector_size(32)));
  typedef int bits __attribute__((vector_size(32)));
  bits lane;
  UNROLL for (Index l = 0; l < 8; ++l) lane[l] = (int)l;
  const bits kept = lane < bits{} + (int)count;
  __builtin_ia32_maskstoreps256((whole*)to, kept, (whole)value);
#else
  for (Index l = 0; l < count && l < 8; ++l) to[l] = value[l];
#endif
}

// target[j * target_step + i] = source[i * source_step + j] for i < rows, j < columns
static void transpose_f32_from_bf16(float* target, Index target_step, const bf16* source, Index source_step,
    Index rows, Index columns) {
  typedef float vector
    __attribute__((vector_size(32), aligned(4)));
  if ((rows < 8 || columns < 8) && (columns < 8 || rows <= 2)) {
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) target[j * target_step + i] = f32_of_bf16(source[i * source_step + j]);
    return;
  }
  vector row[8];
  if (rows >= 8 && columns >= 8) {
    UNROLL for (Index i = 0; i < 8; ++i) row[i] = (vector)load_8_bf16(source + i * source_step);
  } else UNROLL for (Index i = 0; i < 8; ++i) {
    row[i] = vector{};
    if (i < rows) row[i] = (vector)load_8_bf16(source + i * source_step);
  }
  UNROLL for (Index i = 0; i < 8; ++i)
    if (!(i & 1)) {
      const vector low = row[i], high = row[i + 1];
      row[i] = __builtin_shufflevector(low, high, 0, 8, 1, 9, 4, 12, 5, 13);
      row[i + 1] = __builtin_shufflevector(low, high, 2, 10, 3, 11, 6, 14, 7, 15);
    }
  UNROLL for (Index i = 0; i < 8; ++i)
    if (!(i & 2)) {
      const vector low = row[i], high = row[i + 2];
      row[i] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
      row[i + 2] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  UNROLL for (Index i = 0; i < 8; ++i)
    if (!(i & 4)) {
      const vector low = row[i], high = row[i + 4];
      row[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
      row[i + 4] = __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
    }
  UNROLL for (Index i = 0; i < 8; i += 4) {
    const vector second = row[i + 2];
    row[i + 2] = row[i + 1];
    row[i + 1] = second;
  }
  if (rows >= 8 && columns >= 8) {
    UNROLL for (Index j = 0; j < 8; ++j)
      *(vector*)(target + j * target_step) = row[j];
  } else UNROLL for (Index j = 0; j < 8; ++j)
    if (j < columns) store_f32_part(target + j * target_step, row[j], rows);
}

template <typename Vector>
static inline void store_8_as_bf16(bf16* to, Vector value) {
  typedef unsigned short halves __attribute__((vector_size(16), aligned(2), may_alias));
  typedef unsigned words __attribute__((vector_size(32)));
  const words bits = (words)value, high = bits >> 16, is_nan = (words)(value != value);
  const words rounded = (bits + 0x7fff + (high & 1)) >> 16, nan = (high & 0x8000) | 0x7fc0;
  *(halves*)to = __builtin_convertvector((rounded & ~is_nan) | (nan & is_nan), halves);
}

template <typename Vector>
static inline void store_4_as_bf16(bf16* to, Vector value) {
  typedef unsigned short halves __attribute__((vector_size(8), aligned(2), may_alias));
  typedef unsigned words __attribute__((vector_size(16)));
  const words bits = (words)value, high = bits >> 16, is_nan = (words)(value != value);
  const words rounded = (bits + 0x7fff + (high & 1)) >> 16, nan = (high & 0x8000) | 0x7fc0;
  *(halves*)to = __builtin_convertvector((rounded & ~is_nan) | (nan & is_nan), halves);
}

// target[i] = source[i] for i < count
static inline void copy_f32_to_bf16(bf16* target, const float* source, Index count) {
  Index i = 0;
  typedef float vector8 __attribute__((vector_size(32), aligned(4)));
  if (count >= 8) {
    for (; i + 8 <= count; i += 8) store_8_as_bf16(target + i, *(const vector8*)(source + i));
    if (i < count) store_8_as_bf16(target + count - 8, *(const vector8*)(source + count - 8));
    return;
  }
  typedef float vector4 __attribute__((vector_size(16), aligned(4)));
  if (count >= 4) {
    for (; i + 4 <= count; i += 4) store_4_as_bf16(target + i, *(const vector4*)(source + i));
    if (i < count) store_4_as_bf16(target + count - 4, *(const vector4*)(source + count - 4));
    return;
  }
  for (; i < count; ++i) target[i] = bf16_of_f32(source[i]);
}

// One block.
static void linear_block(const linear_arguments& given, long long block, char* scratch) {
  const bf16* const A = given.A;
  const bf16* const B = given.B;
  const bf16* const bias = given.bias;
  bf16* const C = given.C;
  const Index M = given.M;
  const Index A_stride0 = given.A_stride0;
  const Index K = given.K;
  const Index N = given.N;
  const Index B_stride0 = given.B_stride0;
  const Index C_stride0 = given.C_stride0;
  const Index m = block % ((M + 767) / 768);
  const Index n = block / ((M + 767) / 768);
  float* const sA = (float*)(scratch + 0);
  float* const sB = (float*)(scratch + 885184);
  float* const acc = (float*)(scratch + 902144);
  bf16* const rbias = (bf16*)(scratch + 7194176);
  float* const convert = (float*)(scratch + 7198848);
  float* const silu = (float*)(scratch + 7207616);
  if ((K + 255) / 256 < 1) {
    // test_golden.py:27 atom: acc = 0
    for (Index e1 = 0; e1 < within(-128*n + ((N + 15) / 16), 128); ++e1) {
      INDEPENDENT
      for (Index e = 0; e < 96 * within(-128*m + ((M + 5) / 6), 128); ++e) {
        const float acc_e = 0.0f;
        acc[e1 * 12288 + e] = acc_e;
      }
    }
  }
  const Index k_end = (K + 255) / 256;
  for (Index k = 0; k < k_end; ++k) {
    // test_golden.py:27 atom: acc += sA * sB
    {
      const Index m_needed = within(-768*m + M, 768);
      const Index m_panels = (m_needed + 5) / 6;
      const Index n_needed = within(-2048*n + N, 2048);
      const Index n_panels = (n_needed + 15) / 16;
      const Index depth = within(-256*k + K, 256);
      const bool in_turn = n_panels == 1 && m_needed > 4 && m_needed * depth > 8192;
      if (!in_turn) {
        // test_golden.py:27 staging: sA = A.tile((768, 256), (m, k))
        {
          const Index limit0 = within(-768*m + 6*((M + 5) / 6), 768);
          const Index limit1 = within(-256*k + K, 256);
          const Index inside0 = within(min_int(-768*m + 6*((M + 5) / 6), -768*m + M), 768);
          if (inside0 < limit0) {
            for (Index i0 = inside0; i0 < limit0; ++i0) {
              if (limit1 == 256) {
                INDEPENDENT
                for (Index i1 = 0; i1 < 256; ++i1) sA[272*i0 + i1] = 0;
              }
              else {
                INDEPENDENT
                for (Index i1 = 0; i1 < limit1; ++i1) sA[272*i0 + i1] = 0;
              }
            }
          }
          for (Index i0 = 0; i0 < inside0; ++i0) {
            if (limit1 == 256) {
              copy_bf16_to_f32(sA + 272*i0, A + 768*A_stride0*m + 256*k + A_stride0*i0, 256);
            }
            else {
              copy_bf16_to_f32(sA + 272*i0, A + 768*A_stride0*m + 256*k + A_stride0*i0, limit1);
            }
          }
        }
      }
      for (Index n_panel = 0; n_panel < n_panels; ++n_panel) {
        {
          // test_golden.py:27 staging: a panel of sB = B.tile((2048, 256), (n, k))
          {
            const Index limit1 = within(-256*k + K, 256);
            const Index inside0 = within(-2048*n - 16*n_panel + N, 16);
            if (inside0 < 16) {
              for (Index i1 = 0; i1 < limit1; ++i1) {
                INDEPENDENT
                for (Index i0 = 0; i0 < 16; ++i0) sB[16*i1 + i0] = 0;
              }
            }
            for (Index i0 = 0; i0 < inside0; i0 += 8) {
              for (Index i1 = 0; i1 < limit1; i1 += 8) {
                transpose_f32_from_bf16(sB + 16*i1 + i0, 16, B + 2048*B_stride0*n + 256*k
                    + 16*B_stride0*n_panel + B_stride0*i0 + i1, B_stride0, within(inside0 - i0, 8),
                    within(limit1 - i1, 8));
              }
            }
          }
        }
        const Index ahead = n_panel + 1 < n_panels ? 16 : 0;
        const Index share = (ahead + m_panels - 1) / m_panels;
        for (Index m_panel = 0; m_panel < m_panels; ++m_panel) {
          for (Index row = m_panel * share; row < within((m_panel + 1) * share, ahead); ++row) {
            for (Index line = 0; line < depth; line += 32) {
              __builtin_prefetch(B + 2048*B_stride0*n + 256*k + 16*B_stride0*n_panel + 16*B_stride0
                  + B_stride0*row + line);
            }
          }
          if (in_turn) {
            // test_golden.py:27 staging: a panel of sA = A.tile((768, 256), (m, k))
            {
              const Index limit1 = within(-256*k + K, 256);
              const Index inside0 = within(-768*m - 6*m_panel + M, 6);
              if (inside0 < 6) {
                for (Index i0 = inside0; i0 < 6; ++i0) {
                  if (limit1 == 256) {
                    INDEPENDENT
                    for (Index i1 = 0; i1 < 256; ++i1) sA[272*i0 + i1] = 0;
                  }
                  else {
                    INDEPENDENT
                    for (Index i1 = 0; i1 < limit1; ++i1) sA[272*i0 + i1] = 0;
                  }
                }
              }
              for (Index i0 = 0; i0 < inside0; ++i0) {
                if (limit1 == 256) {
                  copy_bf16_to_f32(sA + 272*i0, A + 768*A_stride0*m + 256*k + 6*A_stride0*m_panel
                      + A_stride0*i0, 256);
                }
                else {
                  copy_bf16_to_f32(sA + 272*i0, A + 768*A_stride0*m + 256*k + 6*A_stride0*m_panel
                      + A_stride0*i0, limit1);
                }
              }
            }
          }
          const Index slot = in_turn ? 0 : m_panel;
          if (m_needed - (6*m_panel) <= 1) {
            if (n_needed - (16*n_panel) <= 8) {
              multiply_f32<1,1>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel, depth,
                  !(k == 0));
            }
            else {
              multiply_f32<1,2>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel, depth,
                  !(k == 0));
            }
          }
          else {
            if (m_needed - (6*m_panel) <= 2) {
              if (n_needed - (16*n_panel) <= 8) {
                multiply_f32<2,1>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel, depth,
                    !(k == 0));
              }
              else {
                multiply_f32<2,2>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel, depth,
                    !(k == 0));
              }
            }
            else {
              if (m_needed - (6*m_panel) <= 3) {
                if (n_needed - (16*n_panel) <= 8) {
                  multiply_f32<3,1>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel,
                      depth, !(k == 0));
                }
                else {
                  multiply_f32<3,2>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel,
                      depth, !(k == 0));
                }
              }
              else {
                if (m_needed - (6*m_panel) <= 5) {
                  if (n_needed - (16*n_panel) <= 8) {
                    multiply_f32<5,1>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel,
                        depth, !(k == 0));
                  }
                  else {
                    multiply_f32<5,2>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel,
                        depth, !(k == 0));
                  }
                }
                else {
                  if (n_needed - (16*n_panel) <= 8) {
                    multiply_f32<6,1>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel,
                        depth, !(k == 0));
                  }
                  else {
                    multiply_f32<6,2>(sA + 1632*slot, sB + 0, acc + 12288*n_panel + 96*m_panel,
                        depth, !(k == 0));
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  // test_golden.py:28 epilogue: rbias = tile_1
  {
    INDEPENDENT
    for (Index i1 = 0; i1 < 2048; ++i1) rbias[i1] = 2048*n + i1 < N ? bias[2048*n + i1] : (bf16)0;
  }
  // test_golden.py:28 epilogue: convert = convert(rbias, f32)
  INDEPENDENT
  for (Index e = 0; e < within(-2048*n + N, 2048); ++e) {
    const float convert_e = f32_of_bf16(rbias[e]);
    convert[e] = convert_e;
  }
  // test_golden.py:28 epilogue: add = add(acc, convert)
  // test_golden.py:28 epilogue: silu = silu(add)
  for (Index e2 = 0; e2 < within(-128*n + ((N + 15) / 16), 128); ++e2) {
    for (Index e1 = 0; e1 < 6 * within(-128*m + ((M + 5) / 6), 128); ++e1) {
      INDEPENDENT
      for (Index e = 0; e < 16; ++e) {
        const float add_e = acc[e2 * 12288 + e1 * 16 + e] + convert[e2 * 16 + e];
        const float silu_e = silu_f32(add_e);
        silu[e2 * 12288 + e1 * 16 + e] = silu_e;
      }
    }
  }
  // test_golden.py:28 epilogue: tile_2 = silu
  {
    const Index limit0 = within(-768*m + M, 768);
    const Index limit1 = within(-2048*n + N, 2048);
    for (Index i0 = 0; i0 < limit0; ++i0) {
      for (Index i1 = 0; 16*i1 < limit1; ++i1) {
        const Index run = within(limit1 - (16*i1), 16);
        if (run == 16) {
          copy_f32_to_bf16(C + 2048*n + 768*C_stride0*m + 16*i1 + C_stride0*i0, silu + 12288*i1
              + 16*i0, 16);
        }
        else {
          copy_f32_to_bf16(C + 2048*n + 768*C_stride0*m + 16*i1 + C_stride0*i0, silu + 12288*i1
              + 16*i0, run);
        }
      }
    }
  }
}

extern "C" __attribute__((visibility("default")))
void linear(const void* arguments, long long* next_block, void* scratch, long long blocks) {
  for (;;) {
    const long long block = __atomic_fetch_add(next_block, 1, __ATOMIC_RELAXED);
    if (block >= blocks) break;
    linear_block(*(const linear_arguments*)arguments, block, (char*)scratch);
  }
}
