// Quantised activations, ready to be multiplied.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"
#include "rows.h"

namespace mxfp4 {

// Activations [m, k] and their memory.
class Operand {
 public:
  Operand(const Kernels& run, int64_t m, int64_t k)
      : run_(run),
        m_(m),
        blocks_(k / kBlock),
        pairs_((blocks_ + 1) / 2),
        huge_(m),
        in_tiles_(run.tiles_from > 0 && m >= run.tiles_from) {
    const int64_t rows = in_tiles_ ? tiles() * kTileRows : m;
    // In rows, an odd number of 64-byte lines from each to the next spreads a column over the cache's
    // sets.
    pair_ = in_tiles_ ? kTileRows * kPair : kPair;
    row_ = in_tiles_ ? kPair : (pairs_ | 1) * kPair;
    tile_ = in_tiles_ ? kTileRows * pairs_ * kPair : kTileRows * row_;
    memory_.reset(new int8_t[rows * std::max(row_, pairs_ * kPair) + kAlignment]);
    values_ = memory_.get() + kAlignment -
              reinterpret_cast<uintptr_t>(memory_.get()) % kAlignment;
    scales_.reset(new PairScales[rows * pairs_]);
    if (rows > m) std::memset(values_ + m / kTileRows * tile_, 0, tile_);
    std::memset(scales_.get() + m * pairs_, 0, (rows - m) * pairs_ * sizeof(PairScales));
  }

  // Blocks [first, last) of a row; first is even.
  void set(const uint8_t* codes, const uint8_t* scales, int64_t row, int64_t first, int64_t last) {
    int8_t* values =
        values_ + row / kTileRows * tile_ + row % kTileRows * row_ + first / 2 * pair_;
    if (run_.prepare(codes, scales, last - first, values, pair_,
                     &scales_[row * pairs_ + first / 2])) {
      huge_[row].store(1, std::memory_order_relaxed);
    }
  }

  // Quantises rows `from`, `from + 1` and so on of x into all of its own.
  void quantize(const Rows& x, int64_t from, Float type, ScaleMode mode) {
    for_blocks(m_, blocks_, [&](int64_t row, int64_t first, int64_t last) {
      // A few blocks at a time, which stay in the L1 cache.
      constexpr int64_t kAtOnce = 64;
      uint8_t codes[kAtOnce * kBlock / 2], scales[kAtOnce];
      for (; first < last; first += kAtOnce) {
        const int64_t count = std::min(kAtOnce, last - first);
        run_.quantize(x.at(from + row, first * kBlock), type, x.stride(), count, mode, codes,
                      scales);
        set(codes, scales, row, first, first + count);
      }
    });
  }

  // Once all blocks are set.
  Activations get() {
    all_huge_.assign(huge_.begin(), huge_.end());
    if (in_tiles_) arrange_scales();
    return {m_,          blocks_,          pairs_,
            values_,     row_,             tile_, pair_, scales_.get(),
            all_huge_.data(), tile_scales_.get(), alike_.data()};
  }

 private:
  static constexpr int64_t kAlignment = 64, kPair = 2 * kBlock;

  int64_t tiles() const { return (m_ + kTileRows - 1) / kTileRows; }

  void arrange_scales() {
    const float tiny = std::ldexp(1.0f, kTinyExponent), large = std::ldexp(1.0f, kLargeExponent);
    alike_.resize(tiles() * pairs_);
    tile_scales_.reset(new float[tiles() * pairs_ * 2 * kTileRows]);
    parallel_for(0, tiles() * pairs_, kBlocksPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const PairScales* from = &scales_[i / pairs_ * kTileRows * pairs_ + i % pairs_];
        float* to = tile_scales_.get() + i * 2 * kTileRows;
        bool alike = true;
        for (int64_t r = 0; r < kTileRows; ++r) {
          const float* scale = from[r * pairs_].scale;
          to[r] = scale[0], to[kTileRows + r] = scale[1];
          alike &= scale[0] == scale[1] &&
                   (scale[0] == 0.0f || (scale[0] >= tiny && scale[0] <= large));
        }
        alike_[i] = alike;
      }
    });
  }

  const Kernels& run_;
  int64_t m_, blocks_, pairs_;
  std::vector<std::atomic<uint8_t>> huge_;  // several threads may work on a row
  bool in_tiles_;
  int64_t row_, tile_, pair_;
  std::unique_ptr<int8_t[]> memory_;
  int8_t* values_;
  std::unique_ptr<PairScales[]> scales_;
  std::vector<uint8_t> all_huge_, alike_;
  std::unique_ptr<float[]> tile_scales_;
};

}  // namespace mxfp4
