
// ---------------------------------------------------------------- HIP
//
// Source: AMD, "HIP Runtime API Reference". Numbers of attributes are those of hip_runtime_api.h.

namespace {

constexpr int HIP_MULTIPROCESSORS = 63;

struct Hip {
  int (*current_device)(int* device);
  int (*properties)(void* record, int device);
  int (*attribute)(int* value, int attribute, int device);
  int (*load)(void** module, const void* image);
  int (*find)(void** function, void* module, const char* name);
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
                void** arguments, void** extra);
  int (*cooperative)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
                     void** arguments);
  int (*resident)(int* blocks, void* function, int threads, unsigned long long shared_bytes);
  int (*fill)(void* address, int value, unsigned long long bytes, void* stream);
};

int hip_status = 0;

// The runtime's functions; null without a runtime.
const Hip* hip() {
  static Hip found;
  static int state = 0;  // 1: there; 2: missing
  const int known = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
  if (known) return known == 1 ? &found : nullptr;
  Lock lock;
  if (state) return state == 1 ? &found : nullptr;
  const char* const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};
  void* library = nullptr;
  for (const char* name : names)
    if (library == nullptr) library = dlopen(name, 2);
  Hip made = {};
  bool there = library != nullptr;
  const struct {
    const char* name;
    void** place;
  } wanted[] = {{"hipGetDevice", (void**)&made.current_device},
                {"hipDeviceGetAttribute", (void**)&made.attribute},
                {"hipModuleLoadData", (void**)&made.load},
                {"hipModuleGetFunction", (void**)&made.find},
                {"hipModuleLaunchKernel", (void**)&made.launch},
                {"hipModuleLaunchCooperativeKernel", (void**)&made.cooperative},
                {"hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", (void**)&made.resident},
                {"hipMemsetD8Async", (void**)&made.fill}};
  for (const auto& one : wanted)
    if (there) there = (*one.place = dlsym(library, one.name)) != nullptr;
  if (there) {
    void* newer = dlsym(library, "hipGetDevicePropertiesR0600");
    made.properties = (int (*)(void*, int))(newer != nullptr ? newer : dlsym(library, "hipGetDeviceProperties"));
    there = made.properties != nullptr;
  }
  found = made;
  __atomic_store_n(&state, there ? 1 : 2, __ATOMIC_RELEASE);
  return there ? &found : nullptr;
}

int refused_by_hip(int status) {
  __atomic_store_n(&hip_status, status, __ATOMIC_RELAXED);
  return error(TILEWRIGHT_DRIVER, 0);
}

// The exported architecture of a device. The record of a device has two layouts: in both, the architecture is a
// text that begins with "gfx" after the name.
int hip_arch(const Hip& driver, const char* const* archs, int count, int device, const char** found) {
  static const char* known[MOST_DEVICES];
  *found = __atomic_load_n(&known[device], __ATOMIC_ACQUIRE);
  if (*found != nullptr) return 0;
  alignas(16) char record[1 << 14];
  __builtin_memset(record, 0, sizeof record);
  if (int status = driver.properties(record, device)) return refused_by_hip(status);
  for (int at = 256; at + 4 < (int)sizeof record; ++at) {
    if (__builtin_memcmp(record + at, "gfx", 3)) continue;
    for (int one = 0; one < count; ++one) {
      const int length = (int)__builtin_strlen(archs[one]);
      const char after = at + length < (int)sizeof record ? record[at + length] : 0;
      if (at + length < (int)sizeof record && !__builtin_memcmp(record + at, archs[one], length) && (after == 0 || after == ':')) {
        __atomic_store_n(&known[device], *found = archs[one], __ATOMIC_RELEASE);
        return 0;
      }
    }
    break;
  }
  return error(TILEWRIGHT_MACHINE, 0);
}

int run_hip(const Hip& driver, int device, const Kernel& kernel, const Call& call, const Bound& bound,
            void* workspace, Bytes workspace_bytes, void* stream) {
  const Image& image = *(const Image*)kernel.code;
  void** const cells = image.cells;
  if (bound.grid[0] == 0 || bound.grid[1] == 0 || bound.grid[2] == 0) return 0;
  if (bound.grid[0] > 0xffffffffll / image.threads || bound.grid[1] > 65535 || bound.grid[2] > 65535)
    return error(TILEWRIGHT_LIMIT, 0);
  if (bound.bytes > 0 && (workspace_bytes < bound.bytes || workspace == nullptr || (Bytes)workspace % SPACE_ALIGN))
    return error(TILEWRIGHT_WORKSPACE, 0);
  void* function = __atomic_load_n(&cells[device], __ATOMIC_ACQUIRE);
  if (function == nullptr) {
    Lock lock;
    function = cells[device];
    if (function == nullptr) {
      void* module;
      if (int status = driver.load(&module, image.bytes)) return refused_by_hip(status);
      if (int status = driver.find(&function, module, image.entry)) return refused_by_hip(status);
      __atomic_store_n(&cells[device], function, __ATOMIC_RELEASE);
    }
  }
  alignas(64) unsigned char buffer[4096];
  char* memory = (char*)workspace;
  kernel.fill(call, bound, memory, buffer);
  void* arguments[MOST_ARGUMENTS];
  for (int at = 0; at < image.arguments; ++at) arguments[at] = buffer + image.offsets[at];
  const unsigned x = (unsigned)bound.grid[0], y = (unsigned)bound.grid[1], z = (unsigned)bound.grid[2];
  if (image.together) {
    int resident = 0, multiprocessors = 0;
    if (int status = driver.resident(&resident, function, (int)image.threads, 0)) return refused_by_hip(status);
    if (int status = driver.attribute(&multiprocessors, HIP_MULTIPROCESSORS, device)) return refused_by_hip(status);
    if (bound.grid[0] * bound.grid[1] * bound.grid[2] > (Wide)resident * multiprocessors) return error(TILEWRIGHT_LIMIT, 0);
  }
  for (int at = 0; at < MOST_SPACES; ++at)
    if (image.zeroed >> at & 1 && bound.spaces[at])
      if (int status = driver.fill(memory + bound.offsets[at], 0, bound.spaces[at], stream)) return refused_by_hip(status);
  const int status = image.together ? driver.cooperative(function, x, y, z, image.threads, 1, 1, 0, stream, arguments)
                                    : driver.launch(function, x, y, z, image.threads, 1, 1, 0, stream, arguments, nullptr);
  return status ? refused_by_hip(status) : 0;
}

}  // namespace

namespace {

int launch_on_hip(const Kernel* kernels, int count, const char* const* archs, int arch_count, const int* ranks,
                  const int* bits, int number, const Call& call, void* workspace, Bytes workspace_bytes, void* stream,
                  Bytes* needed) {
  (void)bits;
  const Hip* driver = hip();
  if (driver == nullptr) return error(TILEWRIGHT_DRIVER, 0);
  int device = 0;
  if (int status = driver->current_device(&device)) return refused_by_hip(status);
  if (device >= MOST_DEVICES) return error(TILEWRIGHT_MACHINE, 0);
  const char* arch;
  if (int wrong = hip_arch(*driver, archs, arch_count, device, &arch)) return wrong;
  const Kernel* kernel;
  Bound bound;
  if (int wrong = choose(kernels, count, arch, number, call, ranks, &kernel, bound)) return wrong;
  if (needed == nullptr) return run_hip(*driver, device, *kernel, call, bound, workspace, workspace_bytes, stream);
  *needed = bound.bytes;
  return 0;
}

}  // namespace
