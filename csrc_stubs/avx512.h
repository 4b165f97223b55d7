// AVX-512 with its VNNI extension as a vector type: sixteen columns of the result a vector, four
// multiply-adds a lane in one instruction. Include it after the target pragma, and the system's headers
// before.
#pragma once

#include "avx512_quantize.h"
#include "x86_common.h"

namespace mxfp4 {
namespace {

struct Avx512 {
  static constexpr int width = 16;
  static constexpr int tile_rows = 8;
  static constexpr int float_rows = 6;

  using Int = __m512i;
  using Float = __m512;
  // Lane r of vector j holds bytes 4j .. 4j+3 of row r's block.
  struct Codes {
    __m512i v[4];
  };
  struct Weights {
    __m512i even[4], odd[4];
  };

  static Int zero() { return _mm512_setzero_si512(); }
  static Int set(uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
  static Float set_float(float v) { return _mm512_set1_ps(v); }
  static Int bits(Float a) { return _mm512_castps_si512(a); }
  static Float as_float(Int a) { return _mm512_castsi512_ps(a); }
  static Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
  static Int and_(Int a, Int b) { return _mm512_and_si512(a, b); }
  static Int or_(Int a, Int b) { return _mm512_or_si512(a, b); }
  static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  static Int min(Int a, Int b) { return _mm512_min_epi32(a, b); }
  static Int max(Int a, Int b) { return _mm512_max_epi32(a, b); }
  static uint32_t largest(Int a) {
    return static_cast<uint32_t>(_mm512_reduce_max_epi32(a));
  }
  static Int shift_right_by(Int a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
  template <int n>
  static Int shift_right(Int a) {
    return _mm512_srli_epi32(a, n);
  }
  template <int n>
  static Int shift_left(Int a) {
    return _mm512_slli_epi32(a, n);
  }
  static Int select_less(Int a, Int b, Int yes, Int no) {
    return _mm512_mask_mov_epi32(no, _mm512_cmplt_epi32_mask(a, b), yes);
  }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float add_float(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }

  static __mmask16 first(int64_t count) {
    return count >= width ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
  }

  template <mxfp4::Float type>
  static Float load(const void* data, int64_t at) {
    if constexpr (type == mxfp4::Float::f32) {
      return _mm512_loadu_ps(static_cast<const float*>(data) + at);
    } else {
      const __m256i half = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(data) + at));
      if constexpr (type == mxfp4::Float::f16) return _mm512_cvtph_ps(half);
      return as_float(shift_left<16>(_mm512_cvtepu16_epi32(half)));
    }
  }
  template <mxfp4::Float type>
  static void store(void* data, int64_t at, Float v) {
    store_masked<type>(data, at, v, 0xffff);
  }
  template <mxfp4::Float type>
  static void store_masked(void* data, int64_t at, Float v, __mmask16 mask) {
    if constexpr (type == mxfp4::Float::f32) {
      _mm512_mask_storeu_ps(static_cast<float*>(data) + at, mask, v);
    } else {
      const __m256i half = type == mxfp4::Float::f16
                               ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
                               : to_bf16x16(v);
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(data) + at, mask, half);
    }
  }
  static __m256i to_bf16x16(Float v) {  // nearest, ties to even
    const Int raw = bits(v);
    const Int odd = and_(shift_right<16>(raw), set(1));
    const Int rounded = shift_right<16>(add(add(raw, set(0x7fff)), odd));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, set(0x7fc0)));
  }
  static Float load_some(const float* data, int64_t count) {
    return _mm512_maskz_loadu_ps(first(count), data);
  }
  static void store_some(void* data, mxfp4::Float type, int64_t at, Float v, int64_t count) {
    switch (type) {
      case mxfp4::Float::bf16:
        return store_masked<mxfp4::Float::bf16>(data, at, v, first(count));
      case mxfp4::Float::f16:
        return store_masked<mxfp4::Float::f16>(data, at, v, first(count));
      default: return store_masked<mxfp4::Float::f32>(data, at, v, first(count));
    }
  }

  static bool quantize_eight_bf16(const void* x, ScaleMode mode, uint8_t* codes, uint8_t* scales) {
    return mxfp4::quantize_eight_bf16(x, mode, codes, scales);
  }
  static void pack_codes(const Int* code, uint8_t* out) {
    for (int i = 0; i < 2; ++i) {
      // In each pair of lanes, the odd code goes next to the even one.
      const Int pairs = _mm512_or_si512(code[i], _mm512_srli_epi64(code[i], 28));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 8 * i), _mm512_cvtepi64_epi8(pairs));
    }
  }
  static Float code_values(const uint8_t* codes) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    Int pairs = _mm512_cvtepu8_epi64(eight);
    return values(_mm512_or_si512(pairs, _mm512_slli_epi64(pairs, 28)));
  }
  static Float values(Int codes) {
    const Float table =
        _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,  //
                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(codes, table);  // looks at four bits
  }
  static bool expand_activation(const uint8_t* codes, int8_t* out, int32_t& correction) {
    return expand_activation_x86(codes, out, correction);
  }

  static Int load_int(const uint8_t* data) { return _mm512_loadu_si512(data); }
  static Int gather(const uint8_t* data, int64_t row) {
    const Int lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const Int at = _mm512_mullo_epi32(lanes, set(static_cast<uint32_t>(row)));
    return _mm512_i32gather_epi32(at, data, 1);
  }
  static Int gather_few(const uint8_t* data, int64_t row, int64_t count) {
    uint32_t lanes[width] = {};
    for (int i = 0; i < width; ++i) std::memcpy(&lanes[i], data + i * row, count);
    return _mm512_loadu_si512(lanes);
  }
  static __mmask16 equal_either(Int a, int b, int c) {
    return _mm512_cmpeq_epi32_mask(a, set(b)) | _mm512_cmpeq_epi32_mask(a, set(c));
  }
  static Int and_(__mmask16 mask, Int a) { return _mm512_maskz_mov_epi32(mask, a); }
  static bool any_byte_special(Int bytes) {  // 0 or 255: at most 1 after adding 1
    const Int one = _mm512_set1_epi8(1);
    return _mm512_cmple_epu8_mask(_mm512_add_epi8(bytes, one), one) != 0;
  }
  static Int where_zero_codes(const Codes& codes, __mmask16 mask, Int otherwise) {
    const Int bits = or_(or_(codes.v[0], codes.v[1]), or_(codes.v[2], codes.v[3]));
    const __mmask16 zero_codes =
        _mm512_mask_testn_epi32_mask(mask, bits, set(0x77777777));
    return _mm512_mask_mov_epi32(otherwise, zero_codes, zero());
  }

  // Rows i, i + 4, i + 8, i + 12. Masked broadcasts leave the shuffle port to the transpose.
  static Int four_rows(const uint8_t* data, int64_t row) {
    const auto at = [&](int i) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 4 * i * row));
    };
    Int v = _mm512_castsi128_si512(at(0));
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0, at(1));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00, at(2));
    return _mm512_mask_broadcast_i32x4(v, 0xf000, at(3));
  }
  static Codes load_codes(const uint8_t* data, int64_t row) {
    return transposed(four_rows(data, row), four_rows(data + row, row),
                      four_rows(data + 2 * row, row), four_rows(data + 3 * row, row));
  }
  // Rows that follow one another, in tile_order.
  static Codes load_tile(const uint8_t* data) {
    return transposed(load_int(data), load_int(data + 64), load_int(data + 128),
                      load_int(data + 192));
  }
  // A 4 x 4 matrix of lanes, transposed.
  static Int tile_order(Int a) {
    const Int order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, a);
  }
  static Codes transposed(Int r0, Int r1, Int r2, Int r3) {
    const Int low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    const Int low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    return {{_mm512_unpacklo_epi64(low01, low23), _mm512_unpackhi_epi64(low01, low23),
             _mm512_unpacklo_epi64(high01, high23), _mm512_unpackhi_epi64(high01, high23)}};
  }
  static Int word(const Codes& codes, int j) { return codes.v[j]; }
  static Weights expand(const Codes& codes) {
    const Int table = _mm512_broadcast_i32x4(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kDoubledOffset)));
    Weights weights;
    for (int j = 0; j < 4; ++j) {
      const Int high = _mm512_srli_epi16(codes.v[j], 4);
      weights.even[j] = look_up(table, codes.v[j]);
      weights.odd[j] = look_up(table, high);
    }
    return weights;
  }
  // The entries of four equal tables at each byte's low four bits.
#ifdef MXFP4_VBMI
  // It looks at six bits, and so into any of the four.
  static Int look_up(Int table, Int at) { return _mm512_permutexvar_epi8(at, table); }
#else
  static Int look_up(Int table, Int at) {
    return _mm512_shuffle_epi8(table, and_(at, _mm512_set1_epi8(15)));
  }
#endif
  static Int four_values(const int8_t* values) {
    int32_t four;
    std::memcpy(&four, values, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Int dot(const Weights& weights, const int8_t* x, int32_t correction) {
    Int sum = set(static_cast<uint32_t>(correction));
    for (int j = 0; j < 4; ++j) {
      sum = _mm512_dpbusd_epi32(sum, weights.even[j], four_values(x + 4 * j));
      sum = _mm512_dpbusd_epi32(sum, weights.odd[j], four_values(x + 16 + 4 * j));
    }
    return sum;
  }
};

}  // namespace
}  // namespace mxfp4
