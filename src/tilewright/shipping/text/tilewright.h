/* Common part of exported kernels: arrays, error codes, worker threads. */
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#define TILEWRIGHT_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* An array: the address of its element (0, ..., 0), its extents, and its strides in elements. */
typedef struct tilewright_array {
  void* address;
  long long shape[8];
  long long strides[8];
} tilewright_array;

/* Kinds of errors. A call that returns an error has written nothing, unless the kind says otherwise. */
enum {
  TILEWRIGHT_OK = 0,
  TILEWRIGHT_MISSING = 1,    /* an array is a null pointer */
  TILEWRIGHT_EXTENTS = 2,    /* an extent is out of range, differs from another array's, or has the wrong divisor */
  TILEWRIGHT_STRIDES = 3,    /* a stride is not that of the class */
  TILEWRIGHT_ALIGNMENT = 4,  /* an address is no multiple of the bytes that the class asks for */
  TILEWRIGHT_OVERLAP = 5,    /* a written array shares memory with another array, or with itself */
  TILEWRIGHT_LIMIT = 6,      /* the kernel does not serve these sizes, or the device does not hold the grid */
  TILEWRIGHT_WORKSPACE = 7,  /* the workspace is too small, or not aligned to 256 bytes */
  TILEWRIGHT_MACHINE = 8,    /* no kernel was exported for this processor or device */
  TILEWRIGHT_DRIVER = 9,     /* the driver is missing, or refused; NAME_cuda_status() tells more */
  TILEWRIGHT_STUCK = 10      /* blocks wait for each other for ever; results are incomplete */
};

/* The name of an error, e.g. "TILEWRIGHT_EXTENTS". */
TILEWRIGHT_API const char* tilewright_error_name(int error);

/* What an error means, in one sentence. */
TILEWRIGHT_API const char* tilewright_error_text(int error);

/* The number of the array that an error is about, from 1; 0 if it is about no single array. */
TILEWRIGHT_API int tilewright_error_argument(int error);

/* Worker threads for kernels on processors. The caller owns memory and threads:
 *
 *   allocate tilewright_pool_bytes(workers) bytes at a multiple of 128, and fill them with zeros;
 *   call tilewright_open(pool, workers, cpus): cpus[i] is the processor that worker i is bound to, or -1;
 *   start one thread for each worker, which calls tilewright_serve(pool, worker);
 *   pass the pool to launches, one at a time;
 *   call tilewright_close(pool), and join the threads.
 */
typedef struct tilewright_pool tilewright_pool;
TILEWRIGHT_API unsigned long long tilewright_pool_bytes(int workers);
TILEWRIGHT_API void tilewright_open(tilewright_pool* pool, int workers, const int* cpus);
TILEWRIGHT_API void tilewright_serve(tilewright_pool* pool, int worker);
TILEWRIGHT_API void tilewright_close(tilewright_pool* pool);

#ifdef __cplusplus
}
#endif
#endif
