typedef unsigned word_8 __attribute__((ext_vector_type(2), may_alias));

typedef unsigned word_16 __attribute__((ext_vector_type(4), may_alias));

__attribute__((device)) inline float fmaf(float x, float y, float z) {
  return __builtin_fmaf(x, y, z);
}

struct half_t { unsigned short bits; };

__attribute__((device)) inline float half_to_float(half_t x) {
  return __builtin_bit_cast(_Float16, x.bits);
}

__attribute__((device)) inline half_t float_to_half(float x) {
  return half_t{__builtin_bit_cast(unsigned short, (_Float16)x)};
}

__attribute__((device)) inline void block_barrier_of_shared() {
  // Orders accesses to shared memory alone: loads from global memory stay on their way.
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
#if __clang_major__ < 22 && defined(__GFX11__)
  // The builtin of these compilers waits for all loads.
  asm volatile("s_barrier" : : : "memory");
#elif __clang_major__ < 22 && defined(__GFX12__)
  asm volatile("s_barrier_signal -1\n\ts_barrier_wait -1" : : : "memory");
#else
  __builtin_amdgcn_s_barrier();
#endif
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

// - sA re-laid out: swizzle<1, 3, 4>
// - sB re-laid out: swizzle<3, 3, 4>
extern "C" __attribute__((global)) void __attribute__((amdgpu_flat_work_group_size(256, 256))) basic_gemm(
    const half_t* A, const half_t* B, half_t* C, int M, int A_stride0, int K, int N, int B_stride0,
    int C_stride0) {
  const int tid = __builtin_amdgcn_workitem_id_x();
  const int m = __builtin_amdgcn_workgroup_id_x();  // of M / 64
  const int n = __builtin_amdgcn_workgroup_id_y();  // of N / 64
  __attribute__((shared, aligned(128))) unsigned char shared_memory[8192];
  // 02_basic_gemm.py:18: sA: f16 64x32
  half_t* const sA = (half_t*)shared_memory;
  // 02_basic_gemm.py:19: sB: f16 64x32
  half_t* const sB = (half_t*)(shared_memory + 4096);
  // 02_basic_gemm.py:20: acc: f32 64x64, 16 per thread
  float acc[16] = {};
  const int k_end = K / 32;
  for (int k = 0; k < k_end; ++k) {
    // 02_basic_gemm.py:22: A.tile((64, 32), (m, k)) -> sA, 16 bytes at a time
    {
      const int row = tid / 4;
      const int col = 8*(tid % 4);
      const half_t* from = A + 32*k + (64*m + row)*A_stride0 + col;
      half_t* to = sA + 32*row + ((8*((row / 4) % 2)) ^ col);
      const word_16 moved = *(const word_16*)(from);
      *(word_16*)(to) = moved;
    }
    // 02_basic_gemm.py:23: B.tile((64, 32), (n, k)) -> sB, 16 bytes at a time
    {
      const int row = tid / 4;
      const int col = 8*(tid % 4);
      const half_t* from = B + 32*k + (64*n + row)*B_stride0 + col;
      half_t* to = sB + ((32*row + col) ^ (8*((row / 4) % 8)));
      const word_16 moved = *(const word_16*)(from);
      *(word_16*)(to) = moved;
    }
    // 02_basic_gemm.py:24: barrier
    block_barrier_of_shared();
    #pragma unroll
    for (int k_step = 0; k_step < 8; ++k_step) {
      // 02_basic_gemm.py:25: sA_frag: f16 64x4, 16 per thread
      __attribute__((aligned(8))) half_t sA_frag[16];
      // 02_basic_gemm.py:25: sA_step -> sA_frag, 8 bytes at a time
      {
        const int row = 4*((tid / 8) % 16);
        const int start = 32*row + 2*(row % 8);
        const half_t* from = sA + ((4*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 4; ++i) *(word_8*)&sA_frag[4*i] = *(const word_8*)(from + 32*i);
      }
      // 02_basic_gemm.py:25: sA_frag_1 = sA_frag[0:64, 0:4]
      __attribute__((aligned(4))) half_t sA_frag_1[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) sA_frag_1[i] = sA_frag[4*(i % 4) + (i / 4)];
      // 02_basic_gemm.py:25: sB_frag: f16 64x4, 16 per thread
      __attribute__((aligned(8))) half_t sB_frag[16];
      // 02_basic_gemm.py:25: sB_step -> sB_frag, 8 bytes at a time
      {
        const int row = 32*(tid / 128) + 4*(tid % 8);
        const int start = 32*row + 2*(row % 32);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          *(word_8*)&sB_frag[4*i] = *(const word_8*)(sB + ((32*i + 4*k_step) ^ start));
        }
      }
      // 02_basic_gemm.py:25: sB_frag_1 = sB_frag[0:64, 0:4]
      __attribute__((aligned(4))) half_t sB_frag_1[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) sB_frag_1[i] = sB_frag[4*(i % 4) + (i / 4)];
      // 02_basic_gemm.py:25: acc += sA_frag_1 * sB_frag_1
      #pragma unroll
      for (int step = 0; step < 4; ++step) {
        #pragma unroll
        for (int x = 0; x < 4; ++x) {
          #pragma unroll
          for (int y = 0; y < 4; ++y) {
            acc[4*x + y] =
                fmaf(half_to_float(sA_frag_1[4*step + x]), half_to_float(sB_frag_1[4*step + y]),
                acc[4*x + y]);
          }
        }
      }
    }
    // 02_basic_gemm.py:26: barrier
    block_barrier_of_shared();
  }
  // 02_basic_gemm.py:27: acc -> C.tile((64, 64), (m, n)), 8 bytes at a time
  {
    const int row = 4*((tid / 8) % 16);
    const int col = 32*(tid / 128) + 4*(tid % 8);
    half_t* to = C + 64*n + (64*m + row)*C_stride0 + col;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      __attribute__((aligned(8))) half_t packed[4];
      #pragma unroll
      for (int e = 0; e < 4; ++e) packed[e] = float_to_half(acc[4*i + e]);
      *(word_8*)(to + C_stride0*i) = *(const word_8*)packed;
    }
  }
}
