// AMX, AVX512-BF16 and AVX512-VBMI in software, for CPUs that have none of them but do have AVX-512: `-include` it, without -mamx-*.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace amx_shim {

struct Tile {
  alignas(64) uint8_t rows[16][64];
};
inline thread_local Tile tiles[8];

inline void zero(int tile) { std::memset(&tiles[tile], 0, sizeof(Tile)); }
inline void load(int tile, const void* from, int64_t stride) {
  for (int i = 0; i < 16; ++i) std::memcpy(tiles[tile].rows[i], static_cast<const char*>(from) + i * stride, 64);
}
inline void save(int tile, void* to, int64_t stride) {
  for (int i = 0; i < 16; ++i) std::memcpy(static_cast<char*>(to) + i * stride, tiles[tile].rows[i], 64);
}

// As the instruction does it: the products of even numbers and those of odd ones are summed from 0, each for itself, and
// only their sum is added to what was there.
inline void multiply(int sums, int left, int right) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int row = 0; row < 16; ++row) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int pair = 0; pair < 16; ++pair) {
      uint32_t both;
      std::memcpy(&both, tiles[left].rows[row] + 4 * pair, 4);
      const __m512i a = _mm512_set1_epi32(static_cast<int>(both)), b = _mm512_load_si512(tiles[right].rows[pair]);
      even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                             _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), even);
      odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, upper)),
                            _mm512_castsi512_ps(_mm512_and_si512(b, upper)), odd);
    }
    float* to = reinterpret_cast<float*>(tiles[sums].rows[row]);
    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(even, odd)));
  }
}

// Of signed numbers of 8 bits, with sums of 32.
inline void multiply_int8(int sums, int left, int right) {
  for (int row = 0; row < 16; ++row) {
    int32_t to[16];
    std::memcpy(to, tiles[sums].rows[row], 64);
    for (int term = 0; term < 64; ++term) {
      const int a = static_cast<int8_t>(tiles[left].rows[row][term]);
      for (int column = 0; column < 16; ++column)
        to[column] += a * static_cast<int8_t>(tiles[right].rows[term / 4][4 * column + term % 4]);
    }
    std::memcpy(tiles[sums].rows[row], to, 64);
  }
}

inline __m256i to_bf16(__m512 numbers) {  // to the nearest, halves to even
  const __m512i bits = _mm512_castps_si512(numbers);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}
inline __m512i to_bf16(__m512 high, __m512 low) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(low)), to_bf16(high), 1);
}

// As the instruction does it, but for its order: denormal numbers are 0.
inline __m512 dot_of_pairs(__m512 sums, __m512bh a, __m512bh b) {
  uint16_t left[32], right[32];
  float to[16];
  std::memcpy(left, &a, 64);
  std::memcpy(right, &b, 64);
  _mm512_storeu_ps(to, sums);
  auto wide = [](uint16_t number) {
    const uint32_t bits = number & 0x7f80 ? static_cast<uint32_t>(number) << 16 : 0;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
  };
  for (int i = 0; i < 32; ++i) to[i / 2] += wide(left[i]) * wide(right[i]);
  return _mm512_loadu_ps(to);
}

// Of two tables of 64 bytes as one of 128.
inline __m512i look_up(uint64_t mask, __m512i low, __m512i indices, __m512i high) {
  uint8_t table[128], at[64], to[64];
  std::memcpy(table, &low, 64);
  std::memcpy(table + 64, &high, 64);
  std::memcpy(at, &indices, 64);
  for (int i = 0; i < 64; ++i) to[i] = mask >> i & 1 ? table[at[i] & 127] : 0;
  return _mm512_loadu_si512(to);
}

}  // namespace amx_shim

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _mm512_cvtneps_pbh
#undef _mm512_cvtne2ps_pbh
#undef _mm512_dpbf16_ps
#undef _mm512_maskz_permutex2var_epi8
#define _tile_loadconfig(config) static_cast<void>(config)
#define _tile_release() static_cast<void>(0)
#define _tile_zero amx_shim::zero
#define _tile_loadd amx_shim::load
#define _tile_stored amx_shim::save
#define _tile_dpbf16ps amx_shim::multiply
#define _tile_dpbssd amx_shim::multiply_int8
#define _mm512_cvtneps_pbh amx_shim::to_bf16
#define _mm512_cvtne2ps_pbh amx_shim::to_bf16
#define _mm512_dpbf16_ps amx_shim::dot_of_pairs
#define _mm512_maskz_permutex2var_epi8 amx_shim::look_up
