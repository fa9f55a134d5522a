// A tile of keys for a panel of lanes, as in cpu_panels.h, with keys, values and queries as integers of 16 bits: AVX-512's
// vpdpwssd, which multiplies two pairs and adds them up in 32 bits.
//
//     scores[key, lane]   = q_scale[lane] · k_scale[key] · Σ_d  q[d, lane] · k[key][d]                exact sums
//     weights[key, lane]  = 2^(score - top[lane]) · v_scale[key], as integers of up to 16,383 · their largest of the tile
//     out[d, lane]        = out · shrink[lane] + largest[lane] / 16,383 · Σ_key  v[key][d] · weights[key, lane]
//
// Every query, key and value has a scale of its own, and a lane's weights one of what that lane sees: no number depends on
// what is not seen. The levels are such that no sum overflows: 5,792 for heads of 64 numbers, 2,047 for values.
//
// Where a key or a value is not finite, its scale is 0 and the value's is infinite: who sees it gets no number.

#pragma once

#include "attention/cpu_panels.h"

namespace onepass {

struct ShortPanels {
  using Key = int16_t;  // [size], and two more that are its scale in float32
  static constexpr int kWidth = onepass::kWidth, kMaxVectors = onepass::kMaxVectors;
  static constexpr int kScoreRows = kTile * 3 / 2;  // scores in float32, and pairs of weights after them
  static constexpr float kOutScale = 1;
  static constexpr bool kByHead = true;
  static int64_t row_numbers(int64_t size) { return size + 2; }
  static void enter(const float* rows, int64_t size, const Panel<int16_t>& panel, int64_t lanes, int64_t lane);
  // Keys and values, [tokens, heads, size], become [heads, tokens, size + 2] with room for `stride` tokens of each head.
  static void narrow(const float* keys, const float* values, int64_t tokens, int64_t heads, int64_t size, int64_t stride,
                     int16_t* to_keys, int16_t* to_values);
  static void visit(int vectors, bool masked, const Tile<int16_t>& tile, const Panel<int16_t>& panel, int64_t size,
                    float* scores);
};

inline float widen(int16_t number) { return number; }

}  // namespace onepass
