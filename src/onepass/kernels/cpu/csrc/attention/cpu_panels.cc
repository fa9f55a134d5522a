// The inner products and the online softmax of cpu_panels.h.

#include "attention/cpu_panels.h"

#include <algorithm>
#include <type_traits>

#include "attention/softmax.h"
#include "common/neon_lanes.h"

namespace onepass {
namespace {

// Dimensions of the values whose sums are in registers together.
#if defined(__aarch64__)
template <int vectors>
constexpr int kValueRows = vectors > 2 ? 4 : 8;
#else
template <int vectors>
constexpr int kValueRows = kRegisterRows<vectors>;
#endif

// Scores of `count` keys for a panel of lanes: q is [size, lanes].
template <int vectors, int count>
__attribute__((noinline)) void score_keys(const float* q, const float* const* keys, int64_t size, float* scores) {
  constexpr int lanes = vectors * kWidth;
  const float* key[count];
  for (int i = 0; i < count; ++i) key[i] = keys[i];
  Vector sums[count][vectors] = {};
#if defined(__aarch64__)
  add_rows(sums, q, key, size);
#else
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
#endif
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
#if defined(__aarch64__)
    if constexpr (count % 4 == 0) {
      add_side_by_side(sums, weights, value);
      continue;
    }
#endif
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

template <int vectors, bool masked>
void visit_tile(const Tile<float>& tile, const Panel<float>& panel, int64_t size, float* scores) {
  constexpr int lanes = vectors * kWidth, rows = kRegisterRows<vectors>;
  in_groups<rows>(tile.count, [&]<int count>(int64_t key, std::integral_constant<int, count>) {
    score_keys<vectors, count>(panel.q, tile.keys + key, size, scores + key * lanes);
  });
  auto put = [=](int key, int lane, Vector weight) { store(scores + key * lanes + lane, weight); };
  weigh<lanes, vectors, masked>(tile, panel, scores, [](Vector x) { return power_of_two(x); }, put);
  in_groups<kValueRows<vectors>>(size, [&]<int count>(int64_t d, std::integral_constant<int, count>) {
    add_values<vectors, count>(scores, tile.values, d, tile.count, panel.shrink, panel.out + d * lanes);
  });
}

template <bool masked>
void visit_panel(int vectors, const Tile<float>& tile, const Panel<float>& panel, int64_t size, float* scores) {
  if (vectors == 1) return visit_tile<1, masked>(tile, panel, size, scores);
  if (vectors == 2) return visit_tile<2, masked>(tile, panel, size, scores);
  if constexpr (kMaxVectors > 2) {
    if (vectors == 3) return visit_tile<3, masked>(tile, panel, size, scores);
    return visit_tile<4, masked>(tile, panel, size, scores);
  }
}

}  // namespace

void FloatPanels::enter(const float* rows, int64_t size, const Panel<float>& panel, int64_t lanes, int64_t lane) {
  to_rows(rows, size, kWidth, size, panel.q + lane, lanes);
}

void FloatPanels::visit(int vectors, bool masked, const Tile<float>& tile, const Panel<float>& panel, int64_t size,
                        float* scores) {
  if (masked) return visit_panel<true>(vectors, tile, panel, size, scores);
  return visit_panel<false>(vectors, tile, panel, size, scores);
}

}  // namespace onepass
