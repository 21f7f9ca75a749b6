// XLA without XLA: a frame of a call, and the functions of its interface that handlers on GPUs use. It follows XLA's header.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

XLA_FFI_Error* create(XLA_FFI_Error_Create_Args* args) { return (XLA_FFI_Error*)strdup(args->message); }

void destroy(XLA_FFI_Error_Destroy_Args* args) { free(args->error); }

XLA_FFI_Error* stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = (void*)77;
  return nullptr;
}

XLA_FFI_Error* allocate(XLA_FFI_DeviceMemory_Allocate_Args* args) {
  if (args->alignment > 16) return (XLA_FFI_Error*)strdup("unsupported alignment");
  // As XLA's allocator, but at no multiple of 256.
  args->data = (char*)aligned_alloc(256, (args->size + 511) / 256 * 256) + 16;
  printf("allocate %zu %lld\n", args->size, (long long)args->data);
  fflush(stdout);
  return nullptr;
}

XLA_FFI_Error* give_back(XLA_FFI_DeviceMemory_Free_Args* args) {
  printf("free %zu\n", args->size);
  fflush(stdout);
  free((char*)args->data - 16);
  return nullptr;
}

}  // namespace

// Call a stage of a handler; returns its error, or null.
extern "C" const char* call(XLA_FFI_Error* (*stage)(XLA_FFI_CallFrame*), const char* text, long long key, int operands,
                            int results, void** addresses) {
  XLA_FFI_Api api = {};
  api.XLA_FFI_Error_Create = create;
  api.XLA_FFI_Error_Destroy = destroy;
  api.XLA_FFI_Stream_Get = stream;
  api.XLA_FFI_DeviceMemory_Allocate = allocate;
  api.XLA_FFI_DeviceMemory_Free = give_back;
  XLA_FFI_Buffer buffers[64] = {};
  void* pointers[64];
  for (int at = 0; at < operands + results; ++at) {
    buffers[at].data = addresses[at];
    pointers[at] = &buffers[at];
  }
  XLA_FFI_ByteSpan spans[] = {{"call", 4}, {"key", 3}}, words = {text, strlen(text)};
  XLA_FFI_ByteSpan* names[] = {&spans[0], &spans[1]};
  XLA_FFI_Scalar number = {XLA_FFI_DataType_S64, &key};
  XLA_FFI_AttrType types[] = {XLA_FFI_AttrType_STRING, XLA_FFI_AttrType_SCALAR};
  void* values[] = {&words, &number};
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &api;
  frame.args.size = operands;
  frame.args.args = pointers;
  frame.rets.size = results;
  frame.rets.rets = pointers + operands;
  frame.attrs.size = 2;
  frame.attrs.types = types;
  frame.attrs.names = names;
  frame.attrs.attrs = values;
  return (const char*)stage(&frame);
}
