// The inner products of half_panels.h. Instructions are asm volatile, by value, for the reasons that neon_lanes.h gives;
// a lane of 16 bits can be named in registers 0 to 15 only, which is the constraint "x".

#include "attention/half_panels.h"

#include <algorithm>
#include <type_traits>

#include "attention/softmax.h"

namespace onepass {
namespace {

typedef Half LooseHalves __attribute__((vector_size(16), aligned(2), may_alias));
typedef Half FourHalves __attribute__((vector_size(8), aligned(2), may_alias));

constexpr int kChunk = 32;  // terms whose sum is in 16 bits
// Keys whose scores are in registers together, dimensions of the values, and vectors of float32 of the softmax.
constexpr int kKeyRows = 6;
template <int vectors>
constexpr int kValueRows = vectors == 4 ? 4 : 8;
template <int vectors>
constexpr int kTogether = vectors == 3 ? 3 : vectors == 1 ? 2 : 4;

inline float16x8_t load_halves(const Half* from) {
  float16x8_t value;
  asm volatile("ldr %q0, %1" : "=w"(value) : "m"(*reinterpret_cast<const LooseHalves*>(from)));
  return value;
}
inline float16x8_t load_numbers(const Half* from) {
  float16x8_t value;
  asm volatile("ldr %q0, %1" : "=x"(value) : "m"(*reinterpret_cast<const LooseHalves*>(from)));
  return value;
}
inline float16x8_t load_four_numbers(const Half* from) {
  float16x8_t value;
  asm volatile("ldr %d0, %1" : "=x"(value) : "m"(*reinterpret_cast<const FourHalves*>(from)));
  return value;
}
inline float16x8_t load_number(const Half* from) {
  float16x8_t value;
  asm volatile("ldr %h0, %1" : "=x"(value) : "m"(*from));
  return value;
}
template <int lane>
inline float16x8_t add_by_lane(float16x8_t total, float16x8_t x, float16x8_t numbers) {
  asm volatile("fmla %0.8h, %1.8h, %2.h[%3]" : "+w"(total) : "w"(x), "x"(numbers), "i"(lane));
  return total;
}

inline Vector low(float16x8_t a) { return reinterpret_cast<Vector>(vcvt_f32_f16(vget_low_f16(a))); }
inline Vector high(float16x8_t a) { return reinterpret_cast<Vector>(vcvt_high_f32_f16(a)); }

// One term: the keys' numbers of it are in `lane` of their vectors, x is the queries'.
template <int lane, int count, int vectors>
inline __attribute__((always_inline)) void add_term(float16x8_t (&sums)[count][vectors], const Half* x,
                                                    const float16x8_t (&numbers)[count]) {
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const float16x8_t query = load_halves(x + v * 8);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) sums[i][v] = add_by_lane<lane>(sums[i][v], query, numbers[i]);
  }
}

// Scores of `count` keys for a panel of lanes: q is [size, lanes].
template <int vectors, int count>
__attribute__((noinline)) void score_keys(const Half* q, const Half* const* keys, int64_t size, float* scores) {
  constexpr int lanes = vectors * 8;
  for (int64_t start = 0; start < size; start += kChunk) {
    const int64_t end = std::min<int64_t>(size, start + kChunk);
    float16x8_t sums[count][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[i][v] = vdupq_n_f16(0);
    int64_t d = start;
    for (; d + 8 <= end; d += 8, q += 8 * lanes) {
      float16x8_t numbers[count];
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i) numbers[i] = load_numbers(keys[i] + d);
      add_term<0>(sums, q, numbers);
      add_term<1>(sums, q + lanes, numbers);
      add_term<2>(sums, q + 2 * lanes, numbers);
      add_term<3>(sums, q + 3 * lanes, numbers);
      add_term<4>(sums, q + 4 * lanes, numbers);
      add_term<5>(sums, q + 5 * lanes, numbers);
      add_term<6>(sums, q + 6 * lanes, numbers);
      add_term<7>(sums, q + 7 * lanes, numbers);
    }
    for (; d < end; ++d, q += lanes) {
      float16x8_t numbers[count];
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i) numbers[i] = load_number(keys[i] + d);
      add_term<0>(sums, q, numbers);
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        float* to = scores + i * lanes + v * 8;
        Vector first = low(sums[i][v]), second = high(sums[i][v]);
        if (start) first += load(to), second += load(to + kWidth);
        store(to, first);
        store(to + kWidth, second);
      }
  }
}

// sums[i] += number[i] · weight for `count` numbers that lie side by side.
template <int count, int vectors>
inline __attribute__((always_inline)) void add_value(float16x8_t (&sums)[count][vectors], const Half* weights,
                                                     const Half* number) {
  static_assert(count == 8 || count == 4 || count == 2 || count == 1);
  if constexpr (count < 4) {
#pragma GCC unroll 2
    for (int i = 0; i < count; ++i) {
      const float16x8_t numbers = load_number(number + i);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[i][v] = add_by_lane<0>(sums[i][v], load_halves(weights + v * 8), numbers);
    }
  } else {
    const float16x8_t numbers = count == 8 ? load_numbers(number) : load_four_numbers(number);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const float16x8_t weight = load_halves(weights + v * 8);
      sums[0][v] = add_by_lane<0>(sums[0][v], weight, numbers);
      sums[1][v] = add_by_lane<1>(sums[1][v], weight, numbers);
      sums[2][v] = add_by_lane<2>(sums[2][v], weight, numbers);
      sums[3][v] = add_by_lane<3>(sums[3][v], weight, numbers);
      if constexpr (count == 8) {
        sums[4][v] = add_by_lane<4>(sums[4][v], weight, numbers);
        sums[5][v] = add_by_lane<5>(sums[5][v], weight, numbers);
        sums[6][v] = add_by_lane<6>(sums[6][v], weight, numbers);
        sums[7][v] = add_by_lane<7>(sums[7][v], weight, numbers);
      }
    }
  }
}

// Adds `count` dimensions of the values by their weights to what was summed before, which is shrunk.
template <int vectors, int count>
__attribute__((noinline)) void add_values(const Half* weights, const Half* const* values, int64_t d, int keys,
                                          const float* shrink, float* out) {
  constexpr int lanes = vectors * 8;
  float16x8_t sums[count][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[i][v] = vdupq_n_f16(0);
  for (int k = 0; k < keys; ++k, weights += lanes) add_value(sums, weights, values[k] + d);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v)
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      float* to = out + i * lanes + v * 8;
      store(to, load(to) * load(shrink + v * 8) + low(sums[i][v]));
      store(to + kWidth, load(to + kWidth) * load(shrink + v * 8 + kWidth) + high(sums[i][v]));
    }
}

template <int vectors, bool masked>
void visit_tile(const Tile<Half>& tile, const Panel<Half>& panel, int64_t size, float* scores) {
  constexpr int lanes = vectors * 8;
  Half* weights = reinterpret_cast<Half*>(scores + kTile * lanes);
  in_groups<kKeyRows>(tile.count, [&]<int count>(int64_t key, std::integral_constant<int, count>) {
    score_keys<vectors, count>(panel.q, tile.keys + key, size, scores + key * lanes);
  });
  auto put = [=](int key, int lane, Vector weight) { store(weights + key * lanes + lane, weight); };
  weigh<lanes, kTogether<vectors>, masked>(tile, panel, scores, RoughPower(), put);
  in_groups<kValueRows<vectors>>(size, [&]<int count>(int64_t d, std::integral_constant<int, count>) {
    add_values<vectors, count>(weights, tile.values, d, tile.count, panel.shrink, panel.out + d * lanes);
  });
}

template <bool masked>
void visit_panel(int vectors, const Tile<Half>& tile, const Panel<Half>& panel, int64_t size, float* scores) {
  if (vectors == 1) return visit_tile<1, masked>(tile, panel, size, scores);
  if (vectors == 2) return visit_tile<2, masked>(tile, panel, size, scores);
  if (vectors == 3) return visit_tile<3, masked>(tile, panel, size, scores);
  return visit_tile<4, masked>(tile, panel, size, scores);
}

// `by` times each number of [tokens, heads, size], as [heads, tokens, size] with room for `stride` tokens of each head.
void to_halves(const float* from, int64_t tokens, int64_t heads, int64_t size, float by, int64_t stride, Half* to) {
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t head = 0; head < heads; ++head, from += size) {
      Half* out = to + (head * stride + token) * size;
      int64_t d = 0;
      for (; d + kWidth <= size; d += kWidth) store(out + d, load(from + d) * by);
      for (; d < size; ++d) out[d] = static_cast<Half>(from[d] * by);
    }
}

}  // namespace

void HalfPanels::narrow(const float* keys, const float* values, int64_t tokens, int64_t heads, int64_t size,
                        int64_t stride, Half* to_keys, Half* to_values) {
  to_halves(keys, tokens, heads, size, 1, stride, to_keys);
  to_halves(values, tokens, heads, size, 1 / kOutScale, stride, to_values);
}

void HalfPanels::enter(const float* rows, int64_t size, const Panel<Half>& panel, int64_t lanes, int64_t lane) {
  for (int64_t i = 0; i < kWidth; ++i)
    for (int64_t d = 0; d < size; ++d) panel.q[d * lanes + lane + i] = static_cast<Half>(rows[i * size + d]);
}

void HalfPanels::visit(int vectors, bool masked, const Tile<Half>& tile, const Panel<Half>& panel, int64_t size,
                       float* scores) {
  if (masked) return visit_panel<true>(vectors, tile, panel, size, scores);
  return visit_panel<false>(vectors, tile, panel, size, scores);
}

}  // namespace onepass
