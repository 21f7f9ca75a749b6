struct half_t { unsigned short bits; };

struct e4m3_t { unsigned char bits; };

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

__device__ __forceinline__ void e4m3_pair_to_half(half_t* to, const e4m3_t* from) {
  const unsigned short x = *(const unsigned short*)from;
  unsigned y;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));
  *(unsigned*)to = y;
}

template <class Word>
__device__ __forceinline__ Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
}

__device__ __forceinline__ void stmatrix_x4_trans(void* to, const void* from) {
  const unsigned* r = (const unsigned*)from;
  const unsigned shared = __cvta_generic_to_shared(to);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
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

__device__ __forceinline__ void tma_load_once_2d(const tensor_map_t* map, void* to, mbarrier_t* barrier, int x0, int x1) {
  unsigned long long first;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%3, %4}], [%2], %5;"
               ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(map), "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(x0), "r"(x1), "l"(first) : "memory");
}

__device__ __forceinline__ void tma_load_read_by_2d(const tensor_map_t* map, void* to, mbarrier_t* barrier, int readers, int x0, int x1) {
  if (readers == 1) tma_load_once_2d(map, to, barrier, x0, x1);
  else tma_load_2d(map, to, barrier, x0, x1);
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

__device__ __forceinline__ void wgmma_m64n256k16_f16_registers(float* d, const void* a, descriptor_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, 1, 1, 1, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "r"(((const unsigned*)a)[0]), "r"(((const unsigned*)a)[1]), "r"(((const unsigned*)a)[2]), "r"(((const unsigned*)a)[3]), "l"(b));
}

extern "C" __global__ void __launch_bounds__(384, 1) widened(
    const float* scale, int M, int K, int N, int blocks, int readers, int readers_1,
    const __grid_constant__ tensor_map_t B_map, const __grid_constant__ tensor_map_t A_map,
    const __grid_constant__ tensor_map_t C_map) {
  const int tid = threadIdx.x;
  const int block = blockIdx.x;  // of blocks
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  // test_golden.py:78 stages: sB: f8e4m3 2x2x64x128
  e4m3_t* const sB = (e4m3_t*)shared_memory;
  // test_golden.py:78 stages: sA: f16 2x2x256x64
  half_t* const sA = (half_t*)(shared_memory + 32768);
  // test_golden.py:79 epilogue: sC: f16 2x1x32x64
  half_t* const sC = (half_t*)(shared_memory + 163840);
  // test_golden.py:78 stages: full: 2 barriers of 1 arrivals
  mbarrier_t* const full = (mbarrier_t*)(shared_memory + 172032);
  if (tid == 0) mbarrier_init(full, 2, 1);
  // test_golden.py:78 stages: empty: 2 barriers of 8 arrivals
  mbarrier_t* const empty = (mbarrier_t*)(shared_memory + 172048);
  if (tid == 0) mbarrier_init(empty, 2, 8);
  // test_golden.py:78 stages: barrier
  __syncthreads();
  // test_golden.py:78 roles: warps 0 to 3
  if (tid < 128) {
    set_registers_down<40>();
    // test_golden.py:78 roles: warp 0
    if (tid < 32) {
      const int turn_end = floor_div((((M + 255) / 256)*((N + 120) / 128) - block - 1), blocks) + 1;
      for (int turn = 0; turn < turn_end; ++turn) {
        const int band = 8*((blocks*turn + block) / (8*((M + 255) / 256)));
        const int rows = min_int(((N + 120) / 128) - band, 8);
        const int m = (((blocks*turn + block) % (8*((M + 255) / 256))) % rows) + band;
        const int n = ((blocks*turn + block) % (8*((M + 255) / 256))) / rows;
        const int k_end = max_int((K + 112) / 128, 1);
        for (int k = 0; k < k_end; ++k) {
          const int step = max_int((K + 112) / 128, 1)*turn + k;
          const int stage = step % 2;
          // test_golden.py:78 staging: wait for empty
          mbarrier_wait(empty + stage, -((step / 2) % 2) + 1);
          // test_golden.py:78 staging: full waits for 81920 bytes
          if (tid == 0) {
            mbarrier_arrive_expect(full + stage, 81920);
            // test_golden.py:78 staging: B.tile((128, 128), (m, k)) -> held.merge(0), by TMA
            tma_load_read_by_2d(&B_map, sB + 16384*stage, full + stage, readers, 128*k, 128*m);
            // test_golden.py:78 staging: A.tile((256, 64), (n, 2*k)) -> rows_1, by TMA
            tma_load_read_by_2d(&A_map, sA + 32768*stage, full + stage, readers_1, 128*k, 256*n);
            // test_golden.py:78 staging: A.tile((256, 64), (n, 2*k + 1)) -> rows_2, by TMA
            tma_load_read_by_2d(&A_map, sA + 32768*stage + 16384, full + stage, readers_1, 128*k
                + 64, 256*n);
          }
        }
      }
    }
  }
  // test_golden.py:78 roles: warps 4 to 11, in 2 groups
  else {
    set_registers_up<232>();
    const int g = uniform((threadIdx.x - 128) / 128);
    const int tid = threadIdx.x - (128*g + 128);
    const int turn_1_end = floor_div((((M + 255) / 256)*((N + 120) / 128) - block - 1), blocks) + 1;
    for (int turn_1 = 0; turn_1 < turn_1_end; ++turn_1) {
      const int band_1 = 8*((blocks*turn_1 + block) / (8*((M + 255) / 256)));
      const int rows_3 = min_int(((N + 120) / 128) - band_1, 8);
      const int m_1 = (((blocks*turn_1 + block) % (8*((M + 255) / 256))) % rows_3) + band_1;
      const int n_1 = ((blocks*turn_1 + block) % (8*((M + 255) / 256))) / rows_3;
      // test_golden.py:78 atom: acc: f32 64x256, 128 per thread
      float acc[128] = {};
      // test_golden.py:78 staging: rB: f8e4m3 64x64, 32 per thread
      __align__(2) e4m3_t rB[32] = {};
      // test_golden.py:78 staging: dB: f16 64x64, 32 per thread
      __align__(4) half_t dB[32];
      // test_golden.py:78 staging: dB_1: f16 64x64, 32 per thread
      __align__(4) half_t dB_1[32];
      {
        // test_golden.py:78 stages: wait for full
        mbarrier_wait(full + (max_int((K + 112) / 128, 1)*turn_1) % 2,
            ((max_int((K + 112) / 128, 1)*turn_1) / 2) % 2);
      }
      {
        // test_golden.py:78 staging: sB_tile -> rB, 2 bytes at a time
        {
          const int row = 16*(tid / 32) + ((tid / 4) % 8);
          const int col = 2*(tid % 4);
          const e4m3_t* from = sB + 16384*((max_int((K + 112) / 128, 1)*turn_1) % 2) + 8192*g
              + 128*row + col;
          #pragma unroll
          for (int j = 0; j < 8; ++j) {
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
              *(unsigned short*)&rB[4*j + 2*i] =
                  *(const unsigned short*)(from + 1024*i + ((16*(row % 8)) ^ (8*j)));
            }
          }
        }
      }
      {
        // test_golden.py:78 staging: made = convert(rB), two at a time
        __align__(4) half_t made[32];
        #pragma unroll
        for (int i = 0; i < 16; ++i) e4m3_pair_to_half(&made[2*i], &rB[2*i]);
        // test_golden.py:78 staging: made -> dB
        #pragma unroll
        for (int i = 0; i < 16; ++i) *(unsigned*)&dB[2*i] = *(const unsigned*)&made[2*i];
      }
      const int k_1_end = max_int((K + 112) / 128, 1);
      __builtin_assume(0 < k_1_end);
      for (int k_1 = 0; k_1 < k_1_end; ++k_1) {
        const int step_1 = max_int((K + 112) / 128, 1)*turn_1 + k_1;
        // test_golden.py:78 atom: registers are ready
        mma_fence();
        // test_golden.py:78 atom: acc += dB * b.tile((256, 64), (0, 0)), by wgmma.m64n256k16.f32.f16
        {
          const descriptor_t b_2 = descriptor(sA + 32768*(step_1 % 2));
          #pragma unroll
          for (int i = 0; i < 4; ++i) wgmma_m64n256k16_f16_registers(acc, &dB[8*i], b_2 + 2*i);
        }
        // test_golden.py:78 atom: close the group of MMAs
        mma_commit();
        // test_golden.py:78 atom: wait until at most 1 groups of MMAs are unfinished
        mma_wait<1>();
        if (0 < k_1) {
          // test_golden.py:78 stages: each warp arrives at empty
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(empty + (step_1 + 1) % 2);
        }
        // test_golden.py:78 staging: sB[step_1 % 2, g].tile((64, 64), (0, 1)) -> rB, 2 bytes at a time
        {
          const int row = 16*(tid / 32) + ((tid / 4) % 8);
          const int col = 2*(tid % 4);
          const e4m3_t* from = sB + 16384*(step_1 % 2) + 8192*g + 128*row + col;
          #pragma unroll
          for (int j = 0; j < 8; ++j) {
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
              *(unsigned short*)&rB[4*j + 2*i] =
                  *(const unsigned short*)(from + 1024*i + ((16*(row % 8)) ^ (8*j + 64)));
            }
          }
        }
        // test_golden.py:78 staging: made_1 = convert(rB), two at a time
        __align__(4) half_t made_1[32];
        #pragma unroll
        for (int i = 0; i < 16; ++i) e4m3_pair_to_half(&made_1[2*i], &rB[2*i]);
        // test_golden.py:78 staging: made_1 -> dB_1
        #pragma unroll
        for (int i = 0; i < 16; ++i) *(unsigned*)&dB_1[2*i] = *(const unsigned*)&made_1[2*i];
        // test_golden.py:78 atom: registers are ready
        mma_fence();
        // test_golden.py:78 atom: acc += dB_1 * b_1.tile((256, 64), (0, 1)), by wgmma.m64n256k16.f32.f16
        {
          const descriptor_t b_2 = descriptor(sA + 32768*(step_1 % 2) + 16384);
          #pragma unroll
          for (int i = 0; i < 4; ++i) wgmma_m64n256k16_f16_registers(acc, &dB_1[8*i], b_2 + 2*i);
        }
        // test_golden.py:78 atom: close the group of MMAs
        mma_commit();
        // test_golden.py:78 atom: wait until at most 1 groups of MMAs are unfinished
        mma_wait<1>();
        if (k_1 + 1 < max_int((K + 112) / 128, 1)) {
          // test_golden.py:78 stages: wait for full
          mbarrier_wait(full + (max_int((K + 112) / 128, 1)*turn_1 + k_1 + 1) % 2,
              ((max_int((K + 112) / 128, 1)*turn_1 + k_1 + 1) / 2) % 2);
        }
        if (k_1 + 1 < max_int((K + 112) / 128, 1)) {
          // test_golden.py:78 staging: sB_tile_2 -> rB, 2 bytes at a time
          {
            const int row = 16*(tid / 32) + ((tid / 4) % 8);
            const int col = 2*(tid % 4);
            const e4m3_t* from = sB + 16384*((max_int((K + 112) / 128, 1)*turn_1 + k_1 + 1) % 2)
                + 8192*g + 128*row + col;
            #pragma unroll
            for (int j = 0; j < 8; ++j) {
              #pragma unroll
              for (int i = 0; i < 2; ++i) {
                *(unsigned short*)&rB[4*j + 2*i] =
                    *(const unsigned short*)(from + 1024*i + ((16*(row % 8)) ^ (8*j)));
              }
            }
          }
        }
        if (k_1 + 1 < max_int((K + 112) / 128, 1)) {
          // test_golden.py:78 staging: made_2 = convert(rB), two at a time
          __align__(4) half_t made_2[32];
          #pragma unroll
          for (int i = 0; i < 16; ++i) e4m3_pair_to_half(&made_2[2*i], &rB[2*i]);
          // test_golden.py:78 staging: made_2 -> dB
          #pragma unroll
          for (int i = 0; i < 16; ++i) *(unsigned*)&dB[2*i] = *(const unsigned*)&made_2[2*i];
        }
      }
      // test_golden.py:79 epilogue: rscale: f32 64x1, 2 per thread
      float rscale[2];
      // test_golden.py:79 epilogue: tile_1 -> rscale, 4 bytes at a time
      {
        const int row = 16*(tid / 32) + ((tid / 4) % 8);
        const float* from = scale + 128*m_1 + 64*g + row;
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          rscale[i] = load_if<float>(128*m_1 + 64*g + 8*i + row < N, from + 8*i);
        }
      }
      // test_golden.py:78 atom: wait until at most 0 groups of MMAs are unfinished
      mma_wait<0>();
      {
        // test_golden.py:78 stages: each warp arrives at empty
        __syncwarp();
        if (tid % 32 == 0) {
          mbarrier_arrive(empty
              + (max_int((K + 112) / 128, 1) + max_int((K + 112) / 128, 1)*turn_1 + 1) % 2);
        }
      }
      // test_golden.py:78 epilogue: part = acc[0:64, 0:32]
      float part[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) part[i] = acc[i];
      // test_golden.py:79 epilogue: mul = mul(part, rscale)
      float mul[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) mul[i] = part[i] * rscale[(i / 2) % 2];
      // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
      if (tid == 0) bulk_wait<0>();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: mul -> held_4.permute(1, 0), 4 matrices at a time
      {
        const int row = 16*(tid / 32) + 8*((tid / 8) % 2);
        const int col = 8*((tid / 16) % 2) + (tid % 8);
        half_t* to = sC + 2048*g + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          __align__(4) half_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_half(mul[8*i + e]);
          stmatrix_x4_trans(to + 1024*i, packed);
        }
      }
      // test_golden.py:79 epilogue: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: held_5 -> tile_2.permute(1, 0), by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 2048*g, 128*m_1 + 64*g, 256*n_1);
        // test_golden.py:79 epilogue: close the group of stores
        bulk_commit();
      }
      // test_golden.py:78 epilogue: part_1 = acc[0:64, 32:64]
      float part_1[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) part_1[i] = acc[i + 16];
      // test_golden.py:79 epilogue: mul_1 = mul(part_1, rscale)
      float mul_1[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) mul_1[i] = part_1[i] * rscale[(i / 2) % 2];
      // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
      if (tid == 0) bulk_wait<0>();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: mul_1 -> held_6.permute(1, 0), 4 matrices at a time
      {
        const int row = 16*(tid / 32) + 8*((tid / 8) % 2);
        const int col = 8*((tid / 16) % 2) + (tid % 8);
        half_t* to = sC + 2048*g + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          __align__(4) half_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_half(mul_1[8*i + e]);
          stmatrix_x4_trans(to + 1024*i, packed);
        }
      }
      // test_golden.py:79 epilogue: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: held_7 -> tile_3.permute(1, 0), by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 2048*g, 128*m_1 + 64*g, 256*n_1 + 32);
        // test_golden.py:79 epilogue: close the group of stores
        bulk_commit();
      }
      // test_golden.py:78 epilogue: part_2 = acc[0:64, 64:96]
      float part_2[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) part_2[i] = acc[i + 32];
      // test_golden.py:79 epilogue: mul_2 = mul(part_2, rscale)
      float mul_2[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) mul_2[i] = part_2[i] * rscale[(i / 2) % 2];
      // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
      if (tid == 0) bulk_wait<0>();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: mul_2 -> held_8.permute(1, 0), 4 matrices at a time
      {
        const int row = 16*(tid / 32) + 8*((tid / 8) % 2);
        const int col = 8*((tid / 16) % 2) + (tid % 8);
        half_t* to = sC + 2048*g + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          __align__(4) half_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_half(mul_2[8*i + e]);
          stmatrix_x4_trans(to + 1024*i, packed);
        }
      }
      // test_golden.py:79 epilogue: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: held_9 -> tile_4.permute(1, 0), by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 2048*g, 128*m_1 + 64*g, 256*n_1 + 64);
        // test_golden.py:79 epilogue: close the group of stores
        bulk_commit();
      }
      // test_golden.py:78 epilogue: part_3 = acc[0:64, 96:128]
      float part_3[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) part_3[i] = acc[i + 48];
      // test_golden.py:79 epilogue: mul_3 = mul(part_3, rscale)
      float mul_3[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) mul_3[i] = part_3[i] * rscale[(i / 2) % 2];
      // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
      if (tid == 0) bulk_wait<0>();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: mul_3 -> held_10.permute(1, 0), 4 matrices at a time
      {
        const int row = 16*(tid / 32) + 8*((tid / 8) % 2);
        const int col = 8*((tid / 16) % 2) + (tid % 8);
        half_t* to = sC + 2048*g + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          __align__(4) half_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_half(mul_3[8*i + e]);
          stmatrix_x4_trans(to + 1024*i, packed);
        }
      }
      // test_golden.py:79 epilogue: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: held_11 -> tile_5.permute(1, 0), by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 2048*g, 128*m_1 + 64*g, 256*n_1 + 96);
        // test_golden.py:79 epilogue: close the group of stores
        bulk_commit();
      }
      // test_golden.py:78 epilogue: part_4 = acc[0:64, 128:160]
      float part_4[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) part_4[i] = acc[i + 64];
      // test_golden.py:79 epilogue: mul_4 = mul(part_4, rscale)
      float mul_4[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) mul_4[i] = part_4[i] * rscale[(i / 2) % 2];
      // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
      if (tid == 0) bulk_wait<0>();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: mul_4 -> held_12.permute(1, 0), 4 matrices at a time
      {
        const int row = 16*(tid / 32) + 8*((tid / 8) % 2);
        const int col = 8*((tid / 16) % 2) + (tid % 8);
        half_t* to = sC + 2048*g + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          __align__(4) half_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_half(mul_4[8*i + e]);
          stmatrix_x4_trans(to + 1024*i, packed);
        }
      }
      // test_golden.py:79 epilogue: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: held_13 -> tile_6.permute(1, 0), by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 2048*g, 128*m_1 + 64*g, 256*n_1 + 128);
        // test_golden.py:79 epilogue: close the group of stores
        bulk_commit();
      }
      // test_golden.py:78 epilogue: part_5 = acc[0:64, 160:192]
      float part_5[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) part_5[i] = acc[i + 80];
      // test_golden.py:79 epilogue: mul_5 = mul(part_5, rscale)
      float mul_5[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) mul_5[i] = part_5[i] * rscale[(i / 2) % 2];
      // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
      if (tid == 0) bulk_wait<0>();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: mul_5 -> held_14.permute(1, 0), 4 matrices at a time
      {
        const int row = 16*(tid / 32) + 8*((tid / 8) % 2);
        const int col = 8*((tid / 16) % 2) + (tid % 8);
        half_t* to = sC + 2048*g + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          __align__(4) half_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_half(mul_5[8*i + e]);
          stmatrix_x4_trans(to + 1024*i, packed);
        }
      }
      // test_golden.py:79 epilogue: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: held_15 -> tile_7.permute(1, 0), by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 2048*g, 128*m_1 + 64*g, 256*n_1 + 160);
        // test_golden.py:79 epilogue: close the group of stores
        bulk_commit();
      }
      // test_golden.py:78 epilogue: part_6 = acc[0:64, 192:224]
      float part_6[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) part_6[i] = acc[i + 96];
      // test_golden.py:79 epilogue: mul_6 = mul(part_6, rscale)
      float mul_6[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) mul_6[i] = part_6[i] * rscale[(i / 2) % 2];
      // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
      if (tid == 0) bulk_wait<0>();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: mul_6 -> held_16.permute(1, 0), 4 matrices at a time
      {
        const int row = 16*(tid / 32) + 8*((tid / 8) % 2);
        const int col = 8*((tid / 16) % 2) + (tid % 8);
        half_t* to = sC + 2048*g + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          __align__(4) half_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_half(mul_6[8*i + e]);
          stmatrix_x4_trans(to + 1024*i, packed);
        }
      }
      // test_golden.py:79 epilogue: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: held_17 -> tile_8.permute(1, 0), by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 2048*g, 128*m_1 + 64*g, 256*n_1 + 192);
        // test_golden.py:79 epilogue: close the group of stores
        bulk_commit();
      }
      // test_golden.py:78 epilogue: part_7 = acc[0:64, 224:256]
      float part_7[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) part_7[i] = acc[i + 112];
      // test_golden.py:79 epilogue: mul_7 = mul(part_7, rscale)
      float mul_7[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) mul_7[i] = part_7[i] * rscale[(i / 2) % 2];
      // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
      if (tid == 0) bulk_wait<0>();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: mul_7 -> held_18.permute(1, 0), 4 matrices at a time
      {
        const int row = 16*(tid / 32) + 8*((tid / 8) % 2);
        const int col = 8*((tid / 16) % 2) + (tid % 8);
        half_t* to = sC + 2048*g + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          __align__(4) half_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_half(mul_7[8*i + e]);
          stmatrix_x4_trans(to + 1024*i, packed);
        }
      }
      // test_golden.py:79 epilogue: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // test_golden.py:79 epilogue: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // test_golden.py:79 epilogue: held_19 -> tile_9.permute(1, 0), by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 2048*g, 128*m_1 + 64*g, 256*n_1 + 224);
        // test_golden.py:79 epilogue: close the group of stores
        bulk_commit();
      }
    }
    // test_golden.py:79 epilogue: wait until at most 0 groups of stores read shared memory
    if (tid == 0) bulk_wait<0>();
  }
}
