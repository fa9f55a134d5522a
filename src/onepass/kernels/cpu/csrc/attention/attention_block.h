// A block of asking tokens with all heads of a KV head over a flat step and a pool of pages: what `cpu_attention.cc`,
// `half_attention.cc` and `short_attention.cc` share. `Panels` says how a tile of keys is multiplied: its Key is the type
// that it takes.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "attention/cpu_panels.h"
#include "common/numbers.h"
#include "common/threads.h"

namespace onepass {
namespace {

// Everything that a call is given. Tables are rows of int32, one after another.
template <typename Number, typename Stored = Number>
struct Step {
  const Number* q;
  const Stored *own_k, *own_v, *pool_k, *pool_v;  // the pool's are this layer's
  Number* out;
  const int32_t *asking, *blocks, *own, *entries;
  int64_t asking_tokens, count, num_blocks, block, tokens, num_entries, page, kv_heads, group, size;
  int64_t key_stride() const { return kv_heads * size; }
  int64_t row(int64_t token, int64_t head) const { return (token * kv_heads + head) * group * size; }
};

// Of one block of asking tokens and one KV head.
template <typename Number, typename Stored, typename Panels>
class Block {
 public:
  using Key = typename Panels::Key;
  static constexpr int64_t kSide = Panels::kWidth;  // lanes that enter and leave together
  Block(const Step<Number, Stored>& step, int64_t head, int64_t block)
      : step_(step), head_(head), block_(block), first_(block * step.block),
        tokens_(std::min(step.block, step.count - first_)) {
    const int64_t vectors = (tokens_ * step.group + Panels::kWidth - 1) / Panels::kWidth;
    num_panels_ = (vectors + Panels::kMaxVectors - 1) / Panels::kMaxVectors;
    vectors_ = static_cast<int>((vectors + num_panels_ - 1) / num_panels_);
    lanes_ = vectors_ * Panels::kWidth;
    panel_floats_ = (8 + step.size) * lanes_ + step.size * lanes_ * sizeof(Key) / 4;
    const int64_t widened = std::is_same_v<Stored, Key> ? 0 : 2 * kTile * step.size;
    const int64_t score_floats = Panels::kScoreRows * lanes_, row_floats = 2 * kSide * step.size;
    memory_ = reinterpret_cast<float*>(workspace(4 * (num_panels_ * panel_floats_ + score_floats + row_floats + widened)));
    scores_ = memory_ + num_panels_ * panel_floats_;
    rows_ = scores_ + score_floats;
    widened_ = reinterpret_cast<Key*>(rows_ + row_floats);
  }

  void attend() {
    enter();
    const int32_t* table = step_.blocks + block_;
    const int64_t first = table[0], whole = table[step_.num_blocks], end = table[2 * step_.num_blocks];
    const int64_t own = table[3 * step_.num_blocks], own_end = table[4 * step_.num_blocks];
    for (int64_t entry = first; entry < whole; ++entry) {
      const int32_t keys = length(entry);
      if (entry + 1 < whole) prefetch(entry + 1);
      for (int32_t at = 0; at < keys; ++at) {
        if (tile_.count == kTile) flush<false>();
        add(kept(step_.pool_k, entry, at), kept(step_.pool_v, entry, at), 0, 0);
      }
      flush<false>();
    }
    for (int64_t entry = whole; entry < end; ++entry) {
      const int32_t context = column(1, entry), start = column(2, entry);
      if (context == kPadding) continue;
      const int32_t keys = std::min<int64_t>(length(entry), int64_t{last_seen(context)} - start + 1);
      for (int32_t at = 0; at < keys; ++at)
        add_masked(kept(step_.pool_k, entry, at), kept(step_.pool_v, entry, at), context, start + at);
    }
    int32_t segment = kPadding, last = kPadding;
    for (int64_t token = own; token < own_end; ++token) {
      const int32_t key_segment = step_.own[token], key_position = step_.own[step_.tokens + token];
      if (key_segment == kPadding) continue;
      if (key_segment != segment) segment = key_segment, last = last_seen(segment);
      const int64_t at = Panels::kByHead ? (head_ * step_.tokens + token) * Panels::row_numbers(step_.size)
                                         : token * step_.key_stride() + head_ * step_.size;
      if (key_position <= last) add_masked(step_.own_k + at, step_.own_v + at, key_segment, key_position);
    }
    flush<true>();
    leave();
  }

 private:
  int32_t column(int which, int64_t entry) const { return step_.entries[which * step_.num_entries + entry]; }
  int32_t length(int64_t entry) const { return std::min<int32_t>(column(3, entry), step_.page); }
  const Stored* kept(const Stored* pool, int64_t entry, int64_t at) const {
    if constexpr (Panels::kByHead)
      return pool + ((column(0, entry) * step_.kv_heads + head_) * step_.page + at) * Panels::row_numbers(step_.size);
    return pool + (column(0, entry) * step_.page + at) * step_.key_stride() + head_ * step_.size;
  }
  int32_t place(int which, int64_t token) const { return step_.asking[which * step_.asking_tokens + first_ + token]; }

  // The highest position at which a token of this block sees a key of this segment; below all where none does.
  int32_t last_seen(int32_t segment) const {
    int32_t last = kPadding;
    for (int64_t token = 0; token < tokens_; ++token) {
      const bool own = place(0, token) == segment || place(1, token) == segment || place(2, token) == segment;
      last = std::max(last, own ? place(3, token) : kPadding);
    }
    return last;
  }

  // The next page's keys and values, while this one's are multiplied.
  void prefetch(int64_t entry) const {
    for (int64_t at = 0; at < step_.page; ++at)
      for (int64_t d = 0; d < step_.size; d += 64 / static_cast<int64_t>(sizeof(Stored))) {
        __builtin_prefetch(kept(step_.pool_k, entry, at) + d, 0, 2);
        __builtin_prefetch(kept(step_.pool_v, entry, at) + d, 0, 2);
      }
  }

  void add(const Stored* key, const Stored* value, int32_t segment, int32_t position) {
    const int at = tile_.count++;
    if constexpr (std::is_same_v<Stored, Key>) {
      tile_.keys[at] = key;
      tile_.values[at] = value;
    } else {
      Key *wide_key = widened_ + 2 * at * step_.size, *wide_value = wide_key + step_.size;
      for (int64_t d = 0; d < step_.size; ++d) wide_key[d] = widen(key[d]);
      for (int64_t d = 0; d < step_.size; ++d) wide_value[d] = widen(value[d]);
      tile_.keys[at] = wide_key;
      tile_.values[at] = wide_value;
    }
    tile_.segment[at] = segment;
    tile_.position[at] = position;
  }

  void add_masked(const Stored* key, const Stored* value, int32_t segment, int32_t position) {
    if (tile_.count == kTile) flush<true>();
    add(key, value, segment, position);
  }

  template <bool masked>
  void flush() {
    if (tile_.count)
      for (int64_t n = 0; n < num_panels_; ++n) Panels::visit(vectors_, masked, tile_, panel(n), step_.size, scores_);
    tile_.count = 0;
  }

  Panel<Key> panel(int64_t n) const {
    float* at = memory_ + n * panel_floats_;
    auto ints = [&](int row) { return reinterpret_cast<int32_t*>(at + row * lanes_); };
    return {ints(0), ints(1), ints(2), ints(3), at + 4 * lanes_, at + 5 * lanes_, at + 6 * lanes_, at + 7 * lanes_,
            at + 8 * lanes_, reinterpret_cast<Key*>(at + (8 + step_.size) * lanes_)};
  }

  // call(panel, lane, row, rows) for every kSide lanes from `lane` on, of which the first `rows` are somebody's; rows are
  // tokens with the heads of the KV head.
  template <typename Call>
  void for_sides(Call call) const {
    const int64_t all = tokens_ * step_.group;
    for (int64_t row = 0; row < all; row += kSide) call(panel(row / lanes_), row % lanes_, row, std::min(kSide, all - row));
  }

  // Where a row's query is, and its result.
  int64_t row_place(int64_t row) const {
    return step_.row(first_ + row / step_.group, head_) + row % step_.group * step_.size;
  }

  // Places and queries into lanes; scores are to be powers of two.
  void enter() {
    std::memset(memory_, 0, num_panels_ * panel_floats_ * 4);
    for (int64_t n = 0; n < num_panels_; ++n) std::fill_n(panel(n).top, lanes_, kNothing);
    const float scale = 1.4426950408889634f / std::sqrt(static_cast<float>(step_.size));
    for_sides([&](const Panel<Key>& panel, int64_t lane, int64_t row, int64_t rows) {
      std::memset(rows_ + rows * step_.size, 0, (kSide - rows) * step_.size * 4);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t token = (row + i) / step_.group;
        panel.segment[lane + i] = place(0, token);
        panel.parent[lane + i] = place(1, token);
        panel.context[lane + i] = place(2, token);
        panel.position[lane + i] = place(3, token);
        const Number* q = step_.q + row_place(row + i);
        for (int64_t d = 0; d < step_.size; ++d) rows_[i * step_.size + d] = widen(q[d]) * scale;
      }
      Panels::enter(rows_, step_.size, panel, lanes_, lane);
    });
  }

  void leave() {
    float* lines = rows_ + kSide * step_.size;
    for_sides([&](const Panel<Key>& panel, int64_t lane, int64_t row, int64_t rows) {
      for (int64_t d = 0; d < step_.size; ++d) std::memcpy(lines + d * kSide, panel.out + d * lanes_ + lane, kSide * 4);
      to_rows(lines, kSide, step_.size, kSide, rows_, step_.size);
      for (int64_t i = 0; i < rows; ++i) {
        const float total = panel.total[lane + i];  // 0 where nothing is seen; what is no number stays visible
        const float over = total == 0 ? 0.0f : Panels::kOutScale / total;
        Number* to = step_.out + row_place(row + i);
        for (int64_t d = 0; d < step_.size; ++d) narrow(rows_[i * step_.size + d] * over, to + d);
      }
    });
  }

  const Step<Number, Stored>& step_;
  int64_t head_, block_, first_, tokens_, num_panels_, lanes_, panel_floats_;
  int vectors_;
  float *memory_, *scores_, *rows_;
  Key* widened_;
  Tile<Key> tile_;
};

}  // namespace
}  // namespace onepass
