// The product of float activations, over a vector type V whose lanes are columns of the result.
// Included by each instruction set's file after product.inl.h, inside of its own namespace.
//
// A block's products are summed by themselves, in kChains chains of fused multiply-adds that are then
// added up, and go times the weight's scale into the float32 sum. Every instruction set does just that,
// so all give the same bits. Short chains keep the error of a block small and hide the instruction's
// latency where there are few rows.

inline constexpr int kChains = 4;

template <class V, bool shuffled, int rows>
void float_tile(const FloatActivations& x, int64_t m, const Panel& panel, int64_t n0, int64_t n,
                const Output& out) {
  const int64_t blocks = x.blocks, k = blocks * kBlock;
  typename V::Float sum[rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) sum[r] = V::set_float(0.0f);
  FourScales<V> four{V::zero(), false};
  for (int64_t b = 0; b < blocks; ++b) {
    const Place place = place_of(b);
    prefetch_ahead<V, shuffled>(panel, place);
    const auto block = read_block<V, shuffled>(panel, place, blocks, four);
    const auto scale = scale_values<V>(block.scale_bytes, four.special, block.codes);
    const float* values[rows];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) values[r] = x.values + (m + r) * k + b * kBlock;
    typename V::Float chain[rows][kChains];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kChains; ++i) chain[r][i] = V::set_float(0.0f);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kBlock / 8; ++j) {
      auto word = V::word(block.codes, j);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const auto weight = V::values(word);
        word = V::template shift_right<4>(word);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
          auto& to = chain[r][i % kChains];
          to = V::fma(V::set_float(values[r][8 * j + i]), weight, to);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const auto low = V::add_float(chain[r][0], chain[r][1]);
      const auto high = V::add_float(chain[r][2], chain[r][3]);
      sum[r] = V::fma(V::add_float(low, high), scale, sum[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    if constexpr (shuffled) sum[r] = V::as_float(V::tile_order(V::bits(sum[r])));
    if (out.bias) sum[r] = V::add_float(sum[r], V::load_some(out.bias + n0, n - n0));
    V::store_some(out.data, out.type, (m + r) * n + n0, sum[r], n - n0);
  }
}

template <class V, bool shuffled, int rows>
void float_tile_of(int count, const FloatActivations& x, int64_t m, const Panel& panel, int64_t n0,
                   int64_t n, const Output& out) {
  if constexpr (rows > 1) {
    if (count < rows) {
      return float_tile_of<V, shuffled, rows - 1>(count, x, m, panel, n0, n, out);
    }
  }
  float_tile<V, shuffled, rows>(x, m, panel, n0, n, out);
}

// A row whose products need double's range.
template <class V, bool shuffled>
void wide_row(const FloatActivations& x, int64_t m, const Panel& panel, int64_t n0, int64_t n,
              const Output& out) {
  const int64_t blocks = x.blocks;
  double sum[V::width] = {};
  FourScales<V> four{V::zero(), false};
  for (int64_t b = 0; b < blocks; ++b) {
    float bytes[V::width];  // as patterns
    V::template store<Float::f32>(
        bytes, 0, V::as_float(scale_bytes<V, shuffled>(panel, place_of(b), blocks, four)));
    const float* values = x.values + (m * blocks + b) * kBlock;
    for (int i = 0; i < V::width; ++i) {
      const uint8_t* codes = panel.codes + b * kCodeBlock<shuffled> + i * panel.code_row;
      double block = 0.0;
      for (int e = 0; e < kBlock; e += 2) {
        block += 0.5 * kDoubled[codes[e / 2] & 15] * values[e];
        block += 0.5 * kDoubled[codes[e / 2] >> 4] * values[e + 1];
      }
      sum[i] += block * scale_value(static_cast<uint8_t>(bits_of(bytes[i])));
    }
  }
  for (int i = 0; i < V::width && n0 + i < n; ++i) {
    const float bias = out.bias ? out.bias[n0 + i] : 0.0f;
    store(out.data, out.type, m * n + n0 + i, static_cast<float>(sum[i]) + bias);
  }
}

template <class V>
struct InFloat {
  static constexpr int64_t panels = 1;

  template <bool shuffled>
  static void run(const FloatActivations& x, int64_t m_begin, int64_t m_end, const Weight& weight,
                  int64_t n0, const Output& out) {
    const int64_t n = weight.n;
    const Panel panel = panel_at<V, shuffled>(weight, n0);
    const int64_t tiles = (m_end - m_begin + V::float_rows - 1) / V::float_rows;
    int64_t m = m_begin;
    for (int64_t t = 0; t < tiles; ++t) {
      const int count = static_cast<int>((m_end - m) / (tiles - t));
      float_tile_of<V, shuffled, V::float_rows>(count, x, m, panel, n0, n, out);
      m += count;
    }
    for (m = m_begin; m < m_end; ++m) {
      if (x.wide[m]) wide_row<V, shuffled>(x, m, panel, n0, n, out);
    }
  }
};
