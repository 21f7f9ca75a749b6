// Checks of a call, sizes, and the choice of a kernel. Freestanding C++17.

namespace {

typedef long long Wide;
typedef unsigned long long Bytes;

constexpr Wide MOST_EXTENT = 0x7fffffff;
constexpr Wide MOST_REACH = 1ll << 55;  // elements between the lowest and the highest; their bits fit 64
constexpr Bytes SPACE_ALIGN = 256;
constexpr int MOST_SIZES = 96, MOST_SPACES = 8;

int error(int kind, int argument) { return kind | argument << 8; }

// The class of an array: what a kernel relies on.
struct ArrayClass {
  int argument, rank, unit, align, bits;
  bool wide, is_signed, written;
  int extents[8], strides[8];
};

// The arrays of a call in the kernel's order, its integers, and its numbers.
struct Call {
  const tilewright_array* const* arrays;
  const Wide* integers;
  const void* const* numbers;
};

// The integers of one launch.
struct Bound {
  Wide sizes[MOST_SIZES];
  Wide grid[3];
  Bytes offsets[MOST_SPACES], spaces[MOST_SPACES];
  Bytes bytes;

  // Reserve memory in the workspace; false if it is too large.
  bool reserve(int at, Wide elements, int bits) {
    if (elements < 0 || elements > MOST_EXTENT) return false;
    offsets[at] = bytes;
    spaces[at] = (Bytes)elements * bits / 8;
    bytes += (spaces[at] + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    return true;
  }
};

template <class T>
void put(unsigned char* buffer, T value) {
  __builtin_memcpy(buffer, &value, sizeof value);
}

Wide floor_div(Wide a, Wide b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
Wide floor_mod(Wide a, Wide b) { return a - floor_div(a, b) * b; }
Wide min(Wide a, Wide b) { return a < b ? a : b; }
Wide max(Wide a, Wide b) { return a > b ? a : b; }

bool is_empty(const ArrayClass& its, const tilewright_array* array) {
  for (int dim = 0; dim < its.rank; ++dim)
    if (array->shape[dim] == 0) return true;
  return false;
}

// Bytes from the address to the lowest element, and to the end of the highest.
void reach(const ArrayClass& its, const tilewright_array* array, Wide* low, Wide* high) {
  Wide least = 0, most = 0;
  if (is_empty(its, array)) {
    *low = *high = 0;
    return;
  }
  for (int dim = 0; dim < its.rank; ++dim) {
    const Wide far = (array->shape[dim] - 1) * array->strides[dim];
    (far < 0 ? least : most) += far;
  }
  *low = floor_div(least * its.bits, 8);
  *high = ((most + 1) * its.bits + 7) / 8;
}

// Whether two elements of a written array may have one address.
bool meets_itself(const ArrayClass& its, const tilewright_array* array) {
  bool done[8] = {};
  Wide far = 0;
  for (int count = 0; count < its.rank; ++count) {
    int next = -1;
    for (int dim = 0; dim < its.rank; ++dim) {
      if (done[dim]) continue;
      const Wide one = __builtin_llabs(array->strides[dim]);
      if (next < 0 || one < __builtin_llabs(array->strides[next])) next = dim;
    }
    done[next] = true;
    const Wide extent = array->shape[next], stride = __builtin_llabs(array->strides[next]);
    if (extent == 1) continue;
    if (stride <= far) return true;
    far += stride * (extent - 1);
  }
  return false;
}

int check(const ArrayClass& its, const tilewright_array* array) {
  const int at = its.argument;
  if (array == nullptr) return error(TILEWRIGHT_MISSING, at);
  for (int dim = 0; dim < its.rank; ++dim) {
    const Wide extent = array->shape[dim];
    if (extent < 0 || extent > MOST_EXTENT || extent % its.extents[dim]) return error(TILEWRIGHT_EXTENTS, at);
  }
  if (is_empty(its, array)) return 0;
  Wide far = 0;
  for (int dim = 0; dim < its.rank; ++dim) {
    const Wide extent = array->shape[dim], stride = array->strides[dim];
    if (extent == 1) continue;
    if (stride > MOST_REACH || stride < -MOST_REACH) return error(TILEWRIGHT_STRIDES, at);
    if (dim == its.unit ? stride != 1 : stride % its.strides[dim] != 0) return error(TILEWRIGHT_STRIDES, at);
    if (stride < 0 && !its.is_signed) return error(TILEWRIGHT_STRIDES, at);
    Wide step;
    if (__builtin_mul_overflow(extent - 1, __builtin_llabs(stride), &step) || step > MOST_REACH - far) return error(TILEWRIGHT_STRIDES, at);
    far += step;
    if (!its.wide && (far > MOST_EXTENT || __builtin_llabs(stride) > MOST_EXTENT)) return error(TILEWRIGHT_STRIDES, at);
  }
  if (array->address == nullptr) return error(TILEWRIGHT_MISSING, at);
  if ((Bytes)array->address % its.align) return error(TILEWRIGHT_ALIGNMENT, at);
  if (its.written && meets_itself(its, array)) return error(TILEWRIGHT_OVERLAP, at);
  return 0;
}

// Whether a stored array may share memory with another one: only if both are one array, element for element.
int check_apart(const ArrayClass& its, const tilewright_array* stored, const ArrayClass& theirs,
                const tilewright_array* other, bool in_place) {
  Wide low, high, lowest, highest;
  reach(its, stored, &low, &high);
  reach(theirs, other, &lowest, &highest);
  const Wide begin = (Wide)stored->address, from = (Wide)other->address;
  if (begin + low >= from + highest || from + lowest >= begin + high) return 0;
  bool same = in_place && begin == from && its.rank == theirs.rank;
  for (int dim = 0; same && dim < its.rank; ++dim)
    same = stored->shape[dim] == other->shape[dim] &&
           (stored->shape[dim] == 1 || stored->strides[dim] == other->strides[dim]);
  return same ? 0 : error(TILEWRIGHT_OVERLAP, its.argument);
}

// A kernel for one class of arrays and one architecture.
struct Kernel {
  const char* arch;
  int number;   // of the class
  int demands;  // number of requirements of the class
  int arrays;
  const Wide* measured;  // the extents that it was exported for, eight for each array
  int (*bind)(const Call&, Bound&);
  void (*fill)(const Call&, const Bound&, char* workspace, unsigned char* buffer);
  int buffer_bytes;
  const void* code;  // the Program or the Image of the kernel
};

// Distance between the extents of a call and those that a kernel was exported for: a product of ratios.
double distance(const Kernel& kernel, const Call& call, const int* ranks) {
  double found = 1;
  for (int at = 0; at < kernel.arrays; ++at)
    for (int dim = 0; dim < ranks[at]; ++dim) {
      const double one = (double)max(call.arrays[at]->shape[dim], 1), other = (double)max(kernel.measured[8 * at + dim], 1);
      found *= one > other ? one / other : other / one;
    }
  return found;
}

// Choose a kernel of an architecture: among those whose class fits, the one with the most requirements; among
// equals, the one with the nearest extents.
int choose(const Kernel* kernels, int count, const char* arch, int number, const Call& call, const int* ranks,
           const Kernel** chosen, Bound& bound) {
  int wrong = error(TILEWRIGHT_MACHINE, 0);
  double least = 0;
  int most = 0;
  *chosen = nullptr;
  for (int at = 0; at < count; ++at) {
    if (kernels[at].arch != arch || (number >= 0 && kernels[at].number != number)) continue;
    Bound found;
    found.bytes = 0;
    if (int refused = kernels[at].bind(call, found)) {
      if (*chosen == nullptr) wrong = refused;
      continue;
    }
    const double far = distance(kernels[at], call, ranks);
    const int demands = kernels[at].demands;
    if (*chosen != nullptr && (demands < most || (demands == most && far >= least))) continue;
    *chosen = &kernels[at];
    most = demands;
    least = far;
    bound = found;
  }
  return *chosen != nullptr ? 0 : wrong;
}

}  // namespace
