// Work shared among the threads that XLA computes with.

#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace onepass {

// Calls body(i) for every i below count. The caller works too, and waits only for parts that were begun: threads of the
// pool that come late, or never, find nothing left to do.
inline void in_parallel(xla::ffi::ThreadPool& pool, int64_t count, std::function<void(int64_t)> body) {
  struct Shared {
    std::function<void(int64_t)> body;
    int64_t count;
    std::atomic<int64_t> next{0}, done{0};
    void work() {
      for (int64_t i; (i = next.fetch_add(1)) < count;) {
        body(i);
        done.fetch_add(1, std::memory_order_release);
      }
    }
  };
  auto shared = std::make_shared<Shared>();
  shared->body = std::move(body);
  shared->count = count;
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([shared] { shared->work(); });
  shared->work();
  for (int turns = 0; shared->done.load(std::memory_order_acquire) < count; ++turns) {
    if (turns < 4096) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// Memory of the calling thread, kept for the next time.
inline char* workspace(size_t bytes) {
  struct Block {
    char* memory = nullptr;
    size_t size = 0;
    ~Block() { std::free(memory); }
  };
  thread_local Block block;
  if (block.size < bytes) {
    std::free(block.memory);
    block.size = (bytes + 4095) / 4096 * 4096;
    block.memory = static_cast<char*>(std::aligned_alloc(4096, block.size));
  }
  return block.memory;
}

}  // namespace onepass
