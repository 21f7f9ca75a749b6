// sA re-laid out: swizzle<2, 3, 3>
// sB re-laid out: swizzle<3, 3, 3>
struct half_t { unsigned short bits; };

__device__ __forceinline__ half_t float_to_half(float x) {
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
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

__device__ __forceinline__ void mma_m16n8k16_f16(float* c, const void* a, const void* b) {
  const unsigned* x = (const unsigned*)a;
  const unsigned* y = (const unsigned*)b;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]),
                 "r"(y[0]), "r"(y[1]));
}

// - sA re-laid out: swizzle<2, 3, 3>
// - sB re-laid out: swizzle<3, 3, 3>
extern "C" __global__ void __launch_bounds__(128) pipelined_gemm(
    const half_t* A, const half_t* B, half_t* C, int M, int A_stride0, int K, int N, int B_stride1,
    int C_stride0) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of (M + 48) / 64
  const int n = blockIdx.y;  // of (N + 48) / 64
  extern __shared__ __align__(128) unsigned char shared_memory[];
  // pipelined.py:55: sA: f16 3x64x32
  half_t* const sA = (half_t*)shared_memory;
  // pipelined.py:55: sB: f16 3x64x32
  half_t* const sB = (half_t*)(shared_memory + 12288);
  // pipelined.py:19: acc: f32 64x64, 32 per thread
  float acc[32] = {};
  if (0 < (K + 16) / 32) {
    // pipelined.py:30: A.tile((64, 32), (m, 0)) -> sA[0], 16 bytes at a time, in the background
    {
      const int row = tid / 4;
      const int col = 8*(tid % 4);
      const half_t* from = A + (64*m + row)*A_stride0 + col;
      const bool inside = col < K;
      half_t* to = sA + 32*row + ((8*((row / 2) % 4)) ^ col);
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        copy_async<16>(to + 1024*i, from + 32*A_stride0*i, inside && 64*m + 32*i + row < M);
      }
    }
    // pipelined.py:30: B.tile((64, 32), (n, 0)) -> sB[0], 16 bytes at a time, in the background
    {
      const int row = 8*(tid % 8);
      const int col = tid / 8;
      const half_t* from = B + 64*n + B_stride1*col + row;
      const bool inside = 64*n + row < N;
      half_t* to = sB + 64*col + ((8*(col % 8)) ^ row);
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        copy_async<16>(to + 1024*i, from + 16*B_stride1*i, inside && 16*i + col < K);
      }
    }
  }
  // pipelined.py:31: close the group of copies
  async_commit();
  if (1 < (K + 16) / 32) {
    // pipelined.py:30: A.tile((64, 32), (m, 1)) -> sA[1], 16 bytes at a time, in the background
    {
      const int row = tid / 4;
      const int col = 8*(tid % 4);
      const half_t* from = A + (64*m + row)*A_stride0 + col + 32;
      const bool inside = col + 32 < K;
      half_t* to = sA + 32*row + ((8*((row / 2) % 4)) ^ col) + 2048;
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        copy_async<16>(to + 1024*i, from + 32*A_stride0*i, inside && 64*m + 32*i + row < M);
      }
    }
    // pipelined.py:30: B.tile((64, 32), (n, 1)) -> sB[1], 16 bytes at a time, in the background
    {
      const int row = 8*(tid % 8);
      const int col = tid / 8;
      const half_t* from = B + 64*n + (col + 32)*B_stride1 + row;
      const bool inside = 64*n + row < N;
      half_t* to = sB + 64*col + ((8*(col % 8)) ^ row) + 2048;
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        copy_async<16>(to + 1024*i, from + 16*B_stride1*i, inside && 16*i + col + 32 < K);
      }
    }
  }
  // pipelined.py:31: close the group of copies
  async_commit();
  const int k_end = (K + 16) / 32;
  for (int k = 0; k < k_end; ++k) {
    // pipelined.py:44: wait until at most 1 groups are unfinished
    async_wait<1>();
    // pipelined.py:45: barrier
    __syncthreads();
    if (k + 2 < (K + 16) / 32) {
      // pipelined.py:30: A.tile((64, 32), (m, k + 2)) -> sA[(k + 2) % 3], 16 bytes at a time, in the background
      {
        const int row = tid / 4;
        const int col = 8*(tid % 4);
        const half_t* from = A + 32*k + (64*m + row)*A_stride0 + col + 64;
        const bool inside = 32*k + col + 64 < K;
        half_t* to = sA + 2048*((k + 2) % 3) + 32*row + ((8*((row / 2) % 4)) ^ col);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          copy_async<16>(to + 1024*i, from + 32*A_stride0*i, inside && 64*m + 32*i + row < M);
        }
      }
      // pipelined.py:30: B.tile((64, 32), (n, k + 2)) -> sB[(k + 2) % 3], 16 bytes at a time, in the background
      {
        const int row = 8*(tid % 8);
        const int col = tid / 8;
        const half_t* from = B + 64*n + (32*k + col + 64)*B_stride1 + row;
        const bool inside = 64*n + row < N;
        half_t* to = sB + 2048*((k + 2) % 3) + 64*col + ((8*(col % 8)) ^ row);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          copy_async<16>(to + 1024*i, from + 16*B_stride1*i, inside && 32*k + 16*i + col + 64 < K);
        }
      }
    }
    // pipelined.py:31: close the group of copies
    async_commit();
    #pragma unroll
    for (int k_step = 0; k_step < 2; ++k_step) {
      // pipelined.py:47: sA_frag: f16 64x16, 16 per thread
      __align__(4) half_t sA_frag[16];
      // pipelined.py:47: sA_step -> sA_frag, 4 matrices at a time
      {
        const int row = 32*((tid / 32) % 2) + (tid % 16);
        const int col = 8*((tid / 16) % 2);
        const int start = 2048*(k % 3) + 32*row + ((8*((row / 2) % 4)) ^ col);
        const half_t* from = sA + ((16*k_step) ^ start);
        #pragma unroll
        for (int i = 0; i < 2; ++i) ldmatrix_x4(&sA_frag[8*i], from + 512*i);
      }
      // pipelined.py:47: sB_frag: f16 64x16, 16 per thread
      __align__(4) half_t sB_frag[16];
      // pipelined.py:47: sB_step -> sB_frag, 4 matrices at a time
      {
        const int row = 32*(tid / 64) + 8*((tid / 16) % 2);
        const int col = tid % 16;
        const half_t* from = sB + 2048*(k % 3) + 1024*k_step + 64*col;
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          ldmatrix_x4_trans(&sB_frag[8*i], from + ((16*i + row) ^ (8*(col % 8))));
        }
      }
      // pipelined.py:47: acc += sA_frag * sB_frag, by mma.m16n8k16.f32.f16
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) mma_m16n8k16_f16(&acc[8*j + 4*i], &sA_frag[8*i], &sB_frag[4*j]);
      }
    }
  }
  // kernels.py:32: acc -> C.tile((64, 64), (m, n)), 4 bytes at a time
  {
    const int row = 32*((tid / 32) % 2) + ((tid / 4) % 8);
    const int col = 32*(tid / 64) + 2*(tid % 4);
    half_t* to = C + 64*n + (64*m + row)*C_stride0 + col;
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        __align__(4) half_t packed[2];
        #pragma unroll
        for (int e = 0; e < 2; ++e) packed[e] = float_to_half(acc[8*j + 2*i + e]);
        if (64*m + 8*i + row < M && 64*n + 8*j + col < N) {
          *(unsigned*)(to + 8*C_stride0*i + 8*j) = *(const unsigned*)packed;
        }
      }
    }
  }
}
