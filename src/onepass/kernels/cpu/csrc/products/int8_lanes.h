// Products of weights and activations in 8 bits by NEON's sdot, for `int8_products.h`: four weights are a lane of a vector.
//
//     sum[row][v]   += Σ_i x[v][4i] · four[row][lane][i]      i < 4, sdot by element
//     total[row][v] += (sum · x_scale[v]) · scale[row]        once a block of 16 or 32 terms, two fmla
//
// A sum begins at the bits of the float32 number 1.5 · 2^23, its origin. As long as it moves by less than 2^22 its bits are
// those of origin + sum, and fma(origin + sum, x_scale, -origin · x_scale) is sum · x_scale, rounded once: no conversion,
// which takes two cycles. A scale of activations has 22 bits, so that origin · x_scale, three times it, has 24.
//
// Activations in two planes are 8 · high + low, low within -4 and 3: sums of 32 products with at most 1,019 move by less
// than 2^22. They begin at an eighth of the origin's bits and are shifted by 3 between the planes.

#pragma once

#include <cstdint>

#include "common/vectors.h"
#include "products/int8_dot.h"

namespace onepass {

#if defined(__ARM_FEATURE_DOTPROD)

// Bits at which sums begin, of one plane and of two. Loaded, not copied: the pipelines that load have time left.
alignas(16) inline constexpr int32_t kSumBegin[2][4] = {{0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000},
                                                        {0x09680000, 0x09680000, 0x09680000, 0x09680000}};

// One line's activations, from some block on.
struct LineBlocks {
  const int32_t *numbers, *low;  // [terms / 4, 16 tokens]: four bytes each; low: of two planes
  const float *scale, *origin;   // [terms / 32, 16]; origin: -kSumOrigin · scale
};
// Three rows of weights, from some block on.
struct ThreeRows {
  const int8_t* numbers[3];
  const float* scale[3];
};

// The loop is in assembly, with every register named: compilers copy sums from register to register, GCC 4 to 12 of them a
// block, and move loads to where registers run out. What is loaded stands beside what is multiplied, so that
// neither waits for the other's place in the pipelines.
//
//     v0 to v2     sixteen weights of each row, then its scale      v8 to v19     totals, [3 rows, 4 vectors of tokens]
//     v3           activations, then their scale                    v20 to v31    sums, the same
//     v4 to v6     a vector of tokens' sums times their scale
#define ONEPASS_SDOT(sum, row, lane) "sdot v" #sum ".4s, v3.16b, v" #row ".4b[" #lane "]\n\t"
#define ONEPASS_TOKENS(plane, half, lane, v) "ldr q3, [%[" #plane "], #(256 * " #half " + 64 * " #lane " + 16 * " #v ")]\n\t"
// How a sum comes to its first product of a plane: it begins, or is shifted.
#define ONEPASS_BEGIN(sum) "ldr q" #sum ", [%[begin]]\n\t"
#define ONEPASS_SHIFT(sum) "shl v" #sum ".4s, v" #sum ".4s, %[low_bits]\n\t"
#define ONEPASS_STAY(sum)
// Four terms of four tokens with three rows, of sixteen tokens, and sixteen terms.
#define ONEPASS_DOT(come, plane, half, lane, v, a, b, c)                                              \
  ONEPASS_TOKENS(plane, half, lane, v)                                                                \
  come(a) ONEPASS_SDOT(a, 0, lane) come(b) ONEPASS_SDOT(b, 1, lane) come(c) ONEPASS_SDOT(c, 2, lane)
#define ONEPASS_FOUR(come, plane, half, lane)                                                                     \
  ONEPASS_DOT(come, plane, half, lane, 0, 20, 24, 28) ONEPASS_DOT(come, plane, half, lane, 1, 21, 25, 29)         \
  ONEPASS_DOT(come, plane, half, lane, 2, 22, 26, 30) ONEPASS_DOT(come, plane, half, lane, 3, 23, 27, 31)
#define ONEPASS_SIXTEEN(come, plane, half, between)                                                               \
  "ldr q0, [%[row0], #(16 * " #half ")]\n\tldr q1, [%[row1], #(16 * " #half ")]\n\tldr q2, [%[row2], #(16 * " #half ")]\n\t" \
  ONEPASS_FOUR(come, plane, half, 0) between ONEPASS_FOUR(ONEPASS_STAY, plane, half, 1)                           \
  ONEPASS_FOUR(ONEPASS_STAY, plane, half, 2) ONEPASS_FOUR(ONEPASS_STAY, plane, half, 3)
// Addresses move while products are computed: beside sdot there is time for it.
#define ONEPASS_NEXT_SCALES "add %[x_scale], %[x_scale], #64\n\tadd %[origin], %[origin], #64\n\t"
#define ONEPASS_NEXT_ROWS "add %[row0], %[row0], #32\n\tadd %[row1], %[row1], #32\n\tadd %[row2], %[row2], #32\n\t"
// total += (sum · x_scale) · scale
#define ONEPASS_PART(part, sum, v) "ldr q" #part ", [%[origin], #(16 * " #v ")]\n\tfmla v" #part ".4s, v" #sum ".4s, v3.4s\n\t"
#define ONEPASS_ADD(total, part, row) "fmla v" #total ".4s, v" #part ".4s, v" #row ".s[0]\n\t"
#define ONEPASS_ADD_VECTOR(v, a, b, c, d, e, f)                                                       \
  "ldr q3, [%[x_scale], #(16 * " #v ")]\n\t"                                                          \
  ONEPASS_PART(4, d, v) ONEPASS_PART(5, e, v) ONEPASS_PART(6, f, v)                                   \
  ONEPASS_ADD(a, 4, 0) ONEPASS_ADD(b, 5, 1) ONEPASS_ADD(c, 6, 2)
#define ONEPASS_ADD_BLOCK                                                                             \
  "ldr s0, [%[scale0]], #4\n\tldr s1, [%[scale1]], #4\n\tldr s2, [%[scale2]], #4\n\t"                 \
  ONEPASS_ADD_VECTOR(0, 8, 12, 16, 20, 24, 28) ONEPASS_ADD_VECTOR(1, 9, 13, 17, 21, 25, 29)           \
  ONEPASS_ADD_VECTOR(2, 10, 14, 18, 22, 26, 30) ONEPASS_ADD_VECTOR(3, 11, 15, 19, 23, 27, 31)
#define ONEPASS_MOVE_TOTALS(instruction, place)                                                             \
  instruction " q8, q9, [%[" #place "]]\n\t" instruction " q10, q11, [%[" #place "], #32]\n\t"                \
  instruction " q12, q13, [%[" #place "], #64]\n\t" instruction " q14, q15, [%[" #place "], #96]\n\t"         \
  instruction " q16, q17, [%[" #place "], #128]\n\t" instruction " q18, q19, [%[" #place "], #160]\n\t"
#define ONEPASS_BLOCKS(body)                                                                          \
  asm volatile(ONEPASS_MOVE_TOTALS("ldp", from) ".p2align 5\n0:\n\t" body                                               \
               "add %[x], %[x], #512\n\tsubs %[count], %[count], #1\n\tb.ne 0b\n\t" ONEPASS_MOVE_TOTALS("stp", totals) \
               : [x] "+&r"(x.numbers), [low] "+&r"(x.low), [x_scale] "+&r"(x.scale), [origin] "+&r"(x.origin), \
                 [row0] "+&r"(w.numbers[0]), [row1] "+&r"(w.numbers[1]), [row2] "+&r"(w.numbers[2]),     \
                 [scale0] "+&r"(w.scale[0]), [scale1] "+&r"(w.scale[1]), [scale2] "+&r"(w.scale[2]), [count] "+&r"(count) \
               : [from] "r"(from), [totals] "r"(totals), [begin] "r"(kSumBegin[planes - 1]), [low_bits] "i"(kLowBits)   \
               : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
                 "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", \
                 "v30", "v31")

// totals[3 rows][16 tokens] = from + what `count` times 32 terms give, count > 0. The weights have a scale of every `block`.
template <int planes, int block>
inline __attribute__((always_inline)) void add_three_rows(LineBlocks x, ThreeRows w, int64_t count, const float* from, float* totals) {
  static_assert((planes == 1 || planes == 2) && (block == 16 || block == 32));
  x.scale -= 16, x.origin -= 16;
  if constexpr (planes == 1 && block == 32)
    ONEPASS_BLOCKS(ONEPASS_SIXTEEN(ONEPASS_BEGIN, x, 0, ONEPASS_NEXT_SCALES)
                   ONEPASS_SIXTEEN(ONEPASS_STAY, x, 1, ONEPASS_NEXT_ROWS) ONEPASS_ADD_BLOCK);
  if constexpr (planes == 1 && block == 16)
    ONEPASS_BLOCKS(ONEPASS_SIXTEEN(ONEPASS_BEGIN, x, 0, ONEPASS_NEXT_SCALES) ONEPASS_ADD_BLOCK
                   ONEPASS_SIXTEEN(ONEPASS_BEGIN, x, 1, ONEPASS_NEXT_ROWS) ONEPASS_ADD_BLOCK);
  if constexpr (planes == 2 && block == 32)
    ONEPASS_BLOCKS(ONEPASS_SIXTEEN(ONEPASS_BEGIN, x, 0, ONEPASS_NEXT_SCALES) ONEPASS_SIXTEEN(ONEPASS_STAY, x, 1, )
                   ONEPASS_SIXTEEN(ONEPASS_SHIFT, low, 0, ) ONEPASS_SIXTEEN(ONEPASS_STAY, low, 1, ONEPASS_NEXT_ROWS)
                   ONEPASS_ADD_BLOCK "add %[low], %[low], #512\n\t");
  if constexpr (planes == 2 && block == 16)
    ONEPASS_BLOCKS(ONEPASS_SIXTEEN(ONEPASS_BEGIN, x, 0, ONEPASS_NEXT_SCALES) ONEPASS_SIXTEEN(ONEPASS_SHIFT, low, 0, )
                   ONEPASS_ADD_BLOCK
                   ONEPASS_SIXTEEN(ONEPASS_BEGIN, x, 1, ) ONEPASS_SIXTEEN(ONEPASS_SHIFT, low, 1, ONEPASS_NEXT_ROWS)
                   ONEPASS_ADD_BLOCK "add %[low], %[low], #512\n\t");
}

#undef ONEPASS_SDOT
#undef ONEPASS_TOKENS
#undef ONEPASS_BEGIN
#undef ONEPASS_SHIFT
#undef ONEPASS_STAY
#undef ONEPASS_DOT
#undef ONEPASS_FOUR
#undef ONEPASS_SIXTEEN
#undef ONEPASS_NEXT_SCALES
#undef ONEPASS_NEXT_ROWS
#undef ONEPASS_PART
#undef ONEPASS_ADD
#undef ONEPASS_ADD_VECTOR
#undef ONEPASS_ADD_BLOCK
#undef ONEPASS_MOVE_TOTALS
#undef ONEPASS_BLOCKS

#endif

}  // namespace onepass
