// How numbers are given to tiles, which multiply bf16 alone.
//
// A bf16 number is itself. A float32 number is the sum of three, exactly (its 24 bits are 8 + 8 + 8), in three planes; a
// product of two is the sum of six, in float32: the three that are left out are together below 2^-23 of it.

#pragma once

#include <algorithm>
#include <type_traits>

#include "amx/tiles.h"
#include "xla/ffi/api/ffi.h"

namespace onepass {

template <typename Number>
constexpr int kPlanes = std::is_same_v<Number, float> ? 3 : 1;

template <typename Number>
using Numbers = xla::ffi::Buffer<std::is_same_v<Number, float> ? xla::ffi::F32 : xla::ffi::BF16>;

template <typename Number>
const Number* numbers(const Numbers<Number>& buffer) {
  return reinterpret_cast<const Number*>(buffer.untyped_data());
}

// Thirty-two numbers in float32.
struct Pair {
  __m512 low, high;
};

inline __m512i narrow(Pair numbers) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(numbers.high, numbers.low));
}

inline __m512 widen(__m256i numbers) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
}

inline Pair widen(__m512i numbers) {
  return {widen(_mm512_castsi512_si256(numbers)), widen(_mm512_extracti64x4_epi64(numbers, 1))};
}

inline Pair load(const float* from) { return {_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)}; }
inline Pair load(const bf16* from) { return widen(_mm512_loadu_si512(from)); }

inline void store(float* to, Pair numbers) {
  _mm512_storeu_ps(to, numbers.low);
  _mm512_storeu_ps(to + 16, numbers.high);
}
inline void store(bf16* to, Pair numbers) { _mm512_storeu_si512(to, narrow(numbers)); }

inline Pair operator*(Pair a, Pair b) { return {_mm512_mul_ps(a.low, b.low), _mm512_mul_ps(a.high, b.high)}; }
inline Pair operator+(Pair a, Pair b) { return {_mm512_add_ps(a.low, b.low), _mm512_add_ps(a.high, b.high)}; }
inline Pair operator-(Pair a, Pair b) { return {_mm512_sub_ps(a.low, b.low), _mm512_sub_ps(a.high, b.high)}; }
inline Pair both(float number) { return {_mm512_set1_ps(number), _mm512_set1_ps(number)}; }

// Thirty-two numbers, in their planes, `plane_bytes` apart.
template <int planes>
inline void put(Pair numbers, void* to, int64_t plane_bytes) {
  for (int plane = 0; plane < planes; ++plane) {
    const __m512i cut = narrow(numbers);
    _mm512_storeu_si512(static_cast<char*>(to) + plane * plane_bytes, cut);
    if (plane + 1 < planes) numbers = numbers - widen(cut);
  }
}

// Sixteen of them.
template <int planes>
inline void put(__m512 numbers, void* to, int64_t plane_bytes) {
  for (int plane = 0; plane < planes; ++plane) {
    const __m256i cut = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(numbers));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<char*>(to) + plane * plane_bytes), cut);
    if (plane + 1 < planes) numbers = _mm512_sub_ps(numbers, widen(cut));
  }
}

// `rows` of 16 rows of 32 numbers, `stride` of them apart, become the right operand of a product, a tile for each plane.
template <typename Number>
inline void pack_transposed(const Number* source, int64_t stride, int64_t rows, char* tiles) {
  if constexpr (kPlanes<Number> == 1) {
    if (rows == kRows) return transposed_tile(source, stride * 2, tiles);
  }
  alignas(64) char lines[kPlanes<Number> * kTileBytes] = {};
  for (int64_t i = 0; i < rows; ++i) put<kPlanes<Number>>(load(source + i * stride), lines + 64 * i, kTileBytes);
  for (int plane = 0; plane < kPlanes<Number>; ++plane)
    transposed_tile(lines + plane * kTileBytes, 64, tiles + plane * kTileBytes);
}

// The same of `rows` of 32 rows of 16 numbers, for a product that sums over the rows.
template <typename Number>
inline void pack_rows(const Number* source, int64_t stride, int64_t rows, char* tiles) {
  if constexpr (kPlanes<Number> == 1) return tile_of_rows(source, stride * 2, static_cast<int>(rows), tiles);
  alignas(64) char lines[kPlanes<Number> * kTileBytes] = {};
  if constexpr (kPlanes<Number> == 3) {
    for (int64_t i = 0; i < rows; ++i) put<3>(_mm512_loadu_ps(source + i * stride), lines + 32 * i, kTileBytes);
    for (int plane = 0; plane < 3; ++plane)
      tile_of_rows(lines + plane * kTileBytes, 32, kSide, tiles + plane * kTileBytes);
  }
}

// Tokens as a product's left operand: a tile for each half of a block of 32 tokens, plane and step of 32 terms.
template <int planes>
struct Operand {
  char* tiles;
  int64_t steps;
  static constexpr int64_t kStepBytes = planes * 2 * kTileBytes, kPlaneBytes = 2 * kTileBytes;
  static int64_t bytes(int64_t tokens, int64_t terms) {
    return (tokens + kSide - 1) / kSide * (terms / kDepth) * kStepBytes;
  }
  char* block(int64_t token) const { return tiles + token / kSide * steps * kStepBytes; }
  // Where a token's numbers of a step are, in the first plane.
  char* line(int64_t token, int64_t step) const {
    return block(token) + step * kStepBytes + token % kSide * 64;  // the second half's tile follows the first's
  }
  // Asks for a token's lines.
  void fetch(int64_t token) const {
    for (int64_t step = 0; step < steps; ++step)
      for (int plane = 0; plane < planes; ++plane) fetch_to_write(line(token, step) + plane * kPlaneBytes);
  }
};

}  // namespace onepass
