struct bf16_t { unsigned short bits; };

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

__device__ __forceinline__ int cluster_block_x() {
  int index;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(index));
  return index;
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

__device__ __forceinline__ void mbarrier_arrive_at(mbarrier_t* barrier, int block) {
  asm volatile("{\n"
               ".reg .b32 there;\n"
               "mapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
               "}" ::"r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(block) : "memory");
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

__device__ __forceinline__ void tma_load_multicast_2d(const tensor_map_t* map, void* to, mbarrier_t* barrier, unsigned short blocks, int x0, int x1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%4, %5}], [%2], %3;"
               ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(map), "r"((unsigned)__cvta_generic_to_shared(barrier)), "h"(blocks), "r"(x0), "r"(x1) : "memory");
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

template <int number, int threads>
__device__ __forceinline__ void role_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(number), "n"(threads) : "memory");
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
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

extern "C" __global__ void __launch_bounds__(384, 1) __cluster_dims__(2, 1, 1) cluster_gemm(
    int M, int K, int N, const __grid_constant__ tensor_map_t A_map,
    const __grid_constant__ tensor_map_t B_map, const __grid_constant__ tensor_map_t C_map) {
  const int tid = threadIdx.x;
  const int block_m = blockIdx.x;  // of 132
  const int row = cluster_block_x();  // of 2
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const int first = block_m / 2;
  // clusters.py:39: sA: bf16 4x2x64x64
  bf16_t* const sA = (bf16_t*)shared_memory;
  // clusters.py:40: sB: bf16 4x256x64
  bf16_t* const sB = (bf16_t*)(shared_memory + 65536);
  // clusters.py:41: sC: bf16 2x2x64x64
  bf16_t* const sC = (bf16_t*)(shared_memory + 196608);
  // clusters.py:42: full: 4 barriers of 1 arrivals
  mbarrier_t* const full = (mbarrier_t*)(shared_memory + 229376);
  if (tid == 0) mbarrier_init(full, 4, 1);
  // clusters.py:43: empty: 4 barriers of 16 arrivals
  mbarrier_t* const empty = (mbarrier_t*)(shared_memory + 229408);
  if (tid == 0) mbarrier_init(empty, 4, 16);
  // clusters.py:44: barrier of the cluster
  cluster_barrier();
  // clusters.py:58: warps 0 to 3
  if (tid < 128) {
    set_registers_down<40>();
    // clusters.py:58: warp 0
    if (tid < 32) {
      const int turn_end = ((M / 256)*(N / 256) - first + 65) / 66;
      for (int turn = 0; turn < turn_end; ++turn) {
        const int band = 8*((66*turn + first) / (8*(N / 256)));
        const int rows = min_int((M / 256) - band, 8);
        const int m = (((66*turn + first) % (8*(N / 256))) % rows) + band;
        const int n = ((66*turn + first) % (8*(N / 256))) / rows;
        const int k_end = K / 64;
        for (int k = 0; k < k_end; ++k) {
          const int step = (K / 64)*turn + k;
          const int stage = step % 4;
          // clusters.py:64: wait for empty
          mbarrier_wait(empty + stage, -((step / 4) % 2) + 1);
          // clusters.py:65: full waits for 49152 bytes
          if (tid == 0) {
            mbarrier_arrive_expect(full + stage, 49152);
            // clusters.py:70: from_a -> part_a, by TMA
            tma_load_2d(&A_map, sA + 8192*stage, full + stage, 64*k, 256*m + 128*row);
            // clusters.py:71: from_b -> part_b, by TMA, to all blocks along axis 0
            tma_load_multicast_2d(&B_map, sB + 16384*stage + 8192*row, full + stage, 0x3, 64*k,
                256*n + 128*row);
          }
        }
      }
    }
  }
  // clusters.py:74: warps 4 to 7
  else if (tid < 256) {
    set_registers_up<232>();
    const int tid = threadIdx.x - 128;
    const int turn_1_end = ((M / 256)*(N / 256) - first + 65) / 66;
    for (int turn_1 = 0; turn_1 < turn_1_end; ++turn_1) {
      const int band_1 = 8*((66*turn_1 + first) / (8*(N / 256)));
      const int rows_1 = min_int((M / 256) - band_1, 8);
      const int m_1 = (((66*turn_1 + first) % (8*(N / 256))) % rows_1) + band_1;
      const int n_1 = ((66*turn_1 + first) % (8*(N / 256))) / rows_1;
      // clusters.py:77: acc: f32 64x256, 128 per thread
      float acc[128] = {};
      const int k_1_end = K / 64;
      for (int k_1 = 0; k_1 < k_1_end; ++k_1) {
        const int step_1 = (K / 64)*turn_1 + k_1;
        const int stage_1 = step_1 % 4;
        // clusters.py:81: wait for full
        mbarrier_wait(full + stage_1, (step_1 / 4) % 2);
        // clusters.py:82: registers are ready
        mma_fence();
        // clusters.py:83: acc += sA[stage_1, 0] * sB[stage_1], by wgmma.m64n256k16.f32.bf16
        {
          const descriptor_t a = descriptor(sA + 8192*stage_1);
          const descriptor_t b = descriptor(sB + 16384*stage_1);
          #pragma unroll
          for (int i = 0; i < 4; ++i) wgmma_m64n256k16_bf16(acc, a + 2*i, b + 2*i);
        }
        // clusters.py:84: close the group of MMAs
        mma_commit();
        // clusters.py:85: wait until at most 1 groups of MMAs are unfinished
        mma_wait<1>();
        if (0 < k_1) {
          // clusters.py:54: each warp arrives at empty
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(empty + (step_1 + 3) % 4);
          // clusters.py:54: each warp arrives at empty of another block
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive_at(empty + (step_1 + 3) % 4, (row + 1) % 2);
        }
      }
      // clusters.py:88: wait until at most 0 groups of MMAs are unfinished
      mma_wait<0>();
      if (0 < K / 64) {
        // clusters.py:54: each warp arrives at empty
        __syncwarp();
        if (tid % 32 == 0) mbarrier_arrive(empty + 3);
        // clusters.py:54: each warp arrives at empty of another block
        __syncwarp();
        if (tid % 32 == 0) mbarrier_arrive_at(empty + 3, (row + 1) % 2);
      }
      // clusters.py:98: wait until at most 1 groups of stores read shared memory
      if (tid == 0) bulk_wait<1>();
      // clusters.py:99: barrier 1 of 128 threads
      role_barrier<1, 128>();
      // clusters.py:100: part = acc[0:64, 0:64]
      float part[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part[i] = acc[i];
      // clusters.py:100: part -> buffer, 4 matrices at a time
      {
        const int row_1 = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row_1 + ((8*(row_1 % 8)) ^ col);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // clusters.py:101: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // clusters.py:102: barrier 1 of 128 threads
      role_barrier<1, 128>();
      // clusters.py:103: buffer -> target, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC, 256*n_1, 256*m_1 + 128*row);
        // clusters.py:104: close the group of stores
        bulk_commit();
        // clusters.py:98: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // clusters.py:99: barrier 1 of 128 threads
      role_barrier<1, 128>();
      // clusters.py:100: part_1 = acc[0:64, 64:128]
      float part_1[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_1[i] = acc[i + 32];
      // clusters.py:100: part_1 -> buffer_1, 4 matrices at a time
      {
        const int row_1 = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row_1 + ((8*(row_1 % 8)) ^ col) + 4096;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_1[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // clusters.py:101: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // clusters.py:102: barrier 1 of 128 threads
      role_barrier<1, 128>();
      // clusters.py:103: buffer_1 -> target_1, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 4096, 256*n_1 + 64, 256*m_1 + 128*row);
        // clusters.py:104: close the group of stores
        bulk_commit();
        // clusters.py:98: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // clusters.py:99: barrier 1 of 128 threads
      role_barrier<1, 128>();
      // clusters.py:100: part_2 = acc[0:64, 128:192]
      float part_2[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_2[i] = acc[i + 64];
      // clusters.py:100: part_2 -> buffer_2, 4 matrices at a time
      {
        const int row_1 = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row_1 + ((8*(row_1 % 8)) ^ col);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_2[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // clusters.py:101: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // clusters.py:102: barrier 1 of 128 threads
      role_barrier<1, 128>();
      // clusters.py:103: buffer_2 -> target_2, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC, 256*n_1 + 128, 256*m_1 + 128*row);
        // clusters.py:104: close the group of stores
        bulk_commit();
        // clusters.py:98: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // clusters.py:99: barrier 1 of 128 threads
      role_barrier<1, 128>();
      // clusters.py:100: part_3 = acc[0:64, 192:256]
      float part_3[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_3[i] = acc[i + 96];
      // clusters.py:100: part_3 -> buffer_3, 4 matrices at a time
      {
        const int row_1 = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row_1 + ((8*(row_1 % 8)) ^ col) + 4096;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_3[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // clusters.py:101: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // clusters.py:102: barrier 1 of 128 threads
      role_barrier<1, 128>();
      // clusters.py:103: buffer_3 -> target_3, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 4096, 256*n_1 + 192, 256*m_1 + 128*row);
        // clusters.py:104: close the group of stores
        bulk_commit();
      }
    }
    // clusters.py:105: wait until at most 0 groups of stores read shared memory
    if (tid == 0) bulk_wait<0>();
  }
  // clusters.py:74: warps 8 to 11
  else {
    set_registers_up<232>();
    const int tid = threadIdx.x - 256;
    const int turn_2_end = ((M / 256)*(N / 256) - first + 65) / 66;
    for (int turn_2 = 0; turn_2 < turn_2_end; ++turn_2) {
      const int band_2 = 8*((66*turn_2 + first) / (8*(N / 256)));
      const int rows_2 = min_int((M / 256) - band_2, 8);
      const int m_2 = (((66*turn_2 + first) % (8*(N / 256))) % rows_2) + band_2;
      const int n_2 = ((66*turn_2 + first) % (8*(N / 256))) / rows_2;
      // clusters.py:77: acc_1: f32 64x256, 128 per thread
      float acc_1[128] = {};
      const int k_2_end = K / 64;
      for (int k_2 = 0; k_2 < k_2_end; ++k_2) {
        const int step_2 = (K / 64)*turn_2 + k_2;
        const int stage_2 = step_2 % 4;
        // clusters.py:81: wait for full
        mbarrier_wait(full + stage_2, (step_2 / 4) % 2);
        // clusters.py:82: registers are ready
        mma_fence();
        // clusters.py:83: acc_1 += sA[stage_2, 1] * sB[stage_2], by wgmma.m64n256k16.f32.bf16
        {
          const descriptor_t a = descriptor(sA + 8192*stage_2 + 4096);
          const descriptor_t b = descriptor(sB + 16384*stage_2);
          #pragma unroll
          for (int i = 0; i < 4; ++i) wgmma_m64n256k16_bf16(acc_1, a + 2*i, b + 2*i);
        }
        // clusters.py:84: close the group of MMAs
        mma_commit();
        // clusters.py:85: wait until at most 1 groups of MMAs are unfinished
        mma_wait<1>();
        if (0 < k_2) {
          // clusters.py:54: each warp arrives at empty
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive(empty + (step_2 + 3) % 4);
          // clusters.py:54: each warp arrives at empty of another block
          __syncwarp();
          if (tid % 32 == 0) mbarrier_arrive_at(empty + (step_2 + 3) % 4, (row + 1) % 2);
        }
      }
      // clusters.py:88: wait until at most 0 groups of MMAs are unfinished
      mma_wait<0>();
      if (0 < K / 64) {
        // clusters.py:54: each warp arrives at empty
        __syncwarp();
        if (tid % 32 == 0) mbarrier_arrive(empty + 3);
        // clusters.py:54: each warp arrives at empty of another block
        __syncwarp();
        if (tid % 32 == 0) mbarrier_arrive_at(empty + 3, (row + 1) % 2);
      }
      // clusters.py:98: wait until at most 1 groups of stores read shared memory
      if (tid == 0) bulk_wait<1>();
      // clusters.py:99: barrier 2 of 128 threads
      role_barrier<2, 128>();
      // clusters.py:100: part_4 = acc_1[0:64, 0:64]
      float part_4[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_4[i] = acc_1[i];
      // clusters.py:100: part_4 -> buffer_4, 4 matrices at a time
      {
        const int row_1 = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row_1 + ((8*(row_1 % 8)) ^ col) + 8192;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_4[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // clusters.py:101: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // clusters.py:102: barrier 2 of 128 threads
      role_barrier<2, 128>();
      // clusters.py:103: buffer_4 -> target_4, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 8192, 256*n_2, 256*m_2 + 128*row + 64);
        // clusters.py:104: close the group of stores
        bulk_commit();
        // clusters.py:98: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // clusters.py:99: barrier 2 of 128 threads
      role_barrier<2, 128>();
      // clusters.py:100: part_5 = acc_1[0:64, 64:128]
      float part_5[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_5[i] = acc_1[i + 32];
      // clusters.py:100: part_5 -> buffer_5, 4 matrices at a time
      {
        const int row_1 = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row_1 + ((8*(row_1 % 8)) ^ col) + 12288;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_5[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // clusters.py:101: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // clusters.py:102: barrier 2 of 128 threads
      role_barrier<2, 128>();
      // clusters.py:103: buffer_5 -> target_5, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 12288, 256*n_2 + 64, 256*m_2 + 128*row + 64);
        // clusters.py:104: close the group of stores
        bulk_commit();
        // clusters.py:98: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // clusters.py:99: barrier 2 of 128 threads
      role_barrier<2, 128>();
      // clusters.py:100: part_6 = acc_1[0:64, 128:192]
      float part_6[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_6[i] = acc_1[i + 64];
      // clusters.py:100: part_6 -> buffer_6, 4 matrices at a time
      {
        const int row_1 = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row_1 + ((8*(row_1 % 8)) ^ col) + 8192;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_6[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // clusters.py:101: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // clusters.py:102: barrier 2 of 128 threads
      role_barrier<2, 128>();
      // clusters.py:103: buffer_6 -> target_6, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 8192, 256*n_2 + 128, 256*m_2 + 128*row + 64);
        // clusters.py:104: close the group of stores
        bulk_commit();
        // clusters.py:98: wait until at most 1 groups of stores read shared memory
        bulk_wait<1>();
      }
      // clusters.py:99: barrier 2 of 128 threads
      role_barrier<2, 128>();
      // clusters.py:100: part_7 = acc_1[0:64, 192:256]
      float part_7[32];
      #pragma unroll
      for (int i = 0; i < 32; ++i) part_7[i] = acc_1[i + 96];
      // clusters.py:100: part_7 -> buffer_7, 4 matrices at a time
      {
        const int row_1 = 16*(tid / 32) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 64*row_1 + ((8*(row_1 % 8)) ^ col) + 12288;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          __align__(4) bf16_t packed[8];
          #pragma unroll
          for (int e = 0; e < 8; ++e) packed[e] = float_to_bf16(part_7[8*i + e]);
          stmatrix_x4(sC + ((16*i) ^ start), packed);
        }
      }
      // clusters.py:101: make writes to shared memory visible to TMA and tensor cores
      fence_async();
      // clusters.py:102: barrier 2 of 128 threads
      role_barrier<2, 128>();
      // clusters.py:103: buffer_7 -> target_7, by TMA
      if (tid == 0) {
        tma_store_2d(&C_map, sC + 12288, 256*n_2 + 192, 256*m_2 + 128*row + 64);
        // clusters.py:104: close the group of stores
        bulk_commit();
      }
    }
    // clusters.py:105: wait until at most 0 groups of stores read shared memory
    if (tid == 0) bulk_wait<0>();
  }
  // clusters.py:106: barrier of the cluster
  cluster_barrier();
}
