// AArch64 with the dot product instructions (ARMv8.2's DotProd): four columns of the result a vector.
#include "kernels.h"

#ifdef MXFP4_NEON

#include <arm_neon.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

namespace mxfp4 {
namespace {

#include "store_lanes.inl.h"

struct Neon {
  static constexpr int width = 4;
  static constexpr int tile_rows = 4;
  static constexpr int float_rows = 3;

  using Int = int32x4_t;
  using Float = float32x4_t;
  // Lane r of vector j holds bytes 4j .. 4j+3 of row r's block.
  struct Codes {
    Int v[4];
  };
  struct Weights {
    int8x16_t even[4], odd[4];
  };

  static Int zero() { return vdupq_n_s32(0); }
  static Int set(uint32_t v) { return vdupq_n_s32(static_cast<int32_t>(v)); }
  static Float set_float(float v) { return vdupq_n_f32(v); }
  static Int bits(Float a) { return vreinterpretq_s32_f32(a); }
  static Float as_float(Int a) { return vreinterpretq_f32_s32(a); }
  static Float to_float(Int a) { return vcvtq_f32_s32(a); }
  static Int and_(Int a, Int b) { return vandq_s32(a, b); }
  static Int or_(Int a, Int b) { return vorrq_s32(a, b); }
  static Int add(Int a, Int b) { return vaddq_s32(a, b); }
  static Int sub(Int a, Int b) { return vsubq_s32(a, b); }
  static Int min(Int a, Int b) { return vminq_s32(a, b); }
  static Int max(Int a, Int b) { return vmaxq_s32(a, b); }
  static uint32_t largest(Int a) { return static_cast<uint32_t>(vmaxvq_s32(a)); }
  static Int shift_right_by(Int a, int n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n)));
  }
  template <int n>
  static Int shift_right(Int a) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), n));
  }
  template <int n>
  static Int shift_left(Int a) {
    return vshlq_n_s32(a, n);
  }
  static Int select_less(Int a, Int b, Int yes, Int no) {
    return vbslq_s32(vcltq_s32(a, b), yes, no);
  }
  static Float mul(Float a, Float b) { return vmulq_f32(a, b); }
  static Float add_float(Float a, Float b) { return vaddq_f32(a, b); }
  static Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }

  template <mxfp4::Float type>
  static Float load(const void* data, int64_t at) {
    if constexpr (type == mxfp4::Float::f32) {
      return load_as<Float>(static_cast<const float*>(data) + at, 0);
    } else {
      const auto half = load_as<uint16x4_t>(static_cast<const uint16_t*>(data) + at, 0);
      if constexpr (type == mxfp4::Float::f16) return vcvt_f32_f16(vreinterpret_f16_u16(half));
      return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
    }
  }
  template <mxfp4::Float type>
  static void store(void* data, int64_t at, Float v) {
    if constexpr (type == mxfp4::Float::f32) {
      store_as(static_cast<float*>(data) + at, 0, v);
    } else {
      store_as(static_cast<uint16_t*>(data) + at, 0,
               type == mxfp4::Float::f16 ? vreinterpret_u16_f16(vcvt_f16_f32(v)) : to_bf16x4(v));
    }
  }
  static uint16x4_t to_bf16x4(Float v) {  // nearest, ties to even
    const Int raw = bits(v);
    const Int odd = and_(shift_right<16>(raw), set(1));
    const Int rounded = shift_right<16>(add(add(raw, set(0x7fff)), odd));
    const Int whole = vbslq_s32(vceqq_f32(v, v), rounded, set(0x7fc0));
    return vmovn_u32(vreinterpretq_u32_s32(whole));
  }
  static Float load_some(const float* data, int64_t count) {
    float padded[width] = {};
    std::copy(data, data + std::min<int64_t>(count, width), padded);
    return vld1q_f32(padded);
  }
  static void store_some(void* data, mxfp4::Float type, int64_t at, Float v, int64_t count) {
    store_lanes<Neon>(data, type, at, v, count);
  }

  static bool quantize_eight_bf16(const void*, ScaleMode, uint8_t*, uint8_t*) { return false; }
  static void pack_codes(const Int* code, uint8_t* out) {
    for (int i = 0; i < kBlock / width; i += 4) {
      const uint16x8_t low = vcombine_u16(narrow(code[i]), narrow(code[i + 1]));
      const uint16x8_t high = vcombine_u16(narrow(code[i + 2]), narrow(code[i + 3]));
      const uint8x16_t codes = vcombine_u8(vmovn_u16(low), vmovn_u16(high));
      // In each pair of bytes, the odd code goes next to the even one.
      const uint16x8_t pairs = vreinterpretq_u16_u8(codes);
      vst1_u8(out + 2 * i, vmovn_u16(vorrq_u16(pairs, vshrq_n_u16(pairs, 4))));
    }
  }
  static uint16x4_t narrow(Int a) { return vmovn_u32(vreinterpretq_u32_s32(a)); }
  static Float code_values(const uint8_t* codes) {
    const int32_t low = codes[0], high = codes[1];
    const int32_t lanes[width] = {low, low >> 4, high, high >> 4};
    return values(vld1q_s32(lanes));
  }
  static Float values(Int codes) {
    // The upper half of each value's float32.
    static constexpr uint8_t kUpper[16] = {0x00, 0x00, 0x3f, 0x00, 0x3f, 0x80, 0x3f, 0xc0,
                                           0x40, 0x00, 0x40, 0x40, 0x40, 0x80, 0x40, 0xc0};
    // Of a code c, bytes 2c and 2c + 1, the most significant first; bytes past the table are zero.
    const Int twice = shift_left<1>(and_(codes, set(7)));
    const Int at = or_(or_(shift_left<24>(twice), shift_left<16>(add(twice, set(1)))), set(0xffff));
    const uint8x16_t magnitude = vqtbl1q_u8(vld1q_u8(kUpper), vreinterpretq_u8_s32(at));
    return as_float(or_(vreinterpretq_s32_u8(magnitude), shift_left<28>(and_(codes, set(8)))));
  }
  static bool expand_activation(const uint8_t* codes, int8_t* out, int32_t& correction) {
    const uint8x16_t bytes = vld1q_u8(codes);
    const int8x16_t table = vld1q_s8(kDoubled);
    vst1q_s8(out, vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15))));
    vst1q_s8(out + 16, vqtbl1q_s8(table, vshrq_n_u8(bytes, 4)));
    correction = 0;  // weights have no offset here
    return vmaxvq_u8(vandq_u8(bytes, vdupq_n_u8(0x77))) == 0;
  }

  static Int load_int(const uint8_t* data) { return vreinterpretq_s32_u8(vld1q_u8(data)); }
  static Int gather(const uint8_t* data, int64_t row) { return gather_few(data, row, 4); }
  static Int gather_few(const uint8_t* data, int64_t row, int64_t count) {
    int32_t lanes[width] = {};
    for (int i = 0; i < width; ++i) std::memcpy(&lanes[i], data + i * row, count);
    return vld1q_s32(lanes);
  }
  static bool any_byte_special(Int bytes) {  // 0 or 255: at most 1 after adding 1
    const uint8x16_t next = vaddq_u8(vreinterpretq_u8_s32(bytes), vdupq_n_u8(1));
    return vminvq_u8(next) <= 1;
  }
  static Int equal_either(Int a, int b, int c) {
    return vreinterpretq_s32_u32(vorrq_u32(vceqq_s32(a, vdupq_n_s32(b)), vceqq_s32(a, vdupq_n_s32(c))));
  }
  static Int where_zero_codes(const Codes& codes, Int mask, Int otherwise) {
    const Int bits = or_(or_(codes.v[0], codes.v[1]), or_(codes.v[2], codes.v[3]));
    const uint32x4_t zero_codes = vceqq_s32(and_(bits, set(0x77777777)), zero());
    return vbicq_s32(otherwise, and_(mask, vreinterpretq_s32_u32(zero_codes)));
  }

  static Codes load_codes(const uint8_t* data, int64_t row) {
    const Int r0 = load_int(data), r1 = load_int(data + row);
    const Int r2 = load_int(data + 2 * row), r3 = load_int(data + 3 * row);
    const Int even01 = vtrn1q_s32(r0, r1), odd01 = vtrn2q_s32(r0, r1);
    const Int even23 = vtrn1q_s32(r2, r3), odd23 = vtrn2q_s32(r2, r3);
    return {{low_halves(even01, even23), low_halves(odd01, odd23), high_halves(even01, even23),
             high_halves(odd01, odd23)}};
  }
  static Int low_halves(Int a, Int b) {
    return vreinterpretq_s32_s64(vtrn1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }
  static Int high_halves(Int a, Int b) {
    return vreinterpretq_s32_s64(vtrn2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }
  static Codes load_tile(const uint8_t* data) { return load_codes(data, kBlock / 2); }
  static Int tile_order(Int a) { return a; }
  static Int word(const Codes& codes, int j) { return codes.v[j]; }
  static Weights expand(const Codes& codes) {
    const int8x16_t table = vld1q_s8(kDoubled);
    Weights weights;
    for (int j = 0; j < 4; ++j) {
      const uint8x16_t bytes = vreinterpretq_u8_s32(codes.v[j]);
      weights.even[j] = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15)));
      weights.odd[j] = vqtbl1q_s8(table, vshrq_n_u8(bytes, 4));
    }
    return weights;
  }
  static Int dot(const Weights& weights, const int8_t* x, int32_t) {
    const int8x16_t even = vld1q_s8(x), odd = vld1q_s8(x + 16);
    Int sum = zero();
    sum = vdotq_laneq_s32(sum, weights.even[0], even, 0);
    sum = vdotq_laneq_s32(sum, weights.odd[0], odd, 0);
    sum = vdotq_laneq_s32(sum, weights.even[1], even, 1);
    sum = vdotq_laneq_s32(sum, weights.odd[1], odd, 1);
    sum = vdotq_laneq_s32(sum, weights.even[2], even, 2);
    sum = vdotq_laneq_s32(sum, weights.odd[2], odd, 2);
    sum = vdotq_laneq_s32(sum, weights.even[3], even, 3);
    return vdotq_laneq_s32(sum, weights.odd[3], odd, 3);
  }
};

#include "make_kernels.inl.h"

}  // namespace

const Kernels kNeonKernels = make_kernels<Neon>("neon_dotprod");

}  // namespace mxfp4

#ifdef __clang__
#pragma clang attribute pop
#endif

#endif  // MXFP4_NEON
