// SPDX-License-Identifier: Apache-2.0
// Every allocation of a plan, of a packed filter and of a run on the CPU fails once: an exception
// says so, and afterwards the same problem is computed rightly.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "convoy/convoy.h"
#include "convoy/convoy.hpp"
#include "convoy/shard.hpp"
#include "core/text.hpp"

namespace {

std::atomic<long> countdown = 0;   ///< The allocation that fails; 0 or less: none.
thread_local bool spared = false;  ///< None of this thread's fails, nor is counted.

/// oneDNN's and OpenMP's own are left alone, which may end the process. NOTE: dladdr is slow, and
/// callers are few and come again.
bool counts(const void* caller) {
  static std::atomic<std::uintptr_t> known[4096];  // Twice the address, and the answer.
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  std::atomic<std::uintptr_t>& slot = known[(address ^ address >> 12) % 4096];
  if (const std::uintptr_t found = slot; found >> 1 == address) return found % 2 != 0;
  Dl_info info{};
  const bool named = dladdr(caller, &info) != 0 && info.dli_fname != nullptr;
  const bool ours = !named || (std::strstr(info.dli_fname, "libdnnl") == nullptr &&
                               std::strstr(info.dli_fname, "libgomp") == nullptr);
  slot = address << 1 | static_cast<std::uintptr_t>(ours);
  return ours;
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) {
  if (countdown > 0 && !spared && counts(caller) && countdown.fetch_sub(1) == 1) return nullptr;
  void* memory = nullptr;
  return posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) == 0 ? memory : nullptr;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment, const void* caller) {
  void* const memory = allocate(bytes, alignment, caller);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

#define CALLER __builtin_return_address(0)
void* operator new(std::size_t n) {
  return allocate_or_throw(n, 16, CALLER);
}
void* operator new[](std::size_t n) {
  return allocate_or_throw(n, 16, CALLER);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return allocate_or_throw(n, static_cast<std::size_t>(a), CALLER);
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return allocate_or_throw(n, static_cast<std::size_t>(a), CALLER);
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return allocate(n, 16, CALLER);
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, static_cast<std::size_t>(a), CALLER);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace convoy {
namespace {

/// `work(problem)` with each of its allocations failing, each time on another problem: oneDNN keeps
/// what it made. `work` answers whether what it computed is right.
void fail_each(const std::function<bool(std::int64_t)>& work) {
  ASSERT_TRUE(work(0));  // Libraries are loaded, tables made.
  for (long at = 1; at < 10000; ++at) {
    countdown = at;
    bool right = true;
    try {
      right = work(at);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::out_of_memory)
          << "allocation " << at << ": " << error.what();
    } catch (const std::bad_alloc&) {
    }
    const bool failed = countdown.exchange(0) <= 0;
    EXPECT_TRUE(right) << "allocation " << at;
    EXPECT_NO_THROW(EXPECT_TRUE(work(at)) << "after allocation " << at);
    if (!failed || testing::Test::HasFailure()) {
      EXPECT_GT(at, 100);
      return;
    }
  }
}

/// A 1x1 convolution with ones, of a width of its own.
struct Layer {
  static constexpr std::int64_t kChannels = 4;
  explicit Layer(std::int64_t at)
      : problem{.in_height = 2, .in_width = 3 + at, .in_channels = kChannels, .out_channels = 3},
        x(static_cast<std::size_t>(2 * (3 + at) * kChannels), 2.0f),
        filter(3 * kChannels, 1.0f),
        y(static_cast<std::size_t>(2 * (3 + at) * 3), 0.0f) {}
  bool right(float expected) const {
    return std::all_of(y.begin(), y.end(), [&](float v) { return v == expected; });
  }

  Conv2dProblemShape problem;
  std::vector<float> x, filter, y;
};

TEST(OutOfMemory, OfAPlanAndItsRun) {
  fail_each([](std::int64_t at) {
    Layer layer(at);
    const Plan made = plan(layer.problem, {.dtype = DType::fp32, .device = Device::cpu});
    made.run(
        {.output = layer.y.data(), .activation = layer.x.data(), .filter = layer.filter.data()});
    return layer.right(8);
  });
}

TEST(OutOfMemory, TextIsWholeOrThrows) {
  const std::string part(300, 'x');
  const std::string whole = part + "7" + part + part;
  int thrown = 0;
  for (long point = 1;; ++point) {
    std::string got;
    bool failed = false;
    countdown = point;
    try {
      got = text(part, 7, part, part);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    const bool all_made = countdown > 0;
    countdown = 0;
    if (all_made) break;
    thrown += failed ? 1 : 0;
    EXPECT_TRUE(failed || got == whole)
        << "allocation " << point << ": " << got.size() << " of " << whole.size() << " characters";
  }
  EXPECT_GE(thrown, 3);
}

TEST(OutOfMemory, OfAPackedFilterAndAPrologue) {
  fail_each([](std::int64_t at) {
    Layer layer(at);
    const std::vector<float> scale(Layer::kChannels, 0.5f), shift(Layer::kChannels, -3.0f);
    const Prologue prologue = {.norm = PrologueNorm::scale_shift,
                               .activation = Activation::relu,
                               .scale = scale.data(),
                               .shift = shift.data()};
    const Epilogue epilogue = {.scale = 2.0f, .activation = Activation::relu};
    const Plan made = plan(layer.problem, {.dtype = DType::fp32,
                                           .epilogue = epilogue.kind(),
                                           .prologue = prologue.kind(),
                                           .device = Device::cpu,
                                           .packed_filter = true});
    const PackedFilter packed = made.pack_filter(layer.filter.data(), FilterLayout::krsc);
    made.run({.output = layer.y.data(),
              .activation = layer.x.data(),
              .filter = packed,
              .epilogue = epilogue,
              .prologue = prologue});
    return layer.right(0);
  });
}

/// One rank's plan, halos, run and gathered output, with `plans` and `runs` before the first and
/// the second. What it threw.
std::string run_rank(const Communicator& ranks, std::int64_t width,
                     const std::function<void()>& plans, const std::function<void()>& runs) {
  const Conv2dProblemShape problem{.in_height = 4,
                                   .in_width = width,
                                   .in_channels = 4,
                                   .out_channels = 3,
                                   .filter_h = 3,
                                   .pad_h = 1};
  const auto values = static_cast<std::size_t>(4 * width * 4);
  std::vector<float> x(values, 2.0f), filter(3 * 3 * 4, 1.0f), y(values), whole(values);
  ShardedTensor output{.data = y.data(), .inner = static_cast<std::size_t>(width) * 3 * 4};
  for (const ShardLayout& layout : shard_layouts(problem, {.count = 2})) {
    output.ranges.push_back(layout.output);
  }
  try {
    plans();
    const ShardedPlan made =
        plan_shard(problem, {.dtype = DType::fp32, .device = Device::cpu}, ranks, {.count = 2});
    runs();
    made.exchange(x.data());
    made.run({.output = TensorView(y.data()),
              .activation = x.data(),
              .filter = FilterRef(filter.data())});
    gather_shards(ranks, output, whole.data());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Every `step`-th allocation of rank 1 fails, of its plan or of what follows; rank 0 is told.
void fail_one_rank(bool of_the_plan, long step) {
  const std::function<void()> nothing = [] {};
  spared = true;
  long failures = 0;
  for (long at = 1; at < 100000 && !testing::Test::HasFailure(); at += step) {
    const auto ranks = Communicator::in_process(2, std::chrono::seconds(5));
    const std::function<void()> begin = [at] { countdown = at; };
    std::string first, second;
    std::thread other([&] {
      spared = true;
      first = run_rank(ranks[0], 2 + at, nothing, nothing);
    });
    std::thread failing([&] {
      second =
          run_rank(ranks[1], 2 + at, of_the_plan ? begin : nothing, of_the_plan ? nothing : begin);
    });
    failing.join();
    other.join();
    const bool failed = countdown.exchange(0) <= 0;
    EXPECT_EQ(first.find("waited"), std::string::npos) << "allocation " << at << ": " << first;
    if (second.empty()) {
      EXPECT_EQ(first, "") << "allocation " << at;
    }
    if (!failed) {
      EXPECT_EQ(second, "");
      EXPECT_GT(failures, 20);
      return;
    }
    failures += second.empty() ? 0 : 1;
  }
}

TEST(OutOfMemory, OfCommunicatorsLeavesNone) {
  for (long at = 1; at < 1000; ++at) {
    convoy_communicator_t ranks[3] = {};
    countdown = at;
    const convoy_status_t status = convoy_communicators_in_process(3, 1000, ranks);
    const bool failed = countdown.exchange(0) <= 0;
    for (convoy_communicator_t rank : ranks) {
      EXPECT_EQ(rank != nullptr, !failed) << "allocation " << at;
      convoy_communicator_destroy(rank);
    }
    EXPECT_EQ(status, failed ? CONVOY_OUT_OF_MEMORY : CONVOY_OK);
    if (!failed) {
      EXPECT_GT(at, 10);
      return;
    }
  }
}

TEST(OutOfMemory, OfOneRanksPlanIsToldTheOther) {
  fail_one_rank(true, 101);
}

TEST(OutOfMemory, OfOneRanksRunIsToldTheOther) {
  fail_one_rank(false, 1);
}

}  // namespace
}  // namespace convoy
