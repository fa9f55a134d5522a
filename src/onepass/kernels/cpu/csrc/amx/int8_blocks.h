// Products of tokens and weights in 8 bits: sums in 32 bits, exact, of as many steps as have a scale in common, then
//
//     result[token, row] = Σ_blocks  x_scale[token, block] · scale[row, block] · Σ_terms  x[token, term] · w[row, term]
//
// in float32. Tiles are multiplied all the time, and the core's other units work for the block before: its sums leave the
// tiles, each when its tile is wanted next, and are scaled and added up; those of a pair's last block are finished at once,
// row by row, and never stored. All of that is spread evenly over the products: what is done between two of them costs
// nothing if it takes no longer than they do. With two threads a core it must be half of that, so every instruction counts.

#pragma once

#include <algorithm>
#include <utility>

#include "amx/quantized_tokens.h"
#include "amx/tiles.h"

namespace onepass {

// 32 tokens and a pair of weight tiles. `place` is the pair's in its group.
struct Int8Results {
  int64_t token = 0, pair = 0, place = 0;
  int rows = 0;  // that are real
};

// A block of their terms.
struct Int8Block {
  const float *x_scale, *scale;  // of 32 tokens, of 32 rows of the weight
  bool first, last;              // of all
  Int8Results results;
};

template <typename Finish>
concept kTakesIntegers = requires(Finish finish, Int8Block block) { finish.rows_of_integers(block, block); };

// The blocks that are on their way: one in the tiles, and one whose sums are stored. `Finish` has rows(block), which is
// called with the number of every row, those that are no token's too, and its sums; rows_of_integers(block), if it can
// do more with a pair's only block's sums before they are scaled; end(block), after the last row; between(), called after
// every step of a product for work of its own; and flush(), for what is left of that. `known` are the steps of a block
// where every row has its place between two products; of other numbers of steps it is 0.
template <int known, typename Finish>
class Int8Pipeline {
 public:
  static constexpr int64_t kBytes = 3 * kSide * kSide * 4;

  // `steps` are a block's; `scales` are any 32: of the block before the first, whose sums nobody reads.
  Int8Pipeline(char* memory, int steps, const float* scales, Finish finish)
      : to_(reinterpret_cast<int32_t*>(memory)), from_(to_ + kSide * kSide),
        total_(reinterpret_cast<float*>(from_ + kSide * kSide)), steps_(known ? known : steps),
        stored_{scales, scales, true, false, {}}, finish_(finish) {
    std::memset(memory, 0, kBytes);
    in_tiles_ = stored_;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  // The block's tiles: those of tokens after one another, those of the weight's second half `second` bytes after the first's.
  void multiply(const char* left, const char* right, int64_t second, const Int8Block& block) {
    if (stored_.last) {
      stored_.first ? run<true, true>(left, right, second, block) : run<false, true>(left, right, second, block);
      finish_.end(stored_);
    } else {
      stored_.first ? run<true, false>(left, right, second, block) : run<false, false>(left, right, second, block);
    }
    std::swap(to_, from_);
    stored_ = in_tiles_;
    in_tiles_ = block;
  }

  // Lines that are asked for during products, one in every turn.
  void expect(Ahead ahead) { ahead_ = ahead; }

  // What is still on its way: two blocks that nobody reads push it out.
  void end(const char* left, const char* right, int64_t second) {
    const Int8Block nothing{in_tiles_.x_scale, in_tiles_.scale, true, false, {}};
    multiply(left, right, second, nothing);
    multiply(left, right, second, nothing);
    finish_.flush();
  }

 private:
  template <bool only>
  auto rows_of(const Int8Block& next) {
    if constexpr (only && kTakesIntegers<Finish>) return finish_.rows_of_integers(stored_, next);
    else return finish_.rows(stored_, next);
  }

  template <bool first, bool last>
  void run(const char* left, const char* right, int64_t second, const Int8Block& next) {
    const int steps = known ? known : steps_;
    const __m512 low_scale = _mm512_loadu_ps(stored_.scale), high_scale = _mm512_loadu_ps(stored_.scale + 16);
    const float* const x_scale = stored_.x_scale;
    const int32_t* const from = from_;
    int32_t* const to = to_;
    float* const total = total_;
    const auto finish = rows_of<first && last>(next);
    auto add_row = [=](int row) __attribute__((always_inline)) {
      if constexpr (first && last && kTakesIntegers<Finish>) {
        finish(row, Pair{_mm512_cvtepi32_ps(_mm512_load_si512(from + row * kSide)),
                         _mm512_cvtepi32_ps(_mm512_load_si512(from + row * kSide + 16))});
        return;
      }
      const __m512 by = _mm512_set1_ps(x_scale[row]);
      __m512 low = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(from + row * kSide)), low_scale);
      __m512 high = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(from + row * kSide + 16)), high_scale);
      if constexpr (first) {
        low = _mm512_mul_ps(low, by);
        high = _mm512_mul_ps(high, by);
      } else {
        low = _mm512_fmadd_ps(low, by, _mm512_load_ps(total + row * kSide));
        high = _mm512_fmadd_ps(high, by, _mm512_load_ps(total + row * kSide + 16));
      }
      if constexpr (last) {
        finish(row, Pair{low, high});
      } else {
        _mm512_store_ps(total + row * kSide, low);
        _mm512_store_ps(total + row * kSide + 16, high);
      }
    };
    const int per_turn = (kSide + 4 * steps - 1) / (4 * steps);
    int added = 0;
    Ahead ahead = ahead_;
    auto add_up = [&](int turn) __attribute__((always_inline)) {
      ahead.turn();
      if constexpr (known) {
#pragma GCC unroll 32
        for (int row = kSide * turn / (4 * known); row < kSide * (turn + 1) / (4 * known); ++row) add_row(row);
      } else {
#pragma GCC unroll 1
        for (const int end = std::min(added + per_turn, kSide); added < end; ++added) add_row(added);
      }
    };
#pragma GCC unroll 16
    for (int step = 0; step < steps; ++step, left += 2 * kTileBytes, right += kTileBytes) {
      _tile_loadd(4, left, 64);
      _tile_loadd(6, right, 64);
      if (step == 0) {
        _tile_stored(0, to, kSide * 4);
        _tile_zero(0);
      }
      _tile_dpbssd(0, 4, 6);
      add_up(4 * step);
      _tile_loadd(7, right + second, 64);
      if (step == 0) {
        _tile_stored(1, to + 16, kSide * 4);
        _tile_zero(1);
      }
      _tile_dpbssd(1, 4, 7);
      add_up(4 * step + 1);
      _tile_loadd(5, left + kTileBytes, 64);
      if (step == 0) {
        _tile_stored(2, to + kRows * kSide, kSide * 4);
        _tile_zero(2);
      }
      _tile_dpbssd(2, 5, 6);
      add_up(4 * step + 2);
      if (step == 0) {
        _tile_stored(3, to + kRows * kSide + 16, kSide * 4);
        _tile_zero(3);
      }
      _tile_dpbssd(3, 5, 7);
      add_up(4 * step + 3);
      finish_.between();
    }
    ahead_ = ahead;
  }

  int32_t *to_, *from_;
  float* total_;
  int steps_;
  Int8Block in_tiles_, stored_;
  Ahead ahead_;
  Finish finish_;
};

}  // namespace onepass
