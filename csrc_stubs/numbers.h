// Number formats, one value at a time: what every instruction set's kernels agree on.
#pragma once

#include <cstdint>
#include <cstring>

namespace mxfp4 {

constexpr int kBlock = 32;  // elements that share one scale
constexpr uint8_t kScaleNan = 255;

enum class Float { bf16, f16, f32 };
enum class ScaleMode { even, floor, ceil };

inline int64_t size_of(Float type) { return type == Float::f32 ? 4 : 2; }

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float from_bf16(uint16_t half) { return float_of(uint32_t{half} << 16); }

inline uint16_t to_bf16(float value) {  // nearest, ties to even
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_f16(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // float16's exponent field read as float32's is 2^-112 too small; the product is exact, subnormals
  // of float16 included.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

inline uint16_t to_f16(float value) {  // nearest, ties to even
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);  // from 65520 on
  if (rest < 0x38800000) {
    // Subnormal in float16. One unit in the last place of 0.5 is 2^-24, float16's smallest step, so
    // the addition does the rounding.
    return uint16_t(sign | (bits_of(float_of(rest) + 0.5f) - bits_of(0.5f)));
  }
  return uint16_t(sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13);
}

// Element i of an array that need not be aligned.
template <class T>
T load_as(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void store_as(void* data, int64_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

inline float load(const void* data, Float type, int64_t i) {
  switch (type) {
    case Float::bf16: return from_bf16(load_as<uint16_t>(data, i));
    case Float::f16: return from_f16(load_as<uint16_t>(data, i));
    default: return load_as<float>(data, i);
  }
}

inline void store(void* data, Float type, int64_t i, float value) {
  switch (type) {
    case Float::bf16: store_as(data, i, to_bf16(value)); break;
    case Float::f16: store_as(data, i, to_f16(value)); break;
    default: store_as(data, i, value);
  }
}

// Scale byte of a block from the bits of its largest magnitude. What is added to the bits carries into
// the exponent from mantissa 1.75 on (even), above 1.5 (ceil) or never (floor); 2 is E2M1's largest
// exponent. An infinity or NaN gives 255.
inline uint8_t scale_byte(uint32_t amax, ScaleMode mode) {
  if (amax >= 0x7f800000) return kScaleNan;
  const uint32_t carry =
      mode == ScaleMode::even ? 0x200000 : mode == ScaleMode::ceil ? 0x3fffff : 0;
  const uint32_t exponent = (amax + carry) >> 23;
  return static_cast<uint8_t>(exponent > 2 ? exponent - 2 : 0);
}

// 2^(byte - 127), or NaN for 255. The bit that turns infinity into NaN is also 2^-127, float32's
// subnormal for byte 0.
inline float scale_value(uint8_t byte) {
  return float_of(uint32_t{byte} << 23 | (byte == 0 || byte == kScaleNan ? 0x400000 : 0));
}

// Twice the value of each E2M1 code: integers, so that a block's dot product is exact.
constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The same plus 12: unsigned, as the multiply-add instructions want one of their operands.
constexpr int kOffset = 12;
constexpr uint8_t kDoubledOffset[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                        12, 11, 10, 9,  8,  6,  4,  0};

}  // namespace mxfp4
