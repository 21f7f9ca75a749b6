
// ---------------------------------------------------------------- a GPU's driver, loaded at the first launch

extern "C" void* dlopen(const char* file, int how);
extern "C" void* dlsym(void* library, const char* name);
extern "C" int pthread_mutex_lock(void* mutex);
extern "C" int pthread_mutex_unlock(void* mutex);

namespace {

struct Map {
  int at, type, rank;  // the array; the driver's number of its dtype
  int order[8];        // dimensions, the slowest first
  unsigned box[8], steps[8];
  bool is_swizzled;
};

struct Image {
  const unsigned char* bytes;
  const char* entry;
  unsigned threads, shared_bytes;
  unsigned cluster[3];
  bool together;  // all blocks are resident at once
  bool overlaps;  // the kernel may begin before the previous one ends
  unsigned zeroed;
  int arguments;
  const int* offsets;  // of each argument in the buffer
  int count;
  const Map* maps;
  int first_map;  // offset of the first tensor map
  void** cells;   // the loaded kernel; on HIP one for each device
  Bytes* allowed; // a bit for each device on which its shared memory is allowed
};

constexpr int MOST_ARGUMENTS = 128, MOST_DEVICES = 64, MAP_BYTES = 128;
constexpr Bytes NOTHING_BYTES = 128;

// Threads wait for each other only while one of them loads a kernel.
alignas(64) char loading[128] = {};

struct Lock {
  Lock() { pthread_mutex_lock(loading); }
  ~Lock() { pthread_mutex_unlock(loading); }
};

// Whether an array that a tensor map describes has no elements; a launch then reads zeros of the workspace.
bool needs_nothing(const Image& image, const Call& call) {
  for (int at = 0; at < image.count; ++at)
    for (int dim = 0; dim < image.maps[at].rank; ++dim)
      if (call.arrays[image.maps[at].at]->shape[dim] == 0) return true;
  return false;
}

Bytes needed_by(const Image& image, const Call& call, const Bound& bound) {
  return bound.bytes + (needs_nothing(image, call) ? SPACE_ALIGN : 0);
}

bool is_number(const char* text, int* found) {
  int value = 0, digits = 0;
  for (; *text >= '0' && *text <= '9'; ++text, ++digits) value = 10 * value + (*text - '0');
  *found = value;
  return digits > 0 && (*text == 0 || *text == 'a');
}

}  // namespace
