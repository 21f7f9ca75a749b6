struct half_t { unsigned short bits; };

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

__device__ __forceinline__ void stmatrix_x4(void* to, const void* from) {
  const unsigned* r = (const unsigned*)from;
  const unsigned shared = __cvta_generic_to_shared(to);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(shared), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

typedef unsigned long long mbarrier_t;

__device__ __forceinline__ void mbarrier_init(mbarrier_t* barrier, int stages, int arrivals) {
  for (int i = 0; i < stages; ++i) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(barrier + i)), "r"(arrivals));
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(mbarrier_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect(mbarrier_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(mbarrier_t* barrier, int parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra over;\n"
               "bra again;\n"
               "over:\n"
               "}" ::"r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity) : "memory");
}

struct __align__(64) tensor_map_t { unsigned long long opaque[16]; };

__device__ __forceinline__ void tma_load_2d(const tensor_map_t* map, void* to, mbarrier_t* barrier, int x0, int x1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4}], [%2];"
               ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(map), "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(x0), "r"(x1) : "memory");
}

__device__ __forceinline__ void tma_store_2d(const tensor_map_t* map, const void* from, int x0, int x1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
               ::"l"(map), "r"((unsigned)__cvta_generic_to_shared(from)), "r"(x0), "r"(x1) : "memory");
}

__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <int pending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

typedef unsigned long long descriptor_t;

__device__ __forceinline__ descriptor_t descriptor(const void* tile) {
  // Rows of 128 bytes under the 128-byte swizzle; 8 rows are 1024 bytes.
  const descriptor_t start = ((unsigned)__cvta_generic_to_shared(tile) & 0x3ffff) >> 4;
  return start | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ descriptor_t descriptor_of_panels(const void* tile, int panel_bytes) {
  // Rows of 128 bytes along M or N, one for each k; the next 64 elements lie in another panel.
  const descriptor_t start = ((unsigned)__cvta_generic_to_shared(tile) & 0x3ffff) >> 4;
  return start | (descriptor_t)(panel_bytes >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(0xffffffff, x, 0);
}

__device__ __forceinline__ void mma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int pending>
__device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

template <int count>
__device__ __forceinline__ void set_registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
__device__ __forceinline__ void set_registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

template <int threads>
__device__ __forceinline__ void role_barrier_of_group(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

__device__ __forceinline__ void wgmma_m64n128k16_f16_or_fresh(float* d, descriptor_t a, descriptor_t b, int adds) {
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, adds, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void wgmma_m64n128k16_f16_registers_n(float* d, const void* a, descriptor_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(((const unsigned*)a)[0]), "r"(((const unsigned*)a)[1]), "r"(((const unsigned*)a)[2]), "r"(((const unsigned*)a)[3]), "l"(b));
}

extern "C" __global__ void __launch_bounds__(384, 1) attention(
    float scale, int M, int D, int N, int E, int made, int made_1, int derived, int made_2,
    int made_3, int made_4, int made_5, const __grid_constant__ tensor_map_t K_map,
    const __grid_constant__ tensor_map_t Q_map, const __grid_constant__ tensor_map_t V_map,
    const __grid_constant__ tensor_map_t O_map) {
  const int tid = threadIdx.x;
  const int block_m = blockIdx.x;  // of derived
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  // 18_loops_with_a_state.py:45 stages: sQ: f16 2x2x64x64
  half_t* const sQ = (half_t*)shared_memory;
  // 18_loops_with_a_state.py:45 stages: mbarrier: 2 barriers of 1 arrivals
  mbarrier_t* const mbarrier = (mbarrier_t*)(shared_memory + 32768);
  if (tid == 0) mbarrier_init(mbarrier, 2, 1);
  // 18_loops_with_a_state.py:45 stages: mbarrier_1: 2 barriers of 4 arrivals
  mbarrier_t* const mbarrier_1 = (mbarrier_t*)(shared_memory + 32784);
  if (tid == 0) mbarrier_init(mbarrier_1, 2, 4);
  // 18_loops_with_a_state.py:45 stages: sK: f16 2x2x128x64
  half_t* const sK = (half_t*)(shared_memory + 33792);
  // 18_loops_with_a_state.py:45 stages: mbarrier_2: 2 barriers of 1 arrivals
  mbarrier_t* const mbarrier_2 = (mbarrier_t*)(shared_memory + 99328);
  if (tid == 0) mbarrier_init(mbarrier_2, 2, 1);
  // 18_loops_with_a_state.py:45 stages: mbarrier_3: 2 barriers of 8 arrivals
  mbarrier_t* const mbarrier_3 = (mbarrier_t*)(shared_memory + 99344);
  if (tid == 0) mbarrier_init(mbarrier_3, 2, 8);
  // 18_loops_with_a_state.py:45 stages: sV: f16 2x2x128x64
  half_t* const sV = (half_t*)(shared_memory + 100352);
  // 18_loops_with_a_state.py:45 stages: mbarrier_4: 2 barriers of 1 arrivals
  mbarrier_t* const mbarrier_4 = (mbarrier_t*)(shared_memory + 165888);
  if (tid == 0) mbarrier_init(mbarrier_4, 2, 1);
  // 18_loops_with_a_state.py:45 stages: mbarrier_5: 2 barriers of 8 arrivals
  mbarrier_t* const mbarrier_5 = (mbarrier_t*)(shared_memory + 165904);
  if (tid == 0) mbarrier_init(mbarrier_5, 2, 8);
  // 18_loops_with_a_state.py:45 stages: sOut: f16 2x2x64x64
  half_t* const sOut = (half_t*)(shared_memory + 166912);
  // 18_loops_with_a_state.py:45 stages: barrier
  __syncthreads();
  // 18_loops_with_a_state.py:45 roles: warps 0 to 3
  if (tid < 128) {
    set_registers_down<40>();
    // 18_loops_with_a_state.py:45 roles: warp 0
    if (tid < 32) {
      long long done = 0;
      long long taken = 0;
      for (int number = 0; number < made_3; ++number) {
        const int band = number / made_2;
        const int turn = number % made_2;
        const int within =
            min_int(max_int(-(2*block_m - derived + 1)*((band + turn) % 2) + block_m, 0)
            + derived*turn, 1073741823);
        if (within < made) {
          const int tile = max_int(made - within - 1, 0);
          const long long taken_now = taken;
          const int parity = max_int(min_int(taken_now, 1), 0);
          const long long done_now = done;
          const int before = max_int(min_int(done_now, 3), 0);
          const int count = (min_int(N, min_int(128*tile + 128, M)) + 127) / 128;
          for (int k = 0; k < count; ++k) {
            const int index_1 = (before + k) % 2;
            const int index_2 = ((before + k) / 2) % 2;
            // 18_loops_with_a_state.py:45 staging: wait for mbarrier_3
            mbarrier_wait(mbarrier_3 + index_1, -index_2 + 1);
            // 18_loops_with_a_state.py:45 staging: mbarrier_2 waits for 32768 bytes
            if (tid == 0) {
              mbarrier_arrive_expect(mbarrier_2 + index_1, 32768);
              // 18_loops_with_a_state.py:45 staging: source -> held[0], by TMA
              tma_load_2d(&K_map, sK + 16384*index_1, mbarrier_2 + index_1, 0, 128*k);
              // 18_loops_with_a_state.py:45 staging: source_1 -> held[1], by TMA
              tma_load_2d(&K_map, sK + 16384*index_1 + 8192, mbarrier_2 + index_1, 64, 128*k);
            }
            if (k == 0) {
              // 18_loops_with_a_state.py:45 staging: wait for mbarrier_1
              mbarrier_wait(mbarrier_1, -parity + 1);
              // 18_loops_with_a_state.py:45 staging: mbarrier waits for 16384 bytes
              if (tid == 0) {
                mbarrier_arrive_expect(mbarrier, 16384);
                // 18_loops_with_a_state.py:45 staging: source_2 -> held_1[0], by TMA
                tma_load_2d(&Q_map, sQ, mbarrier, 0, 128*tile);
                // 18_loops_with_a_state.py:45 staging: source_3 -> held_1[1], by TMA
                tma_load_2d(&Q_map, sQ + 4096, mbarrier, 64, 128*tile);
              }
              // 18_loops_with_a_state.py:45 staging: wait for mbarrier_1
              mbarrier_wait(mbarrier_1 + 1, -parity + 1);
              // 18_loops_with_a_state.py:45 staging: mbarrier waits for 16384 bytes
              if (tid == 0) {
                mbarrier_arrive_expect(mbarrier + 1, 16384);
                // 18_loops_with_a_state.py:45 staging: source_4 -> held_2[0], by TMA
                tma_load_2d(&Q_map, sQ + 8192, mbarrier + 1, 0, 128*tile + 64);
                // 18_loops_with_a_state.py:45 staging: source_5 -> held_2[1], by TMA
                tma_load_2d(&Q_map, sQ + 12288, mbarrier + 1, 64, 128*tile + 64);
              }
            }
            const int index_3 = (before + k) % 2;
            const int index_4 = ((before + k) / 2) % 2;
            // 18_loops_with_a_state.py:45 staging: wait for mbarrier_5
            mbarrier_wait(mbarrier_5 + index_3, -index_4 + 1);
            // 18_loops_with_a_state.py:45 staging: mbarrier_4 waits for 32768 bytes
            if (tid == 0) {
              mbarrier_arrive_expect(mbarrier_4 + index_3, 32768);
              // 18_loops_with_a_state.py:45 staging: source_6 -> held_3[0], by TMA
              tma_load_2d(&V_map, sV + 16384*index_3, mbarrier_4 + index_3, 0, 128*k);
              // 18_loops_with_a_state.py:45 staging: source_7 -> held_3[1], by TMA
              tma_load_2d(&V_map, sV + 16384*index_3 + 8192, mbarrier_4 + index_3, 64, 128*k);
            }
          }
          if (count == 0) {
            // 18_loops_with_a_state.py:45 roles: wait for mbarrier_1
            mbarrier_wait(mbarrier_1, -parity + 1);
            // 18_loops_with_a_state.py:45 roles: mbarrier waits for 16384 bytes
            if (tid == 0) {
              mbarrier_arrive_expect(mbarrier, 16384);
              // 18_loops_with_a_state.py:45 roles: source_8 -> held_4[0], by TMA
              tma_load_2d(&Q_map, sQ, mbarrier, 0, 128*tile);
              // 18_loops_with_a_state.py:45 roles: source_9 -> held_4[1], by TMA
              tma_load_2d(&Q_map, sQ + 4096, mbarrier, 64, 128*tile);
            }
            // 18_loops_with_a_state.py:45 roles: wait for mbarrier_1
            mbarrier_wait(mbarrier_1 + 1, -parity + 1);
            // 18_loops_with_a_state.py:45 roles: mbarrier waits for 16384 bytes
            if (tid == 0) {
              mbarrier_arrive_expect(mbarrier + 1, 16384);
              // 18_loops_with_a_state.py:45 roles: source_10 -> held_5[0], by TMA
              tma_load_2d(&Q_map, sQ + 8192, mbarrier + 1, 0, 128*tile + 64);
              // 18_loops_with_a_state.py:45 roles: source_11 -> held_5[1], by TMA
              tma_load_2d(&Q_map, sQ + 12288, mbarrier + 1, 64, 128*tile + 64);
            }
          }
          done = (before + count) % 4;
          taken = -parity + 1;
        }
      }
    }
  }
  // 18_loops_with_a_state.py:45 roles: warps 4 to 11, in 2 groups
  else {
    set_registers_up<232>();
    const int own = uniform((threadIdx.x - 128) / 128);
    const int tid = threadIdx.x - (128*own + 128);
    long long done_1 = 0;
    long long taken_1 = 0;
    __builtin_assume(0 < made_5);
    for (int number_1 = 0; number_1 < made_5; ++number_1) {
      const int band_1 = number_1 / made_4;
      const int turn_1 = number_1 % made_4;
      const int within_1 =
          min_int(max_int(-(2*block_m - derived + 1)*((band_1 + turn_1) % 2) + block_m, 0)
          + derived*turn_1, 1073741823);
      if (within_1 < made) {
        const int tile_1 = max_int(made - within_1 - 1, 0);
        const long long taken_1_now = taken_1;
        const int parity_1 = max_int(min_int(taken_1_now, 1), 0);
        const long long done_1_now = done_1;
        const int before_1 = max_int(min_int(done_1_now, 3), 0);
        const int count_1 = (min_int(N, min_int(128*tile_1 + 128, M)) + 127) / 128;
        const int index_6 = 2*tile_1 + own;
        // 18_loops_with_a_state.py:45 roles: filled: f32 64x1, 2 per thread
        float filled[2];
        // 18_loops_with_a_state.py:45 roles: filled = -1e+38
        #pragma unroll
        for (int i = 0; i < 2; ++i) filled[i] = (-1e+38f);
        // 18_loops_with_a_state.py:45 roles: filled_1: f32 64x1, 2 per thread
        float filled_1[2];
        // 18_loops_with_a_state.py:45 roles: filled_1 = 0
        #pragma unroll
        for (int i = 0; i < 2; ++i) filled_1[i] = 0.0f;
        // 18_loops_with_a_state.py:45 roles: out: f32 64x128, 64 per thread
        float out[64] = {};
        // 18_loops_with_a_state.py:45 roles: scores: f32 64x128, 64 per thread
        float scores[64];
        // 18_loops_with_a_state.py:45 roles: weights: f16 64x128, 64 per thread
        __align__(4) half_t weights[64];
        // 18_loops_with_a_state.py:45 roles: wait for mbarrier
        mbarrier_wait(mbarrier + own, parity_1);
        if (0 < count_1) {
          const int index_7 = before_1 % 2;
          const int index_8 = before_1 / 2;
          // 18_loops_with_a_state.py:45 atom: wait for mbarrier_2
          mbarrier_wait(mbarrier_2 + index_7, index_8);
          // 18_loops_with_a_state.py:45 atom: registers are ready
          mma_fence();
          // 18_loops_with_a_state.py:45 atom: scores += whole_9 * whole_10, by wgmma.m64n128k16.f32.f16
          {
            const descriptor_t a = descriptor(sQ + 8192*own);
            const descriptor_t b = descriptor(sK + 16384*index_7);
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
              wgmma_m64n128k16_f16_or_fresh(scores, a + 512*(i / 4) + 2*(i % 4), b + 1024*(i / 4)
                  + 2*(i % 4), 0 < i);
            }
          }
          // 18_loops_with_a_state.py:45 atom: close the group of MMAs
          mma_commit();
          // 18_loops_with_a_state.py:45 atom: wait until at most 0 groups of MMAs are unfinished
          mma_wait<0>();
          const int index_9 = before_1 % 2;
          // 18_loops_with_a_state.py:45 atom: each warp arrives at mbarrier_3
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(mbarrier_3 + index_9);
          // 18_loops_with_a_state.py:44 promote: mul = mul(scores, scale)
          float mul[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) mul[i] = scores[i] * scale;
          if (64*index_6 < 127) {
            // 18_loops_with_a_state.py:44 promote: at = coordinates along 1
            int at[32];
            #pragma unroll
            for (int i = 0; i < 32; ++i) at[i] = 8*(i / 2) + 2*(tid % 4) + (i % 2);
            // 18_loops_with_a_state.py:44 promote: add = add(at, 0)
            int add[32];
            #pragma unroll
            for (int i = 0; i < 32; ++i) add[i] = (int)((unsigned)at[i] + 0);
            // 18_loops_with_a_state.py:44 promote: at_1 = coordinates along 0
            int at_1[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i) at_1[i] = 16*(tid / 32) + 8*i + ((tid / 4) % 8);
            // 18_loops_with_a_state.py:44 promote: add_1 = add(at_1, 64*index_6)
            int add_1[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i) add_1[i] = (int)((unsigned)at_1[i] + (64*index_6));
            // 18_loops_with_a_state.py:44 promote: at_2 = coordinates along 0
            int at_2[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) {
              at_2[i] = 16*(tid / 32) + 8*((i / 2) % 2) + ((tid / 4) % 8);
            }
            // 18_loops_with_a_state.py:44 promote: everywhere = less_equal(0, at_2)
            bool everywhere[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) everywhere[i] = 0 <= at_2[i];
            // 18_loops_with_a_state.py:44 promote: wide = select(everywhere, add, add)
            int wide[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) {
              wide[i] = everywhere[i] ? add[2*(i / 4) + (i % 2)] : add[2*(i / 4) + (i % 2)];
            }
            // 18_loops_with_a_state.py:44 promote: less_equal = less_equal(wide, add_1)
            bool less_equal[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) less_equal[i] = wide[i] <= add_1[(i / 2) % 2];
            // 18_loops_with_a_state.py:44 promote: select = select(less_equal, mul, -inf)
            float select[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) {
              select[i] = less_equal[i] ? mul[i] : -__int_as_float(0x7f800000);
            }
            // 18_loops_with_a_state.py:44 promote: select -> mul
            #pragma unroll
            for (int i = 0; i < 64; ++i) mul[i] = select[i];
          }
          if (N < 128) {
            // 18_loops_with_a_state.py:45 promote: at_3 = coordinates along 1
            int at_3[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) at_3[i] = 8*(i / 4) + 2*(tid % 4) + (i % 2);
            // 18_loops_with_a_state.py:45 promote: less = less(at_3, N)
            bool less[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) less[i] = at_3[i] < N;
            // 18_loops_with_a_state.py:45 promote: select_1 = select(less, mul, -inf)
            float select_1[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) {
              select_1[i] = less[i] ? mul[i] : -__int_as_float(0x7f800000);
            }
            // 18_loops_with_a_state.py:45 promote: select_1 -> mul
            #pragma unroll
            for (int i = 0; i < 64; ++i) mul[i] = select_1[i];
          }
          // 18_loops_with_a_state.py:45 promote: mul_max = max of mul along 1
          float mul_max[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            float total = mul[2*i];
            #pragma unroll
            for (int j = 1; j < 32; ++j) total = max_or_nan(total, mul[4*(j / 2) + 2*i + (j % 2)]);
            total = max_or_nan(total, __shfl_xor_sync(0xffffffff, total, 1));
            total = max_or_nan(total, __shfl_xor_sync(0xffffffff, total, 2));
            mul_max[i] = total;
          }
          // 18_loops_with_a_state.py:45 promote: max = max(filled, mul_max)
          float max_1[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) max_1[i] = max_or_nan(filled[i], mul_max[i]);
          // 18_loops_with_a_state.py:46 promote: sub = sub(filled, max)
          float sub[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) sub[i] = filled[i] - max_1[i];
          // 18_loops_with_a_state.py:46 promote: mul_1 = mul(sub, 1.4426950408889634)
          float mul_1[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) mul_1[i] = sub[i] * 1.4426950408889634f;
          // 18_loops_with_a_state.py:46 promote: exp2 = exp2(mul_1)
          float exp2_1[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) exp2_1[i] = fast_exp2(mul_1[i]);
          // 18_loops_with_a_state.py:47 promote: mul_2 = mul(filled_1, exp2)
          float mul_2[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) mul_2[i] = filled_1[i] * exp2_1[i];
          // 18_loops_with_a_state.py:46 promote: sub_1 = sub(mul, max)
          float sub_1[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) sub_1[i] = mul[i] - max_1[(i / 2) % 2];
          // 18_loops_with_a_state.py:46 promote: mul_3 = mul(sub_1, 1.4426950408889634)
          float mul_3[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) mul_3[i] = sub_1[i] * 1.4426950408889634f;
          // 18_loops_with_a_state.py:46 promote: exp2_1 = exp2(mul_3)
          float exp2_1_1[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) exp2_1_1[i] = fast_exp2(mul_3[i]);
          // 18_loops_with_a_state.py:47 promote: exp2_1_sum = sum of exp2_1 along 1
          float exp2_1_sum[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            float total = exp2_1_1[2*i];
            #pragma unroll
            for (int j = 1; j < 32; ++j) total = total + exp2_1_1[4*(j / 2) + 2*i + (j % 2)];
            total = total + __shfl_xor_sync(0xffffffff, total, 1);
            total = total + __shfl_xor_sync(0xffffffff, total, 2);
            exp2_1_sum[i] = total;
          }
          // 18_loops_with_a_state.py:47 promote: add_2 = add(mul_2, exp2_1_sum)
          float add_2[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) add_2[i] = mul_2[i] + exp2_1_sum[i];
          // 18_loops_with_a_state.py:45 promote: max -> filled
          #pragma unroll
          for (int i = 0; i < 2; ++i) filled[i] = max_1[i];
          // 18_loops_with_a_state.py:45 promote: add_2 -> filled_1
          #pragma unroll
          for (int i = 0; i < 2; ++i) filled_1[i] = add_2[i];
          // 18_loops_with_a_state.py:48 promote: mul_4 = mul(out, exp2)
          float mul_4[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) mul_4[i] = out[i] * exp2_1[(i / 2) % 2];
          // 18_loops_with_a_state.py:45 promote: mul_4 -> out
          #pragma unroll
          for (int i = 0; i < 64; ++i) out[i] = mul_4[i];
          // 18_loops_with_a_state.py:48 atom: convert = convert(exp2_1)
          half_t convert[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) convert[i] = float_to_half(exp2_1_1[i]);
          // 18_loops_with_a_state.py:48 atom: moved = convert[0:64, 0:128]
          __align__(4) half_t moved[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) moved[i] = convert[i];
          // 18_loops_with_a_state.py:45 promote: moved -> weights
          #pragma unroll
          for (int i = 0; i < 32; ++i) *(unsigned*)&weights[2*i] = *(const unsigned*)&moved[2*i];
        }
        for (int k_1 = 1; k_1 < count_1; ++k_1) {
          const int index_11 = (before_1 + k_1) % 2;
          const int index_12 = ((before_1 + k_1) / 2) % 2;
          // 18_loops_with_a_state.py:45 atom: wait for mbarrier_2
          mbarrier_wait(mbarrier_2 + index_11, index_12);
          // 18_loops_with_a_state.py:45 atom: registers are ready
          mma_fence();
          // 18_loops_with_a_state.py:45 atom: scores += whole_11 * whole_12, by wgmma.m64n128k16.f32.f16
          {
            const descriptor_t a = descriptor(sQ + 8192*own);
            const descriptor_t b = descriptor(sK + 16384*index_11);
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
              wgmma_m64n128k16_f16_or_fresh(scores, a + 512*(i / 4) + 2*(i % 4), b + 1024*(i / 4)
                  + 2*(i % 4), 0 < i);
            }
          }
          // 18_loops_with_a_state.py:45 atom: close the group of MMAs
          mma_commit();
          const int index_13 = (before_1 + k_1 + 1) % 2;
          const int index_14 = (((before_1 + k_1 + 1) / 2) + 1) % 2;
          // 18_loops_with_a_state.py:45 atom: wait for mbarrier_4
          mbarrier_wait(mbarrier_4 + index_13, index_14);
          // 18_loops_with_a_state.py:45 atom: registers are ready
          mma_fence();
          // 18_loops_with_a_state.py:45 atom: out += weights * tile_2, by wgmma.m64n128k16.f32.f16
          {
            const descriptor_t b = descriptor_of_panels(sV + 16384*index_13, 16384);
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
              wgmma_m64n128k16_f16_registers_n(out, &weights[8*i], b + 128*i);
            }
          }
          // 18_loops_with_a_state.py:45 atom: close the group of MMAs
          mma_commit();
          // 18_loops_with_a_state.py:45 atom: wait until at most 1 groups of MMAs are unfinished
          mma_wait<1>();
          const int index_15 = (before_1 + k_1) % 2;
          // 18_loops_with_a_state.py:45 atom: each warp arrives at mbarrier_3
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(mbarrier_3 + index_15);
          // 18_loops_with_a_state.py:44 promote: mul_5 = mul(scores, scale)
          float mul_5[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) mul_5[i] = scores[i] * scale;
          if (64*index_6 < 128*k_1 + 127) {
            // 18_loops_with_a_state.py:44 promote: at_4 = coordinates along 1
            int at_4[32];
            #pragma unroll
            for (int i = 0; i < 32; ++i) at_4[i] = 8*(i / 2) + 2*(tid % 4) + (i % 2);
            // 18_loops_with_a_state.py:44 promote: add_3 = add(at_4, 128*k_1)
            int add_3[32];
            #pragma unroll
            for (int i = 0; i < 32; ++i) add_3[i] = (int)((unsigned)at_4[i] + (128*k_1));
            // 18_loops_with_a_state.py:44 promote: at_5 = coordinates along 0
            int at_5[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i) at_5[i] = 16*(tid / 32) + 8*i + ((tid / 4) % 8);
            // 18_loops_with_a_state.py:44 promote: add_4 = add(at_5, 64*index_6)
            int add_4[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i) add_4[i] = (int)((unsigned)at_5[i] + (64*index_6));
            // 18_loops_with_a_state.py:44 promote: at_6 = coordinates along 0
            int at_6[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) {
              at_6[i] = 16*(tid / 32) + 8*((i / 2) % 2) + ((tid / 4) % 8);
            }
            // 18_loops_with_a_state.py:44 promote: everywhere_1 = less_equal(0, at_6)
            bool everywhere_1[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) everywhere_1[i] = 0 <= at_6[i];
            // 18_loops_with_a_state.py:44 promote: wide_1 = select(everywhere_1, add_3, add_3)
            int wide_1[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) {
              wide_1[i] = everywhere_1[i] ? add_3[2*(i / 4) + (i % 2)] : add_3[2*(i / 4) + (i % 2)];
            }
            // 18_loops_with_a_state.py:44 promote: less_equal_1 = less_equal(wide_1, add_4)
            bool less_equal_1[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) less_equal_1[i] = wide_1[i] <= add_4[(i / 2) % 2];
            // 18_loops_with_a_state.py:44 promote: select_2 = select(less_equal_1, mul_5, -inf)
            float select_2[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) {
              select_2[i] = less_equal_1[i] ? mul_5[i] : -__int_as_float(0x7f800000);
            }
            // 18_loops_with_a_state.py:44 promote: select_2 -> mul_5
            #pragma unroll
            for (int i = 0; i < 64; ++i) mul_5[i] = select_2[i];
          }
          if (-128*k_1 + N < 128) {
            // 18_loops_with_a_state.py:45 promote: at_7 = coordinates along 1
            int at_7[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) at_7[i] = 8*(i / 4) + 2*(tid % 4) + (i % 2);
            // 18_loops_with_a_state.py:45 promote: less_1 = less(at_7, -128*k_1 + N)
            bool less_1[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) less_1[i] = at_7[i] < (-128*k_1 + N);
            // 18_loops_with_a_state.py:45 promote: select_3 = select(less_1, mul_5, -inf)
            float select_3[64];
            #pragma unroll
            for (int i = 0; i < 64; ++i) {
              select_3[i] = less_1[i] ? mul_5[i] : -__int_as_float(0x7f800000);
            }
            // 18_loops_with_a_state.py:45 promote: select_3 -> mul_5
            #pragma unroll
            for (int i = 0; i < 64; ++i) mul_5[i] = select_3[i];
          }
          // 18_loops_with_a_state.py:45 promote: mul_5_max = max of mul_5 along 1
          float mul_5_max[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            float total = mul_5[2*i];
            #pragma unroll
            for (int j = 1; j < 32; ++j) {
              total = max_or_nan(total, mul_5[4*(j / 2) + 2*i + (j % 2)]);
            }
            total = max_or_nan(total, __shfl_xor_sync(0xffffffff, total, 1));
            total = max_or_nan(total, __shfl_xor_sync(0xffffffff, total, 2));
            mul_5_max[i] = total;
          }
          // 18_loops_with_a_state.py:45 promote: max_1 = max(filled, mul_5_max)
          float max_1_1[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) max_1_1[i] = max_or_nan(filled[i], mul_5_max[i]);
          // 18_loops_with_a_state.py:46 promote: sub_2 = sub(filled, max_1)
          float sub_2[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) sub_2[i] = filled[i] - max_1_1[i];
          // 18_loops_with_a_state.py:46 promote: mul_6 = mul(sub_2, 1.4426950408889634)
          float mul_6[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) mul_6[i] = sub_2[i] * 1.4426950408889634f;
          // 18_loops_with_a_state.py:46 promote: exp2_2 = exp2(mul_6)
          float exp2_2[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) exp2_2[i] = fast_exp2(mul_6[i]);
          // 18_loops_with_a_state.py:47 promote: mul_7 = mul(filled_1, exp2_2)
          float mul_7[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) mul_7[i] = filled_1[i] * exp2_2[i];
          // 18_loops_with_a_state.py:46 promote: sub_3 = sub(mul_5, max_1)
          float sub_3[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) sub_3[i] = mul_5[i] - max_1_1[(i / 2) % 2];
          // 18_loops_with_a_state.py:46 promote: mul_8 = mul(sub_3, 1.4426950408889634)
          float mul_8[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) mul_8[i] = sub_3[i] * 1.4426950408889634f;
          // 18_loops_with_a_state.py:46 promote: exp2_3 = exp2(mul_8)
          float exp2_3[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) exp2_3[i] = fast_exp2(mul_8[i]);
          // 18_loops_with_a_state.py:47 promote: exp2_3_sum = sum of exp2_3 along 1
          float exp2_3_sum[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            float total = exp2_3[2*i];
            #pragma unroll
            for (int j = 1; j < 32; ++j) total = total + exp2_3[4*(j / 2) + 2*i + (j % 2)];
            total = total + __shfl_xor_sync(0xffffffff, total, 1);
            total = total + __shfl_xor_sync(0xffffffff, total, 2);
            exp2_3_sum[i] = total;
          }
          // 18_loops_with_a_state.py:47 promote: add_5 = add(mul_7, exp2_3_sum)
          float add_5[2];
          #pragma unroll
          for (int i = 0; i < 2; ++i) add_5[i] = mul_7[i] + exp2_3_sum[i];
          // 18_loops_with_a_state.py:45 promote: max_1 -> filled
          #pragma unroll
          for (int i = 0; i < 2; ++i) filled[i] = max_1_1[i];
          // 18_loops_with_a_state.py:45 promote: add_5 -> filled_1
          #pragma unroll
          for (int i = 0; i < 2; ++i) filled_1[i] = add_5[i];
          // 18_loops_with_a_state.py:45 atom: wait until at most 0 groups of MMAs are unfinished
          mma_wait<0>();
          const int index_17 = (before_1 + k_1 + 1) % 2;
          // 18_loops_with_a_state.py:45 atom: each warp arrives at mbarrier_5
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(mbarrier_5 + index_17);
          // 18_loops_with_a_state.py:48 promote: mul_9 = mul(out, exp2_2)
          float mul_9[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) mul_9[i] = out[i] * exp2_2[(i / 2) % 2];
          // 18_loops_with_a_state.py:45 promote: mul_9 -> out
          #pragma unroll
          for (int i = 0; i < 64; ++i) out[i] = mul_9[i];
          // 18_loops_with_a_state.py:48 atom: convert_1 = convert(exp2_3)
          half_t convert_1[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) convert_1[i] = float_to_half(exp2_3[i]);
          // 18_loops_with_a_state.py:48 atom: moved_1 = convert_1[0:64, 0:128]
          __align__(4) half_t moved_1[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) moved_1[i] = convert_1[i];
          // 18_loops_with_a_state.py:45 promote: moved_1 -> weights
          #pragma unroll
          for (int i = 0; i < 32; ++i) *(unsigned*)&weights[2*i] = *(const unsigned*)&moved_1[2*i];
        }
        // 18_loops_with_a_state.py:45 roles: each warp arrives at mbarrier_1
        __syncwarp();
        if (tid % 32 == 0) mbarrier_arrive(mbarrier_1 + own);
        if (0 < count_1) {
          const int index_19 = (before_1 + count_1 + 1) % 2;
          const int index_20 = (((before_1 + count_1 + 1) / 2) + 1) % 2;
          // 18_loops_with_a_state.py:45 atom: wait for mbarrier_4
          mbarrier_wait(mbarrier_4 + index_19, index_20);
          // 18_loops_with_a_state.py:45 atom: registers are ready
          mma_fence();
          // 18_loops_with_a_state.py:45 atom: out += weights * tile_3, by wgmma.m64n128k16.f32.f16
          {
            const descriptor_t b = descriptor_of_panels(sV + 16384*index_19, 16384);
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
              wgmma_m64n128k16_f16_registers_n(out, &weights[8*i], b + 128*i);
            }
          }
          // 18_loops_with_a_state.py:45 atom: close the group of MMAs
          mma_commit();
          // 18_loops_with_a_state.py:45 atom: wait until at most 0 groups of MMAs are unfinished
          mma_wait<0>();
          const int index_21 = (before_1 + count_1 + 1) % 2;
          // 18_loops_with_a_state.py:45 atom: each warp arrives at mbarrier_5
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(mbarrier_5 + index_21);
        }
        // 18_loops_with_a_state.py:45 roles: wait until at most 0 groups of stores read shared memory
        if (tid == 0) bulk_wait<0>();
        // 18_loops_with_a_state.py:50 epilogue: div = div(out, filled_1)
        float div[64];
        #pragma unroll
        for (int i = 0; i < 64; ++i) div[i] = out[i] / filled_1[(i / 2) % 2];
        // 18_loops_with_a_state.py:50 epilogue: barrier own + 1 of 128 threads
        role_barrier_of_group<128>(own + 1);
        // 18_loops_with_a_state.py:50 epilogue: div -> whole_15, 4 matrices at a time
        {
          const int row = 16*(tid / 32) + (tid % 16);
          const int col = 8*((tid / 16) % 2);
          const int start = 8192*own + 64*row + ((8*(row % 8)) ^ col);
          #pragma unroll
          for (int i = 0; i < 8; ++i) {
            __align__(4) half_t packed[8];
            #pragma unroll
            for (int e = 0; e < 8; ++e) packed[e] = float_to_half(div[8*i + e]);
            stmatrix_x4(sOut + 4096*(i / 4) + ((16*(i % 4)) ^ start), packed);
          }
        }
        // 18_loops_with_a_state.py:50 epilogue: make writes to shared memory visible to TMA and tensor cores
        fence_async();
        // 18_loops_with_a_state.py:50 epilogue: barrier own + 1 of 128 threads
        role_barrier_of_group<128>(own + 1);
        // 18_loops_with_a_state.py:50 epilogue: held_12[0] -> whole_16.tile((64, 64), (index_6, 0)), by TMA
        if (tid == 0) {
          tma_store_2d(&O_map, sOut + 8192*own, 0, 64*index_6);
          // 18_loops_with_a_state.py:50 epilogue: held_12[1] -> whole_16.tile((64, 64), (index_6, 1)), by TMA
          tma_store_2d(&O_map, sOut + 8192*own + 4096, 64, 64*index_6);
          // 18_loops_with_a_state.py:50 epilogue: close the group of stores
          bulk_commit();
        }
        done_1 = (before_1 + count_1) % 4;
        taken_1 = -parity_1 + 1;
      }
    }
    // 18_loops_with_a_state.py:45 roles: wait until at most 0 groups of stores read shared memory
    if (tid == 0) bulk_wait<0>();
  }
}
