// The conversions on CPU tensors, and what is registered with the dispatcher, through PyTorch's stable
// ABI: one library for every torch from 2.11 on.
#include <torch/csrc/stable/library.h>

#include <string>
#include <tuple>

#include "checks.h"
#include "kernels.h"
#include "products.h"
#include "python.h"
#include "rows.h"

namespace mxfp4 {
namespace {

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

}  // namespace
}  // namespace mxfp4

STABLE_TORCH_LIBRARY_IMPL(mxfp4, CPU, m) {
  m.impl("quant_mm", TORCH_BOX(&mxfp4::quant_mm));
  m.impl("mm", TORCH_BOX(&mxfp4::mm));
  m.impl("mm_a16", TORCH_BOX(&mxfp4::mm_a16));
  m.impl("grouped_quant_mm", TORCH_BOX(&mxfp4::grouped_quant_mm));
  m.impl("quantize", TORCH_BOX(&mxfp4::quantize));
  m.impl("dequantize", TORCH_BOX(&mxfp4::dequantize));
}
