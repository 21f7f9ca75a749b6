extern "C" __global__ void __launch_bounds__(128) register_gemm(
    const bf16_t* A, const bf16_t* B, bf16_t* C, int M, int A_stride0, int K, int N, int B_stride0,
    int C_stride0) {
  const int tid = threadIdx.x;
  const int m = blockIdx.x;  // of (M + 56) / 64
  const int n = blockIdx.y;  // of (N + 56) / 64
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  // registers.py:15: sB: bf16 64x64
  bf16_t* const sB = (bf16_t*)shared_memory;
  // registers.py:17: acc: f32 64x64, 32 per thread
  float acc[32] = {};
  const int k_end = (K + 56) / 64;
  for (int k = 0; k < k_end; ++k) {
    // registers.py:19: B.tile((64, 64), (n, k)) -> sB, 16 bytes at a time
    {
      const int row = 4*(tid % 16);
      const int col = 8*(tid / 16);
      const bf16_t* from = B + 64*k + (64*n + row)*B_stride0 + col;
      const bool inside = 64*k + col < K;
      bf16_t* to = sB + 64*row;
      uint4 moved[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        moved[i] = load_if<uint4>(inside && 64*n + i + row < N, from + B_stride0*i);
      }
      #pragma unroll
      for (int i = 0; i < 4; ++i) *(uint4*)(to + 64*i + ((8*(row % 8) + 8*i) ^ col)) = moved[i];
    }
    // registers.py:22: sA: bf16 64x64
    bf16_t* const sA = (bf16_t*)(shared_memory + 8192);
    // registers.py:23: source -> sA, 16 bytes at a time
    {
      const int row = 4*(tid % 16);
      const int col = 8*(tid / 16);
      const bf16_t* from = A + 64*k + (64*m + row)*A_stride0 + col;
      const bool inside = 64*k + col < K;
      bf16_t* to = sA + 64*row;
      uint4 moved[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        moved[i] = load_if<uint4>(inside && 64*m + i + row < M, from + A_stride0*i);
      }
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        *(uint4*)(to + 64*i + ((8*((row / 8) % 4)) ^ ((8*(row % 8) + 8*i) ^ col))) = moved[i];
      }
    }
    // registers.py:25: make writes to shared memory visible to TMA and tensor cores
    fence_async();
    // registers.py:26: barrier
    __syncthreads();
    // registers.py:27: a: bf16 64x64, 32 per thread
    __align__(4) bf16_t a[32];
    // registers.py:27: sA -> a, 4 matrices at a time
    {
      const int row = 16*(tid / 32) + (tid % 16);
      const int col = 8*((tid / 16) % 2);
      const bf16_t* from = sA + 64*row;
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        ldmatrix_x4(&a[8*i], from + ((8*((row / 8) % 4)) ^ ((16*i + col) ^ (8*(row % 8)))));
      }
    }
    // registers.py:28: registers are ready
    mma_fence();
    // registers.py:29: acc += a * sB, by wgmma.m64n64k16.f32.bf16
    {
      const descriptor_t b = descriptor(sB);
      #pragma unroll
      for (int i = 0; i < 4; ++i) wgmma_m64n64k16_bf16_registers(acc, &a[8*i], b + 2*i);
    }
    // registers.py:30: close the group of MMAs
    mma_commit();
    // registers.py:31: wait until at most 0 groups of MMAs are unfinished
    mma_wait<0>();
    // registers.py:32: barrier
    __syncthreads();
  }
  // registers.py:33: acc -> C.tile((64, 64), (m, n)), 4 bytes at a time
  {
    const int row = 16*(tid / 32) + ((tid / 4) % 8);
    const int col = 2*(tid % 4);
    bf16_t* to = C + 64*n + (64*m + row)*C_stride0 + col;
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        __align__(4) bf16_t packed[2];
        #pragma unroll
        for (int e = 0; e < 2; ++e) packed[e] = float_to_bf16(acc[4*j + 2*i + e]);
        if (64*m + 8*i + row < M && 64*n + 8*j + col < N) {
          *(unsigned*)(to + 8*C_stride0*i + 8*j) = *(const unsigned*)packed;
        }
      }
    }
  }
}
