// Which instruction set's kernels run: chosen once, when the library is loaded.
#include <atomic>
#include <string>
#include <vector>

#include "c_api.h"
#include "kernels.h"

namespace mxfp4 {
namespace {

// The slowest first.
const std::vector<const Kernels*>& usable() {
  static const std::vector<const Kernels*> list = [] {
    std::vector<const Kernels*> found{&kScalarKernels};
#ifdef MXFP4_X86
    __builtin_cpu_init();
    // F16C came before AVX2 in every processor, and older compilers do not know its name here.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      found.push_back(&kAvx2Kernels);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vnni")) {
        found.push_back(&kAvx512Kernels);
      }
    }
#endif
    return found;
  }();
  return list;
}

std::atomic<const Kernels*>& current() {
  static std::atomic<const Kernels*> chosen{usable().back()};
  return chosen;
}

}  // namespace

const Kernels& kernels() { return *current().load(std::memory_order_relaxed); }

}  // namespace mxfp4

const char* mxfp4_cpu_isa() { return mxfp4::kernels().name; }

const char* mxfp4_cpu_isas() {
  static const std::string names = [] {
    std::string all;
    for (const auto* k : mxfp4::usable()) all += std::string(all.empty() ? "" : " ") + k->name;
    return all;
  }();
  return names.c_str();
}

int mxfp4_cpu_select(const char* name) {
  for (const auto* k : mxfp4::usable()) {
    if (name == std::string(k->name)) {
      mxfp4::current().store(k);
      return 1;
    }
  }
  return 0;
}
