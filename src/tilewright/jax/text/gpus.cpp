// Calls on NVIDIA GPUs: launches on XLA's stream, by the launch code of exported kernels, which precedes this text.

namespace {

struct Space { Word at, bytes; };
struct Passed { Word array, at; };  // an array whose address the buffer has at an offset

// An array of a kernel: its buffer of the call (-1: scratch memory), the bytes before it there, and its extents if
// a tensor map describes it.
struct Placed {
  Word place, offset, bits;
  Word shape[8], strides[8];
};

struct Launch {
  const Image* image;
  Word grid[3];
  const unsigned char* arguments;  // numbers and sizes; addresses are missing
  Word argument_bytes;
  const Passed* passed;
  Word passed_count;
  const Space* spaces;
  Word space_count;
  const Placed* arrays;
  Word array_count;
};

constexpr Word MOST_ARRAYS = 64;

struct CallOfXla : Call {
  const Launch* launch;
};

void fill(const Call& given, const Bound& bound, char* workspace, unsigned char* buffer) {
  const CallOfXla& call = static_cast<const CallOfXla&>(given);
  const Launch& launch = *call.launch;
  __builtin_memcpy(buffer, launch.arguments, launch.argument_bytes);
  for (Word one = 0; one < launch.passed_count; ++one)
    put<void*>(buffer + launch.passed[one].at, call.arrays[launch.passed[one].array]->address);
  for (Word one = 0; one < launch.space_count; ++one)
    put<void*>(buffer + launch.spaces[one].at, workspace + bound.offsets[one]);
}

Bound bound_of(const Launch& launch) {
  Bound bound = {};
  for (int axis = 0; axis < 3; ++axis) bound.grid[axis] = launch.grid[axis];
  for (Word one = 0; one < launch.space_count; ++one) {
    bound.offsets[one] = bound.bytes;
    bound.spaces[one] = launch.spaces[one].bytes;
    bound.bytes += up(launch.spaces[one].bytes);
  }
  return bound;
}

// Launch on these buffers; returns an error of the launch code.
int run(const Cuda& driver, int device, const Launch& launch, char* const* places, char* scratch, char* workspace,
        Bytes workspace_bytes, void* stream) {
  tilewright_array arrays[MOST_ARRAYS];
  const tilewright_array* pointers[MOST_ARRAYS];
  int bits[MOST_ARRAYS];
  for (Word at = 0; at < launch.array_count; ++at) {
    const Placed& placed = launch.arrays[at];
    arrays[at].address = (placed.place < 0 ? scratch : places[placed.place]) + placed.offset;
    __builtin_memcpy(arrays[at].shape, placed.shape, sizeof placed.shape);
    __builtin_memcpy(arrays[at].strides, placed.strides, sizeof placed.strides);
    pointers[at] = &arrays[at];
    bits[at] = (int)placed.bits;
  }
  CallOfXla call;
  call.arrays = pointers;
  call.integers = nullptr;
  call.numbers = nullptr;
  call.launch = &launch;
  Kernel kernel = {};
  kernel.fill = fill;
  kernel.code = launch.image;
  const Bound bound = bound_of(launch);
  return run_cuda(driver, device, kernel, bits, call, bound, workspace, workspace_bytes, stream);
}

XLA_FFI_Error* refused(const XLA_FFI_Api* api, int status) {
  char message[160];
  snprintf(message, sizeof message, "tilewright: a launch failed with error %d of exported kernels, CUDA's status %d",
           status & 255, __atomic_load_n(&cuda_status, __ATOMIC_RELAXED));
  return failed(api, message, XLA_FFI_Error_Code_INTERNAL);
}

}  // namespace

EXPORTED XLA_FFI_Error* tilewright_execute(XLA_FFI_CallFrame* frame) {
  if (answered(frame)) return nullptr;
  const XLA_FFI_Api* api = frame->api;
  const Record* record;
  char* places[MOST_BUFFERS];
  if (XLA_FFI_Error* wrong = prepared(frame, &record, places)) return wrong;
  XLA_FFI_Stream_Get_Args streams = {};
  streams.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE;
  streams.ctx = frame->ctx;
  if (XLA_FFI_Error* wrong = api->XLA_FFI_Stream_Get(&streams)) return wrong;
  const Cuda* driver = cuda();
  int device = 0;
  if (driver == nullptr) return refused(api, error(TILEWRIGHT_DRIVER, 0));
  if (int status = driver->current_device(&device)) return refused(api, refused_by_cuda(status));
  if (device >= MOST_DEVICES) return refused(api, error(TILEWRIGHT_MACHINE, 0));

  // The call's scratch memory comes first, then the workspaces of one launch, and zeros for arrays without elements.
  const Word scratch_bytes = up(record->scratch_bytes);
  Word most = 0;
  for (Word at = 0; at < record->launch_count; ++at) {
    const Word bytes = (Word)bound_of(record->launches[at]).bytes + SPACE_ALIGN;
    most = bytes > most ? bytes : most;
  }
  XLA_FFI_DeviceMemory_Allocate_Args memory = {};
  memory.struct_size = XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE;
  memory.ctx = frame->ctx;
  memory.size = scratch_bytes + most + ALIGN;
  memory.alignment = 16;
  if (XLA_FFI_Error* wrong = api->XLA_FFI_DeviceMemory_Allocate(&memory)) return wrong;
  char* scratch = (char*)(((size_t)memory.data + ALIGN - 1) / ALIGN * ALIGN);
  int status = 0;
  for (Word at = 0; at < record->launch_count && !status; ++at)
    status = run(*driver, device, record->launches[at], places, scratch, scratch + scratch_bytes, most, streams.stream);
  XLA_FFI_DeviceMemory_Free_Args done = {};
  done.struct_size = XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE;
  done.ctx = frame->ctx;
  done.size = memory.size;
  done.data = memory.data;
  XLA_FFI_Error* wrong = api->XLA_FFI_DeviceMemory_Free(&done);
  if (status) {
    if (wrong != nullptr) destroy(api, wrong);
    return refused(api, status);
  }
  return wrong;
}
