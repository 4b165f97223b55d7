// x86-64 with AMX: the matrix unit multiplies 16 rows by 16 columns in integers, a pair of blocks of K
// at a time where their scales allow it and else one block; AVX-512 scales and adds. Few rows are left to
// AVX-512 alone.
#include "kernels.h"

#ifdef MXFP4_X86

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(                                                              \
    __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni," \
                          "avx512vbmi,avx2,fma,f16c"))),                                     \
    apply_to = function)
#else
// GCC 12 warns of its own headers' deliberately undefined vectors.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#pragma GCC target("avx512vbmi,avx2,fma,f16c")
#endif

#define MXFP4_VBMI
#include "avx512.h"

namespace mxfp4 {
namespace {

#include "make_kernels.inl.h"

// The layout of LDTILECFG's operand.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tile registers: sums, and the operands of a pair of blocks, of its first and of its second block.
// Macros, for the compiler's headers paste them into assembly.
#define MXFP4_TILE_SUM 0
#define MXFP4_TILE_OTHER_SUM 1
#define MXFP4_TILE_X 2
#define MXFP4_TILE_W 3
#define MXFP4_TILE_X_1 4
#define MXFP4_TILE_W_1 5
#define MXFP4_TILE_X_2 6
#define MXFP4_TILE_W_2 7

struct InTiles {
  static constexpr int kRows = kTileRows, kColumns = Avx512::width;
  // AVX-512 alone is faster for fewer rows in all, and for up to kFewLeft left over by tiles, where they
  // do not pay for the weights' unpacking alone.
  static constexpr int64_t tiles_from = 9, kFewLeft = 3;
  // Panels that one call multiplies: 16 rows of activations come from the L2 cache once for all of them.
  static constexpr int64_t panels = 2;
  // Pairs of blocks of the weight that are unpacked at a time: 8 KiB for each panel, so that they, the
  // activations and the sums stay in the L1 cache.
  static constexpr int64_t kPairs = 8;
  // How many pairs the matrix unit is ahead: from its operands to a result in memory takes it longer
  // than AVX-512 needs to add one up.
  static constexpr int64_t kAhead = 3;

  static TileConfig config() {
    TileConfig c;
    const auto shape = [&](int tile, int rows, int row_bytes) {
      c.rows[tile] = static_cast<uint8_t>(rows);
      c.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
    };
    for (const int t : {MXFP4_TILE_SUM, MXFP4_TILE_OTHER_SUM}) shape(t, kRows, 64);
    shape(MXFP4_TILE_X, kRows, 2 * kBlock);
    shape(MXFP4_TILE_W, 2 * kBlock / 4, 64);
    for (const int t : {MXFP4_TILE_X_1, MXFP4_TILE_X_2}) shape(t, kRows, kBlock);
    for (const int t : {MXFP4_TILE_W_1, MXFP4_TILE_W_2}) shape(t, kBlock / 4, 64);
    return c;
  }

  // Of one panel.
  struct alignas(64) Unpacked {
    int8_t codes[kPairs][2][8][64];  // of a block: rows of four elements of K for each of 16 columns
    float scales[kPairs][2][16];
    bool alike[kPairs];  // both blocks are on the first one's scale
  };

  // By how much the values of each block are multiplied, as powers of two, and the scale that both have
  // then in each column; if one byte holds the values and the products stay among float32's normal
  // numbers. As `to_common_scale` does with activations.
  struct CommonScale {
    __m512i shift[2], bytes;
    bool exists;
  };
  static CommonScale common_scale(const Block<Avx512> (&blocks)[2], bool special) {
    __m512i e[2] = {blocks[0].scale_bytes, blocks[1].scale_bytes};
    if (special) {  // a block of zeros takes any scale
      __mmask16 zero[2];
      for (int i = 0; i < 2; ++i) {
        const auto& v = blocks[i].codes.v;
        const __m512i any = _mm512_or_si512(_mm512_or_si512(v[0], v[1]), _mm512_or_si512(v[2], v[3]));
        zero[i] = _mm512_testn_epi32_mask(any, _mm512_set1_epi32(0x77777777)) &
                  _mm512_cmpneq_epi32_mask(e[i], _mm512_set1_epi32(kScaleNan));
      }
      e[0] = _mm512_mask_mov_epi32(e[0], zero[0], e[1]);
      e[0] = _mm512_mask_mov_epi32(e[0], zero[0] & zero[1], _mm512_set1_epi32(127));
      e[1] = _mm512_mask_mov_epi32(e[1], zero[1], e[0]);
    }
    const __m512i low = _mm512_min_epi32(e[0], e[1]), high = _mm512_max_epi32(e[0], e[1]);
    const __mmask16 fits =
        _mm512_cmple_epi32_mask(_mm512_sub_epi32(high, low), _mm512_set1_epi32(kMostShift)) &
        _mm512_cmpge_epi32_mask(low, _mm512_set1_epi32(127 + kTinyExponent)) &
        _mm512_cmple_epi32_mask(high, _mm512_set1_epi32(127 + kLargeExponent));
    return {{_mm512_sub_epi32(e[0], low), _mm512_sub_epi32(e[1], low)}, low, fits == 0xffff};
  }

  // kDoubled times 1, 2, 4 and 8.
  static constexpr int kMostShift = 3;
  struct alignas(64) Table {
    int8_t value[(kMostShift + 1) * 16];
  };
  static constexpr Table table() {
    Table t{};
    for (int i = 0; i < 64; ++i) t.value[i] = static_cast<int8_t>(kDoubled[i % 16] * (1 << i / 16));
    return t;
  }

  // Twice the values of a block, times 2^shift, in int8.
  static void expand(const Avx512::Codes& codes, __m512i shift, int8_t (*out)[64]) {
    static constexpr Table kTable = table();
    const __m512i values = _mm512_load_si512(kTable.value), nibble = _mm512_set1_epi8(15);
    // Where the table begins, in each byte of a lane.
    const __m512i first_bytes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const __m512i start = _mm512_shuffle_epi8(_mm512_slli_epi32(shift, 4), first_bytes);
    for (int j = 0; j < 4; ++j) {
      const __m512i high = _mm512_srli_epi16(codes.v[j], 4);
      constexpr int kFirstAndSecondOrThird = 0xea;
      const auto look_up = [&](__m512i code) {
        const __m512i at =
            _mm512_ternarylogic_epi32(code, nibble, start, kFirstAndSecondOrThird);
        return _mm512_permutexvar_epi8(at, values);
      };
      _mm512_store_si512(out[j], look_up(codes.v[j]));
      _mm512_store_si512(out[4 + j], look_up(high));
    }
  }

  // Pairs [first, last).
  template <bool shuffled>
  static void unpack(const Panel& panel, int64_t first, int64_t last, int64_t blocks,
                     Unpacked& out) {
    FourScales<Avx512> four{Avx512::zero(), false};
    for (int64_t p = first; p < last; ++p) {
      Block<Avx512> block[2] = {};
      bool special = false;
      const auto read = [&](int64_t b, Block<Avx512>& to) {
        prefetch_ahead<Avx512, shuffled, panels>(panel, place_of(b));
        to = read_block<Avx512, shuffled>(panel, place_of(b), blocks, four);
        special |= four.special;
      };
      read(2 * p, block[0]);
      if (2 * p + 1 < blocks) {
        read(2 * p + 1, block[1]);
      } else {
        block[1].scale_bytes = block[0].scale_bytes;
      }
      auto& to = out.codes[p - first];
      auto& scales = out.scales[p - first];
      const CommonScale common = common_scale(block, special);
      out.alike[p - first] = common.exists;
      if (common.exists) {
        for (int i = 0; i < 2; ++i) expand(block[i].codes, common.shift[i], to[i]);
        _mm512_store_si512(scales[0], _mm512_slli_epi32(common.bytes, 23));
        continue;
      }
      for (int i = 0; i < 2; ++i) {
        expand(block[i].codes, Avx512::zero(), to[i]);
        _mm512_store_ps(scales[i],
                        scale_values<Avx512>(block[i].scale_bytes, special, block[i].codes));
      }
    }
  }

  // What the matrix unit makes of a pair: one sum, or one for each block.
  using Dots = int32_t[kRows][16];

  static void multiply(const int8_t* x, int64_t row, const int8_t (*w)[8][64], bool alike,
                       Dots& dots, Dots& other_dots) {
    if (alike) {
      _tile_zero(MXFP4_TILE_SUM);
      _tile_loadd(MXFP4_TILE_X, x, row);
      _tile_loadd(MXFP4_TILE_W, w, 64);
      _tile_dpbssd(MXFP4_TILE_SUM, MXFP4_TILE_X, MXFP4_TILE_W);
      _tile_stored(MXFP4_TILE_SUM, dots, 64);
      return;
    }
    _tile_zero(MXFP4_TILE_SUM);
    _tile_loadd(MXFP4_TILE_X_1, x, row);
    _tile_loadd(MXFP4_TILE_W_1, w[0], 64);
    _tile_dpbssd(MXFP4_TILE_SUM, MXFP4_TILE_X_1, MXFP4_TILE_W_1);
    _tile_stored(MXFP4_TILE_SUM, dots, 64);
    _tile_zero(MXFP4_TILE_OTHER_SUM);
    _tile_loadd(MXFP4_TILE_X_2, x + kBlock, row);
    _tile_loadd(MXFP4_TILE_W_2, w[1], 64);
    _tile_dpbssd(MXFP4_TILE_OTHER_SUM, MXFP4_TILE_X_2, MXFP4_TILE_W_2);
    _tile_stored(MXFP4_TILE_OTHER_SUM, other_dots, 64);
  }

  static __m512 to_float(const int32_t* dots) {
    return _mm512_cvtepi32_ps(_mm512_load_si512(dots));
  }

  // sum[row] += a pair; the scales of x are those of the 16 rows for the first block, then the second.
  static void add_pair(const Dots& dots, const Dots& other_dots, const float* x_scales, const float (&scales)[2][16],
                       bool alike, bool alike_weights, __m512 (&sum)[kRows]) {
    const __m512 scale = _mm512_load_ps(scales[0]);
    if (alike) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512 both = _mm512_mul_ps(_mm512_set1_ps(x_scales[r]), scale);
        sum[r] = _mm512_fmadd_ps(to_float(dots[r]), both, sum[r]);
      }
      return;
    }
    const __m512 second_scale = alike_weights ? scale : _mm512_load_ps(scales[1]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512 x_first = _mm512_set1_ps(x_scales[r]);
      const __m512 x_second = _mm512_set1_ps(x_scales[kRows + r]);
      const __m512 first = _mm512_mul_ps(_mm512_mul_ps(to_float(dots[r]), x_first), scale);
      const __m512 second = _mm512_mul_ps(to_float(other_dots[r]), x_second);
      sum[r] = _mm512_add_ps(sum[r], _mm512_fmadd_ps(second, second_scale, first));
    }
  }

  // sums[row] += pairs [first, first + count), for the 16 rows from m on.
  static void add(const Activations& x, int64_t m, int64_t first, int64_t count,
                  const Unpacked& weights, float* sums) {
    // Apart, for the processor takes a store and a load 4 KiB apart for dependent.
    alignas(64) Dots dots[kAhead + 1], other_dots[kAhead + 1];
    const uint8_t* x_alike = x.alike + m / kTileRows * x.pairs + first;
    const float* x_scales = x.tile_scales + (m / kTileRows * x.pairs + first) * 2 * kTileRows;
    const int8_t* values = x.at(m, first);
    const auto alike = [&](int64_t p) { return weights.alike[p] && x_alike[p]; };
    __m512 sum[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_load_ps(sums + 16 * r);
    for (int64_t p = 0; p < count + kAhead; ++p) {
      if (p < count) {
        multiply(values + p * x.pair, x.row, weights.codes[p], alike(p),
                 dots[p % (kAhead + 1)], other_dots[p % (kAhead + 1)]);
      }
      const int64_t done = p - kAhead;
      if (done >= 0) {
        add_pair(dots[done % (kAhead + 1)], other_dots[done % (kAhead + 1)], x_scales + done * 2 * kTileRows, weights.scales[done],
                 alike(done), weights.alike[done], sum);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) _mm512_store_ps(sums + 16 * r, sum[r]);
  }

  template <bool shuffled>
  static void run(const Activations& x, int64_t m_begin, int64_t m_end, const Weight& weight,
                  int64_t n0, const Output& out) {
    // Rows [m_begin, split) in tiles, the rest in vectors.
    int64_t split = m_end;
    const int64_t left = (m_end - m_begin) % kRows;
    if (left <= kFewLeft) split -= left;
    if (m_end - m_begin < tiles_from || any_huge(x, m_begin, m_end)) split = m_begin;
    if (m_begin < split) by_tiles<shuffled>(x, m_begin, split, weight, n0, out);
    if (split == m_end) return;
    for (int64_t n = n0; n < std::min(weight.n, n0 + panels * kColumns); n += kColumns) {
      InVectors<Avx512>::run<shuffled>(x, split, m_end, weight, n, out);
    }
  }

  template <bool shuffled>
  static void by_tiles(const Activations& x, int64_t m_begin, int64_t m_end, const Weight& weight,
                       int64_t n0, const Output& out) {
    const int64_t n = weight.n, count = std::min(panels, (n - n0 + kColumns - 1) / kColumns);
    const int64_t tiles = (m_end - m_begin + kRows - 1) / kRows;
    Panel panel[panels];
    for (int64_t j = 0; j < count; ++j) {
      panel[j] = panel_at<Avx512, shuffled>(weight, n0 + j * kColumns);
    }
    const TileConfig configuration = config();
    _tile_loadconfig(&configuration);
    Unpacked weights[panels];
    alignas(64) float sums[kRowsAtOnce / kRows][panels][kRows * kColumns];
    std::fill_n(sums[0][0], tiles * panels * kRows * kColumns, 0.0f);
    for (int64_t first = 0; first < x.pairs; first += kPairs) {
      const int64_t last = std::min(x.pairs, first + kPairs);
      for (int64_t j = 0; j < count; ++j) {
        unpack<shuffled>(panel[j], first, last, x.blocks, weights[j]);
      }
      for (int64_t t = 0; t < tiles; ++t) {
        for (int64_t j = 0; j < count; ++j) {
          add(x, m_begin + t * kRows, first, last - first, weights[j], sums[t][j]);
        }
      }
    }
    _tile_release();

    for (int64_t m = m_begin; m < m_end; ++m) {
      for (int64_t j = 0; j < count; ++j) {
        const int64_t row = m - m_begin, at = n0 + j * kColumns;
        __m512 sum = _mm512_load_ps(sums[row / kRows][j] + row % kRows * kColumns);
        if (shuffled) sum = _mm512_castsi512_ps(Avx512::tile_order(_mm512_castps_si512(sum)));
        if (out.bias) sum = _mm512_add_ps(sum, Avx512::load_some(out.bias + at, n - at));
        Avx512::store_some(out.data, out.type, m * n + at, sum, n - at);
      }
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
