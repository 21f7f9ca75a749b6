struct bf16_t { unsigned short bits; };

template <class A, class B>
__device__ __forceinline__ auto floor_div(A a, B b) {
  return a / b - (a % b != 0 && a < 0);
}

template <class A, class B>
__device__ __forceinline__ decltype(A() + B()) min_int(A a, B b) {
  return a < b ? a : b;
}

__device__ __forceinline__ bf16_t float_to_bf16(float x) {
  bf16_t y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
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

extern "C" __global__ void __launch_bounds__(384, 1) hopper_gemm(
    int M, int K, int N, int grid, const __grid_constant__ tensor_map_t A_map,
    const __grid_constant__ tensor_map_t B_map, const __grid_constant__ tensor_map_t C_map) {
  const int tid = threadIdx.x;
  const int block = blockIdx.x;  // of grid
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  // 03_hopper_gemm.py:51: sA: bf16 4x2x64x64
  bf16_t* const sA = (bf16_t*)shared_memory;
  // 03_hopper_gemm.py:52: sB: bf16 4x256x64
  bf16_t* const sB = (bf16_t*)(shared_memory + 65536);
  // 03_hopper_gemm.py:53: sC: bf16 2x2x64x64
  bf16_t* const sC = (bf16_t*)(shared_memory + 196608);
  // 03_hopper_gemm.py:54: full: 4 barriers of 1 arrivals
  mbarrier_t* const full = (mbarrier_t*)(shared_memory + 229376);
  if (tid == 0) mbarrier_init(full, 4, 1);
  // 03_hopper_gemm.py:55: empty: 4 barriers of 8 arrivals
  mbarrier_t* const empty = (mbarrier_t*)(shared_memory + 229408);
  if (tid == 0) mbarrier_init(empty, 4, 8);
  // 03_hopper_gemm.py:56: barrier
  __syncthreads();
  // 03_hopper_gemm.py:58: warps 0 to 3
  if (tid < 128) {
    set_registers_down<40>();
    // 03_hopper_gemm.py:58: warp 0
    if (tid < 32) {
      const int turn_end = floor_div(((M / 128)*(N / 256) - block - 1), grid) + 1;
      for (int turn = 0; turn < turn_end; ++turn) {
        const int band = 8*((grid*turn + block) / (8*(N / 256)));
        const int rows = min_int((M / 128) - band, 8);
        const int m = (((grid*turn + block) % (8*(N / 256))) % rows) + band;
        const int n = ((grid*turn + block) % (8*(N / 256))) / rows;
        const int k_end = K / 64;
        for (int k = 0; k < k_end; ++k) {
          const int step = (K / 64)*turn + k;
          const int stage = step % 4;
          // 03_hopper_gemm.py:64: wait for empty
          mbarrier_wait(empty + stage, -((step / 4) % 2) + 1);
          // 03_hopper_gemm.py:65: full waits for 49152 bytes
          if (tid == 0) {
            mbarrier_arrive_expect(full + stage, 49152);
            // 03_hopper_gemm.py:66: A.tile((128, 64), (m, k)) -> sA[stage].merge(0), by TMA
            tma_load_2d(&A_map, sA + 8192*stage, full + stage, 64*k, 128*m);
            // 03_hopper_gemm.py:67: B.tile((256, 64), (n, k)) -> sB[stage], by TMA
            tma_load_2d(&B_map, sB + 16384*stage, full + stage, 64*k, 256*n);
          }
        }
      }
    }
  }
  // 03_hopper_gemm.py:69: warps 4 to 11, in 2 groups
  else {
    set_registers_up<232>();
    const int g = uniform((threadIdx.x - 128) / 128);
    const int tid = threadIdx.x - (128*g + 128);
    const int turn_1_end = floor_div(((M / 128)*(N / 256) - block - 1), grid) + 1;
    for (int turn_1 = 0; turn_1 < turn_1_end; ++turn_1) {
      const int band_1 = 8*((grid*turn_1 + block) / (8*(N / 256)));
      const int rows_1 = min_int((M / 128) - band_1, 8);
      const int m_1 = (((grid*turn_1 + block) % (8*(N / 256))) % rows_1) + band_1;
      const int n_1 = ((grid*turn_1 + block) % (8*(N / 256))) / rows_1;
      // 03_hopper_gemm.py:72: acc: f32 64x256, 128 per thread
      float acc[128] = {};
      const int k_1_end = K / 64;
      for (int k_1 = 0; k_1 < k_1_end; ++k_1) {
        const int step_1 = (K / 64)*turn_1 + k_1;
        const int stage_1 = step_1 % 4;
        // 03_hopper_gemm.py:77: wait for full
        mbarrier_wait(full + stage_1, (step_1 / 4) % 2);
        // 03_hopper_gemm.py:78: registers are ready
        mma_fence();
        // 03_hopper_gemm.py:79: acc += sA[stage_1, g] * sB[stage_1], by wgmma.m64n256k16.f32.bf16
        {
          const descriptor_t a = descriptor(sA + 8192*stage_1 + 4096*g);
          const descriptor_t b = descriptor(sB + 16384*stage_1);
          #pragma unroll
          for (int i = 0; i < 4; ++i) wgmma_m64n256k16_bf16(acc, a + 2*i, b + 2*i);
        }
        // 03_hopper_gemm.py:80: close the group of MMAs
        mma_commit();
        // 03_hopper_gemm.py:81: wait until at most 1 groups of MMAs are unfinished
        mma_wait<1>();
        if (0 < k_1) {
          // 03_hopper_gemm.py:83: each warp arrives at empty
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(empty + (step_1 + 3) % 4);
        }
      }
      // 03_hopper_gemm.py:88: wait until at most 0 groups of MMAs are unfinished
      mma_wait<0>();
      if (0 < K / 64) {
        // 03_hopper_gemm.py:90: each warp arrives at empty
        __syncwarp();
        if (tid % 32 == 0) mbarrier_arrive(empty + 3);
      }
      // 03_hopper_gemm.py:103: wait until at most 1 groups of stores read shared memory
      if (tid == 0) bulk_wait<1>();
      // 03_hopper_gemm.py:104: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // 03_hopper_gemm.py:105: part = acc[0:64, 0:64]
      float part[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part[i] = acc[i];
      // 03_hopper_gemm.py:105: part -> buffer, 4 matrices at a time
      {
        const int row = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 8192*g + 64*row + ((8*(row % 8)) ^ col);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // 03_hopper_gemm.py:106: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // 03_hopper_gemm.py:107: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // 03_hopper_gemm.py:108: buffer -> target, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 8192*g, 256*n_1, 128*m_1 + 64*g);
        // 03_hopper_gemm.py:109: close the group of stores
        bulk_commit();
        // 03_hopper_gemm.py:103: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // 03_hopper_gemm.py:104: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // 03_hopper_gemm.py:105: part_1 = acc[0:64, 64:128]
      float part_1[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_1[i] = acc[i + 32];
      // 03_hopper_gemm.py:105: part_1 -> buffer_1, 4 matrices at a time
      {
        const int row = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 8192*g + 64*row + ((8*(row % 8)) ^ col) + 4096;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_1[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // 03_hopper_gemm.py:106: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // 03_hopper_gemm.py:107: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // 03_hopper_gemm.py:108: buffer_1 -> target_1, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 8192*g + 4096, 256*n_1 + 64, 128*m_1 + 64*g);
        // 03_hopper_gemm.py:109: close the group of stores
        bulk_commit();
        // 03_hopper_gemm.py:103: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // 03_hopper_gemm.py:104: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // 03_hopper_gemm.py:105: part_2 = acc[0:64, 128:192]
      float part_2[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_2[i] = acc[i + 64];
      // 03_hopper_gemm.py:105: part_2 -> buffer_2, 4 matrices at a time
      {
        const int row = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 8192*g + 64*row + ((8*(row % 8)) ^ col);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_2[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // 03_hopper_gemm.py:106: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // 03_hopper_gemm.py:107: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // 03_hopper_gemm.py:108: buffer_2 -> target_2, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 8192*g, 256*n_1 + 128, 128*m_1 + 64*g);
        // 03_hopper_gemm.py:109: close the group of stores
        bulk_commit();
        // 03_hopper_gemm.py:103: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // 03_hopper_gemm.py:104: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // 03_hopper_gemm.py:105: part_3 = acc[0:64, 192:256]
      float part_3[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_3[i] = acc[i + 96];
      // 03_hopper_gemm.py:105: part_3 -> buffer_3, 4 matrices at a time
      {
        const int row = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 8192*g + 64*row + ((8*(row % 8)) ^ col) + 4096;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_3[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // 03_hopper_gemm.py:106: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // 03_hopper_gemm.py:107: barrier g + 1 of 128 threads
      role_barrier_of_group<128>(g + 1);
      // 03_hopper_gemm.py:108: buffer_3 -> target_3, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 8192*g + 4096, 256*n_1 + 192, 128*m_1 + 64*g);
        // 03_hopper_gemm.py:109: close the group of stores
        bulk_commit();
      }
    }
    // 03_hopper_gemm.py:110: wait until at most 0 groups of stores read shared memory
    if (tid == 0) bulk_wait<0>();
  }
}
