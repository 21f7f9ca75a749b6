// Operations of PyTorch that run recorded calls, by PyTorch's stable interface. The tables follow this text.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

typedef long long Word;
typedef void (*Parallel)(void (*work)(void* job, Word seat), void* job, Word count);

extern "C" Word tilewright_record_bytes(Word record, Word threads);
extern "C" Word tilewright_record_run(Word record, char* const* places, void* memory, Word threads, Parallel parallel);

namespace {

constexpr int MOST_RANK = 8, MOST_ALIGN = 16;

// An array of a recorded call.
struct Array {
  int rank;  // -1: the tensor is absent
  ScalarType dtype;
  int64_t shape[MOST_RANK], strides[MOST_RANK];
  int64_t align;  // bytes
};

std::string extents(const int64_t* sizes, size_t rank) {
  std::ostringstream made;
  made << '(';
  for (size_t at = 0; at < rank; ++at) made << (at ? ", " : "") << sizes[at];
  made << ')';
  return made.str();
}

std::string described(const Tensor* tensor) {
  if (tensor == nullptr) return "None";
  std::ostringstream made;
  made << torch::headeronly::toString(tensor->scalar_type()) << extents(tensor->sizes().data(), tensor->dim())
       << " of strides " << extents(tensor->strides().data(), tensor->dim());
  const uintptr_t address = (uintptr_t)tensor->data_ptr() | MOST_ALIGN;
  if ((address & -address) < MOST_ALIGN) made << " at a multiple of " << (address & -address) << " bytes";
  return made.str();
}

bool fits(const Array& own, const Tensor* tensor) {
  if (own.rank < 0 || tensor == nullptr) return own.rank < 0 && tensor == nullptr;
  if (tensor->dim() != own.rank || tensor->scalar_type() != own.dtype) return false;
  for (int at = 0; at < own.rank; ++at) {
    if (tensor->size(at) != own.shape[at]) return false;
    if (own.shape[at] > 1 && tensor->stride(at) != own.strides[at]) return false;
  }
  return (uintptr_t)tensor->data_ptr() % own.align == 0;
}

// The first record that serves a call.
int chosen(const char* operation, int count, const Array* const* arrays, const bool* words,
           const std::vector<const Tensor*>& tensors, const char* const* texts) {
  for (int at = 0; at < count; ++at) {
    bool right = words[at];
    for (size_t one = 0; right && one < tensors.size(); ++one) right = fits(arrays[at][one], tensors[one]);
    if (right) return at;
  }
  std::ostringstream made;
  made << "tilewright::" << operation << ": the library has no kernels for this call";
  for (const Tensor* one : tensors) made << ", " << described(one);
  made << "; it was exported for";
  for (int at = 0; at < count; ++at) made << (at ? "; " : " ") << texts[at];
  made << "; nearest legal choice: these extents, or an export with inputs of the others";
  throw std::runtime_error(made.str());
}

void run_parallel(void (*work)(void* job, Word seat), void* job, Word count) {
  torch::stable::parallel_for(0, count, 1, [&](int64_t begin, int64_t) { work(job, begin); });
}

void run(int record, const std::vector<const Tensor*>& tensors, std::vector<Tensor>& results,
         const std::vector<int64_t>& more) {
  std::vector<char*> places;
  for (const Tensor* one : tensors)
    if (one != nullptr) places.push_back((char*)one->data_ptr());
  for (Tensor& one : results) places.push_back((char*)one.data_ptr());
  std::vector<std::unique_ptr<char, void (*)(void*)>> held;
  auto taken = [&](size_t bytes) {
    held.emplace_back((char*)std::malloc(bytes + 64), std::free);
    if (held.back() == nullptr) throw std::bad_alloc();
    return held.back().get();
  };
  for (int64_t bytes : more) places.push_back((char*)(((uintptr_t)taken(bytes) + 63) / 64 * 64));
  const Word threads = torch::stable::get_num_threads();
  void* memory = taken(tilewright_record_bytes(record, threads));
  if (tilewright_record_run(record, places.data(), memory, threads, run_parallel))
    throw std::runtime_error("tilewright: blocks wait for each other for ever; the results are incomplete");
}

const Tensor* given(const Tensor& one) { return &one; }
const Tensor* given(const std::optional<Tensor>& one) { return one.has_value() ? &*one : nullptr; }

}  // namespace
