// Products of weights and rotated activations in 8 bits by AVX-512's vpdpbusd, for `rotated_products.h`: six rows and four
// lines, whose sums are in 24 registers; totals are in memory.
//
//     sum[row][line]   += Σ_i x[line][4i] · four[row][i]      i < 4, vpdpbusd: four weights in every lane
//     total[row][line] += (sum · x_scale[line] + origin[line]) · scale[row]        once a block, two FMA
//
// A sum begins at the bits of the float32 number 1.5 · 2^23 (int8_dot.h), so that it is never converted. Thirty-two terms
// are 192 vpdpbusd, 96 cycles of two pipelines; a block's beginning and end are some 40 cycles.
//
// The loop is in assembly, with every register named, for the reasons in int8_vnni.h.
//
//     zmm0 to zmm3      four lines' activations      zmm8 to zmm31     sums, [6 rows, 4 lines]
//     zmm4, zmm5        four weights, by turns       at the end zmm0, zmm1: a line's scale and origin; zmm2 to zmm7: totals

#pragma once

#include <cstdint>

#include "products/int8_dot.h"

namespace onepass {

constexpr int kVnniRowGroup = 6;

// vnni_shim.h of the tests, which multiplies in software, says ONEPASS_SOFTWARE_DOT.
#if defined(__AVX512F__) && defined(__AVX512VNNI__) && !defined(ONEPASS_SOFTWARE_DOT)
constexpr bool kVnniRowGroups = true;

#define ONEPASS_DOT_ROW(place, weight, a, b, c, d)                                                                   \
  "vpbroadcastd " place ", %%zmm" weight "\n\tvpdpbusd %%zmm" weight ", %%zmm0, %%zmm" #a                          \
  "\n\tvpdpbusd %%zmm" weight ", %%zmm1, %%zmm" #b "\n\tvpdpbusd %%zmm" weight ", %%zmm2, %%zmm" #c                \
  "\n\tvpdpbusd %%zmm" weight ", %%zmm3, %%zmm" #d "\n\t"
#define ONEPASS_FOUR(n)                                                                                              \
  "vmovdqu64 256*" #n "(%[x]), %%zmm0\n\tvmovdqu64 256*" #n "+64(%[x]), %%zmm1\n\t"                                \
  "vmovdqu64 256*" #n "+128(%[x]), %%zmm2\n\tvmovdqu64 256*" #n "+192(%[x]), %%zmm3\n\t"                           \
  ONEPASS_DOT_ROW("4*" #n "(%[row])", "4", 8, 9, 10, 11)                                                            \
  ONEPASS_DOT_ROW("4*" #n "(%[row],%[terms])", "5", 12, 13, 14, 15)                                                 \
  ONEPASS_DOT_ROW("4*" #n "(%[row],%[terms],2)", "4", 16, 17, 18, 19)                                               \
  ONEPASS_DOT_ROW("4*" #n "(%[other])", "5", 20, 21, 22, 23)                                                        \
  ONEPASS_DOT_ROW("4*" #n "(%[other],%[terms])", "4", 24, 25, 26, 27)                                               \
  ONEPASS_DOT_ROW("4*" #n "(%[other],%[terms],2)", "5", 28, 29, 30, 31)
#define ONEPASS_BEGIN_ROW(n, a, b, c, d)                                                                             \
  "vpbroadcastd 4*" #n "(%[start]), %%zmm" #a "\n\tvmovdqa64 %%zmm" #a ", %%zmm" #b                                 \
  "\n\tvmovdqa64 %%zmm" #a ", %%zmm" #c "\n\tvmovdqa64 %%zmm" #a ", %%zmm" #d "\n\t"
#define ONEPASS_BEGIN                                                                                                \
  ONEPASS_BEGIN_ROW(0, 8, 9, 10, 11) ONEPASS_BEGIN_ROW(1, 12, 13, 14, 15) ONEPASS_BEGIN_ROW(2, 16, 17, 18, 19)      \
  ONEPASS_BEGIN_ROW(3, 20, 21, 22, 23) ONEPASS_BEGIN_ROW(4, 24, 25, 26, 27) ONEPASS_BEGIN_ROW(5, 28, 29, 30, 31)
#define ONEPASS_SCALE(sum) "vfmadd213ps %%zmm1, %%zmm0, %%zmm" #sum "\n\t"
// Totals that begin, and those to which sums are added.
#define ONEPASS_FIRST(at, n, total, sum)                                                                             \
  "vmulps 4*" #n "(%[scale])%{1to16%}, %%zmm" #sum ", %%zmm" #total "\n\tvmovups %%zmm" #total ", 256*" #n "+" at "(%[totals])\n\t"
#define ONEPASS_LATER(at, n, total, sum)                                                                             \
  "vmovups 256*" #n "+" at "(%[totals]), %%zmm" #total "\n\tvfmadd231ps 4*" #n "(%[scale])%{1to16%}, %%zmm" #sum     \
  ", %%zmm" #total "\n\tvmovups %%zmm" #total ", 256*" #n "+" at "(%[totals])\n\t"
#define ONEPASS_END_LINE(add, at, scales, a, b, c, d, e, f)                                                          \
  "vmovups " scales "(%[x_scale]), %%zmm0\n\tvmovups " scales "+64(%[x_scale]), %%zmm1\n\t"                         \
  ONEPASS_SCALE(a) ONEPASS_SCALE(b) ONEPASS_SCALE(c) ONEPASS_SCALE(d) ONEPASS_SCALE(e) ONEPASS_SCALE(f)             \
  add(at, 0, 2, a) add(at, 1, 3, b) add(at, 2, 4, c) add(at, 3, 5, d) add(at, 4, 6, e) add(at, 5, 7, f)
#define ONEPASS_END(add)                                                                                             \
  ONEPASS_END_LINE(add, "0", "0", 8, 12, 16, 20, 24, 28) ONEPASS_END_LINE(add, "64", "128", 9, 13, 17, 21, 25, 29)  \
  ONEPASS_END_LINE(add, "128", "256", 10, 14, 18, 22, 26, 30) ONEPASS_END_LINE(add, "192", "384", 11, 15, 19, 23, 27, 31)
#define ONEPASS_BLOCK(add)                                                                                           \
  asm volatile(ONEPASS_BEGIN ".p2align 5\n1:\n\t" ONEPASS_FOUR(0) ONEPASS_FOUR(1) ONEPASS_FOUR(2) ONEPASS_FOUR(3)   \
               ONEPASS_FOUR(4) ONEPASS_FOUR(5) ONEPASS_FOUR(6) ONEPASS_FOUR(7)                                       \
               "add $2048, %[x]\n\tadd $32, %[row]\n\tadd $32, %[other]\n\tdec %[count]\n\tjne 1b\n\t" ONEPASS_END(add) \
               : [x] "+&r"(x), [row] "+&r"(row), [other] "+&r"(other), [count] "+&r"(count)                         \
               : [terms] "r"(terms), [start] "r"(start), [x_scale] "r"(x_scale), [scale] "r"(scale), [totals] "r"(totals) \
               : "memory", "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9",    \
                 "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", \
                 "zmm21", "zmm22", "zmm23", "zmm24", "zmm25", "zmm26", "zmm27", "zmm28", "zmm29", "zmm30", "zmm31")

// totals[6 rows][4 lines][16 tokens], begun or added to with what a block of `count` times 32 terms gives. Four lines'
// activations are [terms / 4, 4, 16], four bytes each; x_scale is [4, 2, 16], of each line a scale and its origin; start and
// scale are the six rows'.
template <bool first>
inline void add_vnni_block(const int32_t* x, const int8_t* row, int64_t terms, int64_t count, const int32_t* start,
                           const float* x_scale, const float* scale, float* totals) {
  const int8_t* other = row + 3 * terms;
  if constexpr (first) ONEPASS_BLOCK(ONEPASS_FIRST);
  else ONEPASS_BLOCK(ONEPASS_LATER);
}

#undef ONEPASS_DOT_ROW
#undef ONEPASS_FOUR
#undef ONEPASS_BEGIN_ROW
#undef ONEPASS_BEGIN
#undef ONEPASS_SCALE
#undef ONEPASS_FIRST
#undef ONEPASS_LATER
#undef ONEPASS_END_LINE
#undef ONEPASS_END
#undef ONEPASS_BLOCK
#else
constexpr bool kVnniRowGroups = false;
#endif

}  // namespace onepass
