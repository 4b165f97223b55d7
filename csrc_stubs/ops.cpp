// The operators on CPU tensors, through PyTorch's stable ABI: one library for every torch from 2.11 on.
#include <torch/csrc/stable/library.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "checks.h"
#include "force.h"
#include "kernels.h"

namespace mxfp4 {
namespace {

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

Tensor new_tensor(const Tensor& like, int64_t last, ScalarType dtype) {
  const auto sizes = like.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = last;
  return torch::stable::empty(shape, dtype, std::nullopt,
                              torch::stable::Device(torch::headeronly::DeviceType::CPU));
}

// Hands a call on to the Python side, where `use_backend` wants it.
template <class Result, class... Args>
Result in_python(const char* name, const Args&... args) {
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  // torch's own macro for this check has another name in 2.11.
  if (torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error(python_failure());
  }
  if constexpr (std::is_same_v<Result, Tensor>) {
    return torch::stable::detail::to<Tensor>(stack[0]);
  } else {
    return {torch::stable::detail::to<Tensor>(stack[0]),
            torch::stable::detail::to<Tensor>(stack[1])};
  }
}

std::tuple<Tensor, Tensor> quantize(const Tensor& x, const std::string& scale_mode) {
  const ScaleMode mode = scale_mode_of(scale_mode);
  const auto [m, n, k] = check_quantize(x);
  if (forced_to_reference()) {
    return in_python<std::tuple<Tensor, Tensor>>("mxfp4_python::quantize", x, scale_mode);
  }
  Tensor codes = new_tensor(x, k / 2, ScalarType::Byte);
  Tensor scales = new_tensor(x, k / kBlock, ScalarType::Byte);
  auto* codes_data = static_cast<uint8_t*>(codes.mutable_data_ptr());
  auto* scales_data = static_cast<uint8_t*>(scales.mutable_data_ptr());
  const Rows rows(x);
  const Float type = float_of_dtype(x.scalar_type());
  const Kernels& run = kernels();
  const int64_t blocks = k / kBlock;
  for_blocks(m, blocks, [&](int64_t row, int64_t first, int64_t last) {
    const int64_t at = row * blocks + first;
    run.quantize(rows.at(row, first * kBlock), type, rows.stride(), last - first, mode,
                 codes_data + at * (kBlock / 2), scales_data + at);
  });
  return {codes, scales};
}

Tensor dequantize(const Tensor& q, const Tensor& scale, ScalarType dtype) {
  const auto [m, n, k] = check_dequantize(q, scale, dtype);
  if (forced_to_reference()) {
    return in_python<Tensor>("mxfp4_python::dequantize", q, scale, dtype);
  }
  Tensor out = new_tensor(q, k, dtype);
  auto* data = static_cast<char*>(out.mutable_data_ptr());
  const Rows codes(q), scales(scale);
  const Float type = float_of_dtype(dtype);
  const Kernels& run = kernels();
  const int64_t blocks = k / kBlock;
  for_blocks(m, blocks, [&](int64_t row, int64_t first, int64_t last) {
    run.dequantize(codes.bytes(row, first * (kBlock / 2)), scales.bytes(row, first), last - first,
                   type, data + (row * blocks + first) * kBlock * size_of(type));
  });
  return out;
}

// Activations [m, k] and their memory.
class Operand {
 public:
  Operand(const Kernels& run, int64_t m, int64_t k)
      : run_(run),
        m_(m),
        blocks_(k / kBlock),
        pairs_((blocks_ + 1) / 2),
        huge_(m),
        in_tiles_(run.tiles_from > 0 && m >= run.tiles_from),
        // An odd number of 64-byte lines from row to row spreads a column over the cache's sets.
        row_((pairs_ | 1) * 2 * kBlock) {
    const int64_t pad = in_tiles_ ? tiles() * kTileRows - m : 0;
    memory_.reset(new int8_t[(m + pad) * row_ + kAlignment]);
    values_ = memory_.get() + kAlignment -
              reinterpret_cast<uintptr_t>(memory_.get()) % kAlignment;
    scales_.reset(new PairScales[(m + pad) * pairs_]);
    std::memset(values_ + m * row_, 0, pad * row_);
    std::memset(scales_.get() + m * pairs_, 0, pad * pairs_ * sizeof(PairScales));
  }

  // Blocks [first, last) of a row; first is even.
  void set(const uint8_t* codes, const uint8_t* scales, int64_t row, int64_t first, int64_t last) {
    if (run_.prepare(codes, scales, last - first, values_ + row * row_ + first * kBlock,
                     &scales_[row * pairs_ + first / 2])) {
      huge_[row].store(1, std::memory_order_relaxed);
    }
  }

  // Once all blocks are set.
  Activations get() {
    all_huge_.assign(huge_.begin(), huge_.end());
    if (in_tiles_) find_alike();
    return {m_, blocks_, pairs_, values_, row_, scales_.get(), all_huge_.data(), alike_.data()};
  }

 private:
  static constexpr int64_t kAlignment = 64;

  int64_t tiles() const { return (m_ + kTileRows - 1) / kTileRows; }

  void find_alike() {
    const float tiny = std::ldexp(1.0f, kTinyExponent);
    alike_.assign(tiles() * pairs_, 1);
    parallel_for(0, tiles(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin * kTileRows; m < std::min(m_, end * kTileRows); ++m) {
        for (int64_t p = 0; p < pairs_; ++p) {
          const float* scale = scales_[m * pairs_ + p].scale;
          const bool alike = scale[0] == scale[1] && (scale[0] == 0.0f || scale[0] >= tiny);
          alike_[m / kTileRows * pairs_ + p] &= alike;
        }
      }
    });
  }

  const Kernels& run_;
  int64_t m_, blocks_, pairs_;
  std::vector<std::atomic<uint8_t>> huge_;  // several threads may work on a row
  bool in_tiles_;
  int64_t row_;
  std::unique_ptr<int8_t[]> memory_;
  int8_t* values_;
  std::unique_ptr<PairScales[]> scales_;
  std::vector<uint8_t> all_huge_, alike_;
};

Tensor multiply(const Activations& x, const Tensor& like, const Tensor& weight,
                const Tensor& weight_scale, const std::optional<Tensor>& bias,
                ScalarType out_dtype, bool shuffled, const Kernels& run) {
  const int64_t n = weight.size(0);
  Tensor out = new_tensor(like, n, out_dtype);
  if (x.m == 0 || n == 0) return out;

  std::vector<float> bias_values(bias ? n : 0);
  if (bias) {
    const void* data = bias->const_data_ptr();
    const Float type = float_of_dtype(bias->scalar_type());
    const int64_t stride = bias->stride(0);
    for (int64_t i = 0; i < n; ++i) bias_values[i] = load(data, type, i * stride);
  }
  const Output output{out.mutable_data_ptr(), float_of_dtype(out_dtype),
                      bias ? bias_values.data() : nullptr};
  const Weight operand{static_cast<const uint8_t*>(weight.const_data_ptr()),
                       static_cast<const uint8_t*>(weight_scale.const_data_ptr()),
                       weight.stride(0),
                       weight_scale.stride(0),
                       n,
                       x.blocks,
                       shuffled};
  const int64_t panels = (n + run.panel - 1) / run.panel;
  const int64_t chunks = (x.m + kRowsAtOnce - 1) / kRowsAtOnce;
  const int64_t work = std::max<int64_t>(1, std::min(x.m, kRowsAtOnce) * run.panel * x.blocks * kBlock);
  parallel_for(0, chunks * panels, std::max<int64_t>(1, kMultiplyAddsPerThread / work),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t m = task / panels * kRowsAtOnce;
                   run.product(x, m, std::min(x.m, m + kRowsAtOnce), operand, task % panels,
                               output);
                 }
               });
  return out;
}

Tensor quant_mm(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                bool shuffled, const std::string& scale_mode) {
  const ScaleMode mode = scale_mode_of(scale_mode);
  const auto [m, n, k] = check_quant_mm(x, weight, weight_scale, bias, out_dtype, shuffled);
  if (forced_to_reference()) {
    return in_python<Tensor>("mxfp4_python::quant_mm", x, weight, weight_scale, bias, out_dtype,
                             shuffled, scale_mode);
  }
  const Kernels& run = kernels();
  const Rows rows(x);
  const Float type = float_of_dtype(x.scalar_type());
  Operand operand(run, m, k);
  for_blocks(m, k / kBlock, [&](int64_t row, int64_t first, int64_t last) {
    // A few blocks at a time, which stay in the L1 cache.
    constexpr int64_t kAtOnce = 64;
    uint8_t codes[kAtOnce * kBlock / 2], scales[kAtOnce];
    for (; first < last; first += kAtOnce) {
      const int64_t count = std::min(kAtOnce, last - first);
      run.quantize(rows.at(row, first * kBlock), type, rows.stride(), count, mode, codes, scales);
      operand.set(codes, scales, row, first, first + count);
    }
  });
  return multiply(operand.get(), x, weight, weight_scale, bias,
                  out_dtype.value_or(x.scalar_type()), shuffled, run);
}

Tensor mm(const Tensor& a, const Tensor& a_scale, const Tensor& b, const Tensor& b_scale,
          const std::optional<Tensor>& bias, ScalarType out_dtype, bool shuffled) {
  const auto [m, n, k] = check_mm(a, a_scale, b, b_scale, bias, out_dtype, shuffled);
  if (forced_to_reference()) {
    return in_python<Tensor>("mxfp4_python::mm", a, a_scale, b, b_scale, bias, out_dtype,
                             shuffled);
  }
  const Kernels& run = kernels();
  const Rows codes(a), scales(a_scale);
  Operand operand(run, m, k);
  for_blocks(m, k / kBlock, [&](int64_t row, int64_t first, int64_t last) {
    operand.set(codes.bytes(row, first * (kBlock / 2)), scales.bytes(row, first), row, first, last);
  });
  return multiply(operand.get(), a, b, b_scale, bias, out_dtype, shuffled, run);
}

}  // namespace
}  // namespace mxfp4

STABLE_TORCH_LIBRARY_IMPL(mxfp4, CPU, m) {
  m.impl("quant_mm", TORCH_BOX(&mxfp4::quant_mm));
  m.impl("mm", TORCH_BOX(&mxfp4::mm));
  m.impl("quantize", TORCH_BOX(&mxfp4::quantize));
  m.impl("dequantize", TORCH_BOX(&mxfp4::dequantize));
}
