// Four products of 8-bit integers added to every 32-bit lane, exactly, with whatever instruction the target has.
//
//     dot(sum, x, w)[lane] = sum[lane] + Σ x[lane][i] · w[lane][i], i < 4      w is signed, one word in all lanes
//
//     AVX-512 VNNI, AVX-VNNI    vpdpbusd: x is unsigned                          kZero 128, kLevels 127
//     AVX-512BW, AVX2           vpmaddubsw, vpmaddwd, vpaddd: x is unsigned      kZero  64, kLevels  63
//     NEON with i8mm            smmla, in its own order: int8_pairs.h            kZero   0, kLevels 127
//     NEON with dot product     sdot: x is signed                                kZero   0, kLevels 127
//     any other                 the compiler's vectors: x is signed              kZero   0, kLevels 127
//
// With VNNI and NEON's dot products activations may have 11 bits in two planes, and a sum begins at the bits of the float32
// number 1.5 · 2^23, its origin (kFloatSums): as long as it moves by less than 2^22 its bits are those of origin + sum.
//
// Where x is unsigned a number is stored as number + kZero, and who sums begins with -kZero · Σ w. `vpmaddubsw` adds two
// products in 16 bits and saturates: activations have 7 bits there, and 2 · 127 · 128 is 32,512 at most. They have 8, and
// are stored as number + kPairedZero, where no two weights side by side are more than 128 together (scales that are
// `paired`, models/int8.py): 255 · 128 is 32,640.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#include "common/vectors.h"

namespace onepass {

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
constexpr const char* kDotName = "avx512-vnni";
constexpr int kZero = 128, kLevels = 127;
inline Ints dot(Ints sum, Ints x, Ints w) {
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(x),
                                                    reinterpret_cast<__m512i>(w)));
}
#elif !defined(__AVX512F__) && defined(__AVXVNNI__)
constexpr const char* kDotName = "avx-vnni";
constexpr int kZero = 128, kLevels = 127;
inline Ints dot(Ints sum, Ints x, Ints w) {
  return reinterpret_cast<Ints>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum), reinterpret_cast<__m256i>(x),
                                                        reinterpret_cast<__m256i>(w)));
}
#elif defined(__AVX512F__) && defined(__AVX512BW__)
constexpr const char* kDotName = "avx512bw";
constexpr int kZero = 64, kLevels = 63;
inline Ints dot(Ints sum, Ints x, Ints w) {
  const __m512i pairs = _mm512_maddubs_epi16(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(w));
  return sum + reinterpret_cast<Ints>(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#elif !defined(__AVX512F__) && defined(__AVX2__)
constexpr const char* kDotName = "avx2";
constexpr int kZero = 64, kLevels = 63;
inline Ints dot(Ints sum, Ints x, Ints w) {
  const __m256i pairs = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(w));
  return sum + reinterpret_cast<Ints>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#elif defined(__ARM_FEATURE_DOTPROD)
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr const char* kDotName = "neon-i8mm";
#else
constexpr const char* kDotName = "neon-dotprod";
#endif
constexpr int kZero = 0, kLevels = 127;
inline Ints dot(Ints sum, Ints x, Ints w) {
  return reinterpret_cast<Ints>(vdotq_s32(reinterpret_cast<int32x4_t>(sum), reinterpret_cast<int8x16_t>(x),
                                          reinterpret_cast<int8x16_t>(w)));
}
#else
constexpr const char* kDotName = "plain";
constexpr int kZero = 0, kLevels = 127;
inline Ints dot(Ints sum, Ints x, Ints w) {
  for (int shift = 24; shift >= 0; shift -= 8) sum += ((x << shift) >> 24) * ((w << shift) >> 24);
  return sum;
}
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
constexpr bool kFloatSums = true;
constexpr int kMaxPlanes = 2;  // of activations
#else
constexpr bool kFloatSums = false;
constexpr int kMaxPlanes = 1;
#endif
constexpr int kPairedZero = kZero ? 128 : 0, kPairedLevels = 127;
constexpr int kLowBits = 3;  // of the lower of two planes
constexpr float kSumOrigin = 12582912.0f;
// The bits at which sums of so many planes begin: the first plane's sum is shifted by kLowBits before the second is added.
template <int planes>
constexpr int32_t kSumBits = kFloatSums ? 0x4b400000 >> (planes == 2 ? kLowBits : 0) : 0;

// a * b + c, rounded once wherever it is inlined: whether the compiler fuses the two is its own affair, else.
#if defined(__AVX512F__)
inline Vector fused(Vector a, Vector b, Vector c) {
  return reinterpret_cast<Vector>(_mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
}
#elif defined(__AVX2__) && defined(__FMA__)
inline Vector fused(Vector a, Vector b, Vector c) {
  return reinterpret_cast<Vector>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
}
#elif defined(__aarch64__)
inline Vector fused(Vector a, Vector b, Vector c) {
  return reinterpret_cast<Vector>(vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
}
#else
inline Vector fused(Vector a, Vector b, Vector c) { return a * b + c; }
#endif

// How often a block's loop over four terms is unrolled. One instruction a step leaves the addresses as the bottleneck, so
// the whole block is; with several, more code was slower.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int kDotUnroll = 8;
#else
constexpr int kDotUnroll = 2;
#endif

// Four weights that lie side by side, in every lane.
inline Ints four(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, 4);
  return splat(word);
}

}  // namespace onepass
