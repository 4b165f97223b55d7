// Eight blocks of bfloat16 quantised at once, in 16-bit integers: 32 elements are one vector. Include it
// after the target pragma, and the system's headers before.
#pragma once

#include "kernels.h"

namespace mxfp4 {
namespace {

// The largest magnitude of each block; they order as integers.
inline __m128i largest_of_eight(const __m512i* magnitude) {
  __m512i two[4], four[2], one[2];
  for (int i = 0; i < 4; ++i) {
    const __m512i a = magnitude[2 * i], b = magnitude[2 * i + 1];
    two[i] = _mm512_max_epu16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  for (int i = 0; i < 2; ++i) {
    const __m512 a = _mm512_castsi512_ps(two[2 * i]), b = _mm512_castsi512_ps(two[2 * i + 1]);
    four[i] = _mm512_max_epu16(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                               _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
    // The pack below saturates: the upper half must be zero.
    one[i] = _mm512_srli_epi32(
        _mm512_max_epu16(four[i], _mm512_slli_epi32(four[i], 16)), 16);
  }
  const __m512i eight = _mm512_packus_epi32(one[0], one[1]);
  const __m256i half =
      _mm256_max_epu16(_mm512_castsi512_si256(eight), _mm512_extracti64x4_epi64(eight, 1));
  return _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

inline __m512i words(int v) { return _mm512_set1_epi16(static_cast<short>(v)); }

// Codes of magnitudes that are given in 128ths of a binade, three binades below 1 being zero.
inline __m512i round_to_codes(__m512i magnitude) {
  constexpr int kQuarter = 1 << 7, kThreeQuarters = 2 << 7 | 0x40, kOne = 3 << 7;
  // From 1 on: to one bit of mantissa, ties to even.
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(magnitude, 6), words(1));
  const __m512i rounded = _mm512_add_epi16(_mm512_add_epi16(magnitude, words(0x1f)), odd);
  const __m512i normal = _mm512_min_epu16(
      _mm512_sub_epi16(_mm512_srli_epi16(rounded, 6), words((kOne >> 6) - 2)), words(7));
  // Below: 0.25 goes to 0 and 0.75 to 1.
  __m512i small = _mm512_maskz_mov_epi16(_mm512_cmpgt_epu16_mask(magnitude, words(kQuarter)), words(1));
  small = _mm512_mask_mov_epi16(
      small, _mm512_cmpge_epu16_mask(magnitude, words(kThreeQuarters)), words(2));
  return _mm512_mask_mov_epi16(normal, _mm512_cmplt_epu16_mask(magnitude, words(kOne)), small);
}

// Returns false, and does nothing, where a block is special: with a NaN or an infinity, or so small that
// the numbers between its codes are subnormal.
inline bool quantize_eight_bf16(const void* x, ScaleMode mode, uint8_t* codes, uint8_t* scales) {
  __m512i value[8], magnitude[8];
  for (int i = 0; i < 8; ++i) {
    value[i] = _mm512_loadu_si512(static_cast<const char*>(x) + 64 * i);
    magnitude[i] = _mm512_and_si512(value[i], words(0x7fff));
  }
  // As scale_byte does with the bits of float32.
  const int carry = mode == ScaleMode::even ? 0x20 : mode == ScaleMode::ceil ? 0x3f : 0;
  const __m128i largest = largest_of_eight(magnitude);
  const __m128i exponent =
      _mm_srli_epi16(_mm_add_epi16(largest, _mm_set1_epi16(static_cast<short>(carry))), 7);
  constexpr int kLeast = 3;  // a byte whose quarter is a normal number
  if (_mm_cmplt_epu16_mask(exponent, _mm_set1_epi16(kLeast + 2)) |
      _mm_cmpge_epu16_mask(largest, _mm_set1_epi16(0x7f80))) {
    return false;
  }
  const __m128i bytes = _mm_sub_epi16(exponent, _mm_set1_epi16(2));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(scales), _mm_packus_epi16(bytes, bytes));

  const __m512i zero =
      _mm512_castsi128_si512(_mm_slli_epi16(_mm_sub_epi16(bytes, _mm_set1_epi16(3)), 7));
  for (int i = 0; i < 8; ++i) {
    const __m512i of_block = _mm512_permutexvar_epi16(words(i), zero);
    const __m512i code = round_to_codes(_mm512_subs_epu16(magnitude[i], of_block));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(value[i], 12), words(8));
    const __m512i both = _mm512_or_si512(code, sign);
    // In each pair of 16-bit lanes, the odd code goes next to the even one.
    const __m512i pairs = _mm512_or_si512(both, _mm512_srli_epi32(both, 12));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * i), _mm512_cvtepi32_epi8(pairs));
  }
  return true;
}

}  // namespace
}  // namespace mxfp4
