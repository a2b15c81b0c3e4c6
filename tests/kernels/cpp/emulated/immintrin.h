// AVX-512 and AMX in plain C++, found in place of the compiler's header: levels "avx512" and "amx"
// compile and run on a machine with AVX2. Each function does what Intel's Intrinsics Guide says of
// the intrinsic after which it is named; only what the kernels use is here.
#pragma once

#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

template <class T, class V>
static T lane(const V& v, int i) {
  T value;
  std::memcpy(&value, reinterpret_cast<const char*>(&v) + i * static_cast<int>(sizeof(T)),
              sizeof(T));
  return value;
}

// The 64 bytes of type V whose lane i is f(i).
template <class V, class F>
static V each(F f) {
  using T = decltype(f(0));
  T lanes[sizeof(V) / sizeof(T)];
  for (int i = 0; i < static_cast<int>(sizeof(V) / sizeof(T)); ++i) lanes[i] = f(i);
  V v;
  std::memcpy(&v, lanes, sizeof(v));
  return v;
}

template <class To, class From>
static To cast(const From& from) {
  To to{};
  std::memcpy(&to, &from, sizeof(to) < sizeof(from) ? sizeof(to) : sizeof(from));
  return to;
}

template <class V>
static V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

template <class V>
static V load_aligned(const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(V) != 0) __builtin_trap();
  return load<V>(from);
}

template <class V>
static void store(void* to, V v) {
  std::memcpy(to, &v, sizeof(v));
}

template <class V>
static void store_aligned(void* to, V v) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(V) != 0) __builtin_trap();
  store(to, v);
}

template <class T, class Mask>
static __m512i masked_load(Mask mask, const void* from) {
  return each<__m512i>([&](int i) -> T {
    if ((mask >> i & 1) == 0) return 0;
    return load<T>(static_cast<const T*>(from) + i);
  });
}

template <class T, class V, class F>
static V binary(const V& a, const V& b, F f) {
  return each<V>([&](int i) -> T { return static_cast<T>(f(lane<T>(a, i), lane<T>(b, i))); });
}

template <class T>
static __m512i shift_right(const __m512i& a, int n) {
  return each<__m512i>([&](int i) { return static_cast<T>(lane<T>(a, i) >> n); });
}
template <class T>
static __m512i shift_left(const __m512i& a, int n) {
  return each<__m512i>([&](int i) { return static_cast<T>(lane<T>(a, i) << n); });
}

// Lane i of each 128-bit part: what `pick(part's first lane, lane in the part)` says.
template <class T, class V, class F>
static V in_parts(F pick) {
  constexpr int kPart = 16 / sizeof(T);
  return each<V>([&](int i) -> T { return pick(i / kPart * kPart, i % kPart); });
}

template <class T>
static __m512i unpack(const __m512i& a, const __m512i& b, bool high) {
  constexpr int kHalf = 8 / sizeof(T);
  return in_parts<T, __m512i>([&](int part, int i) {
    return lane<T>(i % 2 == 0 ? a : b, part + (high ? kHalf : 0) + i / 2);
  });
}

template <class Part>
static __m512i broadcast(Part part) {
  return each<__m512i>([&](int i) { return lane<uint32_t>(part, i % (sizeof(part) / 4)); });
}

static inline __m512i dpbusd(const __m512i& sum, const __m512i& a, const __m512i& b) {
  return each<__m512i>([&](int i) -> int32_t {
    int32_t dot = lane<int32_t>(sum, i);
    for (int j = 4 * i; j < 4 * i + 4; ++j) dot += lane<uint8_t>(a, j) * lane<int8_t>(b, j);
    return dot;
  });
}

static inline __m512i ternary(const __m512i& a, const __m512i& b, const __m512i& c, int table) {
  return each<__m512i>([&](int i) {
    uint32_t out = 0;
    for (int bit = 0; bit < 32; ++bit) {
      const auto of = [&](const __m512i& v) { return lane<uint32_t>(v, i) >> bit & 1; };
      out |= (static_cast<uint32_t>(table) >> (of(a) * 4 + of(b) * 2 + of(c)) & 1) << bit;
    }
    return out;
  });
}

static inline __m256i float_to_half(const __m512& v, int) {
  __m128i parts[2] = {_mm256_cvtps_ph(lane<__m256>(v, 0), _MM_FROUND_TO_NEAREST_INT),
                      _mm256_cvtps_ph(lane<__m256>(v, 1), _MM_FROUND_TO_NEAREST_INT)};
  return load<__m256i>(parts);
}
static inline uint32_t unordered(const __m512& a, const __m512& b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool nan = std::isnan(lane<float>(a, i)) || std::isnan(lane<float>(b, i));
    mask |= static_cast<uint32_t>(nan) << i;
  }
  return mask;
}
static inline __m512 blend(uint32_t mask, const __m512& a, const __m512& b) {
  return each<__m512>([&](int i) { return lane<uint32_t>((mask >> i & 1) != 0 ? b : a, i); });
}

static inline __m512 half_to_float(const __m256i& halves) {
  __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                     _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  return load<__m512>(parts);
}

template <class V, class T>
static V set1(T value) {
  return each<V>([&](int) { return value; });
}
static inline __m512i set(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f,
                          int64_t g, int64_t h) {
  const int64_t lanes[8] = {a, b, c, d, e, f, g, h};
  return load<__m512i>(lanes);
}

struct Dwords {
  int32_t of[16];
};
static inline __m512i set_dwords(const Dwords& lanes) { return load<__m512i>(&lanes); }

template <class Half, class V>
static Half half(const V& v, int i) {
  return load<Half>(reinterpret_cast<const char*>(&v) + 32 * i);
}
template <class V, class Half>
static V with_half(V v, const Half& part, int i) {
  std::memcpy(reinterpret_cast<char*>(&v) + 32 * i, &part, 32);
  return v;
}

static inline void mask_store(void* to, uint32_t mask, const __m512i& v) {
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) store(static_cast<char*>(to) + 4 * i, lane<uint32_t>(v, i));
  }
}

template <class T, class V>
static V permute(const __m512i& index, const V& v) {
  constexpr unsigned kLanes = 64 / sizeof(T);
  return each<V>([&](int i) { return lane<T>(v, static_cast<int>(lane<T>(index, i) % kLanes)); });
}
template <class T>
static __m512i permute_two(const __m512i& a, const __m512i& index, const __m512i& b) {
  constexpr unsigned kLanes = 64 / sizeof(T);
  return each<__m512i>([&](int i) {
    const unsigned from = static_cast<unsigned>(lane<T>(index, i) % (2 * kLanes));
    return lane<T>(from < kLanes ? a : b, static_cast<int>(from % kLanes));
  });
}

// Byte i: the 8 bits from bit `from` % 64 of its own 64-bit part on, which wraps around.
static inline __m512i multishift(const __m512i& from, const __m512i& v) {
  return each<__m512i>([&](int i) {
    const int bit = lane<uint8_t>(from, i) % 64;
    const uint64_t part = lane<uint64_t>(v, i / 8);
    return static_cast<uint8_t>(bit == 0 ? part : part >> bit | part << (64 - bit));
  });
}

static inline __m512i shuffle_bytes(const __m512i& table, const __m512i& index) {
  return in_parts<uint8_t, __m512i>([&](int part, int i) -> uint8_t {
    const uint8_t from = lane<uint8_t>(index, part + i);
    return from & 0x80 ? 0 : lane<uint8_t>(table, part + from % 16);
  });
}
static inline __m512 shuffle_floats(const __m512& a, const __m512& b, int order) {
  return in_parts<uint32_t, __m512>([&](int part, int i) {
    return lane<uint32_t>(i < 2 ? a : b, part + (order >> (2 * i) & 3));
  });
}
static inline __m512i shuffle_parts(const __m512i& a, const __m512i& b, int order) {
  return each<__m512i>([&](int i) {
    const int part = i / 4;
    return lane<uint32_t>(part < 2 ? a : b, (order >> (2 * part) & 3) * 4 + i % 4);
  });
}

template <class F>
static uint32_t mask_of_words(const __m512i& a, const __m512i& b, F f) {
  uint32_t mask = 0;
  for (int i = 0; i < 32; ++i) {
    mask |= static_cast<uint32_t>(f(lane<uint16_t>(a, i), lane<uint16_t>(b, i))) << i;
  }
  return mask;
}
static inline uint32_t greater_or_equal(const __m512i& a, const __m512i& b) {
  return mask_of_words(a, b, [](uint16_t x, uint16_t y) { return x >= y; });
}
static inline uint32_t common_bits(const __m512i& a, const __m512i& b) {
  return mask_of_words(a, b, [](uint16_t x, uint16_t y) { return (x & y) != 0; });
}

struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

struct Tiles {
  TileConfig config;
  uint8_t of[8][16][64];
};

static thread_local Tiles tiles{};

static inline void tile_zero(int t) { std::memset(tiles.of[t], 0, sizeof(tiles.of[t])); }
static inline void tile_load(int t, const void* from, int64_t stride) {
  if (tiles.config.palette != 1) __builtin_trap();
  tile_zero(t);
  for (int r = 0; r < tiles.config.rows[t]; ++r) {
    std::memcpy(tiles.of[t][r], static_cast<const char*>(from) + r * stride,
                tiles.config.row_bytes[t]);
  }
}
static inline void tile_store(int t, void* to, int64_t stride) {
  for (int r = 0; r < tiles.config.rows[t]; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, tiles.of[t][r], tiles.config.row_bytes[t]);
  }
}

static inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? 0.0f * x : x; }
static inline float widened(uint16_t half) {
  return flushed(cast<float>(static_cast<uint32_t>(half) << 16));
}

// Operands and results that are subnormal count as zero; even and odd places have a sum each.
static inline void tile_dot_bf16(int c, int a, int b) {
  const TileConfig& config = tiles.config;
  if (config.row_bytes[a] / 4 != config.rows[b] || config.rows[a] != config.rows[c] ||
      config.row_bytes[b] != config.row_bytes[c]) {
    __builtin_trap();
  }
  for (int m = 0; m < config.rows[c]; ++m) {
    for (int n = 0; n < config.row_bytes[c] / 4; ++n) {
      float sums[2] = {};
      for (int k = 0; k < config.rows[b]; ++k) {
        for (int half = 0; half < 2; ++half) {
          const float x = widened(lane<uint16_t>(tiles.of[a][m], 2 * k + half));
          const float y = widened(lane<uint16_t>(tiles.of[b][k], 2 * n + half));
          sums[half] = flushed(std::fma(x, y, sums[half]));
        }
      }
      const float before = flushed(lane<float>(tiles.of[c][m], n));
      const float after = flushed(before + flushed(sums[0] + sums[1]));
      std::memcpy(tiles.of[c][m] + 4 * n, &after, 4);
    }
  }
}

}  // namespace emulated

#undef _mm512_cmpge_epu16_mask
#undef _mm512_cmp_ps_mask
#undef _mm512_cvtps_ph
#undef _mm512_extractf32x8_ps
#undef _mm512_extracti64x4_epi64
#undef _mm512_insertf32x8
#undef _mm512_inserti64x4
#undef _mm512_set_epi64
#undef _mm512_setr_epi32
#undef _mm512_setr_epi64
#undef _mm512_shuffle_i32x4
#undef _mm512_shuffle_ps
#undef _mm512_ternarylogic_epi32
#undef _tile_dpbf16ps
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero

#define _mm512_add_epi32(a, b) \
  emulated::binary<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x + y; })
#define _mm512_add_epi64(a, b) \
  emulated::binary<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x + y; })
#define _mm512_add_ps(a, b) emulated::binary<float>(a, b, [](float x, float y) { return x + y; })
#define _mm512_and_si512(a, b) \
  emulated::binary<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x & y; })
#define _mm512_broadcast_f32x8(a) emulated::cast<__m512>(emulated::broadcast(a))
#define _mm512_broadcast_i32x4(a) emulated::broadcast(a)
#define _mm512_castpd_ps(a) emulated::cast<__m512>(a)
#define _mm512_castps512_ps256(a) emulated::cast<__m256>(a)
#define _mm512_castps_pd(a) emulated::cast<__m512d>(a)
#define _mm512_castps_si512(a) emulated::cast<__m512i>(a)
#define _mm512_castsi256_si512(a) emulated::cast<__m512i>(a)
#define _mm512_castsi512_ps(a) emulated::cast<__m512>(a)
#define _mm512_castsi512_si256(a) emulated::cast<__m256i>(a)
#define _mm512_cmpge_epu16_mask(a, b) emulated::greater_or_equal(a, b)
#define _mm512_cmp_ps_mask(a, b, predicate)                              \
  ([](const __m512& x, const __m512& y) {                                \
    static_assert(predicate == _CMP_UNORD_Q, "the only predicate here"); \
    return emulated::unordered(x, y);                                    \
  }(a, b))
#define _mm512_cvtepi32_epi16(a) \
  emulated::each<__m256i>(       \
      [v = (a)](int i) { return static_cast<uint16_t>(emulated::lane<uint32_t>(v, i)); })
#define _mm512_cvtepi32_ps(a) \
  emulated::each<__m512>(     \
      [v = (a)](int i) { return static_cast<float>(emulated::lane<int32_t>(v, i)); })
#define _mm512_cvtepu8_epi32(a) \
  emulated::each<__m512i>(      \
      [v = (a)](int i) { return static_cast<uint32_t>(emulated::lane<uint8_t>(v, i)); })
#define _mm512_cvtepu8_epi64(a) \
  emulated::each<__m512i>(      \
      [v = (a)](int i) { return static_cast<uint64_t>(emulated::lane<uint8_t>(v, i)); })
#define _mm512_cvtph_ps(a) emulated::half_to_float(a)
#define _mm512_cvtps_ph(a, rounding) emulated::float_to_half(a, rounding)
#define _mm512_dpbusd_epi32(sum, a, b) emulated::dpbusd(sum, a, b)
#define _mm512_extractf32x8_ps(a, i) emulated::half<__m256>(a, i)
#define _mm512_extracti64x4_epi64(a, i) emulated::half<__m256i>(a, i)
#define _mm512_fmadd_ps(a, b, c)                                              \
  emulated::each<__m512>([x = (a), y = (b), z = (c)](int i) {                 \
    return std::fma(emulated::lane<float>(x, i), emulated::lane<float>(y, i), \
                    emulated::lane<float>(z, i));                             \
  })
#define _mm512_insertf32x8(a, b, i) emulated::with_half(a, b, i)
#define _mm512_inserti64x4(a, b, i) emulated::with_half(a, b, i)
#define _mm512_load_ps(p) emulated::load_aligned<__m512>(p)
#define _mm512_load_si512(p) emulated::load_aligned<__m512i>(p)
#define _mm512_loadu_ps(p) emulated::load<__m512>(p)
#define _mm512_loadu_si512(p) emulated::load<__m512i>(p)
#define _mm512_mask_mov_ps(a, mask, b) emulated::blend(mask, a, b)
#define _mm512_mask_storeu_epi32(p, mask, a) emulated::mask_store(p, mask, a)
#define _mm512_maskz_loadu_epi16(mask, p) \
  emulated::masked_load<uint16_t>(static_cast<uint32_t>(mask), p)
#define _mm512_maskz_loadu_epi8(mask, p) \
  emulated::masked_load<uint8_t>(static_cast<uint64_t>(mask), p)
#define _mm512_mul_ps(a, b) emulated::binary<float>(a, b, [](float x, float y) { return x * y; })
#define _mm512_multishift_epi64_epi8(from, a) emulated::multishift(from, a)
#define _mm512_permutex2var_epi16(a, index, b) emulated::permute_two<uint16_t>(a, index, b)
#define _mm512_permutex2var_epi64(a, index, b) emulated::permute_two<uint64_t>(a, index, b)
#define _mm512_permutexvar_epi16(index, a) emulated::permute<uint16_t>(index, a)
#define _mm512_permutexvar_epi8(index, a) emulated::permute<uint8_t>(index, a)
#define _mm512_permutexvar_pd(index, a) emulated::permute<uint64_t>(index, a)
#define _mm512_permutexvar_ps(index, a) emulated::permute<uint32_t>(index, a)
#define _mm512_set1_epi16(x) emulated::set1<__m512i>(static_cast<int16_t>(x))
#define _mm512_set1_epi32(x) emulated::set1<__m512i>(static_cast<int32_t>(x))
#define _mm512_set1_epi64(x) emulated::set1<__m512i>(static_cast<int64_t>(x))
#define _mm512_set1_epi8(x) emulated::set1<__m512i>(static_cast<int8_t>(x))
#define _mm512_set1_ps(x) emulated::set1<__m512>(static_cast<float>(x))
#define _mm512_set_epi64(h, g, f, e, d, c, b, a) emulated::set(a, b, c, d, e, f, g, h)
#define _mm512_setr_epi64(a, b, c, d, e, f, g, h) emulated::set(a, b, c, d, e, f, g, h)
#define _mm512_setr_epi32(...) emulated::set_dwords({__VA_ARGS__})
#define _mm512_setzero_ps() emulated::set1<__m512>(0.0f)
#define _mm512_setzero_si512() emulated::set1<__m512i>(int32_t{0})
#define _mm512_shuffle_epi8(table, index) emulated::shuffle_bytes(table, index)
#define _mm512_shuffle_i32x4(a, b, order) emulated::shuffle_parts(a, b, order)
#define _mm512_shuffle_ps(a, b, order) emulated::shuffle_floats(a, b, order)
#define _mm512_slli_epi64(a, n) emulated::shift_left<uint64_t>(a, n)
#define _mm512_srli_epi16(a, n) emulated::shift_right<uint16_t>(a, n)
#define _mm512_srli_epi32(a, n) emulated::shift_right<uint32_t>(a, n)
#define _mm512_store_ps(p, a) emulated::store_aligned<__m512>(p, a)
#define _mm512_store_si512(p, a) emulated::store_aligned<__m512i>(p, a)
#define _mm512_storeu_si512(p, a) emulated::store<__m512i>(p, a)
#define _mm512_storeu_ps(p, a) emulated::store<__m512>(p, a)
#define _mm512_sub_epi16(a, b) \
  emulated::binary<uint16_t>(a, b, [](uint16_t x, uint16_t y) { return x - y; })
#define _mm512_sub_epi32(a, b) \
  emulated::binary<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x - y; })
#define _mm512_sub_ps(a, b) emulated::binary<float>(a, b, [](float x, float y) { return x - y; })
#define _mm512_ternarylogic_epi32(a, b, c, table) emulated::ternary(a, b, c, table)
#define _mm512_test_epi16_mask(a, b) emulated::common_bits(a, b)
#define _mm512_unpackhi_epi32(a, b) emulated::unpack<uint32_t>(a, b, true)
#define _mm512_unpackhi_epi64(a, b) emulated::unpack<uint64_t>(a, b, true)
#define _mm512_unpacklo_epi32(a, b) emulated::unpack<uint32_t>(a, b, false)
#define _mm512_unpacklo_epi64(a, b) emulated::unpack<uint64_t>(a, b, false)
#define _tile_dpbf16ps(c, a, b) emulated::tile_dot_bf16(c, a, b)
#define _tile_loadconfig(p) (emulated::tiles.config = emulated::load<emulated::TileConfig>(p))
#define _tile_loadd(t, p, stride) emulated::tile_load(t, p, stride)
#define _tile_release() (emulated::tiles = emulated::Tiles{})
#define _tile_stored(t, p, stride) emulated::tile_store(t, p, stride)
#define _tile_zero(t) emulated::tile_zero(t)
