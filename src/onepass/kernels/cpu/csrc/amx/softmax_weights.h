// Scores of attention become weights, 2^(score · scale - top), a row of 32 keys a block at a time, in the order in which
// `tile_of_rows` has the keys' values. What is summed up is what the tiles multiply, cut to 16 bits or in planes of 16.
//
// In one plane a weight has eight bits, and so has its exponent, score · scale - top: in steps of 1/128 it is the number's
// own bits but for the lower seven, which a table of 128 bytes turns from a power's logarithm into its fraction. That is
// half a step of the weight's own rounding, and a third of the instructions that a polynomial takes.

#pragma once

#include <array>
#include <cmath>

#include "amx/planes.h"
#include "amx/tiles.h"

namespace onepass {

constexpr int kKeys = 32;       // of a block
constexpr float kSlack = 8.0f;  // how far above `top` a score may be: sums are scaled anew only beyond

// The largest of a row's scores. `seen(block)` is a word with a bit for each key.
template <bool kMasked, typename Seen>
__m512 largest(const float* scores, int from, int to, Seen seen, __m512 first) {
  __m512 low = first, high = first;
  for (int block = from; block < to; ++block) {
    const float* here = scores + block * kKeys;
    const uint32_t keys = kMasked ? seen(block) : ~0u;
    low = _mm512_mask_max_ps(low, static_cast<__mmask16>(keys), low, _mm512_load_ps(here));
    high = _mm512_mask_max_ps(high, static_cast<__mmask16>(keys >> 16), high, _mm512_load_ps(here + 16));
  }
  return _mm512_max_ps(low, high);
}

// The seven bits of a number's fraction, 2^(i/128) - 1 in steps of 1/128, to the nearest.
struct Fractions {
  alignas(64) uint8_t bits[128];
  Fractions() {
    for (int i = 0; i < 128; ++i) bits[i] = static_cast<uint8_t>(std::lround(128 * (std::exp2(i / 128.0) - 1)));
  }
};

template <int planes>
__m512 no_weights() {
  return _mm512_setzero_ps();
}

// Of the blocks in [from, to), added to `total`.
template <int planes, bool kMasked, typename Seen>
__m512 weights_of(const float* scores, bf16* weights, int64_t plane_numbers, int from, int to, Seen seen, float scale,
                  float top, __m512 total) {
  if constexpr (planes == 1) {
    static const Fractions fractions;
    const __m512i low_half = _mm512_load_si512(fractions.bits), high_half = _mm512_load_si512(fractions.bits + 64);
    const __m512i upper = _mm512_set1_epi16(static_cast<int16_t>(0xff80)), one = _mm512_set1_epi16(0x3f80);
    const __m512 by = _mm512_set1_ps(128 * scale), shift = _mm512_set1_ps(128 * (127 - top));
    for (int block = from; block < to; ++block) {
      __m512i power[2];
      for (int half = 0; half < 2; ++half) {
        const __m512 x = _mm512_fmadd_ps(_mm512_load_ps(scores + block * kKeys + 16 * half), by, shift);
        if constexpr (kMasked)
          power[half] = _mm512_maskz_cvtps_epi32(static_cast<__mmask16>(seen(block) >> (16 * half)), x);
        else
          power[half] = _mm512_cvtps_epi32(x);
      }
      const __m512i both = _mm512_packus_epi32(power[0], power[1]);  // what is too small, and no number, is 0
      const __m512i fraction = _mm512_maskz_permutex2var_epi8(0x5555555555555555, low_half, both, high_half);
      const __m512i weight = _mm512_ternarylogic_epi32(both, upper, fraction, 0xea);  // (both & upper) | fraction
      total = _mm512_dpbf16_ps(total, reinterpret_cast<__m512bh>(weight), reinterpret_cast<__m512bh>(one));
      _mm512_store_si512(weights + block * kKeys, weight);
    }
  } else {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512 by = _mm512_set1_ps(scale), shift = _mm512_set1_ps(top);
    for (int block = from; block < to; ++block) {
      __m512 weight[2];
      for (int half = 0; half < 2; ++half) {
        weight[half] = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + block * kKeys + 16 * half), by, shift));
        if constexpr (kMasked)
          weight[half] = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen(block) >> (16 * half)), weight[half]);
        total = _mm512_add_ps(total, weight[half]);
      }
      for (int plane = 0; plane < planes; ++plane) {
        __m512i cut[2];
        for (int half = 0; half < 2; ++half) {
          const __m512i bits = _mm512_and_si512(_mm512_castps_si512(weight[half]), upper);
          weight[half] = _mm512_sub_ps(weight[half], _mm512_castsi512_ps(bits));
          cut[half] = _mm512_srli_epi32(bits, 16);
        }
        _mm512_store_si512(weights + plane * plane_numbers + block * kKeys, _mm512_packus_epi32(cut[0], cut[1]));
      }
    }
  }
  return total;
}

}  // namespace onepass
