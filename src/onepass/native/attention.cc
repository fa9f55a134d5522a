// Scoring attention: blocks of 32 asking tokens over the keys that they may see, in one pass. Numbers are bf16, or
// float32 in planes of bf16 (planes.h).
//
// A row's tokens are `context` of them and then items, both in blocks of 32. A block sees, in this order: of the prefix
// its first `prefix_length` keys; of the row's context the first `whole` keys; and of the keys of its own kind those
// from block `from` on, each under a bit of `seen`. Who sees whom is not decided here: see attention/amx.py.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "planes.h"
#include "threads.h"
#include "tiles.h"

namespace onepass {
namespace {

namespace ffi = xla::ffi;
using Index = ffi::Buffer<ffi::S32>;
using Bits = ffi::Buffer<ffi::U32>;

constexpr int kBlock = 32;   // tokens that ask, and keys
constexpr int kChunk = 18;   // blocks of keys whose scores exist at once: in the second cache, with room for weights
constexpr int kWidth = kBlock * kChunk;
constexpr int kStride = kWidth + 32;  // between rows of scores, and of weights: no power of two, for the caches' sake
constexpr uint32_t kAll = 0xffffffffu;

int64_t blocks_of(int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }

struct Shape {
  int64_t rows, tokens, context, prefix, heads, group, size, planes;
  int64_t block_bytes() const { return kBlock * size * 2 * planes; }  // of keys or of values
  int64_t asking_blocks() const { return blocks_of(context) + blocks_of(tokens - context); }
  int64_t key_blocks() const { return blocks_of(prefix) + asking_blocks(); }
};

// Where a block's tokens begin, and how many there are.
struct Span {
  int64_t start, count;
};

Span span(const Shape& shape, int64_t block) {
  const int64_t of_context = blocks_of(shape.context);
  const int64_t start = block < of_context ? block * kBlock : shape.context + (block - of_context) * kBlock;
  const int64_t end = block < of_context ? shape.context : shape.tokens;
  return {start, std::min<int64_t>(kBlock, end - start)};
}

// Keys and values of all heads in tiles' order: [rows, heads, blocks], of the prefix first.
struct Packed {
  char *keys, *values;
  const Shape& shape;
  int64_t at(int64_t row, int64_t head, int64_t block) const {
    return ((row * shape.heads + head) * shape.key_blocks() + block) * shape.block_bytes();
  }
};

template <typename Number>
void pack_block(const Packed& packed, int64_t place, const Number* k, const Number* v, int64_t stride, int64_t count) {
  constexpr int64_t tiles_bytes = kPlanes<Number> * kTileBytes;
  const int64_t size = packed.shape.size, steps = size / kDepth;
  for (int half = 0; half < 2; ++half)
    for (int64_t step = 0; step < steps; ++step)
      pack_transposed(k + half * kRows * stride + step * kDepth, stride, std::clamp<int64_t>(count - half * kRows, 0, kRows),
                      packed.keys + place + (half * steps + step) * tiles_bytes);
  for (int64_t part = 0; part < size / kRows; ++part)
    pack_rows(v + part * kRows, stride, count, packed.values + place + part * tiles_bytes);
}

// A block of keys to visit: its tiles, and which keys each asking token sees. `seen` is null where all see all.
struct Visit {
  const char *keys, *values;
  const uint32_t* seen;  // a word for each asking token, `words` apart
  int64_t words;
  uint32_t word(int token) const { return seen ? seen[token * words] : kAll; }
};

struct Asking {
  const char* q;  // the tokens' queries in tiles
  int64_t count;
  float scale;
};

// What a block of tokens has gathered so far: Σ 2^(score - top) · value, Σ 2^(score - top), top.
struct Gathered {
  float* sums;  // [32, size]
  alignas(64) float total[kBlock], top[kBlock];
  void forget(int64_t size) {
    std::fill_n(total, kBlock, 0.0f);
    std::fill_n(top, kBlock, -std::numeric_limits<float>::infinity());
    std::memset(sums, 0, kBlock * size * 4);
  }
};

// Of one piece of work at a time; two pieces are under way together.
template <int planes>
struct Memory {
  float *scores, *part;
  bf16* weights;
  static constexpr int64_t kPlane = kBlock * kStride;  // numbers of a plane of weights
  static constexpr int64_t bytes() { return kPlane * (4 + 2 * planes) + kBlock * kBlock * 4; }
  explicit Memory(char* at) {
    scores = reinterpret_cast<float*>(at);
    weights = reinterpret_cast<bf16*>(at + kPlane * 4);
    part = reinterpret_cast<float*>(at + kPlane * (4 + 2 * planes));
  }
};

// Some blocks of keys for some tokens of one head.
template <typename Number>
struct Piece {
  const Visit* visits;
  int count, plain;  // blocks, and how many of them, the first ones, are seen whole
  Asking asking;
  Gathered* gathered;
  bool first;   // of these tokens' pieces
  Number* out;  // null until the last of them; tokens are `stride` numbers apart
  int64_t stride;
  alignas(64) float kept[kBlock];
};

// Rows that are weighed while tiles are multiplied, a share of them at each of so many steps.
template <typename Weigh>
struct Meanwhile {
  Weigh weigh;
  int rows;
  int64_t steps, step = 0;
  int next = 0;
  void operator()(int) {
    if (step < steps) ++step;
    until(static_cast<int>(rows * step / steps));
  }
  void until(int end) {
    while (next < end) weigh(next++);
  }
};

// The largest of a row's scores.
template <bool kMasked>
__m512 largest(const float* scores, const Visit* visits, int from, int to, int row, __m512 first) {
  __m512 low = first, high = first;
  for (int block = from; block < to; ++block) {
    const float* here = scores + block * kBlock;
    const uint32_t seen = kMasked ? visits[block].word(row) : kAll;
    low = _mm512_mask_max_ps(low, static_cast<__mmask16>(seen), low, _mm512_load_ps(here));
    high = _mm512_mask_max_ps(high, static_cast<__mmask16>(seen >> 16), high, _mm512_load_ps(here + 16));
  }
  return _mm512_max_ps(low, high);
}

// 2^(score · scale - top), cut to 16 bits or into planes of 16, two halves of a block put together as `tile_of_rows` has
// it. Returns the sum of what was kept, so that what is cut off is cut off of both, and of no weight more than of another
// on average.
template <int planes, bool kMasked>
__m512 weights_of(const float* scores, bf16* weights, const Visit* visits, int from, int to, int row, __m512 scale,
                  __m512 top, __m512 sum) {
  const __m512 upper = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  __m512 total[2] = {sum, _mm512_setzero_ps()};
  for (int block = from; block < to; ++block) {
    __m512 weight[2];
    for (int half = 0; half < 2; ++half) {
      const __m512 power = _mm512_fmsub_ps(_mm512_load_ps(scores + block * kBlock + 16 * half), scale, top);
      weight[half] = planes == 1 ? _mm512_and_ps(rough_power_of_two(power), upper) : power_of_two(power);
      if constexpr (kMasked)
        weight[half] =
            _mm512_maskz_mov_ps(static_cast<__mmask16>(visits[block].word(row) >> (16 * half)), weight[half]);
      total[half] = _mm512_add_ps(total[half], weight[half]);
    }
    for (int plane = 0; plane < planes; ++plane) {
      __m512 cut[2];
      for (int half = 0; half < 2; ++half) {
        cut[half] = planes == 1 ? weight[half] : _mm512_and_ps(weight[half], upper);
        if (planes > 1) weight[half] = _mm512_sub_ps(weight[half], cut[half]);
      }
      _mm512_store_si512(weights + plane * Memory<planes>::kPlane + block * kBlock,
                         _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(cut[0]), 16), _mm512_castps_si512(cut[1])));
    }
  }
  return _mm512_add_ps(total[0], total[1]);
}

// A row's scores become weights; of `count` blocks the first `plain` are seen whole. Returns what earlier sums are to
// be scaled by.
template <int planes>
float weigh(const Memory<planes>& memory, Gathered& gathered, int row, const Visit* visits, int plain, int count,
            float scale) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const float* scores = memory.scores + row * kStride;
  bf16* weights = memory.weights + row * kStride;
  __m512 most = largest<false>(scores, visits, 0, plain, row, _mm512_set1_ps(kNothing));
  if (plain < count) most = largest<true>(scores, visits, plain, count, row, most);
  const float before = gathered.top[row];
  const float top = std::max(before, _mm512_reduce_max_ps(most) * scale);
  if (top == kNothing) {  // nothing seen yet
    for (int plane = 0; plane < planes; ++plane)
      std::memset(weights + plane * memory.kPlane, 0, count * kBlock * 2);
    return 1.0f;
  }
  const __m512 by = _mm512_set1_ps(scale), shift = _mm512_set1_ps(top);
  __m512 total = weights_of<planes, false>(scores, weights, visits, 0, plain, row, by, shift, _mm512_setzero_ps());
  if (plain < count) total = weights_of<planes, true>(scores, weights, visits, plain, count, row, by, shift, total);
  const float kept = std::exp2(std::max(before - top, -200.0f));
  gathered.total[row] = gathered.total[row] * kept + _mm512_reduce_add_ps(total);
  gathered.top[row] = top;
  return kept;
}

template <typename Number, int planes, typename Other>
void score(const Memory<planes>& memory, const Piece<Number>& piece, int64_t size, Other& meanwhile) {
  using Left = Operand<planes>;
  const int steps = static_cast<int>(size / kDepth);
  for (int block = 0; block < piece.count; ++block)
    product<planes>(
        [&](int step, int plane) { return piece.asking.q + step * Left::kStepBytes + plane * Left::kPlaneBytes; }, 64,
        kTileBytes,
        [&](int step, int plane) { return piece.visits[block].keys + (step * planes + plane) * kTileBytes; },
        steps * planes * kTileBytes, steps, memory.scores + block * kBlock, kStride * 4, std::ref(meanwhile));
}

// Adds the values by their weights to what was gathered.
template <typename Number, int planes, typename Other>
void gather(const Memory<planes>& memory, const Piece<Number>& piece, int64_t size, Other& meanwhile) {
  for (int64_t part = 0; part < size / kBlock; ++part) {
    product<planes>(
        [&](int step, int plane) {
          return reinterpret_cast<const char*>(memory.weights + plane * memory.kPlane + step * kBlock);
        },
        kStride * 2, kRows * kStride * 2,
        [&](int step, int plane) { return piece.visits[step].values + (2 * part * planes + plane) * kTileBytes; },
        planes * kTileBytes, piece.count, memory.part, kBlock * 4, std::ref(meanwhile));
    for (int row = 0; row < piece.asking.count; ++row) {
      float* sums = piece.gathered->sums + row * size + part * kBlock;
      store(sums, load(sums) * both(piece.kept[row]) + load(memory.part + row * kBlock));
    }
  }
}

// What was gathered, divided by the sum of its weights.
template <typename Number>
void write(const Piece<Number>& piece, int64_t size) {
  for (int64_t token = 0; token < piece.asking.count; ++token) {
    const float total = piece.gathered->total[token];
    const Pair over = both(total > 0 ? 1.0f / total : 0.0f);
    for (int64_t i = 0; i < size; i += kBlock)
      store(piece.out + token * piece.stride + i, load(piece.gathered->sums + token * size + i) * over);
  }
}

// All pieces, in order: while one's scores become weights, the tiles multiply the values of the one before and the
// scores of the one after.
template <typename Number, int planes>
void attend_to(std::vector<Piece<Number>>& pieces, const Memory<planes>* memories, int64_t size) {
  auto nothing = [](int) {};
  const int64_t steps = kTurns<planes> * (size / kDepth), parts = kTurns<planes> * (size / kBlock);
  const size_t count = pieces.size();
  score(memories[0], pieces[0], size, nothing);
  for (size_t i = 0; i < count; ++i) {
    Piece<Number>& piece = pieces[i];
    if (piece.first) piece.gathered->forget(size);
    const Memory<planes> &here = memories[i % 2], &other = memories[(i + 1) % 2];
    const Piece<Number> *before = i ? &pieces[i - 1] : nullptr, *after = i + 1 < count ? &pieces[i + 1] : nullptr;
    auto weigh_row = [&](int row) {
      piece.kept[row] =
          weigh(here, *piece.gathered, row, piece.visits, piece.plain, piece.count, piece.asking.scale);
    };
    const int64_t in_all = (before ? parts * before->count : 0) + (after ? steps * after->count : 0);
    const int rows = static_cast<int>(piece.asking.count);
    Meanwhile<decltype(weigh_row)> meanwhile{weigh_row, rows, std::max<int64_t>(1, in_all)};
    if (before) gather(other, *before, size, meanwhile);
    if (before && before->out) write(*before, size);
    if (after) score(other, *after, size, meanwhile);
    meanwhile.until(rows);
  }
  gather(memories[(count - 1) % 2], pieces.back(), size, nothing);
  write(pieces.back(), size);
}

template <typename Number>
ffi::Error attend(ffi::ThreadPool pool, Numbers<Number> q, Numbers<Number> k, Numbers<Number> v,
                  Numbers<Number> prefix_k, Numbers<Number> prefix_v, Index prefix_length, Index whole, Index from,
                  Bits seen, ffi::Result<Numbers<Number>> out, ffi::Result<ffi::Buffer<ffi::U8>> tiled,
                  int64_t context) {
  constexpr int planes = kPlanes<Number>;
  auto d = q.dimensions();  // [rows, tokens, heads, group, size]
  const Shape shape{d[0], d[1], context, prefix_k.dimensions()[1], d[2], d[3], d[4], planes};
  if (shape.size % kDepth || shape.tokens % kRows || context % kRows || shape.prefix % kRows)
    return ffi::Error::InvalidArgument("heads must be a multiple of 32 wide, and tokens come in sixteens");
  const int64_t asking_blocks = shape.asking_blocks(), own_blocks = blocks_of(shape.prefix);
  const int64_t packed_bytes = shape.rows * shape.heads * shape.key_blocks() * shape.block_bytes();
  if (static_cast<int64_t>(tiled->element_count()) < 2 * packed_bytes + 64)
    return ffi::Error::InvalidArgument("too little memory for keys and values in tiles");
  char* memory = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(tiled->untyped_data()) + 63) / 64 * 64);
  const Packed packed{memory, memory + packed_bytes, shape};
  const Number *own_k = numbers<Number>(k), *own_v = numbers<Number>(v);
  const Number *kept_k = numbers<Number>(prefix_k), *kept_v = numbers<Number>(prefix_v);
  const int64_t key_stride = shape.heads * shape.size;

  in_parallel(pool, shape.rows * shape.key_blocks(), [&](int64_t task) {
    const int64_t row = task / shape.key_blocks(), block = task % shape.key_blocks();
    const bool of_prefix = block < own_blocks;
    const Span here = of_prefix ? Span{block * kBlock, std::min<int64_t>(kBlock, shape.prefix - block * kBlock)}
                                : span(shape, block - own_blocks);
    const int64_t at = (row * (of_prefix ? shape.prefix : shape.tokens) + here.start) * key_stride;
    for (int64_t head = 0; head < shape.heads; ++head)
      pack_block(packed, packed.at(row, head, block), (of_prefix ? kept_k : own_k) + at + head * shape.size,
                 (of_prefix ? kept_v : own_v) + at + head * shape.size, key_stride, here.count);
  });

  const int64_t window = seen.dimensions()[3];  // words of 32 keys
  const int64_t stride = shape.heads * shape.group * shape.size;
  in_parallel(pool, shape.rows * asking_blocks * shape.heads, [&](int64_t task) {
    const int64_t head = task % shape.heads, block = task / shape.heads % asking_blocks;
    const int64_t row = task / shape.heads / asking_blocks;
    const Span here = span(shape, block);
    std::vector<Visit> visits;
    std::vector<uint32_t> ends;  // one word for all tokens, where a length ends within a block
    ends.reserve(2 * kBlock);
    auto add = [&](int64_t first, int64_t keys) {
      for (int64_t i = 0; i < blocks_of(keys); ++i) {
        const int64_t left = keys - i * kBlock, place = packed.at(row, head, first + i);
        const uint32_t* some = nullptr;
        if (left < kBlock) {
          some = ends.data() + ends.size();
          ends.insert(ends.end(), kBlock, (1u << left) - 1);
        }
        visits.push_back({packed.keys + place, packed.values + place, some, 1});
      }
    };
    add(0, prefix_length.typed_data()[row * asking_blocks + block]);
    add(own_blocks, whole.typed_data()[row * asking_blocks + block]);
    const uint32_t* bits = seen.typed_data() + (row * asking_blocks + block) * kBlock * window;
    const int64_t first = from.typed_data()[row * asking_blocks + block];
    for (int64_t i = 0; i < window; ++i) {
      uint32_t any = 0;
      for (int64_t token = 0; token < here.count; ++token) any |= bits[token * window + i];
      if (!any) continue;
      const int64_t place = packed.at(row, head, own_blocks + first + i);
      visits.push_back({packed.keys + place, packed.values + place, bits + i, window});
    }
    const Tiles tiles;
    const int64_t sums_bytes = kBlock * shape.size * 4, asking_bytes = Operand<planes>::bytes(kBlock, shape.size);
    char* space = workspace(2 * (Memory<planes>::bytes() + sums_bytes) + shape.group * asking_bytes);
    const Memory<planes> memories[2] = {Memory<planes>(space), Memory<planes>(space + Memory<planes>::bytes())};
    space += 2 * Memory<planes>::bytes();
    Gathered gathered[2] = {{reinterpret_cast<float*>(space)}, {reinterpret_cast<float*>(space + sums_bytes)}};
    space += 2 * sums_bytes;
    const int64_t at = ((row * shape.tokens + here.start) * shape.heads + head) * shape.group * shape.size;
    const float scale = 1.4426950408889634f / std::sqrt(static_cast<float>(shape.size));
    Number* to = reinterpret_cast<Number*>(out->untyped_data()) + at;
    std::vector<Piece<Number>> pieces;
    for (int64_t member = 0; member < shape.group; ++member) {
      const Operand<planes> asked{space + member * asking_bytes, shape.size / kDepth};
      for (int64_t token = 0; token < here.count; ++token)
        for (int64_t step = 0; step < asked.steps; ++step)
          put<planes>(load(numbers<Number>(q) + at + token * stride + member * shape.size + step * kDepth),
                      asked.line(token, step), asked.kPlaneBytes);
      const Asking asking{asked.tiles, here.count, scale};
      for (size_t start = 0; start < visits.size(); start += kChunk) {
        Piece<Number> piece{visits.data() + start, static_cast<int>(std::min<size_t>(kChunk, visits.size() - start)), 0,
                            asking, &gathered[member % 2], start == 0, nullptr, stride};
        while (piece.plain < piece.count && !piece.visits[piece.plain].seen) ++piece.plain;
        if (start + kChunk >= visits.size()) piece.out = to + member * shape.size;
        pieces.push_back(piece);
      }
    }
    if (pieces.empty()) {  // tokens that see nothing
      for (int64_t token = 0; token < here.count; ++token)
        std::memset(to + token * stride, 0, shape.group * shape.size * sizeof(Number));
      return;
    }
    attend_to(pieces, memories, shape.size);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

using namespace onepass;
namespace ffi = xla::ffi;

#define ONEPASS_ATTEND(name, Number)                                                                               \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                   \
      onepass_attend_##name, attend<Number>,                                                                       \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Numbers<Number>>() \
          .Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Index>().Arg<Index>().Arg<Index>().Arg<Bits>()        \
          .Ret<Numbers<Number>>().Ret<ffi::Buffer<ffi::U8>>().Attr<int64_t>("context"))

ONEPASS_ATTEND(bf16, bf16);
ONEPASS_ATTEND(f32, float);
