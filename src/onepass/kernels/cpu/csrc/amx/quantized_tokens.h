// Tokens in 8 bits, as the left operand of products of integers.
//
// A token's numbers have a scale for every so many steps of 64 terms, as many as the weights' scales have: sums of
// integers end where a scale does. A block with a number that is not finite has a scale that is not. So that an outlier
// costs the others less, numbers are rotated first, sixteen that lie side by side, as the weights are (models/rotation.py).

#pragma once

#include <algorithm>
#include <type_traits>

#include "amx/planes.h"
#include "amx/tiles.h"

namespace onepass {

constexpr int kInt8Depth = 64;     // numbers of 8 bits of a tile's row: what one step of a product sums over
constexpr int kMaxBlockSteps = 9;  // that have a scale in common

// [blocks of 32 tokens, steps, halves, 16 tokens, 64 terms], and after them [blocks of 32 tokens, scales, 32 tokens].
struct QuantizedTokens {
  int8_t* tiles;
  float* scales;
  int64_t steps, blocks;  // of a token

  static int64_t bytes(int64_t tokens, int64_t terms, int64_t blocks) {
    return (tokens + kSide - 1) / kSide * (terms / kInt8Depth * 2 * kTileBytes + blocks * kSide * 4);
  }
  QuantizedTokens(char* memory, int64_t tokens, int64_t terms, int64_t blocks)
      : tiles(reinterpret_cast<int8_t*>(memory)), scales(nullptr), steps(terms / kInt8Depth), blocks(blocks) {
    scales = reinterpret_cast<float*>(tiles + (tokens + kSide - 1) / kSide * steps * 2 * kTileBytes);
  }
  const char* block(int64_t token) const {
    return reinterpret_cast<const char*>(tiles + token / kSide * steps * 2 * kTileBytes);
  }
  int8_t* line(int64_t token, int64_t step) const {
    return tiles + (token / kSide * steps + step) * 2 * kTileBytes + token % kSide * kInt8Depth;
  }
  float* scale(int64_t token, int64_t block) const {
    return scales + (token / kSide * blocks + block) * kSide + token % kSide;
  }
};

// Sums and differences of sixteen lanes: Hadamard's matrix. Done twice, sixteen times what was given.
inline __attribute__((always_inline)) __m512 rotated(__m512 x) {
  alignas(64) static constexpr float signs[4][16] = {{1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
                                                     {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
                                                     {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
                                                     {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
  x = _mm512_fmadd_ps(x, _mm512_load_ps(signs[0]), _mm512_permute_ps(x, 0xb1));
  x = _mm512_fmadd_ps(x, _mm512_load_ps(signs[1]), _mm512_permute_ps(x, 0x4e));
  x = _mm512_fmadd_ps(x, _mm512_load_ps(signs[2]), _mm512_shuffle_f32x4(x, x, 0xb1));
  return _mm512_fmadd_ps(x, _mm512_load_ps(signs[3]), _mm512_shuffle_f32x4(x, x, 0x4e));
}

// One block of so many tokens after one another: `number(n, i)` is the i-th pair of 32 numbers of the n-th of them. Two are
// done in little more time than one: each waits for its largest number.
template <int count, typename Number>
inline __attribute__((always_inline)) void quantize_block(const QuantizedTokens& to, int64_t token, int64_t block,
                                                          Number number) {
  const int64_t steps = to.steps / to.blocks;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  alignas(64) float numbers[count][kMaxBlockSteps * kInt8Depth];
  __m512i top[count];  // magnitudes are ordered as their bits, and what is not finite is above all
  __m512 by[count];
  int8_t* lines[count];
  for (int n = 0; n < count; ++n) top[n] = _mm512_setzero_si512();
  for (int64_t i = 0; i < 2 * steps; ++i)
#pragma GCC unroll 2
    for (int n = 0; n < count; ++n) {
      const Pair pair = number(n, i), turned = {rotated(pair.low), rotated(pair.high)};
      top[n] = _mm512_max_epi32(top[n], _mm512_and_si512(_mm512_castps_si512(turned.low), magnitude));
      top[n] = _mm512_max_epi32(top[n], _mm512_and_si512(_mm512_castps_si512(turned.high), magnitude));
      store(numbers[n] + 32 * i, turned);
    }
#pragma GCC unroll 2
  for (int n = 0; n < count; ++n) {
    const int bits = _mm512_reduce_max_epi32(top[n]);
    float largest;
    std::memcpy(&largest, &bits, 4);
    const bool some = largest > 1e-30f;
    *to.scale(token + n, block) = some ? largest / 127.0f : bits > 0x7f800000 ? largest : 0.0f;
    by[n] = _mm512_set1_ps(some ? 127.0f / largest : 0.0f);
    lines[n] = to.line(token + n, block * steps);
  }
  for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 2
    for (int n = 0; n < count; ++n)
      for (int i = 0; i < 4; ++i)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(lines[n] + step * 2 * kTileBytes) + i,
                         _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(
                             _mm512_mul_ps(_mm512_load_ps(numbers[n] + step * kInt8Depth + 16 * i), by[n]))));
}

// The tokens from `token` to `end`, two after one another where there are two: body(token, count).
template <typename Body>
inline __attribute__((always_inline)) void in_twos(int64_t token, int64_t end, Body body) {
  for (; token + 2 <= end; token += 2) body(token, std::integral_constant<int, 2>());
  if (token < end) body(token, std::integral_constant<int, 1>());
}

}  // namespace onepass
