// The checks of mxfp4_ops/checks.py in its words, for calls that never pass through Python.
// std::invalid_argument arrives there as ValueError.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace mxfp4 {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Message parts are put together without iostreams: a library that carries its own copy of libstdc++
// cannot use them beside torch's. They are evaluated only if the check fails.
inline std::string text(const std::string& part) { return part; }
inline std::string text(int64_t part) { return std::to_string(part); }

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::string message;
  ((message += text(parts)), ...);
  throw std::invalid_argument(message);
}

#define MXFP4_NEED(ok, ...) \
  if (!(ok)) fail(__VA_ARGS__)

struct Sizes {
  int64_t m, n, k;
};

Sizes check_mm(const Tensor& a, const Tensor& a_scale, const Tensor& b, const Tensor& b_scale,
               const std::optional<Tensor>& bias, ScalarType out_dtype, bool shuffled);
Sizes check_float_mm(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                   const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                   bool shuffled);
Sizes check_grouped(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                    const Tensor& offsets, const std::optional<Tensor>& bias,
                    std::optional<ScalarType> out_dtype);
Sizes check_quantize(const Tensor& x);
Sizes check_dequantize(const Tensor& q, const Tensor& scale, ScalarType dtype);

// The values of offsets into so many rows, checked.
std::vector<int64_t> offsets_in_order(const Tensor& offsets, int64_t rows);

ScaleMode scale_mode_of(const std::string& name);
Float float_of_dtype(ScalarType dtype);  // of a dtype that has been checked

}  // namespace mxfp4
