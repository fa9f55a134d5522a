// Tokens in 8 bits, as the left operand of products of integers.
//
// A token's numbers have a scale for every so many steps of 64 terms, as many as the weights' scales have: sums of
// integers end where a scale does. A block with a number that is not finite has a scale that is not. So that an outlier
// costs the others less, numbers are rotated first, as the weights are (models/rotation.py): the sixty-four of a step, or
// sixteen where a scale is of one step.

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
  // Asks for the lines of a block of a token and the next.
  void fetch(int64_t token, int64_t block) const {
    for (int64_t step = block * (steps / blocks); step < (block + 1) * (steps / blocks); ++step) {
      fetch_to_write(line(token, step));
      fetch_to_write(line(token + 1, step));
    }
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

// The same of four vectors after one another, whose numbers were: Hadamard's matrix of sixty-four.
inline __attribute__((always_inline)) void rotate(__m512 (&x)[4]) {
  const __m512 a = _mm512_add_ps(x[0], x[1]), b = _mm512_sub_ps(x[0], x[1]);
  const __m512 c = _mm512_add_ps(x[2], x[3]), d = _mm512_sub_ps(x[2], x[3]);
  x[0] = _mm512_add_ps(a, c);
  x[1] = _mm512_add_ps(b, d);
  x[2] = _mm512_sub_ps(a, c);
  x[3] = _mm512_sub_ps(b, d);
}

// Of magnitudes: the largest, by lanes. What is no number gets lost, but not where it `keeps` that: magnitudes are ordered
// as their bits, and what is not finite is above all.
template <bool keeps>
inline __m512 larger(__m512 magnitudes, __m512 x) {
  if constexpr (!keeps) return _mm512_range_ps(magnitudes, x, 0b1011);
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(magnitudes), bits));
}

// Sixty-four integers as numbers of 8 bits, in their order.
inline __m512i in_bytes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i quads = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(quads, _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d)));
}

// One block of so many tokens after one another: `number(n, i)` is the i-th pair of 32 numbers of the n-th of them, which
// `factor(n)` multiplies; where that is finite, numbers must be, or all are looked at (`keeps`). Two are done in little
// more time than one: each waits for its largest number.
template <int count, bool keeps, typename Number, typename Factor>
inline __attribute__((always_inline)) void quantize_block(const QuantizedTokens& to, int64_t token, int64_t block,
                                                          Number number, Factor factor) {
  const int64_t steps = to.steps / to.blocks;
  alignas(64) float numbers[count][kMaxBlockSteps * kInt8Depth];
  __m512 top[count], by[count];
  int8_t* lines[count];
  for (int n = 0; n < count; ++n) top[n] = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 2
    for (int n = 0; n < count; ++n) {
      const Pair low = number(n, 2 * step), high = number(n, 2 * step + 1);
      __m512 turned[4] = {rotated(low.low), rotated(low.high), rotated(high.low), rotated(high.high)};
      if (steps > 1) rotate(turned);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        top[n] = larger<keeps>(top[n], turned[i]);
        _mm512_store_ps(numbers[n] + step * kInt8Depth + 16 * i, turned[i]);
      }
    }
#pragma GCC unroll 2
  for (int n = 0; n < count; ++n) {
    const int bits = _mm512_reduce_max_epi32(_mm512_castps_si512(top[n]));
    float largest;
    std::memcpy(&largest, &bits, 4);
    const bool some = largest > 1e-30f;
    *to.scale(token + n, block) = (some || bits > 0x7f800000 ? largest / 127.0f : 0.0f) * factor(n);
    by[n] = _mm512_set1_ps(some ? 127.0f / largest : 0.0f);
    lines[n] = to.line(token + n, block * steps);
  }
  for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 2
    for (int n = 0; n < count; ++n) {
      auto whole = [&](int i) {
        return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(numbers[n] + step * kInt8Depth + 16 * i), by[n]));
      };
      _mm512_store_si512(lines[n] + step * 2 * kTileBytes, in_bytes(whole(0), whole(1), whole(2), whole(3)));
    }
}

// The tokens from `token` to `end`, two after one another where there are two: body(token, count).
template <typename Body>
inline __attribute__((always_inline)) void in_twos(int64_t token, int64_t end, Body body) {
  for (; token + 2 <= end; token += 2) body(token, std::integral_constant<int, 2>());
  if (token < end) body(token, std::integral_constant<int, 1>());
}

}  // namespace onepass
