// The products on CPU tensors. Arguments are those of the operators' schemas.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <optional>
#include <string>

namespace mxfp4 {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Tensor quant_mm(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                bool shuffled, const std::string& scale_mode);
Tensor mm(const Tensor& a, const Tensor& a_scale, const Tensor& b, const Tensor& b_scale,
          const std::optional<Tensor>& bias, ScalarType out_dtype, bool shuffled);
Tensor mm_a16(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
              const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
              bool shuffled);
Tensor grouped_quant_mm(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                        const Tensor& offsets, const std::optional<Tensor>& bias,
                        std::optional<ScalarType> out_dtype, const std::string& scale_mode);

}  // namespace mxfp4
