// Quantise, dequantise and prepare, over a vector type V. Included by each instruction set's file,
// inside of its own namespace.

template <class V>
MXFP4_INLINE void quantize_block(const typename V::Float* x, ScaleMode mode, uint8_t* codes, uint8_t* scale) {
  constexpr int kVectors = kBlock / V::width;
  typename V::Int magnitude[kVectors];
  // Magnitudes order as integers: finite below infinity below NaN.
  typename V::Int largest = V::zero();
  for (int i = 0; i < kVectors; ++i) {
    magnitude[i] = V::and_(V::bits(x[i]), V::set(0x7fffffff));
    largest = V::max(largest, magnitude[i]);
  }
  *scale = scale_byte(V::largest(largest), mode);
  if (*scale == kScaleNan) {
    std::memset(codes, 0, kBlock / 2);
    return;
  }

  const auto inverse = V::set_float(float_of((254u - *scale) << 23));
  typename V::Int code[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    const auto scaled = V::mul(V::as_float(magnitude[i]), inverse);
    const auto bits = V::bits(scaled);
    // From 1 on, E2M1 is float32 with one mantissa bit and another bias: round there, ties to even.
    const auto odd = V::and_(V::template shift_right<22>(bits), V::set(1));
    const auto rounded = V::add(V::add(bits, V::set(0x1fffff)), odd);
    const auto normal = V::min(V::sub(V::template shift_right<22>(rounded), V::set(252)), V::set(7));
    // Below 1 the steps are 0.5, one unit in the last place of 2^22.
    const auto small = V::sub(V::bits(V::add_float(scaled, V::set_float(0x1p22f))),
                              V::set(bits_of(0x1p22f)));
    const auto sign = V::and_(V::template shift_right<28>(V::bits(x[i])), V::set(8));
    code[i] = V::or_(V::select_less(bits, V::set(0x3f800000), small, normal), sign);
  }
  V::pack_codes(code, codes);
}

// Block b of a row.
template <class V, Float type>
MXFP4_INLINE void load_block(const void* x, int64_t stride, int64_t b, typename V::Float* values) {
  constexpr int kVectors = kBlock / V::width;
  if (stride == 1) {
    for (int i = 0; i < kVectors; ++i) {
      values[i] = V::template load<type>(x, b * kBlock + i * V::width);
    }
  } else {
    float gathered[kBlock];
    for (int i = 0; i < kBlock; ++i) gathered[i] = load(x, type, (b * kBlock + i) * stride);
    for (int i = 0; i < kVectors; ++i) {
      values[i] = V::template load<Float::f32>(gathered, i * V::width);
    }
  }
}

template <class V, Float type>
void quantize_row(const void* x, int64_t stride, int64_t blocks, ScaleMode mode, uint8_t* codes,
                  uint8_t* scales) {
  for (int64_t b = 0; b < blocks;) {
    if constexpr (type == Float::bf16) {
      if (stride == 1 && blocks - b >= 8 &&
          V::quantize_eight_bf16(static_cast<const uint16_t*>(x) + b * kBlock, mode,
                                 codes + b * (kBlock / 2), scales + b)) {
        b += 8;
        continue;
      }
    }
    // Eight, so that a special one among them does not have the next eight looked at in vain.
    for (const int64_t last = std::min(blocks, b + 8); b < last; ++b) {
      typename V::Float values[kBlock / V::width];
      load_block<V, type>(x, stride, b, values);
      quantize_block<V>(values, mode, codes + b * (kBlock / 2), scales + b);
    }
  }
}

template <class V>
void quantize(const void* x, Float type, int64_t stride, int64_t blocks, ScaleMode mode,
              uint8_t* codes, uint8_t* scales) {
  switch (type) {
    case Float::bf16: return quantize_row<V, Float::bf16>(x, stride, blocks, mode, codes, scales);
    case Float::f16: return quantize_row<V, Float::f16>(x, stride, blocks, mode, codes, scales);
    default: return quantize_row<V, Float::f32>(x, stride, blocks, mode, codes, scales);
  }
}

template <class V, Float type>
void dequantize_row(const uint8_t* codes, const uint8_t* scales, int64_t blocks, void* out) {
  for (int64_t b = 0; b < blocks; ++b) {
    const auto scale = V::set_float(scale_value(scales[b]));
    for (int i = 0; i < kBlock; i += V::width) {
      const auto values = V::code_values(codes + (b * kBlock + i) / 2);
      V::template store<type>(out, b * kBlock + i, V::mul(values, scale));
    }
  }
}

template <class V>
void dequantize(const uint8_t* codes, const uint8_t* scales, int64_t blocks, Float type,
                void* out) {
  switch (type) {
    case Float::bf16: return dequantize_row<V, Float::bf16>(codes, scales, blocks, out);
    case Float::f16: return dequantize_row<V, Float::f16>(codes, scales, blocks, out);
    default: return dequantize_row<V, Float::f32>(codes, scales, blocks, out);
  }
}

// Puts both blocks of a pair on the smaller of their scales, if one byte still holds the values: they
// are at most 12, so that there is room for a factor of 8. A block of zeros takes any scale.
inline void to_common_scale(int8_t* values, PairScales& pair) {
  for (int i = 0; i < 2; ++i) {
    float& mine = pair.scale[i];
    const float other = pair.scale[1 - i], factor = mine / other;
    if (mine == 0.0f) mine = other;
    if (factor > 1.0f && factor <= 8.0f) {
      const int times = static_cast<int>(factor);
      for (int j = 0; j < kBlock; ++j) {
        values[i * kBlock + j] = static_cast<int8_t>(values[i * kBlock + j] * times);
      }
      pair.correction[i] *= times;
      mine = other;
    }
  }
}

template <class V, bool common_scale>
bool prepare(const uint8_t* codes, const uint8_t* scales, int64_t blocks, int8_t* values,
             int64_t step, PairScales* pairs) {
  bool huge = false;
  for (int64_t b = 0; b < blocks; ++b) {
    PairScales& pair = pairs[b / 2];
    int8_t* out = values + b / 2 * step + b % 2 * kBlock;
    const bool zero = V::expand_activation(codes + b * (kBlock / 2), out, pair.correction[b % 2]);
    const uint8_t scale = scales[b];
    pair.scale[b % 2] = zero && scale != kScaleNan ? 0.0f : scale_value(scale) * 0.25f;
    huge |= scale >= kHugeScale && scale != kScaleNan;
    if (b % 2 == 0 && b + 1 == blocks) {
      std::memset(out + kBlock, 0, kBlock);
      pair.correction[1] = 0;
      pair.scale[1] = 0.0f;
    }
    if (common_scale && (b % 2 == 1 || b + 1 == blocks)) {
      to_common_scale(values + b / 2 * step, pair);
    }
  }
  return huge;
}

template <class V, Float type>
bool widen_row(const void* x, int64_t stride, int64_t blocks, float* out) {
  const auto all_ones = V::set(0x7fffffff), infinity = V::set(0x7f800000);
  // Of finite numbers the largest magnitude, and of those that are not zero the least, from the top.
  auto largest = V::zero(), least = V::zero();
  for (int64_t b = 0; b < blocks; ++b) {
    constexpr int kVectors = kBlock / V::width;
    typename V::Float values[kVectors];
    load_block<V, type>(x, stride, b, values);
    for (int i = 0; i < kVectors; ++i) {
      V::template store<Float::f32>(out, b * kBlock + i * V::width, values[i]);
      const auto magnitude = V::and_(V::bits(values[i]), all_ones);
      largest = V::max(largest, V::select_less(magnitude, infinity, magnitude, V::zero()));
      const auto from_top = V::sub(all_ones, magnitude);
      least = V::max(least, V::select_less(V::zero(), magnitude, from_top, V::zero()));
    }
  }
  const bool huge = V::largest(largest) >= bits_of(kLargestNarrow);
  // The least of bfloat16's numbers has room below it for another bit.
  const bool tiny = type == Float::f32 && V::largest(least) > 0x7fffffff - bits_of(kLeastNarrow);
  return huge || tiny;
}

template <class V>
bool widen(const void* x, Float type, int64_t stride, int64_t blocks, float* out) {
  switch (type) {
    case Float::bf16: return widen_row<V, Float::bf16>(x, stride, blocks, out);
    case Float::f16: return widen_row<V, Float::f16>(x, stride, blocks, out);
    default: return widen_row<V, Float::f32>(x, stride, blocks, out);
  }
}
