// Loads and stores through descriptors, whose bounds take the place of branches.
#include "prelude.h"
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
#define DESCRIPTOR_FLAGS 0x00027000
extern "C" __global__ void doubled(float* x, float* y, int bytes_x, int bytes_y) {
  __amdgpu_buffer_rsrc_t from = __builtin_amdgcn_make_buffer_rsrc(x, 0, bytes_x, DESCRIPTOR_FLAGS);
  __amdgpu_buffer_rsrc_t to = __builtin_amdgcn_make_buffer_rsrc(y, 0, bytes_y, DESCRIPTOR_FLAGS);
  int place = (BLOCK_X * 64 + THREAD_X) * 16;
  f32x4 v = __builtin_bit_cast(f32x4, __builtin_amdgcn_raw_buffer_load_b128(from, place, 0, 0));
  v += v + 1.0f;
  __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(u32x4, v), to, place, 0, 0);
  float w = __builtin_bit_cast(float, __builtin_amdgcn_raw_buffer_load_b32(from, place, 4, 0));
  __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(u32, w), to, place, 16 * 128, 0);
}
