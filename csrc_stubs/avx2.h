// AVX2 as a vector type: eight columns of the result a vector; with MXFP4_AVX_VNNI defined, four
// multiply-adds a lane are one instruction. Include it after the target pragma, and the system's headers
// before.
#pragma once

#include "x86_common.h"

namespace mxfp4 {
namespace {

#include "store_lanes.inl.h"

struct Avx2 {
  static constexpr int width = 8;
  static constexpr int tile_rows = 4;
  static constexpr int float_rows = 3;

  using Int = __m256i;
  using Float = __m256;
  // Lane r of vector j holds bytes 4j .. 4j+3 of row r's block.
  struct Codes {
    __m256i v[4];
  };
  struct Weights {
    __m256i even[4], odd[4];
  };

  static Int zero() { return _mm256_setzero_si256(); }
  static Int set(uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); }
  static Float set_float(float v) { return _mm256_set1_ps(v); }
  static Int bits(Float a) { return _mm256_castps_si256(a); }
  static Float as_float(Int a) { return _mm256_castsi256_ps(a); }
  static Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
  static Int and_(Int a, Int b) { return _mm256_and_si256(a, b); }
  static Int or_(Int a, Int b) { return _mm256_or_si256(a, b); }
  static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Int sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  static Int min(Int a, Int b) { return _mm256_min_epi32(a, b); }
  static Int max(Int a, Int b) { return _mm256_max_epi32(a, b); }
  static uint32_t largest(Int a) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
  }
  static Int shift_right_by(Int a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
  template <int n>
  static Int shift_right(Int a) {
    return _mm256_srli_epi32(a, n);
  }
  template <int n>
  static Int shift_left(Int a) {
    return _mm256_slli_epi32(a, n);
  }
  static Int select_less(Int a, Int b, Int yes, Int no) {
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(b, a));
  }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float add_float(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }

  template <mxfp4::Float type>
  static Float load(const void* data, int64_t at) {
    if constexpr (type == mxfp4::Float::f32) {
      return _mm256_loadu_ps(static_cast<const float*>(data) + at);
    } else {
      const __m128i half = _mm_loadu_si128(
          reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(data) + at));
      if constexpr (type == mxfp4::Float::f16) return _mm256_cvtph_ps(half);
      return as_float(shift_left<16>(_mm256_cvtepu16_epi32(half)));
    }
  }
  template <mxfp4::Float type>
  static void store(void* data, int64_t at, Float v) {
    if constexpr (type == mxfp4::Float::f32) {
      _mm256_storeu_ps(static_cast<float*>(data) + at, v);
    } else {
      auto* out = reinterpret_cast<__m128i*>(static_cast<uint16_t*>(data) + at);
      _mm_storeu_si128(out, type == mxfp4::Float::f16
                                ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
                                : to_bf16x8(v));
    }
  }
  static __m128i to_bf16x8(Float v) {  // nearest, ties to even
    const Int raw = bits(v);
    const Int odd = and_(shift_right<16>(raw), set(1));
    Int rounded = shift_right<16>(add(add(raw, set(0x7fff)), odd));
    const Int nan = bits(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, set(0x7fc0), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded),
                            _mm256_extracti128_si256(rounded, 1));
  }
  static Float load_some(const float* data, int64_t count) {
    if (count >= width) return _mm256_loadu_ps(data);
    float padded[width] = {};
    std::copy(data, data + count, padded);
    return _mm256_loadu_ps(padded);
  }
  static void store_some(void* data, mxfp4::Float type, int64_t at, Float v, int64_t count) {
    store_lanes<Avx2>(data, type, at, v, count);
  }

  static bool quantize_eight_bf16(const void*, ScaleMode, uint8_t*, uint8_t*) { return false; }
  static void pack_codes(const Int* code, uint8_t* out) {
    const Int low = _mm256_packs_epi32(code[0], code[1]);
    const Int high = _mm256_packs_epi32(code[2], code[3]);
    // The packs work within 128-bit halves; this puts the 32 codes back in order.
    const Int order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const Int codes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    const Int pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));  // even + 16 * odd
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm_packus_epi16(_mm256_castsi256_si128(pairs),
                                      _mm256_extracti128_si256(pairs, 1)));
  }
  static Float code_values(const uint8_t* codes) {
    int32_t four;
    std::memcpy(&four, codes, sizeof four);
    Int pairs = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    return values(_mm256_or_si256(pairs, _mm256_slli_epi64(pairs, 28)));
  }
  static Float values(Int codes) {
    const Float magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const Float magnitude = _mm256_permutevar8x32_ps(magnitudes, codes);  // looks at three bits
    const Int sign = _mm256_slli_epi32(and_(codes, set(8)), 28);
    return as_float(or_(bits(magnitude), sign));
  }
  static bool expand_activation(const uint8_t* codes, int8_t* out, int32_t& correction) {
    return expand_activation_x86(codes, out, correction);
  }

  static Int load_int(const uint8_t* data) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
  }
  static Int gather(const uint8_t* data, int64_t row) {
    const Int lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const Int at = _mm256_mullo_epi32(lanes, set(static_cast<uint32_t>(row)));
    return _mm256_i32gather_epi32(reinterpret_cast<const int*>(data), at, 1);
  }
  static Int gather_few(const uint8_t* data, int64_t row, int64_t count) {
    uint32_t lanes[width] = {};
    for (int i = 0; i < width; ++i) std::memcpy(&lanes[i], data + i * row, count);
    return load_int(reinterpret_cast<const uint8_t*>(lanes));
  }
  static Int equal_either(Int a, int b, int c) {
    return or_(_mm256_cmpeq_epi32(a, set(b)), _mm256_cmpeq_epi32(a, set(c)));
  }
  static bool any_byte_special(Int bytes) {  // 0 or 255: at most 1 after adding 1
    const Int next = _mm256_add_epi8(bytes, _mm256_set1_epi8(1));
    const Int same = _mm256_cmpeq_epi8(_mm256_min_epu8(next, _mm256_set1_epi8(1)), next);
    return !_mm256_testz_si256(same, same);
  }
  static Int where_zero_codes(const Codes& codes, Int mask, Int otherwise) {
    const Int bits = or_(or_(codes.v[0], codes.v[1]), or_(codes.v[2], codes.v[3]));
    const Int zero_codes = _mm256_cmpeq_epi32(and_(bits, set(0x77777777)), zero());
    return _mm256_andnot_si256(and_(mask, zero_codes), otherwise);
  }

  static Int two_rows(const uint8_t* low, const uint8_t* high) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
  }
  static Codes load_codes(const uint8_t* data, int64_t row) {
    const Int r0 = two_rows(data, data + 4 * row);
    const Int r1 = two_rows(data + row, data + 5 * row);
    const Int r2 = two_rows(data + 2 * row, data + 6 * row);
    const Int r3 = two_rows(data + 3 * row, data + 7 * row);
    const Int low01 = _mm256_unpacklo_epi32(r0, r1), high01 = _mm256_unpackhi_epi32(r0, r1);
    const Int low23 = _mm256_unpacklo_epi32(r2, r3), high23 = _mm256_unpackhi_epi32(r2, r3);
    return {{_mm256_unpacklo_epi64(low01, low23), _mm256_unpackhi_epi64(low01, low23),
             _mm256_unpacklo_epi64(high01, high23), _mm256_unpackhi_epi64(high01, high23)}};
  }
  static Codes load_tile(const uint8_t* data) { return load_codes(data, kBlock / 2); }
  static Int tile_order(Int a) { return a; }
  static Int word(const Codes& codes, int j) { return codes.v[j]; }
  static Weights expand(const Codes& codes) {
    const Int table = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kDoubledOffset)));
    const Int nibble = _mm256_set1_epi8(15);
    Weights weights;
    for (int j = 0; j < 4; ++j) {
      const Int high = _mm256_srli_epi16(codes.v[j], 4);
      weights.even[j] = _mm256_shuffle_epi8(table, and_(codes.v[j], nibble));
      weights.odd[j] = _mm256_shuffle_epi8(table, and_(high, nibble));
    }
    return weights;
  }
  static Int four_values(const int8_t* values) {
    int32_t four;
    std::memcpy(&four, values, sizeof four);
    return _mm256_set1_epi32(four);
  }
#ifdef MXFP4_AVX_VNNI
  static Int dot(const Weights& weights, const int8_t* x, int32_t correction) {
    Int sum = set(static_cast<uint32_t>(correction));
    for (int j = 0; j < 4; ++j) {
      sum = _mm256_dpbusd_avx_epi32(sum, weights.even[j], four_values(x + 4 * j));
      sum = _mm256_dpbusd_avx_epi32(sum, weights.odd[j], four_values(x + 16 + 4 * j));
    }
    return sum;
  }
#else
  static Int dot(const Weights& weights, const int8_t* x, int32_t correction) {
    // Pairs fit: a 16-bit lane ends up with 16 products of at most 24 * 12.
    Int sum = zero();
    for (int j = 0; j < 4; ++j) {
      const Int even = _mm256_maddubs_epi16(weights.even[j], four_values(x + 4 * j));
      const Int odd = _mm256_maddubs_epi16(weights.odd[j], four_values(x + 16 + 4 * j));
      sum = _mm256_add_epi16(sum, _mm256_add_epi16(even, odd));
    }
    return add(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)),
               set(static_cast<uint32_t>(correction)));
  }
#endif
};

}  // namespace
}  // namespace mxfp4
