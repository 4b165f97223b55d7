// The operators' schemas for processes without Python: programs that load a model packaged by
// AOTInductor. It is a library of its own because in Python mxfp4_ops/schema.py defines them, and
// a test holds the two equal.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace {

constexpr const char* kSchemas[] = {
    "quant_mm(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias=None, *, "
    "ScalarType? out_dtype=None, bool shuffled=False, str scale_mode=\"even\") -> Tensor",
    "mm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor? bias=None, *, "
    "ScalarType out_dtype=bfloat16, bool shuffled=False) -> Tensor",
    "mm_a16(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias=None, *, "
    "ScalarType? out_dtype=None, bool shuffled=False) -> Tensor",
    "grouped_quant_mm(Tensor x, Tensor weight, Tensor weight_scale, Tensor offsets, "
    "Tensor? bias=None, *, ScalarType? out_dtype=None, str scale_mode=\"even\") -> Tensor",
    "quantize(Tensor x, *, str scale_mode=\"even\") -> (Tensor, Tensor)",
    "dequantize(Tensor q, Tensor scale, *, ScalarType dtype=bfloat16) -> Tensor",
    "shuffle(Tensor weight, Tensor weight_scale) -> (Tensor, Tensor)",
    "unshuffle(Tensor weight, Tensor weight_scale, int n, int k) -> (Tensor, Tensor)",
};

// STABLE_TORCH_LIBRARY would take the process down where Python has defined them already. Here
// torch prints why it refuses, and what is defined stays.
[[maybe_unused]] const bool defined = [] {
  TorchLibraryHandle library;  // never deleted: that would take the definitions back
  if (aoti_torch_library_init_def("mxfp4", __FILE__, __LINE__, &library) != AOTI_TORCH_SUCCESS) {
    return false;
  }
  for (const char* schema : kSchemas) {
    if (aoti_torch_library_def(library, schema) != AOTI_TORCH_SUCCESS) return false;
  }
  return true;
}();

}  // namespace
