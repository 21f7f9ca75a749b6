"""The handler of XLA's calls: C++ that runs recorded launches on XLA's buffers and threads.

The handler is compiled once, from XLA's own header and the text below.  A call carries its description as a
text and a number for it.  When XLA loads a program, the handler asks Python to compile the calls that it does
not know; running them needs no Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from tilewright.runtime.cache import Cache, key
from tilewright.runtime.host import LaunchImage
from tilewright.runtime.libraries import Library
from tilewright.runtime.native import compile_library, toolchain_id
from tilewright.targets.target import HOST

TARGET = "tilewright"
"""Name of the handler in XLA's programs."""

_HEADER = "xla/ffi/api/c_api.h"

_COMPILE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)

_TAKES_ADDRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Address(ctypes.Structure):
    """Where an address is written, and from which buffer it comes: `Address` in C++."""

    _fields_ = (("at", ctypes.c_longlong), ("place", ctypes.c_longlong), ("offset", ctypes.c_longlong))


class _Space(ctypes.Structure):
    """A workspace of a launch: `Space` in C++."""

    _fields_ = (("at", ctypes.c_longlong), ("bytes", ctypes.c_longlong), ("zeroed", ctypes.c_longlong))


class _LaunchFields(ctypes.Structure):
    """One launch: `Launch` in C++."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("blocks", ctypes.c_longlong),
        ("scratch_bytes", ctypes.c_longlong),
        ("arguments", ctypes.c_void_p),
        ("argument_bytes", ctypes.c_longlong),
        ("addresses", ctypes.c_void_p),
        ("address_count", ctypes.c_longlong),
        ("spaces", ctypes.c_void_p),
        ("space_count", ctypes.c_longlong),
        ("block_ns", ctypes.c_longlong),
    )


class _Record(ctypes.Structure):
    """The launches of a call: `Record` in C++."""

    _fields_ = (
        ("key", ctypes.c_ulonglong),
        ("next", ctypes.c_void_p),
        ("operands", ctypes.c_longlong),
        ("results", ctypes.c_longlong),
        ("scratch_bytes", ctypes.c_longlong),
        ("launches", ctypes.c_void_p),
        ("launch_count", ctypes.c_longlong),
    )


class Step:
    """One launch of a call for the handler.

    Args:
        image: the launch.
        places: for each array of the kernel the number of the call's buffer, operands before results; -1 for
            scratch memory.
        offsets: bytes to add to the addresses of these buffers.
        holds: keeps the machine code loaded.
    """

    def __init__(
        self, image: LaunchImage, places: Sequence[int], offsets: Sequence[int], holds: object
    ) -> None:
        written = [(to, places[at], offsets[at]) for at, to in image.addresses.items()]
        self._addresses = (_Address * max(len(written), 1))(*(_Address(*one) for one in written))
        spaces = image.workspaces
        self._spaces = (_Space * max(len(spaces), 1))(*(_Space(*one) for one in spaces))
        self._arguments = ctypes.create_string_buffer(image.arguments, len(image.arguments))
        self._holds = holds
        self.fields = _LaunchFields(
            image.entry,
            image.blocks,
            image.scratch_bytes,
            ctypes.addressof(self._arguments),
            len(image.arguments),
            ctypes.addressof(self._addresses),
            len(written),
            ctypes.addressof(self._spaces),
            len(spaces),
            -1,
        )


class Handler:
    """The compiled handler, registered with JAX for processors.

    Args:
        compile_call: takes the text of a call, and returns its number, the numbers of its operands and
            results, its bytes of scratch memory, and its launches.
    """

    def __init__(self, compile_call: Callable[[str], tuple[int, int, int, int, Sequence[Step]]]) -> None:
        source = Path(jax.ffi.include_dir(), _HEADER).read_text(encoding="utf-8") + HANDLER_SOURCE
        address = key([source, toolchain_id()])
        entry = Cache.default().get_or_build(
            address, ".so", lambda: compile_library(source), {"kernel": "handler of XLA's calls"}
        )
        self._library = Library(entry.data, "handler of XLA's calls")
        self._held = list[Any]()
        self._compile_call = compile_call
        self._callback = _COMPILE(self._compiled)
        self._add = _TAKES_ADDRESS(self._library.address("tilewright_add"))
        begin = _TAKES_ADDRESS(self._library.address("tilewright_begin"))
        begin(ctypes.cast(self._callback, ctypes.c_void_p))
        stages = {
            stage: jax.ffi.pycapsule(_TAKES_ADDRESS(self._library.address(f"tilewright_{stage}")))
            for stage in ("instantiate", "execute")
        }
        jax.ffi.register_ffi_target(TARGET, stages, platform=HOST)

    def _compiled(self, text: int, size: int, message: int, room: int) -> int:
        """Compile a call for XLA; on failure write a message, and return 1."""
        try:
            number, operands, results, scratch, steps = self._compile_call(
                ctypes.string_at(text, size).decode()
            )
            launches = (_LaunchFields * max(len(steps), 1))(*(one.fields for one in steps))
            record = _Record(number, None, operands, results, scratch, ctypes.addressof(launches), len(steps))
            self._held.append((steps, launches, record))
            self._add(ctypes.addressof(record))
        except Exception as error:  # noqa: BLE001 - XLA raises it with its text
            said = f"{type(error).__name__}: {error}".encode()[: room - 1] + b"\0"
            ctypes.memmove(message, said, len(said))
            return 1
        return 0


@lru_cache(maxsize=1)
def handler(compile_call: Callable[[str], tuple[int, int, int, int, Sequence[Step]]]) -> Handler:
    """Return the handler of this process.

    Args:
        compile_call: as for `Handler`.
    """
    return Handler(compile_call)


# ---------------------------------------------------------------- the C++ side

HANDLER_SOURCE = r"""
extern "C" {
void* malloc(unsigned long);
void free(void*);
int sched_yield(void);
int clock_gettime(int, void*);
}

namespace {

typedef long long Word;
typedef void (*Entry)(const void* arguments, Word* board, void* scratch, Word blocks);

struct Address { Word at, place, offset; };  // place -1: scratch memory
struct Space { Word at, bytes, zeroed; };

struct Launch {
  Entry entry;
  Word blocks, scratch_bytes;
  const char* arguments;
  Word argument_bytes;
  const Address* addresses;
  Word address_count;
  const Space* spaces;
  Word space_count;
  Word block_ns;  // of the last launch; -1: none yet
};

struct Record {
  unsigned long long key;
  Record* next;
  Word operands, results, scratch_bytes;
  Launch* launches;
  Word launch_count;
};

constexpr Word SLOTS = 1024, ALIGN = 256, SHORT_NS = 25000, MOST_BUFFERS = 64;
Record* slots[SLOTS];
int (*compile_call)(const char* text, size_t size, char* message, size_t room);

Word up(Word bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

Word now_ns() {
  long time[2] = {0, 0};
  clock_gettime(1, time);  // monotonic
  return time[0] * 1000000000ll + time[1];
}

// ---------------------------------------------------------------- errors, and attributes

XLA_FFI_Error* failed(const XLA_FFI_Api* api, const char* message, XLA_FFI_Error_Code code) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message;
  args.errc = code;
  return api->XLA_FFI_Error_Create(&args);
}

void destroy(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  XLA_FFI_Error_Destroy_Args args = {};
  args.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  args.error = error;
  api->XLA_FFI_Error_Destroy(&args);
}

const void* attribute(const XLA_FFI_CallFrame* frame, const char* name, XLA_FFI_AttrType type) {
  const size_t length = __builtin_strlen(name);
  for (Word at = 0; at < frame->attrs.size; ++at) {
    const XLA_FFI_ByteSpan* own = frame->attrs.names[at];
    if (own->len == length && frame->attrs.types[at] == type && !__builtin_memcmp(own->ptr, name, length))
      return frame->attrs.attrs[at];
  }
  return nullptr;
}

// XLA asks for the version when the handler is registered.
bool answered(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  metadata->state_type_id = XLA_FFI_TypeId{0};
  return true;
}

const Record* found(unsigned long long key) {
  const Record* record = __atomic_load_n(&slots[key % SLOTS], __ATOMIC_ACQUIRE);
  while (record != nullptr && record->key != key) record = record->next;
  return record;
}

const XLA_FFI_Scalar* key_of(const XLA_FFI_CallFrame* frame) {
  return (const XLA_FFI_Scalar*)attribute(frame, "key", XLA_FFI_AttrType_SCALAR);
}

// ---------------------------------------------------------------- memory of calls

// Blocks of memory that calls take and give back.
struct Block {
  Block* next;
  Word bytes;
  void* whole;
};

Block* idle;
int lock;

void acquire() {
  for (int poll = 0; __atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE); ++poll)
    if (poll > 64) sched_yield();
}

void release() { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

Block* taken(Word bytes) {
  acquire();
  Block* block = idle;
  if (block != nullptr) idle = block->next;
  release();
  if (block != nullptr && block->bytes >= bytes) return block;
  if (block != nullptr) free(block->whole);
  void* whole = malloc(bytes + 2 * ALIGN);
  if (whole == nullptr) return nullptr;
  block = (Block*)(((size_t)whole + ALIGN - 1) / ALIGN * ALIGN);
  block->bytes = bytes;
  block->whole = whole;
  return block;
}

void give_back(Block* block) {
  acquire();
  block->next = idle;
  idle = block;
  release();
}

// ---------------------------------------------------------------- threads

// One launch, for XLA's threads.  A task may begin after the launch has ended: it then finds it closed.
struct Job {
  Word board[4];  // the next block; which wait cannot end; threads inside; those of them that wait
  Entry entry;
  const void* arguments;
  char* scratch;
  Word each, blocks;
  unsigned state, seats, holders;
};

constexpr unsigned CLOSED = 1u << 31;

void let_go(Job* job) {
  if (__atomic_sub_fetch(&job->holders, 1, __ATOMIC_SEQ_CST) == 0) free(job);
}

void work(void* data) {
  Job* job = (Job*)data;
  if (!(__atomic_fetch_add(&job->state, 1, __ATOMIC_SEQ_CST) & CLOSED)) {
    const Word seat = __atomic_fetch_add(&job->seats, 1, __ATOMIC_SEQ_CST);
    job->entry(job->arguments, job->board, job->scratch + seat * job->each, job->blocks);
  }
  __atomic_fetch_sub(&job->state, 1, __ATOMIC_SEQ_CST);
  let_go(job);
}

// Run all blocks on this thread and `more` tasks of XLA; return which wait cannot end, or 0.
Word run(const XLA_FFI_CallFrame* frame, const Launch& launch, const void* arguments, char* scratch,
         Word more) {
  if (more == 0) {
    Word board[4] = {0, 0, 0, 0};
    launch.entry(arguments, board, scratch, launch.blocks);
    return board[1];
  }
  Job* job = (Job*)malloc(sizeof(Job));
  if (job == nullptr) return run(frame, launch, arguments, scratch, 0);
  const Word each = up(launch.scratch_bytes);
  *job = Job{{0, 0, 0, 0}, launch.entry, arguments, scratch, each, launch.blocks, 0, 1, 1};
  for (Word task = 0; task < more; ++task) {
    XLA_FFI_ThreadPool_Schedule_Args args = {};
    args.struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE;
    args.ctx = frame->ctx;
    args.task = work;
    args.data = job;
    __atomic_fetch_add(&job->holders, 1, __ATOMIC_SEQ_CST);
    if (XLA_FFI_Error* error = frame->api->XLA_FFI_ThreadPool_Schedule(&args)) {
      destroy(frame->api, error);
      __atomic_fetch_sub(&job->holders, 1, __ATOMIC_SEQ_CST);
      break;
    }
  }
  launch.entry(arguments, job->board, scratch, launch.blocks);
  __atomic_fetch_or(&job->state, CLOSED, __ATOMIC_SEQ_CST);
  for (int poll = 0; __atomic_load_n(&job->state, __ATOMIC_SEQ_CST) != CLOSED; ++poll)
    if (poll > 64) sched_yield();
  const Word stuck = job->board[1];
  let_go(job);
  return stuck;
}

Word threads_of(const XLA_FFI_CallFrame* frame) {
  int64_t count = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {};
  args.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
  args.ctx = frame->ctx;
  args.num_threads = &count;
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_ThreadPool_NumThreads(&args)) {
    destroy(frame->api, error);
    return 1;
  }
  return count;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void tilewright_begin(int (*function)(const char*, size_t, char*, size_t)) {
  compile_call = function;
}

EXPORTED void tilewright_add(Record* record) {
  acquire();
  record->next = slots[record->key % SLOTS];
  __atomic_store_n(&slots[record->key % SLOTS], record, __ATOMIC_RELEASE);
  release();
}

EXPORTED XLA_FFI_Error* tilewright_instantiate(XLA_FFI_CallFrame* frame) {
  if (answered(frame)) return nullptr;
  const XLA_FFI_Scalar* key = key_of(frame);
  const XLA_FFI_ByteSpan* text = (const XLA_FFI_ByteSpan*)attribute(frame, "call", XLA_FFI_AttrType_STRING);
  if (key == nullptr || text == nullptr)
    return failed(frame->api, "tilewright: a call without its text", XLA_FFI_Error_Code_INVALID_ARGUMENT);
  if (found(*(const unsigned long long*)key->value) != nullptr) return nullptr;
  char message[4096];
  if (compile_call(text->ptr, text->len, message, sizeof message))
    return failed(frame->api, message, XLA_FFI_Error_Code_INVALID_ARGUMENT);
  return nullptr;
}

EXPORTED XLA_FFI_Error* tilewright_execute(XLA_FFI_CallFrame* frame) {
  if (answered(frame)) return nullptr;
  const XLA_FFI_Scalar* key = key_of(frame);
  const Record* record = key == nullptr ? nullptr : found(*(const unsigned long long*)key->value);
  const Word operands = frame->args.size, buffers = operands + frame->rets.size;
  if (record == nullptr || record->operands != operands || record->results != frame->rets.size ||
      buffers > MOST_BUFFERS)
    return failed(frame->api, "tilewright: the call does not fit its text", XLA_FFI_Error_Code_INTERNAL);
  char* places[MOST_BUFFERS];
  for (Word at = 0; at < buffers; ++at) {
    const void* one = at < operands ? frame->args.args[at] : frame->rets.rets[at - operands];
    places[at] = (char*)((const XLA_FFI_Buffer*)one)->data;
    if ((size_t)places[at] % 16)
      return failed(frame->api, "tilewright: a buffer at no multiple of 16", XLA_FFI_Error_Code_INTERNAL);
  }
  const Word threads = threads_of(frame);
  // The call's scratch memory comes first; then, for each launch anew, arguments, workspaces, and threads'.
  Word most = 0;
  for (Word at = 0; at < record->launch_count; ++at) {
    const Launch& launch = record->launches[at];
    Word bytes = up(launch.argument_bytes) + threads * up(launch.scratch_bytes);
    for (Word space = 0; space < launch.space_count; ++space) bytes += up(launch.spaces[space].bytes);
    most = bytes > most ? bytes : most;
  }
  Block* block = taken(up(record->scratch_bytes) + most);
  if (block == nullptr)
    return failed(frame->api, "tilewright: no memory for scratch", XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
  char* whole = (char*)block + ALIGN;
  Word stuck = 0;
  for (Word at = 0; at < record->launch_count && !stuck; ++at) {
    Launch& launch = record->launches[at];
    if (launch.blocks < 1) continue;
    char* arguments = whole + up(record->scratch_bytes);
    char* free_bytes = arguments + up(launch.argument_bytes);
    __builtin_memcpy(arguments, launch.arguments, launch.argument_bytes);
    for (Word one = 0; one < launch.address_count; ++one) {
      const Address& address = launch.addresses[one];
      char* value = (address.place < 0 ? whole : places[address.place]) + address.offset;
      __builtin_memcpy(arguments + address.at, &value, sizeof value);
    }
    for (Word one = 0; one < launch.space_count; ++one) {
      const Space& space = launch.spaces[one];
      if (space.zeroed) __builtin_memset(free_bytes, 0, space.bytes);
      __builtin_memcpy(arguments + space.at, &free_bytes, sizeof free_bytes);
      free_bytes += up(space.bytes);
    }
    const Word known = __atomic_load_n(&launch.block_ns, __ATOMIC_RELAXED);
    const bool is_short = known >= 0 && launch.blocks * known <= SHORT_NS;
    const Word wanted = launch.blocks < threads ? launch.blocks : threads;
    const Word start = now_ns();
    stuck = run(frame, launch, arguments, free_bytes, is_short ? 0 : wanted - 1);
    const Word took = (now_ns() - start) * (is_short ? 1 : wanted);
    __atomic_store_n(&launch.block_ns, took / launch.blocks, __ATOMIC_RELAXED);
  }
  give_back(block);
  if (stuck) return failed(frame->api, "tilewright: blocks wait for ever", XLA_FFI_Error_Code_INTERNAL);
  return nullptr;
}
"""
"""Freestanding C++ after XLA's header. The functions that it declares come from the process's C library."""
