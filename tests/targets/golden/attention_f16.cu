struct half_t { unsigned short bits; };

template <class A, class B>
__device__ __forceinline__ auto floor_div(A a, B b) {
  return a / b - (a % b != 0 && a < 0);
}

template <class A, class B>
__device__ __forceinline__ auto floor_mod(A a, B b) {
  return (a % b + b) % b;
}

template <class A, class B>
__device__ __forceinline__ decltype(A() + B()) min_int(A a, B b) {
  return a < b ? a : b;
}

template <class A, class B>
__device__ __forceinline__ decltype(A() + B()) max_int(A a, B b) {
  return a > b ? a : b;
}

__device__ __forceinline__ half_t float_to_half(float x) {
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

__device__ __forceinline__ float fast_exp2(float x) {
  // Within 2 units in the last place; results below the least normal number become 0.
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class T>
__device__ __forceinline__ T max_or_nan(T a, T b) {
  return a > b || a != a ? a : b;
}
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

template <class T>
__device__ __forceinline__ T negated(T x) {
  x.bits ^= 1u << (8 * sizeof(x.bits) - 1);  // the sign
  return x;
}

template <class Word>
__device__ __forceinline__ Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
}

template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool exists = true) {
  // Reads no byte and writes zeros where the source does not exist.
  const unsigned shared = __cvta_generic_to_shared(to);
  const unsigned long long global = __cvta_generic_to_global(from);
  const int read = exists ? bytes : 0;
  if (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared), "l"(global), "r"(read) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(shared), "l"(global), "n"(bytes), "r"(read) : "memory");
  }
}

__device__ __forceinline__ void async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int pending>
__device__ __forceinline__ void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(void* to, const void* from) {
  unsigned* r = (unsigned*)to;
  const unsigned shared = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(void* to, const void* from) {
  unsigned* r = (unsigned*)to;
  const unsigned shared = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void mma_m16n8k16_f16(float* c, const void* a, const void* b) {
  const unsigned* x = (const unsigned*)a;
  const unsigned* y = (const unsigned*)b;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]),
                 "r"(y[0]), "r"(y[1]));
}

// - sQ re-laid out: swizzle<3, 3, 3>
// - sK re-laid out: swizzle<3, 3, 3>
// - sV re-laid out: swizzle<3, 3, 3>
extern "C" __global__ void __launch_bounds__(128) attention(
    const half_t* Q, const half_t* K, const half_t* V, half_t* O, float scale, int B, int Q_stride0,
    int H, int Q_stride1, int M, int Q_stride2, int D, int K_stride0, int K_stride1, int N,
    int K_stride2, int V_stride0, int V_stride1, int V_stride2, int O_stride0, int O_stride1,
    int O_stride2, int shift) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of (M + 112) / 128
  const int h = blockIdx.y;  // of H
  const int b = blockIdx.z;  // of B
  extern __shared__ __align__(128) unsigned char shared_memory[];
  // 09_attention.py:32: sQ: f16 128x64
  half_t* const sQ = (half_t*)shared_memory;
  // 09_attention.py:33: sK: f16 2x64x64
  half_t* const sK = (half_t*)(shared_memory + 16384);
  // 09_attention.py:34: sV: f16 2x64x64
  half_t* const sV = (half_t*)(shared_memory + 32768);
  const int m_1 = ((M + 112) / 128) - m - 1;
  const int count = (min_int(N, max_int(128*m_1 + shift + 128, 0)) + 63) / 64;
  // 09_attention.py:45: K[b, h].tile((64, 64), (0, 0)) -> sK[0], 16 bytes at a time, in the background
  {
    const int row = tid / 8;
    const int col = 8*(tid % 8);
    const half_t* from = K + K_stride0*b + K_stride1*h + K_stride2*row + col;
    const bool inside = col < D;
    half_t* to = sK + 64*row + ((8*(row % 8)) ^ col);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_async<16>(to + 1024*i, from + 16*K_stride2*i, inside && 16*i + row < N);
    }
  }
  // 09_attention.py:45: V[b, h].tile((64, 64), (0, 0)) -> sV[0], 16 bytes at a time, in the background
  {
    const int row = tid / 8;
    const int col = 8*(tid % 8);
    const half_t* from = V + V_stride0*b + V_stride1*h + V_stride2*row + col;
    const bool inside = col < D;
    half_t* to = sV + 64*row + ((8*(row % 8)) ^ col);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_async<16>(to + 1024*i, from + 16*V_stride2*i, inside && 16*i + row < N);
    }
  }
  // 09_attention.py:49: close the group of copies
  async_commit();
  // 09_attention.py:51: query: f16 128x64, 64 per thread
  __align__(16) half_t query[64];
  // 09_attention.py:51: Q[b, h].tile((128, 64), (m_1, 0)) -> query, 16 bytes at a time
  {
    const int row = tid / 8;
    const int col = 8*(tid % 8);
    const half_t* from = Q + (128*m_1 + row)*Q_stride2 + Q_stride0*b + Q_stride1*h + col;
    const bool inside = 0 < m_1 + 1 && col < D;
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
      *(uint4*)&query[8*i] =
          load_if<uint4>(inside && 128*m_1 + 16*i + row < M, from + 16*Q_stride2*i);
    }
  }
  // 09_attention.py:52: less = less(scale, 0)
  const bool less = scale < 0.0f;
  // 09_attention.py:52: neg = neg(query)
  half_t neg[64];
  #pragma unroll
  for (int i = 0; i < 64; ++i) neg[i] = negated(query[i]);
  // 09_attention.py:52: select = select(less, neg, query)
  __align__(16) half_t select[64];
  #pragma unroll
  for (int i = 0; i < 64; ++i) select[i] = less ? neg[i] : query[i];
  // 09_attention.py:52: select -> sQ, 16 bytes at a time
  {
    const int row = tid / 8;
    const int col = 8*(tid % 8);
    half_t* to = sQ + 64*row + ((8*(row % 8)) ^ col);
    #pragma unroll
    for (int i = 0; i < 8; ++i) *(uint4*)(to + 1024*i) = *(const uint4*)&select[8*i];
  }
  // 09_attention.py:53: abs = abs(scale)
  const float abs_1 = fabsf(scale);
  // 09_attention.py:53: add = add(abs, 1e-30)
  const float add = abs_1 + 1e-30f;
  // 09_attention.py:53: exponent = mul(add, 1.4426950408889634)
  const float exponent = add * 1.4426950408889634f;
  // 09_attention.py:54: acc: f32 128x64, 64 per thread
  float acc[64] = {};
  // 09_attention.py:55: largest: f32 128x1, 4 per thread
  float largest[4];
  #pragma unroll
  for (int i = 0; i < 4; ++i) largest[i] = (-3.4028234663852886e+38f);
  // 09_attention.py:56: total: f32 128x1, 4 per thread
  float total[4] = {};
  for (int j = 0; j < count; ++j) {
    // 09_attention.py:58: wait until at most 0 groups are unfinished
    async_wait<0>();
    // 09_attention.py:59: barrier
    __syncthreads();
    if (j + 1 < count) {
      // 09_attention.py:45: K[b, h].tile((64, 64), (j + 1, 0)) -> sK[(j + 1) % 2], 16 bytes at a time, in the background
      {
        const int row = tid / 8;
        const int col = 8*(tid % 8);
        const half_t* from = K + (64*j + row + 64)*K_stride2 + K_stride0*b + K_stride1*h + col;
        const bool inside = col < D;
        half_t* to = sK + 4096*((j + 1) % 2) + 64*row + ((8*(row % 8)) ^ col);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          copy_async<16>(to + 1024*i, from + 16*K_stride2*i, inside && 64*j + 16*i + row + 64 < N);
        }
      }
      // 09_attention.py:45: V[b, h].tile((64, 64), (j + 1, 0)) -> sV[(j + 1) % 2], 16 bytes at a time, in the background
      {
        const int row = tid / 8;
        const int col = 8*(tid % 8);
        const half_t* from = V + (64*j + row + 64)*V_stride2 + V_stride0*b + V_stride1*h + col;
        const bool inside = col < D;
        half_t* to = sV + 4096*((j + 1) % 2) + 64*row + ((8*(row % 8)) ^ col);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          copy_async<16>(to + 1024*i, from + 16*V_stride2*i, inside && 64*j + 16*i + row + 64 < N);
        }
      }
    }
    // 09_attention.py:63: close the group of copies
    async_commit();
    // 09_attention.py:64: scores: f32 128x64, 64 per thread
    float scores[64] = {};
    #pragma unroll
    for (int k_step = 0; k_step < 4; ++k_step) {
      // 09_attention.py:65: sQ_frag: f16 128x16, 16 per thread
      __align__(4) half_t sQ_frag[16];
      // 09_attention.py:65: sQ_step -> sQ_frag, 4 matrices at a time
      {
        const int row = 32*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row + ((8*(row % 8)) ^ col);
        const half_t* from = sQ + ((16*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 2; ++i) ldmatrix_x4(&sQ_frag[8*i], from + 1024*i);
      }
      // 09_attention.py:65: sK_frag: f16 64x16, 32 per thread
      __align__(4) half_t sK_frag[32];
      // 09_attention.py:65: sK_step -> sK_frag, 4 matrices at a time
      {
        const int row = 8*((tid / 16) % 2) + (tid % 8);
        const int col = 8*((tid / 8) % 2);
        const int start = 4096*(j % 2) + 64*row + ((8*(row % 8)) ^ col);
        const half_t* from = sK + ((16*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 4; ++i) ldmatrix_x4(&sK_frag[8*i], from + 1024*i);
      }
      // 09_attention.py:65: scores += sQ_frag * sK_frag, by mma.m16n8k16.f32.f16
      #pragma unroll
      for (int j_1 = 0; j_1 < 8; ++j_1) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma_m16n8k16_f16(&scores[8*j_1 + 4*i], &sQ_frag[8*i], &sK_frag[4*j_1]);
        }
      }
    }
    if (N < 64*j + 64) {
      // 09_attention.py:67: at = coordinates along 1
      int at[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) at[i] = 8*(i / 8) + 2*(tid % 4) + (i % 2);
      // 09_attention.py:67: there = less(at, -64*j + N)
      bool there[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) there[i] = at[i] < (-64*j + N);
      // 09_attention.py:68: select_1 = select(there, scores, -inf)
      float select_1[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) select_1[i] = there[i] ? scores[i] : -__int_as_float(0x7f800000);
      // 09_attention.py:68: select_1 -> scores
      #pragma unroll
      for (int i = 0; i < 64; ++i) scores[i] = select_1[i];
    }
    if (128*m_1 + shift + 1 < 64*j + 64) {
      // 09_attention.py:71: at_1 = coordinates along 1
      int at_1[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) at_1[i] = 8*(i / 8) + 2*(tid % 4) + (i % 2);
      // 09_attention.py:71: sub = sub(at_1, 2*min(max(64*m_1 - 32*j + (shift // 2), -65), 33) + (shift % 2))
      int sub[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) {
        sub[i] =
            (int)((unsigned)at_1[i] - (2*min_int(max_int(64*m_1 - 32*j + floor_div(shift, 2), -65),
            33) + floor_mod(shift, 2)));
      }
      // 09_attention.py:71: at_2 = coordinates along 0
      int at_2[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) at_2[i] = 32*(tid / 32) + 8*((i / 2) % 4) + ((tid / 4) % 8);
      // 09_attention.py:71: less_equal = less_equal(sub, at_2)
      bool less_equal[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) less_equal[i] = sub[i] <= at_2[i];
      // 09_attention.py:71: select_2 = select(less_equal, scores, -inf)
      float select_2[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) {
        select_2[i] = less_equal[i] ? scores[i] : -__int_as_float(0x7f800000);
      }
      // 09_attention.py:71: select_2 -> scores
      #pragma unroll
      for (int i = 0; i < 64; ++i) scores[i] = select_2[i];
    }
    // 09_attention.py:73: scores_max = max of scores along 1
    float scores_max[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      float total_1 = scores[2*i];
      #pragma unroll
      for (int j_1 = 1; j_1 < 16; ++j_1) {
        total_1 = max_or_nan(total_1, scores[8*(j_1 / 2) + 2*i + (j_1 % 2)]);
      }
      total_1 = max_or_nan(total_1, __shfl_xor_sync(0xffffffff, total_1, 1));
      total_1 = max_or_nan(total_1, __shfl_xor_sync(0xffffffff, total_1, 2));
      scores_max[i] = total_1;
    }
    // 09_attention.py:73: highest = max(largest, scores_max)
    float highest[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) highest[i] = max_or_nan(largest[i], scores_max[i]);
    // 09_attention.py:74: sub_1 = sub(scores, highest)
    float sub_1[64];
    #pragma unroll
    for (int i = 0; i < 64; ++i) sub_1[i] = scores[i] - highest[(i / 2) % 4];
    // 09_attention.py:74: mul = mul(sub_1, exponent)
    float mul[64];
    #pragma unroll
    for (int i = 0; i < 64; ++i) mul[i] = sub_1[i] * exponent;
    // 09_attention.py:74: weights = exp2(mul)
    float weights[64];
    #pragma unroll
    for (int i = 0; i < 64; ++i) weights[i] = fast_exp2(mul[i]);
    // 09_attention.py:75: sub_2 = sub(largest, highest)
    float sub_2[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) sub_2[i] = largest[i] - highest[i];
    // 09_attention.py:75: mul_1 = mul(sub_2, exponent)
    float mul_1[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) mul_1[i] = sub_2[i] * exponent;
    // 09_attention.py:75: decay = exp2(mul_1)
    float decay[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) decay[i] = fast_exp2(mul_1[i]);
    // 09_attention.py:76: weights_sum = sum of weights along 1
    float weights_sum[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      float total_1 = weights[2*i];
      #pragma unroll
      for (int j_1 = 1; j_1 < 16; ++j_1) total_1 = total_1 + weights[8*(j_1 / 2) + 2*i + (j_1 % 2)];
      total_1 = total_1 + __shfl_xor_sync(0xffffffff, total_1, 1);
      total_1 = total_1 + __shfl_xor_sync(0xffffffff, total_1, 2);
      weights_sum[i] = total_1;
    }
    // 09_attention.py:76: fma = fma(total, decay, weights_sum)
    float fma_1[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) fma_1[i] = fmaf(total[i], decay[i], weights_sum[i]);
    // 09_attention.py:76: fma -> total
    #pragma unroll
    for (int i = 0; i < 4; ++i) total[i] = fma_1[i];
    // 09_attention.py:77: highest -> largest
    #pragma unroll
    for (int i = 0; i < 4; ++i) largest[i] = highest[i];
    // 09_attention.py:78: mul_2 = mul(acc, decay)
    float mul_2[64];
    #pragma unroll
    for (int i = 0; i < 64; ++i) mul_2[i] = acc[i] * decay[(i / 2) % 4];
    // 09_attention.py:78: mul_2 -> acc
    #pragma unroll
    for (int i = 0; i < 64; ++i) acc[i] = mul_2[i];
    // 09_attention.py:79: convert = convert(weights)
    half_t convert[64];
    #pragma unroll
    for (int i = 0; i < 64; ++i) convert[i] = float_to_half(weights[i]);
    // 09_attention.py:79: operand = convert[0:128, 0:64]
    half_t operand[64];
    #pragma unroll
    for (int i = 0; i < 64; ++i) {
      operand[i] = convert[16*(i / 16) + 8*((i / 4) % 2) + 4*((i / 8) % 2) + (i % 4)];
    }
    #pragma unroll
    for (int k_step_1 = 0; k_step_1 < 4; ++k_step_1) {
      // 09_attention.py:80: operand_frag = operand[0:128, 16*k_step_1:16*k_step_1 + 16]
      __align__(4) half_t operand_frag[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) operand_frag[i] = operand[16*k_step_1 + i];
      // 09_attention.py:80: sV_frag: f16 64x16, 32 per thread
      __align__(4) half_t sV_frag[32];
      // 09_attention.py:80: sV_step -> sV_frag, 4 matrices at a time
      {
        const int row = 8*((tid / 16) % 2);
        const int col = tid % 16;
        const int start = 4096*(j % 2) + 1024*k_step_1 + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 4; ++i) ldmatrix_x4_trans(&sV_frag[8*i], sV + ((16*i) ^ start));
      }
      // 09_attention.py:80: acc += operand_frag * sV_frag, by mma.m16n8k16.f32.f16
      #pragma unroll
      for (int j_1 = 0; j_1 < 8; ++j_1) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma_m16n8k16_f16(&acc[8*j_1 + 4*i], &operand_frag[8*i], &sV_frag[4*j_1]);
        }
      }
    }
  }
  // 09_attention.py:81: equal = equal(total, 0)
  bool equal[4];
  #pragma unroll
  for (int i = 0; i < 4; ++i) equal[i] = total[i] == 0.0f;
  // 09_attention.py:81: div = div(1, total)
  float div[4];
  #pragma unroll
  for (int i = 0; i < 4; ++i) div[i] = 1.0f / total[i];
  // 09_attention.py:81: mul_3 = mul(acc, div)
  float mul_3[64];
  #pragma unroll
  for (int i = 0; i < 64; ++i) mul_3[i] = acc[i] * div[(i / 2) % 4];
  // 09_attention.py:81: select_3 = select(equal, 0.0, mul_3)
  float select_3[64];
  #pragma unroll
  for (int i = 0; i < 64; ++i) select_3[i] = equal[(i / 2) % 4] ? 0.0f : mul_3[i];
  // 09_attention.py:81: select_3 -> O[b, h].tile((128, 64), (m_1, 0)), 4 bytes at a time
  {
    const int row = 32*(tid / 32) + ((tid / 4) % 8);
    const int col = 2*(tid % 4);
    half_t* to = O + (128*m_1 + row)*O_stride2 + O_stride0*b + O_stride1*h + col;
    const bool inside = 0 < m_1 + 1;
    #pragma unroll
    for (int j_1 = 0; j_1 < 8; ++j_1) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        __align__(4) half_t packed[2];
        #pragma unroll
        for (int e = 0; e < 2; ++e) packed[e] = float_to_half(select_3[8*j_1 + 2*i + e]);
        if (inside && 128*m_1 + 8*i + row < M && 8*j_1 + col < D) {
          *(unsigned*)(to + 8*O_stride2*i + 8*j_1) = *(const unsigned*)packed;
        }
      }
    }
  }
}
