// How the operators read and make tensors, and share rows of blocks out among threads.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "checks.h"

namespace mxfp4 {

using torch::stable::parallel_for;

// Below this much work for a thread, starting it costs more than it saves (about 10 us each).
constexpr int64_t kBlocksPerThread = 512;
constexpr int64_t kMultiplyAddsPerThread = 1 << 19;

// A tensor [..., columns] as rows, by its strides: nothing is copied.
class Rows {
 public:
  explicit Rows(const Tensor& t)
      : data_(static_cast<const char*>(t.const_data_ptr())),
        sizes_(t.sizes().begin(), t.sizes().end()),
        strides_(t.strides().begin(), t.strides().end()) {
    const auto dtype = t.scalar_type();
    itemsize_ = dtype == ScalarType::Float                                   ? 4
                : dtype == ScalarType::Half || dtype == ScalarType::BFloat16 ? 2
                                                                             : 1;
  }
  int64_t stride() const { return strides_.back(); }
  // The address of element `column` of row `row`.
  const void* at(int64_t row, int64_t column = 0) const {
    int64_t offset = column * strides_.back();
    for (size_t d = sizes_.size() - 1; d-- > 0;) {
      offset += row % sizes_[d] * strides_[d];
      row /= sizes_[d];
    }
    return data_ + offset * itemsize_;
  }
  const uint8_t* bytes(int64_t row, int64_t column = 0) const {
    return static_cast<const uint8_t*>(at(row, column));
  }

 private:
  const char* data_;
  std::vector<int64_t> sizes_, strides_;
  int64_t itemsize_;
};

// Calls f(row, first block, end block) for all rows, several threads sharing the blocks. The first block
// is an even one: pairs stay together.
template <class F>
void for_blocks(int64_t rows, int64_t blocks, const F& f) {
  const int64_t pairs = (blocks + 1) / 2;
  parallel_for(0, rows * pairs, kBlocksPerThread / 2, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / pairs, first = begin % pairs;
      const int64_t last = std::min(pairs, first + end - begin);
      f(row, 2 * first, std::min(blocks, 2 * last));
      begin += last - first;
    }
  });
}

inline Tensor new_tensor(const Tensor& like, int64_t last, ScalarType dtype) {
  const auto sizes = like.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = last;
  return torch::stable::empty(shape, dtype, std::nullopt,
                              torch::stable::Device(torch::headeronly::DeviceType::CPU));
}

}  // namespace mxfp4
