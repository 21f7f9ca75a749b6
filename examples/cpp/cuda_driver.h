// The functions of the CUDA driver that the example calls, found at run time: neither cuda.h nor libcuda is needed
// to build it. The signatures are those of cuda.h.
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <dlfcn.h>
#include <stddef.h>

typedef unsigned long long DevicePointer;

struct CudaDriver {
  int (*init)(unsigned flags);
  int (*device)(int* device, int ordinal);
  int (*retain)(void** context, int device);
  int (*make_current)(void* context);
  int (*create_stream)(void** stream, unsigned flags);
  int (*wait)(void* stream);
  int (*allocate)(DevicePointer* address, size_t bytes);
  int (*release)(DevicePointer address);
  int (*copy_in)(DevicePointer to, const void* from, size_t bytes);
  int (*copy_out)(void* to, DevicePointer from, size_t bytes);

  // Find the functions; false without a driver or without a GPU.
  bool open() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return false;
    const struct {
      const char* name;
      void** place;
    } wanted[] = {{"cuInit", (void**)&init},
                  {"cuDeviceGet", (void**)&device},
                  {"cuDevicePrimaryCtxRetain", (void**)&retain},
                  {"cuCtxSetCurrent", (void**)&make_current},
                  {"cuStreamCreate", (void**)&create_stream},
                  {"cuStreamSynchronize", (void**)&wait},
                  {"cuMemAlloc_v2", (void**)&allocate},
                  {"cuMemFree_v2", (void**)&release},
                  {"cuMemcpyHtoD_v2", (void**)&copy_in},
                  {"cuMemcpyDtoH_v2", (void**)&copy_out}};
    for (const auto& one : wanted)
      if ((*one.place = dlsym(library, one.name)) == nullptr) return false;
    return init(0) == 0;
  }
};

#endif
