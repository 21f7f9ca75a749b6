// A CUDA driver and a HIP runtime without a GPU: memory is the host's, and calls are written down.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {

static int shown(const char* name, long long a = 0, long long b = 0, long long c = 0) {
  printf("%s %lld %lld %lld\n", name, a, b, c);
  fflush(stdout);
  const char* refused = getenv("REFUSED");
  return refused && !strcmp(refused, name) ? 719 : 0;
}

static void bytes(const char* name, const void* from, int count) {
  printf("%s ", name);
  for (int at = 0; at < count; ++at) printf("%02x", ((const unsigned char*)from)[at]);
  printf("\n");
  fflush(stdout);
}

static int number(const char* name, int other) { return getenv(name) ? atoi(getenv(name)) : other; }

// Arguments as a launch passes them: all lie in one buffer that begins with the first.
static void arguments(void** given) {
  bytes("buffer", given[0], number("BUFFER", 0));
  printf("offsets");
  for (int at = 0; at < number("ARGUMENTS", 0); ++at) printf(" %d", (int)((char*)given[at] - (char*)given[0]));
  printf("\n");
}

int cuInit(unsigned) { return shown("cuInit"); }
int cuCtxGetDevice(int* device) { return *device = 0, shown("cuCtxGetDevice"); }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? number("MAJOR", 9) : attribute == 76 ? number("MINOR", 0) : 132;
  return 0;
}
int cuLibraryLoadData(void** library, const void* image, void*, void*, unsigned, void*, void*, unsigned) {
  bytes("image", image, 64);
  *library = (void*)0x1000;
  return shown("cuLibraryLoadData");
}
int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  printf("entry %s\n", name);
  *kernel = (void*)0x2000;
  return shown("cuLibraryGetKernel");
}
int cuKernelSetAttribute(int attribute, int value, void*, int) { return shown("cuKernelSetAttribute", attribute, value); }
int cuMemsetD8Async(unsigned long long address, unsigned char value, unsigned long long count, void*) {
  memset((void*)address, value, count);
  return shown("fill", (long long)count);
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const unsigned long long* extents,
                           const unsigned long long* strides, const unsigned* box, const unsigned* steps, int interleave,
                           int swizzle, int promotion, int fill) {
  printf("map %d %u %llu", type, rank, (unsigned long long)address);
  for (unsigned at = 0; at < rank; ++at) printf(" e%llu b%u s%u", extents[at], box[at], steps[at]);
  for (unsigned at = 0; at + 1 < rank; ++at) printf(" t%llu", strides[at]);
  printf(" %d %d %d %d\n", interleave, swizzle, promotion, fill);
  memset(map, 0xab, 128);
  return shown("encode");
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, unsigned long long) {
  return *blocks = number("RESIDENT", 1), 0;
}
int cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) { return *clusters = number("RESIDENT", 66), 0; }

struct Config {
  unsigned words[7];
  void* stream;
  struct Attribute {
    int id;
    char pad[4];
    unsigned value[16];
  }* attributes;
  unsigned count;
};
int cuLaunchKernelEx(const Config* config, void* kernel, void** given, void**) {
  arguments(given);
  for (unsigned at = 0; at < config->count; ++at) {
    const Config::Attribute& one = config->attributes[at];
    printf("attribute %d %u %u %u\n", one.id, one.value[0], one.value[1], one.value[2]);
  }
  printf("launch");
  for (unsigned word : config->words) printf(" %u", word);
  printf(" stream %lld kernel %lld\n", (long long)config->stream, (long long)kernel);
  return shown("cuLaunchKernelEx");
}

int hipGetDevice(int* device) { return *device = 0, 0; }
int hipGetDevicePropertiesR0600(void* record, int) {
  strcpy((char*)record, "a device");
  strcpy((char*)record + 1160, getenv("GFX") ? getenv("GFX") : "gfx942:sramecc+:xnack-");
  return 0;
}
int hipDeviceGetAttribute(int* value, int, int) { return *value = 304, 0; }
int hipModuleLoadData(void** module, const void* image) {
  bytes("image", image, 64);
  *module = (void*)0x1000;
  return shown("hipModuleLoadData");
}
int hipModuleGetFunction(void** function, void*, const char* name) {
  printf("entry %s\n", name);
  *function = (void*)0x2000;
  return 0;
}
int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, unsigned long long) {
  return *blocks = number("RESIDENT", 1), 0;
}
int hipMemsetD8Async(void* address, int value, unsigned long long count, void*) {
  memset(address, value, count);
  return shown("fill", (long long)count);
}
int hipModuleLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                          unsigned shared, void* stream, void** given, void**) {
  arguments(given);
  printf("launch %u %u %u %u 1 1 %u stream %lld kernel %lld\n", x, y, z, threads, shared, (long long)stream, (long long)function);
  return shown("hipModuleLaunchKernel");
}
int hipModuleLaunchCooperativeKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                     void**) {
  return shown("hipModuleLaunchCooperativeKernel");
}
}
