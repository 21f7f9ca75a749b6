
// ---------------------------------------------------------------- CUDA
//
// Source: NVIDIA, "CUDA Driver API". The declarations are those of cuda.h.

namespace {

struct CudaAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int flag;
  } value;
};

struct CudaConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
  CudaAttribute* attributes;
  unsigned count;
};

constexpr int CUDA_CAPABILITY_MAJOR = 75, CUDA_CAPABILITY_MINOR = 76, CUDA_MULTIPROCESSORS = 16;
constexpr int CUDA_MAX_DYNAMIC_SHARED = 8;
constexpr int CUDA_COOPERATIVE = 2, CUDA_CLUSTER = 4, CUDA_PROGRAMMATIC = 6;

struct Cuda {
  int (*initialise)(unsigned flags);
  int (*current_device)(int* device);
  int (*attribute)(int* value, int attribute, int device);
  int (*load)(void** library, const void* image, void*, void*, unsigned, void*, void*, unsigned);
  int (*find)(void** kernel, void* library, const char* name);
  int (*set)(int attribute, int value, void* kernel, int device);
  int (*launch)(const CudaConfig* config, void* kernel, void** arguments, void** extra);
  int (*fill)(unsigned long long address, unsigned char value, unsigned long long bytes, void* stream);
  int (*encode)(void* map, int type, unsigned rank, void* address, const Bytes* extents, const Bytes* strides,
                const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion, int fill);
  int (*resident)(int* blocks, void* kernel, int threads, unsigned long long shared_bytes);
  int (*resident_clusters)(int* clusters, void* kernel, const CudaConfig* config);
};

int cuda_status = 0;

// The driver's functions; null without a driver.
const Cuda* cuda() {
  static Cuda found;
  static int state = 0;  // 1: there; 2: missing
  const int known = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
  if (known) return known == 1 ? &found : nullptr;
  Lock lock;
  if (state) return state == 1 ? &found : nullptr;
  void* library = dlopen("libcuda.so.1", 2);
  Cuda made = {};
  bool there = library != nullptr;
  const struct {
    const char* name;
    void** place;
  } wanted[] = {{"cuInit", (void**)&made.initialise},
                {"cuCtxGetDevice", (void**)&made.current_device},
                {"cuDeviceGetAttribute", (void**)&made.attribute},
                {"cuLibraryLoadData", (void**)&made.load},
                {"cuLibraryGetKernel", (void**)&made.find},
                {"cuKernelSetAttribute", (void**)&made.set},
                {"cuLaunchKernelEx", (void**)&made.launch},
                {"cuMemsetD8Async", (void**)&made.fill},
                {"cuTensorMapEncodeTiled", (void**)&made.encode},
                {"cuOccupancyMaxActiveBlocksPerMultiprocessor", (void**)&made.resident},
                {"cuOccupancyMaxActiveClusters", (void**)&made.resident_clusters}};
  for (const auto& one : wanted)
    if (there) there = (*one.place = dlsym(library, one.name)) != nullptr;
  if (there) {
    cuda_status = made.initialise(0);
    there = cuda_status == 0;
  }
  found = made;
  __atomic_store_n(&state, there ? 1 : 2, __ATOMIC_RELEASE);
  return there ? &found : nullptr;
}

int refused_by_cuda(int status) {
  __atomic_store_n(&cuda_status, status, __ATOMIC_RELAXED);
  return error(TILEWRIGHT_DRIVER, 0);
}

// The best exported architecture for a device: of the same major version, and the highest minor one that is
// not above the device's. A suffix "a" asks for exactly this version, and is preferred.
const char* cuda_arch(const char* const* archs, int count, int major, int minor) {
  const char* best = nullptr;
  int most = -1;
  for (int at = 0; at < count; ++at) {
    int version;
    if (!is_number(archs[at] + 3, &version) || version / 10 != major || version % 10 > minor) continue;
    const bool exact = archs[at][__builtin_strlen(archs[at]) - 1] == 'a';
    if (exact && version % 10 != minor) continue;
    const int rank = 2 * (version % 10) + exact;
    if (rank > most) {
      most = rank;
      best = archs[at];
    }
  }
  return best;
}

// Load a kernel once, and allow its shared memory once for each device.
int cuda_kernel(const Cuda& driver, const Image& image, void** cell, Bytes* allowed, int device, void** kernel) {
  *kernel = __atomic_load_n(cell, __ATOMIC_ACQUIRE);
  const bool ready = __atomic_load_n(allowed, __ATOMIC_ACQUIRE) >> device & 1;
  if (*kernel != nullptr && ready) return 0;
  Lock lock;
  if (*cell == nullptr) {
    void *library, *found;
    if (int status = driver.load(&library, image.bytes, nullptr, nullptr, 0, nullptr, nullptr, 0)) return status;
    if (int status = driver.find(&found, library, image.entry)) return status;
    __atomic_store_n(cell, found, __ATOMIC_RELEASE);
  }
  *kernel = *cell;
  if (!(*allowed >> device & 1)) {
    if (image.shared_bytes > 48 * 1024)
      if (int status = driver.set(CUDA_MAX_DYNAMIC_SHARED, (int)image.shared_bytes, *kernel, device)) return status;
    __atomic_store_n(allowed, *allowed | (Bytes)1 << device, __ATOMIC_RELEASE);
  }
  return 0;
}

// Encode the tensor map of an array.
int cuda_map(const Cuda& driver, const Map& map, int bits, const tilewright_array* array, char* nothing, void* made) {
  const Bytes size = bits / 8;
  Bytes extents[8], strides[8];
  unsigned box[8], steps[8];
  bool empty = false;
  for (int dim = 0; dim < map.rank; ++dim) empty |= array->shape[dim] == 0;
  const int inner = map.order[map.rank - 1];
  // A dimension of extent 1 may have stride 0; it gets the stride of dense rows.
  const Bytes dense = empty ? 16 : ((Bytes)array->shape[inner] * size + 15) / 16 * 16;
  for (int at = 0; at < map.rank; ++at) {
    const int dim = map.order[map.rank - 1 - at];
    extents[at] = empty ? 1 : (Bytes)array->shape[dim];
    if (at > 0) strides[at - 1] = !empty && array->shape[dim] > 1 ? (Bytes)array->strides[dim] * size : dense;
    box[at] = map.box[dim];
    steps[at] = map.steps[dim];
  }
  void* address = empty ? (void*)nothing : array->address;
  return driver.encode(made, map.type, map.rank, address, extents, strides, box, steps, 0, map.is_swizzled ? 3 : 0, 3, 0);
}

int run_cuda(const Cuda& driver, int device, const Kernel& kernel, const int* bits, const Call& call,
             const Bound& bound, void* workspace, Bytes workspace_bytes, void* stream) {
  const Image& image = *(const Image*)kernel.code;
  if (bound.grid[0] == 0 || bound.grid[1] == 0 || bound.grid[2] == 0) return 0;
  if (bound.grid[0] > 0x7fffffff || bound.grid[1] > 65535 || bound.grid[2] > 65535) return error(TILEWRIGHT_LIMIT, 0);
  const Bytes needed = needed_by(image, call, bound);
  if (needed > 0 && (workspace_bytes < needed || workspace == nullptr || (Bytes)workspace % SPACE_ALIGN))
    return error(TILEWRIGHT_WORKSPACE, 0);
  void* function;
  if (int status = cuda_kernel(driver, image, image.cells, image.allowed, device, &function)) return refused_by_cuda(status);
  alignas(64) unsigned char buffer[4096];
  char* memory = (char*)workspace;
  kernel.fill(call, bound, memory, buffer);
  char* nothing = memory + bound.bytes;
  for (int at = 0; at < image.count; ++at) {
    const Map& map = image.maps[at];
    unsigned char* made = buffer + image.first_map + MAP_BYTES * at;
    if (int status = cuda_map(driver, map, bits[map.at], call.arrays[map.at], nothing, made)) return refused_by_cuda(status);
  }
  void* arguments[MOST_ARGUMENTS];
  for (int at = 0; at < image.arguments; ++at) arguments[at] = buffer + image.offsets[at];

  CudaAttribute attributes[3] = {};
  CudaConfig config = {(unsigned)bound.grid[0], (unsigned)bound.grid[1], (unsigned)bound.grid[2], image.threads, 1, 1,
                       image.shared_bytes, stream, attributes, 0};
  const unsigned in_cluster = image.cluster[0] * image.cluster[1] * image.cluster[2];
  if (in_cluster > 1) {
    CudaAttribute& one = attributes[config.count++];
    one.id = CUDA_CLUSTER;
    one.value.cluster = {image.cluster[0], image.cluster[1], image.cluster[2]};
  }
  if (image.together) {
    int resident = 0, multiprocessors = 0;
    int status = in_cluster > 1 ? driver.resident_clusters(&resident, function, &config)
                                : driver.resident(&resident, function, (int)image.threads, image.shared_bytes);
    if (!status && in_cluster == 1) status = driver.attribute(&multiprocessors, CUDA_MULTIPROCESSORS, device);
    if (status) return refused_by_cuda(status);
    const Wide blocks = bound.grid[0] * bound.grid[1] * bound.grid[2];
    if (blocks > (Wide)resident * (in_cluster > 1 ? (int)in_cluster : multiprocessors)) return error(TILEWRIGHT_LIMIT, 0);
    attributes[config.count].id = CUDA_COOPERATIVE;
    attributes[config.count++].value.flag = 1;
  } else if (image.overlaps) {
    attributes[config.count].id = CUDA_PROGRAMMATIC;
    attributes[config.count++].value.flag = 1;
  }
  for (int at = 0; at < MOST_SPACES; ++at)
    if (image.zeroed >> at & 1 && bound.spaces[at])
      if (int status = driver.fill((Bytes)(memory + bound.offsets[at]), 0, bound.spaces[at], stream)) return refused_by_cuda(status);
  if (needed > bound.bytes)
    if (int status = driver.fill((Bytes)nothing, 0, NOTHING_BYTES, stream)) return refused_by_cuda(status);
  if (int status = driver.launch(&config, function, arguments, nullptr)) return refused_by_cuda(status);
  return 0;
}

}  // namespace

namespace {

int launch_on_cuda(const Kernel* kernels, int count, const char* const* archs, int arch_count, const int* ranks,
                   const int* bits, int number, const Call& call, void* workspace, Bytes workspace_bytes, void* stream,
                   Bytes* needed) {
  const Cuda* driver = cuda();
  if (driver == nullptr) return error(TILEWRIGHT_DRIVER, 0);
  int device = 0, major = 0, minor = 0;
  if (int status = driver->current_device(&device)) return refused_by_cuda(status);
  if (int status = driver->attribute(&major, CUDA_CAPABILITY_MAJOR, device)) return refused_by_cuda(status);
  if (int status = driver->attribute(&minor, CUDA_CAPABILITY_MINOR, device)) return refused_by_cuda(status);
  const char* arch = cuda_arch(archs, arch_count, major, minor);
  if (arch == nullptr || device >= MOST_DEVICES) return error(TILEWRIGHT_MACHINE, 0);
  const Kernel* kernel;
  Bound bound;
  if (int wrong = choose(kernels, count, arch, number, call, ranks, &kernel, bound)) return wrong;
  if (needed == nullptr) return run_cuda(*driver, device, *kernel, bits, call, bound, workspace, workspace_bytes, stream);
  *needed = needed_by(*(const Image*)kernel->code, call, bound);
  return 0;
}

}  // namespace
