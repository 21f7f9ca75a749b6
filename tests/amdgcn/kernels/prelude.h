// What the kernels here need of a language: attributes, vectors, a barrier that waits for LDS alone.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
typedef unsigned int u32; typedef unsigned short u16; typedef unsigned char u8; typedef unsigned long long u64;
typedef _Float16 f16; typedef __bf16 bf16;
typedef f16 f16x4 __attribute__((ext_vector_type(4)));
typedef f16 f16x8 __attribute__((ext_vector_type(8)));
typedef f16 f16x16 __attribute__((ext_vector_type(16)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x8 __attribute__((ext_vector_type(8)));
typedef float f32x16 __attribute__((ext_vector_type(16)));
#define THREAD_X ((int)__builtin_amdgcn_workitem_id_x())
#define BLOCK_X ((int)__builtin_amdgcn_workgroup_id_x())
#define BLOCK_Y ((int)__builtin_amdgcn_workgroup_id_y())
static __device__ __attribute__((always_inline)) inline void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
