// x86-64 with AVX2, FMA and F16C.
#include "kernels.h"

#ifdef MXFP4_X86

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "avx2.h"

namespace mxfp4 {
namespace {

#include "convert.inl.h"
#include "product.inl.h"
#include "product_a16.inl.h"
#include "make_kernels.inl.h"

}  // namespace

const Kernels kAvx2Kernels = make_kernels<Avx2>("avx2");

}  // namespace mxfp4

#ifdef __clang__
#pragma clang attribute pop
#endif

#endif  // MXFP4_X86
