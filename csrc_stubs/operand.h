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
        in_tiles_(run.tiles_from > 0 && m >= run.tiles_from),
        // An odd number of 64-byte lines from row to row spreads a column over the cache's sets.
        row_((pairs_ | 1) * 2 * kBlock) {
    const int64_t pad = in_tiles_ ? tiles() * kTileRows - m : 0;
    memory_.reset(new int8_t[(m + pad) * row_ + kAlignment]);
    values_ = memory_.get() + kAlignment -
              reinterpret_cast<uintptr_t>(memory_.get()) % kAlignment;
    scales_.reset(new PairScales[(m + pad) * pairs_]);
    std::memset(values_ + m * row_, 0, pad * row_);
    std::memset(scales_.get() + m * pairs_, 0, pad * pairs_ * sizeof(PairScales));
  }

  // Blocks [first, last) of a row; first is even.
  void set(const uint8_t* codes, const uint8_t* scales, int64_t row, int64_t first, int64_t last) {
    if (run_.prepare(codes, scales, last - first, values_ + row * row_ + first * kBlock,
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
    if (in_tiles_) find_alike();
    return {m_, blocks_, pairs_, values_, row_, scales_.get(), all_huge_.data(), alike_.data()};
  }

 private:
  static constexpr int64_t kAlignment = 64;

  int64_t tiles() const { return (m_ + kTileRows - 1) / kTileRows; }

  void find_alike() {
    const float tiny = std::ldexp(1.0f, kTinyExponent);
    alike_.assign(tiles() * pairs_, 1);
    parallel_for(0, tiles(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin * kTileRows; m < std::min(m_, end * kTileRows); ++m) {
        for (int64_t p = 0; p < pairs_; ++p) {
          const float* scale = scales_[m * pairs_ + p].scale;
          const bool alike = scale[0] == scale[1] && (scale[0] == 0.0f || scale[0] >= tiny);
          alike_[m / kTileRows * pairs_ + p] &= alike;
        }
      }
    });
  }

  const Kernels& run_;
  int64_t m_, blocks_, pairs_;
  std::vector<std::atomic<uint8_t>> huge_;  // several threads may work on a row
  bool in_tiles_;
  int64_t row_;
  std::unique_ptr<int8_t[]> memory_;
  int8_t* values_;
  std::unique_ptr<PairScales[]> scales_;
  std::vector<uint8_t> all_huge_, alike_;
};

}  // namespace mxfp4
