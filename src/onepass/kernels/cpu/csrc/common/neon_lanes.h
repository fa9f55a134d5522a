// NEON's products by a lane of a vector: four weights come with one load and are never broadcast.
//
//     total[row][v] += x[v] · numbers[row][lane]          fmla by element
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

}  // namespace onepass

#endif
