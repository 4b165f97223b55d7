// x86-64 with AMX: the matrix unit multiplies 16 rows by 16 columns in integers, a pair of blocks of K
// at a time where their scales allow it and else one block; AVX-512 scales and adds. Few rows are left to
// AVX-512 alone.
#include "kernels.h"

#ifdef MXFP4_X86

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
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
#include "product_a16.inl.h"
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
  static constexpr int kRows = kTileRows;
  // AVX-512 alone is faster for fewer rows in all, and for up to kFewLeft left over by tiles, where they
  // do not pay for the weights' unpacking alone.
  static constexpr int64_t tiles_from = 12, kFewLeft = 3;
  // Pairs of blocks of the weight that are unpacked at a time: 16 KiB, so that they, their scales and
  // the sums stay in the L1 cache.
  static constexpr int64_t kPairs = 16;
  // How many pairs the matrix unit is ahead: from its operands to a result in memory takes it longer
  // than AVX-512 needs to add one up.
  static constexpr int64_t kAhead = 2;

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

  struct alignas(64) Unpacked {
    int8_t codes[kPairs][2][8][64];  // of a block: rows of four elements of K for each of 16 columns
    float scales[kPairs][2][16];
    bool alike[kPairs];  // both blocks are on the first one's scale
  };

  // Multiplies the bytes of each lane by 2^shift.
  static __m512i times(__m512i bytes, __m512i shift) {
    const __m512i one = _mm512_set1_epi8(1);
    const __m512i shifted_in = _mm512_sub_epi8(_mm512_sllv_epi32(one, shift), one);
    return _mm512_andnot_si512(shifted_in, _mm512_sllv_epi32(bytes, shift));
  }

  static void store(const Avx512::Weights& weights, int8_t (*out)[64]) {
    for (int j = 0; j < 4; ++j) {
      _mm512_store_si512(out[j], weights.even[j]);
      _mm512_store_si512(out[4 + j], weights.odd[j]);
    }
  }

  // Puts both blocks of a pair on one scale in each column, if one byte holds the values and the
  // products stay among float32's normal numbers; as `to_common_scale` does with activations.
  static bool unpack_alike(const Avx512::Codes (&codes)[2], const __m512i (&bytes)[2],
                           int8_t (*out)[8][64], float* scale) {
    __mmask16 zero[2];
    for (int i = 0; i < 2; ++i) {
      const auto& v = codes[i].v;
      const __m512i any = _mm512_or_si512(_mm512_or_si512(v[0], v[1]), _mm512_or_si512(v[2], v[3]));
      zero[i] = _mm512_testn_epi32_mask(any, _mm512_set1_epi32(0x77777777)) &
                _mm512_cmpneq_epi32_mask(bytes[i], _mm512_set1_epi32(kScaleNan));
    }
    __m512i e[2] = {_mm512_mask_mov_epi32(bytes[0], zero[0], bytes[1]), bytes[1]};
    e[0] = _mm512_mask_mov_epi32(e[0], zero[0] & zero[1], _mm512_set1_epi32(127));
    e[1] = _mm512_mask_mov_epi32(e[1], zero[1], e[0]);
    const __m512i low = _mm512_min_epi32(e[0], e[1]), high = _mm512_max_epi32(e[0], e[1]);
    const __mmask16 fits =
        _mm512_cmple_epi32_mask(_mm512_sub_epi32(high, low), _mm512_set1_epi32(3)) &
        _mm512_cmpge_epi32_mask(low, _mm512_set1_epi32(127 + kTinyExponent)) &
        _mm512_cmplt_epi32_mask(high, _mm512_set1_epi32(kScaleNan));
    if (fits != 0xffff) return false;
    for (int i = 0; i < 2; ++i) {
      const __m512i shift = _mm512_sub_epi32(e[i], low);
      auto weights = Avx512::expand(codes[i], kDoubled);
      for (int j = 0; j < 4; ++j) {
        weights.even[j] = times(weights.even[j], shift);
        weights.odd[j] = times(weights.odd[j], shift);
      }
      store(weights, out[i]);
    }
    _mm512_store_ps(scale, _mm512_castsi512_ps(_mm512_slli_epi32(low, 23)));
    return true;
  }

  // Pairs [first, last).
  template <bool shuffled>
  static void unpack(const Panel& panel, int64_t first, int64_t last, int64_t blocks,
                     Unpacked& out) {
    __m512i four = Avx512::zero();
    for (int64_t p = first; p < last; ++p) {
      Avx512::Codes codes[2] = {};
      __m512i bytes[2];
      for (int64_t b = 2 * p; b < std::min(2 * p + 2, blocks); ++b) {
        prefetch_next<Avx512>(panel, b);
        codes[b % 2] =
            Avx512::load_codes(panel.codes + b * panel.code_block, panel.code_row);
        bytes[b % 2] = scale_bytes<Avx512, shuffled>(panel, b, blocks, four);
      }
      if (2 * p + 1 == blocks) bytes[1] = bytes[0];
      auto& to = out.codes[p - first];
      auto& scales = out.scales[p - first];
      out.alike[p - first] = unpack_alike(codes, bytes, to, scales[0]);
      if (out.alike[p - first]) continue;
      for (int i = 0; i < 2; ++i) {
        store(Avx512::expand(codes[i], kDoubled), to[i]);
        _mm512_store_ps(scales[i], scale_values<Avx512>(bytes[i], codes[i]));
      }
    }
  }

  // What the matrix unit makes of a pair: one sum, or one for each block.
  using Dots = int32_t[2][kRows][16];

  static void multiply(const int8_t* x, int64_t row, const int8_t (*w)[8][64], bool alike,
                       Dots& dots) {
    if (alike) {
      _tile_zero(MXFP4_TILE_SUM);
      _tile_loadd(MXFP4_TILE_X, x, row);
      _tile_loadd(MXFP4_TILE_W, w, 64);
      _tile_dpbssd(MXFP4_TILE_SUM, MXFP4_TILE_X, MXFP4_TILE_W);
      _tile_stored(MXFP4_TILE_SUM, dots[0], 64);
      return;
    }
    _tile_zero(MXFP4_TILE_SUM);
    _tile_loadd(MXFP4_TILE_X_1, x, row);
    _tile_loadd(MXFP4_TILE_W_1, w[0], 64);
    _tile_dpbssd(MXFP4_TILE_SUM, MXFP4_TILE_X_1, MXFP4_TILE_W_1);
    _tile_stored(MXFP4_TILE_SUM, dots[0], 64);
    _tile_zero(MXFP4_TILE_OTHER_SUM);
    _tile_loadd(MXFP4_TILE_X_2, x + kBlock, row);
    _tile_loadd(MXFP4_TILE_W_2, w[1], 64);
    _tile_dpbssd(MXFP4_TILE_OTHER_SUM, MXFP4_TILE_X_2, MXFP4_TILE_W_2);
    _tile_stored(MXFP4_TILE_OTHER_SUM, dots[1], 64);
  }

  static __m512 scaled(const int32_t* dots, float x_scale) {
    const __m512i sums = _mm512_load_si512(dots);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(x_scale));
  }

  // sum[row] += a pair; `pairs` are the scales of the first row.
  static void add_pair(const Dots& dots, const PairScales* pairs, int64_t row,
                       const float (&scales)[2][16], bool alike, bool alike_weights,
                       __m512 (&sum)[kRows]) {
    const __m512 scale = _mm512_load_ps(scales[0]);
    if (alike) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512 left = scaled(dots[0][r], pairs[r * row].scale[0]);
        sum[r] = _mm512_add_ps(sum[r], _mm512_mul_ps(left, scale));
      }
      return;
    }
    const __m512 second_scale = alike_weights ? scale : _mm512_load_ps(scales[1]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto& of = pairs[r * row].scale;
      const __m512 first = _mm512_mul_ps(scaled(dots[0][r], of[0]), scale);
      const __m512 both = _mm512_fmadd_ps(scaled(dots[1][r], of[1]), second_scale, first);
      sum[r] = _mm512_add_ps(sum[r], both);
    }
  }

  // sums[row] += pairs [first, first + count), for the 16 rows from m on.
  static void add(const Activations& x, int64_t m, int64_t first, int64_t count,
                  const Unpacked& weights, float* sums) {
    alignas(64) Dots dots[kAhead + 1];
    const uint8_t* x_alike = x.alike + m / kTileRows * x.pairs + first;
    const PairScales* scales = x.scales + m * x.pairs + first;
    const int8_t* values = x.values + m * x.row + first * 2 * kBlock;
    const auto alike = [&](int64_t p) { return weights.alike[p] && x_alike[p]; };
    __m512 sum[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_load_ps(sums + 16 * r);
    for (int64_t p = 0; p < count + kAhead; ++p) {
      if (p < count) {
        multiply(values + p * 2 * kBlock, x.row, weights.codes[p], alike(p),
                 dots[p % (kAhead + 1)]);
      }
      const int64_t done = p - kAhead;
      if (done >= 0) {
        add_pair(dots[done % (kAhead + 1)], scales + done, x.pairs, weights.scales[done],
                 alike(done), weights.alike[done], sum);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) _mm512_store_ps(sums + 16 * r, sum[r]);
  }

  template <bool shuffled>
  static void run(const Activations& x, int64_t m_begin, int64_t m_end, const Weight& weight,
                  const Panel& panel, int64_t n0, const Output& out) {
    // Rows [m_begin, split) in tiles, the rest in vectors.
    int64_t split = m_end;
    const int64_t left = (m_end - m_begin) % kRows;
    if (left <= kFewLeft) split -= left;
    if (m_end - m_begin < tiles_from || any_huge(x, m_begin, m_end)) split = m_begin;
    if (m_begin < split) by_tiles<shuffled>(x, m_begin, split, weight, panel, n0, out);
    if (split < m_end) InVectors<Avx512>::run<shuffled>(x, split, m_end, weight, panel, n0, out);
  }

  template <bool shuffled>
  static void by_tiles(const Activations& x, int64_t m_begin, int64_t m_end, const Weight& weight,
                       const Panel& panel, int64_t n0, const Output& out) {
    const TileConfig configuration = config();
    _tile_loadconfig(&configuration);
    Unpacked weights;
    alignas(64) float sums[kRowsAtOnce * 16];
    const int64_t tiles = (m_end - m_begin + kRows - 1) / kRows;
    std::fill_n(sums, tiles * kRows * 16, 0.0f);
    for (int64_t first = 0; first < x.pairs; first += kPairs) {
      const int64_t last = std::min(x.pairs, first + kPairs);
      unpack<shuffled>(panel, first, last, x.blocks, weights);
      for (int64_t t = 0; t < tiles; ++t) {
        add(x, m_begin + t * kRows, first, last - first, weights, sums + t * kRows * 16);
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
