// Products of weights and activations in 8 bits, with sums in 32: what `cpu_products.h` calls where integers are
// multiplied, and nothing of XLA's.
//
// A token's activations are quantised in blocks of 32 terms, each with its own scale, so that an outlier costs precision
// in its own block only; weights have a scale, and maybe an offset, of every 16 or 32 terms:
//
//     result[row, token] = Σ_blocks  scale[row, block] · x_scale[block, token] · Σ_terms  w[row, term] · x[term, token]
//                                  + offset[row, block] · Σ_terms x[term, token]
//
// The inner sum is exact. Where the CPU has VNNI or NEON's dot products, activations may have 11 bits, in two planes. The sum
// beside an offset is of activations as they were before they were quantised: a small product in float32, with which a
// panel's sums begin.
//
// Sixteen tokens lie side by side, a line, as in `cpu_products.h`: activations are [lines, terms / 4, 16 tokens, 4 terms],
// so that a lane's four bytes are four terms of one token, and a row's four weights are broadcast to all lanes. With NEON's
// smmla both lie in pairs instead (int8_pairs.h). With AVX-512's VNNI four lines are multiplied by int8_vnni.h.

#pragma once

#include <algorithm>
#include <cstdint>

#include "common/neon_lanes.h"
#include "common/vectors.h"
#include "products/int8_dot.h"
#include "products/int8_lanes.h"
#include "products/int8_pairs.h"
#include "products/int8_vnni.h"

namespace onepass {

constexpr int kTokens = 16;       // of a line
constexpr int kScaleTerms = 32;   // of an activation's scale
constexpr int kSumTerms = 16;     // of an activation's sum
#if defined(__aarch64__)
constexpr int kScaleFloats = kTokens;  // of a block of a line: its scales; their origins lie apart
#else
constexpr int kScaleFloats = 2 * kTokens;  // its scales and, side by side with them, their origins
#endif
#if defined(__aarch64__)
constexpr int64_t kChunkBytes = 1 << 15;  // of activations at a time: half of a first cache of 64 KiB
#else
constexpr int64_t kChunkBytes = 1 << 14;  // of activations at a time: half of a first cache of 32 KiB
#endif

// Activations of some lines: pointers to the first line's.
struct QuantizedLines {
  int64_t terms;
  int32_t* numbers;  // [lines, terms / 4, 16]: four bytes each
  float* scale;      // [lines, terms / 32, kScaleFloats]
  float* sum;        // [lines, terms / 16, 16]
  float* block_sum;  // [lines, terms / 32, 16]
  float* origin;     // as `scale`: -kSumOrigin · scale, with kFloatSums
  int32_t* low = nullptr;  // as `numbers`, of two planes: the lower one

  static int64_t bytes(int64_t lines, int64_t terms, int planes = 1) {
    return lines * kTokens * (planes * terms + 3 * (terms / kScaleTerms) * 4 + terms / kSumTerms * 4);
  }
  QuantizedLines(char* memory, int64_t lines, int64_t terms, int planes = 1)
      : terms(terms), numbers(reinterpret_cast<int32_t*>(memory)),
        scale(reinterpret_cast<float*>(memory + lines * kTokens * terms)),
        sum(scale + lines * kScaleFloats * (terms / kScaleTerms)), block_sum(sum + lines * kTokens * (terms / kSumTerms)),
        origin(kScaleFloats > kTokens ? scale + kTokens : block_sum + lines * kTokens * (terms / kScaleTerms)) {
    if (planes == 2) low = reinterpret_cast<int32_t*>(memory + bytes(lines, terms));
  }
  QuantizedLines from(int64_t line) const {
    QuantizedLines later = *this;
    later.numbers += line * kTokens * (terms / 4);
    later.scale += line * kScaleFloats * (terms / kScaleTerms);
    later.sum += line * kTokens * (terms / kSumTerms);
    later.block_sum += line * kTokens * (terms / kScaleTerms);
    later.origin += line * kScaleFloats * (terms / kScaleTerms);
    if (low) later.low += line * kTokens * (terms / 4);
    return later;
  }
};

// Rows of weights in 8 bits, `terms` numbers each.
struct Int8Rows {
  const int8_t* numbers;
  const float *scale, *offset;  // [rows, terms / block]; no offset: null
  const int32_t* start;         // [rows, terms / block]: where sums begin (block_starts); not read where kZero is 0
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
// with kFloatSums one that is beyond 2^110, an origin that is not.
template <int planes = 1>
inline void quantize_line(const float* x, const QuantizedLines& to) {
  constexpr int below = 1 << (kLowBits - 1), middle = kZero ? 0 : below;  // low is within -middle and 2 below - middle - 1
  constexpr float levels = planes == 1 ? kLevels : kLevels * 2 * below + below - 1;
  const float shift = 12582912.0f;  // 1.5 · 2^23: what is added to it is rounded to whole numbers
  const Ints zero = splat(planes == 1 ? kZero : kZero << kLowBits);  // the lower bytes of the shift's own bits are 0
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
      if constexpr (kFloatSums) {
        scale = reinterpret_cast<Vector>(reinterpret_cast<Ints>(scale) & ~3);  // 22 bits: its origin is exact
        store(to.origin + start / kScaleTerms * kScaleFloats + lane, scale * -kSumOrigin);
      }
      store(to.block_sum + start / kScaleTerms * kTokens + lane, total);
      store(to.scale + start / kScaleTerms * kScaleFloats + lane, scale);
      for (int64_t d = 0; d < kScaleTerms; d += 4) {
        Ints number[4], low;
        for (int i = 0; i < 4; ++i)
          number[i] = reinterpret_cast<Ints>(load(from + (d + i) * kTokens) * by + shift) + zero;
        if constexpr (planes == 2) {
          Ints lower[4];
          for (int i = 0; i < 4; ++i) {
            const Ints raised = number[i] + middle;
            lower[i] = (raised & (2 * below - 1)) - middle;
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

// Σ of every `block` numbers, of 16 or 32.
template <int block>
inline int32_t sum_of(const int8_t* numbers) {
#if defined(__AVX2__)
  __m256i bytes = block == 32 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers))
                              : _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
  // Bytes plus 128 have no sign: eight of them are added by one instruction.
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
  return _mm_cvtsi128_si32(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two))) - 32 * 128;
#else
  int32_t sum = 0;
  for (int d = 0; d < block; ++d) sum += numbers[d];
  return sum;
#endif
}

// Where sums of `planes` begin: less kZero · Σ of every `block` numbers.
template <int planes = 1>
inline void block_starts(const int8_t* numbers, int64_t blocks, int64_t block, int32_t* start) {
  if constexpr (kZero == 0) return;
  for (int64_t i = 0; i < blocks; ++i, numbers += block)
    start[i] = kSumBits<planes> - kZero * (block == 16 ? sum_of<16>(numbers) : sum_of<32>(numbers));
}

constexpr int kTokenVectors = kTokens / kWidth;
constexpr int kInt8Lines = kMaxVectors / kTokenVectors;  // whose sums are in registers together

// sums[row][line][16] = Σ_blocks offset[row, block] · x_sum[line, block][16] of so many rows: a small product in float32.
template <int lines, int rows>
__attribute__((noinline)) void begin_with_offsets(const float* x_sum, const float* offset, int64_t blocks, float* sums) {
  constexpr int vectors = lines * kTokenVectors;
  Vector total[rows][vectors] = {};
  const float* row[rows];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) row[i] = offset + i * blocks;
#if defined(__aarch64__)
  static_assert(lines == 1);
  add_rows(total, x_sum, row, blocks);  // four blocks with one load of offsets
#else
  for (int64_t n = 0; n < blocks; ++n) {
    Vector plain[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      plain[v] = load(x_sum + (v / kTokenVectors * blocks + n) * kTokens + v % kTokenVectors * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const Vector number = splat(row[i][n]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) total[i][v] += number * plain[v];
    }
  }
#endif
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(sums + (i * vectors + v) * kWidth, total[i][v]);
}

#if defined(__ARM_FEATURE_DOTPROD)
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
template <int planes, int block, int lines, int rows>
__attribute__((noinline)) void add_int8_terms(const QuantizedLines& x, const Int8Rows& weight, int64_t first, int64_t end,
                                              bool begun, float* sums) {
  constexpr int vectors = lines * kTokenVectors;
  const int64_t blocks = x.terms / block;
  Vector total[rows][vectors] = {};
  if (begun) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) total[i][v] = load(sums + (i * vectors + v) * kWidth);
  }
  // Where a vector of tokens begins in rows of `width`, `stride` of them in a line.
  auto place = [](int v, int64_t stride, int64_t at, int64_t width) {
    return v / kTokenVectors * stride * width + at * width + v % kTokenVectors * kWidth;
  };
  for (int64_t at = first; at < end; at += block) {
    const int64_t number = at / block;
    Ints sum[rows][vectors];
    auto add_plane = [&](const int32_t* numbers) {
#pragma GCC unroll kDotUnroll
      for (int d = 0; d < block; d += 4) {
        Ints token[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) token[v] = load(numbers + place(v, x.terms / 4, at / 4 + d / 4, kTokens));
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
          const Ints four_weights = four(weight.numbers + i * x.terms + at + d);
#pragma GCC unroll 8
          for (int v = 0; v < vectors; ++v) sum[i][v] = dot(sum[i][v], token[v], four_weights);
        }
      }
    };
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const Ints begin = kZero ? splat(weight.start[i * blocks + number]) : Ints{};
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[i][v] = begin;
    }
    add_plane(x.numbers);
    if constexpr (planes == 2) {
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sum[i][v] <<= kLowBits;
      add_plane(x.low);
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const int64_t scales = place(v, x.terms / kScaleTerms, at / kScaleTerms, kScaleFloats);
      const Vector scale = load(x.scale + scales), origin = kFloatSums ? load(x.origin + scales) : Vector{};
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const Vector by = splat(weight.scale[i * blocks + number]);
        if constexpr (kFloatSums)
          total[i][v] = fused(fused(reinterpret_cast<Vector>(sum[i][v]), scale, origin), by, total[i][v]);
        else total[i][v] += __builtin_convertvector(sum[i][v], Vector) * by * scale;
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(sums + (i * vectors + v) * kWidth, total[i][v]);
}

// The same of three rows and four lines that were begun.
template <int planes, int block>
inline void add_int8_rows(const QuantizedLines& x, const Int8Rows& weight, int64_t first, int64_t end, float* sums) {
#if defined(__AVX512F__)
  if constexpr (kVnniRows)
    add_vnni_rows<planes, block>({x.numbers + first / 4 * kTokens, x.low ? x.low + first / 4 * kTokens : nullptr,
                                  x.scale + first / kScaleTerms * kScaleFloats, weight.numbers + first,
                                  weight.scale + first / block, weight.start + first / block},
                                 x.terms, (end - first) / kScaleTerms, sums);
#endif
}
#endif

template <int planes, int block, int lines>
void multiply_int8_block(const QuantizedLines& x, const Int8Rows& weight, int64_t rows, float* sums) {
  constexpr int64_t most = kChunkBytes / (planes * lines * kTokens) / kScaleTerms * kScaleTerms;
  const int64_t blocks = x.terms / block, chunks = (x.terms + most - 1) / most;
  const int64_t chunk = (x.terms / kScaleTerms + chunks - 1) / chunks * kScaleTerms;  // as long as the others
  if (weight.offset)
    in_groups<kRegisterRows<lines * kTokenVectors>>(rows, [&]<int count>(int64_t row, std::integral_constant<int, count>) {
      begin_with_offsets<lines, count>(block == kSumTerms ? x.sum : x.block_sum, weight.offset + row * blocks, blocks,
                                       sums + row * lines * kTokens);
    });
#if defined(__ARM_FEATURE_DOTPROD)
  static_assert(lines == 1 && kZero == 0);
  if constexpr (kInt8Pairs) return multiply_int8_pairs<planes, block>(x, weight, rows, chunk, sums);
  for (int64_t first = 0; first < x.terms; first += chunk)
    add_int8_terms<planes, block>(x, weight, rows, first, std::min(x.terms, first + chunk), sums);
#else
  constexpr bool by_vnni = kVnniRows && lines == 4;
  if (by_vnni && !weight.offset) std::fill_n(sums, rows * lines * kTokens, 0.0f);
  for (int64_t first = 0; first < x.terms; first += chunk)
    in_groups<kInt8Rows<lines * kTokenVectors>>(rows, [&]<int count>(int64_t row, std::integral_constant<int, count>) {
      const Int8Rows these{weight.numbers + row * x.terms, weight.scale + row * blocks, nullptr, weight.start + row * blocks};
      const int64_t end = std::min(x.terms, first + chunk);
      float* to = sums + row * lines * kTokens;
      if constexpr (by_vnni && count == 3) add_int8_rows<planes, block>(x, these, first, end, to);
      else add_int8_terms<planes, block, lines, count>(x, these, first, end, first || weight.offset || by_vnni, to);
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
