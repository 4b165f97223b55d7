// What each instruction set provides, and the operands of a product.
#pragma once

#include "numbers.h"

namespace mxfp4 {

// One block of an activation row, ready to be multiplied.
struct ActivationBlock {
  // Twice the element values: those at even K, then those at odd K, as the nibbles of a weight's bytes
  // come apart.
  int8_t values[kBlock];
  // -12 * sum(values): takes back the weights' offset.
  int32_t correction;
  // The block's scale over 4, for the two doublings; 0 for a block of zeros, whose scale byte means
  // nothing and may be a subnormal, which is slow.
  float scale;
};

// From this scale byte on, a block's integer sum times the scale can leave float32's range although
// the product with the weight's scale does not.
constexpr uint8_t kHugeScale = 242;

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

constexpr int64_t kPadRows = 15;

struct Kernels {
  const char* name;
  int64_t panel;  // columns of the result that one call of `product` makes

  // Quantise `blocks` blocks of one row; element i is at x + i * stride (in elements).
  void (*quantize)(const void* x, Float type, int64_t stride, int64_t blocks, ScaleMode mode,
                   uint8_t* codes, uint8_t* scales);
  void (*dequantize)(const uint8_t* codes, const uint8_t* scales, int64_t blocks, Float type,
                     void* out);
  // Returns whether a block has a huge scale.
  bool (*prepare)(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                  ActivationBlock* out);
  // Rows [m_begin, m_end) and one panel of columns, from column `panel_index * panel` on.
  // `huge[m]` is what `prepare` returned for row m. Behind the last row of x there are kPadRows more,
  // which may be read.
  void (*product)(const ActivationBlock* x, const uint8_t* huge, int64_t m_begin, int64_t m_end,
                  const Weight& weight, int64_t panel_index, const Output& out);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__) && defined(__GNUC__)
#define MXFP4_X86 1
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAmxKernels;
#endif

// The kernels in use (isa.cpp).
const Kernels& kernels();

}  // namespace mxfp4
