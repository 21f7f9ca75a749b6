// Records, errors and buffers that all handlers of calls share. XLA's own header precedes this text.

extern "C" {
void* malloc(unsigned long);
void free(void*);
int sched_yield(void);
int clock_gettime(int, void*);
int snprintf(char*, unsigned long, const char*, ...);
}

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

typedef long long Word;

struct Launch;

struct Record {
  unsigned long long key;
  Record* next;
  Word operands, results, scratch_bytes;
  Launch* launches;
  Word launch_count;
};

constexpr Word SLOTS = 1024, ALIGN = 256, MOST_BUFFERS = 64;
Record* slots[SLOTS];
int (*compile_call)(const char* text, size_t size, char* message, size_t room);
int slots_lock;

Word up(Word bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

void acquire(int* lock) {
  for (int poll = 0; __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); ++poll)
    if (poll > 64) sched_yield();
}

void release(int* lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

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
  auto* extension = frame->extension_start;  // its type has other names in other versions
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

// Find the record of a call and the addresses of its buffers; returns why the call cannot run.
XLA_FFI_Error* prepared(const XLA_FFI_CallFrame* frame, const Record** record, char** places) {
  const XLA_FFI_Scalar* key = key_of(frame);
  *record = key == nullptr ? nullptr : found(*(const unsigned long long*)key->value);
  const Word operands = frame->args.size, buffers = operands + frame->rets.size;
  if (*record == nullptr || (*record)->operands != operands || (*record)->results != frame->rets.size ||
      buffers > MOST_BUFFERS)
    return failed(frame->api, "tilewright: the call does not fit its text", XLA_FFI_Error_Code_INTERNAL);
  for (Word at = 0; at < buffers; ++at) {
    const void* one = at < operands ? frame->args.args[at] : frame->rets.rets[at - operands];
    places[at] = (char*)((const XLA_FFI_Buffer*)one)->data;
    if ((size_t)places[at] % 16)
      return failed(frame->api, "tilewright: a buffer at no multiple of 16", XLA_FFI_Error_Code_INTERNAL);
  }
  return nullptr;
}

}  // namespace

EXPORTED void tilewright_begin(int (*function)(const char*, size_t, char*, size_t)) {
  compile_call = function;
}

EXPORTED void tilewright_add(Record* record) {
  acquire(&slots_lock);
  record->next = slots[record->key % SLOTS];
  __atomic_store_n(&slots[record->key % SLOTS], record, __ATOMIC_RELEASE);
  release(&slots_lock);
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
