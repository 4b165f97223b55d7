// The product, over a vector type V whose lanes are columns of the result (rows of the weight).
// Included by each instruction set's file, inside of its own namespace.
//
// A block's dot product is exact in integers, and times the two scales (powers of two) still is. In the
// order of K, two blocks at a time are added to each other and then to the float32 sum. Every instruction
// set does just that, so all give the same bits.

// One panel of V::width rows of the weight.
struct Panel {
  const uint8_t* codes;
  int64_t code_row;    // bytes from row to row
  int64_t code_block;  // bytes from block to block
  const uint8_t* scales;
  int64_t scale_row;   // plain: bytes from row to row
  int scale_half;      // shuffled: which half of 32 rows
};

inline constexpr int64_t kScalesAtOnce = 4;  // bytes in a lane

// The scale bytes of block b in each lane's low byte. Plain: `four` carries four blocks' bytes from
// call to call, blocks being asked for in order.
template <class V, bool shuffled>
typename V::Int scale_bytes(const Panel& panel, int64_t b, int64_t blocks,
                            typename V::Int& four) {
  int shift;
  if constexpr (shuffled) {
    // [K/256, K/32 % 4, row % 16, (K/32 / 4) % 2, (row / 16) % 2]
    four = V::load_int(panel.scales + (b / 8 * 4 + b % 4) * 64);
    shift = 8 * (b % 8 / 4 * 2 + panel.scale_half);
  } else {
    const int64_t within = b % kScalesAtOnce;
    if (within == 0) {
      four = blocks - b >= kScalesAtOnce
                 ? V::gather(panel.scales + b, panel.scale_row)
                 : V::gather_few(panel.scales + b, panel.scale_row, blocks - b);
    }
    shift = static_cast<int>(8 * within);
  }
  return V::and_(V::shift_right_by(four, shift), V::set(255));
}

// Float scales from their bytes; lanes whose codes are all zero get 0 for byte 0 (see
// PairScales::scale).
template <class V>
typename V::Float scale_values(typename V::Int bytes, const typename V::Codes& codes) {
  const auto special = V::equal_either(bytes, 0, kScaleNan);
  auto bits = V::or_(V::template shift_left<23>(bytes), V::and_(special, V::set(0x400000)));
  if (V::any(special)) bits = V::where_zero_codes(codes, V::equal_either(bytes, 0, 0), bits);
  return V::as_float(bits);
}

// Fetches what the next panel has at block b into L2. Its rows are read in such short runs that the
// processor's own prefetch does not get going; without this, one row of activations takes a third longer
// when the weight comes from memory. Four blocks share a line of 64 bytes, and so the rows among them.
// Always inline: GCC takes a function that only prefetches for one without effects and drops its calls.
#ifdef __GNUC__
template <class V>
__attribute__((always_inline)) inline void prefetch_next(const Panel& panel, int64_t b) {
  const int64_t quarter = b % 4, line = b - quarter;
  const uint8_t* codes = panel.codes + line * panel.code_block;
  for (int64_t r = 0; r < V::width / 4; ++r) {
    const int64_t row = V::width + quarter * (V::width / 4) + r;
    __builtin_prefetch(codes + row * panel.code_row, 0, 2);
  }
  if (quarter == 0) __builtin_prefetch(panel.scales + V::width * panel.scale_row + line * 16, 0, 2);
}
#else
template <class V>
void prefetch_next(const Panel&, int64_t) {}
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
  typename V::Int four = V::zero();
  const auto add_block = [&](int64_t b, auto second) {
    if constexpr (rows <= kFewRows) prefetch_next<V>(panel, b);
    const auto codes = V::load_codes(panel.codes + b * panel.code_block, panel.code_row);
    const auto scale =
        scale_values<V>(scale_bytes<V, shuffled>(panel, b, blocks, four), codes);
    const auto weights = V::expand(codes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const PairScales& pair = x.scales[(m + r) * x.pairs + b / 2];
      const int8_t* values = x.values + (m + r) * x.row + b * kBlock;
      auto dot = V::to_float(V::dot(weights, values, pair.correction[second]));
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
  for (int64_t b = 0; b < blocks; b += 2) {
    add_block(b, std::false_type{});
    if (b + 1 < blocks) add_block(b + 1, std::true_type{});
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) sum[r] = V::add_float(sum[r], pair_sum[r]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
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
  static constexpr int64_t tiles_from = 0;

  template <bool shuffled>
  static void run(const Activations& x, int64_t m_begin, int64_t m_end, const Weight& weight,
                  const Panel& panel, int64_t n0, const Output& out) {
    const int64_t n = weight.n;
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

// X: what AllRows multiplies.
template <class V, class AllRows, class X>
void product(const X& x, int64_t m_begin, int64_t m_end, const Weight& weight,
             int64_t panel_index, const Output& out) {
  const int64_t blocks = weight.blocks, n0 = panel_index * V::width;
  if (weight.shuffled) {
    // Codes are tiles of 16 rows by one block, 256 bytes each; scales, of 32 rows by 8 blocks.
    const int64_t code_blocks = (blocks + 1) / 2 * 2, scale_groups = (blocks + 7) / 8;
    Panel panel{weight.codes + (n0 / 16 * code_blocks * 16 + n0 % 16) * 16, 16, 256,
                weight.scales + n0 / 32 * scale_groups * 256 + n0 % 16 * 4, 0,
                static_cast<int>(n0 / 16 % 2)};
    return AllRows::template run<true>(x, m_begin, m_end, weight, panel, n0, out);
  }
  if (n0 + V::width <= weight.n && weight.scale_row < (int64_t{1} << 31) / V::width) {
    Panel panel{weight.codes + n0 * weight.code_row, weight.code_row, kBlock / 2,
                weight.scales + n0 * weight.scale_row, weight.scale_row, 0};
    return AllRows::template run<false>(x, m_begin, m_end, weight, panel, n0, out);
  }
  // The last panel is copied and filled up, so that no kernel reads past the weight's last row.
  std::vector<uint8_t> codes(V::width * blocks * (kBlock / 2)), scales(V::width * blocks, 127);
  for (int64_t r = 0; blocks > 0 && r < V::width && n0 + r < weight.n; ++r) {
    std::memcpy(codes.data() + r * blocks * (kBlock / 2),
                weight.codes + (n0 + r) * weight.code_row, blocks * (kBlock / 2));
    std::memcpy(scales.data() + r * blocks, weight.scales + (n0 + r) * weight.scale_row, blocks);
  }
  Panel panel{codes.data(), blocks * (kBlock / 2), kBlock / 2, scales.data(), blocks, 0};
  AllRows::template run<false>(x, m_begin, m_end, weight, panel, n0, out);
}
