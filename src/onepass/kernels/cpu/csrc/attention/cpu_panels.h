// A tile of keys for a panel of lanes: one source for AVX-512, AVX2 and NEON (vectors.h).
//
// A lane of a vector is a row: one asking token's query of one head. Keys and values are broadcast from where they lie,
// so nothing is packed but the queries, and no sum runs across a vector:
//
//     scores[key, lane]   = Σ_d  k[key][d] · q[d, lane]          kept for 64 keys: a tile
//     weights[key, lane]  = 2^(score - top[lane])                 online softmax, up and down the lanes
//     out[d, lane]        = out · shrink[lane] + Σ_key v[key][d] · weights[key, lane]

#pragma once

#include <cstdint>

#include "common/vectors.h"

namespace onepass {

constexpr int kTile = 64;  // keys whose scores exist at once
constexpr int32_t kPadding = -1;
// A lane that has seen nothing yet has kNothing as its highest score: what is masked weighs 2^(kMasked - kNothing) = 0.
constexpr float kMasked = -1e30f, kNothing = -1e29f;

// Keys to visit together, by where they lie.
template <typename Key>
struct Tile {
  const Key *keys[kTile], *values[kTile];
  int32_t segment[kTile], position[kTile];
  int count = 0;
};

// A panel's lanes: their places, their queries, and what they have summed so far, all [.., lanes].
template <typename Key>
struct Panel {
  int32_t *segment, *parent, *context, *position;
  float *top, *total, *shrink, *scale, *out;  // scale: of queries that are integers
  Key* q;
};

// to[column][row] of from[row][column], by transposes of whole squares where they fit.
inline void to_rows(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  const int64_t whole_rows = rows / kWidth * kWidth, whole_columns = columns / kWidth * kWidth;
  for (int64_t row = 0; row < whole_rows; row += kWidth)
    for (int64_t column = 0; column < whole_columns; column += kWidth)
      transpose(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = row < whole_rows ? whole_columns : 0; column < columns; ++column)
      to[column * to_stride + row] = from[row * from_stride + column];
}

// Of keys, values and queries in float32.
struct FloatPanels {
  using Key = float;
  static constexpr int kWidth = onepass::kWidth, kMaxVectors = onepass::kMaxVectors;
  static constexpr int kScoreRows = kTile;  // of lanes, in float32
  static constexpr float kOutScale = 1;     // of what is summed
  static constexpr bool kByHead = false;    // whether a head's keys lie side by side, or all heads of a key
  static int64_t row_numbers(int64_t size) { return size; }  // of a key or a value, where a head's lie side by side
  // Queries, [kWidth, size], into as many lanes of a panel of `lanes`, from `lane` on.
  static void enter(const float* rows, int64_t size, const Panel<float>& panel, int64_t lanes, int64_t lane);
  // The tile's keys for one panel of so many vectors; without `masked` every lane sees every key.
  static void visit(int vectors, bool masked, const Tile<float>& tile, const Panel<float>& panel, int64_t size,
                    float* scores);
};

}  // namespace onepass
