// Recorded launches on processors. A record is a call of an operation on arrays of one shape.
// The tables of records follow this text. It needs no header.

typedef long long Word;
typedef void (*Entry)(const void* arguments, Word* board, void* scratch, Word blocks);

// Calls work(job, seat) for the seats 0 to count - 1, on any threads.
typedef void (*Parallel)(void (*work)(void* job, Word seat), void* job, Word count);

namespace {

struct Address { Word at, place, offset; };  // place -1: the call's scratch memory
struct Space { Word at, bytes, zeroed; };

struct Launch {
  Entry entry;
  Word blocks, scratch_bytes;
  const unsigned char* arguments;
  Word argument_bytes;
  const Address* addresses;
  Word address_count;
  const Space* spaces;
  Word space_count;
};

struct Record {
  Word scratch_bytes;  // of all launches; then each launch has arguments, workspaces, and memory of its threads
  const Launch* launches;
  Word launch_count;
};

constexpr Word ALIGN = 256;

Word up(Word bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

// One launch; board: the next block, which wait cannot end, threads inside, those of them that wait.
struct Job {
  Word board[4];
  const Launch* launch;
  const void* arguments;
  char* scratch;
};

void work(void* data, Word seat) {
  Job* job = (Job*)data;
  char* own = job->scratch + seat * up(job->launch->scratch_bytes);
  job->launch->entry(job->arguments, job->board, own, job->launch->blocks);
}

Word memory_bytes(const Record& record, Word threads) {
  Word most = 0;
  for (Word at = 0; at < record.launch_count; ++at) {
    const Launch& launch = record.launches[at];
    Word bytes = up(launch.argument_bytes) + threads * up(launch.scratch_bytes);
    for (Word space = 0; space < launch.space_count; ++space) bytes += up(launch.spaces[space].bytes);
    most = bytes > most ? bytes : most;
  }
  return up(record.scratch_bytes) + most + ALIGN;
}

// Run the launches of a record; returns which wait of a block cannot end, or 0.
Word run_record(const Record& record, char* const* places, void* memory, Word threads, Parallel parallel) {
  char* whole = (char*)(((unsigned long)memory + ALIGN - 1) / ALIGN * ALIGN);
  for (Word at = 0; at < record.launch_count; ++at) {
    const Launch& launch = record.launches[at];
    if (launch.blocks < 1) continue;
    char* arguments = whole + up(record.scratch_bytes);
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
    Job job = {{0, 0, 0, 0}, &launch, arguments, free_bytes};
    const Word seats = launch.blocks < threads ? launch.blocks : threads;
    if (parallel == nullptr || seats < 2) work(&job, 0);
    else parallel(work, &job, seats);
    if (job.board[1]) return job.board[1];
  }
  return 0;
}

}  // namespace
