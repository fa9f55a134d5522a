// Products of weights and activations in 8 bits by AVX-512's vpdpbusd, for `int8_products.h`: three rows and four lines, whose
// sums and totals are in 24 registers.
//
//     sum[row][line]   += Σ_i x[line][4i] · four[row][i]      i < 4, vpdpbusd: four weights in every lane
//     total[row][line] += (sum · x_scale[line] + origin[line]) · scale[row]        once a block of 16 or 32 terms, two FMA
//
// A sum begins at the bits of the float32 number 1.5 · 2^23 (int8_dot.h), so that it is never converted, and activations may
// be in two planes, as in int8_lanes.h. A block of 32 terms is 96 vpdpbusd and 24 FMA, 60 cycles of two pipelines.
//
// The loop is in assembly, with every register named: GCC 12 computes every line's address anew for every four terms and
// copies sums from register to register (measured: 15 to 20 % of its time).
//
//     zmm0 to zmm3      four lines' activations; zmm0: their scale      zmm8 to zmm19     sums, [3 rows, 4 lines]
//     zmm4              four weights                                    zmm20 to zmm31    totals, the same
//     zmm5 to zmm7      the rows' scales

#pragma once

#include <cstdint>

#include "products/int8_dot.h"

namespace onepass {

// vnni_shim.h of the tests, which multiplies in software, says ONEPASS_SOFTWARE_DOT.
#if defined(__AVX512F__) && defined(__AVX512VNNI__) && !defined(ONEPASS_SOFTWARE_DOT)
constexpr bool kVnniRows = true;

// Four lines' activations and three rows of weights, from some block on.
struct VnniBlock {
  const int32_t *numbers, *low;  // [lines, terms / 4, 16 tokens]: four bytes each; low: of two planes
  const float* scale;            // [lines, terms / 32, 2, 16]: a scale and its origin
  const int8_t* weight;          // [rows, terms]
  const float* weight_scale;     // [rows, terms / block]
  const int32_t* start;          // the same
};

#define ONEPASS_TOKENS(plane, d)                                                                                     \
  "vmovdqu64 64*" #d "(%[" #plane "]), %%zmm0\n\tvmovdqu64 64*" #d "(%[" #plane "],%[line]), %%zmm1\n\t"           \
  "vmovdqu64 64*" #d "(%[" #plane "],%[line],2), %%zmm2\n\tvmovdqu64 64*" #d "(%[" #plane "],%[three]), %%zmm3\n\t"
#define ONEPASS_DOT_ROW(place, a, b, c, d)                                                                           \
  "vpbroadcastd " place ", %%zmm4\n\tvpdpbusd %%zmm4, %%zmm0, %%zmm" #a "\n\tvpdpbusd %%zmm4, %%zmm1, %%zmm" #b     \
  "\n\tvpdpbusd %%zmm4, %%zmm2, %%zmm" #c "\n\tvpdpbusd %%zmm4, %%zmm3, %%zmm" #d "\n\t"
#define ONEPASS_FOUR(plane, d)                                                                                       \
  ONEPASS_TOKENS(plane, d) ONEPASS_DOT_ROW("4*" #d "(%[row])", 8, 9, 10, 11)                                        \
  ONEPASS_DOT_ROW("4*" #d "(%[row],%[terms])", 12, 13, 14, 15)                                                      \
  ONEPASS_DOT_ROW("4*" #d "(%[row],%[terms],2)", 16, 17, 18, 19)
#define ONEPASS_FIRST_HALF(plane) ONEPASS_FOUR(plane, 0) ONEPASS_FOUR(plane, 1) ONEPASS_FOUR(plane, 2) ONEPASS_FOUR(plane, 3)
#define ONEPASS_SECOND_HALF(plane) ONEPASS_FOUR(plane, 4) ONEPASS_FOUR(plane, 5) ONEPASS_FOUR(plane, 6) ONEPASS_FOUR(plane, 7)
#define ONEPASS_BEGIN_ROW(place, a, b, c, d)                                                                         \
  "vpbroadcastd " place ", %%zmm" #a "\n\tvmovdqa64 %%zmm" #a ", %%zmm" #b "\n\tvmovdqa64 %%zmm" #a ", %%zmm" #c    \
  "\n\tvmovdqa64 %%zmm" #a ", %%zmm" #d "\n\t"
#define ONEPASS_BEGIN(place)                                                                                         \
  ONEPASS_BEGIN_ROW(place "(%[start])", 8, 9, 10, 11) ONEPASS_BEGIN_ROW(place "(%[start],%[blocks],4)", 12, 13, 14, 15) \
  ONEPASS_BEGIN_ROW(place "(%[start],%[blocks],8)", 16, 17, 18, 19)
#define ONEPASS_SHIFT_ROW(a, b, c, d)                                                                                \
  "vpslld %[low_bits], %%zmm" #a ", %%zmm" #a "\n\tvpslld %[low_bits], %%zmm" #b ", %%zmm" #b                       \
  "\n\tvpslld %[low_bits], %%zmm" #c ", %%zmm" #c "\n\tvpslld %[low_bits], %%zmm" #d ", %%zmm" #d "\n\t"
#define ONEPASS_SHIFT ONEPASS_SHIFT_ROW(8, 9, 10, 11) ONEPASS_SHIFT_ROW(12, 13, 14, 15) ONEPASS_SHIFT_ROW(16, 17, 18, 19)
#define ONEPASS_ADD_LINE(base, index, a, b, c, d, e, f)                                                              \
  "vmovups (" base index "), %%zmm0\n\tvfmadd213ps 64(" base index "), %%zmm0, %%zmm" #a                            \
  "\n\tvfmadd213ps 64(" base index "), %%zmm0, %%zmm" #b "\n\tvfmadd213ps 64(" base index "), %%zmm0, %%zmm" #c     \
  "\n\tvfmadd231ps %%zmm5, %%zmm" #a ", %%zmm" #d "\n\tvfmadd231ps %%zmm6, %%zmm" #b ", %%zmm" #e                   \
  "\n\tvfmadd231ps %%zmm7, %%zmm" #c ", %%zmm" #f "\n\t"
#define ONEPASS_ADD(place)                                                                                           \
  "vbroadcastss " place "(%[weight_scale]), %%zmm5\n\tvbroadcastss " place "(%[weight_scale],%[blocks],4), %%zmm6\n\t" \
  "vbroadcastss " place "(%[weight_scale],%[blocks],8), %%zmm7\n\t"                                                 \
  ONEPASS_ADD_LINE("%[scale]", "", 8, 12, 16, 20, 24, 28) ONEPASS_ADD_LINE("%[scale]", ",%[terms],4", 9, 13, 17, 21, 25, 29) \
  ONEPASS_ADD_LINE("%[scale]", ",%[terms],8", 10, 14, 18, 22, 26, 30) ONEPASS_ADD_LINE("%[last]", "", 11, 15, 19, 23, 27, 31)
#define ONEPASS_LOAD(at, n) "vmovups 64*" #at "(%[totals]), %%zmm" #n "\n\t"
#define ONEPASS_STORE(at, n) "vmovups %%zmm" #n ", 64*" #at "(%[totals])\n\t"
#define ONEPASS_TOTALS(move)                                                                                         \
  move(0, 20) move(1, 21) move(2, 22) move(3, 23) move(4, 24) move(5, 25) move(6, 26) move(7, 27) move(8, 28)       \
  move(9, 29) move(10, 30) move(11, 31)
#define ONEPASS_BLOCKS(scales, body, next)                                                                           \
  asm volatile(ONEPASS_TOTALS(ONEPASS_LOAD) ".p2align 5\n1:\n\t" body                                               \
               "add $512, %[x]\n\tadd $32, %[row]\n\tadd $128, %[scale]\n\tadd $128, %[last]\n\t"                   \
               "add $" #scales ", %[weight_scale]\n\tadd $" #scales ", %[start]\n\t" next                           \
               "dec %[count]\n\tjne 1b\n\t" ONEPASS_TOTALS(ONEPASS_STORE)                                           \
               : [x] "+&r"(from.numbers), [low] "+&r"(from.low), [row] "+&r"(from.weight), [scale] "+&r"(from.scale), \
                 [last] "+&r"(last), [weight_scale] "+&r"(from.weight_scale), [start] "+&r"(from.start), [count] "+&r"(count) \
               : [line] "r"(16 * terms), [three] "r"(48 * terms), [terms] "r"(terms), [blocks] "r"(terms / block),  \
                 [totals] "r"(totals), [low_bits] "i"(kLowBits)                                                     \
               : "memory", "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9",    \
                 "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", \
                 "zmm21", "zmm22", "zmm23", "zmm24", "zmm25", "zmm26", "zmm27", "zmm28", "zmm29", "zmm30", "zmm31")

// totals[3 rows][4 lines][16 tokens] += what `count` times 32 terms give, count > 0. Rows have `terms` numbers, lines too; the
// weights have a scale of every `block`.
template <int planes, int block>
__attribute__((noinline)) void add_vnni_rows(VnniBlock from, int64_t terms, int64_t count, float* totals) {
  static_assert((planes == 1 || planes == 2) && (block == 16 || block == 32));
  const float* last = from.scale + 3 * terms;  // the fourth line's
  if constexpr (planes == 1 && block == 32)
    ONEPASS_BLOCKS(4, ONEPASS_BEGIN("0") ONEPASS_FIRST_HALF(x) ONEPASS_SECOND_HALF(x) ONEPASS_ADD("0"), "");
  if constexpr (planes == 1 && block == 16)
    ONEPASS_BLOCKS(8, ONEPASS_BEGIN("0") ONEPASS_FIRST_HALF(x) ONEPASS_ADD("0") ONEPASS_BEGIN("4")
                   ONEPASS_SECOND_HALF(x) ONEPASS_ADD("4"), "");
  if constexpr (planes == 2 && block == 32)
    ONEPASS_BLOCKS(4, ONEPASS_BEGIN("0") ONEPASS_FIRST_HALF(x) ONEPASS_SECOND_HALF(x) ONEPASS_SHIFT
                   ONEPASS_FIRST_HALF(low) ONEPASS_SECOND_HALF(low) ONEPASS_ADD("0"), "add $512, %[low]\n\t");
  if constexpr (planes == 2 && block == 16)
    ONEPASS_BLOCKS(8, ONEPASS_BEGIN("0") ONEPASS_FIRST_HALF(x) ONEPASS_SHIFT ONEPASS_FIRST_HALF(low) ONEPASS_ADD("0")
                   ONEPASS_BEGIN("4") ONEPASS_SECOND_HALF(x) ONEPASS_SHIFT ONEPASS_SECOND_HALF(low) ONEPASS_ADD("4"),
                   "add $512, %[low]\n\t");
}

#undef ONEPASS_TOKENS
#undef ONEPASS_DOT_ROW
#undef ONEPASS_FOUR
#undef ONEPASS_FIRST_HALF
#undef ONEPASS_SECOND_HALF
#undef ONEPASS_BEGIN_ROW
#undef ONEPASS_BEGIN
#undef ONEPASS_SHIFT_ROW
#undef ONEPASS_SHIFT
#undef ONEPASS_ADD_LINE
#undef ONEPASS_ADD
#undef ONEPASS_LOAD
#undef ONEPASS_STORE
#undef ONEPASS_TOTALS
#undef ONEPASS_BLOCKS
#else
constexpr bool kVnniRows = false;
#endif

}  // namespace onepass
