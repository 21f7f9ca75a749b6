struct bf16_t { unsigned short bits; };

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

__device__ __forceinline__ bf16_t float_to_bf16(float x) {
  bf16_t y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

__device__ __forceinline__ float fast_exp2(float x) {
  // Within 2 units in the last place; results below the least normal number become 0.
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float fast_reciprocal(float x) {
  // Within a unit in the last place; results below the least normal number become 0.
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float bf16_to_float(bf16_t x) {
  return __uint_as_float((unsigned)x.bits << 16);
}

__device__ __forceinline__ float fast_silu(float x) {
  // x / (1 + 2**t)
  const float t = x * -1.4426950408889634f;
  return fmaxf(x, -3.4028234663852886e+38f) * fast_reciprocal(1.0f + fast_exp2(t));
}

template <class Word>
__device__ __forceinline__ Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
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

__device__ __forceinline__ int take_ticket_of(unsigned* counter, unsigned of) {
  int old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(old) : "l"((unsigned long long)__cvta_generic_to_global(counter)), "r"(of - 1) : "memory");
  return old;
}

__device__ __forceinline__ void wgmma_m64n256k16_bf16(float* d, descriptor_t a, descriptor_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, 1, 1, 1, 0, 0;"
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
      : "l"(a), "l"(b));
}

extern "C" __global__ void __launch_bounds__(384, 1) linear(
    const bf16_t* bias, float* partial_sums, unsigned* arrived, unsigned* arrived_near, int M,
    int K, int N, int blocks, int rounds, int streamed, int depth, int share, int longer,
    int readers, int readers_1, const __grid_constant__ tensor_map_t A_map,
    const __grid_constant__ tensor_map_t B_map, const __grid_constant__ tensor_map_t C_map) {
  const int tid = threadIdx.x;
  const int block = blockIdx.x;  // of blocks
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const int index = min_int(block, longer) + block*share;
  const int index_1 = min_int(max_int(-block + longer, 0), 1) + share;
  const int index_2 = index / depth;
  const int index_3 = max_int(floor_div((index + index_1 - 1), depth) - index_2 + 1, 0);
  // test_golden.py:27 stages: sA: bf16 4x2x64x64
  bf16_t* const sA = (bf16_t*)shared_memory;
  // test_golden.py:27 stages: sB: bf16 4x256x64
  bf16_t* const sB = (bf16_t*)(shared_memory + 65536);
  // test_golden.py:28 epilogue: sC: bf16 2x2x64x64
  bf16_t* const sC = (bf16_t*)(shared_memory + 196608);
  // test_golden.py:27 stages: full: 4 barriers of 1 arrivals
  mbarrier_t* const full = (mbarrier_t*)(shared_memory + 229376);
  if (tid == 0) mbarrier_init(full, 4, 1);
  // test_golden.py:27 stages: empty: 4 barriers of 8 arrivals
  mbarrier_t* const empty = (mbarrier_t*)(shared_memory + 229408);
  if (tid == 0) mbarrier_init(empty, 4, 8);
  // test_golden.py:27 stages: barrier
  __syncthreads();
  // test_golden.py:27 roles: warps 0 to 3
  if (tid < 128) {
    set_registers_down<40>();
    // test_golden.py:27 roles: warp 0
    if (tid < 32) {
      const int turn_end = index_3 + rounds;
      for (int turn = 0; turn < turn_end; ++turn) {
        const int streams = min_int(max_int(index_3 - turn, 0), 1);
        const int after = max_int(-index_3 + turn, 0);
        const int tile = -(after*blocks + block + streamed)*(streams - 1)
            + (index_2 + turn)*streams;
        const int start = depth*tile;
        const int begin = max_int(index - start, 0)*streams;
        const int steps =
            max_int(min_int((K + 56) / 64, -max_int(depth - index - index_1 + start, 0)*streams
            + depth) - begin, 0);
        const int first = -(((K + 56) / 64)*after + index_1)*(streams - 1)
            + max_int(begin - index + start, 0)*streams;
        const int band = 8*(tile / (8*((N + 248) / 256)));
        const int rows = min_int(((M + 127) / 128) - band, 8);
        const int m = ((tile % (8*((N + 248) / 256))) % rows) + band;
        const int n = (tile % (8*((N + 248) / 256))) / rows;
        for (int k = 0; k < steps; ++k) {
          const int step = first + k;
          const int stage = step % 4;
          // test_golden.py:27 staging: wait for empty
          mbarrier_wait(empty + stage, -((step / 4) % 2) + 1);
          // test_golden.py:27 staging: full waits for 49152 bytes
          if (tid == 0) {
            mbarrier_arrive_expect(full + stage, 49152);
            // test_golden.py:27 staging: A.tile((128, 64), (m, begin + k)) -> held.merge(0), by TMA
            tma_load_read_by_2d(&A_map, sA + 8192*stage, full + stage, readers, 64*begin + 64*k,
                128*m);
            // test_golden.py:27 staging: B.tile((256, 64), (n, begin + k)) -> held_1, by TMA
            tma_load_read_by_2d(&B_map, sB + 16384*stage, full + stage, readers_1, 64*begin + 64*k,
                256*n);
          }
        }
      }
    }
  }
  // test_golden.py:27 roles: warps 4 to 11, in 2 groups
  else {
    set_registers_up<232>();
    const int g = uniform((threadIdx.x - 128) / 128);
    const int tid = threadIdx.x - (128*g + 128);
    const int turn_1_end = index_3 + rounds;
    for (int turn_1 = 0; turn_1 < turn_1_end; ++turn_1) {
      const int streams_1 = min_int(max_int(index_3 - turn_1, 0), 1);
      const int after_1 = max_int(-index_3 + turn_1, 0);
      const int tile_1 = -(after_1*blocks + block + streamed)*(streams_1 - 1)
          + (index_2 + turn_1)*streams_1;
      const int start_1 = depth*tile_1;
      const int begin_1 = max_int(index - start_1, 0)*streams_1;
      const int steps_1 =
          max_int(min_int((K + 56) / 64, -max_int(depth - index - index_1 + start_1, 0)*streams_1
          + depth) - begin_1, 0);
      const int first_1 = -(((K + 56) / 64)*after_1 + index_1)*(streams_1 - 1)
          + max_int(begin_1 - index + start_1, 0)*streams_1;
      const int owner_1 = (max_int(-(share + 1)*longer + start_1, 0) / max_int(share, 1))
          + min_int(start_1 / (share + 1), longer);
      const int parts_1 =
          max_int((max_int(-(share + 1)*longer + depth + start_1 - 1, 0) / max_int(share, 1))
          + min_int((depth + start_1 - 1) / (share + 1), longer) - owner_1, 0)*streams_1 + 1;
      const int part_1 = max_int(block - owner_1, 0)*streams_1;
      const int band_1 = 8*(tile_1 / (8*((N + 248) / 256)));
      const int rows_1 = min_int(((M + 127) / 128) - band_1, 8);
      const int m_1 = ((tile_1 % (8*((N + 248) / 256))) % rows_1) + band_1;
      const int n_1 = (tile_1 % (8*((N + 248) / 256))) / rows_1;
      // test_golden.py:27 atom: acc: f32 64x256, 128 per thread
      __align__(8) float acc[128] = {};
      for (int k_1 = 0; k_1 < steps_1; ++k_1) {
        const int step_1 = first_1 + k_1;
        const int stage_1 = step_1 % 4;
        // test_golden.py:27 stages: wait for full
        mbarrier_wait(full + stage_1, (step_1 / 4) % 2);
        // test_golden.py:27 atom: registers are ready
        mma_fence();
        // test_golden.py:27 atom: acc += sA[stage_1, g] * held_2, by wgmma.m64n256k16.f32.bf16
        {
          const descriptor_t a = descriptor(sA + 8192*stage_1 + 4096*g);
          const descriptor_t b = descriptor(sB + 16384*stage_1);
          #pragma unroll
          for (int i = 0; i < 4; ++i) wgmma_m64n256k16_bf16(acc, a + 2*i, b + 2*i);
        }
        // test_golden.py:27 atom: close the group of MMAs
        mma_commit();
        // test_golden.py:27 atom: wait until at most 1 groups of MMAs are unfinished
        mma_wait<1>();
        if (0 < k_1) {
          // test_golden.py:27 stages: each warp arrives at empty
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(empty + (step_1 + 3) % 4);
        }
      }
      // test_golden.py:27 atom: wait until at most 0 groups of MMAs are unfinished
      mma_wait<0>();
      if (0 < steps_1) {
        // test_golden.py:27 stages: each warp arrives at empty
        __syncwarp();
        if (tid % 32 == 0) mbarrier_arrive(empty + (first_1 + steps_1 + 3) % 4);
      }
      long long last = 1;
      if (1 < parts_1) {
        // test_golden.py:27 reduction: acc -> ordered_1.merge(1, 3), 8 bytes at a time
        {
          const int row = 16*(tid / 32) + ((tid / 4) % 8);
          const int col = 2*(tid % 4);
          float* to = partial_sums + 65536*owner_1 + 65536*part_1 - 32768*min_int(part_1, 1)
              + 16384*g + 8*(row % 8) + col + 32768;
          #pragma unroll
          for (int j = 0; j < 32; ++j) {
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
              *(float2*)(to + 512*j + 256*(((row / 8) + i) % 2) + 64*((8*i + row) / 16)) =
                  *(const float2*)&acc[4*j + 2*i];
            }
          }
        }
        long long has_all = 0;
        const int first_2 = 12*(part_1 / 12);
        const int near = min_int(-first_2 + parts_1, 12);
        // test_golden.py:27 reduction: number: i32 2
        int* const number = (int*)(shared_memory + 229440);
        // test_golden.py:27 reduction: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:27 reduction: take a ticket of counter, the last of near resets it
        if (tid == 0) {
          number[g] =
              take_ticket_of(arrived_near + 4*first_2 + 4*owner_1 - 2*min_int(first_2, 1) + g + 2,
              near);
        }
        // test_golden.py:27 reduction: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        const int number_2 = number[g];
        if (0 < max_int(-near + number_2 + 2, 0)) {
          // test_golden.py:27 reduction: acc = 0
          #pragma unroll
          for (int i = 0; i < 128; ++i) acc[i] = 0.0f;
          for (int turn_2 = 0; turn_2 < near; ++turn_2) {
            // test_golden.py:27 reduction: part_2: f32 64x256, 128 per thread
            __align__(8) float part_2[128] = {};
            {
              // test_golden.py:27 reduction: ordered_3.merge(1, 3) -> part_2, 8 bytes at a time
              {
                const int row = 16*(tid / 32) + ((tid / 4) % 8);
                const int col = 2*(tid % 4);
                const float* from = partial_sums + 65536*first_2 + 65536*owner_1
                    + 65536*turn_2 - 32768*min_int(first_2 + turn_2, 1) + 16384*g + 8*(row % 8)
                    + col + 32768;
                #pragma unroll
                for (int j = 0; j < 32; ++j) {
                  #pragma unroll
                  for (int i = 0; i < 2; ++i) {
                    *(uint2*)&part_2[4*j + 2*i] =
                        *(const uint2*)(from + 512*j + 256*(((row / 8) + i) % 2)
                        + 64*((8*i + row) / 16));
                  }
                }
              }
            }
            // test_golden.py:27 reduction: add = add(acc, part_2)
            float add[128];
            #pragma unroll
            for (int i = 0; i < 128; ++i) add[i] = acc[i] + part_2[i];
            // test_golden.py:27 reduction: add -> acc
            #pragma unroll
            for (int i = 0; i < 128; ++i) acc[i] = add[i];
          }
          has_all = 1;
          if (12 < parts_1) {
            // test_golden.py:27 reduction: acc -> ordered_5.merge(1, 3), 8 bytes at a time
            {
              const int row = 16*(tid / 32) + ((tid / 4) % 8);
              const int col = 2*(tid % 4);
              float* to = partial_sums + 65536*first_2 + 65536*owner_1 - 32768*min_int(first_2, 1)
                  + 16384*g + 8*(row % 8) + col + 32768;
              #pragma unroll
              for (int j = 0; j < 32; ++j) {
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                  *(float2*)(to + 512*j + 256*(((row / 8) + i) % 2) + 64*((8*i + row) / 16)) =
                      *(const float2*)&acc[4*j + 2*i];
                }
              }
            }
            const int count = (parts_1 + 11) / 12;
            // test_golden.py:27 reduction: number_3: i32 2
            int* const number_3 = (int*)(shared_memory + 229456);
            // test_golden.py:27 reduction: barrier g + 1 of 128 threads
            role_barrier_of_group<128>(g + 1);
            // test_golden.py:27 reduction: take a ticket of arrived[tile_1, g], the last of count resets it
            if (tid == 0) number_3[g] = take_ticket_of(arrived + 2*tile_1 + g, count);
            // test_golden.py:27 reduction: barrier g + 1 of 128 threads
            role_barrier_of_group<128>(g + 1);
            const int number_5 = number_3[g];
            has_all = max_int(-(long long)count + (long long)number_5 + 2, 0);
            if (0 < max_int(-count + number_5 + 2, 0)) {
              // test_golden.py:27 reduction: acc = 0
              #pragma unroll
              for (int i = 0; i < 128; ++i) acc[i] = 0.0f;
              for (int turn_3 = 0; turn_3 < count; ++turn_3) {
                // test_golden.py:27 reduction: part_3: f32 64x256, 128 per thread
                __align__(8) float part_3[128] = {};
                {
                  // test_golden.py:27 reduction: ordered_7.merge(1, 3) -> part_3, 8 bytes at a time
                  {
                    const int row = 16*(tid / 32) + ((tid / 4) % 8);
                    const int col = 2*(tid % 4);
                    const float* from = partial_sums + 786432*turn_3
                        + 65536*owner_1 - 32768*min_int(12*turn_3, 1) + 16384*g + 8*(row % 8) + col
                        + 32768;
                    #pragma unroll
                    for (int j = 0; j < 32; ++j) {
                      #pragma unroll
                      for (int i = 0; i < 2; ++i) {
                        *(uint2*)&part_3[4*j + 2*i] =
                            *(const uint2*)(from + 512*j + 256*(((row / 8) + i) % 2)
                            + 64*((8*i + row) / 16));
                      }
                    }
                  }
                }
                // test_golden.py:27 reduction: add_1 = add(acc, part_3)
                float add_1[128];
                #pragma unroll
                for (int i = 0; i < 128; ++i) add_1[i] = acc[i] + part_3[i];
                // test_golden.py:27 reduction: add_1 -> acc
                #pragma unroll
                for (int i = 0; i < 128; ++i) acc[i] = add_1[i];
              }
            }
          }
        }
        const long long has_all_now = has_all;
        last = has_all_now;
      }
      const long long last_now = last;
      if (0 < last_now) {
        // test_golden.py:28 epilogue: rbias: bf16 1x64, 16 per thread
        __align__(4) bf16_t rbias[16];
        // test_golden.py:28 epilogue: tile_3 -> rbias, 4 bytes at a time
        {
          const int col = 2*(tid % 4);
          const bf16_t* from = bias + 256*n_1 + col + 64;
          #pragma unroll
          for (int i = 0; i < 8; ++i) {
            *(unsigned*)&rbias[2*i] = load_if<unsigned>(256*n_1 + 8*i + col + 64 < N, from + 8*i);
          }
        }
        // test_golden.py:27 epilogue: part_4 = acc[0:64, 0:64]
        float part_4[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) part_4[i] = acc[i];
        // test_golden.py:28 epilogue: rbias_1: bf16 1x64, 16 per thread
        __align__(4) bf16_t rbias_1[16];
        // test_golden.py:28 epilogue: tile_5 -> rbias_1, 4 bytes at a time
        {
          const int col = 2*(tid % 4);
          const bf16_t* from = bias + 256*n_1 + col;
          #pragma unroll
          for (int i = 0; i < 8; ++i) {
            *(unsigned*)&rbias_1[2*i] = load_if<unsigned>(256*n_1 + 8*i + col < N, from + 8*i);
          }
        }
        // test_golden.py:28 epilogue: convert = convert(rbias_1)
        float convert[16];
        #pragma unroll
        for (int i = 0; i < 16; ++i) convert[i] = bf16_to_float(rbias_1[i]);
        // test_golden.py:28 epilogue: add_2 = add(part_4, convert)
        float add_2[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) add_2[i] = part_4[i] + convert[2*(i / 4) + (i % 2)];
        // test_golden.py:28 epilogue: silu = silu(add_2)
        float silu_1[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) silu_1[i] = fast_silu(add_2[i]);
        // test_golden.py:28 epilogue: wait until at most 1 groups of stores read shared memory
        if (tid == 0) bulk_wait<1>();
        // test_golden.py:28 epilogue: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:28 epilogue: silu -> held_3, 4 matrices at a time
        {
          const int row = 16*(tid / 32) + (tid % 16);
          const int col = 8*((tid / 16) % 2);
          const int start_2 = 8192*g + 64*row + ((8*(row % 8)) ^ col);
          #pragma unroll
          for (int i = 0; i < 4; ++i) {
            __align__(4) bf16_t packed[8];
            #pragma unroll
            for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(silu_1[8*i + e]);
            stmatrix_x4(sC + ((16*i) ^ start_2), packed);
          }
        }
        // test_golden.py:28 epilogue: make writes to shared memory visible to TMA and tensor cores
        fence_async();
        // test_golden.py:28 epilogue: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:28 epilogue: held_4 -> tile_6, by TMA
        if (tid == 0) {
          tma_store_2d(&C_map, sC + 8192*g, 256*n_1, 128*m_1 + 64*g);
          // test_golden.py:28 epilogue: close the group of stores
          bulk_commit();
        }
        // test_golden.py:28 epilogue: rbias_2: bf16 1x64, 16 per thread
        __align__(4) bf16_t rbias_2[16];
        // test_golden.py:28 epilogue: tile_8 -> rbias_2, 4 bytes at a time
        {
          const int col = 2*(tid % 4);
          const bf16_t* from = bias + 256*n_1 + col + 128;
          #pragma unroll
          for (int i = 0; i < 8; ++i) {
            *(unsigned*)&rbias_2[2*i] =
                load_if<unsigned>(256*n_1 + 8*i + col + 128 < N, from + 8*i);
          }
        }
        // test_golden.py:27 epilogue: part_5 = acc[0:64, 64:128]
        float part_5[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) part_5[i] = acc[i + 32];
        // test_golden.py:28 epilogue: convert_1 = convert(rbias)
        float convert_1[16];
        #pragma unroll
        for (int i = 0; i < 16; ++i) convert_1[i] = bf16_to_float(rbias[i]);
        // test_golden.py:28 epilogue: add_3 = add(part_5, convert_1)
        float add_3[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) add_3[i] = part_5[i] + convert_1[2*(i / 4) + (i % 2)];
        // test_golden.py:28 epilogue: silu_1 = silu(add_3)
        float silu_1_1[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) silu_1_1[i] = fast_silu(add_3[i]);
        // test_golden.py:28 epilogue: wait until at most 1 groups of stores read shared memory
        if (tid == 0) bulk_wait<1>();
        // test_golden.py:28 epilogue: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:28 epilogue: silu_1 -> held_5, 4 matrices at a time
        {
          const int row = 16*(tid / 32) + (tid % 16);
          const int col = 8*((tid / 16) % 2);
          const int start_2 = 8192*g + 64*row + ((8*(row % 8)) ^ col) + 4096;
          #pragma unroll
          for (int i = 0; i < 4; ++i) {
            __align__(4) bf16_t packed[8];
            #pragma unroll
            for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(silu_1_1[8*i + e]);
            stmatrix_x4(sC + ((16*i) ^ start_2), packed);
          }
        }
        // test_golden.py:28 epilogue: make writes to shared memory visible to TMA and tensor cores
        fence_async();
        // test_golden.py:28 epilogue: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:28 epilogue: held_6 -> tile_9, by TMA
        if (tid == 0) {
          tma_store_2d(&C_map, sC + 8192*g + 4096, 256*n_1 + 64, 128*m_1 + 64*g);
          // test_golden.py:28 epilogue: close the group of stores
          bulk_commit();
        }
        // test_golden.py:28 epilogue: rbias_3: bf16 1x64, 16 per thread
        __align__(4) bf16_t rbias_3[16];
        // test_golden.py:28 epilogue: tile_11 -> rbias_3, 4 bytes at a time
        {
          const int col = 2*(tid % 4);
          const bf16_t* from = bias + 256*n_1 + col + 192;
          #pragma unroll
          for (int i = 0; i < 8; ++i) {
            *(unsigned*)&rbias_3[2*i] =
                load_if<unsigned>(256*n_1 + 8*i + col + 192 < N, from + 8*i);
          }
        }
        // test_golden.py:27 epilogue: part_6 = acc[0:64, 128:192]
        float part_6[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) part_6[i] = acc[i + 64];
        // test_golden.py:28 epilogue: convert_2 = convert(rbias_2)
        float convert_2[16];
        #pragma unroll
        for (int i = 0; i < 16; ++i) convert_2[i] = bf16_to_float(rbias_2[i]);
        // test_golden.py:28 epilogue: add_4 = add(part_6, convert_2)
        float add_4[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) add_4[i] = part_6[i] + convert_2[2*(i / 4) + (i % 2)];
        // test_golden.py:28 epilogue: silu_2 = silu(add_4)
        float silu_2[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) silu_2[i] = fast_silu(add_4[i]);
        // test_golden.py:28 epilogue: wait until at most 1 groups of stores read shared memory
        if (tid == 0) bulk_wait<1>();
        // test_golden.py:28 epilogue: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:28 epilogue: silu_2 -> held_7, 4 matrices at a time
        {
          const int row = 16*(tid / 32) + (tid % 16);
          const int col = 8*((tid / 16) % 2);
          const int start_2 = 8192*g + 64*row + ((8*(row % 8)) ^ col);
          #pragma unroll
          for (int i = 0; i < 4; ++i) {
            __align__(4) bf16_t packed[8];
            #pragma unroll
            for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(silu_2[8*i + e]);
            stmatrix_x4(sC + ((16*i) ^ start_2), packed);
          }
        }
        // test_golden.py:28 epilogue: make writes to shared memory visible to TMA and tensor cores
        fence_async();
        // test_golden.py:28 epilogue: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:28 epilogue: held_8 -> tile_12, by TMA
        if (tid == 0) {
          tma_store_2d(&C_map, sC + 8192*g, 256*n_1 + 128, 128*m_1 + 64*g);
          // test_golden.py:28 epilogue: close the group of stores
          bulk_commit();
        }
        // test_golden.py:27 epilogue: part_7 = acc[0:64, 192:256]
        float part_7[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) part_7[i] = acc[i + 96];
        // test_golden.py:28 epilogue: convert_3 = convert(rbias_3)
        float convert_3[16];
        #pragma unroll
        for (int i = 0; i < 16; ++i) convert_3[i] = bf16_to_float(rbias_3[i]);
        // test_golden.py:28 epilogue: add_5 = add(part_7, convert_3)
        float add_5[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) add_5[i] = part_7[i] + convert_3[2*(i / 4) + (i % 2)];
        // test_golden.py:28 epilogue: silu_3 = silu(add_5)
        float silu_3[32];
        #pragma unroll
        for (int i = 0; i < 32; ++i) silu_3[i] = fast_silu(add_5[i]);
        // test_golden.py:28 epilogue: wait until at most 1 groups of stores read shared memory
        if (tid == 0) bulk_wait<1>();
        // test_golden.py:28 epilogue: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:28 epilogue: silu_3 -> held_9, 4 matrices at a time
        {
          const int row = 16*(tid / 32) + (tid % 16);
          const int col = 8*((tid / 16) % 2);
          const int start_2 = 8192*g + 64*row + ((8*(row % 8)) ^ col) + 4096;
          #pragma unroll
          for (int i = 0; i < 4; ++i) {
            __align__(4) bf16_t packed[8];
            #pragma unroll
            for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(silu_3[8*i + e]);
            stmatrix_x4(sC + ((16*i) ^ start_2), packed);
          }
        }
        // test_golden.py:28 epilogue: make writes to shared memory visible to TMA and tensor cores
        fence_async();
        // test_golden.py:28 epilogue: barrier g + 1 of 128 threads
        role_barrier_of_group<128>(g + 1);
        // test_golden.py:28 epilogue: held_10 -> tile_13, by TMA
        if (tid == 0) {
          tma_store_2d(&C_map, sC + 8192*g + 4096, 256*n_1 + 192, 128*m_1 + 64*g);
          // test_golden.py:28 epilogue: close the group of stores
          bulk_commit();
        }
      }
    }
    // test_golden.py:28 epilogue: wait until at most 0 groups of stores read shared memory
    if (tid == 0) bulk_wait<0>();
  }
}
