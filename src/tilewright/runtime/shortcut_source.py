"""The C++ side of shortcuts: a method that finds the launch for NumPy arrays and runs it without Python."""

from __future__ import annotations

SHORTCUT_SOURCE = """
typedef long long Word;
typedef void (*Entry)(const void* arguments, Word* board, void* scratch, Word blocks);

// CPython's and NumPy's objects, as far as they are read.
struct Object { Word references; void* type; };
struct Array {
  Object head;
  char* data;
  int rank;
  Word *shape, *strides;
  Object *base, *element;
  int flags;
};
constexpr int WRITEABLE = 0x400, ADDRESS_MASK = 15, MOST_ARRAYS = 3;

// What one array must be like, and where its address goes.
struct Fit {
  Word rank;
  const Word* sizes;  // extents, then strides in bytes
  const Object* element;
  Word address;           // modulo 16
  Word lowest, highest;   // bytes from its address to its lowest element, and to behind its highest
  Word offset;            // of its address in the arguments
};

// One launch of an exact shape; the last array is the output.
struct Plan {
  Word hash, given, made;  // how many arrays are given, and made here
  Entry entry;
  char* arguments;
  void* scratch;
  Word blocks;
  char* used;
  Object* shape_and_element;  // the arguments that NumPy makes an empty array from
  Fit fits[MOST_ARRAYS];
};

struct Table {
  void* array_type;
  Object* none;
  Object* empty;
  void (*keep)(Object*);
  void (*drop)(Object*);
  Object* (*call)(Object* function, Object* arguments, Object* named);
  Word mask;      // slots - 1, a power of two less one
  Plan** plans;   // open addressing; null where there is none
};

static inline Word mixed(Word hash, Word value) {
  const unsigned long long both = (unsigned long long)hash ^ (unsigned long long)value;
  return (Word)(both * 0x9E3779B97F4A7C15ull) ^ (hash >> 29);
}

static Word hash_of(Object* const* arrays, Word count) {
  Word hash = count;
  for (Word i = 0; i < count; ++i) {
    const Array* array = (const Array*)arrays[i];
    hash = mixed(hash, (Word)array->element);
    for (int dim = 0; dim < array->rank; ++dim)
      hash = mixed(mixed(hash, array->shape[dim]), array->strides[dim]);
  }
  return hash;
}

static bool fits(const Array* array, const Fit* fit) {
  if (array->rank != fit->rank || array->element != fit->element) return false;
  if (((Word)array->data & ADDRESS_MASK) != fit->address) return false;
  for (int dim = 0; dim < array->rank; ++dim)
    if (array->shape[dim] != fit->sizes[dim] || array->strides[dim] != fit->sizes[array->rank + dim])
      return false;
  return true;
}

static Plan* find(const Table* table, Object* const* arrays, Word count, Word hash) {
  for (Word slot = hash & table->mask;; slot = (slot + 1) & table->mask) {
    Plan* plan = table->plans[slot];
    if (plan == nullptr) return nullptr;
    if (plan->hash != hash || plan->given != count) continue;
    bool all = true;
    for (Word i = 0; i < count; ++i) all = all && fits((const Array*)arrays[i], &plan->fits[i]);
    if (all) return plan;
  }
}

// Whether the output can be written and lies clear of what is read.
static bool is_apart(const Plan* plan, Object* const* arrays) {
  const Word last = plan->given - 1;
  const Array* out = (const Array*)arrays[last];
  const char* first = out->data + plan->fits[last].lowest;
  const char* end = out->data + plan->fits[last].highest;
  for (Word i = 0; i < last; ++i) {
    const char* data = ((const Array*)arrays[i])->data;
    if (data + plan->fits[i].highest > first && end > data + plan->fits[i].lowest) return false;
  }
  return (out->flags & WRITEABLE) != 0;
}

static Object* kept(const Table* table, Object* object) {
  table->keep(object);
  return object;
}

// A method of Python: runs the launch that is known for arrays like these, and gives the output; or None.
extern "C" __attribute__((visibility("default")))
Object* tilewright_shortcut(Object* self, Object* const* given, Word count) {
  const Table* table = (const Table*)((Array*)self)->data;
  if (count < 1 || count > MOST_ARRAYS) return kept(table, table->none);
  Object* arrays[MOST_ARRAYS + 1];
  for (Word i = 0; i < count; ++i) {
    if (given[i]->type != table->array_type) return kept(table, table->none);
    arrays[i] = given[i];
  }
  const Word hash = hash_of(arrays, count);
  Plan* plan = find(table, arrays, count, hash);
  if (plan == nullptr) return kept(table, table->none);
  if (plan->made) {
    Object* made = table->call(table->empty, plan->shape_and_element, nullptr);
    if (made == nullptr) return nullptr;
    arrays[count] = made;
    // Making it may have run anybody's code: what was found before may be gone.
    if (find(table, arrays, count, hash) != plan || made->type != table->array_type ||
        !fits((const Array*)made, &plan->fits[count])) {
      table->drop(made);
      return kept(table, table->none);
    }
  } else if (!is_apart(plan, arrays)) {
    return kept(table, table->none);
  }
  const Word last = count - 1 + plan->made;
  for (Word i = 0; i <= last; ++i)
    *(char**)(plan->arguments + plan->fits[i].offset) = ((Array*)arrays[i])->data;
  Word board[4] = {0, 0, 0, 0};
  *plan->used = 1;
  plan->entry(plan->arguments, board, plan->scratch, plan->blocks);
  return plan->made ? arrays[last] : kept(table, arrays[last]);
}
"""
"""Freestanding C++ for CPython; Python's functions are passed as addresses."""
