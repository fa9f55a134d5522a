// The compiler's own vectors: one source for AVX-512, AVX2 and NEON.

#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace onepass {

#if defined(__AVX512F__)
constexpr int kWidth = 16, kMaxVectors = 4, kAccumulators = 24;
#elif defined(__AVX__)
constexpr int kWidth = 8, kMaxVectors = 2, kAccumulators = 12;
#else
constexpr int kWidth = 4, kMaxVectors = 4, kAccumulators = 24;
#endif

// Rows whose sums for so many vectors of lanes fit in registers.
template <int vectors>
constexpr int kRegisterRows = kAccumulators / vectors < 8 ? kAccumulators / vectors : 8;

typedef float Vector __attribute__((vector_size(kWidth * 4)));
typedef int32_t Ints __attribute__((vector_size(kWidth * 4)));
typedef float LooseVector __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
typedef int32_t LooseInts __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const LooseVector*>(from); }
inline Ints load(const int32_t* from) { return *reinterpret_cast<const LooseInts*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<LooseVector*>(to) = value; }
inline void store(int32_t* to, Ints value) { *reinterpret_cast<LooseInts*>(to) = value; }
inline Vector splat(float value) { return value - Vector{}; }
inline Ints splat(int32_t value) { return value - Ints{}; }
#if defined(__aarch64__)
inline Vector larger(Vector a, Vector b) {
  return reinterpret_cast<Vector>(vmaxnmq_f32(reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
}
inline Vector smaller(Vector a, Vector b) {
  return reinterpret_cast<Vector>(vminnmq_f32(reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
}
inline Vector magnitude(Vector a) { return reinterpret_cast<Vector>(vabsq_f32(reinterpret_cast<float32x4_t>(a))); }
#else
inline Vector magnitude(Vector a) { return a > -a ? a : -a; }
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }
inline Vector smaller(Vector a, Vector b) { return a < b ? a : b; }
#endif

// a / b of finite numbers that are no smaller than 2^-126, to 1e-7.
inline Vector quotient(Vector a, Vector b) {
#if defined(__AVX512F__)  // a division takes as long as forty products
  const Vector one = reinterpret_cast<Vector>(_mm512_rcp14_ps(reinterpret_cast<__m512>(b)));
  return a * (one * (2.0f - b * one));
#else
  return a / b;
#endif
}

// 2^x for x ≤ 126, to 1e-7 (attention/fast_math.py); exactly 0 from -127 down.
inline Vector power_of_two(Vector x) {
  const Vector shift = splat(12582912.0f);  // 1.5 · 2^23: what is added to it is rounded to whole numbers
  x = larger(x, splat(-127.0f));
  const Vector shifted = x + shift, part = x - (shifted - shift);
  Vector value = splat(0.001326472614891827f);
  value = value * part + 0.009671512991189957f;
  value = value * part + 0.05550733581185341f;
  value = value * part + 0.24022242426872253f;
  value = value * part + 0.6931470036506653f;
  value = value * part + 1.0f;
  return reinterpret_cast<Vector>(reinterpret_cast<Ints>(value) + (reinterpret_cast<Ints>(shifted) << 23));
}

#if defined(__aarch64__)
// to[column][row] of from[row][column], kWidth x kWidth.
inline void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  const float32x4_t a = vld1q_f32(from), b = vld1q_f32(from + from_stride);
  const float32x4_t c = vld1q_f32(from + 2 * from_stride), d = vld1q_f32(from + 3 * from_stride);
  const float64x2_t ab = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), cd = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
  const float64x2_t ba = vreinterpretq_f64_f32(vtrn2q_f32(a, b)), dc = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
  vst1q_f32(to, vreinterpretq_f32_f64(vtrn1q_f64(ab, cd)));
  vst1q_f32(to + to_stride, vreinterpretq_f32_f64(vtrn1q_f64(ba, dc)));
  vst1q_f32(to + 2 * to_stride, vreinterpretq_f32_f64(vtrn2q_f64(ab, cd)));
  vst1q_f32(to + 3 * to_stride, vreinterpretq_f32_f64(vtrn2q_f64(ba, dc)));
}
#else
// The numbers of a and b by turns, from the first of each on or from the middle.
template <bool from_middle, int... lane>
inline Vector by_turns(Vector a, Vector b, std::integer_sequence<int, lane...>) {
  constexpr int first = from_middle ? kWidth / 2 : 0;
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (first + lane / 2 + lane % 2 * kWidth)...);
#else
  return __builtin_shuffle(a, b, Ints{(first + lane / 2 + lane % 2 * kWidth)...});
#endif
}

// to[column][row] of from[row][column], kWidth x kWidth: each round puts rows that are half of all apart side by side.
inline void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  constexpr auto lanes = std::make_integer_sequence<int, kWidth>();
  Vector rows[kWidth], next[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) rows[i] = load(from + i * from_stride);
#pragma GCC unroll 4
  for (int apart = 1; apart < kWidth; apart *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth / 2; ++i) {
      next[2 * i] = by_turns<false>(rows[i], rows[i + kWidth / 2], lanes);
      next[2 * i + 1] = by_turns<true>(rows[i], rows[i + kWidth / 2], lanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) store(to + i * to_stride, rows[i]);
}
#endif

// call(start, constant) for groups of `most` of `total`, then of 4, 2 and 1, where these are fewer.
template <int most, typename Call>
inline void in_groups(int64_t total, Call call) {
  int64_t at = 0;
  for (; at + most <= total; at += most) call(at, std::integral_constant<int, most>());
  if constexpr (most > 4)
    for (; at + 4 <= total; at += 4) call(at, std::integral_constant<int, 4>());
  for (; at + 2 <= total; at += 2) call(at, std::integral_constant<int, 2>());
  if (at < total) call(at, std::integral_constant<int, 1>());
}

}  // namespace onepass
