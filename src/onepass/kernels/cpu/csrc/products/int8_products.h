// Products of weights and activations in 8 bits, with sums in 32: what `cpu_products.h` calls where integers are
// multiplied, and nothing of XLA's.
//
// A token's activations are quantised in blocks of 32 terms, each with its own scale, so that an outlier costs precision
// in its own block only; weights have a scale, and maybe an offset, of every 16 or 32 terms:
//
//     result[row, token] = Σ_blocks  scale[row, block] · x_scale[block, token] · Σ_terms  w[row, term] · x[term, token]
//                                  + offset[row, block] · Σ_terms x[term, token]
//
// The inner sum is exact. Where the CPU has NEON's dot products, activations may have 11 bits, in two planes (int8_lanes.h).
// The sum beside an offset is of activations as they were before they were quantised.
//
// Sixteen tokens lie side by side, a line, as in `cpu_products.h`: activations are [lines, terms / 4, 16 tokens, 4 terms],
// so that a lane's four bytes are four terms of one token, and a row's four weights are broadcast to all lanes. With NEON's
// smmla both lie in pairs instead (int8_pairs.h).

#pragma once

#include <algorithm>
#include <cstdint>

#include "common/neon_lanes.h"
#include "common/vectors.h"
#include "products/int8_dot.h"
#include "products/int8_lanes.h"
#include "products/int8_pairs.h"

namespace onepass {

#if defined(__ARM_FEATURE_DOTPROD)
constexpr int kMaxPlanes = 2;  // of activations
#else
constexpr int kMaxPlanes = 1;
#endif
constexpr int kTokens = 16;       // of a line
constexpr int kScaleTerms = 32;   // of an activation's scale
constexpr int kSumTerms = 16;     // of an activation's sum
#if defined(__aarch64__)
constexpr int64_t kChunkBytes = 1 << 15;  // of activations at a time: half of a first cache of 64 KiB
#else
constexpr int64_t kChunkBytes = 1 << 14;  // of activations at a time: half of a first cache of 32 KiB
#endif

// Activations of some lines: pointers to the first line's.
struct QuantizedLines {
  int64_t terms;
  int32_t* numbers;  // [lines, terms / 4, 16]: four bytes each
  float* scale;      // [lines, terms / 32, 16]
  float* sum;        // [lines, terms / 16, 16]
  float* block_sum;  // [lines, terms / 32, 16], with NEON's dot products, where sums begin with what offsets add
  float* origin;     // [lines, terms / 32, 16]: -kSumOrigin · scale, with NEON's dot products
  int32_t* low = nullptr;  // as `numbers`, of two planes: the lower one

  static int64_t bytes(int64_t lines, int64_t terms, int planes = 1) {
    return lines * kTokens * (planes * terms + 3 * (terms / kScaleTerms) * 4 + terms / kSumTerms * 4);
  }
  QuantizedLines(char* memory, int64_t lines, int64_t terms, int planes = 1)
      : terms(terms), numbers(reinterpret_cast<int32_t*>(memory)),
        scale(reinterpret_cast<float*>(memory + lines * kTokens * terms)),
        sum(scale + lines * kTokens * (terms / kScaleTerms)), block_sum(sum + lines * kTokens * (terms / kSumTerms)),
        origin(block_sum + lines * kTokens * (terms / kScaleTerms)) {
    if (planes == 2) low = reinterpret_cast<int32_t*>(origin + lines * kTokens * (terms / kScaleTerms));
  }
  QuantizedLines from(int64_t line) const {
    QuantizedLines later = *this;
    later.numbers += line * kTokens * (terms / 4);
    later.scale += line * kTokens * (terms / kScaleTerms);
    later.sum += line * kTokens * (terms / kSumTerms);
    later.block_sum += line * kTokens * (terms / kScaleTerms);
    later.origin += line * kTokens * (terms / kScaleTerms);
    if (low) later.low += line * kTokens * (terms / 4);
    return later;
  }
};

// Rows of weights in 8 bits, `terms` numbers each.
struct Int8Rows {
  const int8_t* numbers;
  const float *scale, *offset;  // [rows, terms / block]; no offset: null
  const int32_t* start;         // [rows, terms / block]: -kZero · Σ numbers; not read where kZero is 0
};

// The lowest bytes of four vectors, side by side in every lane.
inline Ints lowest_bytes(const Ints (&from)[4]) {
#if defined(__aarch64__)
  int32x4_t word = reinterpret_cast<int32x4_t>(from[0]);
  word = vsliq_n_s32(word, reinterpret_cast<int32x4_t>(from[1]), 8);
  word = vsliq_n_s32(word, reinterpret_cast<int32x4_t>(from[2]), 16);
  return reinterpret_cast<Ints>(vsliq_n_s32(word, reinterpret_cast<int32x4_t>(from[3]), 24));
#else
  return (from[0] & 255) | (from[1] & 255) << 8 | (from[2] & 255) << 16 | from[3] << 24;
#endif
}

// Quantises the 16 tokens of a line, [terms, 16]. A block with a number that is not finite gets a scale that is not, and
// with NEON's dot products one that is beyond 2^110, an origin that is not.
template <int planes = 1>
inline void quantize_line(const float* x, const QuantizedLines& to) {
  constexpr int below = 1 << (kLowBits - 1);  // low is within -below and below - 1
  constexpr float levels = planes == 1 ? kLevels : kLevels * 2 * below + below - 1;
  const float shift = 12582912.0f;  // 1.5 · 2^23: what is added to it is rounded to whole numbers
  const Ints zero = splat(kZero);  // the lower bytes of the shift's own bits are 0
  for (int64_t start = 0; start < to.terms; start += kScaleTerms)
    for (int lane = 0; lane < kTokens; lane += kWidth) {
      const float* from = x + start * kTokens + lane;
      Vector top = {}, total = {};
      for (int64_t half = 0; half < kScaleTerms; half += kSumTerms) {
        Vector sum = {};
        for (int64_t d = half; d < half + kSumTerms; ++d) {
          const Vector number = load(from + d * kTokens);
          sum += number;
          top = larger(top, magnitude(number));
        }
        store(to.sum + (start + half) / kSumTerms * kTokens + lane, sum);
        total += sum;
      }
      const Vector by = top > splat(1e-30f) ? levels / top : Vector{};
      Vector scale = top > splat(1e-30f) ? top / levels : Vector{};
      scale += total - total;
#if defined(__ARM_FEATURE_DOTPROD)
      scale = reinterpret_cast<Vector>(reinterpret_cast<Ints>(scale) & ~3);  // 22 bits: int8_lanes.h
      store(to.origin + start / kScaleTerms * kTokens + lane, scale * -kSumOrigin);
      store(to.block_sum + start / kScaleTerms * kTokens + lane, total);
#endif
      store(to.scale + start / kScaleTerms * kTokens + lane, scale);
      for (int64_t d = 0; d < kScaleTerms; d += 4) {
        Ints number[4], low;
        for (int i = 0; i < 4; ++i)
          number[i] = reinterpret_cast<Ints>(load(from + (d + i) * kTokens) * by + shift) + zero;
        if constexpr (planes == 2) {
          Ints lower[4];
          for (int i = 0; i < 4; ++i) {
            const Ints raised = number[i] + below;
            lower[i] = (raised & (2 * below - 1)) - below;
            number[i] = raised >> kLowBits;
          }
          low = lowest_bytes(lower);
        }
        const Ints word = lowest_bytes(number);
        store(to.numbers + (start + d) / 4 * kTokens + lane, word);
        if constexpr (planes == 2) store(to.low + (start + d) / 4 * kTokens + lane, low);
      }
    }
  if constexpr (kInt8Pairs) {
    pair_tokens(to.numbers, to.terms);
    if constexpr (planes == 2) pair_tokens(to.low, to.terms);
  }
}

// Which of a line's numbers, four bytes each, has this term of this token.
inline int64_t word_of(int64_t term, int64_t token) {
  return kInt8Pairs ? term / 8 * 2 * kTokens + token * 2 + term / 4 % 2 : term / 4 * kTokens + token;
}

// Memory for rows in the order in which they are multiplied, where that is not their own.
inline int64_t ordered_bytes(int64_t rows, int64_t terms, int64_t block) {
  if constexpr (kInt8Pairs) return paired_bytes(rows, terms, block);
  return 0;
}
inline Int8Rows ordered_rows(const Int8Rows& from, int64_t rows, int64_t terms, int64_t block, char* memory) {
  if constexpr (kInt8Pairs) return pair_int8_rows(from, rows, terms, block, memory);
  return from;
}

// -kZero · Σ of every `block` numbers.
inline void block_starts(const int8_t* numbers, int64_t blocks, int64_t block, int32_t* start) {
  if constexpr (kZero == 0) return;
  for (int64_t i = 0; i < blocks; ++i, numbers += block) {
    int32_t sum = 0;
    for (int64_t d = 0; d < block; ++d) sum += numbers[d];
    start[i] = -kZero * sum;
  }
}

constexpr int kTokenVectors = kTokens / kWidth;
constexpr int kInt8Lines = kMaxVectors / kTokenVectors;  // whose sums are in registers together

#if defined(__ARM_FEATURE_DOTPROD)
// sums[row][16] = Σ_blocks offset[row, block] · x_sum[block][16] of so many rows: a small product in float32, four blocks
// with one load of offsets.
template <int rows>
__attribute__((noinline)) void begin_with_offsets(const float* x_sum, const float* offset, int64_t blocks, float* sums) {
  Vector total[rows][kTokenVectors] = {};
  const float* row[rows];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) row[i] = offset + i * blocks;
  add_rows(total, x_sum, row, blocks);
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < kTokenVectors; ++v) store(sums + i * kTokens + v * kWidth, total[i][v]);
}

// Adds to sums[row][16] what the terms from `first` to `end` give, or begins the sums where offsets did not, three rows at a
// time. Where fewer are left the last of them is multiplied again, beside the sums.
template <int planes, int block>
__attribute__((noinline)) void add_int8_terms(const QuantizedLines& x, const Int8Rows& weight, int64_t rows, int64_t first,
                                              int64_t end, float* sums) {
  alignas(16) static constexpr float zeros[3 * kTokens] = {};
  const int64_t scales = first / kScaleTerms * kTokens, words = first / 4 * kTokens, count = (end - first) / kScaleTerms;
  const int64_t terms = x.terms, blocks = terms / block;
  const LineBlocks line{x.numbers + words, planes == 2 ? x.low + words : nullptr, x.scale + scales, x.origin + scales};
  const bool begun = first || weight.offset;
  const int8_t* numbers = weight.numbers + first;
  const float* scale = weight.scale + first / block;
  int64_t row = 0;
  for (; row + 3 <= rows; row += 3, numbers += 3 * terms, scale += 3 * blocks, sums += 3 * kTokens)
    add_three_rows<planes, block>(line, {{numbers, numbers + terms, numbers + 2 * terms}, {scale, scale + blocks, scale + 2 * blocks}},
                                  count, begun ? sums : zeros, sums);
  if (row == rows) return;
  const int64_t left = rows - row, last = left - 1;
  float beside[3 * kTokens] = {};
  if (begun) std::copy(sums, sums + left * kTokens, beside);
  add_three_rows<planes, block>(line, {{numbers, numbers + last * terms, numbers + last * terms},
                                       {scale, scale + last * blocks, scale + last * blocks}}, count, beside, beside);
  std::copy(beside, beside + left * kTokens, sums);
}
#else

// Rows whose sums, once in integers and once in floats, fit in registers for so many vectors of tokens.
template <int vectors>
constexpr int kInt8Rows = kAccumulators / 2 / vectors < 6 ? kAccumulators / 2 / vectors : 6;

// Adds to sums[row][line][16] what the terms from `first` to `end` give, or begins the sums where nothing did.
template <int block, int lines, int rows>
__attribute__((noinline)) void add_int8_terms(const QuantizedLines& x, const Int8Rows& weight, int64_t first, int64_t end,
                                              float* sums) {
  constexpr int vectors = lines * kTokenVectors;
  const int64_t blocks = x.terms / block;
  Vector total[rows][vectors] = {};
  if (first) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) total[i][v] = load(sums + (i * vectors + v) * kWidth);
  }
  // Where a vector of tokens begins in rows of 16, `stride` of them in a line.
  auto place = [](int v, int64_t stride, int64_t at) {
    return v / kTokenVectors * stride * kTokens + at * kTokens + v % kTokenVectors * kWidth;
  };
  for (int64_t at = first; at < end; at += block) {
    const int64_t number = at / block;
    Ints sum[rows][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const Ints begin = kZero ? splat(weight.start[i * blocks + number]) : Ints{};
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[i][v] = begin;
    }
#pragma GCC unroll kDotUnroll
    for (int d = 0; d < block; d += 4) {
      Ints token[vectors];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) token[v] = load(x.numbers + place(v, x.terms / 4, at / 4 + d / 4));
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const Ints four_weights = four(weight.numbers + i * x.terms + at + d);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sum[i][v] = dot(sum[i][v], token[v], four_weights);
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const Vector scale = load(x.scale + place(v, x.terms / kScaleTerms, at / kScaleTerms));
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i)
        total[i][v] += __builtin_convertvector(sum[i][v], Vector) * splat(weight.scale[i * blocks + number]) * scale;
    }
    if (weight.offset) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        const float* from = x.sum + place(v, x.terms / kSumTerms, at / kSumTerms);
        const Vector plain = block == kSumTerms ? load(from) : load(from) + load(from + kTokens);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) total[i][v] += splat(weight.offset[i * blocks + number]) * plain;
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(sums + (i * vectors + v) * kWidth, total[i][v]);
}
#endif

template <int planes, int block, int lines>
void multiply_int8_block(const QuantizedLines& x, const Int8Rows& weight, int64_t rows, float* sums) {
  constexpr int64_t chunk = kChunkBytes / (planes * lines * kTokens) / kScaleTerms * kScaleTerms;
  const int64_t blocks = x.terms / block;
#if defined(__ARM_FEATURE_DOTPROD)
  static_assert(lines == 1 && kZero == 0);
  if (weight.offset)
    in_groups<kRegisterRows<kTokenVectors>>(rows, [&]<int count>(int64_t row, std::integral_constant<int, count>) {
      begin_with_offsets<count>(block == kSumTerms ? x.sum : x.block_sum, weight.offset + row * blocks, blocks,
                                sums + row * kTokens);
    });
  if constexpr (kInt8Pairs) return multiply_int8_pairs<planes, block>(x, weight, rows, chunk, sums);
  for (int64_t first = 0; first < x.terms; first += chunk)
    add_int8_terms<planes, block>(x, weight, rows, first, std::min(x.terms, first + chunk), sums);
#else
  static_assert(planes == 1);
  for (int64_t first = 0; first < x.terms; first += chunk)
    in_groups<kInt8Rows<lines * kTokenVectors>>(rows, [&]<int count>(int64_t row, std::integral_constant<int, count>) {
      const Int8Rows these{weight.numbers + row * x.terms, weight.scale + row * blocks,
                           weight.offset ? weight.offset + row * blocks : nullptr, weight.start + row * blocks};
      add_int8_terms<block, lines, count>(x, these, first, std::min(x.terms, first + chunk), sums + row * lines * kTokens);
    });
#endif
}

// sums[row][line][16] of some rows, in `ordered_rows`, for at most kInt8Lines lines; the weights have a scale of every 16 or
// 32 terms. With pairs one row more is written where their number is odd.
template <int planes = 1>
inline void multiply_int8_lines(int64_t lines, const QuantizedLines& x, const Int8Rows& weight, int64_t block,
                                int64_t rows, float* sums) {
  auto with = [&]<int terms>(std::integral_constant<int, terms>) {
    if (lines == 1) return multiply_int8_block<planes, terms, 1>(x, weight, rows, sums);
    if constexpr (kInt8Lines > 1) {
      if (lines == 2) return multiply_int8_block<planes, terms, 2>(x, weight, rows, sums);
      if (lines == 3) return multiply_int8_block<planes, terms, 3>(x, weight, rows, sums);
      return multiply_int8_block<planes, terms, 4>(x, weight, rows, sums);
    }
  };
  if (block == 16) with(std::integral_constant<int, 16>());
  else with(std::integral_constant<int, 32>());
}

}  // namespace onepass
