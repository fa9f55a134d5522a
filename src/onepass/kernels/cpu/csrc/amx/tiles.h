// AMX tiles: how numbers lie in them, and the one product that everything here is made of.
//
// A tile is 16 rows of 64 bytes. `Tiles` configures the calling thread for its lifetime; other libraries use the same
// registers, so nobody may rely on what they held before.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace onepass {

using bf16 = uint16_t;

// Asks for the line of an address that is going to be written: it is likely in another core's caches.
inline __attribute__((always_inline)) void fetch_to_write(const void* at) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#endif
}

// Lines that are going to be read, asked for one at a time: into the second cache, for they come from further away.
struct Ahead {
  const char *at = nullptr, *end = nullptr;
  inline __attribute__((always_inline)) void turn() {
    if (at >= end) return;
    _mm_prefetch(at, _MM_HINT_T1);
    at += 64;
  }
};

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
// the order in which `_mm512_packus_epi32` puts two vectors of 16 weights together: 0 … 3, 16 … 19, 4 … 7, 20 … 23, …
inline void tile_of_rows(const void* source, int64_t stride, int rows, void* tile) {
  const char* from = static_cast<const char*>(source);
  auto row = [&](int i) {
    if (i >= rows) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * stride)));
  };
  for (int pair = 0; pair < 16; ++pair) {
    const int first = pair / 4 * 4 + pair % 2 * 2 + pair % 4 / 2 * 16;
    const __m512i both = _mm512_or_si512(row(first), _mm512_slli_epi32(row(first + 1), 16));
    _mm512_store_si512(static_cast<char*>(tile) + 64 * pair, both);
  }
}

// Where a product's results are to go, four tiles of 16 x 16. They stay in the tiles until the next product wants each of
// them, or until they are stored: tiles that are stored one after another would have the products wait.
struct Pending {
  char* to = nullptr;  // 32 rows of float32, so many bytes apart; null: nothing
  int64_t stride = 0;
  char* at(int tile) const { return to + tile / 2 * kRows * stride + tile % 2 * 64; }
};

inline void store(Pending& pending) {
  if (!pending.to) return;
  _tile_stored(0, pending.at(0), pending.stride);
  _tile_stored(1, pending.at(1), pending.stride);
  _tile_stored(2, pending.at(2), pending.stride);
  _tile_stored(3, pending.at(3), pending.stride);
  pending.to = nullptr;
}

// left · right, 32 x 32, of numbers in so many planes (planes.h), for `result`, which is `pending` afterwards; where the
// product `adds`, it is added to what is there. For every step of 32 terms the left operand's tiles are
// `left(step, plane)`, their rows `stride` bytes apart, and `lower` bytes after it; the right one's `right(step, plane)`,
// and `second` bytes after it. `meanwhile()` is other work, for the core's other units, after each of so many turns a step,
// the product of two tiles, and should take no longer: what comes in larger pieces has the tiles wait. What was pending is
// stored before the fourth turn ends.
template <int planes>
constexpr int kTurns = planes == 1 ? 4 : 24;

template <int planes, typename Left, typename Right, typename Meanwhile>
inline void product(Left left, int64_t stride, int64_t lower, Right right, int64_t second, int steps, Pending& pending,
                    Pending result, Meanwhile meanwhile, bool adds = false) {
#define ONEPASS_BEGIN(tile)                                              \
  if (pending.to) _tile_stored(tile, pending.at(tile), pending.stride);  \
  if (adds) _tile_loadd(tile, result.at(tile), result.stride);           \
  else _tile_zero(tile);
  auto run = [&](int step, bool first) __attribute__((always_inline)) {
    auto multiply = [&](bool first, const char* new_left, const char* new_right) __attribute__((always_inline)) {
      if (new_left) _tile_loadd(4, new_left, stride);
      if (new_right) _tile_loadd(6, new_right, 64);
      if (first) { ONEPASS_BEGIN(0) }
      _tile_dpbf16ps(0, 4, 6);
      meanwhile();
      if (new_right) _tile_loadd(7, new_right + second, 64);
      if (first) { ONEPASS_BEGIN(1) }
      _tile_dpbf16ps(1, 4, 7);
      meanwhile();
      if (new_left) _tile_loadd(5, new_left + lower, stride);
      if (first) { ONEPASS_BEGIN(2) }
      _tile_dpbf16ps(2, 5, 6);
      meanwhile();
      if (first) { ONEPASS_BEGIN(3) }
      _tile_dpbf16ps(3, 5, 7);
      meanwhile();
    };
    if constexpr (planes == 1) {
      multiply(first, left(step, 0), right(step, 0));
    } else {  // small products first, and of two products one operand stays
      multiply(first, left(step, 0), right(step, 2));
      multiply(false, nullptr, right(step, 1));
      multiply(false, left(step, 1), nullptr);
      multiply(false, nullptr, right(step, 0));
      multiply(false, left(step, 2), nullptr);
      multiply(false, left(step, 0), nullptr);
    }
  };
#undef ONEPASS_BEGIN
  run(0, true);
  for (int step = 1; step < steps; ++step) run(step, false);
  pending = result;
}

// So many pieces of work, spread evenly over so many turns but for the first three: until the fourth, what was pending may
// not be stored.
class Spread {
 public:
  Spread(int64_t pieces, int64_t turns) : pieces_(pieces), turns_(std::max<int64_t>(1, turns - 3)), due_(-3 * pieces) {}
  template <typename Work>
  void turn(Work work) {
    for (due_ += pieces_; due_ >= turns_ && done_ < pieces_; due_ -= turns_) work(done_++);
  }
  template <typename Work>
  void finish(Work work) {
    while (done_ < pieces_) work(done_++);
  }

 private:
  int64_t pieces_, turns_, due_, done_ = 0;
};

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

// The same to 3e-6, for numbers that are cut to 16 bits; of the third degree to 8e-5.
template <int degree = 4>
inline __m512 rough_power_of_two(__m512 x) {
  const __m512 part = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);  // x - floor(x)
  __m512 value;
  if constexpr (degree == 4) {
    value = _mm512_set1_ps(0.013534178957343102f);
    value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.05201149359345436f));
    value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.2414426952600479f));
    value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.6930038332939148f));
    value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(1.0000026226043701f));
  } else {
    value = _mm512_set1_ps(0.07802452147006989f);
    value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.22606715559959412f));
    value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.6958335041999817f));
    value = _mm512_fmadd_ps(value, part, _mm512_set1_ps(0.9999251961708069f));
  }
  return _mm512_scalef_ps(value, x);  // by 2^floor(x)
}

constexpr float kLog2E = 1.4426950408889634f;

}  // namespace onepass
