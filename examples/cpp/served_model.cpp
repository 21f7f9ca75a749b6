// Serve a packaged AOTInductor model that calls tilewright's operations. No Python runs.
//
//   TORCH=$(python -c "import torch; print(torch.__path__[0])")   # or the folder of libtorch
//   c++ -std=c++20 served_model.cpp -I$TORCH/include -I$TORCH/include/torch/csrc/api/include -L$TORCH/lib \
//       -Wl,-rpath,$TORCH/lib -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 -ldl -o serve
//   ./serve served/liboperations.so served/model.pt2 input.bin output.bin 3 7 20
//
// The input and the output are f32 numbers in row-major order; the numbers at the end are the input's extents.

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

int main(int count, char** words) {
  if (count < 6) {
    std::fprintf(stderr, "usage: %s LIBRARY PACKAGE INPUT OUTPUT EXTENT...\n", words[0]);
    return 2;
  }
  // The library registers its operations when it is loaded; the package calls them by name.
  if (dlopen(words[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  try {
    torch::inductor::AOTIModelPackageLoader model(words[2]);
    std::vector<int64_t> shape;
    for (int at = 5; at < count; ++at) shape.push_back(std::stoll(words[at]));
    std::ifstream input(words[3], std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(input), {}};
    const at::Tensor x = at::empty(shape, at::kFloat);
    if (bytes.size() != x.nbytes()) {
      std::fprintf(stderr, "%s has %zu bytes; the extents need %zu\n", words[3], bytes.size(), x.nbytes());
      return 1;
    }
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(x.mutable_data_ptr()));
    const at::Tensor result = model.run({x}).at(0).to(at::kFloat).contiguous();
    std::ofstream output(words[4], std::ios::binary);
    output.write(static_cast<const char*>(result.const_data_ptr()), static_cast<std::streamsize>(result.nbytes()));
    if (!output.flush()) {
      std::fprintf(stderr, "cannot write %s\n", words[4]);
      return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
