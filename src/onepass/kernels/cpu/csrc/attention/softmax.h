// The online softmax over a tile of keys, and who sees which of them.

#pragma once

#include "attention/cpu_panels.h"
#include "common/vectors.h"

namespace onepass {
namespace {

// mask.sees of attention/mask.py, letter for letter; keys that are padding never get into a tile.
template <typename Key>
inline Ints sees(const Panel<Key>& lanes, int at, int32_t key_segment, int32_t key_position) {
  const Ints segment = splat(key_segment);
  const Ints own = (segment == load(lanes.segment + at)) | (segment == load(lanes.parent + at)) |
                   (segment == load(lanes.context + at));
  return own & (splat(key_position) <= load(lanes.position + at));
}

// Scores become weights, with the online softmax: so many vectors side by side as fill the pipelines. put(key, lane, weight)
// has the weights of a vector of lanes; it may use the scores' memory of these.
template <int lanes, int together, bool masked, typename Key, typename Power, typename Put>
void weigh(const Tile<Key>& tile, const Panel<Key>& panel, float* scores, Power power, Put put) {
  for (int at = 0; at < lanes; at += together * kWidth) {
    Vector before[together], top[together], total[together] = {};
#pragma GCC unroll 4
    for (int v = 0; v < together; ++v) top[v] = before[v] = load(panel.top + at + v * kWidth);
    for (int key = 0; key < tile.count; ++key) {
#pragma GCC unroll 4
      for (int v = 0; v < together; ++v) {
        float* score = scores + key * lanes + at + v * kWidth;
        if constexpr (masked)
          store(score, sees(panel, at + v * kWidth, tile.segment[key], tile.position[key]) ? load(score) : splat(kMasked));
        top[v] = larger(top[v], load(score));
      }
    }
    for (int key = 0; key < tile.count; ++key) {
#pragma GCC unroll 4
      for (int v = 0; v < together; ++v) {
        const int place = key * lanes + at + v * kWidth;
        const Vector weight = power(load(scores + place) - top[v]);
        put(key, at + v * kWidth, weight);
        total[v] += weight;
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < together; ++v) {
      const int place = at + v * kWidth;
      const Vector shrink = power_of_two(before[v] - top[v]);
      store(panel.top + place, top[v]);
      store(panel.total + place, load(panel.total + place) * shrink + total[v]);
      store(panel.shrink + place, shrink);
    }
  }
}

}  // namespace
}  // namespace onepass
