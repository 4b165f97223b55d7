// Quantise, dequantise and prepare, over a vector type V. Included by each instruction set's file,
// inside of its own namespace.

template <class V>
void quantize_block(const typename V::Float* x, ScaleMode mode, uint8_t* codes, uint8_t* scale) {
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

template <class V, Float type>
void quantize_row(const void* x, int64_t stride, int64_t blocks, ScaleMode mode, uint8_t* codes,
                  uint8_t* scales) {
  constexpr int kVectors = kBlock / V::width;
  for (int64_t b = 0; b < blocks; ++b) {
    typename V::Float values[kVectors];
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
    quantize_block<V>(values, mode, codes + b * (kBlock / 2), scales + b);
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

template <class V>
bool prepare(const uint8_t* codes, const uint8_t* scales, int64_t blocks, ActivationBlock* out) {
  bool huge = false;
  for (int64_t b = 0; b < blocks; ++b) {
    const bool zero = V::expand_activation(codes + b * (kBlock / 2), out[b]);
    const uint8_t scale = scales[b];
    out[b].scale = zero && scale != kScaleNan ? 0.0f : scale_value(scale) * 0.25f;
    huge |= scale >= kHugeScale && scale != kScaleNan;
  }
  return huge;
}
