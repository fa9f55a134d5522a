// The inner products and the online softmax of cpu_panels.h.

#include "cpu_panels.h"

#include <algorithm>
#include <type_traits>

namespace onepass {
namespace {

// Scores of `count` keys for a panel of lanes: q is [size, lanes].
template <int vectors, int count>
__attribute__((noinline)) void score_keys(const float* q, const float* const* keys, int64_t size, float* scores) {
  constexpr int lanes = vectors * kWidth;
  const float* key[count];
  for (int i = 0; i < count; ++i) key[i] = keys[i];
  Vector sums[count][vectors] = {};
  for (int64_t d = 0; d < size; ++d, q += lanes) {
    Vector query[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) query[v] = load(q + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const Vector number = splat(key[i][d]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[i][v] += number * query[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(scores + i * lanes + v * kWidth, sums[i][v]);
}

// Adds `count` dimensions of the values by their weights to what was summed before, which is shrunk.
template <int vectors, int count>
__attribute__((noinline)) void add_values(const float* weights, const float* const* values, int64_t d, int keys, const float* shrink,
                       float* out) {
  constexpr int lanes = vectors * kWidth;
  Vector sums[count][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[i][v] = load(out + i * lanes + v * kWidth) * load(shrink + v * kWidth);
  for (int k = 0; k < keys; ++k, weights += lanes) {
    const float* value = values[k] + d;
    Vector weight[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) weight[v] = load(weights + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const Vector number = splat(value[i]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[i][v] += number * weight[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(out + i * lanes + v * kWidth, sums[i][v]);
}

// mask.sees of attention/mask.py, letter for letter; keys that are padding never get into a tile.
inline Ints sees(const Panel& lanes, int at, int32_t key_segment, int32_t key_position) {
  const Ints segment = splat(key_segment);
  const Ints own = (segment == load(lanes.segment + at)) | (segment == load(lanes.parent + at)) |
                   (segment == load(lanes.context + at));
  return own & (splat(key_position) <= load(lanes.position + at));
}

template <int vectors, bool masked>
void visit_tile(const Tile& tile, const Panel& panel, int64_t size, float* scores) {
  constexpr int lanes = vectors * kWidth, rows = kRegisterRows<vectors>;
  in_groups<rows>(tile.count, [&]<int count>(int64_t key, std::integral_constant<int, count>) {
    score_keys<vectors, count>(panel.q, tile.keys + key, size, scores + key * lanes);
  });
  for (int at = 0; at < lanes; at += kWidth) {
    const Vector before = load(panel.top + at);
    Vector top = before;
    for (int key = 0; key < tile.count; ++key) {
      float* score = scores + key * lanes + at;
      if constexpr (masked)
        store(score, sees(panel, at, tile.segment[key], tile.position[key]) ? load(score) : splat(kMasked));
      top = larger(top, load(score));
    }
    Vector total = {};
    for (int key = 0; key < tile.count; ++key) {
      float* score = scores + key * lanes + at;
      const Vector weight = power_of_two(load(score) - top);
      store(score, weight);
      total += weight;
    }
    const Vector shrink = power_of_two(before - top);
    store(panel.top + at, top);
    store(panel.total + at, load(panel.total + at) * shrink + total);
    store(panel.shrink + at, shrink);
  }
  in_groups<rows>(size, [&]<int count>(int64_t d, std::integral_constant<int, count>) {
    add_values<vectors, count>(scores, tile.values, d, tile.count, panel.shrink, panel.out + d * lanes);
  });
}

template <bool masked>
void visit_panel(int vectors, const Tile& tile, const Panel& panel, int64_t size, float* scores) {
  if (vectors == 1) return visit_tile<1, masked>(tile, panel, size, scores);
  if (vectors == 2) return visit_tile<2, masked>(tile, panel, size, scores);
  if constexpr (kMaxVectors > 2) {
    if (vectors == 3) return visit_tile<3, masked>(tile, panel, size, scores);
    return visit_tile<4, masked>(tile, panel, size, scores);
  }
}

}  // namespace

void visit(int vectors, bool masked, const Tile& tile, const Panel& panel, int64_t size, float* scores) {
  if (masked) return visit_panel<true>(vectors, tile, panel, size, scores);
  return visit_panel<false>(vectors, tile, panel, size, scores);
}

}  // namespace onepass
