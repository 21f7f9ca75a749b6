"""Shortcut tables: a compiled method that finds launches by metadata, and the memory that it reads."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import CompileError, ToolchainError
from tilewright.runtime.arrays import describe, reach
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.libraries import Library
from tilewright.runtime.native import compile_library, toolchain_id

_SLOTS = 1024
"""Slots of a hash table, a power of two; some must stay empty."""

_WORD = np.dtype(np.int64)
_FASTCALL = 0x80

Array = np.ndarray[Any, np.dtype[Any]]


class _Method(ctypes.Structure):
    """Source: CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )


class _Fields(ctypes.Structure):
    """The first fields of a NumPy array in memory.

    Source: NumPy's `PyArrayObject_fields`, after CPython's `PyObject`.
    """

    _fields_ = (
        ("references", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("base", ctypes.c_void_p),
        ("element", ctypes.c_void_p),
        ("flags", ctypes.c_int),
    )


@dataclass(frozen=True)
class InlineLaunch:
    """A launch for compiled code; all fields but the first and last are addresses or integers.

    Args:
        prepared: the launch.
        entry: the kernel's function.
        arguments: the argument buffer.
        scratch: scratch memory.
        blocks: number of blocks.
        used: a byte that a launch sets.
        guard: address of a word that is not 0 while any launch runs without the interpreter's lock; 0: this
            launch keeps the lock.
        offsets: offset of each array's address in the argument buffer.
        holds: objects that own the memory at the addresses.
    """

    prepared: Prepared
    entry: int
    arguments: int
    scratch: int
    blocks: int
    used: int
    guard: int
    offsets: tuple[int, ...]
    holds: object

    @staticmethod
    def table() -> ShortcutTable | None:
        """Return an empty table; None if this interpreter cannot have one."""
        try:
            return ShortcutTable(_library()) if _is_readable() else None
        except (CompileError, ToolchainError):
            return None


class ShortcutTable:
    """A hash table of launches, in memory that compiled code reads.

    Args:
        library: the compiled code.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        api = ctypes.pythonapi
        self.count = 0
        self.executables: set[Executable] = set()
        self._known: set[tuple[object, bool, tuple[tuple[tuple[int, ...], int], ...]]] = set()
        self._held: list[Any] = []
        self._slots = np.zeros(_SLOTS, _WORD)
        head = (
            id(np.ndarray),
            id(None),
            id(np.empty),
            *(_address(function) for function in (api.Py_IncRef, api.Py_DecRef, api.PyObject_Call)),
            *(_address(function) for function in (api.PyEval_SaveThread, api.PyEval_RestoreThread)),
            _SLOTS - 1,
            _data(self._slots),
        )
        self._head = np.array(head, _WORD)
        self._method = _Method(
            b"shortcut", self.library.address("tilewright_shortcut"), _FASTCALL, b"Run a known launch."
        )
        # A method keeps its "module" alive; ours is the memory that it reads.
        self.call: Callable[..., Any] = _new_method(ctypes.addressof(self._method), self._head, self)

    def add(
        self, launch: InlineLaunch, arrays: Sequence[Array], addresses: Sequence[tuple[int, int]], fresh: bool
    ) -> None:
        """Add a launch under the metadata of some arrays; the last array is the output.

        Args:
            launch: the launch.
            arrays: arrays with the metadata.
            addresses: for each of the kernel's arrays the array that it lies in, and its offset in bytes.
            fresh: whether a call makes the output instead of taking it.
        """
        given = len(arrays) - fresh
        # One launch may serve arrays that differ in the stride of a dimension of one element.
        metadata = (((*array.shape, *array.strides), int(array.ctypes.data) % 16) for array in arrays)
        known = launch.prepared, fresh, tuple(metadata)
        if known in self._known:
            return
        self._known.add(known)
        made = (arrays[-1].shape, arrays[-1].dtype)
        sizes = [np.array((*array.shape, *array.strides), _WORD) for array in arrays]
        words = [self._hash(arrays[:given]), given, int(fresh), launch.entry, launch.arguments]
        words += [launch.scratch, launch.blocks, launch.used, launch.guard, id(made)]
        stores = np.array([(to, *one) for to, one in zip(launch.offsets, addresses, strict=True)], _WORD)
        words += [len(stores), _data(stores)]
        for array, each in zip(arrays, sizes, strict=True):
            info = describe(array)
            words += [array.ndim, _data(each), id(array.dtype), info.pointer % 16, *reach(info)]
        plan = np.array(words, _WORD)
        self._held += [launch, made, sizes, stores, plan, [array.dtype for array in arrays]]
        self.executables.add(launch.prepared.executable)
        self.count += 1
        slot = words[0] & (_SLOTS - 1)
        while self._slots[slot]:
            slot = (slot + 1) & (_SLOTS - 1)
        self._slots[slot] = _data(plan)

    @staticmethod
    def _hash(arrays: Sequence[Array]) -> int:
        """Return the hash of metadata, as compiled code computes it."""
        found = len(arrays)
        for array in arrays:
            found = _mixed(found, id(array.dtype))
            for extent, stride in zip(array.shape, array.strides, strict=True):
                found = _mixed(_mixed(found, extent), stride)
        return found


def _mixed(found: int, value: int) -> int:
    product = ((found ^ value) % 2**64 * 0x9E3779B97F4A7C15) % 2**64
    mixed = product ^ ((found >> 29) % 2**64)
    return mixed - 2**64 if mixed >= 2**63 else mixed


_new_method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _data(words: Array) -> int:
    return int(words.ctypes.data)


def _library() -> Library:
    """Compile the code, or load it from the cache."""
    address = key([SHORTCUT_SOURCE, toolchain_id()])

    def build() -> bytes:
        return compile_library(SHORTCUT_SOURCE)

    return Library(
        Cache.default().get_or_build(address, ".so", build, {"kernel": "shortcut"}).data, "shortcut"
    )


def _is_readable() -> bool:
    """Return whether the interpreter has a global lock, and NumPy the layout that compiled code reads."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    if object.__basicsize__ != _Fields.data.offset or np.ndarray.__basicsize__ < ctypes.sizeof(_Fields):
        return False
    for array in (
        np.zeros((3, 5), np.float32)[:, ::-2],
        np.zeros((2, 4, 6)).T,
        np.broadcast_to(np.int8(1), (7,)),
    ):
        seen = _Fields.from_address(id(array))
        if (seen.type, seen.data, seen.rank) != (id(np.ndarray), array.ctypes.data, array.ndim):
            return False
        if (*seen.shape[: array.ndim], *seen.strides[: array.ndim]) != (*array.shape, *array.strides):
            return False
        if seen.element != id(array.dtype) or bool(seen.flags & 0x400) != array.flags.writeable:
            return False
    return True


# ---------------------------------------------------------------- the C++ side
#
# A method that finds the launch for NumPy arrays and runs it without Python.


SHORTCUT_SOURCE = """
typedef long long Word;
typedef void (*Entry)(const void* arguments, Word* board, void* scratch, Word blocks);

// The fields of CPython's and NumPy's objects that this code reads.
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

// The metadata that one array must have.
struct Fit {
  Word rank;
  const Word* sizes;  // extents, then strides in bytes
  const Object* element;
  Word address;           // modulo 16
  Word lowest, highest;   // bytes from its address to its lowest element, and to the end of its highest
};

// The address of one of the kernel's arrays, which lies in an array of the call.
struct Store {
  Word argument;  // its place in the arguments, in bytes
  Word array;     // the number of the call's array
  Word offset;    // from the address of that array, in bytes
};

// One launch of an exact shape; the last array is the output.
struct Plan {
  Word hash, given, made;  // how many arrays are given, and made here
  Entry entry;
  char* arguments;
  void* scratch;
  Word blocks;
  char* used;
  Word* guard;  // not 0 while a launch runs without the interpreter's lock; null: the launch holds it
  Object* shape_and_element;  // the arguments that NumPy makes an empty array from
  Word stored;                // addresses in the arguments
  const Store* stores;
  Fit fits[MOST_ARRAYS];
};

struct Table {
  void* array_type;
  Object* none;
  Object* empty;
  void (*keep)(Object*);
  void (*drop)(Object*);
  Object* (*call)(Object* function, Object* arguments, Object* named);
  void* (*release)(void);  // the interpreter's lock
  void (*take)(void*);
  Word mask;      // slots - 1, a power of two less one
  Plan** plans;   // open addressing; null: empty slot
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

// Return whether the output is writable and shares no memory with the inputs.
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
  if (plan->guard != nullptr && *plan->guard) {  // another launch has the memory
    if (plan->made) table->drop(arrays[count]);
    return kept(table, table->none);
  }
  const Word last = count - 1 + plan->made;
  for (const Store* store = plan->stores; store < plan->stores + plan->stored; ++store)
    *(char**)(plan->arguments + store->argument) = ((Array*)arrays[store->array])->data + store->offset;
  Word board[4] = {0, 0, 0, 0};
  *plan->used = 1;
  if (plan->guard == nullptr) {
    plan->entry(plan->arguments, board, plan->scratch, plan->blocks);
  } else {
    *plan->guard = 1;
    void* const thread = table->release();
    plan->entry(plan->arguments, board, plan->scratch, plan->blocks);
    table->take(thread);
    *plan->guard = 0;
  }
  return plan->made ? arrays[last] : kept(table, arrays[last]);
}
"""
"""Freestanding C++ for CPython; Python's functions are passed as addresses."""
