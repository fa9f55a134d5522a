// GGUF's quantised blocks widened to float32, as the `gguf` package's NumPy code defines them, bit for bit. A product is
// rounded before anything is added to it: this file is compiled with -ffp-contract=off.
//
//   Q4_0  d, 16 bytes of nibbles            d · (q - 8)      Q4_1  d, m, nibbles           d · q + m
//   Q5_0  d, 32 high bits, nibbles          d · (q - 16)     Q5_1  d, m, high bits, nibbles d · q + m
//   Q8_0  d, 32 signed bytes                d · q
//   Q4_K, Q5_K, Q6_K: 256 numbers in groups of 32 (Q6_K: 16), whose scales are small integers times d

#include <cstdint>
#include <cstring>

namespace {

inline float half(const uint8_t* bytes) {
  _Float16 number;
  std::memcpy(&number, bytes, 2);
  return static_cast<float>(number);
}

inline uint32_t word(const uint8_t* bytes) {
  uint32_t bits;
  std::memcpy(&bits, bytes, 4);
  return bits;
}

void q8_0(const uint8_t* block, float* out) {
  const float d = half(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// 16 bytes of nibbles: the low ones are the first 16 numbers.
template <int offset>
void nibbles(const uint8_t* bytes, float d, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((bytes[i] & 15) - offset);
    out[16 + i] = d * static_cast<float>((bytes[i] >> 4) - offset);
  }
}

template <int offset>
void nibbles_and_high_bits(const uint8_t* bytes, uint32_t high, float d, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(static_cast<int>((bytes[i] & 15) | ((high >> i) & 1) << 4) - offset);
    out[16 + i] = d * static_cast<float>(static_cast<int>((bytes[i] >> 4) | ((high >> (16 + i)) & 1) << 4) - offset);
  }
}

void q4_0(const uint8_t* block, float* out) { nibbles<8>(block + 2, half(block), out); }

void q4_1(const uint8_t* block, float* out) {
  nibbles<0>(block + 4, half(block), out);
  const float m = half(block + 2);
  for (int i = 0; i < 32; ++i) out[i] += m;
}

void q5_0(const uint8_t* block, float* out) { nibbles_and_high_bits<16>(block + 6, word(block + 2), half(block), out); }

void q5_1(const uint8_t* block, float* out) {
  nibbles_and_high_bits<0>(block + 8, word(block + 4), half(block), out);
  const float m = half(block + 2);
  for (int i = 0; i < 32; ++i) out[i] += m;
}

// Scales and minimums of Q4_K and Q5_K: eight of six bits each in twelve bytes.
struct Scales {
  float scale[8], minimum[8];
  explicit Scales(const uint8_t* block) {
    const float d = half(block), smallest = half(block + 2);
    const uint8_t* packed = block + 4;
    for (int i = 0; i < 4; ++i) {
      const uint8_t s = packed[i], m = packed[4 + i], both = packed[8 + i];
      scale[i] = d * static_cast<float>(s & 63);
      minimum[i] = smallest * static_cast<float>(m & 63);
      scale[4 + i] = d * static_cast<float>((both & 15) | ((s >> 2) & 48));
      minimum[4 + i] = smallest * static_cast<float>((both >> 4) | ((m >> 2) & 48));
    }
  }
};

void q4_k(const uint8_t* block, float* out) {
  const Scales scales(block);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* bytes = block + 16 + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    const float d = scales.scale[group], m = scales.minimum[group];
    for (int i = 0; i < 32; ++i) out[32 * group + i] = d * static_cast<float>((bytes[i] >> shift) & 15) - m;
  }
}

void q5_k(const uint8_t* block, float* out) {
  const Scales scales(block);
  const uint8_t* high = block + 16;
  for (int group = 0; group < 8; ++group) {
    const uint8_t* bytes = block + 48 + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    const float d = scales.scale[group], m = scales.minimum[group];
    for (int i = 0; i < 32; ++i) {
      const int q = ((bytes[i] >> shift) & 15) | (((high[i] >> group) & 1) << 4);
      out[32 * group + i] = d * static_cast<float>(q) - m;
    }
  }
}

void q6_k(const uint8_t* block, float* out) {
  const uint8_t* scales = block + 192;
  const float d = half(block + 208);
  for (int group = 0; group < 8; ++group) {  // of 32 numbers: which nibbles, which two high bits
    const uint8_t* low = block + 64 * (group / 4) + 32 * (group % 2);
    const uint8_t* high = block + 128 + 32 * (group / 4);
    const int shift = 4 * ((group / 2) % 2), high_shift = 2 * (group % 4);
    for (int part = 0; part < 2; ++part) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(scales[2 * group + part]));
      for (int i = 16 * part; i < 16 * part + 16; ++i) {
        const int q = ((low[i] >> shift) & 15) | (((high[i] >> high_shift) & 3) << 4);
        out[32 * group + i] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

template <void (*widen)(const uint8_t*, float*), int bytes, int numbers>
void each_block(const uint8_t* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) widen(blocks + i * bytes, out + i * numbers);
}

}  // namespace

// `type` is GGML's number of the block type. False where it is none of ours.
extern "C" bool onepass_gguf_dequantize(int32_t type, const uint8_t* blocks, int64_t count, float* out) {
  switch (type) {
    case 2: each_block<q4_0, 18, 32>(blocks, count, out); return true;
    case 3: each_block<q4_1, 20, 32>(blocks, count, out); return true;
    case 6: each_block<q5_0, 22, 32>(blocks, count, out); return true;
    case 7: each_block<q5_1, 24, 32>(blocks, count, out); return true;
    case 8: each_block<q8_0, 34, 32>(blocks, count, out); return true;
    case 12: each_block<q4_k, 144, 256>(blocks, count, out); return true;
    case 13: each_block<q5_k, 176, 256>(blocks, count, out); return true;
    case 14: each_block<q6_k, 210, 256>(blocks, count, out); return true;
    default: return false;
  }
}
