// x86-64 with AVX-512 and its VNNI and VBMI extensions.
#include "kernels.h"

#ifdef MXFP4_X86

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"))), \
    apply_to = function)
#else
// GCC 12 warns of its own headers' deliberately undefined vectors.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")
#endif

#define MXFP4_VBMI
#include "avx512.h"

namespace mxfp4 {
namespace {

#include "make_kernels.inl.h"

}  // namespace

const Kernels kAvx512VbmiKernels = make_kernels<Avx512>("avx512_vbmi");

}  // namespace mxfp4

#ifdef __clang__
#pragma clang attribute pop
#endif

#endif  // MXFP4_X86
