// gemm for x86-64-v3
// - one thread does the work of 32; 4 synchronisations are removed
// - asynchronous copies complete at once
// - accumulators of 16x24 lie in micro-tiles of 4x24
// - sB re-laid out: strides (1, 24)

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define INDEPENDENT _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#endif

typedef long long Index;

static inline Index within(Index x, Index most) { return x < 0 ? 0 : x < most ? x : most; }

struct gemm_arguments {
  const signed char* A;
  const signed char* B;
  int* C;
  int M;
  int A_stride0;
  int K;
  int N;
  int B_stride0;
  int C_stride1;
};

// c[i][j] = (adds ? c[i][j] : 0) + sum of a[i][k] * b[k][j] over k, i < ROWS, j < 8 * VECTORS
template <int ROWS, int VECTORS>
static void multiply_bytes(const signed char* a, const int* b, int* c, Index depth, bool adds, const int* sums) {
  typedef int vector __attribute__((vector_size(32), aligned(4)));
  typedef int word __attribute__((aligned(1)));
  vector sum[ROWS][VECTORS], right[VECTORS];
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#if defined(__AVXVNNI__)
#define DOTS_PREFIX "%{vex%} "
#else
#define DOTS_PREFIX ""
#endif
  const Index groups = (depth + 3) / 4;
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) {
      sum[i][j] = vector{} - 128 * sums[i];
      __builtin_prefetch(c + i * 24 + j * 8);
    }
  for (Index g = 0; g < groups; ++g) {
    UNROLL for (Index j = 0; j < VECTORS; ++j) right[j] = *(const vector*)(b + g * 24 + j * 8);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = vector{} + *(const word*)(a + i * 8 + 4 * g);
      UNROLL for (Index j = 0; j < VECTORS; ++j) asm(DOTS_PREFIX "vpdpbusd %2, %1, %0" : "+x"(sum[i][j]) : "x"(right[j]), "x"(left));
    }
  }
#else
  (void)sums;  // of no use to products of signed numbers
  const Index groups = (depth + 1) / 2;
  short wide[ROWS][8] __attribute__((aligned(64)));
  for (Index i = 0; i < ROWS; ++i)
    for (Index k = 0; k < 2 * groups; ++k) wide[i][k] = a[i * 8 + k];
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) {
      sum[i][j] = vector{};
      __builtin_prefetch(c + i * 24 + j * 8);
    }
  for (Index g = 0; g < groups; ++g) {
    UNROLL for (Index j = 0; j < VECTORS; ++j) right[j] = *(const vector*)(b + g * 24 + j * 8);
    UNROLL for (Index i = 0; i < ROWS; ++i) {
      const vector left = vector{} + *(const word*)&wide[i][2 * g];
      UNROLL for (Index j = 0; j < VECTORS; ++j) {
        vector products;
        asm("vpmaddwd %2, %1, %0" : "=x"(products) : "x"(right[j]), "x"(left));
        sum[i][j] += products;
      }
    }
  }
#endif
  UNROLL for (Index i = 0; i < ROWS; ++i)
    UNROLL for (Index j = 0; j < VECTORS; ++j) {
      vector* const to = (vector*)(c + i * 24 + j * 8);
      *to = adds ? *to + sum[i][j] : sum[i][j];
    }
}

// groups of neighbours along k of a panel b[k][n]; elements past its depth count as 0
static void group_panel(int* groups, const signed char* b, Index depth) {
  typedef int lanes __attribute__((vector_size(32), aligned(4)));
  typedef signed char bytes __attribute__((vector_size(8), aligned(1)));
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
  const Index many = 4;
#else
  const Index many = 2;
#endif
  Index k = 0;
  for (; k + many <= depth; k += many)
    UNROLL for (Index n = 0; n < 24; n += 8) {
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
      const lanes found = (((__builtin_convertvector(*(const bytes*)(b + (k + 0) * 24 + n), lanes) & 255) << 0) | ((__builtin_convertvector(*(const bytes*)(b + (k + 1) * 24 + n), lanes) & 255) << 8) | ((__builtin_convertvector(*(const bytes*)(b + (k + 2) * 24 + n), lanes) & 255) << 16) | ((__builtin_convertvector(*(const bytes*)(b + (k + 3) * 24 + n), lanes) & 255) << 24)) ^ (int)0x80808080;
#else
      const lanes found = (__builtin_convertvector(*(const bytes*)(b + (k + 0) * 24 + n), lanes) & 65535) | (__builtin_convertvector(*(const bytes*)(b + (k + 1) * 24 + n), lanes) << 16);
#endif
      *(lanes*)(groups + k / many * 24 + n) = found;
    }
  if (k == depth) return;
  for (Index n = 0; n < 24; ++n) {
    unsigned last = 0;
    for (Index i = 0; k + i < depth; ++i) {
      const int value = b[(k + i) * 24 + n];
      last |= many == 4 ? (unsigned)((value & 255) ^ 128) << 8 * i : (unsigned)(value & 65535) << 16 * i;
    }
    groups[k / many * 24 + n] = (int)last;
  }
}

// sums[i] = sum of a[i][k] over k < depth
static void sum_rows(int* sums, const signed char* a, Index rows, Index depth) {
  for (Index i = 0; i < rows; ++i) {
    int sum = 0;
    for (Index k = 0; k < depth; ++k) sum += a[i * 8 + k];
    sums[i] = sum;
  }
}

// target[j * target_step + i] = source[i * source_step + j] for i < rows, j < columns
static void transpose_i32(int* target, Index target_step, const int* source, Index source_step,
    Index rows, Index columns) {
  typedef int vector
    __attribute__((vector_size(32), aligned(4)));
  if ((rows < 8 || columns < 8)) {
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) target[j * target_step + i] = source[i * source_step + j];
    return;
  }
  vector row[8];
  UNROLL for (Index i = 0; i < 8; ++i) row[i] = *(const vector*)(source + i * source_step);
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
  UNROLL for (Index j = 0; j < 8; ++j)
    *(vector*)(target + j * target_step) = row[j];
}

// One block.
static void gemm_block(const gemm_arguments& given, long long block, char* scratch) {
  const signed char* const A = given.A;
  const signed char* const B = given.B;
  int* const C = given.C;
  const Index M = given.M;
  const Index A_stride0 = given.A_stride0;
  const Index K = given.K;
  const Index N = given.N;
  const Index B_stride0 = given.B_stride0;
  const Index C_stride1 = given.C_stride1;
  const Index m = block % ((M + 12) / 16);
  const Index n = block / ((M + 12) / 16);
  signed char* const sA = (signed char*)(scratch + 0);
  signed char* const sB = (signed char*)(scratch + 128);
  int* const acc = (int*)(scratch + 320);
  if ((K + 4) / 8 < 1) {
    // test_text.py:46: acc = 0
    INDEPENDENT
    for (Index e = 0; e < 96 * within(-4*m + (M / 4), 4); ++e) {
      const int acc_e = 0;
      acc[e] = acc_e;
    }
  }
  const Index k_end = (K + 4) / 8;
  for (Index k = 0; k < k_end; ++k) {
    // test_text.py:48: sA = A.tile((16, 8), (m, k))
    {
      const Index limit0 = within(-16*m + M, 16);
      const Index limit1 = within(-8*k + K, 8);
      for (Index i0 = 0; i0 < limit0; ++i0) {
        if (limit1 == 8) {
          INDEPENDENT
          for (Index i1 = 0; i1 < 8; ++i1) {
            sA[8*i0 + i1] = A[16*A_stride0*m + 8*k + A_stride0*i0 + i1];
          }
        }
        else {
          INDEPENDENT
          for (Index i1 = 0; i1 < limit1; ++i1) {
            sA[8*i0 + i1] = A[16*A_stride0*m + 8*k + A_stride0*i0 + i1];
          }
        }
      }
    }
    // test_text.py:53: acc += sA * sB
    {
      const Index m_needed = within(-16*m + M, 16);
      const Index m_panels = (m_needed + 3) / 4;
      const Index n_needed = within(-24*n + N, 24);
      const Index n_panels = (n_needed + 23) / 24;
      const Index depth = within(-8*k + K, 8);
      __attribute__((aligned(64))) int row_sums[16];
      __attribute__((aligned(64))) int groups[96];
      sum_rows(row_sums, sA + 0, m_panels * 4, depth);
      for (Index n_panel = 0; n_panel < n_panels; ++n_panel) {
        {
          // test_text.py:49: a panel of sB = B.tile((24, 8), (n, k))
          {
            const Index limit1 = within(-8*k + K, 8);
            const Index inside0 = within(-24*n - 24*n_panel + N, 24);
            if (inside0 < 24) {
              for (Index i1 = 0; i1 < limit1; ++i1) {
                INDEPENDENT
                for (Index i0 = 0; i0 < 24; ++i0) sB[24*i1 + i0] = 0;
              }
            }
            for (Index i1 = 0; i1 < limit1; ++i1) {
              if (inside0 == 24) {
                if (B_stride0 == 2) {
                  INDEPENDENT
                  for (Index i0 = 0; i0 < 24; ++i0) {
                    sB[24*i1 + i0] = B[48*n + 48*n_panel + 8*k + 2*i0 + i1];
                  }
                }
                else {
                  INDEPENDENT
                  for (Index i0 = 0; i0 < 24; ++i0) {
                    sB[24*i1 + i0] =
                        B[24*B_stride0*n + 24*B_stride0*n_panel + 8*k + B_stride0*i0 + i1];
                  }
                }
              }
              else {
                INDEPENDENT
                for (Index i0 = 0; i0 < inside0; ++i0) {
                  sB[24*i1 + i0] =
                      B[24*B_stride0*n + 24*B_stride0*n_panel + 8*k + B_stride0*i0 + i1];
                }
              }
            }
          }
        }
        group_panel(groups, sB + 0, depth);
        const Index ahead = n_panel + 1 < n_panels ? 24 : 0;
        const Index share = (ahead + m_panels - 1) / m_panels;
        for (Index m_panel = 0; m_panel < m_panels; ++m_panel) {
          for (Index row = m_panel * share; row < within((m_panel + 1) * share, ahead); ++row) {
            __builtin_prefetch(B + 24*B_stride0*n + 24*B_stride0*n_panel + 24*B_stride0 + 8*k
                + B_stride0*row + 7);
          }
          if (m_needed - (4*m_panel) <= 1) {
            if (n_needed - (24*n_panel) <= 16) {
              multiply_bytes<1,2>(sA + 32*m_panel, groups, acc + 96*m_panel + 24*n_panel, depth,
                  !(k == 0), row_sums + 4*m_panel);
            }
            else {
              multiply_bytes<1,3>(sA + 32*m_panel, groups, acc + 96*m_panel + 24*n_panel, depth,
                  !(k == 0), row_sums + 4*m_panel);
            }
          }
          else {
            if (m_needed - (4*m_panel) <= 2) {
              if (n_needed - (24*n_panel) <= 16) {
                multiply_bytes<2,2>(sA + 32*m_panel, groups, acc + 96*m_panel + 24*n_panel, depth,
                    !(k == 0), row_sums + 4*m_panel);
              }
              else {
                multiply_bytes<2,3>(sA + 32*m_panel, groups, acc + 96*m_panel + 24*n_panel, depth,
                    !(k == 0), row_sums + 4*m_panel);
              }
            }
            else {
              if (m_needed - (4*m_panel) <= 3) {
                if (n_needed - (24*n_panel) <= 16) {
                  multiply_bytes<3,2>(sA + 32*m_panel, groups, acc + 96*m_panel + 24*n_panel,
                      depth, !(k == 0), row_sums + 4*m_panel);
                }
                else {
                  multiply_bytes<3,3>(sA + 32*m_panel, groups, acc + 96*m_panel + 24*n_panel,
                      depth, !(k == 0), row_sums + 4*m_panel);
                }
              }
              else {
                if (n_needed - (24*n_panel) <= 16) {
                  multiply_bytes<4,2>(sA + 32*m_panel, groups, acc + 96*m_panel + 24*n_panel,
                      depth, !(k == 0), row_sums + 4*m_panel);
                }
                else {
                  multiply_bytes<4,3>(sA + 32*m_panel, groups, acc + 96*m_panel + 24*n_panel,
                      depth, !(k == 0), row_sums + 4*m_panel);
                }
              }
            }
          }
        }
      }
    }
  }
  // test_text.py:55: C.tile((16, 24), (m, n)) = acc
  {
    const Index limit0 = within(-16*m + M, 16);
    const Index limit1 = within(-24*n + N, 24);
    for (Index i0 = 0; i0 < limit0; i0 += 8) {
      for (Index i1 = 0; i1 < limit1; i1 += 8) {
        transpose_i32(C + 24*C_stride1*n + 16*m + C_stride1*i1 + i0, C_stride1, acc + 24*i0 + i1,
            24, within(limit0 - i0, 8), within(limit1 - i1, 8));
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
