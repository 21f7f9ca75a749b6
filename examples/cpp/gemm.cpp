// C = A B by an exported kernel on this machine's processors: `gemm M N K`.
//
//   tilewright export examples/cpp/kernels.py:gemm --shape A=512x512:f32,B=512x512:f32,C=512x512:f32 -o gemm
//   c++ -std=c++17 -Igemm examples/cpp/gemm.cpp gemm/libgemm.a -lpthread -ldl -o run
//   ./run 300 200 100
//
// The program computes with one thread and with a pool, compares every element with plain loops, and shows
// the error of a wrong call.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

struct Worker {
  tilewright_pool* pool;
  int number;
  pthread_t thread;
};

static void* serve(void* given) {
  Worker* worker = (Worker*)given;
  tilewright_serve(worker->pool, worker->number);
  return nullptr;
}

// An array in rows, with `gap` elements between them.
static tilewright_array rows(float* address, long long m, long long n, long long gap) {
  return tilewright_array{address, {m, n}, {n + gap, 1}};
}

static void* memory(unsigned long long bytes) { return aligned_alloc(256, (bytes + 255) / 256 * 256 + 256); }

static int compare(const float* a, const float* b, const float* c, int m, int n, int k, int gap) {
  int wrong = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n + gap; ++j) {
      float sum = j < n ? 0.0f : -1.0f;  // no kernel writes between the rows
      for (int p = 0; j < n && p < k; ++p) sum += a[i * (k + gap) + p] * b[p * (n + gap) + j];
      wrong += c[i * (n + gap) + j] != sum;
    }
  return wrong;
}

static void poison(float* c, int count) {
  for (int at = 0; at < count; ++at) c[at] = -1.0f;
}

int main(int count, char** words) {
  const int m = count > 3 ? atoi(words[1]) : 300, n = count > 3 ? atoi(words[2]) : 200, k = count > 3 ? atoi(words[3]) : 100;
  const int gap = 3, workers = 2;
  const int elements = m * (n + gap);
  float* a = (float*)memory(sizeof(float) * m * (k + gap));
  float* b = (float*)memory(sizeof(float) * k * (n + gap));
  float* c = (float*)memory(sizeof(float) * elements);
  for (int at = 0; at < m * (k + gap); ++at) a[at] = (float)(at * 7 % 11 - 5);  // sums of small integers are exact
  for (int at = 0; at < k * (n + gap); ++at) b[at] = (float)(at * 5 % 13 - 6);
  const tilewright_array A = rows(a, m, k, gap), B = rows(b, k, n, gap), C = rows(c, m, n, gap);

  // A pool of two workers.
  tilewright_pool* pool = (tilewright_pool*)memory(tilewright_pool_bytes(workers));
  memset(pool, 0, tilewright_pool_bytes(workers));
  const int cpus[workers] = {-1, -1};
  tilewright_open(pool, workers, cpus);
  Worker threads[workers];
  for (int at = 0; at < workers; ++at) {
    threads[at] = Worker{pool, at, {}};
    if (pthread_create(&threads[at].thread, nullptr, serve, &threads[at])) return 2;
  }

  int failures = 0;
  tilewright_pool* const either[] = {nullptr, pool};
  for (tilewright_pool* used : either) {
    unsigned long long bytes = 0;
    int error = gemm_cpu_workspace(&A, &B, &C, used, &bytes);
    void* workspace = memory(bytes);
    poison(c, elements);
    if (!error) error = gemm_cpu(&A, &B, &C, workspace, bytes, used);
    const int wrong = error ? elements : compare(a, b, c, m, n, k, gap);
    printf("%s: %s, %d of %d elements wrong\n", used ? "pool" : "one thread", tilewright_error_name(error), wrong, elements);
    failures += error != 0 || wrong != 0;

    // A wrong call returns an error, and writes nothing.
    tilewright_array shorter = B;
    shorter.shape[0] = k + 1;
    poison(c, elements);
    error = gemm_cpu(&A, &shorter, &C, workspace, bytes, used);
    int written = 0;
    for (int at = 0; at < elements; ++at) written += c[at] != -1.0f;
    printf("wrong extents: %s, argument %d, %d elements written\n", tilewright_error_name(error), tilewright_error_argument(error), written);
    failures += (error & 255) != TILEWRIGHT_EXTENTS || written != 0;
    free(workspace);
  }
  tilewright_close(pool);
  for (Worker& worker : threads) pthread_join(worker.thread, nullptr);
  free(pool);
  free(a);
  free(b);
  free(c);
  return failures ? 1 : 0;
}
