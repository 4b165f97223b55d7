// Calls that go on to the Python side.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <stdexcept>
#include <type_traits>

#include "force.h"

namespace mxfp4 {

using torch::stable::Tensor;

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

}  // namespace mxfp4
