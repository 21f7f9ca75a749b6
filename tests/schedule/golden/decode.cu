struct half_t { unsigned short bits; };

template <class A, class B>
__device__ __forceinline__ auto floor_div(A a, B b) {
  return a / b - (a % b != 0 && a < 0);
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

__device__ __forceinline__ int take_ticket_of(unsigned* counter, unsigned of) {
  int old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(old) : "l"((unsigned long long)__cvta_generic_to_global(counter)), "r"(of - 1) : "memory");
  return old;
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

// - sQ re-laid out: swizzle<3, 3, 4>
// - sK re-laid out: swizzle<3, 3, 4>
// - sV re-laid out: swizzle<3, 3, 4>
// - sK, sV, states_2 share the same bytes of shared memory: a barrier separates their uses
// - sQ, states, states_1, number, number_3 share the same bytes of shared memory: a barrier separates their uses
// - 102400 bytes of shared memory instead of 202260
extern "C" __global__ void __launch_bounds__(32, 1) attention(
    const half_t* Q, const half_t* K, const half_t* V, half_t* O, float scale, float* partial_state,
    float* partial_state_1, float* partial_state_2, unsigned* arrived, unsigned* arrived_near,
    int M, int Q_stride0, int D, int N, int K_stride0, int V_stride0, int E, int O_stride0,
    int parts) {
  const int tid = threadIdx.x;
  const int rest = blockIdx.x;  // of ((E + 120) / 128)*((M + 15) / 16)*parts
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const int part = rest % parts;
  const int tile = rest / parts;
  const int index = tile % ((M + 15) / 16);
  const int rest_1 = tile / ((M + 15) / 16);
  const int index_1 = rest_1 % ((E + 120) / 128);
  const int index_2 = ((M + 15) / 16) - index - 1;
  // 18_loops_with_a_state.py:45 stages: sQ: f16 1x16x128
  half_t* const sQ = (half_t*)(shared_memory + 98304);
  // 18_loops_with_a_state.py:45 stages: sK: f16 3x64x128
  half_t* const sK = (half_t*)shared_memory;
  // 18_loops_with_a_state.py:45 stages: sV: f16 3x64x128
  half_t* const sV = (half_t*)(shared_memory + 49152);
  // 18_loops_with_a_state.py:45 staging: tile_1 -> target, 16 bytes at a time, in the background
  {
    const int row = tid / 16;
    const int col = 8*(tid % 16);
    const half_t* from = Q + (16*index_2 + row)*Q_stride0 + col;
    const bool inside = 0 < index_2 + 1 && col < D;
    const int start = 128*row + ((8*row) ^ col);
    #pragma unroll
    for (int i_4 = 0; i_4 < 8; ++i_4) {
      copy_async<16>(sQ + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*Q_stride0*i_4, inside
          && 16*index_2 + 2*i_4 + row < M);
    }
  }
  // 18_loops_with_a_state.py:45 tile: top: f32 16x1, 2 per thread
  float top[2];
  // 18_loops_with_a_state.py:45 tile: top = -1e+38
  #pragma unroll
  for (int i_4 = 0; i_4 < 2; ++i_4) top[i_4] = (-1e+38f);
  // 18_loops_with_a_state.py:45 tile: total: f32 16x1, 2 per thread
  float total[2];
  // 18_loops_with_a_state.py:45 tile: total = 0
  #pragma unroll
  for (int i_4 = 0; i_4 < 2; ++i_4) total[i_4] = 0.0f;
  // 18_loops_with_a_state.py:45 tile: out: f32 16x128, 64 per thread
  __align__(8) float out[64];
  // 18_loops_with_a_state.py:45 tile: out = 0
  #pragma unroll
  for (int i_4 = 0; i_4 < 64; ++i_4) out[i_4] = 0.0f;
  // 18_loops_with_a_state.py:45 reduction: states: f32 12x16x1
  float* const states = (float*)(shared_memory + 98304);
  // 18_loops_with_a_state.py:45 reduction: states_1: f32 12x16x1
  float* const states_1 = (float*)(shared_memory + 99072);
  // 18_loops_with_a_state.py:45 reduction: states_2: f32 12x16x2x8x4x2
  float* const states_2 = (float*)shared_memory;
  const int count = (min_int(N, max_int(min_int(16*index_2 + 16, M), 0)) + 63) / 64;
  const int each = count / parts;
  const int more = count % parts;
  const int own = min_int(max_int(more - part, 0), 1) + each;
  const int index_3 = min_int(part, more) + each*part;
  if (0 < own) {
    if (64*index_3 + 64 < N + 1) {
      // 18_loops_with_a_state.py:45 staging: tile_2 -> target_1, 16 bytes at a time, in the background
      {
        const int row = tid / 16;
        const int col = 8*(tid % 16);
        const half_t* from = K + (64*index_3 + row)*K_stride0 + col;
        const bool inside = col < D;
        const int start = 8192*(index_3 % 3) + 128*row + ((8*row) ^ col);
        #pragma unroll
        for (int i_4 = 0; i_4 < 32; ++i_4) {
          copy_async<16>(sK + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*K_stride0*i_4, inside);
        }
      }
    }
    else {
      // 18_loops_with_a_state.py:45 staging: tile_3 -> target_1, 16 bytes at a time, in the background
      {
        const int row = tid / 16;
        const int col = 8*(tid % 16);
        const half_t* from = K + (64*index_3 + row)*K_stride0 + col;
        const bool inside = col < D;
        const int start = 8192*(index_3 % 3) + 128*row + ((8*row) ^ col);
        #pragma unroll
        for (int i_4 = 0; i_4 < 32; ++i_4) {
          copy_async<16>(sK + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*K_stride0*i_4, inside
              && 64*index_3 + 2*i_4 + row < N);
        }
      }
    }
    if (64*index_3 + 64 < N + 1) {
      // 18_loops_with_a_state.py:45 staging: tile_4 -> target_2, 16 bytes at a time, in the background
      {
        const int row = tid / 16;
        const int col = 8*(tid % 16);
        const half_t* from = V + 128*index_1 + (64*index_3 + row)*V_stride0 + col;
        const bool inside = 128*index_1 + col < E;
        const int start = 8192*(index_3 % 3) + 128*row + ((8*row) ^ col);
        #pragma unroll
        for (int i_4 = 0; i_4 < 32; ++i_4) {
          copy_async<16>(sV + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*V_stride0*i_4, inside);
        }
      }
    }
    else {
      // 18_loops_with_a_state.py:45 staging: tile_5 -> target_2, 16 bytes at a time, in the background
      {
        const int row = tid / 16;
        const int col = 8*(tid % 16);
        const half_t* from = V + 128*index_1 + (64*index_3 + row)*V_stride0 + col;
        const bool inside = 128*index_1 + col < E;
        const int start = 8192*(index_3 % 3) + 128*row + ((8*row) ^ col);
        #pragma unroll
        for (int i_4 = 0; i_4 < 32; ++i_4) {
          copy_async<16>(sV + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*V_stride0*i_4, inside
              && 64*index_3 + 2*i_4 + row < N);
        }
      }
    }
  }
  // 18_loops_with_a_state.py:45 staging: close the group of copies
  async_commit();
  if (1 < own) {
    if (64*index_3 + 128 < N + 1) {
      // 18_loops_with_a_state.py:45 staging: tile_6 -> target_3, 16 bytes at a time, in the background
      {
        const int row = tid / 16;
        const int col = 8*(tid % 16);
        const half_t* from = K + (64*index_3 + row + 64)*K_stride0 + col;
        const bool inside = col < D;
        const int start = 8192*((index_3 + 1) % 3) + 128*row + ((8*row) ^ col);
        #pragma unroll
        for (int i_4 = 0; i_4 < 32; ++i_4) {
          copy_async<16>(sK + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*K_stride0*i_4, inside);
        }
      }
    }
    else {
      // 18_loops_with_a_state.py:45 staging: tile_7 -> target_3, 16 bytes at a time, in the background
      {
        const int row = tid / 16;
        const int col = 8*(tid % 16);
        const half_t* from = K + (64*index_3 + row + 64)*K_stride0 + col;
        const bool inside = col < D;
        const int start = 8192*((index_3 + 1) % 3) + 128*row + ((8*row) ^ col);
        #pragma unroll
        for (int i_4 = 0; i_4 < 32; ++i_4) {
          copy_async<16>(sK + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*K_stride0*i_4, inside
              && 64*index_3 + 2*i_4 + row + 64 < N);
        }
      }
    }
    if (64*index_3 + 128 < N + 1) {
      // 18_loops_with_a_state.py:45 staging: tile_8 -> target_4, 16 bytes at a time, in the background
      {
        const int row = tid / 16;
        const int col = 8*(tid % 16);
        const half_t* from = V + 128*index_1 + (64*index_3 + row + 64)*V_stride0 + col;
        const bool inside = 128*index_1 + col < E;
        const int start = 8192*((index_3 + 1) % 3) + 128*row + ((8*row) ^ col);
        #pragma unroll
        for (int i_4 = 0; i_4 < 32; ++i_4) {
          copy_async<16>(sV + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*V_stride0*i_4, inside);
        }
      }
    }
    else {
      // 18_loops_with_a_state.py:45 staging: tile_9 -> target_4, 16 bytes at a time, in the background
      {
        const int row = tid / 16;
        const int col = 8*(tid % 16);
        const half_t* from = V + 128*index_1 + (64*index_3 + row + 64)*V_stride0 + col;
        const bool inside = 128*index_1 + col < E;
        const int start = 8192*((index_3 + 1) % 3) + 128*row + ((8*row) ^ col);
        #pragma unroll
        for (int i_4 = 0; i_4 < 32; ++i_4) {
          copy_async<16>(sV + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*V_stride0*i_4, inside
              && 64*index_3 + 2*i_4 + row + 64 < N);
        }
      }
    }
  }
  // 18_loops_with_a_state.py:45 staging: close the group of copies
  async_commit();
  for (int k = 0; k < own; ++k) {
    // 18_loops_with_a_state.py:45 stages: wait until at most 1 groups are unfinished
    async_wait<1>();
    // 18_loops_with_a_state.py:45 stages: barrier
    __syncthreads();
    if (k + 2 < own) {
      if (64*index_3 + 64*k + 192 < N + 1) {
        // 18_loops_with_a_state.py:45 staging: tile_10 -> target_5, 16 bytes at a time, in the background
        {
          const int row = tid / 16;
          const int col = 8*(tid % 16);
          const half_t* from = K + (64*index_3 + 64*k + row + 128)*K_stride0 + col;
          const bool inside = col < D;
          const int start = 8192*((index_3 + k + 2) % 3) + 128*row + ((8*row) ^ col);
          #pragma unroll
          for (int i_4 = 0; i_4 < 32; ++i_4) {
            copy_async<16>(sK + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*K_stride0*i_4, inside);
          }
        }
      }
      else {
        // 18_loops_with_a_state.py:45 staging: tile_11 -> target_5, 16 bytes at a time, in the background
        {
          const int row = tid / 16;
          const int col = 8*(tid % 16);
          const half_t* from = K + (64*index_3 + 64*k + row + 128)*K_stride0 + col;
          const bool inside = col < D;
          const int start = 8192*((index_3 + k + 2) % 3) + 128*row + ((8*row) ^ col);
          #pragma unroll
          for (int i_4 = 0; i_4 < 32; ++i_4) {
            copy_async<16>(sK + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*K_stride0*i_4, inside
                && 64*index_3 + 64*k + 2*i_4 + row + 128 < N);
          }
        }
      }
      if (64*index_3 + 64*k + 192 < N + 1) {
        // 18_loops_with_a_state.py:45 staging: tile_12 -> target_6, 16 bytes at a time, in the background
        {
          const int row = tid / 16;
          const int col = 8*(tid % 16);
          const half_t* from = V + 128*index_1 + (64*index_3 + 64*k + row + 128)*V_stride0 + col;
          const bool inside = 128*index_1 + col < E;
          const int start = 8192*((index_3 + k + 2) % 3) + 128*row + ((8*row) ^ col);
          #pragma unroll
          for (int i_4 = 0; i_4 < 32; ++i_4) {
            copy_async<16>(sV + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*V_stride0*i_4, inside);
          }
        }
      }
      else {
        // 18_loops_with_a_state.py:45 staging: tile_13 -> target_6, 16 bytes at a time, in the background
        {
          const int row = tid / 16;
          const int col = 8*(tid % 16);
          const half_t* from = V + 128*index_1 + (64*index_3 + 64*k + row + 128)*V_stride0 + col;
          const bool inside = 128*index_1 + col < E;
          const int start = 8192*((index_3 + k + 2) % 3) + 128*row + ((8*row) ^ col);
          #pragma unroll
          for (int i_4 = 0; i_4 < 32; ++i_4) {
            copy_async<16>(sV + 256*i_4 + ((16*(i_4 % 4)) ^ start), from + 2*V_stride0*i_4, inside
                && 64*index_3 + 64*k + 2*i_4 + row + 128 < N);
          }
        }
      }
    }
    // 18_loops_with_a_state.py:45 staging: close the group of copies
    async_commit();
    // 18_loops_with_a_state.py:45 atom: scores: f32 16x64, 32 per thread
    float scores[32] = {};
    #pragma unroll
    for (int k_step = 0; k_step < 8; ++k_step) {
      // 18_loops_with_a_state.py:43 atom: sQ_frag: f16 16x16, 8 per thread
      __align__(4) half_t sQ_frag[8];
      // 18_loops_with_a_state.py:43 atom: sQ_step -> sQ_frag, 4 matrices at a time
      {
        const int row = tid % 16;
        const int col = 8*(tid / 16);
        const int start = 128*row + ((8*(row % 8)) ^ col);
        const half_t* from = sQ + ((16*k_step) ^ start);
        ldmatrix_x4(&sQ_frag[0], from);
      }
      // 18_loops_with_a_state.py:43 atom: sK_frag: f16 64x16, 32 per thread
      __align__(4) half_t sK_frag[32];
      // 18_loops_with_a_state.py:43 atom: sK_step -> sK_frag, 4 matrices at a time
      {
        const int row = 8*(tid / 16) + (tid % 8);
        const int col = 8*((tid / 8) % 2);
        const int start = 8192*((index_3 + k) % 3) + 128*row + ((8*(row % 8)) ^ col);
        const half_t* from = sK + ((16*k_step) ^ start);
        #pragma unroll
        for (int i_4 = 0; i_4 < 4; ++i_4) ldmatrix_x4(&sK_frag[8*i_4], from + 2048*i_4);
      }
      // 18_loops_with_a_state.py:43 atom: scores += sQ_frag * sK_frag, by mma.m16n8k16.f32.f16
      #pragma unroll
      for (int j = 0; j < 8; ++j) mma_m16n8k16_f16(&scores[4*j], &sQ_frag[0], &sK_frag[4*j]);
    }
    // 18_loops_with_a_state.py:44 atom: mul = mul(scores, scale)
    float mul[32];
    #pragma unroll
    for (int i_4 = 0; i_4 < 32; ++i_4) mul[i_4] = scores[i_4] * scale;
    if (16*index_2 < 64*index_3 + 64*k + 63) {
      // 18_loops_with_a_state.py:44 atom: at = coordinates along 1
      int at[16];
      #pragma unroll
      for (int i_4 = 0; i_4 < 16; ++i_4) at[i_4] = 8*(i_4 / 2) + 2*(tid % 4) + (i_4 % 2);
      // 18_loops_with_a_state.py:44 atom: add = add(at, 64*index_3 + 64*k)
      int add[16];
      #pragma unroll
      for (int i_4 = 0; i_4 < 16; ++i_4) add[i_4] = (int)((unsigned)at[i_4] + (64*index_3 + 64*k));
      // 18_loops_with_a_state.py:44 atom: at_1 = coordinates along 0
      int at_1[2];
      #pragma unroll
      for (int i_4 = 0; i_4 < 2; ++i_4) at_1[i_4] = 8*i_4 + (tid / 4);
      // 18_loops_with_a_state.py:44 atom: add_1 = add(at_1, 16*index_2)
      int add_1[2];
      #pragma unroll
      for (int i_4 = 0; i_4 < 2; ++i_4) add_1[i_4] = (int)((unsigned)at_1[i_4] + (16*index_2));
      // 18_loops_with_a_state.py:44 atom: at_2 = coordinates along 0
      int at_2[32];
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) at_2[i_4] = 8*((i_4 / 2) % 2) + (tid / 4);
      // 18_loops_with_a_state.py:44 atom: everywhere = less_equal(0, at_2)
      bool everywhere[32];
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) everywhere[i_4] = 0 <= at_2[i_4];
      // 18_loops_with_a_state.py:44 atom: wide = select(everywhere, add, add)
      int wide[32];
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) {
        wide[i_4] = everywhere[i_4] ? add[2*(i_4 / 4) + (i_4 % 2)] : add[2*(i_4 / 4) + (i_4 % 2)];
      }
      // 18_loops_with_a_state.py:44 atom: less_equal = less_equal(wide, add_1)
      bool less_equal[32];
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) less_equal[i_4] = wide[i_4] <= add_1[(i_4 / 2) % 2];
      // 18_loops_with_a_state.py:44 atom: select = select(less_equal, mul, -inf)
      float select[32];
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) {
        select[i_4] = less_equal[i_4] ? mul[i_4] : -__int_as_float(0x7f800000);
      }
      // 18_loops_with_a_state.py:44 atom: select -> mul
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) mul[i_4] = select[i_4];
    }
    if (-64*index_3 - 64*k + N < 64) {
      // 18_loops_with_a_state.py:45 atom: at_3 = coordinates along 1
      int at_3[32];
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) at_3[i_4] = 8*(i_4 / 4) + 2*(tid % 4) + (i_4 % 2);
      // 18_loops_with_a_state.py:45 atom: less = less(at_3, -64*index_3 - 64*k + N)
      bool less[32];
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) less[i_4] = at_3[i_4] < (-64*index_3 - 64*k + N);
      // 18_loops_with_a_state.py:45 atom: select_1 = select(less, mul, -inf)
      float select_1[32];
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) {
        select_1[i_4] = less[i_4] ? mul[i_4] : -__int_as_float(0x7f800000);
      }
      // 18_loops_with_a_state.py:45 atom: select_1 -> mul
      #pragma unroll
      for (int i_4 = 0; i_4 < 32; ++i_4) mul[i_4] = select_1[i_4];
    }
    // 18_loops_with_a_state.py:45 atom: mul_max = max of mul along 1
    float mul_max[2];
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) {
      float total_5 = mul[2*i_4];
      #pragma unroll
      for (int j = 1; j < 16; ++j) total_5 = max_or_nan(total_5, mul[4*(j / 2) + 2*i_4 + (j % 2)]);
      total_5 = max_or_nan(total_5, __shfl_xor_sync(0xffffffff, total_5, 1));
      total_5 = max_or_nan(total_5, __shfl_xor_sync(0xffffffff, total_5, 2));
      mul_max[i_4] = total_5;
    }
    // 18_loops_with_a_state.py:45 atom: max = max(top, mul_max)
    float max_1[2];
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) max_1[i_4] = max_or_nan(top[i_4], mul_max[i_4]);
    // 18_loops_with_a_state.py:46 atom: sub = sub(top, max)
    float sub[2];
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) sub[i_4] = top[i_4] - max_1[i_4];
    // 18_loops_with_a_state.py:46 atom: mul_1 = mul(sub, 1.4426950408889634)
    float mul_1[2];
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) mul_1[i_4] = sub[i_4] * 1.4426950408889634f;
    // 18_loops_with_a_state.py:46 atom: exp2 = exp2(mul_1)
    float exp2_1[2];
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) exp2_1[i_4] = fast_exp2(mul_1[i_4]);
    // 18_loops_with_a_state.py:47 atom: mul_2 = mul(total, exp2)
    float mul_2[2];
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) mul_2[i_4] = total[i_4] * exp2_1[i_4];
    // 18_loops_with_a_state.py:46 atom: sub_1 = sub(mul, max)
    float sub_1[32];
    #pragma unroll
    for (int i_4 = 0; i_4 < 32; ++i_4) sub_1[i_4] = mul[i_4] - max_1[(i_4 / 2) % 2];
    // 18_loops_with_a_state.py:46 atom: mul_3 = mul(sub_1, 1.4426950408889634)
    float mul_3[32];
    #pragma unroll
    for (int i_4 = 0; i_4 < 32; ++i_4) mul_3[i_4] = sub_1[i_4] * 1.4426950408889634f;
    // 18_loops_with_a_state.py:46 atom: exp2_1 = exp2(mul_3)
    float exp2_1_1[32];
    #pragma unroll
    for (int i_4 = 0; i_4 < 32; ++i_4) exp2_1_1[i_4] = fast_exp2(mul_3[i_4]);
    // 18_loops_with_a_state.py:47 atom: exp2_1_sum = sum of exp2_1 along 1
    float exp2_1_sum[2];
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) {
      float total_5 = exp2_1_1[2*i_4];
      #pragma unroll
      for (int j = 1; j < 16; ++j) total_5 = total_5 + exp2_1_1[4*(j / 2) + 2*i_4 + (j % 2)];
      total_5 = total_5 + __shfl_xor_sync(0xffffffff, total_5, 1);
      total_5 = total_5 + __shfl_xor_sync(0xffffffff, total_5, 2);
      exp2_1_sum[i_4] = total_5;
    }
    // 18_loops_with_a_state.py:47 atom: add_2 = add(mul_2, exp2_1_sum)
    float add_2[2];
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) add_2[i_4] = mul_2[i_4] + exp2_1_sum[i_4];
    // 18_loops_with_a_state.py:48 atom: mul_4 = mul(out, exp2)
    float mul_4[64];
    #pragma unroll
    for (int i_4 = 0; i_4 < 64; ++i_4) mul_4[i_4] = out[i_4] * exp2_1[(i_4 / 2) % 2];
    // 18_loops_with_a_state.py:48 atom: convert = convert(exp2_1)
    half_t convert[32];
    #pragma unroll
    for (int i_4 = 0; i_4 < 32; ++i_4) convert[i_4] = float_to_half(exp2_1_1[i_4]);
    // 18_loops_with_a_state.py:48 atom: moved = convert[0:16, 0:64]
    half_t moved[32];
    #pragma unroll
    for (int i_4 = 0; i_4 < 32; ++i_4) moved[i_4] = convert[i_4];
    // 18_loops_with_a_state.py:45 atom: max -> top
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) top[i_4] = max_1[i_4];
    // 18_loops_with_a_state.py:45 atom: add_2 -> total
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) total[i_4] = add_2[i_4];
    // 18_loops_with_a_state.py:45 atom: mul_4 -> out
    #pragma unroll
    for (int i_4 = 0; i_4 < 64; ++i_4) out[i_4] = mul_4[i_4];
    #pragma unroll
    for (int k_step_1 = 0; k_step_1 < 4; ++k_step_1) {
      // 18_loops_with_a_state.py:48 atom: moved_frag = moved[0:16, 16*k_step_1:16*k_step_1 + 16]
      __align__(4) half_t moved_frag[8];
      #pragma unroll
      for (int i_4 = 0; i_4 < 8; ++i_4) moved_frag[i_4] = moved[8*k_step_1 + i_4];
      // 18_loops_with_a_state.py:48 atom: sV_frag: f16 128x16, 64 per thread
      __align__(4) half_t sV_frag[64];
      // 18_loops_with_a_state.py:48 atom: sV_step -> sV_frag, 4 matrices at a time
      {
        const int row = 8*(tid / 16);
        const int col = tid % 16;
        const int start = 8192*((index_3 + k) % 3) + 2048*k_step_1 + 128*col
            + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i_4 = 0; i_4 < 8; ++i_4) {
          ldmatrix_x4_trans(&sV_frag[8*i_4], sV + ((16*i_4) ^ start));
        }
      }
      // 18_loops_with_a_state.py:48 atom: out += moved_frag * sV_frag, by mma.m16n8k16.f32.f16
      #pragma unroll
      for (int j = 0; j < 16; ++j) mma_m16n8k16_f16(&out[4*j], &moved_frag[0], &sV_frag[4*j]);
    }
  }
  long long last = 1;
  // 18_loops_with_a_state.py:45 reduction: wait until at most 0 groups are unfinished
  async_wait<0>();
  // 18_loops_with_a_state.py:45 reduction: barrier
  __syncthreads();
  if (1 < parts) {
    // 18_loops_with_a_state.py:45 reduction: top -> partial_state[parts*tile + part], 4 bytes at a time
    if (tid % 4 == 0) {
      const int row = tid / 4;
      float* to = partial_state + 16*parts*tile + 16*part + row;
      #pragma unroll
      for (int i_4 = 0; i_4 < 2; ++i_4) to[8*i_4] = top[i_4];
    }
    // 18_loops_with_a_state.py:45 reduction: total -> partial_state_1[parts*tile + part], 4 bytes at a time
    if (tid % 4 == 0) {
      const int row = tid / 4;
      float* to = partial_state_1 + 16*parts*tile + 16*part + row;
      #pragma unroll
      for (int i_4 = 0; i_4 < 2; ++i_4) to[8*i_4] = total[i_4];
    }
    // 18_loops_with_a_state.py:45 reduction: out -> ordered_1.merge(1, 3), 8 bytes at a time
    {
      const int row = tid / 4;
      const int col = 2*(tid % 4);
      float* to = partial_state_2 + 2048*parts*tile + 2048*part + 8*row + col;
      #pragma unroll
      for (int j = 0; j < 16; ++j) {
        #pragma unroll
        for (int i_4 = 0; i_4 < 2; ++i_4) {
          *(float2*)(to + 128*j + 64*i_4) = *(const float2*)&out[4*j + 2*i_4];
        }
      }
    }
    long long has_all = 0;
    const int first = 12*(part / 12);
    const int near = min_int(-first + parts, 12);
    // 18_loops_with_a_state.py:45 reduction: number: i32 1
    int* const number = (int*)(shared_memory + 99840);
    // 18_loops_with_a_state.py:45 reduction: barrier
    __syncthreads();
    // 18_loops_with_a_state.py:45 reduction: take a ticket of counter, the last of near resets it
    if (tid == 0) number[0] = take_ticket_of(arrived_near + parts*tile + first, near);
    // 18_loops_with_a_state.py:45 reduction: barrier
    __syncthreads();
    const int number_2 = number[0];
    if (0 < max_int(-near + number_2 + 2, 0)) {
      // 18_loops_with_a_state.py:45 reduction: top_1: f32 16x1, 2 per thread
      float top_1[2];
      // 18_loops_with_a_state.py:45 reduction: top_1 = -1e+38
      #pragma unroll
      for (int i_4 = 0; i_4 < 2; ++i_4) top_1[i_4] = (-1e+38f);
      // 18_loops_with_a_state.py:45 reduction: total_1: f32 16x1, 2 per thread
      float total_1[2];
      // 18_loops_with_a_state.py:45 reduction: total_1 = 0
      #pragma unroll
      for (int i_4 = 0; i_4 < 2; ++i_4) total_1[i_4] = 0.0f;
      // 18_loops_with_a_state.py:45 reduction: out_1: f32 16x128, 64 per thread
      float out_1[64];
      // 18_loops_with_a_state.py:45 reduction: out_1 = 0
      #pragma unroll
      for (int i_4 = 0; i_4 < 64; ++i_4) out_1[i_4] = 0.0f;
      // 18_loops_with_a_state.py:45 reduction: top_1 -> top
      #pragma unroll
      for (int i_4 = 0; i_4 < 2; ++i_4) top[i_4] = top_1[i_4];
      // 18_loops_with_a_state.py:45 reduction: total_1 -> total
      #pragma unroll
      for (int i_4 = 0; i_4 < 2; ++i_4) total[i_4] = total_1[i_4];
      // 18_loops_with_a_state.py:45 reduction: out_1 -> out
      #pragma unroll
      for (int i_4 = 0; i_4 < 64; ++i_4) out[i_4] = out_1[i_4];
      const int turn_end = floor_div((near + 11), 12);
      for (int turn = 0; turn < turn_end; ++turn) {
        const int begin = 12*turn;
        const int here = -begin + near;
        for (int i = 0; i < here; ++i) {
          // 18_loops_with_a_state.py:45 reduction: partial_state[parts*tile + begin + first + i].merge(0) -> states[i].merge(0), 4 bytes at a time, in the background
          if (tid < 16) {
            const float* from = partial_state + 16*parts*tile + 16*begin + 16*first + 16*i + tid;
            float* to = states + 16*i + tid;
            copy_async<4>(to, from);
          }
          // 18_loops_with_a_state.py:45 reduction: partial_state_1[parts*tile + begin + first + i].merge(0) -> states_1[i].merge(0), 4 bytes at a time, in the background
          if (tid < 16) {
            const float* from = partial_state_1 + 16*parts*tile + 16*begin + 16*first + 16*i + tid;
            float* to = states_1 + 16*i + tid;
            copy_async<4>(to, from);
          }
          // 18_loops_with_a_state.py:45 reduction: partial_state_2[parts*tile + begin + first + i].merge(0, 5) -> states_2[i].merge(0, 5), 16 bytes at a time, in the background
          {
            const int at_4 = 4*tid;
            const float* from = partial_state_2 + 2048*parts*tile + 2048*begin + 2048*first
                + 2048*i + at_4;
            float* to = states_2 + 2048*i + at_4;
            #pragma unroll
            for (int i_4 = 0; i_4 < 16; ++i_4) copy_async<16>(to + 128*i_4, from + 128*i_4);
          }
        }
        // 18_loops_with_a_state.py:45 reduction: close the group of copies
        async_commit();
        // 18_loops_with_a_state.py:45 reduction: wait until at most 0 groups are unfinished
        async_wait<0>();
        // 18_loops_with_a_state.py:45 reduction: barrier
        __syncthreads();
        for (int i_1 = 0; i_1 < here; ++i_1) {
          // 18_loops_with_a_state.py:45 reduction: top_2: f32 16x1, 2 per thread
          float top_2[2];
          // 18_loops_with_a_state.py:45 reduction: top_2 = -1e+38
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) top_2[i_4] = (-1e+38f);
          // 18_loops_with_a_state.py:45 reduction: total_2: f32 16x1, 2 per thread
          float total_2[2];
          // 18_loops_with_a_state.py:45 reduction: total_2 = 0
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) total_2[i_4] = 0.0f;
          // 18_loops_with_a_state.py:45 reduction: out_2: f32 16x128, 64 per thread
          __align__(8) float out_2[64];
          // 18_loops_with_a_state.py:45 reduction: out_2 = 0
          #pragma unroll
          for (int i_4 = 0; i_4 < 64; ++i_4) out_2[i_4] = 0.0f;
          // 18_loops_with_a_state.py:45 reduction: states[i_1] -> top_2, 4 bytes at a time
          {
            const int row = tid / 4;
            const float* from = states + 16*i_1 + row;
            #pragma unroll
            for (int i_4 = 0; i_4 < 2; ++i_4) top_2[i_4] = from[8*i_4];
          }
          // 18_loops_with_a_state.py:45 reduction: states_1[i_1] -> total_2, 4 bytes at a time
          {
            const int row = tid / 4;
            const float* from = states_1 + 16*i_1 + row;
            #pragma unroll
            for (int i_4 = 0; i_4 < 2; ++i_4) total_2[i_4] = from[8*i_4];
          }
          // 18_loops_with_a_state.py:45 reduction: ordered_3.merge(1, 3) -> out_2, 8 bytes at a time
          {
            const int row = tid / 4;
            const int col = 2*(tid % 4);
            const float* from = states_2 + 2048*i_1 + 8*row + col;
            #pragma unroll
            for (int j = 0; j < 16; ++j) {
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) {
                *(uint2*)&out_2[4*j + 2*i_4] = *(const uint2*)(from + 128*j + 64*i_4);
              }
            }
          }
          // 18_loops_with_a_state.py:45 reduction: max_1 = max(top, top_2)
          float max_1_1[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) max_1_1[i_4] = max_or_nan(top[i_4], top_2[i_4]);
          // 18_loops_with_a_state.py:45 reduction: equal = equal(top, max_1)
          bool equal[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) equal[i_4] = top[i_4] == max_1_1[i_4];
          // 18_loops_with_a_state.py:46 reduction: sub_2 = sub(top, max_1)
          float sub_2[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) sub_2[i_4] = top[i_4] - max_1_1[i_4];
          // 18_loops_with_a_state.py:46 reduction: mul_5 = mul(sub_2, 1.4426950408889634)
          float mul_5[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) mul_5[i_4] = sub_2[i_4] * 1.4426950408889634f;
          // 18_loops_with_a_state.py:46 reduction: exp2_2 = exp2(mul_5)
          float exp2_2[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) exp2_2[i_4] = fast_exp2(mul_5[i_4]);
          // 18_loops_with_a_state.py:45 reduction: keep = select(equal, 1.0, exp2_2)
          float keep[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) keep[i_4] = equal[i_4] ? 1.0f : exp2_2[i_4];
          // 18_loops_with_a_state.py:45 reduction: term = mul(total, keep)
          float term[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) term[i_4] = total[i_4] * keep[i_4];
          // 18_loops_with_a_state.py:45 reduction: equal_1 = equal(top_2, max_1)
          bool equal_1[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) equal_1[i_4] = top_2[i_4] == max_1_1[i_4];
          // 18_loops_with_a_state.py:46 reduction: sub_3 = sub(top_2, max_1)
          float sub_3[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) sub_3[i_4] = top_2[i_4] - max_1_1[i_4];
          // 18_loops_with_a_state.py:46 reduction: mul_6 = mul(sub_3, 1.4426950408889634)
          float mul_6[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) mul_6[i_4] = sub_3[i_4] * 1.4426950408889634f;
          // 18_loops_with_a_state.py:46 reduction: exp2_3 = exp2(mul_6)
          float exp2_3[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) exp2_3[i_4] = fast_exp2(mul_6[i_4]);
          // 18_loops_with_a_state.py:45 reduction: keep_1 = select(equal_1, 1.0, exp2_3)
          float keep_1[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) keep_1[i_4] = equal_1[i_4] ? 1.0f : exp2_3[i_4];
          // 18_loops_with_a_state.py:45 reduction: term_1 = mul(total_2, keep_1)
          float term_1[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) term_1[i_4] = total_2[i_4] * keep_1[i_4];
          // 18_loops_with_a_state.py:45 reduction: add_3 = add(term, term_1)
          float add_3[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) add_3[i_4] = term[i_4] + term_1[i_4];
          // 18_loops_with_a_state.py:45 reduction: equal_2 = equal(top, max_1)
          bool equal_2[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) equal_2[i_4] = top[i_4] == max_1_1[i_4];
          // 18_loops_with_a_state.py:46 reduction: sub_4 = sub(top, max_1)
          float sub_4[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) sub_4[i_4] = top[i_4] - max_1_1[i_4];
          // 18_loops_with_a_state.py:46 reduction: mul_7 = mul(sub_4, 1.4426950408889634)
          float mul_7[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) mul_7[i_4] = sub_4[i_4] * 1.4426950408889634f;
          // 18_loops_with_a_state.py:46 reduction: exp2_4 = exp2(mul_7)
          float exp2_4[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) exp2_4[i_4] = fast_exp2(mul_7[i_4]);
          // 18_loops_with_a_state.py:45 reduction: keep_2 = select(equal_2, 1.0, exp2_4)
          float keep_2[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) keep_2[i_4] = equal_2[i_4] ? 1.0f : exp2_4[i_4];
          // 18_loops_with_a_state.py:45 reduction: term_2 = mul(out, keep_2)
          float term_2[64];
          #pragma unroll
          for (int i_4 = 0; i_4 < 64; ++i_4) term_2[i_4] = out[i_4] * keep_2[(i_4 / 2) % 2];
          // 18_loops_with_a_state.py:45 reduction: equal_3 = equal(top_2, max_1)
          bool equal_3[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) equal_3[i_4] = top_2[i_4] == max_1_1[i_4];
          // 18_loops_with_a_state.py:46 reduction: sub_5 = sub(top_2, max_1)
          float sub_5[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) sub_5[i_4] = top_2[i_4] - max_1_1[i_4];
          // 18_loops_with_a_state.py:46 reduction: mul_8 = mul(sub_5, 1.4426950408889634)
          float mul_8[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) mul_8[i_4] = sub_5[i_4] * 1.4426950408889634f;
          // 18_loops_with_a_state.py:46 reduction: exp2_5 = exp2(mul_8)
          float exp2_5[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) exp2_5[i_4] = fast_exp2(mul_8[i_4]);
          // 18_loops_with_a_state.py:45 reduction: keep_3 = select(equal_3, 1.0, exp2_5)
          float keep_3[2];
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) keep_3[i_4] = equal_3[i_4] ? 1.0f : exp2_5[i_4];
          // 18_loops_with_a_state.py:45 reduction: term_3 = mul(out_2, keep_3)
          float term_3[64];
          #pragma unroll
          for (int i_4 = 0; i_4 < 64; ++i_4) term_3[i_4] = out_2[i_4] * keep_3[(i_4 / 2) % 2];
          // 18_loops_with_a_state.py:45 reduction: add_4 = add(term_2, term_3)
          float add_4[64];
          #pragma unroll
          for (int i_4 = 0; i_4 < 64; ++i_4) add_4[i_4] = term_2[i_4] + term_3[i_4];
          // 18_loops_with_a_state.py:45 reduction: max_1 -> top
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) top[i_4] = max_1_1[i_4];
          // 18_loops_with_a_state.py:45 reduction: add_3 -> total
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) total[i_4] = add_3[i_4];
          // 18_loops_with_a_state.py:45 reduction: add_4 -> out
          #pragma unroll
          for (int i_4 = 0; i_4 < 64; ++i_4) out[i_4] = add_4[i_4];
        }
        // 18_loops_with_a_state.py:45 reduction: barrier
        __syncthreads();
      }
      has_all = 1;
      if (12 < parts) {
        // 18_loops_with_a_state.py:45 reduction: barrier of each warp
        __syncwarp();
        // 18_loops_with_a_state.py:45 reduction: top -> partial_state[parts*tile + first], 4 bytes at a time
        if (tid % 4 == 0) {
          const int row = tid / 4;
          float* to = partial_state + 16*parts*tile + 16*first + row;
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) to[8*i_4] = top[i_4];
        }
        // 18_loops_with_a_state.py:45 reduction: total -> partial_state_1[parts*tile + first], 4 bytes at a time
        if (tid % 4 == 0) {
          const int row = tid / 4;
          float* to = partial_state_1 + 16*parts*tile + 16*first + row;
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) to[8*i_4] = total[i_4];
        }
        // 18_loops_with_a_state.py:45 reduction: out -> ordered_5.merge(1, 3), 8 bytes at a time
        {
          const int row = tid / 4;
          const int col = 2*(tid % 4);
          float* to = partial_state_2 + 2048*parts*tile + 2048*first + 8*row + col;
          #pragma unroll
          for (int j = 0; j < 16; ++j) {
            #pragma unroll
            for (int i_4 = 0; i_4 < 2; ++i_4) {
              *(float2*)(to + 128*j + 64*i_4) = *(const float2*)&out[4*j + 2*i_4];
            }
          }
        }
        const int count_1 = (parts + 11) / 12;
        // 18_loops_with_a_state.py:45 reduction: number_3: i32 1
        int* const number_3 = (int*)(shared_memory + 99856);
        // 18_loops_with_a_state.py:45 reduction: barrier
        __syncthreads();
        // 18_loops_with_a_state.py:45 reduction: take a ticket of arrived[tile, 0], the last of count_1 resets it
        if (tid == 0) number_3[0] = take_ticket_of(arrived + tile, count_1);
        // 18_loops_with_a_state.py:45 reduction: barrier
        __syncthreads();
        const int number_5 = number_3[0];
        has_all = max_int(-count_1 + number_5 + 2, 0);
        if (0 < max_int(-count_1 + number_5 + 2, 0)) {
          // 18_loops_with_a_state.py:45 reduction: top_3: f32 16x1, 2 per thread
          float top_3[2];
          // 18_loops_with_a_state.py:45 reduction: top_3 = -1e+38
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) top_3[i_4] = (-1e+38f);
          // 18_loops_with_a_state.py:45 reduction: total_3: f32 16x1, 2 per thread
          float total_3[2];
          // 18_loops_with_a_state.py:45 reduction: total_3 = 0
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) total_3[i_4] = 0.0f;
          // 18_loops_with_a_state.py:45 reduction: out_3: f32 16x128, 64 per thread
          float out_3[64];
          // 18_loops_with_a_state.py:45 reduction: out_3 = 0
          #pragma unroll
          for (int i_4 = 0; i_4 < 64; ++i_4) out_3[i_4] = 0.0f;
          // 18_loops_with_a_state.py:45 reduction: top_3 -> top
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) top[i_4] = top_3[i_4];
          // 18_loops_with_a_state.py:45 reduction: total_3 -> total
          #pragma unroll
          for (int i_4 = 0; i_4 < 2; ++i_4) total[i_4] = total_3[i_4];
          // 18_loops_with_a_state.py:45 reduction: out_3 -> out
          #pragma unroll
          for (int i_4 = 0; i_4 < 64; ++i_4) out[i_4] = out_3[i_4];
          const int turn_1_end = (count_1 + 11) / 12;
          for (int turn_1 = 0; turn_1 < turn_1_end; ++turn_1) {
            const int begin_1 = 12*turn_1;
            const int here_1 = min_int(-begin_1 + count_1, 12);
            for (int i_2 = 0; i_2 < here_1; ++i_2) {
              // 18_loops_with_a_state.py:45 reduction: partial_state[12*begin_1 + 12*i_2 + parts*tile].merge(0) -> states[i_2].merge(0), 4 bytes at a time, in the background
              if (tid < 16) {
                const float* from = partial_state + 192*begin_1 + 192*i_2 + 16*parts*tile + tid;
                float* to = states + 16*i_2 + tid;
                copy_async<4>(to, from);
              }
              // 18_loops_with_a_state.py:45 reduction: partial_state_1[12*begin_1 + 12*i_2 + parts*tile].merge(0) -> states_1[i_2].merge(0), 4 bytes at a time, in the background
              if (tid < 16) {
                const float* from = partial_state_1 + 192*begin_1 + 192*i_2 + 16*parts*tile + tid;
                float* to = states_1 + 16*i_2 + tid;
                copy_async<4>(to, from);
              }
              // 18_loops_with_a_state.py:45 reduction: partial_state_2_merged_3 -> states_2[i_2].merge(0, 5), 16 bytes at a time, in the background
              {
                const int at_4 = 4*tid;
                const float* from = partial_state_2 + 24576*begin_1 + 24576*i_2 + 2048*parts*tile
                    + at_4;
                float* to = states_2 + 2048*i_2 + at_4;
                #pragma unroll
                for (int i_4 = 0; i_4 < 16; ++i_4) copy_async<16>(to + 128*i_4, from + 128*i_4);
              }
            }
            // 18_loops_with_a_state.py:45 reduction: close the group of copies
            async_commit();
            // 18_loops_with_a_state.py:45 reduction: wait until at most 0 groups are unfinished
            async_wait<0>();
            // 18_loops_with_a_state.py:45 reduction: barrier
            __syncthreads();
            for (int i_3 = 0; i_3 < here_1; ++i_3) {
              // 18_loops_with_a_state.py:45 reduction: top_4: f32 16x1, 2 per thread
              float top_4[2];
              // 18_loops_with_a_state.py:45 reduction: top_4 = -1e+38
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) top_4[i_4] = (-1e+38f);
              // 18_loops_with_a_state.py:45 reduction: total_4: f32 16x1, 2 per thread
              float total_4[2];
              // 18_loops_with_a_state.py:45 reduction: total_4 = 0
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) total_4[i_4] = 0.0f;
              // 18_loops_with_a_state.py:45 reduction: out_4: f32 16x128, 64 per thread
              __align__(8) float out_4[64];
              // 18_loops_with_a_state.py:45 reduction: out_4 = 0
              #pragma unroll
              for (int i_4 = 0; i_4 < 64; ++i_4) out_4[i_4] = 0.0f;
              // 18_loops_with_a_state.py:45 reduction: states[i_3] -> top_4, 4 bytes at a time
              {
                const int row = tid / 4;
                const float* from = states + 16*i_3 + row;
                #pragma unroll
                for (int i_4 = 0; i_4 < 2; ++i_4) top_4[i_4] = from[8*i_4];
              }
              // 18_loops_with_a_state.py:45 reduction: states_1[i_3] -> total_4, 4 bytes at a time
              {
                const int row = tid / 4;
                const float* from = states_1 + 16*i_3 + row;
                #pragma unroll
                for (int i_4 = 0; i_4 < 2; ++i_4) total_4[i_4] = from[8*i_4];
              }
              // 18_loops_with_a_state.py:45 reduction: ordered_7.merge(1, 3) -> out_4, 8 bytes at a time
              {
                const int row = tid / 4;
                const int col = 2*(tid % 4);
                const float* from = states_2 + 2048*i_3 + 8*row + col;
                #pragma unroll
                for (int j = 0; j < 16; ++j) {
                  #pragma unroll
                  for (int i_4 = 0; i_4 < 2; ++i_4) {
                    *(uint2*)&out_4[4*j + 2*i_4] = *(const uint2*)(from + 128*j + 64*i_4);
                  }
                }
              }
              // 18_loops_with_a_state.py:45 reduction: max_2 = max(top, top_4)
              float max_2[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) max_2[i_4] = max_or_nan(top[i_4], top_4[i_4]);
              // 18_loops_with_a_state.py:45 reduction: equal_4 = equal(top, max_2)
              bool equal_4[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) equal_4[i_4] = top[i_4] == max_2[i_4];
              // 18_loops_with_a_state.py:46 reduction: sub_6 = sub(top, max_2)
              float sub_6[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) sub_6[i_4] = top[i_4] - max_2[i_4];
              // 18_loops_with_a_state.py:46 reduction: mul_9 = mul(sub_6, 1.4426950408889634)
              float mul_9[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) mul_9[i_4] = sub_6[i_4] * 1.4426950408889634f;
              // 18_loops_with_a_state.py:46 reduction: exp2_6 = exp2(mul_9)
              float exp2_6[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) exp2_6[i_4] = fast_exp2(mul_9[i_4]);
              // 18_loops_with_a_state.py:45 reduction: keep_4 = select(equal_4, 1.0, exp2_6)
              float keep_4[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) keep_4[i_4] = equal_4[i_4] ? 1.0f : exp2_6[i_4];
              // 18_loops_with_a_state.py:45 reduction: term_4 = mul(total, keep_4)
              float term_4[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) term_4[i_4] = total[i_4] * keep_4[i_4];
              // 18_loops_with_a_state.py:45 reduction: equal_5 = equal(top_4, max_2)
              bool equal_5[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) equal_5[i_4] = top_4[i_4] == max_2[i_4];
              // 18_loops_with_a_state.py:46 reduction: sub_7 = sub(top_4, max_2)
              float sub_7[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) sub_7[i_4] = top_4[i_4] - max_2[i_4];
              // 18_loops_with_a_state.py:46 reduction: mul_10 = mul(sub_7, 1.4426950408889634)
              float mul_10[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) mul_10[i_4] = sub_7[i_4] * 1.4426950408889634f;
              // 18_loops_with_a_state.py:46 reduction: exp2_7 = exp2(mul_10)
              float exp2_7[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) exp2_7[i_4] = fast_exp2(mul_10[i_4]);
              // 18_loops_with_a_state.py:45 reduction: keep_5 = select(equal_5, 1.0, exp2_7)
              float keep_5[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) keep_5[i_4] = equal_5[i_4] ? 1.0f : exp2_7[i_4];
              // 18_loops_with_a_state.py:45 reduction: term_5 = mul(total_4, keep_5)
              float term_5[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) term_5[i_4] = total_4[i_4] * keep_5[i_4];
              // 18_loops_with_a_state.py:45 reduction: add_5 = add(term_4, term_5)
              float add_5[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) add_5[i_4] = term_4[i_4] + term_5[i_4];
              // 18_loops_with_a_state.py:45 reduction: equal_6 = equal(top, max_2)
              bool equal_6[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) equal_6[i_4] = top[i_4] == max_2[i_4];
              // 18_loops_with_a_state.py:46 reduction: sub_8 = sub(top, max_2)
              float sub_8[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) sub_8[i_4] = top[i_4] - max_2[i_4];
              // 18_loops_with_a_state.py:46 reduction: mul_11 = mul(sub_8, 1.4426950408889634)
              float mul_11[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) mul_11[i_4] = sub_8[i_4] * 1.4426950408889634f;
              // 18_loops_with_a_state.py:46 reduction: exp2_8 = exp2(mul_11)
              float exp2_8[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) exp2_8[i_4] = fast_exp2(mul_11[i_4]);
              // 18_loops_with_a_state.py:45 reduction: keep_6 = select(equal_6, 1.0, exp2_8)
              float keep_6[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) keep_6[i_4] = equal_6[i_4] ? 1.0f : exp2_8[i_4];
              // 18_loops_with_a_state.py:45 reduction: term_6 = mul(out, keep_6)
              float term_6[64];
              #pragma unroll
              for (int i_4 = 0; i_4 < 64; ++i_4) term_6[i_4] = out[i_4] * keep_6[(i_4 / 2) % 2];
              // 18_loops_with_a_state.py:45 reduction: equal_7 = equal(top_4, max_2)
              bool equal_7[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) equal_7[i_4] = top_4[i_4] == max_2[i_4];
              // 18_loops_with_a_state.py:46 reduction: sub_9 = sub(top_4, max_2)
              float sub_9[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) sub_9[i_4] = top_4[i_4] - max_2[i_4];
              // 18_loops_with_a_state.py:46 reduction: mul_12 = mul(sub_9, 1.4426950408889634)
              float mul_12[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) mul_12[i_4] = sub_9[i_4] * 1.4426950408889634f;
              // 18_loops_with_a_state.py:46 reduction: exp2_9 = exp2(mul_12)
              float exp2_9[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) exp2_9[i_4] = fast_exp2(mul_12[i_4]);
              // 18_loops_with_a_state.py:45 reduction: keep_7 = select(equal_7, 1.0, exp2_9)
              float keep_7[2];
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) keep_7[i_4] = equal_7[i_4] ? 1.0f : exp2_9[i_4];
              // 18_loops_with_a_state.py:45 reduction: term_7 = mul(out_4, keep_7)
              float term_7[64];
              #pragma unroll
              for (int i_4 = 0; i_4 < 64; ++i_4) term_7[i_4] = out_4[i_4] * keep_7[(i_4 / 2) % 2];
              // 18_loops_with_a_state.py:45 reduction: add_6 = add(term_6, term_7)
              float add_6[64];
              #pragma unroll
              for (int i_4 = 0; i_4 < 64; ++i_4) add_6[i_4] = term_6[i_4] + term_7[i_4];
              // 18_loops_with_a_state.py:45 reduction: max_2 -> top
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) top[i_4] = max_2[i_4];
              // 18_loops_with_a_state.py:45 reduction: add_5 -> total
              #pragma unroll
              for (int i_4 = 0; i_4 < 2; ++i_4) total[i_4] = add_5[i_4];
              // 18_loops_with_a_state.py:45 reduction: add_6 -> out
              #pragma unroll
              for (int i_4 = 0; i_4 < 64; ++i_4) out[i_4] = add_6[i_4];
            }
            // 18_loops_with_a_state.py:45 reduction: barrier
            __syncthreads();
          }
        }
      }
    }
    const long long has_all_now = has_all;
    last = has_all_now;
  }
  const long long last_now = last;
  if (0 < last_now) {
    // 18_loops_with_a_state.py:50 epilogue: div = div(out, total)
    float div[64];
    #pragma unroll
    for (int i_4 = 0; i_4 < 64; ++i_4) div[i_4] = out[i_4] / total[(i_4 / 2) % 2];
    // 18_loops_with_a_state.py:50 epilogue: div -> tile_17, 4 bytes at a time
    {
      const int row = tid / 4;
      const int col = 2*(tid % 4);
      half_t* to = O + 128*index_1 + (16*index_2 + row)*O_stride0 + col;
      const bool inside = 0 < index_2 + 1;
      #pragma unroll
      for (int j = 0; j < 16; ++j) {
        #pragma unroll
        for (int i_4 = 0; i_4 < 2; ++i_4) {
          __align__(4) half_t packed[2];
          #pragma unroll
          for (int e = 0; e < 2; ++e) packed[e] = float_to_half(div[4*j + 2*i_4 + e]);
          if (inside && 16*index_2 + 8*i_4 + row < M && 128*index_1 + 8*j + col < E) {
            *(unsigned*)(to + 8*O_stride0*i_4 + 8*j) = *(const unsigned*)packed;
          }
        }
      }
    }
  }
}
