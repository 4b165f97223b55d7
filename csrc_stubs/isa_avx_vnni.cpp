// x86-64 with AVX2, FMA, F16C and AVX-VNNI, which processors without AVX-512 have as well.
#include "kernels.h"

#ifdef MXFP4_X86

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif

#define MXFP4_AVX_VNNI
#include "avx2.h"

namespace mxfp4 {
namespace {

#include "make_kernels.inl.h"

}  // namespace

const Kernels kAvxVnniKernels = make_kernels<Avx2>("avx_vnni");

}  // namespace mxfp4

#ifdef __clang__
#pragma clang attribute pop
#endif

#endif  // MXFP4_X86
