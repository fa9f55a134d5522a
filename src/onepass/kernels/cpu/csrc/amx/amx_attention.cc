// Scoring attention on AMX over a flat step and a pool of pages: blocks of at most 32 asking tokens over the keys that
// they may see, in one pass. Numbers are bf16, or float32 in planes of bf16 (planes.h).
//
// Keys come in blocks of 32: parts of a page, and the step's tokens. All that some block of asking tokens visits are
// brought into tiles' order once a call, for all heads and blocks. Which they are is attention/block_table.py: of entries
// in [first, whole) every token sees every key; of the others, and of the step's own keys, a word for each asking token
// has a bit for each key that it sees.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "amx/planes.h"
#include "amx/softmax_weights.h"
#include "amx/tiles.h"
#include "common/threads.h"

namespace onepass {
namespace {

namespace ffi = xla::ffi;
using Index = ffi::Buffer<ffi::S32>;

constexpr int kBlock = 32;  // tokens that ask at most, and keys
constexpr int kChunk = 3;   // blocks of keys whose scores exist at once: two times as many fit in the first cache
constexpr int kStride = kBlock * kChunk;  // between rows of scores, and of weights
constexpr uint32_t kAll = 0xffffffffu;
constexpr int32_t kPadding = -1;

int64_t blocks_of(int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }

// Memory that outlives a call: how much a step needs is data, so XLA cannot plan it. Calls may run side by side.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex());
      if (!kept().empty()) {
        block_ = std::move(kept().back());
        kept().pop_back();
      }
    }
    if (block_.size < bytes) {
      block_.memory.reset();
      block_.memory.reset(static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
      block_.size = block_.memory ? bytes : 0;
    }
  }
  ~Scratch() {
    const std::lock_guard<std::mutex> lock(mutex());
    kept().push_back(std::move(block_));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  char* memory() const { return block_.memory.get(); }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  struct Memory {
    std::unique_ptr<char, Free> memory;
    size_t size = 0;
  };
  static std::mutex& mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<Memory>& kept() {
    static auto* kept = new std::vector<Memory>;
    return *kept;
  }
  Memory block_;
};

// Lines that are going to be read and written, of rows so many bytes apart, asked for one at a time.
struct Expected {
  const char* row = nullptr;
  int64_t stride = 0, lines = 0, rows = 0, line = 0;
  void turn() {
    if (!rows) return;
    fetch_to_write(row + line * 64);
    if (++line < lines) return;
    line = 0, row += stride, --rows;
  }
  void finish() {
    while (rows) turn();
  }
};

// Everything that a call is given. Tables are rows of int32, one after another.
template <typename Number>
struct Step {
  const Number *q, *own_k, *own_v, *pool_k, *pool_v;  // the pool's are this layer's
  Number* out;
  const int32_t *asking, *blocks, *own, *entries;
  int64_t asking_tokens, count, num_blocks, block, tokens, num_entries, page, heads, group, size;
  int64_t used_blocks() const { return (count + block - 1) / block; }
  int64_t key_stride() const { return heads * size; }
  int64_t page_blocks() const { return page / kBlock; }
  // Where a head's results for a block go; queries are there as a rule.
  Expected expected(int64_t block_at, int64_t head) const {
    const int64_t stride = heads * group * size, bytes = sizeof(Number), lines = group * size * bytes / 64;
    return {reinterpret_cast<const char*>(out + block_at * block * stride + head * group * size), stride * bytes, lines,
            std::min(block, count - block_at * block)};
  }
  int32_t table(int which, int64_t at) const { return blocks[which * num_blocks + at]; }
  int32_t entry(int which, int64_t at) const { return entries[which * num_entries + at]; }
};

// Places of a block of keys; those that are not there are padding.
struct KeyPlaces {
  alignas(64) int32_t segment[kBlock], position[kBlock];
};

template <typename Number>
KeyPlaces page_places(const Step<Number>& step, int64_t entry, int64_t part) {
  KeyPlaces places;
  for (int i = 0; i < kBlock; ++i) {
    const int64_t at = part * kBlock + i;
    places.segment[i] = at < step.entry(3, entry) ? step.entry(1, entry) : kPadding;
    places.position[i] = static_cast<int32_t>(step.entry(2, entry) + at);
  }
  return places;
}

template <typename Number>
KeyPlaces own_places(const Step<Number>& step, int64_t block) {
  KeyPlaces places;
  for (int i = 0; i < kBlock; ++i) {
    const int64_t at = block * kBlock + i;
    const bool there = at < step.tokens;
    places.segment[i] = there ? step.own[at] : kPadding;
    places.position[i] = there ? step.own[step.tokens + at] : 0;
  }
  return places;
}

// mask.sees of attention/mask.py, letter for letter, of one asking token and 32 keys: a bit for each.
uint32_t sees(int32_t segment, int32_t parent, int32_t context, int32_t position, const KeyPlaces& key) {
  uint32_t word = 0;
  for (int half = 0; half < 2; ++half) {
    const __m512i key_segment = _mm512_load_si512(key.segment + 16 * half);
    const __m512i key_position = _mm512_load_si512(key.position + 16 * half);
    const uint32_t own = _mm512_cmpeq_epi32_mask(key_segment, _mm512_set1_epi32(segment)) |
                         _mm512_cmpeq_epi32_mask(key_segment, _mm512_set1_epi32(parent)) |
                         _mm512_cmpeq_epi32_mask(key_segment, _mm512_set1_epi32(context));
    const uint32_t not_later = _mm512_cmple_epi32_mask(key_position, _mm512_set1_epi32(position));
    const uint32_t there = _mm512_cmpneq_epi32_mask(key_segment, _mm512_set1_epi32(kPadding));
    word |= (own & not_later & there) << (16 * half);
  }
  return word;
}

// Keys and values in tiles' order, [heads, blocks]: parts of entries from `first_entry` on, then tokens from block
// `first_own` on.
struct Packed {
  char *keys, *values;
  int64_t first_entry, entry_blocks, first_own, num_blocks, block_bytes, size;
  int64_t at(int64_t head, int64_t block) const { return (head * num_blocks + block) * block_bytes; }
  const char* keys_of(int64_t head, int64_t block) const { return keys + at(head, block); }
  const char* values_of(int64_t head, int64_t block) const { return values + at(head, block); }
};

template <typename Number>
void pack_block(const Packed& packed, int64_t place, const Number* k, const Number* v, int64_t stride, int64_t count) {
  constexpr int64_t tiles_bytes = kPlanes<Number> * kTileBytes;
  const int64_t size = packed.size, steps = size / kDepth;
  for (int half = 0; half < 2; ++half)
    for (int64_t step = 0; step < steps; ++step)
      pack_transposed(k + half * kRows * stride + step * kDepth, stride, std::clamp<int64_t>(count - half * kRows, 0, kRows),
                      packed.keys + place + (half * steps + step) * tiles_bytes);
  for (int64_t part = 0; part < size / kRows; ++part)
    pack_rows(v + part * kRows, stride, count, packed.values + place + part * tiles_bytes);
}

// A block of keys to visit, and which keys each asking token sees. `seen` is null where all see all.
struct Visit {
  int64_t at;            // among a head's blocks
  const uint32_t* seen;  // a word for each asking token
  uint32_t word(int token) const { return seen ? seen[token] : kAll; }
};

// Tokens, with the keys and values of their head.
struct Asking {
  const char *q, *keys, *values;  // in tiles
  int64_t block_bytes, count;
  float scale;
};

// What a block of tokens has gathered so far: Σ 2^(score - top) · value, Σ 2^(score - top), top.
struct Gathered {
  float* sums;  // [32, size]
  alignas(64) float total[kBlock], top[kBlock];
  void forget() {
    std::fill_n(total, kBlock, 0.0f);
    std::fill_n(top, kBlock, -std::numeric_limits<float>::infinity());
  }
};

// Of one piece of work at a time; two pieces are under way together.
template <int planes>
struct Memory {
  float* scores;
  bf16* weights;
  static constexpr int64_t kPlane = kBlock * kStride;  // numbers of a plane of weights
  static constexpr int64_t bytes() { return kPlane * (4 + 2 * planes); }
  explicit Memory(char* at) : scores(reinterpret_cast<float*>(at)), weights(reinterpret_cast<bf16*>(at + kPlane * 4)) {}
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

// A row's scores become weights; of `count` blocks the first `plain` are seen whole. Returns what earlier sums are to
// be scaled by.
template <int planes>
float weigh(const Memory<planes>& memory, Gathered& gathered, int row, const Visit* visits, int plain, int count,
            float scale) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const float* scores = memory.scores + row * kStride;
  bf16* weights = memory.weights + row * kStride;
  const auto seen = [=](int block) { return visits[block].word(row); };
  __m512 most = largest<false>(scores, 0, plain, seen, _mm512_set1_ps(kNothing));
  if (plain < count) most = largest<true>(scores, plain, count, seen, most);
  float top = gathered.top[row], kept = 1.0f;
  const float highest = _mm512_reduce_max_ps(most) * scale;
  if (!(highest <= top + kSlack)) {  // no number, too
    kept = std::isfinite(highest) ? std::exp2(std::max(top - highest, -200.0f)) : std::numeric_limits<float>::quiet_NaN();
    top = highest;
  } else if (top == kNothing) {  // nothing seen yet
    for (int plane = 0; plane < planes; ++plane)
      std::memset(weights + plane * memory.kPlane, 0, count * kBlock * 2);
    return 1.0f;
  }
  auto total = no_weights<planes>();
  total = weights_of<planes, false>(scores, weights, memory.kPlane, 0, plain, seen, scale, top, total);
  if (plain < count)
    total = weights_of<planes, true>(scores, weights, memory.kPlane, plain, count, seen, scale, top, total);
  gathered.total[row] = gathered.total[row] * kept + _mm512_reduce_add_ps(total);
  gathered.top[row] = top;
  return kept;
}

template <typename Number, int planes, typename Other>
void score(const Memory<planes>& memory, const Piece<Number>& piece, int64_t size, Pending& pending, Other& meanwhile) {
  using Left = Operand<planes>;
  const int steps = static_cast<int>(size / kDepth);
  for (int block = 0; block < piece.count; ++block) {
    const char* keys = piece.asking.keys + piece.visits[block].at * piece.asking.block_bytes;
    product<planes>(
        [&](int step, int plane) { return piece.asking.q + step * Left::kStepBytes + plane * Left::kPlaneBytes; }, 64,
        kTileBytes, [&](int step, int plane) { return keys + (step * planes + plane) * kTileBytes; },
        steps * planes * kTileBytes, steps, pending, {reinterpret_cast<char*>(memory.scores + block * kBlock), kStride * 4},
        std::ref(meanwhile));
  }
}

// What was gathered before is brought to the new top.
template <typename Number>
void scale(const Piece<Number>& piece, int64_t size, Pending& pending) {
  float* sums = piece.gathered->sums;
  for (int row = 0; row < piece.asking.count; ++row) {
    if (piece.kept[row] == 1.0f) continue;
    store(pending);
    for (int64_t i = row * size; i < (row + 1) * size; i += kBlock)
      store(sums + i, load(sums + i) * both(piece.kept[row]));
  }
}

// Adds the values by their weights to what was gathered.
template <typename Number, int planes, typename Other>
void gather(const Memory<planes>& memory, const Piece<Number>& piece, int64_t size, Pending& pending, Other& meanwhile) {
  if (!piece.first) scale(piece, size, pending);
  for (int64_t part = 0; part < size / kBlock; ++part) {
    const char* values = piece.asking.values + 2 * part * planes * kTileBytes;
    product<planes>(
        [&](int step, int plane) {
          return reinterpret_cast<const char*>(memory.weights + plane * memory.kPlane + step * kBlock);
        },
        kStride * 2, kRows * kStride * 2,
        [&](int step, int plane) {
          return values + piece.visits[step].at * piece.asking.block_bytes + plane * kTileBytes;
        },
        planes * kTileBytes, piece.count, pending,
        {reinterpret_cast<char*>(piece.gathered->sums + part * kBlock), size * 4}, std::ref(meanwhile), !piece.first);
  }
}

// What was gathered, divided by the sum of its weights.
template <typename Number>
void write(const Piece<Number>& piece, int64_t size) {
  for (int64_t token = 0; token < piece.asking.count; ++token) {
    const float total = piece.gathered->total[token];
    const Pair over = both(total == 0 ? 0.0f : 1.0f / total);
    for (int64_t i = 0; i < size; i += kBlock)
      store(piece.out + token * piece.stride + i, load(piece.gathered->sums + token * size + i) * over);
  }
}

// All pieces, in order: while one's scores become weights, the tiles multiply the values of the one before and the
// scores of the one after.
template <typename Number, int planes>
void attend_to(std::vector<Piece<Number>>& pieces, const Memory<planes>* memories, int64_t size, Expected expected) {
  auto nothing = [] {};
  const int64_t steps = kTurns<planes> * (size / kDepth), parts = kTurns<planes> * (size / kBlock);
  const size_t count = pieces.size();
  Pending pending;
  score(memories[0], pieces[0], size, pending, nothing);
  store(pending);
  for (size_t i = 0; i < count; ++i) {
    Piece<Number>& piece = pieces[i];
    if (piece.first) piece.gathered->forget();
    const Memory<planes> &here = memories[i % 2], &other = memories[(i + 1) % 2];
    const Piece<Number> *before = i ? &pieces[i - 1] : nullptr, *after = i + 1 < count ? &pieces[i + 1] : nullptr;
    auto weigh_row = [&](int64_t row) {
      expected.turn();
      piece.kept[row] =
          weigh(here, *piece.gathered, static_cast<int>(row), piece.visits, piece.plain, piece.count, piece.asking.scale);
    };
    const int64_t turns = (before ? parts * before->count : 0) + (after ? steps * after->count : 0);
    Spread rows(piece.asking.count, turns);
    auto meanwhile = [&] { rows.turn(weigh_row); };
    if (before) gather(other, *before, size, pending, meanwhile);
    if (before && before->out) {
      store(pending);
      write(*before, size);
    }
    if (after) score(other, *after, size, pending, meanwhile);
    rows.finish(weigh_row);
  }
  gather(memories[(count - 1) % 2], pieces.back(), size, pending, nothing);
  store(pending);
  write(pieces.back(), size);
}

// What blocks of asking tokens visit altogether, in tiles' order.
template <typename Number>
Packed packed_for(const Step<Number>& step) {
  int64_t first = step.num_entries, end = 0, own = step.tokens, own_end = 0;
  for (int64_t block = 0; block < step.used_blocks(); ++block) {
    if (step.table(0, block) < step.table(2, block)) {
      first = std::min<int64_t>(first, step.table(0, block));
      end = std::max<int64_t>(end, step.table(2, block));
    }
    if (step.table(3, block) < step.table(4, block)) {
      own = std::min<int64_t>(own, step.table(3, block));
      own_end = std::max<int64_t>(own_end, step.table(4, block));
    }
  }
  const int64_t entry_blocks = std::max<int64_t>(0, end - first) * step.page_blocks();
  const int64_t own_blocks = own < own_end ? blocks_of(own_end) - own / kBlock : 0;
  return {nullptr, nullptr, first, entry_blocks, own / kBlock, entry_blocks + own_blocks,
          kBlock * step.size * 2 * kPlanes<Number>, step.size};
}

template <typename Number>
void pack(ffi::ThreadPool& pool, const Step<Number>& step, const Packed& packed) {
  in_parallel(pool, packed.num_blocks, [&](int64_t block) {
    const bool of_page = block < packed.entry_blocks;
    const int64_t entry = packed.first_entry + block / step.page_blocks(), part = block % step.page_blocks();
    const int64_t token = (packed.first_own + block - packed.entry_blocks) * kBlock;
    const int64_t key = of_page ? step.entry(0, entry) * step.page + part * kBlock : token;
    const int64_t there = of_page ? step.entry(3, entry) - part * kBlock : step.tokens - token;
    const int64_t count = std::clamp<int64_t>(there, 0, kBlock);
    for (int64_t head = 0; head < step.heads; ++head) {
      const int64_t at = key * step.key_stride() + head * step.size;
      pack_block(packed, packed.at(head, block), (of_page ? step.pool_k : step.own_k) + at,
                 (of_page ? step.pool_v : step.own_v) + at, step.key_stride(), count);
    }
  });
}

// The blocks of keys that a block of asking tokens visits, those that are seen whole first: the same for every head.
struct Visits {
  std::vector<Visit> list;
  std::vector<uint32_t> words;
};

template <typename Number>
Visits visits_of(const Step<Number>& step, const Packed& packed, int64_t block) {
  const int64_t tokens = std::min(step.block, step.count - block * step.block);
  const int64_t parts = step.page_blocks(), first = step.table(0, block), whole = step.table(1, block);
  const int64_t end = step.table(2, block), own = step.table(3, block), own_end = step.table(4, block);
  const int64_t own_blocks = own < own_end ? blocks_of(own_end) - own / kBlock : 0;
  Visits visits;
  visits.words.resize(((end - whole) * parts + own_blocks) * kBlock);
  uint32_t* words = visits.words.data();
  auto add_masked = [&](int64_t at, const KeyPlaces& places) {
    uint32_t any = 0;
    for (int64_t i = 0; i < tokens; ++i) {
      const int32_t* asking = step.asking + block * step.block + i;
      const int64_t row = step.asking_tokens;
      words[i] = sees(asking[0], asking[row], asking[2 * row], asking[3 * row], places);
      any |= words[i];
    }
    if (!any) return;
    visits.list.push_back({at, words});
    words += kBlock;
  };
  for (int64_t i = (first - packed.first_entry) * parts; i < (whole - packed.first_entry) * parts; ++i)
    visits.list.push_back({i, nullptr});
  for (int64_t entry = whole; entry < end; ++entry)
    for (int64_t part = 0; part < parts; ++part)
      add_masked((entry - packed.first_entry) * parts + part, page_places(step, entry, part));
  for (int64_t i = own / kBlock; i < own / kBlock + own_blocks; ++i)
    add_masked(packed.entry_blocks + i - packed.first_own, own_places(step, i));
  return visits;
}

// `expected` are asked for meanwhile.
template <typename Number>
void attend_block(const Step<Number>& step, const Packed& packed, const Visits& visits, int64_t head, int64_t block,
                  Expected expected) {
  constexpr int planes = kPlanes<Number>;
  const int64_t start = block * step.block, count = std::min(step.block, step.count - start);
  const int64_t stride = step.heads * step.group * step.size, at = start * stride + head * step.group * step.size;
  Number* to = step.out + at;
  if (visits.list.empty()) {  // tokens that see nothing
    for (int64_t token = 0; token < count; ++token)
      std::memset(to + token * stride, 0, step.group * step.size * sizeof(Number));
    return;
  }
  const Tiles tiles;
  const int64_t sums_bytes = kBlock * step.size * 4, asking_bytes = Operand<planes>::bytes(kBlock, step.size);
  char* space = workspace(2 * (Memory<planes>::bytes() + sums_bytes) + step.group * asking_bytes);
  const Memory<planes> memories[2] = {Memory<planes>(space), Memory<planes>(space + Memory<planes>::bytes())};
  space += 2 * Memory<planes>::bytes();
  Gathered gathered[2] = {{reinterpret_cast<float*>(space)}, {reinterpret_cast<float*>(space + sums_bytes)}};
  space += 2 * sums_bytes;
  const float scale = kLog2E / std::sqrt(static_cast<float>(step.size));
  const int64_t num_visits = visits.list.size();
  std::vector<Piece<Number>> pieces;
  for (int64_t member = 0; member < step.group; ++member) {
    const Operand<planes> queries{space + member * asking_bytes, step.size / kDepth};
    for (int64_t token = 0; token < count; ++token)
      for (int64_t i = 0; i < queries.steps; ++i)
        put<planes>(load(step.q + at + token * stride + member * step.size + i * kDepth), queries.line(token, i),
                    queries.kPlaneBytes);
    const Asking asking{queries.tiles, packed.keys_of(head, 0), packed.values_of(head, 0), packed.block_bytes, count, scale};
    for (int64_t first = 0; first < num_visits; first += kChunk) {
      Piece<Number> piece{visits.list.data() + first, static_cast<int>(std::min<int64_t>(kChunk, num_visits - first)), 0,
                          asking, &gathered[member % 2], first == 0, nullptr, stride};
      while (piece.plain < piece.count && !piece.visits[piece.plain].seen) ++piece.plain;
      if (first + kChunk >= num_visits) piece.out = to + member * step.size;
      pieces.push_back(piece);
    }
  }
  attend_to(pieces, memories, step.size, expected);
}

// `out` is q's memory: a block reads its queries before it writes there, and padding keeps what it has.
template <typename Number>
ffi::Error attend(ffi::ThreadPool pool, Numbers<Number> q, Numbers<Number> own_k, Numbers<Number> own_v,
                  Numbers<Number> pool_k, Numbers<Number> pool_v, Index layer, Index count, Index asking, Index blocks,
                  Index own, Index entries, ffi::Result<Numbers<Number>> out) {
  const auto d = q.dimensions(), p = pool_k.dimensions();  // [asking kv_heads group size], [layers pages page kv_heads size]
  if (p[3] != d[1] || p[4] != d[3]) return ffi::Error::InvalidArgument("the pool's heads are not the queries'");
  const int64_t at = layer.typed_data()[0], before = at * p[1] * p[2] * p[3] * p[4];
  if (at < 0 || at >= p[0]) return ffi::Error::InvalidArgument("there is no such layer");
  const int64_t num_blocks = blocks.dimensions()[1];
  const Step<Number> step{
      numbers<Number>(q), numbers<Number>(own_k), numbers<Number>(own_v), numbers<Number>(pool_k) + before,
      numbers<Number>(pool_v) + before, reinterpret_cast<Number*>(out->untyped_data()), asking.typed_data(),
      blocks.typed_data(), own.typed_data(), entries.typed_data(), d[0], std::min<int64_t>(d[0], count.typed_data()[0]),
      num_blocks, d[0] / num_blocks, own.dimensions()[1], entries.dimensions()[1], p[2], d[1], d[2], d[3]};
  if (step.size % kDepth || step.page % kBlock || step.block > kBlock)
    return ffi::Error::InvalidArgument("heads and pages must be a multiple of 32, and at most 32 tokens ask at once");
  if (step.out != step.q) {
    const int64_t real = step.count * d[1] * d[2] * d[3];
    std::memset(step.out + real, 0, (q.element_count() - real) * sizeof(Number));
  }
  Packed packed = packed_for(step);
  const int64_t packed_bytes = step.heads * packed.num_blocks * packed.block_bytes;
  const Scratch scratch(2 * packed_bytes);
  if (packed_bytes && !scratch.memory()) return ffi::Error::Internal("no memory for keys and values in tiles");
  packed.keys = scratch.memory();
  packed.values = packed.keys + packed_bytes;
  pack(pool, step, packed);
  std::vector<Visits> visits(step.used_blocks());
  in_parallel(pool, step.used_blocks(), [&](int64_t block) { visits[block] = visits_of(step, packed, block); });
  // All heads of a block after one another where there are blocks enough, so that the next head's queries can be asked for.
  const int64_t together = step.used_blocks() < 8 * pool.num_threads() ? 1 : step.heads, parts = step.heads / together;
  in_parallel(pool, step.used_blocks() * parts, [&](int64_t task) {  // a long context's last blocks see most keys
    const int64_t block = step.used_blocks() - 1 - task / parts, head = task % parts;
    step.expected(block, head).finish();
    for (int64_t i = 0; i < together; ++i)
      attend_block(step, packed, visits[block], head + i, block,
                   i + 1 < together ? step.expected(block, head + i + 1) : Expected());
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

using namespace onepass;
namespace ffi = xla::ffi;

#define ONEPASS_ATTEND(name, Number)                                                                               \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                   \
      onepass_amx_attend_##name, attend<Number>,                                                                   \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Numbers<Number>>() \
          .Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Index>().Arg<Index>().Arg<Index>().Arg<Index>()       \
          .Arg<Index>().Arg<Index>().Ret<Numbers<Number>>())

ONEPASS_ATTEND(bf16, bf16);
ONEPASS_ATTEND(f32, float);
