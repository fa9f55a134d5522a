// Products of numbers in bf16 with float32 sums by NEON's bfmmla: what `cpu_products.h` calls for weights of 16 bits where
// the target has it, and nothing of XLA's.
//
//     bfmmla    sums[2 rows][2 tokens] += w[2 rows][4 terms] · x[2 tokens][4 terms]ᵀ
//
// Rows and tokens come in pairs, terms in steps of four. A line's 16 tokens are rounded to bf16 once a call,
// [steps, 8 pairs, 2 tokens, 4 terms]; the rows of a panel are brought into the like order, [pairs, steps, 2 rows, 4 terms],
// once a panel, where others would be widened: the weight itself stays as it lies. Missing terms and the second row of an
// odd last pair are 0. Sums of 3 pairs of rows and 8 pairs of tokens are in 24 registers; a step is 24 bfmmla and 11 loads.
//
// bfmmla adds two products at a time and rounds in its own way, without denormal numbers (it ignores the rounding mode):
// sums are within float32's rounding of the exact ones, but not to the bit those of another instruction. A sum depends on
// its own row and token only.

#pragma once

#include <algorithm>
#include <cstdint>

#include "common/neon_lanes.h"
#include "common/neon_pairs.h"
#include "common/vectors.h"

namespace onepass {

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kBf16Pairs = true;
constexpr const char* kBf16Name = "neon-bf16";
#else
constexpr bool kBf16Pairs = false;
constexpr const char* kBf16Name = "float32";
#endif

constexpr int kStepTerms = 4;               // of an instruction
constexpr int kPairNumbers = 2 * kStepTerms;  // of a vector
constexpr int64_t kBf16ChunkTerms = 1024;   // of x at a time: half of a first cache of 64 KiB

// Steps come in twos.
inline int64_t pair_terms(int64_t terms) { return (terms + 2 * kStepTerms - 1) / (2 * kStepTerms) * (2 * kStepTerms); }
inline int64_t line_numbers(int64_t terms) { return 16 * pair_terms(terms); }
inline int64_t panel_numbers(int64_t rows, int64_t terms) { return (rows + 1) / 2 * 2 * pair_terms(terms); }

// Of a line, [terms, 16] in float32.
void round_line(const float* x, int64_t terms, uint16_t* to);
// Of rows one after another.
void pair_rows(const uint16_t* weight, int64_t rows, int64_t terms, uint16_t* to);
// sums[row][16] of rows in pairs for one line; of an odd number of rows one row more is written.
void multiply_bf16_pairs(const uint16_t* x, int64_t terms, const uint16_t* weight, int64_t rows, float* sums);

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

inline void round_line(const float* x, int64_t terms, uint16_t* to) {
  for (int64_t d = 0; d < pair_terms(terms); d += kStepTerms)
    for (int lane = 0; lane < kPairTokens; lane += kWidth, to += 2 * kPairNumbers) {
      float32x4_t term[kStepTerms];
      for (int i = 0; i < kStepTerms; ++i)
        term[i] = d + i < terms ? vld1q_f32(x + (d + i) * kPairTokens + lane) : vdupq_n_f32(0);
      // Four terms of four tokens become four tokens with four terms each.
      const auto low = vzipq_f32(term[0], term[2]), high = vzipq_f32(term[1], term[3]);
      const auto first = vzipq_f32(low.val[0], high.val[0]), second = vzipq_f32(low.val[1], high.val[1]);
      const auto put = [](uint16_t* at, float32x4x2_t tokens) {
        const bfloat16x8_t pair = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(tokens.val[0]), tokens.val[1]);
        vst1q_u16(at, vreinterpretq_u16_bf16(pair));
      };
      put(to, first), put(to + kPairNumbers, second);
    }
}

inline void pair_rows(const uint16_t* weight, int64_t rows, int64_t terms, uint16_t* to) {
  for (int64_t row = 0; row < rows; row += 2) {
    const uint16_t *upper = weight + row * terms, *lower = row + 1 < rows ? upper + terms : nullptr;
    int64_t d = 0;
    for (; d + 8 <= terms; d += 8, to += 2 * kPairNumbers) {
      const uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(upper + d));
      const uint64x2_t b = lower ? vreinterpretq_u64_u16(vld1q_u16(lower + d)) : vdupq_n_u64(0);
      vst1q_u16(to, vreinterpretq_u16_u64(vtrn1q_u64(a, b)));
      vst1q_u16(to + kPairNumbers, vreinterpretq_u16_u64(vtrn2q_u64(a, b)));
    }
    for (; d < pair_terms(terms); d += kStepTerms, to += kPairNumbers)
      for (int i = 0; i < kStepTerms; ++i) {
        to[i] = d + i < terms ? upper[d + i] : 0;
        to[kStepTerms + i] = lower && d + i < terms ? lower[d + i] : 0;
      }
  }
}

// asm volatile as in neon_lanes.h: in the written order no sum is spilled.
inline Vector load_pair(const uint16_t* from) { return load_in_order(reinterpret_cast<const float*>(from)); }

inline Vector add_pair(Vector total, Vector rows, Vector tokens) {
  asm volatile("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(total) : "w"(rows), "w"(tokens));
  return total;
}

template <int pairs>
inline __attribute__((always_inline)) void add_step(Vector (&total)[pairs][kPairTokens / 2], const uint16_t* x,
                                                    const uint16_t* const (&row)[pairs], int64_t at) {
  Vector rows[pairs];
#pragma GCC unroll 8
  for (int i = 0; i < pairs; ++i) rows[i] = load_pair(row[i] + at);
#pragma GCC unroll 8
  for (int p = 0; p < kPairTokens / 2; ++p) {
    const Vector tokens = load_pair(x + p * kPairNumbers);
#pragma GCC unroll 8
    for (int i = 0; i < pairs; ++i) total[i][p] = add_pair(total[i][p], rows[i], tokens);
  }
}

// Adds to the sums of pairs of rows, or begins them; `terms` is a multiple of 8, `stride` that of pairs of rows.
template <int pairs>
__attribute__((noinline)) void add_bf16_terms(const uint16_t* x, const uint16_t* weight, int64_t stride, int64_t terms,
                                              bool begin, float* sums) {
  Vector total[pairs][kPairTokens / 2] = {};
  if (!begin) load_sums(sums, total);
  const uint16_t* row[pairs];
#pragma GCC unroll 8
  for (int i = 0; i < pairs; ++i) row[i] = weight + i * stride;
  for (int64_t at = 0; at < 2 * terms; at += 2 * kPairNumbers, x += 2 * kPairTokens * kStepTerms) {
    add_step(total, x, row, at);
    add_step(total, x + kPairTokens * kStepTerms, row, at + kPairNumbers);
  }
  store_sums(total, sums);
}

inline void multiply_bf16_pairs(const uint16_t* x, int64_t terms, const uint16_t* weight, int64_t rows, float* sums) {
  const int64_t padded = pair_terms(terms), pairs = (rows + 1) / 2, stride = 2 * padded;
  for (int64_t start = 0; start < padded; start += kBf16ChunkTerms) {
    const int64_t count = std::min(kBf16ChunkTerms, padded - start);
    in_threes(pairs, [&]<int together>(int64_t pair, std::integral_constant<int, together>) {
      add_bf16_terms<together>(x + start * kPairTokens, weight + pair * stride + 2 * start, stride, count, start == 0,
                               sums + 2 * pair * kPairTokens);
    });
  }
}

#endif

}  // namespace onepass
