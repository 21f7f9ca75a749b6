// A stand-in of ROCm's runtime: every function tells a handler its name and its arguments, and returns what
// the handler answers.  The types of arguments are those of HIP's header.
typedef unsigned long size_t;
typedef unsigned long long word;
typedef int (*handler_type)(const char*, const word*, int);
typedef void* hipStream_t;
typedef void* hipEvent_t;
typedef void* hipModule_t;
typedef void* hipFunction_t;
typedef void* hipDeviceptr_t;
typedef unsigned int uint32_t;

#define API extern "C" __attribute__((visibility("default")))

static handler_type handler;

API void standin_handler(handler_type given) { handler = given; }

template <class... Given>
static int tell(const char* name, Given... given) {
  const word words[] = {(word)given..., 0};
  return handler(name, words, sizeof...(given));
}

API const char* hipGetErrorName(int status) {
  switch (status) {
    case 0: return "hipSuccess";
    case 1: return "hipErrorInvalidValue";
    case 2: return "hipErrorOutOfMemory";
    case 98: return "hipErrorInvalidDeviceFunction";
    case 100: return "hipErrorNoDevice";
    case 101: return "hipErrorInvalidDevice";
    case 209: return "hipErrorNoBinaryForGpu";
    case 500: return "hipErrorNotFound";
    case 600: return "hipErrorNotReady";
    case 719: return "hipErrorLaunchFailure";
  }
  return "hipErrorUnknown";
}
API const char* hipGetErrorString(int status) {
  return status == 2 ? "out of memory" : status == 100 ? "no ROCm-capable device is detected" : "as the test asked";
}

#define DECLARE(name, parameters, ...) \
  API int name parameters { return tell(#name, ##__VA_ARGS__); }

DECLARE(hipRuntimeGetVersion, (int* made), made)
DECLARE(hipGetDeviceCount, (int* made), made)
DECLARE(hipGetDevice, (int* made), made)
DECLARE(hipSetDevice, (int device), device)
DECLARE(hipDeviceGetAttribute, (int* made, int attribute, int device), made, attribute, device)
DECLARE(hipGetDevicePropertiesR0600, (void* made, int device), made, device)
DECLARE(hipDeviceSynchronize, ())
DECLARE(hipModuleLoadData, (hipModule_t* made, const void* image), made, image)
DECLARE(hipModuleGetFunction, (hipFunction_t* made, hipModule_t module, const char* name), made, module, name)
DECLARE(hipModuleUnload, (hipModule_t module), module)
DECLARE(hipModuleLaunchKernel,
        (hipFunction_t f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
         uint32_t shared, hipStream_t stream, void** arguments, void** extra),
        f, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra)
DECLARE(hipModuleLaunchCooperativeKernel,
        (hipFunction_t f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
         uint32_t shared, hipStream_t stream, void** arguments),
        f, gx, gy, gz, bx, by, bz, shared, stream, arguments)
DECLARE(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
        (int* made, hipFunction_t f, int threads, size_t shared), made, f, threads, shared)
DECLARE(hipMalloc, (void** made, size_t size), made, size)
DECLARE(hipFree, (void* address), address)
DECLARE(hipHostMalloc, (void** made, size_t size, unsigned flags), made, size, flags)
DECLARE(hipHostFree, (void* address), address)
DECLARE(hipMemsetD8Async, (hipDeviceptr_t at, unsigned char byte, size_t count, hipStream_t stream),
        at, byte, count, stream)
DECLARE(hipMemcpyHtoD, (hipDeviceptr_t to, void* from, size_t size), to, from, size)
DECLARE(hipMemcpyDtoH, (void* to, hipDeviceptr_t from, size_t size), to, from, size)
DECLARE(hipMemcpyHtoDAsync, (hipDeviceptr_t to, void* from, size_t size, hipStream_t stream),
        to, from, size, stream)
DECLARE(hipPointerGetAttribute, (void* made, int attribute, hipDeviceptr_t at), made, attribute, at)
DECLARE(hipStreamIsCapturing, (hipStream_t stream, int* made), stream, made)
DECLARE(hipStreamSynchronize, (hipStream_t stream), stream)
DECLARE(hipThreadExchangeStreamCaptureMode, (int* mode), mode)
DECLARE(hipEventCreateWithFlags, (hipEvent_t* made, unsigned flags), made, flags)
DECLARE(hipEventRecord, (hipEvent_t event, hipStream_t stream), event, stream)
DECLARE(hipEventQuery, (hipEvent_t event), event)
DECLARE(hipEventSynchronize, (hipEvent_t event), event)
DECLARE(hipEventElapsedTime, (float* made, hipEvent_t from, hipEvent_t to), made, from, to)
DECLARE(hipEventDestroy, (hipEvent_t event), event)
