// Scoring attention over a flat step and a pool of pages, for any CPU.
//
// A task is a block of asking tokens with all heads of a KV head. Its queries become lanes (cpu_panels.h); keys and
// values are read from where they lie, by pointers: in the pool of pages, which comes whole with the layer's number, or
// in the step. Which keys a block visits is attention/block_table.py: entries in [first, whole) make unmasked tiles; all
// other keys that some token of the block sees are gathered into masked tiles. Memory traffic: keys and values once a
// block (16-bit ones are widened once a tile), queries and results once.

#include <algorithm>
#include <cstring>

#include "attention/attention_block.h"
#include "attention/cpu_panels.h"
#include "attention/empty_pool.h"
#include "common/numbers.h"
#include "common/threads.h"
#include "xla/ffi/api/ffi.h"

namespace onepass {
namespace {

namespace ffi = xla::ffi;
using Index = ffi::Buffer<ffi::S32>;

// `out` is q's memory: a block reads its queries before it writes there, and padding keeps what it has.
template <typename Number>
ffi::Error attend(ffi::ThreadPool pool, Numbers<Number> q, Numbers<Number> own_k, Numbers<Number> own_v,
                  Numbers<Number> pool_k, Numbers<Number> pool_v, Index layer, Index count, Index asking, Index blocks,
                  Index own, Index entries, ffi::Result<Numbers<Number>> out) {
  const auto d = q.dimensions(), p = pool_k.dimensions();  // [asking kv_heads group size], [layers pages page kv_heads size]
  if (p[3] != d[1] || p[4] != d[3]) return ffi::Error::InvalidArgument("the pool's heads are not the queries'");
  const int64_t at = layer.typed_data()[0];
  if (at < 0 || at >= p[0]) return ffi::Error::InvalidArgument("there is no such layer");
  const int64_t before = at * p[1] * p[2] * p[3] * p[4], num_blocks = blocks.dimensions()[1];
  const Step<Number> step{
      numbers<Number>(q), numbers<Number>(own_k), numbers<Number>(own_v), numbers<Number>(pool_k) + before,
      numbers<Number>(pool_v) + before, reinterpret_cast<Number*>(out->untyped_data()), asking.typed_data(),
      blocks.typed_data(), own.typed_data(), entries.typed_data(), d[0], std::min<int64_t>(d[0], count.typed_data()[0]),
      num_blocks, d[0] / num_blocks, own.dimensions()[1], entries.dimensions()[1], p[2], d[1], d[2], d[3]};
  if (step.out != step.q) {
    const int64_t real = step.count * d[1] * d[2] * d[3];
    std::memset(step.out + real, 0, (q.element_count() - real) * sizeof(Number));
  }
  const int64_t used = (step.count + step.block - 1) / step.block;
  in_parallel(pool, used * step.kv_heads, [&](int64_t task) {  // the last blocks of a long context are the longest
    Block<Number, Number, FloatPanels>(step, task % step.kv_heads, used - 1 - task / step.kv_heads).attend();
  });
  return ffi::Error::Success();
}

// The keys and values of `count` tokens into their slots of a layer's pages; the pool's memory is the results'.
template <typename Number>
ffi::Error write(ffi::ThreadPool, Numbers<Number> k, Numbers<Number> v, Index slots, Index layer, Index count,
                 Numbers<Number> pool_k, Numbers<Number> pool_v, ffi::Result<Numbers<Number>> out_k,
                 ffi::Result<Numbers<Number>> out_v) {
  const auto p = pool_k.dimensions();
  const int64_t num_slots = p[1] * p[2], size = p[3] * p[4], at = layer.typed_data()[0];
  if (at < 0 || at >= p[0]) return ffi::Error::InvalidArgument("there is no such layer");
  auto put = [&](const Numbers<Number>& from, const Numbers<Number>& before, ffi::Result<Numbers<Number>>& to) {
    Number* out = reinterpret_cast<Number*>(to->untyped_data());
    if (out != numbers<Number>(before)) std::memcpy(out, before.untyped_data(), before.size_bytes());
    const int64_t real = std::min<int64_t>(count.typed_data()[0], slots.element_count());
    for (int64_t token = 0; token < real; ++token) {
      const int64_t slot = slots.typed_data()[token];
      if (slot < 0 || slot >= num_slots) continue;
      std::memcpy(out + (at * num_slots + slot) * size, numbers<Number>(from) + token * size, size * sizeof(Number));
    }
  };
  put(k, pool_k, out_k);
  put(v, pool_v, out_v);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

using namespace onepass;
namespace ffi = xla::ffi;

#define ONEPASS_CPU(name, Number)                                                                                    \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                     \
      onepass_cpu_attend_##name, attend<Number>,                                                                     \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Numbers<Number>>()   \
          .Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Index>().Arg<Index>().Arg<Index>().Arg<Index>()         \
          .Arg<Index>().Arg<Index>().Ret<Numbers<Number>>());                                                        \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                     \
      onepass_cpu_write_##name, write<Number>,                                                                       \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Index>().Arg<Index>() \
          .Arg<Index>().Arg<Numbers<Number>>().Arg<Numbers<Number>>().Ret<Numbers<Number>>().Ret<Numbers<Number>>()); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_cpu_zeros_##name, zeros<Number>,                                             \
                                ffi::Ffi::Bind().Ret<Numbers<Number>>().Ret<Numbers<Number>>())

ONEPASS_CPU(bf16, bf16);
ONEPASS_CPU(f32, float);
