// The inner products of short_panels.h. The instruction is asm, for GCC copies sums of the intrinsic's from register to
// register (docs/log.md).

#include "attention/short_panels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/softmax.h"
#include "common/threads.h"

namespace onepass {
namespace {

constexpr float kWeightLevels = 16383, kValueLevels = 2047;  // 64 products of these are below 2^31
constexpr float kShift = 12582912.0f;  // 1.5 · 2^23: what is added to it is rounded to whole numbers

// Of queries and keys: `size` products of these are below 2^31.
inline float score_levels(int64_t size) { return std::floor(std::sqrt(2147483647.0 / std::max<int64_t>(size, 1))); }

// Two products of 16 bits in every lane.
inline Ints add_pairs(Ints sum, Ints x, Ints pairs) {
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(pairs));
  return sum;
#else  // of no use but for tests
  return sum + ((x << 16) >> 16) * ((pairs << 16) >> 16) + (x >> 16) * (pairs >> 16);
#endif
}

inline Ints load_words(const int16_t* from) { return load(reinterpret_cast<const int32_t*>(from)); }
inline int32_t word(const int16_t* from) {
  int32_t pair;
  std::memcpy(&pair, from, 4);
  return pair;
}
inline float scale_of(const int16_t* row, int64_t size) {
  float scale;
  std::memcpy(&scale, row + size, 4);
  return scale;
}

// The lower halves of whole numbers that were added to kShift, side by side.
inline Ints in_pairs(Vector first, Vector second) {
  return (reinterpret_cast<Ints>(first) & 0xffff) | (reinterpret_cast<Ints>(second) << 16);
}

inline float largest_of(Vector a) {
  float most = a[0];
  for (int i = 1; i < kWidth; ++i) most = a[i] > most ? a[i] : most;
  return most;
}

// One row in integers; the result is its scale, which is not finite where a number is not.
inline float quantize_row(const float* from, int64_t size, float levels, int16_t* to) {
  typedef int16_t Shorts __attribute__((vector_size(kWidth * 2), aligned(2), may_alias));
  const int64_t whole = size / kWidth * kWidth;
  Vector tops = {}, none = {};  // none: 0, or no number
  for (int64_t d = 0; d < whole; d += kWidth) {
    const Vector numbers = load(from + d);
    tops = larger(tops, magnitude(numbers));
    none += numbers - numbers;
  }
  float top = largest_of(tops), rest = 0;
  for (int i = 0; i < kWidth; ++i) rest += none[i];
  for (int64_t d = whole; d < size; ++d) top = std::max(top, std::fabs(from[d])), rest += from[d] - from[d];
  const float by = top > 1e-30f ? levels / top : 0.0f;
  for (int64_t d = 0; d < whole; d += kWidth)
    *reinterpret_cast<Shorts*>(to + d) = __builtin_convertvector(reinterpret_cast<Ints>(load(from + d) * by + kShift), Shorts);
  for (int64_t d = whole; d < size; ++d) to[d] = static_cast<int16_t>(std::lrintf(from[d] * by));
  return (top > 1e-30f ? top / levels : 0.0f) + rest;
}

// Scores of `count` keys for a panel of lanes: q is [size / 2, lanes], two numbers each.
template <int vectors, int count>
__attribute__((noinline)) void score_keys(const int16_t* q, const int16_t* const* keys, int64_t size, const float* q_scale,
                                          float* scores) {
  constexpr int lanes = vectors * kWidth;
  const int16_t* key[count];
  for (int i = 0; i < count; ++i) key[i] = keys[i];
  Ints sums[count][vectors] = {};
  for (int64_t d = 0; d < size; d += 2, q += 2 * lanes) {
    Ints query[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) query[v] = load_words(q + 2 * v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const Ints pair = splat(word(key[i] + d));
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[i][v] = add_pairs(sums[i][v], query[v], pair);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    const Vector scale = splat(scale_of(key[i], size));
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      store(scores + i * lanes + v * kWidth, __builtin_convertvector(sums[i][v], Vector) * (scale * load(q_scale + v * kWidth)));
  }
}

// Adds `count` dimensions of pairs of values by their weights to what was summed before, which is shrunk.
template <int vectors, int count>
__attribute__((noinline)) void add_values(const int32_t* weights, const int32_t* values, int64_t size, int pairs,
                                          const float* shrink, const float* scale, float* out) {
  constexpr int lanes = vectors * kWidth;
  Ints sums[count][vectors] = {};
  for (int pair = 0; pair < pairs; ++pair, weights += lanes, values += size) {
    Ints weight[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) weight[v] = load(weights + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const Ints number = splat(values[i]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[i][v] = add_pairs(sums[i][v], weight[v], number);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      float* to = out + i * lanes + v * kWidth;
      store(to, load(to) * load(shrink + v * kWidth) + __builtin_convertvector(sums[i][v], Vector) * load(scale + v * kWidth));
    }
}

// The values of a tile in pairs of keys, [pairs, size]; of an odd number the last one's partner is 0.
void pair_values(const Tile<int16_t>& tile, int64_t size, int32_t* to) {
  for (int key = 0; key < tile.count; key += 2, to += size) {
    const int16_t *first = tile.values[key], *second = tile.values[std::min(key + 1, tile.count - 1)];
    const int32_t mask = key + 1 < tile.count ? -1 : 0;
    for (int64_t d = 0; d < size; ++d) to[d] = (first[d] & 0xffff) | ((second[d] & mask) << 16);
  }
}

// 2^x to 3e-6; exactly 0 from -150 down.
inline Vector rough_power(Vector x) {
#if defined(__AVX512F__)
  const Vector part = reinterpret_cast<Vector>(_mm512_reduce_ps(reinterpret_cast<__m512>(x), 0));  // from the nearest whole
  Vector value = splat(0.00958283f);
  value = value * part + 0.05590636f;
  value = value * part + 0.24024099f;
  value = value * part + 0.69312420f;
  value = value * part + 1.0f;
  const __m512 whole = reinterpret_cast<__m512>(x - part);
  return reinterpret_cast<Vector>(_mm512_scalef_ps(reinterpret_cast<__m512>(value), whole));
#else
  return power_of_two(x);
#endif
}

template <int vectors, bool masked>
void visit_tile(const Tile<int16_t>& tile, const Panel<int16_t>& panel, int64_t size, float* scores) {
  constexpr int lanes = vectors * kWidth, rows = kRegisterRows<vectors>;
  in_groups<rows>(tile.count, [&]<int count>(int64_t key, std::integral_constant<int, count>) {
    score_keys<vectors, count>(panel.q, tile.keys + key, size, panel.scale, scores + key * lanes);
  });
  float value_scale[kTile];
  for (int key = 0; key < tile.count; ++key) value_scale[key] = scale_of(tile.values[key], size);
  alignas(64) float largest[lanes];
  Vector most[vectors] = {};
  weigh<lanes, vectors, masked>(tile, panel, scores, [](Vector x) { return rough_power(x); }, [&](int key, int lane, Vector weight) {
    // What is not seen weighs nothing, whatever it is.
    const Vector scaled = weight * value_scale[key];
    weight = masked ? (weight > Vector{} ? scaled : Vector{}) : scaled;
    Vector& top = most[lane / kWidth];
    top = larger(top, weight);
    if (key + 1 == tile.count) store(largest + lane, top);
    store(scores + key * lanes + lane, weight);
  });
  // Pairs of weights as integers.
  int32_t* weights = reinterpret_cast<int32_t*>(scores + kTile * lanes);
  const int pairs = (tile.count + 1) / 2;
  if (tile.count % 2) std::fill_n(scores + tile.count * lanes, lanes, 0.0f);
  for (int lane = 0; lane < lanes; lane += kWidth) {
    const Vector top = load(largest + lane), by = top > splat(1e-30f) ? kWeightLevels / top : Vector{};
    store(largest + lane, top > splat(1e-30f) ? top / kWeightLevels : Vector{});
    for (int pair = 0; pair < pairs; ++pair) {
      const float* from = scores + 2 * pair * lanes + lane;
      store(weights + pair * lanes + lane, in_pairs(load(from) * by + kShift, load(from + lanes) * by + kShift));
    }
  }
  int32_t* values = reinterpret_cast<int32_t*>(workspace<4>(kTile / 2 * size * 4));
  pair_values(tile, size, values);
  in_groups<rows>(size, [&]<int count>(int64_t d, std::integral_constant<int, count>) {
    add_values<vectors, count>(weights, values + d, size, pairs, panel.shrink, largest, panel.out + d * lanes);
  });
}

template <bool masked>
void visit_panel(int vectors, const Tile<int16_t>& tile, const Panel<int16_t>& panel, int64_t size, float* scores) {
  if (vectors == 1) return visit_tile<1, masked>(tile, panel, size, scores);
  if (vectors == 2) return visit_tile<2, masked>(tile, panel, size, scores);
  if constexpr (kMaxVectors > 2) {
    if (vectors == 3) return visit_tile<3, masked>(tile, panel, size, scores);
    return visit_tile<4, masked>(tile, panel, size, scores);
  }
}

}  // namespace

void ShortPanels::narrow(const float* keys, const float* values, int64_t tokens, int64_t heads, int64_t size, int64_t stride,
                         int16_t* to_keys, int16_t* to_values) {
  const int64_t row = row_numbers(size);
  const float levels = score_levels(size);
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t head = 0; head < heads; ++head, keys += size, values += size) {
      int16_t *key = to_keys + (head * stride + token) * row, *value = to_values + (head * stride + token) * row;
      float key_scale = quantize_row(keys, size, levels, key), value_scale = quantize_row(values, size, kValueLevels, value);
      if (!std::isfinite(key_scale + value_scale)) key_scale = 0, value_scale = std::numeric_limits<float>::infinity();
      std::memcpy(key + size, &key_scale, 4);
      std::memcpy(value + size, &value_scale, 4);
    }
}

void ShortPanels::enter(const float* rows, int64_t size, const Panel<int16_t>& panel, int64_t lanes, int64_t lane) {
  int16_t* numbers = reinterpret_cast<int16_t*>(workspace<5>(kWidth * size * 2));
  const float levels = score_levels(size);
  for (int i = 0; i < kWidth; ++i) panel.scale[lane + i] = quantize_row(rows + i * size, size, levels, numbers + i * size);
  // Pairs are moved as they are: to_rows reads and writes no number of them.
  to_rows(reinterpret_cast<const float*>(numbers), size / 2, kWidth, size / 2, reinterpret_cast<float*>(panel.q) + lane, lanes);
}

void ShortPanels::visit(int vectors, bool masked, const Tile<int16_t>& tile, const Panel<int16_t>& panel, int64_t size,
                        float* scores) {
  if (masked) return visit_panel<true>(vectors, tile, panel, size, scores);
  return visit_panel<false>(vectors, tile, panel, size, scores);
}

}  // namespace onepass
