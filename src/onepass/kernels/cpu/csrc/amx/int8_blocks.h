// Products of tokens and weights in 8 bits: sums in 32 bits, exact, of as many steps as have a scale in common, then
//
//     result[token, row] = Σ_blocks  x_scale[token, block] · scale[row, block] · Σ_terms  x[token, term] · w[row, term]
//
// in float32. Tiles are multiplied all the time, and the core's other units work for blocks that came before: the sums of
// the last one leave the tiles, each when its tile is wanted next; those of the one before that are scaled and added up;
// and of the pair of weight tiles before, rows are finished. All of that is spread evenly over the products: what is done
// between two of them costs nothing if it takes no longer than they do. With two threads a core it must be half of that,
// so every instruction counts.

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

// The blocks that are on their way: one in the tiles, one whose sums are stored, and the results that are being finished.
// `Finish` has rows(results), which is called with the number of every row and its sums, and end(results), after the last.
// `known` are the steps of a block where they are few, and every row has its place between two products; of more it is 0.
template <int known, typename Finish>
class Int8Pipeline {
 public:
  static constexpr int64_t kBytes = 4 * kSide * kSide * 4;

  // `steps` are a block's and `blocks` each pair's; `scales` are any 32: of the blocks before the first, whose sums nobody
  // reads.
  Int8Pipeline(char* memory, int steps, int64_t blocks, const float* scales, Finish finish)
      : steps_(known ? known : steps), to_(reinterpret_cast<int32_t*>(memory)), from_(to_ + kSide * kSide),
        total_(reinterpret_cast<float*>(from_ + kSide * kSide)), done_(total_ + kSide * kSide),
        each_(static_cast<int>((kSide + blocks - 1) / blocks)), in_tiles_{scales, scales, true, false, {}},
        stored_(in_tiles_), finish_(finish) {
    std::memset(memory, 0, kBytes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  // The block's tiles: those of tokens after one another, those of the weight's second half `second` bytes after the first's.
  void multiply(const char* left, const char* right, int64_t second, const Int8Block& block) {
    stored_.first ? run<true>(left, right, second) : run<false>(left, right, second);
    std::swap(to_, from_);
    if (stored_.last) {
      end_results();
      std::swap(total_, done_);
      finishing_ = stored_.results;
      row_ = 0;
    }
    stored_ = in_tiles_;
    in_tiles_ = block;
  }

  // What is still on its way: two blocks that nobody reads push it out.
  void end(const char* left, const char* right, int64_t second) {
    const Int8Block nothing{in_tiles_.x_scale, in_tiles_.scale, true, false, {}};
    multiply(left, right, second, nothing);
    multiply(left, right, second, nothing);
    end_results();
  }

 private:
  void end_results() {
    if (!finishing_.rows) return;
    const auto finish = finish_.rows(finishing_);
    for (; row_ < finishing_.rows; ++row_) finish(row_, load(done_ + row_ * kSide));
    finish_.end(finishing_);
  }

  template <bool first>
  void run(const char* left, const char* right, int64_t second) {
    const int steps = known ? known : steps_, turns = 4 * steps;
    const __m512 low_scale = _mm512_loadu_ps(stored_.scale), high_scale = _mm512_loadu_ps(stored_.scale + 16);
    const float *const x_scale = stored_.x_scale, *const done = done_;
    const int32_t* const from = from_;
    int32_t* const to = to_;
    float* const total = total_;
    const auto finish = finish_.rows(finishing_);
    const int end = std::min(row_ + each_, finishing_.rows), per_step = (each_ + steps - 1) / steps;
    int finished = row_;
    auto add_row = [=](int row) __attribute__((always_inline)) {
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
      _mm512_store_ps(total + row * kSide, low);
      _mm512_store_ps(total + row * kSide + 16, high);
    };
    const int per_turn = (kSide + turns - 1) / turns;
    int added = 0;
    auto add_up = [&](int turn) __attribute__((always_inline)) {
      if constexpr (known) {
#pragma GCC unroll 32
        for (int row = kSide * turn / (4 * known); row < kSide * (turn + 1) / (4 * known); ++row) add_row(row);
      } else {
#pragma GCC unroll 1
        for (const int last = std::min(added + per_turn, kSide); added < last; ++added) add_row(added);
      }
    };
#pragma GCC unroll 4
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
      const int last = std::min(finished + per_step, end);
#pragma GCC unroll 1
      for (; finished < last; ++finished) finish(finished, load(done + finished * kSide));
    }
    row_ = finished;
  }

  int32_t *to_, *from_;
  float *total_, *done_;
  int steps_, each_, row_ = 0;  // each_: rows that are finished with a block; row_: that are finished
  Int8Results finishing_;
  Int8Block in_tiles_, stored_;
  Finish finish_;
};

}  // namespace onepass
