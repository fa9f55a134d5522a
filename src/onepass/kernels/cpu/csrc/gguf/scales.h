// What the readers of GGUF's blocks have in common: half precision, and the packed scales of Q4_K and Q5_K.

#pragma once

#include <cstdint>
#include <cstring>

namespace gguf {

#if defined(__aarch64__)
using Half = __fp16;  // GCC has _Float16 in C++ for x86 since 12, for ARM since 13
#else
using Half = _Float16;
#endif

inline float half(const uint8_t* bytes) {
  Half number;
  std::memcpy(&number, bytes, 2);
  return static_cast<float>(number);
}

// Scales and minimums of Q4_K and Q5_K: eight of six bits each in twelve bytes.
struct Scales {
  float scale[8], minimum[8];
  explicit Scales(const uint8_t* block) {
    const float d = half(block), smallest = half(block + 2);
    uint32_t packed[3];  // four bytes at a time
    std::memcpy(packed, block + 4, 12);
    const auto [s, m, both] = packed;
    const uint32_t wide[4] = {s & 0x3f3f3f3f, (both & 0x0f0f0f0f) | (s >> 2 & 0x30303030), m & 0x3f3f3f3f,
                              (both >> 4 & 0x0f0f0f0f) | (m >> 2 & 0x30303030)};
    uint8_t bytes[16];
    std::memcpy(bytes, wide, 16);
    for (int i = 0; i < 8; ++i) scale[i] = d * static_cast<float>(bytes[i]);
    for (int i = 0; i < 8; ++i) minimum[i] = smallest * static_cast<float>(bytes[8 + i]);
  }
};

}  // namespace gguf
