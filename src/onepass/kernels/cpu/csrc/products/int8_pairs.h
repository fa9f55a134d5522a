// Products of weights and activations in 8 bits by NEON's smmla: what `int8_products.h` calls where the target has it, with
// the same integers, scales and order of additions as with sdot, and so the same bits.
//
//     smmla    sums[2 rows][2 tokens] += w[2 rows][8 terms] · x[2 tokens][8 terms]ᵀ
//
// Rows and tokens come in pairs. Activations are [lines, terms / 8, 8 pairs, 2 tokens, 8 terms], in the memory that others
// have as [lines, terms / 4, 16, 4]; a panel's rows are brought into [pairs, terms / 8, 2 rows, 8 terms] once a panel, with
// their scales as vectors, [pairs, terms / block, (first, first, second, second)]. The second row of an odd last
// pair is 0. Sums of 3 pairs of rows and 4 pairs of tokens, once in integers and once in floats, are in 24 registers. A block of
// 32 terms is 48 smmla for 1,536 products, and 24 instructions for its scales.

#pragma once

#include <algorithm>
#include <cstdint>

#include "common/neon_lanes.h"
#include "common/neon_pairs.h"
#include "common/vectors.h"
#include "products/int8_lanes.h"

namespace onepass {

#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_DOTPROD)
constexpr bool kInt8Pairs = true;
#else
constexpr bool kInt8Pairs = false;
#endif

// Of rows in pairs: numbers, scales.
int64_t paired_bytes(int64_t rows, int64_t terms, int64_t block);
// Rows in pairs, in `memory`; their offsets, which are added before, stay where they are. `Rows` is Int8Rows.
template <typename Rows>
Rows pair_int8_rows(const Rows& from, int64_t rows, int64_t terms, int64_t block, char* memory);
// A line's numbers, from [terms / 4, 16, 4] to pairs, in place.
void pair_tokens(int32_t* numbers, int64_t terms);
// sums[row][16] of rows in pairs for one line, `chunk` terms at a time; of an odd number of rows one row more is written.
template <int planes, int block, typename Lines, typename Rows>
void multiply_int8_pairs(const Lines& x, const Rows& weight, int64_t rows, int64_t chunk, float* sums);

#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_DOTPROD)

constexpr int kSmmlaTerms = 8;

inline int64_t paired_bytes(int64_t rows, int64_t terms, int64_t block) {
  return (rows + 1) / 2 * (2 * terms + 4 * static_cast<int64_t>(sizeof(float)) * (terms / block));
}

// [pairs, blocks, 4] of [rows, blocks].
inline void pair_scales(const float* scale, int64_t rows, int64_t blocks, float* to) {
  for (int64_t row = 0; row < rows; row += 2, scale += 2 * blocks)
    for (int64_t n = 0; n < blocks; ++n, to += 4) {
      to[0] = to[1] = scale[n];
      to[2] = to[3] = row + 1 < rows ? scale[blocks + n] : 0.0f;
    }
}

template <typename Rows>
Rows pair_int8_rows(const Rows& from, int64_t rows, int64_t terms, int64_t block, char* memory) {
  const int64_t pairs = (rows + 1) / 2, blocks = terms / block;
  auto* numbers = reinterpret_cast<int8_t*>(memory);
  float* scale = reinterpret_cast<float*>(numbers + pairs * 2 * terms);
  pair_scales(from.scale, rows, blocks, scale);
  int8_t* to = numbers;
  for (int64_t row = 0; row < rows; row += 2) {
    const int8_t* upper = from.numbers + row * terms;
    for (int64_t d = 0; d < terms; d += 16, to += 32) {
      const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(upper + d));
      const int64x2_t b = row + 1 < rows ? vreinterpretq_s64_s8(vld1q_s8(upper + terms + d)) : vdupq_n_s64(0);
      vst1q_s8(to, vreinterpretq_s8_s64(vtrn1q_s64(a, b)));
      vst1q_s8(to + 16, vreinterpretq_s8_s64(vtrn2q_s64(a, b)));
    }
  }
  return {numbers, scale, from.offset, from.start};
}

inline void pair_tokens(int32_t* numbers, int64_t terms) {
  for (int64_t d = 0; d < terms; d += kSmmlaTerms, numbers += 2 * kPairTokens) {
    int32x4x2_t words[kPairTokens / 4];
    for (int v = 0; v < kPairTokens / 4; ++v)
      words[v] = {vld1q_s32(numbers + 4 * v), vld1q_s32(numbers + kPairTokens + 4 * v)};
    for (int v = 0; v < kPairTokens / 4; ++v) vst2q_s32(numbers + 8 * v, words[v]);
  }
}

// In the order in which they are written, for the reasons that neon_lanes.h gives.
inline Ints load_in_order(const void* from) {
  Ints value;
  asm volatile("ldr %q0, %1" : "=w"(value) : "m"(*static_cast<const LooseInts*>(from)));
  return value;
}
inline Ints shift_in_order(Ints sum) {
  asm volatile("shl %0.4s, %0.4s, %1" : "+w"(sum) : "i"(kLowBits));
  return sum;
}
inline Vector add_in_order(Vector total, Vector a, Vector b) {
  asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(total) : "w"(a), "w"(b));
  return total;
}
inline Ints add_pair(Ints sum, Ints rows, Ints tokens) {
  asm volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(rows), "w"(tokens));
  return sum;
}
// Of two tokens that lie side by side, for both rows.
inline Vector load_twice(const float* from) {
  typedef float Two __attribute__((vector_size(8), aligned(4), may_alias));
  Vector value;
  asm volatile("ld1r {%0.2d}, %1" : "=w"(value) : "Q"(*reinterpret_cast<const Two*>(from)));
  return value;
}

// sum += Σ row · x of one block: x [terms / 8, 8 pairs, 16 bytes] from the first of these pairs on, pairs of rows `stride`
// bytes apart.
template <int terms, int pairs, int token_pairs>
inline __attribute__((always_inline)) void add_pairs(Ints (&sum)[pairs][token_pairs], const int32_t* x, const int8_t* row,
                                                     int64_t stride) {
#pragma GCC unroll 2  // with 4 GCC copies sums from register to register
  for (int d = 0; d < terms; d += kSmmlaTerms, x += 2 * kPairTokens) {
    Ints rows[pairs];
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i) rows[i] = load_in_order(static_cast<const void*>(row + i * stride + 2 * d));
#pragma GCC unroll 8
    for (int p = 0; p < token_pairs; ++p) {
      const Ints tokens = load_in_order(static_cast<const void*>(x + 4 * p));
#pragma GCC unroll 4
      for (int i = 0; i < pairs; ++i) sum[i][p] = add_pair(sum[i][p], rows[i], tokens);
    }
  }
}

// Adds to sums[row][16], of the 8 tokens from `token` on, what the terms from `first` to `end` give, or begins the sums
// where offsets did not.
template <int planes, int block, int pairs, typename Lines, typename Rows>
__attribute__((noinline)) void add_int8_pairs(const Lines& x, const Rows& weight, int64_t first, int64_t end, int token,
                                              float* sums) {
  constexpr int token_pairs = 4, scale_terms = 32;  // kScaleTerms of int8_products.h
  const int64_t blocks = x.terms / block, stride = 2 * x.terms;
  Vector total[pairs][token_pairs] = {};
  if (first || weight.offset) load_sums(sums, total);
  for (int64_t at = first; at < end; at += block) {
    const float *scale = weight.scale + at / block * 4, *x_scale = x.scale + at / scale_terms * kPairTokens + token;
    const float* x_origin = x.origin + at / scale_terms * kPairTokens + token;
    Ints sum[pairs][token_pairs];
    Vector by[pairs];
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i)
#pragma GCC unroll 8
      for (int p = 0; p < token_pairs; ++p) sum[i][p] = load_in_order(static_cast<const void*>(kSumBegin[planes - 1]));
    add_pairs<block>(sum, x.numbers + at / 4 * kPairTokens + 2 * token, weight.numbers + 2 * at, stride);
    if constexpr (planes == 2) {
#pragma GCC unroll 4
      for (int i = 0; i < pairs; ++i)
#pragma GCC unroll 8
        for (int p = 0; p < token_pairs; ++p) sum[i][p] = shift_in_order(sum[i][p]);
      add_pairs<block>(sum, x.low + at / 4 * kPairTokens + 2 * token, weight.numbers + 2 * at, stride);
    }
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i) by[i] = load_in_order(scale + i * 4 * blocks);
#pragma GCC unroll 8
    for (int p = 0; p < token_pairs; ++p) {
      const Vector token_scale = load_twice(x_scale + 2 * p);
#pragma GCC unroll 4
      for (int i = 0; i < pairs; ++i) {
        const Vector part = add_in_order(load_twice(x_origin + 2 * p), reinterpret_cast<Vector>(sum[i][p]), token_scale);
        total[i][p] = add_in_order(total[i][p], part, by[i]);
      }
    }
  }
  store_sums(total, sums);
}

template <int planes, int block, typename Lines, typename Rows>
void multiply_int8_pairs(const Lines& x, const Rows& weight, int64_t rows, int64_t chunk, float* sums) {
  for (int64_t first = 0; first < x.terms; first += chunk)
    in_threes((rows + 1) / 2, [&]<int count>(int64_t pair, std::integral_constant<int, count>) {
      const int64_t scales = pair * 4 * (x.terms / block);
      const Rows these{weight.numbers + pair * 2 * x.terms, weight.scale + scales, weight.offset, nullptr};
      for (int token = 0; token < kPairTokens; token += 8)
        add_int8_pairs<planes, block, count>(x, these, first, std::min(x.terms, first + chunk), token,
                                             sums + 2 * pair * kPairTokens + token);
    });
}

#endif

}  // namespace onepass
