// A weight in parts that fit in a core's second cache. A core that takes a part brings it into tiles' order, once a call,
// and multiplies all tokens with it; cores that find no part left help others with ranges of tokens.

#pragma once

#include <algorithm>
#include <vector>

#include "amx/tiles.h"
#include "common/threads.h"
#include "xla/ffi/api/ffi.h"

namespace onepass {

constexpr int64_t kPartBytes = 1100 << 10;  // of a weight at a time: the rest of a core's second cache is for tokens
constexpr int64_t kRange = 128;             // tokens at a time, for a core that helps another

// A weight's rows come in pairs of tiles, `pair_bytes` in tiles' order, and parts are multiples of `group` pairs.
// pack(pair, to) writes a pair; work(first, end, tiles, token, last, own) multiplies the pairs from `first` to `end`,
// which are in `tiles`, with the tokens from `token` to `last`, and has `own_bytes` for itself. Tiles are configured.
template <typename Pack, typename Work>
void in_weight_parts(xla::ffi::ThreadPool& pool, int64_t pairs, int64_t group, int64_t pair_bytes, int64_t own_bytes,
                     int64_t tokens, Pack pack, Work work) {
  if (!tokens) return;
  const int64_t threads = std::max<int64_t>(1, pool.num_threads());
  const int64_t rounds = (pairs * pair_bytes + threads * kPartBytes - 1) / (threads * kPartBytes);
  const int64_t even = (pairs + rounds * threads - 1) / (rounds * threads), together = (even + group - 1) / group * group;
  const int64_t parts = (pairs + together - 1) / together;
  std::vector<const char*> packed(parts);
  auto memory = [=] { return workspace(together * pair_bytes + own_bytes); };
  auto begin = [&](int64_t part) {
    char* to = memory();
    packed[part] = to;
    const int64_t end = std::min(pairs, (part + 1) * together);
    for (int64_t pair = part * together; pair < end; ++pair, to += pair_bytes) pack(pair, to);
  };
  in_parts(pool, parts, (tokens + kRange - 1) / kRange, begin, [&](int64_t part, int64_t range) {
    const Tiles tiles;
    const int64_t first = part * together, token = range * kRange;
    work(first, std::min(pairs, first + together), packed[part], token, std::min(tokens, token + kRange),
         memory() + together * pair_bytes);
  });
}

// The order of rows in pairs: 32 after one another, in halves of 16.
inline auto in_order() {
  return [](int64_t pair, int half) { return pair * kSide + half * kRows; };
}

// The order of a gated product's: 16 of the gate beside the 16 of what it gates.
inline auto gate_beside_up(int64_t results) {
  return [=](int64_t pair, int half) { return half * results + pair * kRows; };
}

}  // namespace onepass
