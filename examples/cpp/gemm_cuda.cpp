// C = A B in bf16 by an exported kernel on the first CUDA GPU: `gemm_cuda M N K`.
//
//   tilewright export examples/cpp/kernels.py:gemm --arch sm_90a,sm_80 -o gemm
//       --shape A=2048x1024:bf16,B=1024x2048:bf16,C=2048x2048:bf16
//       --shape A=33x55:bf16,B=55x77:bf16,C=33x77:bf16
//   c++ -std=c++17 -Igemm examples/cpp/gemm_cuda.cpp gemm/libgemm.a -lpthread -ldl -o run
//   ./run 1000 520 72
//
// The program compares every element with plain loops, and shows that a wrong call returns an error and writes
// nothing. It ends with 3 on a machine without a CUDA GPU.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"
#include "gemm.h"

typedef unsigned short Bf16;

static Bf16 bf16_of(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return (Bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void require(int status, const char* what) {
  if (status == 0) return;
  printf("%s: status %d\n", what, status);
  exit(2);
}

static DevicePointer device_copy(const CudaDriver& cuda, const Bf16* from, size_t count) {
  DevicePointer made;
  require(cuda.allocate(&made, count * sizeof(Bf16)), "cuMemAlloc");
  require(cuda.copy_in(made, from, count * sizeof(Bf16)), "cuMemcpyHtoD");
  return made;
}

int main(int count, char** words) {
  const long long m = count > 3 ? atoll(words[1]) : 1000, n = count > 3 ? atoll(words[2]) : 520;
  const long long k = count > 3 ? atoll(words[3]) : 72, gap = 8;
  CudaDriver cuda;
  int device;
  if (!cuda.open() || cuda.device(&device, 0) != 0) {
    printf("no CUDA driver on this machine\n");
    return 3;
  }
  void *context, *stream;
  require(cuda.retain(&context, device), "cuDevicePrimaryCtxRetain");
  require(cuda.make_current(context), "cuCtxSetCurrent");
  require(cuda.create_stream(&stream, 1), "cuStreamCreate");

  // Rows with a gap after each; sums of small whole numbers are exact before the last rounding.
  const size_t in_a = m * (k + gap), in_b = k * (n + gap), in_c = m * (n + gap);
  Bf16 *a = (Bf16*)malloc(2 * in_a), *b = (Bf16*)malloc(2 * in_b), *c = (Bf16*)malloc(2 * in_c);
  const Bf16 poison = 0x7fc1;
  for (size_t at = 0; at < in_a; ++at) a[at] = bf16_of((float)((long long)(at * 7 % 9) - 4));
  for (size_t at = 0; at < in_b; ++at) b[at] = bf16_of((float)((long long)(at * 5 % 7) - 3));
  for (size_t at = 0; at < in_c; ++at) c[at] = poison;
  const DevicePointer on_a = device_copy(cuda, a, in_a), on_b = device_copy(cuda, b, in_b), on_c = device_copy(cuda, c, in_c);
  const tilewright_array A = {(void*)on_a, {m, k}, {k + gap, 1}}, B = {(void*)on_b, {k, n}, {n + gap, 1}};
  const tilewright_array C = {(void*)on_c, {m, n}, {n + gap, 1}};

  int failures = 0;
  unsigned long long bytes = 0;
  int error = gemm_cuda_workspace(&A, &B, &C, stream, &bytes);
  DevicePointer workspace = 0;
  if (!error && bytes) require(cuda.allocate(&workspace, bytes), "cuMemAlloc");

  // A wrong call writes nothing.
  tilewright_array longer = B;
  longer.shape[0] = k + 8;
  const int refused = gemm_cuda(&A, &longer, &C, (void*)workspace, bytes, stream);
  require(cuda.wait(stream), "cuStreamSynchronize");
  require(cuda.copy_out(c, on_c, 2 * in_c), "cuMemcpyDtoH");
  size_t written = 0;
  for (size_t at = 0; at < in_c; ++at) written += c[at] != poison;
  printf("wrong extents: %s, argument %d, %zu elements written\n", tilewright_error_name(refused), tilewright_error_argument(refused), written);
  failures += (refused & 255) != TILEWRIGHT_EXTENTS || written != 0;

  if (!error) error = gemm_cuda(&A, &B, &C, (void*)workspace, bytes, stream);
  printf("launch: %s, status of the driver %d\n", tilewright_error_name(error), gemm_cuda_status());
  require(cuda.wait(stream), "cuStreamSynchronize");
  require(cuda.copy_out(c, on_c, 2 * in_c), "cuMemcpyDtoH");
  size_t wrong = 0;
  for (long long i = 0; i < m; ++i)
    for (long long j = 0; j < n + gap; ++j) {
      long long sum = 0;
      for (long long p = 0; j < n && p < k; ++p)
        sum += ((long long)((i * (k + gap) + p) * 7 % 9) - 4) * ((long long)((p * (n + gap) + j) * 5 % 7) - 3);
      wrong += c[i * (n + gap) + j] != (j < n ? bf16_of((float)sum) : poison);
    }
  printf("%zu of %zu elements wrong\n", wrong, in_c);
  failures += error != 0 || wrong != 0;
  return failures ? 1 : 0;
}
