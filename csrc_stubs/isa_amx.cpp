// x86-64 with AMX: the matrix unit multiplies 16 rows by 16 columns, one block of K at a time, in
// integers; AVX-512 scales and adds. Few rows are left to AVX-512 alone.
#include "kernels.h"

#ifdef MXFP4_X86

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>


#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((           \
        target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#else
// GCC 12 warns of its own headers' deliberately undefined vectors.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#endif

#include "avx512.h"

namespace mxfp4 {
namespace {

#include "convert.inl.h"
#include "product.inl.h"

// The layout of LDTILECFG's operand.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct InTiles {
  static constexpr int kRows = 16;
  // AVX-512 alone is faster for up to this many rows in all, and for up to this many left over by
  // tiles, where they do not pay for the weights' unpacking alone.
  static constexpr int64_t kFewRows = 11, kFewLeft = 3;
  // Blocks of the weight that are unpacked at a time: 16 KiB, so that they, their scales and the sums
  // stay in the L1 cache.
  static constexpr int64_t kBlocks = 32;
  static constexpr int64_t kMostRows = 192;

  struct alignas(64) Unpacked {
    int8_t codes[kBlocks][8][64];  // one block: rows of four elements of K for each of 16 columns
    float scales[kBlocks][16];
  };

  template <bool shuffled>
  static void unpack(const Panel& panel, int64_t first, int64_t last, int64_t blocks,
                     Unpacked& out) {
    __m512i four = Avx512::zero();
    for (int64_t b = first; b < last; ++b) {
      const auto codes = Avx512::load_codes(panel.codes + b * panel.code_block, panel.code_row);
      const auto bytes = scale_bytes<Avx512, shuffled>(panel, b, blocks, four);
      _mm512_store_ps(out.scales[b - first], scale_values<Avx512>(bytes, codes));
      const auto weights = Avx512::expand(codes, kDoubled);
      for (int j = 0; j < 4; ++j) {
        _mm512_store_si512(out.codes[b - first][j], weights.even[j]);
        _mm512_store_si512(out.codes[b - first][4 + j], weights.odd[j]);
      }
    }
  }

  // How many blocks the matrix unit is ahead: from its operands to a result in memory takes it longer
  // than AVX-512 needs to add one up.
  static constexpr int64_t kAhead = 2;

  // sums[row] += one chunk of K, for 16 rows.
  static void add(const ActivationBlock* x, int64_t blocks, int64_t count, const Unpacked& weights,
                  float* sums) {
    alignas(64) int32_t dots[kAhead + 1][kRows][16];
    __m512 sum[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_load_ps(sums + 16 * r);
    for (int64_t b = 0; b < count + kAhead; ++b) {
      if (b < count) {
        _tile_zero(0);
        _tile_loadd(1, x[b].values, blocks * static_cast<int64_t>(sizeof(ActivationBlock)));
        _tile_loadd(2, weights.codes[b], 64);
        _tile_dpbssd(0, 1, 2);
        _tile_stored(0, dots[b % (kAhead + 1)], 64);
      }
      const int64_t done = b - kAhead;
      if (done < 0) continue;
      const auto& dot = dots[done % (kAhead + 1)];
      const __m512 scale = _mm512_load_ps(weights.scales[done]);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(dot[r])),
                                             _mm512_set1_ps(x[r * blocks + done].scale));
        sum[r] = _mm512_fmadd_ps(product, scale, sum[r]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) _mm512_store_ps(sums + 16 * r, sum[r]);
  }

  template <bool shuffled>
  static void run(const ActivationBlock* x, const uint8_t* huge, int64_t m_begin, int64_t m_end,
                  const Weight& weight, const Panel& panel, int64_t n0, const Output& out) {
    // Rows [m_begin, split) in tiles, the rest in vectors.
    int64_t split = m_end;
    const int64_t left = (m_end - m_begin) % kRows;
    if (left <= kFewLeft) split -= left;
    if (m_end - m_begin <= kFewRows || any_huge(huge, m_begin, m_end)) split = m_begin;
    for (int64_t m = m_begin; m < split; m += kMostRows) {
      in_tiles<shuffled>(x, m, std::min(split, m + kMostRows), weight, panel, n0, out);
    }
    if (split < m_end) {
      InVectors<Avx512>::run<shuffled>(x, huge, split, m_end, weight, panel, n0, out);
    }
  }

  template <bool shuffled>
  static void in_tiles(const ActivationBlock* x, int64_t m_begin, int64_t m_end,
                       const Weight& weight, const Panel& panel, int64_t n0, const Output& out) {
    TileConfig config;
    for (int t = 0; t < 3; ++t) config.row_bytes[t] = 64, config.rows[t] = kRows;
    config.row_bytes[1] = kBlock;
    config.rows[2] = kBlock / 4;
    _tile_loadconfig(&config);

    Unpacked weights;
    alignas(64) float sums[kMostRows * 16];
    const int64_t blocks = weight.blocks, tiles = (m_end - m_begin + kRows - 1) / kRows;
    std::fill_n(sums, tiles * kRows * 16, 0.0f);
    for (int64_t first = 0; first < blocks; first += kBlocks) {
      const int64_t last = std::min(blocks, first + kBlocks);
      unpack<shuffled>(panel, first, last, blocks, weights);
      for (int64_t t = 0; t < tiles; ++t) {
        add(x + (m_begin + t * kRows) * blocks + first, blocks, last - first, weights,
            sums + t * kRows * 16);
      }
    }
    _tile_release();

    const int64_t n = weight.n;
    for (int64_t m = m_begin; m < m_end; ++m) {
      __m512 sum = _mm512_load_ps(sums + (m - m_begin) * 16);
      if (out.bias) sum = _mm512_add_ps(sum, Avx512::load_some(out.bias + n0, n - n0));
      Avx512::store_some(out.data, out.type, m * n + n0, sum, n - n0);
    }
  }
};

}  // namespace

const Kernels kAmxKernels = make_kernels<Avx512, InTiles>("amx_int8");

}  // namespace mxfp4

#ifdef __clang__
#pragma clang attribute pop
#endif

#endif  // MXFP4_X86
