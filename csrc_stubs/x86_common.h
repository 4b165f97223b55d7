// What the x86 instruction sets share, on 128-bit vectors. Include it after the target pragma, and the
// system's headers before.
#pragma once

#include "kernels.h"

namespace mxfp4 {
namespace {

inline bool expand_activation_x86(const uint8_t* codes, int8_t* out, int32_t& correction) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kDoubled));
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble));
  const __m128i odd =
      _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
  auto* values = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(values, even);
  _mm_storeu_si128(values + 1, odd);
  // maddubs takes its first operand as unsigned: ones.
  const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_add_epi8(even, odd));
  __m128i sums = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, _MM_SHUFFLE(1, 0, 3, 2)));
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, _MM_SHUFFLE(2, 3, 0, 1)));
  correction = -kOffset * _mm_cvtsi128_si32(sums);
  return _mm_testz_si128(bytes, _mm_set1_epi8(0x77));
}

}  // namespace
}  // namespace mxfp4
