// x86-64 with AVX2, FMA and F16C.
#include "kernels.h"

#ifdef MXFP4_X86

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "avx2.h"

namespace mxfp4 {
namespace {

#include "make_kernels.inl.h"

}  // namespace

const Kernels kAvx2Kernels = make_kernels<Avx2>("avx2");

}  // namespace mxfp4

#ifdef __clang__
#pragma clang attribute pop
#endif

#endif  // MXFP4_X86
