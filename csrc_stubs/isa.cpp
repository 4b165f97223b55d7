// Which instruction set's kernels run: chosen once, when the library is loaded.
#include <atomic>
#include <string>
#include <vector>

#include "c_api.h"
#include "kernels.h"

#ifdef MXFP4_X86
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#if defined(MXFP4_NEON) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace mxfp4 {
namespace {

#ifdef MXFP4_NEON
bool dot_product() {
#if defined(__linux__)
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kAsimdDp) != 0;
#elif defined(__APPLE__)
  return true;  // since the first Mac with such a processor
#else
  return false;
#endif
}
#endif

#ifdef MXFP4_X86
// Older compilers do not know its name.
bool avx_vnni() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

// The tiles are there, and Linux lets this process use their registers (it wants to be asked once).
bool amx_int8() {
#ifdef __linux__
  unsigned a, b, c, d;
  constexpr unsigned kTileAndInt8 = 3u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTileAndInt8) != kTileAndInt8) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

// The slowest first.
const std::vector<const Kernels*>& usable() {
  static const std::vector<const Kernels*> list = [] {
    std::vector<const Kernels*> found{&kScalarKernels};
#ifdef MXFP4_X86
    __builtin_cpu_init();
    // F16C came before AVX2 in every processor, and older compilers do not know its name here.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      found.push_back(&kAvx2Kernels);
      if (avx_vnni()) found.push_back(&kAvxVnniKernels);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vnni")) {
        found.push_back(&kAvx512Kernels);
        if (__builtin_cpu_supports("avx512vbmi")) {
          found.push_back(&kAvx512VbmiKernels);
          if (amx_int8()) found.push_back(&kAmxKernels);
        }
      }
    }
#endif
#ifdef MXFP4_NEON
    if (dot_product()) found.push_back(&kNeonKernels);
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
