// gemm for x86-64-v4
// - one thread does the work of 32; 4 synchronisations are removed
// - asynchronous copies complete at once
// - accumulators of 48x64 lie in micro-tiles of 12x32
// - sA holds its elements as f32, exactly
// - sB holds its elements as f32, exactly
// - sB re-laid out: (64, 32) -> 1024*(i0 // 32) + 32*i1 + (i0 % 32)

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

typedef unsigned short f16;

static inline unsigned bits_of_f32(float x) { return __builtin_bit_cast(unsigned, x); }
static inline float f32_of_bits(unsigned x) { return __builtin_bit_cast(float, x); }

static inline float f32_of_f16(f16 x) {
  const unsigned wide = (unsigned)(int)(short)x << 13;  // the sign is in its place
  const unsigned normal = (wide & 0xfffe000) + 0x38000000;
  const unsigned tiny = bits_of_f32(f32_of_bits(normal + 0x800000) - f32_of_bits(0x38800000));
  const unsigned finite = (x & 0x7c00) == 0 ? tiny : normal;
  return f32_of_bits((wide & 0x80000000) | ((x & 0x7fff) >= 0x7c00 ? finite + 0x38000000 : finite));
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

struct gemm_arguments {
  const f16* A;
  const f16* B;
  float* C;
  int M;
  int A_stride0;
  int K;
  int N;
  int B_stride0;
  int C_stride0;
};

static inline auto load_16_f16(const f16* from) {
  typedef float vector __attribute__((vector_size(64)));
#if defined(__AVX512F__) && !defined(__clang__)
  typedef short halves __attribute__((vector_size(32), aligned(2), may_alias));
  typedef short eights __attribute__((vector_size(32)));
  return (vector)__builtin_ia32_vcvtph2ps512_mask((eights)*(const halves*)from, vector{}, -1, 4);
#elif defined(__F16C__) && defined(__clang__)
  typedef _Float16 halves __attribute__((vector_size(32), aligned(2), may_alias));
  return __builtin_convertvector(*(const halves*)from, vector);
#else
  vector wide;
  for (Index l = 0; l < 16; ++l) wide[l] = f32_of_f16(from[l]);
  return wide;
#endif
}

// from[l] in f32 for l < count, else 0
static inline auto load_f16_part(const f16* from, Index count) {
  f16 part[16]{};
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  typedef short whole __attribute__((vector_size(32)));
  typedef short halves __attribute__((vector_size(32), aligned(2), may_alias));
#if defined(__clang__)
  typedef whole place;
#else
  typedef short place;
#endif
  const unsigned kept_bits = (1u << (count < 0 ? 0 : count < 16 ? count : 16)) - 1;
  *(halves*)part = (halves)__builtin_ia32_loaddquhi256_mask((const place*)from, whole{}, (unsigned short)kept_bits);
#else
  const Index kept = count < 0 ? 0 : count < 16 ? count : 16;
  Index l = 0;
  if (kept & 16) {
    __builtin_memcpy(part + l, from + l, 16 * sizeof(f16));
    l += 16;
  }
  if (kept & 8) {
    __builtin_memcpy(part + l, from + l, 8 * sizeof(f16));
    l += 8;
  }
  if (kept & 4) {
    __builtin_memcpy(part + l, from + l, 4 * sizeof(f16));
    l += 4;
  }
  if (kept & 2) {
    __builtin_memcpy(part + l, from + l, 2 * sizeof(f16));
    l += 2;
  }
  if (kept & 1) {
    __builtin_memcpy(part + l, from + l, 1 * sizeof(f16));
    l += 1;
  }
#endif
  return load_16_f16(part);
}

// to[l] = value[l] for l < count
template <typename Vector>
static inline void store_f32_part(float* to, Vector value, Index count) {
#if defined(__AVX512F__)
  typedef float whole __attribute__((vector_size(64)));
  const unsigned short kept = (unsigned short)(count < 16 ? (1u << (count > 0 ? count : 0)) - 1 : 65535u);
  __builtin_ia32_storeups512_mask(to, (whole)value, kept);
#else
  for (Index l = 0; l < count && l < 16; ++l) to[l] = value[l];
#endif
}

// target[i] = source[i] for i < count
static inline void copy_f16_to_f32(float* target, const f16* source, Index count) {
  Index i = 0;
  typedef float vector16 __attribute__((vector_size(64), aligned(4)));
  if (count >= 16) {
    for (; i + 16 <= count; i += 16) *(vector16*)(target + i) = (vector16)load_16_f16(source + i);
    if (i < count) *(vector16*)(target + count - 16) = (vector16)load_16_f16(source + count - 16);
    return;
  }
  if (count > 0) store_f32_part(target, load_f16_part(source, count), count);
}

// from[l] for l < count, else 0
template <typename Vector>
static inline Vector load_f32_part(const float* from, Index count) {
#if defined(__AVX512F__)
  typedef float whole __attribute__((vector_size(64)));
  const unsigned short kept = (unsigned short)(count < 16 ? (1u << (count > 0 ? count : 0)) - 1 : 65535u);
  return (Vector)__builtin_ia32_loadups512_mask(from, whole{}, kept);
#else
  Vector value{};
  for (Index l = 0; l < count && l < 16; ++l) value[l] = from[l];
  return value;
#endif
}

// c[i][j] = (adds ? c[i][j] : 0) + sum of a[i][k] * b[k][j] over k, for i < ROWS and j < 16 * VECTORS
template <int ROWS, int VECTORS>
__attribute__((noinline)) static void multiply_f32(const float* a, const float* b, float* c, Index pitch, Index rows, Index, Index depth, bool adds) {
  typedef float vector __attribute__((vector_size(64), aligned(4)));
  vector sum[ROWS][VECTORS], right[VECTORS];
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) {
      sum[i][j] = vector{};
      __builtin_prefetch(c + i * pitch + j * 16);
    }
  for (Index k = 0; k < depth; ++k) {
    UNROLL for (Index j = 0; j < VECTORS; ++j) right[j] = *(const vector*)(b + k * 32 + j * 16);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = a[i * 32 + k] - vector{};
      UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);
    }
  }
  if (adds) {
    UNROLL for (Index i = 0; i < ROWS; ++i)
      if (i < rows)
        UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] += *(const vector*)(c + i * pitch + j * 16);
  }
  UNROLL for (Index i = 0; i < ROWS; ++i)
    if (i < rows)
      UNROLL for (Index j = 0; j < VECTORS; ++j) *(vector*)(c + i * pitch + j * 16) = sum[i][j];
}

// c[i][j] = (adds ? c[i][j] : 0) + sum of a[i][k] * b[k][j] over k, for i < ROWS and j < 16 * VECTORS
template <int ROWS, int VECTORS>
__attribute__((noinline)) static void multiply_f32_1(const float* a, const float* b, float* c, Index pitch, Index rows, Index columns, Index depth, bool adds) {
  typedef float vector __attribute__((vector_size(64), aligned(4)));
  vector sum[ROWS][VECTORS], right[VECTORS];
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) {
      sum[i][j] = vector{};
      __builtin_prefetch(c + i * pitch + j * 16);
    }
  for (Index k = 0; k < depth; ++k) {
    UNROLL for (Index j = 0; j < VECTORS; ++j) right[j] = load_f32_part<vector>(b + k * 32 + j * 16, columns - j * 16);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = a[i * 32 + k] - vector{};
      UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);
    }
  }
  if (adds) {
    UNROLL for (Index i = 0; i < ROWS; ++i)
      if (i < rows)
        UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] += load_f32_part<vector>(c + i * pitch + j * 16, columns - j * 16);
  }
  UNROLL for (Index i = 0; i < ROWS; ++i)
    if (i < rows)
      UNROLL for (Index j = 0; j < VECTORS; ++j) store_f32_part(c + i * pitch + j * 16, sum[i][j], columns - j * 16);
}

// from[l] for l < count, else 0
template <typename Vector>
static inline Vector load_f32_part_1(const float* from, Index count) {
#if defined(__AVX512VL__)
  typedef float whole __attribute__((vector_size(32)));
  const unsigned char kept = (unsigned char)(count < 8 ? (1u << (count > 0 ? count : 0)) - 1 : 255u);
#if defined(__clang__)
  typedef whole place;
#else
  typedef float place;
#endif
  return (Vector)__builtin_ia32_loadups256_mask((const place*)from, whole{}, kept);
#else
  Vector value{};
  for (Index l = 0; l < count && l < 8; ++l) value[l] = from[l];
  return value;
#endif
}

// to[l] = value[l] for l < count
template <typename Vector>
static inline void store_f32_part_1(float* to, Vector value, Index count) {
#if defined(__AVX512VL__)
  typedef float whole __attribute__((vector_size(32)));
  const unsigned char kept = (unsigned char)(count < 8 ? (1u << (count > 0 ? count : 0)) - 1 : 255u);
#if defined(__clang__)
  typedef whole place;
#else
  typedef float place;
#endif
  __builtin_ia32_storeups256_mask((place*)to, (whole)value, kept);
#else
  for (Index l = 0; l < count && l < 8; ++l) to[l] = value[l];
#endif
}

// c[i][j] = (adds ? c[i][j] : 0) + sum of a[i][k] * b[k][j] over k, for i < ROWS and j < 8 * VECTORS
template <int ROWS, int VECTORS>
__attribute__((noinline)) static void multiply_f32_2(const float* a, const float* b, float* c, Index pitch, Index rows, Index columns, Index depth, bool adds) {
  typedef float vector __attribute__((vector_size(32), aligned(4)));
  vector sum[ROWS][VECTORS], right[VECTORS];
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) {
      sum[i][j] = vector{};
      __builtin_prefetch(c + i * pitch + j * 8);
    }
  for (Index k = 0; k < depth; ++k) {
    UNROLL for (Index j = 0; j < VECTORS; ++j) right[j] = load_f32_part_1<vector>(b + k * 32 + j * 8, columns - j * 8);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = a[i * 32 + k] - vector{};
      UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);
    }
  }
  if (adds) {
    UNROLL for (Index i = 0; i < ROWS; ++i)
      if (i < rows)
        UNROLL for (Index j = 0; j < VECTORS; ++j) sum[i][j] += load_f32_part_1<vector>(c + i * pitch + j * 8, columns - j * 8);
  }
  UNROLL for (Index i = 0; i < ROWS; ++i)
    if (i < rows)
      UNROLL for (Index j = 0; j < VECTORS; ++j) store_f32_part_1(c + i * pitch + j * 8, sum[i][j], columns - j * 8);
}

// multiply_f32_1 for the first columns of a micro-tile
template <int ROWS>
static void multiply_part_f32(const float* a, const float* b, float* c, Index pitch, Index rows, Index columns, Index depth, bool adds) {
  for (Index n = 0; n < columns; n += 16)
    if (columns - n > 8) multiply_f32_1<ROWS,1>(a, b + n, c + n, pitch, rows, columns - n, depth, adds);
    else multiply_f32_2<ROWS,1>(a, b + n, c + n, pitch, rows, columns - n, depth, adds);
}

// target[j * target_step + i] = source[i * source_step + j] for i < rows, j < columns
static void transpose_f32_from_f16(float* target, Index target_step, const f16* source, Index source_step,
    Index rows, Index columns) {
  typedef float vector
    __attribute__((vector_size(64), aligned(4)));
  if ((rows < 16 || columns < 16) && rows * columns <= 16) {
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) target[j * target_step + i] = f32_of_f16(source[i * source_step + j]);
    return;
  }
  vector row[16];
  if (rows >= 16 && columns >= 16) {
    UNROLL for (Index i = 0; i < 16; ++i) row[i] = (vector)load_16_f16(source + i * source_step);
  } else UNROLL for (Index i = 0; i < 16; ++i) {
    row[i] = vector{};
    if (i < rows) row[i] = (vector)load_f16_part(source + i * source_step, columns);
  }
  UNROLL for (Index i = 0; i < 16; ++i)
    if (!(i & 1)) {
      const vector low = row[i], high = row[i + 1];
      row[i] = __builtin_shufflevector(low, high, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
      row[i + 1] = __builtin_shufflevector(low, high, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
  UNROLL for (Index i = 0; i < 16; ++i)
    if (!(i & 2)) {
      const vector low = row[i], high = row[i + 2];
      row[i] = __builtin_shufflevector(low, high, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      row[i + 2] = __builtin_shufflevector(low, high, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  UNROLL for (Index i = 0; i < 16; ++i)
    if (!(i & 4)) {
      const vector low = row[i], high = row[i + 4];
      row[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      row[i + 4] = __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
  UNROLL for (Index i = 0; i < 16; ++i)
    if (!(i & 8)) {
      const vector low = row[i], high = row[i + 8];
      row[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      row[i + 8] = __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
  UNROLL for (Index i = 0; i < 16; i += 4) {
    const vector second = row[i + 2];
    row[i + 2] = row[i + 1];
    row[i + 1] = second;
  }
  if (rows >= 16 && columns >= 16) {
    UNROLL for (Index j = 0; j < 16; ++j)
      *(vector*)(target + j * target_step) = row[j];
  } else UNROLL for (Index j = 0; j < 16; ++j)
    if (j < columns) store_f32_part(target + j * target_step, row[j], rows);
}

// target[i] = source[i] for i < count
static inline void copy_f32(float* target, const float* source, Index count) {
  typedef float vector __attribute__((vector_size(64), aligned(4)));
  Index i = 0;
  for (; i + 16 <= count; i += 16) *(vector*)(target + i) = *(const vector*)(source + i);
  if (i < count) store_f32_part(target + i, load_f32_part<vector>(source + i, count - i), count - i);
}

// One block.
static void gemm_block(const gemm_arguments& given, long long block, char* scratch) {
  const f16* const A = given.A;
  const f16* const B = given.B;
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
  float* const acc = (float*)(scratch + 11392);
  if ((K + 28) / 32 < 1) {
    // test_text.py:46: acc = 0
    for (Index e1 = 0; e1 < within(-2*n + ((N + 24) / 32), 2); ++e1) {
      INDEPENDENT
      for (Index e = 0; e < 384 * within(-4*m + ((M + 8) / 12), 4); ++e) {
        const float acc_e = 0.0f;
        acc[e1 * 1536 + e] = acc_e;
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
      const Index n_panels = (n_needed + 31) / 32;
      const Index depth = within(-32*k + K, 32);
      const bool in_turn = n_panels == 1 && m_needed > 4 && m_needed * depth > 8192;
      if (!in_turn) {
        // test_text.py:48: sA = A.tile((48, 32), (m, k))
        {
          const Index limit0 = within(-48*m + 12*((M + 8) / 12), 48);
          const Index limit1 = within(-32*k + K, 32);
          const Index inside0 = within(min_int(-48*m + 12*((M + 8) / 12), -48*m + M), 48);
          if (inside0 < limit0) {
            for (Index i0 = inside0; i0 < limit0; ++i0) {
              if (limit1 == 32) {
                INDEPENDENT
                for (Index i1 = 0; i1 < 32; ++i1) sA[32*i0 + i1] = 0;
              }
              else {
                INDEPENDENT
                for (Index i1 = 0; i1 < limit1; ++i1) sA[32*i0 + i1] = 0;
              }
            }
          }
          for (Index i0 = 0; i0 < inside0; ++i0) {
            if (limit1 == 32) {
              copy_f16_to_f32(sA + 32*i0, A + 48*A_stride0*m + 32*k + A_stride0*i0, 32);
            }
            else {
              copy_f16_to_f32(sA + 32*i0, A + 48*A_stride0*m + 32*k + A_stride0*i0, limit1);
            }
          }
        }
      }
      const bool in_result = 0 < (K + 28) / 32 && (K + 28) / 32 < 3 && 4 < -48*m + M;
      const Index pitch = in_result ? C_stride0 : 32;
      for (Index n_panel = 0; n_panel < n_panels; ++n_panel) {
        {
          // test_text.py:49: a panel of sB = B.tile((64, 32), (n, k))
          {
            const Index limit1 = within(-32*k + K, 32);
            const Index inside0 = within(-64*n - 32*n_panel + N, 32);
            if (inside0 < 32) {
              for (Index i1 = 0; i1 < limit1; ++i1) {
                INDEPENDENT
                for (Index i0 = 0; i0 < 32; ++i0) sB[32*i1 + i0] = 0;
              }
            }
            for (Index i0 = 0; i0 < inside0; i0 += 16) {
              for (Index i1 = 0; i1 < limit1; i1 += 16) {
                transpose_f32_from_f16(sB + 32*i1 + i0, 32, B + 64*B_stride0*n
                    + 32*B_stride0*n_panel + 32*k + B_stride0*i0 + i1, B_stride0,
                    within(inside0 - i0, 16), within(limit1 - i1, 16));
              }
            }
          }
        }
        const Index ahead = n_panel + 1 < n_panels ? 32 : 0;
        const Index share = (ahead + m_panels - 1) / m_panels;
        for (Index m_panel = 0; m_panel < m_panels; ++m_panel) {
          for (Index row = m_panel * share; row < within((m_panel + 1) * share, ahead); ++row) {
            __builtin_prefetch(B + 64*B_stride0*n + 32*B_stride0*n_panel + 32*B_stride0 + 32*k
                + B_stride0*row + 31);
          }
          if (in_turn) {
            // test_text.py:48: a panel of sA = A.tile((48, 32), (m, k))
            {
              const Index limit1 = within(-32*k + K, 32);
              const Index inside0 = within(-48*m - 12*m_panel + M, 12);
              if (inside0 < 12) {
                for (Index i0 = inside0; i0 < 12; ++i0) {
                  if (limit1 == 32) {
                    INDEPENDENT
                    for (Index i1 = 0; i1 < 32; ++i1) sA[32*i0 + i1] = 0;
                  }
                  else {
                    INDEPENDENT
                    for (Index i1 = 0; i1 < limit1; ++i1) sA[32*i0 + i1] = 0;
                  }
                }
              }
              for (Index i0 = 0; i0 < inside0; ++i0) {
                if (limit1 == 32) {
                  copy_f16_to_f32(sA + 32*i0, A + 48*A_stride0*m + 32*k + 12*A_stride0*m_panel
                      + A_stride0*i0, 32);
                }
                else {
                  copy_f16_to_f32(sA + 32*i0, A + 48*A_stride0*m + 32*k + 12*A_stride0*m_panel
                      + A_stride0*i0, limit1);
                }
              }
            }
          }
          const Index slot = in_turn ? 0 : m_panel;
          float* const sums = in_result ? C + 64*n + 48*C_stride0*m + 32*n_panel
              + 12*C_stride0*m_panel : acc + 1536*n_panel + 384*m_panel;
          const Index high = in_result ? m_needed - (12*m_panel) : 12;
          const Index wide = n_needed - (32*n_panel);
          if (m_needed - (12*m_panel) <= 1) {
            if (n_needed - (32*n_panel) <= 31) {
              multiply_part_f32<1>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth,
                  !(k == 0));
            }
            else {
              multiply_f32<1,2>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth, !(k == 0));
            }
          }
          else {
            if (m_needed - (12*m_panel) <= 3) {
              if (n_needed - (32*n_panel) <= 31) {
                multiply_part_f32<6>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth,
                    !(k == 0));
              }
              else {
                multiply_f32<3,2>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth, !(k == 0));
              }
            }
            else {
              if (m_needed - (12*m_panel) <= 6) {
                if (n_needed - (32*n_panel) <= 31) {
                  multiply_part_f32<6>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth,
                      !(k == 0));
                }
                else {
                  multiply_f32<6,2>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth,
                      !(k == 0));
                }
              }
              else {
                if (m_needed - (12*m_panel) <= 9) {
                  if (n_needed - (32*n_panel) <= 31) {
                    multiply_part_f32<12>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth,
                        !(k == 0));
                  }
                  else {
                    multiply_f32<9,2>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth,
                        !(k == 0));
                  }
                }
                else {
                  if (n_needed - (32*n_panel) <= 31) {
                    multiply_part_f32<12>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth,
                        !(k == 0));
                  }
                  else {
                    multiply_f32<12,2>(sA + 384*slot, sB + 0, sums, pitch, high, wide, depth,
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
  if (!(0 < (K + 28) / 32 && (K + 28) / 32 < 3 && 4 < -48*m + M)) {
    // test_text.py:55: C.tile((48, 64), (m, n)) = acc
    {
      const Index limit0 = within(-48*m + M, 48);
      const Index limit1 = within(-64*n + N, 64);
      for (Index i0 = 0; i0 < limit0; ++i0) {
        for (Index i1 = 0; 32*i1 < limit1; ++i1) {
          const Index run = within(limit1 - (32*i1), 32);
          if (run == 32) {
            INDEPENDENT
            for (Index i1_1 = 0; i1_1 < 32; ++i1_1) {
              C[64*n + 48*C_stride0*m + 32*i1 + C_stride0*i0 + i1_1] = acc[1536*i1 + 32*i0 + i1_1];
            }
          }
          else {
            copy_f32(C + 64*n + 48*C_stride0*m + 32*i1 + C_stride0*i0, acc + 1536*i1 + 32*i0, run);
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
