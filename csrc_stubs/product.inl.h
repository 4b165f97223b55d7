// The product, over a vector type V whose lanes are columns of the result (rows of the weight).
// Included by each instruction set's file, inside of its own namespace.
//
// A block's dot product is exact in integers, and times the two scales (powers of two) still is. In the
// order of K, two blocks at a time are added to each other and then to the float32 sum. Every instruction
// set does just that, so all give the same bits.

// One panel of V::width rows of the weight.
struct Panel {
  std::vector<uint8_t> copy;  // of the codes and the scales, where there is one
  const uint8_t* codes;
  int64_t code_row;    // bytes from row to row
  const uint8_t* scales;
  int64_t scale_row;   // plain: bytes from row to row
  int scale_half;      // shuffled: which half of 32 rows
};

// The panel whose first row is n0.
template <class V, bool shuffled>
Panel panel_at(const Weight& weight, int64_t n0) {
  const int64_t blocks = weight.blocks;
  if constexpr (shuffled) {
    // Codes are tiles of 16 rows by one block, 256 bytes each; scales, of 32 rows by 8 blocks.
    const int64_t code_blocks = (blocks + 1) / 2 * 2, scale_groups = (blocks + 7) / 8;
    return {{},
            weight.codes + (n0 / 16 * code_blocks * 16 + n0 % 16) * 16, 16,
            weight.scales + n0 / 32 * scale_groups * 256 + n0 % 16 * 4, 0,
            static_cast<int>(n0 / 16 % 2)};
  }
  const uint8_t* codes = weight.codes + n0 * weight.code_row;
  const uint8_t* scales = weight.scales + n0 * weight.scale_row;
  constexpr int64_t kBytes = kBlock / 2;
  if (n0 + V::width <= weight.n && weight.scale_row < (int64_t{1} << 31) / V::width) {
    return {{}, codes, weight.code_row, scales, weight.scale_row, 0};
  }
  // The last panel is copied and filled up, so that no kernel reads past the weight's last row.
  std::vector<uint8_t> copy(V::width * blocks * (kBytes + 1), 127);
  uint8_t* copied_scales = copy.data() + V::width * blocks * kBytes;
  for (int64_t r = 0; blocks > 0 && r < V::width && n0 + r < weight.n; ++r) {
    std::memcpy(copy.data() + r * blocks * kBytes, codes + r * weight.code_row, blocks * kBytes);
    std::memcpy(copied_scales + r * blocks, scales + r * weight.scale_row, blocks);
  }
  const uint8_t* copied = copy.data();
  return {std::move(copy), copied, blocks * kBytes, copied_scales, blocks, 0};
}

inline constexpr int64_t kScalesAtOnce = 4;  // bytes in a lane

// Bytes of codes from block to block.
template <bool shuffled>
inline constexpr int64_t kCodeBlock = shuffled ? 16 * (kBlock / 2) : kBlock / 2;

// Block four + within of a row; `four` is a multiple of 4. An unrolled loop knows `within`.
struct Place {
  uint64_t four;
  int within;
  uint64_t block() const { return four + within; }
};
inline Place place_of(uint64_t b) { return {b & ~uint64_t{3}, static_cast<int>(b & 3)}; }

// Scale bytes as they are read: four in each lane.
template <class V>
struct FourScales {
  typename V::Int bytes;
  bool special;  // one of them may be 0 or NaN
};

// The scale bytes of block b, one in each lane. Plain: `four` carries those of four blocks from call to
// call, blocks being asked for in order.
template <class V, bool shuffled>
MXFP4_INLINE typename V::Int scale_bytes(const Panel& panel, Place b, int64_t blocks,
                                         FourScales<V>& four) {
  if (shuffled) {
    // [K/256, K/32 % 4, row % 16, (K/32 / 4) % 2, (row / 16) % 2]
    four.bytes = V::load_int(panel.scales + (b.four / 8 * 4 + b.within) * 64);
  } else if (b.within == 0) {
    four.bytes = blocks - b.four >= kScalesAtOnce
                     ? V::gather(panel.scales + b.four, panel.scale_row)
                     : V::gather_few(panel.scales + b.four, panel.scale_row, blocks - b.four);
  }
  if (shuffled || b.within == 0) four.special = V::any_byte_special(four.bytes);
  if constexpr (shuffled) {
    const int shift = 8 * (b.four / 4 % 2 * 2 + panel.scale_half);
    return V::and_(V::shift_right_by(four.bytes, shift), V::set(255));
  }
  const auto bytes = V::and_(four.bytes, V::set(255));
  four.bytes = V::template shift_right<8>(four.bytes);
  return bytes;
}

// Float scales from their bytes; lanes whose codes are all zero get 0 for byte 0 (see
// PairScales::scale). `special`: there may be bytes 0 and 255.
template <class V>
MXFP4_INLINE typename V::Float scale_values(typename V::Int bytes, bool special,
                               const typename V::Codes& codes) {
  auto bits = V::template shift_left<23>(bytes);
  if (special) {
    bits = V::or_(bits, V::and_(V::equal_either(bytes, 0, kScaleNan), V::set(0x400000)));
    bits = V::where_zero_codes(codes, V::equal_either(bytes, 0, 0), bits);
  }
  return V::as_float(bits);
}

// Block b of a panel. The lanes of a shuffled one may be in an order of V's own (V::tile_order).
template <class V>
struct Block {
  typename V::Codes codes;
  typename V::Int scale_bytes;
};

template <class V, bool shuffled>
MXFP4_INLINE Block<V> read_block(const Panel& panel, Place b, int64_t blocks, FourScales<V>& four) {
  const uint8_t* codes = panel.codes + b.block() * kCodeBlock<shuffled>;
  const auto bytes = scale_bytes<V, shuffled>(panel, b, blocks, four);
  if constexpr (shuffled) return {V::load_tile(codes), V::tile_order(bytes)};
  return {V::load_codes(codes, panel.code_row), bytes};
}

inline constexpr int64_t kShuffledAhead = 8;  // blocks

// Fetches ahead of block b; without this, one row of activations takes a third longer when the weight
// comes from memory. Inline, because GCC takes a function that only prefetches for one without effects and
// drops its calls.
#ifdef __GNUC__
template <class V, bool shuffled, int64_t panels = 1>
MXFP4_INLINE void prefetch_ahead(const Panel& panel, Place b) {
  if constexpr (shuffled) {
    // A panel is one run of bytes, and the next one follows.
    const uint8_t* codes = panel.codes + (b.block() + kShuffledAhead) * kCodeBlock<true>;
    for (int64_t i = 0; i < V::width * kBlock / 2; i += 64) __builtin_prefetch(codes + i, 0, 3);
    __builtin_prefetch(panel.scales + (b.four / 8 * 4 + 4 + b.within) * 64, 0, 3);
    return;
  }
  // What the panel after the next `panels` - 1 has at block b, into L2, and what this panel has four blocks
  // later, into L1. Rows are read in such short runs that the processor's own prefetch does not get going.
  // Four blocks share a line of 64 bytes, and so the rows among them.
  constexpr int64_t next = panels * V::width;
  const uint8_t* codes = panel.codes + b.four * kCodeBlock<false>;
#pragma GCC unroll 4
  for (int64_t r = 0; r < V::width / 4; ++r) {
    const int64_t row = next + b.within * (V::width / 4) + r;
    __builtin_prefetch(codes + row * panel.code_row, 0, 2);
    __builtin_prefetch(codes + 4 * kCodeBlock<false> + (row - next) * panel.code_row, 0, 3);
  }
  if (b.within == 0) __builtin_prefetch(panel.scales + next * panel.scale_row + b.four * 16, 0, 2);
}
#else
template <class V, bool shuffled, int64_t panels = 1>
void prefetch_ahead(const Panel&, Place) {}
#endif

// With more rows than this, the product waits for arithmetic and not for memory.
inline constexpr int kFewRows = 8;

// Rows [m, m + rows) by one panel.
template <class V, bool shuffled, int rows, bool huge>
void tile(const Activations& x, int64_t m, const Panel& panel, int64_t n0, int64_t n,
          const Output& out) {
  const int64_t blocks = x.blocks;
  // Unrolled, so that the sums stay in registers.
  typename V::Float sum[rows], pair_sum[rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) sum[r] = V::set_float(0.0f);
  const int8_t* values[rows];
  const PairScales* pairs[rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) values[r] = x.at(m + r), pairs[r] = x.scales + (m + r) * x.pairs;
  FourScales<V> four{V::zero(), false};
  const auto add_block = [&](Place b, auto second) MXFP4_INLINE_LAMBDA {
    if constexpr (rows <= kFewRows) prefetch_ahead<V, shuffled>(panel, b);
    const auto block = read_block<V, shuffled>(panel, b, blocks, four);
    const auto scale = scale_values<V>(block.scale_bytes, four.special, block.codes);
    const auto weights = V::expand(block.codes);
    const uint64_t p = b.block() / 2;
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const PairScales& pair = pairs[r][p];
      const int8_t* block_values = values[r] + p * x.pair + second * kBlock;
      auto dot = V::to_float(V::dot(weights, block_values, pair.correction[second]));
      // 2^-20 keeps the sum times the scale in range until the weight's scale is in.
      if constexpr (huge) dot = V::mul(dot, V::set_float(0x1p-20f));
      auto left = V::mul(dot, V::set_float(pair.scale[second])), right = scale;
      if constexpr (huge) left = V::mul(left, scale), right = V::set_float(0x1p20f);
      if constexpr (second) {
        pair_sum[r] = V::fma(left, right, pair_sum[r]);
      } else {
        pair_sum[r] = V::mul(left, right);
      }
    }
  };
  const auto add_pair = [&](uint64_t b, int within) MXFP4_INLINE_LAMBDA {
    add_block({b, within}, std::false_type{});
    if (b + within + 1 < uint64_t(blocks)) add_block({b, within + 1}, std::true_type{});
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) sum[r] = V::add_float(sum[r], pair_sum[r]);
  };
  for (uint64_t b = 0; b < uint64_t(blocks); b += 4) {
    add_pair(b, 0);
    if (b + 2 < uint64_t(blocks)) add_pair(b, 2);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    if constexpr (shuffled) sum[r] = V::as_float(V::tile_order(V::bits(sum[r])));
    if (out.bias) sum[r] = V::add_float(sum[r], V::load_some(out.bias + n0, n - n0));
    V::store_some(out.data, out.type, (m + r) * n + n0, sum[r], n - n0);
  }
}

template <class V, bool shuffled, int rows>
void tile_of(int count, const Activations& x, int64_t m, const Panel& panel, int64_t n0, int64_t n,
             const Output& out) {
  if constexpr (rows > 1) {
    if (count < rows) return tile_of<V, shuffled, rows - 1>(count, x, m, panel, n0, n, out);
  }
  tile<V, shuffled, rows, false>(x, m, panel, n0, n, out);
}

inline bool any_huge(const Activations& x, int64_t begin, int64_t end) {
  return std::any_of(x.huge + begin, x.huge + end, [](uint8_t h) { return h != 0; });
}

// All rows of activations by one panel, in vectors of V.
template <class V>
struct InVectors {
  static constexpr int64_t tiles_from = 0, panels = 1;

  template <bool shuffled>
  static void run(const Activations& x, int64_t m_begin, int64_t m_end, const Weight& weight,
                  int64_t n0, const Output& out) {
    const int64_t n = weight.n;
    const Panel panel = panel_at<V, shuffled>(weight, n0);
    const int64_t tiles = (m_end - m_begin + V::tile_rows - 1) / V::tile_rows;
    int64_t m = m_begin;
    for (int64_t t = 0; t < tiles; ++t) {
      // As even as can be: 12 rows are 6 + 6, not 8 + 4.
      const int64_t count = (m_end - m) / (tiles - t);
      if (any_huge(x, m, m + count)) {
        for (int64_t r = m; r < m + count; ++r) {
          x.huge[r] ? tile<V, shuffled, 1, true>(x, r, panel, n0, n, out)
                    : tile<V, shuffled, 1, false>(x, r, panel, n0, n, out);
        }
      } else {
        tile_of<V, shuffled, V::tile_rows>(static_cast<int>(count), x, m, panel, n0, n, out);
      }
      m += count;
    }
  }
};

// A call's panels: V::width columns, `AllRows::panels` times.
template <class V, class AllRows, class X>
void product(const X& x, int64_t m_begin, int64_t m_end, const Weight& weight,
             int64_t panel_index, const Output& out) {
  const int64_t n0 = panel_index * AllRows::panels * V::width;
  if (weight.shuffled) {
    AllRows::template run<true>(x, m_begin, m_end, weight, n0, out);
  } else {
    AllRows::template run<false>(x, m_begin, m_end, weight, n0, out);
  }
}
