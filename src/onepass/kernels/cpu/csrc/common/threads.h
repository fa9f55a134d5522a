// Work shared among the threads that XLA computes with.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace onepass {

inline void pause(int turns) {
  if (turns < 4096) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  } else {
    std::this_thread::yield();
  }
}

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
  for (int turns = 0; shared->done.load(std::memory_order_acquire) < count; ++turns) pause(turns);
}

// For every part, begin(part) once and then work(part, range) for all ranges, on the thread that took the part; when none
// are left to take, other threads work on the ranges of parts that were begun. A thread that takes another part has none
// to share any more: what `begin` leaves in its workspace stays there for as long as others may want it.
inline void in_parts(xla::ffi::ThreadPool& pool, int64_t parts, int64_t ranges, std::function<void(int64_t)> begin,
                     std::function<void(int64_t, int64_t)> work) {
  struct Part {
    std::atomic<bool> begun{false};
    std::atomic<int64_t> next{0};
  };
  struct Shared {
    std::function<void(int64_t)> begin;
    std::function<void(int64_t, int64_t)> work;
    int64_t parts, ranges;
    std::unique_ptr<Part[]> states;
    std::atomic<int64_t> next{0}, done{0};
    bool all_done() const { return done.load(std::memory_order_acquire) == parts * ranges; }
    void drain(int64_t part) {
      for (int64_t range; (range = states[part].next.fetch_add(1)) < ranges;) {
        work(part, range);
        done.fetch_add(1, std::memory_order_release);
      }
    }
    void run() {
      for (int64_t part; (part = next.fetch_add(1)) < parts;) {
        begin(part);
        states[part].begun.store(true, std::memory_order_release);
        drain(part);
      }
      for (int turns = 0; !all_done(); ++turns) {
        for (int64_t part = 0; part < parts; ++part)
          if (states[part].begun.load(std::memory_order_acquire) && states[part].next.load() < ranges) drain(part);
        pause(turns);
      }
    }
  };
  auto shared = std::make_shared<Shared>();
  shared->begin = std::move(begin);
  shared->work = std::move(work);
  shared->parts = parts;
  shared->ranges = ranges;
  shared->states = std::make_unique<Part[]>(parts);
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), parts * ranges) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([shared] { shared->run(); });
  shared->run();
}

// Memory of the calling thread, kept for the next time; every `which` is another.
template <int which = 0>
char* workspace(size_t bytes) {
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
