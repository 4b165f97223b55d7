#include "products.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "checks.h"
#include "kernels.h"
#include "operand.h"
#include "python.h"
#include "rows.h"

namespace mxfp4 {
namespace {

// A bias [N], or one of [E, N], as float32; empty where there is none.
std::vector<float> bias_values(const std::optional<Tensor>& bias, int64_t expert = 0) {
  if (!bias) return {};
  const int64_t last = bias->dim() - 1, stride = bias->stride(last);
  const int64_t first = last == 0 ? 0 : expert * bias->stride(0);
  std::vector<float> values(bias->size(last));
  const void* data = bias->const_data_ptr();
  const Float type = float_of_dtype(bias->scalar_type());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load(data, type, first + static_cast<int64_t>(i) * stride);
  }
  return values;
}

// A weight [N, K].
Weight operand_of(const Tensor& weight, const Tensor& scale, int64_t blocks, bool shuffled) {
  return {static_cast<const uint8_t*>(weight.const_data_ptr()),
          static_cast<const uint8_t*>(scale.const_data_ptr()),
          weight.stride(0),
          scale.stride(0),
          weight.size(0),
          blocks,
          shuffled};
}

// Runs a kernel on all rows, `rows_at_once` of them, and all panels of columns, in several threads.
template <class X, class Kernel>
void multiply(const X& x, const Weight& weight, const Output& out, int64_t panel,
              int64_t rows_at_once, Kernel kernel) {
  if (x.m == 0 || weight.n == 0) return;
  const int64_t panels = (weight.n + panel - 1) / panel;
  const int64_t chunks = (x.m + rows_at_once - 1) / rows_at_once;
  const int64_t work =
      std::max<int64_t>(1, std::min(x.m, rows_at_once) * panel * x.blocks * kBlock);
  parallel_for(0, chunks * panels, std::max<int64_t>(1, kMultiplyAddsPerThread / work),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t m = task / panels * rows_at_once;
                   kernel(x, m, std::min(x.m, m + rows_at_once), weight, task % panels, out);
                 }
               });
}

// How many rows one call of a kernel multiplies: all calls about as many.
int64_t rows_at_once(const Activations& x) {
  const int64_t most = std::clamp(kBytesAtOnce / (x.pairs * 2 * kBlock + 1) / kTileRows * kTileRows, kTileRows, kRowsAtOnce);
  const int64_t chunks = std::max<int64_t>(1, (x.m + most - 1) / most);
  return ((x.m + chunks - 1) / chunks + kTileRows - 1) / kTileRows * kTileRows;
}

Tensor product(const Activations& x, const Tensor& like, const Tensor& weight,
               const Tensor& weight_scale, const std::optional<Tensor>& bias,
               ScalarType out_dtype, bool shuffled, const Kernels& run) {
  Tensor out = new_tensor(like, weight.size(0), out_dtype);
  const auto added = bias_values(bias);
  const Output output{out.mutable_data_ptr(), float_of_dtype(out_dtype),
                      bias ? added.data() : nullptr};
  multiply(x, operand_of(weight, weight_scale, x.blocks, shuffled), output, run.panel,
           rows_at_once(x), run.product);
  return out;
}

}  // namespace

Tensor quant_mm(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                bool shuffled, const std::string& scale_mode) {
  const ScaleMode mode = scale_mode_of(scale_mode);
  const auto [m, n, k] = check_float_mm(x, weight, weight_scale, bias, out_dtype, shuffled);
  if (forced_to_reference()) {
    return in_python<Tensor>("mxfp4_python::quant_mm", x, weight, weight_scale, bias, out_dtype,
                             shuffled, scale_mode);
  }
  const Kernels& run = kernels();
  Operand operand(run, m, k);
  operand.quantize(Rows(x), 0, float_of_dtype(x.scalar_type()), mode);
  return product(operand.get(), x, weight, weight_scale, bias,
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
  return product(operand.get(), a, b, b_scale, bias, out_dtype, shuffled, run);
}

Tensor mm_a16(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
              const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
              bool shuffled) {
  const auto [m, n, k] = check_float_mm(x, weight, weight_scale, bias, out_dtype, shuffled);
  if (forced_to_reference()) {
    return in_python<Tensor>("mxfp4_python::mm_a16", x, weight, weight_scale, bias, out_dtype,
                             shuffled);
  }
  const Kernels& run = kernels();
  const Rows rows(x);
  const Float type = float_of_dtype(x.scalar_type());
  const int64_t blocks = k / kBlock;
  const std::unique_ptr<float[]> values(new float[m * k]);
  std::vector<std::atomic<uint8_t>> marked(m);  // several threads may work on a row
  for_blocks(m, blocks, [&](int64_t row, int64_t first, int64_t last) {
    if (run.widen(rows.at(row, first * kBlock), type, rows.stride(), last - first,
                  values.get() + row * k + first * kBlock)) {
      marked[row].store(1, std::memory_order_relaxed);
    }
  });
  const std::vector<uint8_t> wide(marked.begin(), marked.end());
  const ScalarType dtype = out_dtype.value_or(x.scalar_type());
  Tensor out = new_tensor(x, n, dtype);
  const auto added = bias_values(bias);
  const Output output{out.mutable_data_ptr(), float_of_dtype(dtype), bias ? added.data() : nullptr};
  multiply(FloatActivations{m, blocks, values.get(), wide.data()},
           operand_of(weight, weight_scale, blocks, shuffled), output, run.panel_a16,
           kFloatRowsAtOnce, run.product_a16);
  return out;
}

Tensor grouped_quant_mm(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                        const Tensor& offsets, const std::optional<Tensor>& bias,
                        std::optional<ScalarType> out_dtype, const std::string& scale_mode) {
  const ScaleMode mode = scale_mode_of(scale_mode);
  const auto [rows, n, k] = check_grouped(x, weight, weight_scale, offsets, bias, out_dtype);
  const std::vector<int64_t> begin = offsets_in_order(offsets, rows);
  if (forced_to_reference()) {
    return in_python<Tensor>("mxfp4_python::grouped_quant_mm", x, weight, weight_scale, offsets,
                             bias, out_dtype, scale_mode);
  }
  const Kernels& run = kernels();
  const Rows all(x);
  const Float type = float_of_dtype(x.scalar_type());
  const ScalarType dtype = out_dtype.value_or(x.scalar_type());
  Tensor out = new_tensor(x, n, dtype);
  auto* data = static_cast<char*>(out.mutable_data_ptr());
  const auto* codes = static_cast<const uint8_t*>(weight.const_data_ptr());
  const auto* scales = static_cast<const uint8_t*>(weight_scale.const_data_ptr());
  for (int64_t e = 0; e < weight.size(0); ++e) {
    const int64_t first = begin[e], m = begin[e + 1] - first;
    if (m == 0) continue;
    Operand operand(run, m, k);
    operand.quantize(all, first, type, mode);
    const auto added = bias_values(bias, e);
    const Output output{data + first * n * size_of(float_of_dtype(dtype)), float_of_dtype(dtype),
                        bias ? added.data() : nullptr};
    const Weight of_expert{codes + e * weight.stride(0),
                           scales + e * weight_scale.stride(0),
                           weight.stride(1),
                           weight_scale.stride(1),
                           n,
                           k / kBlock,
                           false};
    const Activations of_rows = operand.get();
    multiply(of_rows, of_expert, output, run.panel, rows_at_once(of_rows), run.product);
  }
  return out;
}

}  // namespace mxfp4
