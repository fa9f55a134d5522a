// The part of AVX-512 that `csrc/amx` uses, in plain C++, so that its tests run on CPUs of other kinds: this folder comes
// before the compiler's own headers there. Lanes are in memory's order; names are Intel's.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#define ONEPASS_LANES(name, type, bytes) typedef type name __attribute__((vector_size(bytes), aligned(bytes), may_alias))
ONEPASS_LANES(__m512, float, 64);
ONEPASS_LANES(__m512i, int64_t, 64);
ONEPASS_LANES(__m256, float, 32);
ONEPASS_LANES(__m256i, int64_t, 32);
ONEPASS_LANES(__m128i, int64_t, 16);
#undef ONEPASS_LANES
typedef __m512i __m512bh;
using __mmask16 = uint16_t;

enum { _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_TO_NEG_INF = 1, _MM_FROUND_NO_EXC = 8, _MM_HINT_T0 = 3, _MM_HINT_T1 = 2 };

namespace portable {

template <typename To, typename From>
inline To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
template <typename To>
inline To read(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof(To));
  return to;
}
template <typename Lane, typename Vector>
struct Lanes {
  static constexpr int count = sizeof(Vector) / sizeof(Lane);
  Lane lane[count];
  explicit Lanes(const Vector& from) { std::memcpy(lane, &from, sizeof(Vector)); }
  Lanes() = default;
  Vector vector() const { return read<Vector>(lane); }
};
template <typename Body>
inline __m512 floats(Body body) {
  Lanes<float, __m512> to;
  for (int i = 0; i < 16; ++i) to.lane[i] = body(i);
  return to.vector();
}
template <typename Body>
inline __m512i ints(Body body) {
  Lanes<int32_t, __m512i> to;
  for (int i = 0; i < 16; ++i) to.lane[i] = static_cast<int32_t>(body(i));
  return to.vector();
}
template <typename Narrow, typename Wide>
__m512i packed(__m512i a, __m512i b) {  // in every 16 bytes those of a, then those of b, at most as large as fits
  const Lanes<Wide, __m512i> low(a), high(b);
  Lanes<Narrow, __m512i> to;
  constexpr int each = 16 / sizeof(Narrow), half = each / 2;
  for (int i = 0; i < 4 * each; ++i) {
    const Wide number = (i % each < half ? low : high).lane[i / each * half + i % half];
    to.lane[i] = static_cast<Narrow>(
        std::clamp<Wide>(number, std::numeric_limits<Narrow>::min(), std::numeric_limits<Narrow>::max()));
  }
  return to.vector();
}
template <typename Body>
inline __mmask16 mask(Body body) {
  __mmask16 to = 0;
  for (int i = 0; i < 16; ++i) to |= static_cast<__mmask16>(body(i) ? 1 << i : 0);
  return to;
}
inline Lanes<float, __m512> in(__m512 from) { return Lanes<float, __m512>(from); }
inline Lanes<int32_t, __m512i> in(__m512i from) { return Lanes<int32_t, __m512i>(from); }
inline float rounded(float x, int mode) { return mode & _MM_FROUND_TO_NEG_INF ? std::floor(x) : std::nearbyint(x); }

// Words of `each` 32-bit numbers of two vectors by turns, from the lower or the upper half of every 128 bits.
inline __m512i unpack(__m512i a, __m512i b, int each, bool high) {
  const auto x = in(a), y = in(b);
  return ints([&](int i) {
    const int block = i / 4 * 4, within = i % 4, word = within / each, part = within % each;
    const int from = block + (high ? 2 : 0) + word / 2 * each + part;
    return word % 2 ? y.lane[from] : x.lane[from];
  });
}

}  // namespace portable

inline __m256i _mm256_set_m128i(__m128i high, __m128i low) {
  const __m128i both[2] = {low, high};
  return portable::read<__m256i>(both);
}
inline __m256i _mm256_maskz_set1_epi8(uint32_t mask, char number) {
  portable::Lanes<char, __m256i> to;
  for (int i = 0; i < 32; ++i) to.lane[i] = mask >> i & 1 ? number : 0;
  return to.vector();
}
enum { _CMP_EQ_OQ = 0 };
inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int) {  // the one comparison that is asked for
  const auto x = portable::in(a), y = portable::in(b);
  return portable::mask([&](int i) { return x.lane[i] == y.lane[i]; });
}
inline __m512i _mm512_cvtepu8_epi16(__m256i from) {
  const portable::Lanes<uint8_t, __m256i> number(from);
  portable::Lanes<uint16_t, __m512i> to;
  for (int i = 0; i < 32; ++i) to.lane[i] = number.lane[i];
  return to.vector();
}
inline __m512i _mm512_permutexvar_epi16(__m512i indices, __m512i from) {
  const portable::Lanes<uint16_t, __m512i> index(indices), number(from);
  portable::Lanes<uint16_t, __m512i> to;
  for (int i = 0; i < 32; ++i) to.lane[i] = number.lane[index.lane[i] % 32];
  return to.vector();
}
inline __m512i _mm512_permutexvar_epi32(__m512i indices, __m512i from) {
  const auto index = portable::in(indices), number = portable::in(from);
  return portable::ints([&](int i) { return number.lane[index.lane[i] % 16]; });
}
template <typename... Numbers>
__m512i _mm512_setr_epi32(Numbers... numbers) {
  const int32_t lanes[] = {numbers...};
  static_assert(sizeof(lanes) == 64);
  return portable::ints([&](int i) { return lanes[i]; });
}
inline __m512 _mm512_loadu_ps(const void* from) { return portable::read<__m512>(from); }
inline __m512 _mm512_load_ps(const void* from) { return portable::read<__m512>(from); }
inline __m512i _mm512_loadu_si512(const void* from) { return portable::read<__m512i>(from); }
inline __m512i _mm512_load_si512(const void* from) { return portable::read<__m512i>(from); }
inline __m256i _mm256_loadu_si256(const __m256i* from) { return portable::read<__m256i>(from); }
inline __m128i _mm_loadu_si128(const __m128i* from) { return portable::read<__m128i>(from); }
inline void _mm512_storeu_ps(void* to, __m512 a) { std::memcpy(to, &a, 64); }
inline void _mm512_store_ps(void* to, __m512 a) { std::memcpy(to, &a, 64); }
inline void _mm512_storeu_si512(void* to, __m512i a) { std::memcpy(to, &a, 64); }
inline void _mm512_store_si512(void* to, __m512i a) { std::memcpy(to, &a, 64); }
inline void _mm256_storeu_si256(__m256i* to, __m256i a) { std::memcpy(to, &a, 32); }
inline void _mm_storeu_si128(__m128i* to, __m128i a) { std::memcpy(to, &a, 16); }
inline void _mm_prefetch(const void*, int) {}

inline __m512 _mm512_set1_ps(float x) { return portable::floats([=](int) { return x; }); }
inline __m512i _mm512_set1_epi32(int x) { return portable::ints([=](int) { return x; }); }
inline __m512 _mm512_setzero_ps() { return _mm512_set1_ps(0); }
inline __m512i _mm512_setzero_si512() { return _mm512_set1_epi32(0); }
inline __m512i _mm512_castps_si512(__m512 a) { return portable::bits<__m512i>(a); }
inline __m512 _mm512_castsi512_ps(__m512i a) { return portable::bits<__m512>(a); }
inline __m256i _mm512_castsi512_si256(__m512i a) { return portable::read<__m256i>(&a); }
inline __m512i _mm512_castsi256_si512(__m256i a) {
  __m512i to = _mm512_setzero_si512();
  std::memcpy(&to, &a, 32);
  return to;
}
inline __m256i _mm512_extracti64x4_epi64(__m512i a, int half) {
  return portable::read<__m256i>(reinterpret_cast<const char*>(&a) + 32 * half);
}
inline __m512i _mm512_inserti64x4(__m512i a, __m256i b, int half) {
  std::memcpy(reinterpret_cast<char*>(&a) + 32 * half, &b, 32);
  return a;
}

inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
inline __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
inline __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  const auto x = portable::in(a), y = portable::in(b), z = portable::in(c);
  return portable::floats([&](int i) { return std::fma(x.lane[i], y.lane[i], z.lane[i]); });
}
inline __m512 _mm512_fmsub_ps(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, -c); }
// Of numbers of which one is none, the second.
inline __m512 _mm512_max_ps(__m512 a, __m512 b) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::floats([&](int i) { return x.lane[i] > y.lane[i] ? x.lane[i] : y.lane[i]; });
}
inline __m512 _mm512_range_ps(__m512 a, __m512 b, int) {  // the one that is asked for, 0b1011: of magnitudes the larger
  const auto x = portable::in(a), y = portable::in(b);
  return portable::floats([&](int i) { return std::fmax(std::abs(x.lane[i]), std::abs(y.lane[i])); });
}
inline __m512 _mm512_min_ps(__m512 a, __m512 b) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::floats([&](int i) { return x.lane[i] < y.lane[i] ? x.lane[i] : y.lane[i]; });
}
inline __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 a) {
  const auto x = portable::in(a);
  return portable::floats([&](int i) { return mask >> i & 1 ? x.lane[i] : 0.0f; });
}
inline __m512 _mm512_mask_mov_ps(__m512 other, __mmask16 mask, __m512 a) {
  const auto x = portable::in(a), y = portable::in(other);
  return portable::floats([&](int i) { return mask >> i & 1 ? x.lane[i] : y.lane[i]; });
}
inline __m512 _mm512_mask_max_ps(__m512 other, __mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(other, mask, _mm512_max_ps(a, b));
}
inline float _mm512_reduce_add_ps(__m512 a) {
  const auto x = portable::in(a);
  float sum = 0;
  for (float number : x.lane) sum += number;
  return sum;
}
inline float _mm512_reduce_max_ps(__m512 a) {
  const auto x = portable::in(a);
  return *std::max_element(x.lane, x.lane + 16);
}
inline __m512 _mm512_roundscale_ps(__m512 a, int mode) {
  const auto x = portable::in(a);
  return portable::floats([&](int i) { return portable::rounded(x.lane[i], mode); });
}
inline __m512 _mm512_reduce_ps(__m512 a, int mode) {
  const auto x = portable::in(a);
  return portable::floats(
      [&](int i) { return std::isinf(x.lane[i]) ? 0.0f : x.lane[i] - portable::rounded(x.lane[i], mode); });
}
inline __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::floats([&](int i) {
    if (std::isnan(y.lane[i])) return y.lane[i];
    return static_cast<float>(std::ldexp(x.lane[i], static_cast<int>(std::clamp(std::floor(y.lane[i]), -9999.0f, 9999.0f))));
  });
}
// Right to 2^-14, as the instruction is, and no better.
inline __m512 _mm512_rcp14_ps(__m512 a) {
  const auto x = portable::in(a);
  return portable::floats([&](int i) { return (1.0f / x.lane[i]) * (1.0f + (i % 2 ? 6e-5f : -6e-5f)); });
}

inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
inline __m512 _mm512_and_ps(__m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_castps_si512(a) & _mm512_castps_si512(b));
}
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::ints([&](int i) { return static_cast<uint32_t>(x.lane[i]) + static_cast<uint32_t>(y.lane[i]); });
}
inline __m512i _mm512_slli_epi32(__m512i a, int by) {
  const auto x = portable::in(a);
  return portable::ints([&](int i) { return static_cast<uint32_t>(x.lane[i]) << by; });
}
inline __m512i _mm512_srli_epi32(__m512i a, int by) {
  const auto x = portable::in(a);
  return portable::ints([&](int i) { return static_cast<uint32_t>(x.lane[i]) >> by; });
}
inline __m512i _mm512_max_epi32(__m512i a, __m512i b) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::ints([&](int i) { return std::max(x.lane[i], y.lane[i]); });
}
inline int _mm512_reduce_max_epi32(__m512i a) {
  const auto x = portable::in(a);
  return *std::max_element(x.lane, x.lane + 16);
}
inline __mmask16 _mm512_cmpeq_epi32_mask(__m512i a, __m512i b) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::mask([&](int i) { return x.lane[i] == y.lane[i]; });
}
inline __mmask16 _mm512_cmpneq_epi32_mask(__m512i a, __m512i b) {
  return static_cast<__mmask16>(~_mm512_cmpeq_epi32_mask(a, b));
}
inline __mmask16 _mm512_cmple_epi32_mask(__m512i a, __m512i b) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::mask([&](int i) { return x.lane[i] <= y.lane[i]; });
}

inline __m512 _mm512_cvtepi32_ps(__m512i a) {
  const auto x = portable::in(a);
  return portable::floats([&](int i) { return static_cast<float>(x.lane[i]); });
}
inline __m512i _mm512_set1_epi16(int16_t x) {
  portable::Lanes<int16_t, __m512i> to;
  std::fill_n(to.lane, 32, x);
  return to.vector();
}
inline __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int) {  // the one that is asked for, 0xea
  return (a & b) | c;
}
inline __m512i _mm512_packs_epi32(__m512i a, __m512i b) { return portable::packed<int16_t, int32_t>(a, b); }
inline __m512i _mm512_packus_epi32(__m512i a, __m512i b) { return portable::packed<uint16_t, int32_t>(a, b); }
inline __m512i _mm512_packs_epi16(__m512i a, __m512i b) { return portable::packed<int8_t, int16_t>(a, b); }
// What does not fit is the lowest number.
inline __m512i _mm512_cvtps_epi32(__m512 a) {
  const auto x = portable::in(a);
  return portable::ints([&](int i) {
    const float whole = std::nearbyint(x.lane[i]);
    return std::abs(whole) < 2147483648.0f ? static_cast<int32_t>(whole) : INT32_MIN;
  });
}
inline __m512i _mm512_maskz_cvtps_epi32(__mmask16 mask, __m512 a) {
  const auto all = portable::in(_mm512_cvtps_epi32(a));
  return portable::ints([&](int i) { return mask >> i & 1 ? all.lane[i] : 0; });
}
inline __m512i _mm512_cvtepi8_epi32(__m128i a) {
  const portable::Lanes<int8_t, __m128i> x(a);
  return portable::ints([&](int i) { return x.lane[i]; });
}
inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
  const portable::Lanes<uint16_t, __m256i> x(a);
  return portable::ints([&](int i) { return x.lane[i]; });
}
inline __m256i _mm512_cvtepi32_epi16(__m512i a) {
  const auto x = portable::in(a);
  portable::Lanes<int16_t, __m256i> to;
  for (int i = 0; i < 16; ++i) to.lane[i] = static_cast<int16_t>(x.lane[i]);
  return to.vector();
}

inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) { return portable::unpack(a, b, 1, false); }
inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) { return portable::unpack(a, b, 1, true); }
inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) { return portable::unpack(a, b, 2, false); }
inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) { return portable::unpack(a, b, 2, true); }
inline __m512 _mm512_permute_ps(__m512 a, int order) {
  const auto x = portable::in(a);
  return portable::floats([&](int i) { return x.lane[i / 4 * 4 + (order >> i % 4 * 2 & 3)]; });
}
inline __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int order) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::floats([&](int i) {
    const int from = (order >> i / 4 * 2 & 3) * 4 + i % 4;
    return i < 8 ? x.lane[from] : y.lane[from];
  });
}
inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int order) {
  const auto x = portable::in(a), y = portable::in(b);
  return portable::ints([&](int i) {
    const int from = (order >> i / 4 * 2 & 3) * 4 + i % 4;
    return i < 8 ? x.lane[from] : y.lane[from];
  });
}
