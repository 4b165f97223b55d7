// What the machine can do at most, measured: bytes read from memory and integer multiply-adds, each
// per second and with all threads at once. machine.py compiles this and calls it through ctypes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRepeats = 5;  // a limit is the best of them: other load can only lower it

void pin(int thread) {
#ifdef __linux__
  cpu_set_t allowed, own;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int index = thread % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- != 0) continue;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof own, &own);
    return;
  }
#else
  (void)thread;
#endif
}

// Seconds from the first start to the last end of `work(thread)` in each of `threads` threads.
template <class Work>
double together(int threads, Work work) {
  std::atomic<int> ready{0};
  std::vector<Clock::time_point> start(threads), end(threads);
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      pin(t);
      ++ready;
      while (ready.load() < threads) std::this_thread::yield();
      start[t] = Clock::now();
      work(t);
      end[t] = Clock::now();
    });
  }
  for (auto& thread : pool) thread.join();
  const auto first = *std::min_element(start.begin(), start.end());
  const auto last = *std::max_element(end.begin(), end.end());
  return std::chrono::duration<double>(last - first).count();
}

template <class T>
void keep(T& value) {  // the compiler must assume that it is used and changed
  asm volatile("" : "+m"(value) : : "memory");
}

// --- reading ---

constexpr int64_t kAhead = 4096;  // bytes; more than the processor's own prefetcher looks ahead

void read_plain(const char* data, int64_t bytes) {
  uint64_t sum[8] = {};
  for (int64_t i = 0; i < bytes; i += 64) {
    uint64_t words[8];
    std::memcpy(words, data + i, 64);
    for (int j = 0; j < 8; ++j) sum[j] += words[j];
  }
  keep(sum);
}

#ifdef __x86_64__
template <bool ahead>
__attribute__((target("avx512f"))) void read_avx512(const char* data, int64_t bytes) {
  __m512i sum[8] = {};
  for (int64_t i = 0; i < bytes; i += 512) {
    for (int j = 0; j < 8; ++j) {
      const char* line = data + i + 64 * j;
      if (ahead) _mm_prefetch(line + kAhead, _MM_HINT_T0);
      sum[j] = _mm512_xor_si512(sum[j], _mm512_load_si512(line));
    }
  }
  keep(sum);
}

template <bool ahead>
__attribute__((target("avx2"))) void read_avx2(const char* data, int64_t bytes) {
  __m256i sum[8] = {};
  for (int64_t i = 0; i < bytes; i += 256) {
    for (int j = 0; j < 8; ++j) {
      const char* half = data + i + 32 * j;
      if (ahead && j % 2 == 0) _mm_prefetch(half + kAhead, _MM_HINT_T0);
      sum[j] = _mm256_xor_si256(sum[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(half)));
    }
  }
  keep(sum);
}
#endif

using Read = void (*)(const char*, int64_t);

std::vector<Read> readers() {
  std::vector<Read> found{read_plain};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) found.insert(found.end(), {read_avx2<false>, read_avx2<true>});
  if (__builtin_cpu_supports("avx512f")) {
    found.insert(found.end(), {read_avx512<false>, read_avx512<true>});
  }
#endif
  return found;
}

// --- multiplying ---
// Enough independent sums to hide an instruction's latency; a round adds to each of them once.

#ifdef __x86_64__
constexpr int kSums = 12;

__attribute__((target("avx512f,avx512vnni"))) void multiply_avx512_vnni(int64_t rounds) {
  __m512i sum[kSums] = {}, a = _mm512_set1_epi32(1);
  keep(a);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& s : sum) s = _mm512_dpbusd_epi32(s, a, a);
  }
  keep(sum);
}

__attribute__((target("avx2,avxvnni"))) void multiply_avx_vnni(int64_t rounds) {
  __m256i sum[kSums] = {}, a = _mm256_set1_epi32(1);
  keep(a);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& s : sum) s = _mm256_dpbusd_avx_epi32(s, a, a);
  }
  keep(sum);
}

__attribute__((target("avx2"))) void multiply_avx2(int64_t rounds) {
  __m256i sum[kSums] = {}, a = _mm256_set1_epi32(1);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& s : sum) {
      asm volatile("" : "+x"(a));  // or the product would be computed once, ahead of the loop
      s = _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), ones));
    }
  }
  keep(sum);
}

#ifdef __linux__
constexpr int kTiles = 6;  // sums; two more tiles hold the factors

__attribute__((target("amx-tile,amx-int8"))) void multiply_amx_int8(int64_t rounds) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
  keep(config);  // GCC does not see that all of it is read
  _tile_loadconfig(&config);
  for (int64_t i = 0; i < rounds; ++i) {  // loadconfig has cleared the tiles
    _tile_dpbssd(0, 6, 7);
    _tile_dpbssd(1, 6, 7);
    _tile_dpbssd(2, 6, 7);
    _tile_dpbssd(3, 6, 7);
    _tile_dpbssd(4, 6, 7);
    _tile_dpbssd(5, 6, 7);
  }
  _tile_release();
}
#endif

bool cpuid_bit(unsigned subleaf, char reg, int bit) {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, subleaf, &a, &b, &c, &d)) return false;
  return (reg == 'a' ? a : d) >> bit & 1;
}
#endif

struct Multiplier {
  const char* name;
  void (*run)(int64_t rounds);
  int64_t round;  // multiply-adds
};

// The fastest first.
const std::vector<Multiplier>& multipliers() {
  static const std::vector<Multiplier> list = [] {
    std::vector<Multiplier> found;
#ifdef __x86_64__
#ifdef __linux__
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    if (cpuid_bit(0, 'd', 24) && cpuid_bit(0, 'd', 25) &&
        syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) {
      found.push_back({"amx_int8", multiply_amx_int8, kTiles * 16 * 16 * 64});
    }
#endif
    if (__builtin_cpu_supports("avx512vnni")) {
      found.push_back({"avx512_vnni", multiply_avx512_vnni, kSums * 64});
    } else if (__builtin_cpu_supports("avx2")) {
      if (cpuid_bit(1, 'a', 4)) {
        found.push_back({"avx_vnni", multiply_avx_vnni, kSums * 32});
      } else {
        found.push_back({"avx2", multiply_avx2, kSums * 32});
      }
    }
#endif
    return found;
  }();
  return list;
}

}  // namespace

extern "C" {

// Bytes per second that `threads` threads read, each its part of `bytes`, by the best of several
// loops, at least `least` bytes at a time.
double read_bandwidth(int threads, int64_t bytes, int64_t least) {
  constexpr int64_t kPage = 1 << 21;
  const int64_t part = std::max<int64_t>(bytes / threads / 4096, 1) * 4096;
  const int64_t passes = (least + part * threads - 1) / (part * threads);
  std::vector<std::unique_ptr<char, void (*)(void*)>> data;
  for (int t = 0; t < threads; ++t) {
    const int64_t size = (part + kPage - 1) / kPage * kPage;
    data.emplace_back(static_cast<char*>(std::aligned_alloc(kPage, size)), std::free);
    if (!data.back()) return 0;
#ifdef __linux__
    madvise(data.back().get(), size, MADV_HUGEPAGE);
#endif
  }
  // Each thread writes its part first, which puts it into that processor's memory.
  together(threads, [&](int t) { std::memset(data[t].get(), 1, part); });
  double best = 0;
  for (const Read read : readers()) {
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const double seconds = together(threads, [&](int t) {
        for (int64_t pass = 0; pass < passes; ++pass) read(data[t].get(), part);
      });
      best = std::max(best, double(part) * threads * passes / seconds);
    }
  }
  return best;
}

// Names of the integer multiplies that this processor has, the fastest first.
const char* multiplies() {
  static const std::string names = [] {
    std::string all;
    for (const auto& m : multipliers()) all += (all.empty() ? "" : " ") + std::string(m.name);
    return all;
  }();
  return names.c_str();
}

// Multiply-adds per second in `threads` threads, in runs of about `seconds`.
double multiply_rate(const char* name, int threads, double seconds) {
  for (const auto& m : multipliers()) {
    if (std::strcmp(m.name, name) != 0) continue;
    int64_t rounds = 1000;
    const auto time = [&] { return together(threads, [&](int) { m.run(rounds); }); };
    while (time() < seconds / 2) rounds *= 2;
    double best = time();
    for (int repeat = 1; repeat < kRepeats; ++repeat) best = std::min(best, time());
    return double(m.round) * rounds * threads / best;
  }
  return 0;
}
}
