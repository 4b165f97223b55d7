// What each instruction set provides, and the operands of a product.
#pragma once

// What kernels use too: it must not be compiled for an instruction set of theirs.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "numbers.h"

// For what a kernel's innermost loop consists of: out of line, its vectors would go through memory.
#ifdef __GNUC__
#define MXFP4_INLINE_LAMBDA __attribute__((always_inline))
#define MXFP4_INLINE MXFP4_INLINE_LAMBDA inline
#else
#define MXFP4_INLINE_LAMBDA
#define MXFP4_INLINE inline
#endif

namespace mxfp4 {

// Blocks are added up in pairs: sum += (first + second), both additions rounded. Two blocks whose scales
// are near each other can then be multiplied as one, in integers, with the same result to the bit.

// What belongs to a pair of blocks of an activation row besides the values.
struct PairScales {
  // -12 * sum(values) of each block: takes back the weights' offset.
  int32_t correction[2];
  // The blocks' scales over 4, for the two doublings (see `values` below); 0 for a block of zeros, whose
  // scale byte means nothing and may be a subnormal, which is slow.
  float scale[2];
};

constexpr int64_t kTileRows = 16;

// Activations [M, K], ready to be multiplied. If K has an odd number of blocks, the last pair's second
// is zero.
struct Activations {
  int64_t m, blocks;
  int64_t pairs;
  // Twice the elements, as integers: of each block those at even K, then those at odd K, as the nibbles
  // of a weight's bytes come apart; `at` says where a pair's 64 bytes are.
  const int8_t* values;
  // Bytes from row to row, from each 16 rows to the next, and from pair to pair. With tiles of 16 rows,
  // a pair of all of them is one run of 1 KiB: an operand of AMX in a single page of memory.
  int64_t row, tile, pair;
  const PairScales* scales;  // [M, pairs]
  const uint8_t* huge;       // [M]: a block's scale byte is kHugeScale or more
  // From Kernels::tiles_from rows on there are rows of zeros up to a multiple of 16, and for each 16
  // rows and pair: the scales by themselves, [M / 16, pairs, 2, 16]; and [M / 16, pairs] whether in each
  // row both blocks have the same scale, within the limits below.
  const float* tile_scales;
  const uint8_t* alike;

  const int8_t* at(int64_t m, int64_t p = 0) const {
    return values + m / kTileRows * tile + m % kTileRows * row + p * pair;
  }
};

// The most rows that one call of `product` multiplies, and the most bytes of them (but at least
// kTileRows): they are to stay in an L2 cache.
constexpr int64_t kRowsAtOnce = 256, kBytesAtOnce = 5 << 18;

// Two blocks multiplied as one: scales of activations and weights within these keep the sum (below 2^20)
// times both scales among float32's normal numbers.
constexpr int kTinyExponent = -60, kLargeExponent = 48;

// From this scale byte on, a pair's integer sum (below 2^20) times the scale can leave float32's range
// although the product with the weight's scale does not.
constexpr uint8_t kHugeScale = 236;

// Activations [M, K] for `product_a16`: float32, which holds 16-bit ones exactly.
struct FloatActivations {
  int64_t m, blocks;
  const float* values;  // row after row
  // [M]: a sum of the row's products with E2M1 values, before the weight's scale is in, could overflow
  // or lose bits below float32's least number. Such rows are multiplied in double.
  const uint8_t* wide;
};

// Numbers from 2^120 on may overflow in a block's sum: 32 products, with 6 at most.
constexpr float kLargestNarrow = 0x1p120f;
// A smaller number's last bit times 0.5 may lie below 2^-149.
constexpr float kLeastNarrow = 0x1p-125f;

// The most rows of these that one call multiplies: with K = 4096, 1 MiB of them.
constexpr int64_t kFloatRowsAtOnce = 60;

// A weight in memory. Plain: row n's codes for block b are the 16 bytes at codes + n * code_row +
// b * 16, its scale is scales[n * scale_row + b]. Shuffled: as csrc_stubs/product.inl.h reads it.
struct Weight {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t code_row;   // bytes from row to row; plain only
  int64_t scale_row;  // bytes from row to row; plain only
  int64_t n;
  int64_t blocks;  // of 32 elements, in one row
  bool shuffled;
};

struct Output {
  void* data;  // [M, N], contiguous
  Float type;
  const float* bias;  // [N], or null
};

struct Kernels {
  const char* name;
  int64_t panel;      // columns of the result that one call of `product` makes
  int64_t panel_a16;  // and one of `product_a16`

  // Quantise `blocks` blocks of one row; element i is at x + i * stride (in elements).
  void (*quantize)(const void* x, Float type, int64_t stride, int64_t blocks, ScaleMode mode,
                   uint8_t* codes, uint8_t* scales);
  void (*dequantize)(const uint8_t* codes, const uint8_t* scales, int64_t blocks, Float type,
                     void* out);
  // `blocks` blocks of one row, from an even one on; fills up the last pair. There are `step` bytes from
  // pair to pair of values. Returns whether a block has a huge scale.
  bool (*prepare)(const uint8_t* codes, const uint8_t* scales, int64_t blocks, int8_t* values,
                  int64_t step, PairScales* pairs);
  // Rows [m_begin, m_end), kRowsAtOnce at most, and one panel of columns, from column
  // `panel_index * panel` on. m_begin is a multiple of kTileRows.
  void (*product)(const Activations& x, int64_t m_begin, int64_t m_end, const Weight& weight,
                  int64_t panel_index, const Output& out);
  int64_t tiles_from;  // from how many rows on `product` may work in tiles of kTileRows; 0: never

  // Copy `blocks` blocks of one row to float32. Returns whether it makes the row a wide one.
  bool (*widen)(const void* x, Float type, int64_t stride, int64_t blocks, float* out);
  // As `product`, with any m_begin and kFloatRowsAtOnce rows at most.
  void (*product_a16)(const FloatActivations& x, int64_t m_begin, int64_t m_end,
                      const Weight& weight, int64_t panel_index, const Output& out);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__) && defined(__GNUC__)
#define MXFP4_X86 1
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VbmiKernels;
extern const Kernels kAmxKernels;
#endif
// Clang before 16 has the dot product's intrinsics only where all code may use them.
#if defined(__aarch64__) && defined(__GNUC__) && \
    (!defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_DOTPROD))
#define MXFP4_NEON 1
extern const Kernels kNeonKernels;
#endif

// The kernels in use (isa.cpp).
const Kernels& kernels();

}  // namespace mxfp4
