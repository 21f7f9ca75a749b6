/* linear: C = alpha A B + bias + R.
 *   A: array (M, K)
 *   B: array (K, N)
 *   bias: array (N)
 *   R: array (M, N)
 *   C: array (M, N)
 *   alpha: number, f32
 * Classes of arrays:
 *   0: A f32 64x64 strides 64x1, B f32 64x64 strides 64x1, bias f32 64 strides 1, R f32 64x64 strides 64x1, C f32 64x64 strides 64x1
 * A launch returns TILEWRIGHT_OK or an error; tilewright_error_name names it. */
#ifndef TILEWRIGHT_LINEAR_H
#define TILEWRIGHT_LINEAR_H

#include "tilewright.h"

#ifdef __cplusplus
extern "C" {
#endif

/* On cpu (x86-64-v3). `workspace` begins at a multiple of
 * 256 bytes, and has the bytes that linear_cpu_workspace reports for the same
 * arrays.
 * `pool` may be null: then the calling thread computes alone. */
TILEWRIGHT_API int linear_cpu(const tilewright_array* A, const tilewright_array* B, const tilewright_array* bias, const tilewright_array* R, const tilewright_array* C, float alpha, void* workspace, unsigned long long workspace_bytes, tilewright_pool* pool);
TILEWRIGHT_API int linear_cpu_workspace(const tilewright_array* A, const tilewright_array* B, const tilewright_array* bias, const tilewright_array* R, const tilewright_array* C, tilewright_pool* pool, unsigned long long* bytes);

#ifdef __cplusplus
}
#endif
#endif
