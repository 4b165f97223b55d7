// Any processor: eight lanes written out as loops, which the compiler may turn into whatever vectors
// its target always has (SSE2, NEON).
#include <cmath>

#include "kernels.h"

namespace mxfp4 {
namespace {

struct Scalar {
  static constexpr int width = 8;
  static constexpr int tile_rows = 4;
  static constexpr int float_rows = 2;

  template <class T>
  struct Lanes {
    T lane[width];
  };
  using Int = Lanes<int32_t>;
  using Float = Lanes<float>;
  struct Codes {
    uint8_t row[width][kBlock / 2];
  };

  template <class R, class F>
  static R each(F f) {
    R result;
    for (int i = 0; i < width; ++i) result.lane[i] = f(i);
    return result;
  }

  static Int set(uint32_t v) {
    return each<Int>([&](int) { return static_cast<int32_t>(v); });
  }
  static Int zero() { return set(0); }
  static Float set_float(float v) {
    return each<Float>([&](int) { return v; });
  }
  static Int bits(Float a) {
    return each<Int>([&](int i) { return static_cast<int32_t>(bits_of(a.lane[i])); });
  }
  static Float as_float(Int a) {
    return each<Float>([&](int i) { return float_of(static_cast<uint32_t>(a.lane[i])); });
  }
  static Float to_float(Int a) {
    return each<Float>([&](int i) { return static_cast<float>(a.lane[i]); });
  }
  static Int and_(Int a, Int b) {
    return each<Int>([&](int i) { return a.lane[i] & b.lane[i]; });
  }
  static Int or_(Int a, Int b) {
    return each<Int>([&](int i) { return a.lane[i] | b.lane[i]; });
  }
  static Int add(Int a, Int b) {
    return each<Int>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Int sub(Int a, Int b) {
    return each<Int>([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Int min(Int a, Int b) {
    return each<Int>([&](int i) { return std::min(a.lane[i], b.lane[i]); });
  }
  static Int max(Int a, Int b) {
    return each<Int>([&](int i) { return std::max(a.lane[i], b.lane[i]); });
  }
  static uint32_t largest(Int a) {
    return static_cast<uint32_t>(*std::max_element(a.lane, a.lane + width));
  }
  static Int shift_right_by(Int a, int n) {
    return each<Int>([&](int i) { return static_cast<int32_t>(uint32_t(a.lane[i]) >> n); });
  }
  template <int n>
  static Int shift_right(Int a) {
    return shift_right_by(a, n);
  }
  template <int n>
  static Int shift_left(Int a) {
    return each<Int>([&](int i) { return static_cast<int32_t>(uint32_t(a.lane[i]) << n); });
  }
  static Int select_less(Int a, Int b, Int yes, Int no) {
    return each<Int>([&](int i) { return a.lane[i] < b.lane[i] ? yes.lane[i] : no.lane[i]; });
  }
  static Float mul(Float a, Float b) {
    return each<Float>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Float add_float(Float a, Float b) {
    return each<Float>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Float fma(Float a, Float b, Float c) {
    return each<Float>([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }

  template <mxfp4::Float type>
  static Float load(const void* data, int64_t at) {
    return each<Float>([&](int i) { return mxfp4::load(data, type, at + i); });
  }
  template <mxfp4::Float type>
  static void store(void* data, int64_t at, Float v) {
    for (int i = 0; i < width; ++i) mxfp4::store(data, type, at + i, v.lane[i]);
  }
  static Float load_some(const float* data, int64_t count) {
    return each<Float>([&](int i) { return i < count ? data[i] : 0.0f; });
  }
  static void store_some(void* data, mxfp4::Float type, int64_t at, Float v, int64_t count) {
    for (int i = 0; i < width && i < count; ++i) mxfp4::store(data, type, at + i, v.lane[i]);
  }

  static bool quantize_eight_bf16(const void*, ScaleMode, uint8_t*, uint8_t*) { return false; }
  static void pack_codes(const Int* code, uint8_t* out) {
    for (int i = 0; i < kBlock; i += 2) {
      const int low = code[i / width].lane[i % width];
      out[i / 2] = static_cast<uint8_t>(low | code[i / width].lane[i % width + 1] << 4);
    }
  }
  static Float values(Int codes) {
    return each<Float>([&](int i) {
      const int code = codes.lane[i] & 15;
      const float magnitude = 0.5f * static_cast<float>(kDoubled[code & 7]);
      return code & 8 ? -magnitude : magnitude;
    });
  }
  static Float code_values(const uint8_t* codes) {
    return values(each<Int>([&](int i) { return codes[i / 2] >> (i % 2 * 4); }));
  }
  static bool expand_activation(const uint8_t* codes, int8_t* out, int32_t& correction) {
    uint8_t any = 0;
    for (int i = 0; i < kBlock / 2; ++i) {
      any |= codes[i];
      out[i] = kDoubled[codes[i] & 15];
      out[kBlock / 2 + i] = kDoubled[codes[i] >> 4];
    }
    correction = 0;  // weights have no offset here
    return (any & 0x77) == 0;
  }

  static Int load_int(const uint8_t* data) {
    Int result;
    std::memcpy(&result, data, sizeof result);
    return result;
  }
  static Int gather(const uint8_t* data, int64_t row) { return gather_few(data, row, 4); }
  static Int gather_few(const uint8_t* data, int64_t row, int64_t count) {
    return each<Int>([&](int i) {
      uint32_t bytes = 0;
      for (int64_t j = 0; j < count; ++j) bytes |= uint32_t{data[i * row + j]} << (8 * j);
      return static_cast<int32_t>(bytes);
    });
  }
  static bool any_byte_special(Int bytes) {
    return std::any_of(bytes.lane, bytes.lane + width, [](int32_t four) {
      const auto v = static_cast<uint32_t>(four);
      return special(v & 255) || special(v >> 8 & 255) || special(v >> 16 & 255) ||
             special(v >> 24);
    });
  }
  static bool special(uint32_t byte) { return byte == 0 || byte == kScaleNan; }
  static Int equal_either(Int a, int b, int c) {
    return each<Int>([&](int i) { return -(a.lane[i] == b || a.lane[i] == c); });
  }
  static Int where_zero_codes(const Codes& codes, Int mask, Int otherwise) {
    return each<Int>([&](int i) {
      uint8_t any_bit = 0;
      for (uint8_t byte : codes.row[i]) any_bit |= byte & 0x77;
      return mask.lane[i] && !any_bit ? 0 : otherwise.lane[i];
    });
  }

  static Codes load_codes(const uint8_t* data, int64_t row) {
    Codes codes;
    for (int i = 0; i < width; ++i) std::memcpy(codes.row[i], data + i * row, kBlock / 2);
    return codes;
  }
  static Codes load_tile(const uint8_t* data) { return load_codes(data, kBlock / 2); }
  static Int tile_order(Int a) { return a; }
  static Int word(const Codes& codes, int j) { return gather_few(codes.row[0] + 4 * j, kBlock / 2, 4); }
  struct Weights {
    int8_t row[width][kBlock];
  };
  static Weights expand(const Codes& codes) {
    Weights weights;
    for (int i = 0; i < width; ++i) {
      for (int j = 0; j < kBlock / 2; ++j) {
        weights.row[i][j] = kDoubled[codes.row[i][j] & 15];
        weights.row[i][kBlock / 2 + j] = kDoubled[codes.row[i][j] >> 4];
      }
    }
    return weights;
  }
  static Int dot(const Weights& weights, const int8_t* x, int32_t) {
    return each<Int>([&](int i) {
      int32_t sum = 0;
      for (int j = 0; j < kBlock; ++j) sum += int32_t{weights.row[i][j]} * x[j];
      return sum;
    });
  }
};

#include "make_kernels.inl.h"

}  // namespace

const Kernels kScalarKernels = make_kernels<Scalar>("scalar");

}  // namespace mxfp4
