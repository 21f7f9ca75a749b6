// Calls on processors: launches run on XLA's threads.

namespace {

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

constexpr Word SHORT_NS = 25000;

Word now_ns() {
  long time[2] = {0, 0};
  clock_gettime(1, time);  // monotonic
  return time[0] * 1000000000ll + time[1];
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

Block* taken(Word bytes) {
  acquire(&lock);
  Block* block = idle;
  if (block != nullptr) idle = block->next;
  release(&lock);
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
  acquire(&lock);
  block->next = idle;
  idle = block;
  release(&lock);
}

// ---------------------------------------------------------------- threads

// One launch, for XLA's threads.  A task may begin after the launch has ended: it then finds it closed.
struct Job {
  Word board[4];  // next block; number of a wait that cannot end, or 0; threads inside; threads that wait
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

EXPORTED XLA_FFI_Error* tilewright_execute(XLA_FFI_CallFrame* frame) {
  if (answered(frame)) return nullptr;
  const Record* record;
  char* places[MOST_BUFFERS];
  if (XLA_FFI_Error* wrong = prepared(frame, &record, places)) return wrong;
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
