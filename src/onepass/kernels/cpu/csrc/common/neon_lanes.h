// NEON's products by a lane of a vector: four weights come with one load and are never broadcast.
//
//     total[row][v] += x[v] · numbers[row][lane]          fmla by element
//     sum[row][v]   += Σ_i x[v][4i] · four[row][lane][i]  sdot by element, where the CPU has it
//
// The instructions are asm volatile so that they stay in the order in which they are written: GCC's scheduler moves the
// loads of a whole step to its beginning, runs out of the 32 registers and spills sums. In this order 24 sums, 6 rows of
// numbers and one vector of x fit. Sums are passed by value: an asm operand that is an array's element keeps the array in
// memory.

#pragma once

#if defined(__aarch64__)

#include <cstdint>

#include "common/vectors.h"

namespace onepass {

inline Vector load_in_order(const float* from) {
  Vector value;
  asm volatile("ldr %q0, %1" : "=w"(value) : "m"(*reinterpret_cast<const LooseVector*>(from)));
  return value;
}

template <int lane>
inline Vector add_by_lane(Vector total, Vector x, Vector numbers) {
  asm volatile("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(total) : "w"(x), "w"(numbers), "i"(lane));
  return total;
}

// One term, or one key: x is [vectors · 4], the rows' numbers of it are in `lane` of their vectors.
template <int lane, int rows, int vectors>
inline __attribute__((always_inline)) void add_term(Vector (&total)[rows][vectors], const float* x,
                                                    const Vector (&numbers)[rows]) {
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const Vector token = load_in_order(x + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) total[i][v] = add_by_lane<lane>(total[i][v], token, numbers[i]);
  }
}

// total[row] += Σ_d row[d] · x[d] with x [terms, vectors · 4], term after term.
template <int rows, int vectors>
inline __attribute__((always_inline)) void add_rows(Vector (&total)[rows][vectors], const float* x,
                                                    const float* const (&row)[rows], int64_t terms) {
  constexpr int lanes = vectors * kWidth;
  int64_t d = 0;
  for (; d + 4 <= terms; d += 4, x += 4 * lanes) {
    Vector numbers[rows];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) numbers[i] = load_in_order(row[i] + d);
    add_term<0>(total, x, numbers);
    add_term<1>(total, x + lanes, numbers);
    add_term<2>(total, x + 2 * lanes, numbers);
    add_term<3>(total, x + 3 * lanes, numbers);
  }
  for (; d < terms; ++d, x += lanes) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const Vector token = load(x + v * kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) total[i][v] += splat(row[i][d]) * token;
    }
  }
}

// total[i] += number[i] · x for 4 or 8 numbers that lie side by side.
template <int count, int vectors>
inline __attribute__((always_inline)) void add_side_by_side(Vector (&total)[count][vectors], const float* x,
                                                            const float* number) {
  static_assert(count % 4 == 0);
  Vector numbers[count / 4];
#pragma GCC unroll 8
  for (int i = 0; i < count / 4; ++i) numbers[i] = load_in_order(number + 4 * i);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const Vector token = load_in_order(x + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < count; i += 4) {
      total[i][v] = add_by_lane<0>(total[i][v], token, numbers[i / 4]);
      total[i + 1][v] = add_by_lane<1>(total[i + 1][v], token, numbers[i / 4]);
      total[i + 2][v] = add_by_lane<2>(total[i + 2][v], token, numbers[i / 4]);
      total[i + 3][v] = add_by_lane<3>(total[i + 3][v], token, numbers[i / 4]);
    }
  }
}

#if defined(__ARM_FEATURE_DOTPROD)

// A sum begins at these bits, of the float32 number 1.5 · 2^23: as long as it moves by less than 2^22, which a block of 32
// products of 8 bits does, its bits are those of 1.5 · 2^23 + sum. A subtraction takes half a cycle, scvtf two.
// It is loaded, not copied: the pipelines that load have time left.
alignas(16) inline constexpr float kSumOrigin[4] = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};

inline Ints load_in_order(const void* from) {
  Ints value;
  asm volatile("ldr %q0, %1" : "=w"(value) : "m"(*static_cast<const LooseInts*>(from)));
  return value;
}

inline Ints zero_in_order() {  // which takes no pipeline's time
  Ints zero;
  asm volatile("movi %0.4s, #0" : "=w"(zero));
  return zero;
}
inline Ints shift_in_order(Ints a) {
  asm volatile("shl %0.4s, %0.4s, #8" : "+w"(a));
  return a;
}
inline Vector convert_in_order(Ints a) {
  Vector value;
  asm volatile("scvtf %0.4s, %1.4s" : "=w"(value) : "w"(a));
  return value;
}
inline Vector load_first_lane(const float* from) {
  Vector value;
  asm volatile("ldr %s0, %1" : "=w"(value) : "m"(*from));
  return value;
}
inline Vector subtract_in_order(Vector a, Vector b) {
  asm volatile("fsub %0.4s, %0.4s, %1.4s" : "+w"(a) : "w"(b));
  return a;
}
inline Vector multiply_by_first_lane(Vector a, Vector number) {
  asm volatile("fmul %0.4s, %0.4s, %1.s[0]" : "+w"(a) : "w"(number));
  return a;
}
inline Vector add_in_order(Vector total, Vector a, Vector b) {
  asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(total) : "w"(a), "w"(b));
  return total;
}

template <int lane>
inline Ints dot_by_lane(Ints sum, Ints x, Ints four) {
  asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(x), "w"(four), "i"(lane));
  return sum;
}

// Four terms: x is [vectors · 4 tokens, 4 terms].
template <int lane, int rows, int vectors>
inline __attribute__((always_inline)) void dot_four(Ints (&sum)[rows][vectors], const int32_t* x,
                                                    const Ints (&sixteen)[rows]) {
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const Ints token = load_in_order(static_cast<const void*>(x + v * kWidth));
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) sum[i][v] = dot_by_lane<lane>(sum[i][v], token, sixteen[i]);
  }
}

// sum[row] += Σ row · x of 16 or 32 terms, with x [terms / 4, vectors · 4, 4] and rows `stride` bytes apart.
template <int terms, int rows, int vectors>
inline __attribute__((always_inline)) void dot_rows(Ints (&sum)[rows][vectors], const int32_t* x, const int8_t* row,
                                                    int64_t stride) {
  constexpr int lanes = vectors * kWidth;
#pragma GCC unroll 2
  for (int d = 0; d < terms; d += 16, x += 4 * lanes) {
    Ints sixteen[rows];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) sixteen[i] = load_in_order(static_cast<const void*>(row + i * stride + d));
    dot_four<0>(sum, x, sixteen);
    dot_four<1>(sum, x + lanes, sixteen);
    dot_four<2>(sum, x + 2 * lanes, sixteen);
    dot_four<3>(sum, x + 3 * lanes, sixteen);
  }
}

// sum[row] = Σ row · x of one block, from the origin on; of two planes Σ row · (256 · x + low), from 0 on.
template <int planes, int terms, int rows, int vectors>
inline __attribute__((always_inline)) void dot_block(Ints (&sum)[rows][vectors], const int32_t* x, const int32_t* low,
                                                     const int8_t* row, int64_t stride) {
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sum[i][v] = planes == 2 ? zero_in_order() : load_in_order(static_cast<const void*>(kSumOrigin));
  dot_rows<terms>(sum, x, row, stride);
  if constexpr (planes == 2) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[i][v] = shift_in_order(sum[i][v]);
    dot_rows<terms>(sum, low, row, stride);
  }
}

// total[row] += (Σ row · x) · scale[row] · x_scale for one block: all sums by one operation, then all by the next.
template <int planes, int terms, int rows, int vectors>
inline __attribute__((always_inline)) void add_block(Vector (&total)[rows][vectors], const int32_t* x, const int32_t* low,
                                                     const int8_t* row, int64_t stride, const float* scale,
                                                     int64_t scale_stride, const float* x_scale) {
  const Vector origin = splat(kSumOrigin[0]);
  Ints sum[rows][vectors];
  dot_block<planes, terms>(sum, x, low, row, stride);
  Vector by[rows], part[rows][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) by[i] = load_first_lane(scale + i * scale_stride);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v)
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
      if constexpr (planes == 2) part[i][v] = convert_in_order(sum[i][v]);
      else part[i][v] = subtract_in_order(reinterpret_cast<Vector>(sum[i][v]), origin);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v)
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) part[i][v] = multiply_by_first_lane(part[i][v], by[i]);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const Vector token_scale = load_in_order(x_scale + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) total[i][v] = add_in_order(total[i][v], part[i][v], token_scale);
  }
}

#endif

}  // namespace onepass

#endif
