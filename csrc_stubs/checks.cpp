#include "checks.h"

namespace mxfp4 {
namespace {

std::string name_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Bool: return "bool";
    case ScalarType::ComplexFloat: return "complex64";
    case ScalarType::ComplexDouble: return "complex128";
    case ScalarType::Float8_e4m3fn: return "float8_e4m3fn";
    case ScalarType::Float8_e5m2: return "float8_e5m2";
    case ScalarType::Float8_e8m0fnu: return "float8_e8m0fnu";
    case ScalarType::Float4_e2m1fn_x2: return "float4_e2m1fn_x2";
    default: return torch::headeronly::toString(dtype);
  }
}

template <class List>
std::string list_of(const List& values) {
  std::string list;
  for (const int64_t value : values) list += (list.empty() ? "" : ", ") + std::to_string(value);
  return "[" + list + "]";
}

void check_dtype(const char* name, ScalarType given, std::initializer_list<ScalarType> allowed) {
  std::string names;
  for (const auto dtype : allowed) {
    if (dtype == given) return;
    names += (names.empty() ? "" : " or ") + name_of(dtype);
  }
  fail(name, " must be ", names, ", got ", name_of(given));
}

const auto kFloats = {ScalarType::BFloat16, ScalarType::Half, ScalarType::Float};
const auto kCodes = {ScalarType::Byte, ScalarType::Float4_e2m1fn_x2};
const auto kScales = {ScalarType::Byte, ScalarType::Float8_e8m0fnu};

void check_cpu(const char* name, const Tensor& t) {
  MXFP4_NEED(t.is_cpu(), name, " is not on the CPU, but the first argument is");
}

void check_rows_contiguous(const char* name, const Tensor& t) {
  const auto last = t.dim() - 1;
  MXFP4_NEED(t.size(last) <= 1 || t.stride(last) == 1, name,
       " must be contiguous in its last dimension, got strides ", list_of(t.strides()),
       "; call .contiguous()");
}

int64_t leading(const Tensor& t) {
  int64_t product = 1;
  for (int64_t d = 0; d + 1 < t.dim(); ++d) product *= t.size(d);
  return product;
}

int64_t check_activation(const Tensor& x) {
  check_dtype("x", x.scalar_type(), kFloats);
  MXFP4_NEED(x.dim() >= 1, "x must have at least one dimension, got a 0-d tensor");
  const int64_t k = x.size(x.dim() - 1);
  MXFP4_NEED(k % kBlock == 0, "x's last dimension K must be a multiple of 32, got ", k);
  return k;
}

int64_t check_codes_and_scale(const Tensor& q, const Tensor& scale, const char* q_name,
                              const char* scale_name) {
  check_dtype(q_name, q.scalar_type(), kCodes);
  check_dtype(scale_name, scale.scalar_type(), kScales);
  MXFP4_NEED(q.dim() >= 1, q_name, " must have at least one dimension, got a 0-d tensor");
  const int64_t k = q.size(q.dim() - 1) * 2;
  MXFP4_NEED(k % kBlock == 0, q_name, " holds K = ", k, " elements a row; K must be a multiple of 32");
  const auto q_sizes = q.sizes(), sizes = scale.sizes();
  std::vector<int64_t> needed(q_sizes.begin(), q_sizes.end());
  needed.back() = k / kBlock;
  MXFP4_NEED(std::vector<int64_t>(sizes.begin(), sizes.end()) == needed, scale_name,
       " must have shape ", list_of(needed), " for ", q_name, " of shape ", list_of(q_sizes),
       ", got ", list_of(sizes));
  check_cpu(q_name, q);
  check_cpu(scale_name, scale);
  check_rows_contiguous(q_name, q);
  check_rows_contiguous(scale_name, scale);
  return k;
}

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void check_shuffled(const char* name, const Tensor& t, int64_t n, int64_t k, int64_t rows,
                    int64_t columns) {
  const auto sizes = t.sizes();
  MXFP4_NEED(t.dim() == 2 && sizes[0] == rows && sizes[1] == columns, name,
       ", shuffled, must have shape [", rows, ", ", columns, "] for N = ", n, " and K = ", k,
       ", got ", list_of(sizes));
  check_cpu(name, t);
  MXFP4_NEED(t.is_contiguous(), name, ", shuffled, must be contiguous, got strides ",
       list_of(t.strides()));
}

int64_t check_weight(int64_t k, const Tensor& weight, const Tensor& scale, bool shuffled,
                     const char* other, const char* name, const char* scale_name) {
  MXFP4_NEED(weight.dim() == 2, name, " must be 2-d, got shape ", list_of(weight.sizes()));
  const int64_t n = weight.size(0);
  if (!shuffled) {
    const int64_t weight_k = check_codes_and_scale(weight, scale, name, scale_name);
    MXFP4_NEED(weight_k == k, other, " has K = ", k, ", but ", name, " has K = ", weight_k);
    return n;
  }
  check_dtype(name, weight.scalar_type(), kCodes);
  check_dtype(scale_name, scale.scalar_type(), kScales);
  check_shuffled(name, weight, n, k, round_up(n, 16), round_up(k / 2, 32));
  check_shuffled(scale_name, scale, n, k, round_up(n, 256), round_up(k / kBlock, 8));
  return n;
}

std::vector<int64_t> sizes_of(const Tensor& t) {
  const auto sizes = t.sizes();
  return {sizes.begin(), sizes.end()};
}

void check_bias(const std::optional<Tensor>& bias, const std::vector<int64_t>& shape) {
  if (!bias) return;
  check_dtype("bias", bias->scalar_type(), kFloats);
  MXFP4_NEED(sizes_of(*bias) == shape, "bias must have shape ", list_of(shape),
       ", one value for each row of the weight, got ", list_of(bias->sizes()));
  check_cpu("bias", *bias);
}

}  // namespace

Sizes check_float_mm(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                   const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                   bool shuffled) {
  const int64_t k = check_activation(x);
  if (out_dtype) check_dtype("out_dtype", *out_dtype, kFloats);
  const int64_t n = check_weight(k, weight, weight_scale, shuffled, "x", "weight", "weight_scale");
  check_bias(bias, {n});
  return {leading(x), n, k};
}

Sizes check_mm(const Tensor& a, const Tensor& a_scale, const Tensor& b, const Tensor& b_scale,
               const std::optional<Tensor>& bias, ScalarType out_dtype, bool shuffled) {
  const int64_t k = check_codes_and_scale(a, a_scale, "a", "a_scale");
  check_dtype("out_dtype", out_dtype, kFloats);
  const int64_t n = check_weight(k, b, b_scale, shuffled, "a", "b", "b_scale");
  check_bias(bias, {n});
  return {leading(a), n, k};
}

Sizes check_grouped(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                    const Tensor& offsets, const std::optional<Tensor>& bias,
                    std::optional<ScalarType> out_dtype) {
  const int64_t k = check_activation(x);
  MXFP4_NEED(x.dim() == 2, "x must be 2-d, got shape ", list_of(x.sizes()));
  if (out_dtype) check_dtype("out_dtype", *out_dtype, kFloats);
  MXFP4_NEED(weight.dim() == 3, "weight must be 3-d, got shape ", list_of(weight.sizes()));
  const int64_t weight_k = check_codes_and_scale(weight, weight_scale, "weight", "weight_scale");
  MXFP4_NEED(weight_k == k, "x has K = ", k, ", but weight has K = ", weight_k);
  const int64_t experts = weight.size(0), n = weight.size(1);
  check_dtype("offsets", offsets.scalar_type(), {ScalarType::Int, ScalarType::Long});
  MXFP4_NEED(offsets.dim() == 1 && offsets.size(0) == experts + 1, "offsets must have shape [",
       experts + 1, "], one more than there are experts, got ", list_of(offsets.sizes()));
  check_cpu("offsets", offsets);
  check_bias(bias, {experts, n});
  return {x.size(0), n, k};
}

std::vector<int64_t> offsets_in_order(const Tensor& offsets, int64_t rows) {
  std::vector<int64_t> values(offsets.size(0));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * offsets.stride(0);
    values[i] = offsets.scalar_type() == ScalarType::Int
                    ? load_as<int32_t>(offsets.const_data_ptr(), at)
                    : load_as<int64_t>(offsets.const_data_ptr(), at);
  }
  MXFP4_NEED(values[0] == 0, "offsets must begin with 0, got ", values[0]);
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    MXFP4_NEED(values[i] <= values[i + 1], "offsets must not decrease, but number ",
         static_cast<int64_t>(i), " is ", values[i], " and the next is ", values[i + 1]);
  }
  MXFP4_NEED(values.back() == rows, "offsets must end with ", rows,
       ", the number of rows of x, got ", values.back());
  return values;
}

Sizes check_quantize(const Tensor& x) {
  const int64_t k = check_activation(x);
  return {leading(x), 0, k};
}

Sizes check_dequantize(const Tensor& q, const Tensor& scale, ScalarType dtype) {
  const int64_t k = check_codes_and_scale(q, scale, "q", "scale");
  check_dtype("dtype", dtype, kFloats);
  return {leading(q), 0, k};
}

ScaleMode scale_mode_of(const std::string& name) {
  if (name == "even") return ScaleMode::even;
  if (name == "floor") return ScaleMode::floor;
  MXFP4_NEED(name == "ceil", "scale_mode must be 'even', 'floor' or 'ceil', got '", name, "'");
  return ScaleMode::ceil;
}

Float float_of_dtype(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return Float::bf16;
    case ScalarType::Half: return Float::f16;
    default: return Float::f32;
  }
}

}  // namespace mxfp4
