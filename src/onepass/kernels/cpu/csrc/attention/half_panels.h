// A tile of keys for a panel of lanes, as in cpu_panels.h, with keys, values and queries of 16 bits: NEON with half
// precision arithmetic, eight lanes in a vector.
//
//     scores[key, lane]   = Σ of 32 terms in 16 bits, the sums of these in 32
//     weights[key, lane]  = 2^(score - top[lane]) in 32 bits, to 1e-4, rounded to 16
//     out[d, lane]        = out · shrink[lane] in 32 bits + Σ of a tile's 64 keys in 16
//
// Values are divided by 16, so that no sum of 64 of them overflows while they are below 16,000. A key or a value beyond
// 65,504 becomes infinite, and stays visible so.

#pragma once

#include <arm_neon.h>

#include "attention/cpu_panels.h"

namespace onepass {

using Half = __fp16;

// 2^x to 1e-4 for x ≤ 0; 2^-126 from -126 down, which is 0 in 16 bits.
struct RoughPower {
  Vector operator()(Vector x) const {
    const Vector shift = splat(12582912.0f);  // 1.5 · 2^23, as in power_of_two
    x = larger(x, splat(-126.0f));
    const Vector shifted = x + shift, part = x - (shifted - shift);
    Vector value = splat(0.0551716685295105f);
    value = value * part + 0.2426111400127411f;
    value = value * part + 0.6932609677314758f;
    value = value * part + 0.9999280571937561f;
    return reinterpret_cast<Vector>(reinterpret_cast<Ints>(value) + (reinterpret_cast<Ints>(shifted) << 23));
  }
};

struct HalfPanels {
  using Key = Half;
  static constexpr int kWidth = 8, kMaxVectors = 4;
  static constexpr int kScoreRows = kTile * 3 / 2;  // scores in float32, and weights in 16 bits after them
  static constexpr float kOutScale = 16;
  static constexpr bool kByHead = true;
  static int64_t row_numbers(int64_t size) { return size; }
  static void enter(const float* rows, int64_t size, const Panel<Half>& panel, int64_t lanes, int64_t lane);
  // Keys and values, [tokens, heads, size], become [heads, tokens, size] with room for `stride` tokens of each head.
  static void narrow(const float* keys, const float* values, int64_t tokens, int64_t heads, int64_t size, int64_t stride,
                     Half* to_keys, Half* to_values);
  static void visit(int vectors, bool masked, const Tile<Half>& tile, const Panel<Half>& panel, int64_t size, float* scores);
};

inline float widen(Half number) { return static_cast<float>(number); }

inline void store(Half* to, Vector value) { vst1_f16(to, vcvt_f16_f32(reinterpret_cast<float32x4_t>(value))); }

}  // namespace onepass
