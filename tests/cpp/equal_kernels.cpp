// Compares every instruction set's kernels with the scalar ones, bit for bit, without torch: for processors
// that are only emulated. Prints what differs and returns 1, or the names of what was compared.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "c_api.h"
#include "kernels.h"

namespace {

using namespace mxfp4;
using Bytes = std::vector<uint8_t>;

std::mt19937 random_bits(0);

Bytes random_bytes(int64_t count, int low, int high) {
  Bytes bytes(count);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(low + random_bits() % (high - low + 1));
  return bytes;
}

const Kernels& use(const std::string& isa) {
  if (!mxfp4_cpu_select(isa.c_str())) std::printf("there is no %s\n", isa.c_str());
  return kernels();
}

// Floats that are equal, with all NaNs alike.
Bytes canonical(std::vector<float> values) {
  for (auto& v : values) {
    if (std::isnan(v)) v = float_of(0x7fc00000);
  }
  Bytes bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes convert(const Kernels& run, const std::vector<float>& x, Float type, ScaleMode mode) {
  const int64_t blocks = static_cast<int64_t>(x.size()) / kBlock;
  Bytes in(x.size() * 4), codes(x.size() / 2), scales(blocks), out(x.size() * 4);
  for (size_t i = 0; i < x.size(); ++i) store(in.data(), type, static_cast<int64_t>(i), x[i]);
  run.quantize(in.data(), type, 1, blocks, mode, codes.data(), scales.data());
  run.dequantize(codes.data(), scales.data(), blocks, type, out.data());
  std::vector<float> values(x.size());
  for (size_t i = 0; i < x.size(); ++i) values[i] = load(out.data(), type, static_cast<int64_t>(i));
  Bytes all = canonical(values);
  all.insert(all.end(), codes.begin(), codes.end());
  all.insert(all.end(), scales.begin(), scales.end());
  return all;
}

struct Product {
  int64_t m, n, blocks;
  bool shuffled;
  Bytes a, a_scales, w, w_scales;
  std::vector<float> bias;
};

Weight weight_of(const Product& p) {
  return {p.w.data(), p.w_scales.data(), p.blocks * 16, p.blocks, p.n, p.blocks, p.shuffled};
}

Bytes multiply(const Kernels& run, const Product& p) {
  const int64_t pairs = (p.blocks + 1) / 2, row = pairs * 2 * kBlock;
  std::vector<int8_t> values(p.m * row);
  std::vector<PairScales> scales(p.m * pairs);
  Bytes huge(p.m);
  for (int64_t m = 0; m < p.m; ++m) {
    huge[m] = run.prepare(&p.a[m * p.blocks * 16], &p.a_scales[m * p.blocks], p.blocks,
                          &values[m * row], 2 * kBlock, &scales[m * pairs]);
  }
  const Activations x{p.m,         p.blocks,      pairs,       values.data(), row, kTileRows * row,
                      2 * kBlock,  scales.data(), huge.data(), nullptr,       nullptr};
  std::vector<float> out(p.m * p.n);
  const Output output{out.data(), Float::f32, p.bias.data()};
  for (int64_t i = 0; i * run.panel < p.n; ++i) run.product(x, 0, p.m, weight_of(p), i, output);
  return canonical(out);
}

Bytes multiply_a16(const Kernels& run, const Product& p) {
  std::vector<float> x(p.m * p.blocks * kBlock), wide_x(x.size());
  run.dequantize(p.a.data(), p.a_scales.data(), p.m * p.blocks, Float::f32, x.data());
  Bytes wide(p.m);
  for (int64_t m = 0; m < p.m; ++m) {
    const int64_t at = m * p.blocks * kBlock;
    wide[m] = run.widen(&x[at], Float::f32, 1, p.blocks, &wide_x[at]);
  }
  std::vector<float> out(p.m * p.n);
  const Output output{out.data(), Float::f32, p.bias.data()};
  const FloatActivations activations{p.m, p.blocks, wide_x.data(), wide.data()};
  for (int64_t i = 0; i * run.panel_a16 < p.n; ++i) {
    run.product_a16(activations, 0, p.m, weight_of(p), i, output);
  }
  return canonical(out);
}

// Calls f(kernels) with the scalar kernels and with those of `isa`.
template <class F>
bool equal(const std::string& isa, const std::string& what, const F& f) {
  const Bytes expected = f(use("scalar"));
  if (f(use(isa)) == expected) return true;
  std::printf("%s differs from scalar: %s\n", isa.c_str(), what.c_str());
  return false;
}

bool conversions_equal(const std::string& isa) {
  bool ok = true;
  for (const Float type : {Float::bf16, Float::f16, Float::f32}) {
    for (const ScaleMode mode : {ScaleMode::even, ScaleMode::floor, ScaleMode::ceil}) {
      // All bfloat16 numbers, and random patterns of float32.
      std::vector<float> x;
      for (uint32_t i = 0; i < 0x10000; ++i) x.push_back(float_of(i << 16));
      for (int i = 0; i < 64 * kBlock; ++i) x.push_back(float_of(random_bits()));
      ok &= equal(isa, "quantize", [&](const Kernels& run) { return convert(run, x, type, mode); });
    }
  }
  return ok;
}

bool products_equal(const std::string& isa) {
  bool ok = true;
  const struct { int low, high; } ranges[] = {{120, 131}, {60, 190}, {0, 255}};
  for (const bool shuffled : {false, true}) {
    for (const int64_t m : {1, 3, 16, 17, 33}) {
      for (const int64_t n : {1, 17, 48}) {
        for (const int64_t blocks : {1, 3, 4, 9}) {
          const auto range = ranges[(m + n + blocks) % 3];
          Product p{m, n, blocks, shuffled, {}, {}, {}, {}, {}};
          int64_t rows = n, code_blocks = blocks, scales = n * blocks;
          if (shuffled) {  // any bytes will do: all kernels read the same ones
            p.n = rows = (n + 15) / 16 * 16;
            code_blocks = (blocks + 1) / 2 * 2;
            scales = 256 * ((blocks + 7) / 8 * 8);
          }
          p.a = random_bytes(m * blocks * 16, 0, 255);
          p.a_scales = random_bytes(m * blocks, range.low, range.high);
          p.w = random_bytes(rows * code_blocks * 16, 0, 255);
          p.w_scales = random_bytes(scales, range.low, range.high);
          std::memset(p.a.data(), 0, 16), p.a_scales[0] = 0;  // a block of zeros in each
          std::memset(p.w.data(), 0, 16), p.w_scales[0] = 0;
          p.bias.assign(rows, 0.5f);
          const std::string what = " M=" + std::to_string(m) + " N=" + std::to_string(n) +
                                   " blocks=" + std::to_string(blocks) +
                                   (shuffled ? " shuffled" : "");
          ok &= equal(isa, "mm" + what, [&](const Kernels& run) { return multiply(run, p); });
          ok &= equal(isa, "mm_a16" + what,
                      [&](const Kernels& run) { return multiply_a16(run, p); });
        }
      }
    }
  }
  return ok;
}

}  // namespace

int main() {
  const std::string isas = mxfp4_cpu_isas();
  bool ok = true;
  for (size_t begin = 0; begin < isas.size();) {
    const size_t end = std::min(isas.size(), isas.find(' ', begin));
    const std::string isa = isas.substr(begin, end - begin);
    // AMX wants activations in tiles, which only torch's side arranges.
    if (isa != "scalar" && isa != "amx_int8") ok &= conversions_equal(isa) & products_equal(isa);
    begin = end + 1;
  }
  std::printf("%s\n", isas.c_str());
  return ok ? 0 : 1;
}
