// AMX tiles: how numbers lie in them, and the one product that everything here is made of.
//
// A tile is 16 rows of 64 bytes. `Tiles` configures the calling thread for its lifetime; other libraries use the same
// registers, so nobody may rely on what they held before.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace onepass {

using bf16 = uint16_t;

constexpr int kRows = 16;                      // of a tile
constexpr int kDepth = 32;                     // bf16 numbers of a tile's row: what one step of a product sums over
constexpr int kTileBytes = 1024;
constexpr int kSide = 32;                      // a product's block of results: 2 x 2 tiles

class Tiles {
 public:
  Tiles() {
    alignas(64) uint8_t config[64] = {};
    config[0] = 1;
    for (int tile = 0; tile < 8; ++tile) {
      reinterpret_cast<uint16_t*>(config + 16)[tile] = 64;
      config[48 + tile] = kRows;
    }
    // GCC's intrinsic says that it reads the first eight bytes: without this, stores of the rest may be left out.
    asm volatile("" : : "r"(config) : "memory");
    _tile_loadconfig(config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// 16 rows of 16 pairs of bf16, `stride` bytes apart, become the right operand of a product: pairs down, rows across.
inline void transposed_tile(const void* source, int64_t stride, void* tile) {
  const char* from = static_cast<const char*>(source);
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from + i * stride);
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  char* to = static_cast<char*>(tile);
  for (int i = 0; i < 4; ++i) {
    _mm512_store_si512(to + 64 * i, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
    _mm512_store_si512(to + 64 * (i + 4), _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
    _mm512_store_si512(to + 64 * (i + 8), _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
    _mm512_store_si512(to + 64 * (i + 12), _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
  }
}

// `rows` of 32 rows of 16 bf16, `stride` bytes apart, become the right operand of a product that sums over the rows, in
// the order 0, 16, 1, 17, …: that of two vectors of 16 weights whose halves are put together.
inline void tile_of_rows(const void* source, int64_t stride, int rows, void* tile) {
  const char* from = static_cast<const char*>(source);
  auto row = [&](int i) {
    if (i >= rows) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * stride)));
  };
  for (int pair = 0; pair < 16; ++pair) {
    __m512i both = _mm512_or_si512(row(pair), _mm512_slli_epi32(row(pair + 16), 16));
    _mm512_store_si512(static_cast<char*>(tile) + 64 * pair, both);
  }
}

// left · right, 32 x 32, of numbers in so many planes (planes.h). For every step of 32 terms the left operand's tiles are
// `left(step, plane)`, their rows `stride` bytes apart, and `lower` bytes after it; the right one's `right(step, plane)`,
// and `second` bytes after it. Results are 32 rows of float32, `result_stride` bytes apart. `meanwhile(turn)` is other
// work, for the core's other units, at each of so many turns a step:
template <int planes>
constexpr int kTurns = planes == 1 ? 1 : 6;

template <int planes, typename Left, typename Right, typename Meanwhile>
inline void product(Left left, int64_t stride, int64_t lower, Right right, int64_t second, int steps, float* result,
                    int64_t result_stride, Meanwhile meanwhile) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int step = 0; step < steps; ++step) {
    auto take_left = [&](int plane) {
      const char* tile = left(step, plane);
      _tile_loadd(4, tile, stride);
      _tile_loadd(5, tile + lower, stride);
    };
    auto take_right = [&](int plane) {
      const char* tile = right(step, plane);
      _tile_loadd(6, tile, 64);
      _tile_loadd(7, tile + second, 64);
    };
    auto multiply = [&](int turn) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      meanwhile(step * kTurns<planes> + turn);
    };
    if constexpr (planes == 1) {
      take_left(0);
      take_right(0);
      multiply(0);
    } else {  // small products first, and of two products one operand stays
      take_left(0);
      take_right(2);
      multiply(0);
      take_right(1);
      multiply(1);
      take_left(1);
      multiply(2);
      take_right(0);
      multiply(3);
      take_left(2);
      multiply(4);
      take_left(0);
      multiply(5);
    }
  }
  char* to = reinterpret_cast<char*>(result);
  _tile_stored(0, to, result_stride);
  _tile_stored(1, to + 64, result_stride);
  _tile_stored(2, to + kRows * result_stride, result_stride);
  _tile_stored(3, to + kRows * result_stride + 64, result_stride);
}

// 2^x for x ≤ 126; below -126 it falls to 0.
inline __m512 power_of_two(__m512 x) {
  __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 part = _mm512_sub_ps(x, whole);
  __m512 value = _mm512_set1_ps(0.001326472614891827f);
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.009671512991189957f));
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.05550733581185341f));
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.24022242426872253f));
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.6931470036506653f));
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(value, whole);
}

// The same to 3e-6, for numbers that are cut to 16 bits.
inline __m512 rough_power_of_two(__m512 x) {
  const __m512 part = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);  // x - floor(x)
  __m512 value = _mm512_set1_ps(0.013534178957343102f);
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.05201149359345436f));
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.2414426952600479f));
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.6930038332939148f));
  value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(1.0000026226043701f));
  return _mm512_scalef_ps(value, x);  // by 2^floor(x)
}

}  // namespace onepass
