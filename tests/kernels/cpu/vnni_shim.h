// vpdpbusd in software, as Intel's manual defines it, for CPUs without VNNI: `-include` it, without -mavx512vnni and
// -mavxvnni. int8_dot.h takes the form of 512 bits where the target has AVX-512, else that of 256.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

template <typename Register>
inline Register vpdpbusd(Register sum, Register x, Register w) {
  uint8_t left[sizeof(Register)];
  int8_t right[sizeof(Register)];
  int32_t lanes[sizeof(Register) / 4];
  std::memcpy(left, &x, sizeof left);
  std::memcpy(right, &w, sizeof right);
  std::memcpy(lanes, &sum, sizeof lanes);
  for (size_t i = 0; i < sizeof left; ++i) lanes[i / 4] += static_cast<int32_t>(left[i]) * right[i];
  std::memcpy(&sum, lanes, sizeof lanes);
  return sum;
}

#define ONEPASS_SOFTWARE_DOT
#if defined(__AVX512F__)
#define __AVX512VNNI__ 1
#else
#define __AVXVNNI__ 1
#endif
#define _mm512_dpbusd_epi32 vpdpbusd<__m512i>
#define _mm256_dpbusd_avx_epi32 vpdpbusd<__m256i>
