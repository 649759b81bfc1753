// SPDX-License-Identifier: Apache-2.0
//
// How the library calls the CUDA runtime: plans that share a kernel do not lower each other's
// shared memory, failures are those of our own calls, and other libraries' errors stay theirs.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "convoy/plan.hpp"
#include "core/geometry.hpp"
#include "kernels/common/launch.hpp"

namespace convoy {
namespace {

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)

__global__ void write_kernel(int* to, int value) {
  extern __shared__ int shared[];
  shared[0] = value;
  *to = shared[0];
}

int dynamic_shared_limit() {
  cudaFuncAttributes attributes{};
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(write_kernel)),
            cudaSuccess);
  return attributes.maxDynamicSharedSizeBytes;
}

class LaunchTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "needs a CUDA device, real or virtual";
    }
    ASSERT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
  void TearDown() override { (void)cudaGetLastError(); }
};

// ---- Plans --------------------------------------------------------------------------------------

// A plan with memory of its own; the same inputs in every run.
struct Layer {
  Plan plan;
  std::size_t output_bytes;
  std::shared_ptr<void> activation, filter, output, workspace;
  PackedFilter packed;

  Layer(const char* kernel, const Conv2dProblemShape& shape, bool packed_filter)
      : plan(convoy::plan(
            shape, {.device = Device::cuda, .packed_filter = packed_filter, .kernel = kernel})) {
    const ConvGeometry g = geometry_of(shape);
    output_bytes = static_cast<std::size_t>(g.output_elements()) * 2;
    activation = filled(g.activation_elements());
    filter = filled(g.filter_elements());
    output = allocate_device_memory(output_bytes);
    workspace = allocate_device_memory(plan.workspace_bytes());
    if (packed_filter) packed = plan.pack_filter(filter.get(), FilterLayout::krsc);
  }

  static std::shared_ptr<void> filled(std::int64_t elements) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<std::uint16_t>(i % 3 == 0 ? 0x3f80 : 0xbf80);  // 1, -1
    }
    auto memory = allocate_device_memory(values.size() * 2);
    EXPECT_EQ(cudaMemcpy(memory.get(), values.data(), values.size() * 2, cudaMemcpyHostToDevice),
              cudaSuccess);
    return memory;
  }

  std::vector<std::uint16_t> run() {
    EXPECT_EQ(cudaMemset(output.get(), 0xff, output_bytes), cudaSuccess);
    RunArguments arguments;
    arguments.output = output.get();
    arguments.activation = ConstTensorView(activation.get());
    arguments.filter = packed ? FilterRef(packed) : FilterRef(filter.get());
    if (plan.workspace_bytes() > 0) arguments.workspace = workspace.get();
    plan.run(arguments, nullptr);
    std::vector<std::uint16_t> result(output_bytes / 2);
    EXPECT_EQ(cudaMemcpy(result.data(), output.get(), output_bytes, cudaMemcpyDeviceToHost),
              cudaSuccess);
    return result;
  }
};

// Two problems that the same kernel computes, with more and with less shared memory.
struct SharedKernel {
  const char* name;
  Conv2dProblemShape more, less;
  bool packed_filter = false;
};

Conv2dProblemShape image(std::int64_t channels, std::int64_t filters, std::int64_t side,
                         std::int64_t groups = 1) {
  return {.batch = 1,
          .in_height = 9,
          .in_width = 9,
          .in_channels = channels,
          .out_channels = filters,
          .filter_h = side,
          .filter_w = side,
          .pad_h = side / 2,
          .pad_w = side / 2,
          .groups = groups};
}

std::vector<SharedKernel> shared_kernels() {
  std::vector<SharedKernel> kernels = {
      {"few_filters", image(128, 3, 3), image(16, 3, 3)},
      {"few_channels", image(64, 64, 3), image(16, 64, 3)},
      {"grouped", image(64, 64, 7, 16), image(64, 64, 3, 16)},
  };
#ifdef CONVOY_WITH_SM90
  int major = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  if (major == 9) kernels.push_back({"sm90_stem", image(64, 64, 3), image(8, 64, 3), true});
#endif
  return kernels;
}

TEST_F(LaunchTest, PlansDoNotLowerEachOthersSharedMemory) {
  for (const SharedKernel& kernel : shared_kernels()) {
    SCOPED_TRACE(kernel.name);
    Layer more(kernel.name, kernel.more, kernel.packed_filter);
    const auto first = more.run();
    Layer less(kernel.name, kernel.less, kernel.packed_filter);
    (void)less.run();
    EXPECT_EQ(more.run(), first);
  }
}

// The driver's functions, which encode tensor maps, want a context that is current on the thread.
TEST_F(LaunchTest, PlansAreMadeAndRunOnThreadsThatDidNothingElse) {
  const auto on_a_new_thread = [](const auto& body) {
    std::string error;
    std::thread([&] {
      try {
        body();
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
    }).join();
    EXPECT_EQ(error, "");
  };
  const Conv2dProblemShape shape = image(128, 3, 3);
  Layer made_here("few_filters", shape, false);
  const auto expected = made_here.run();
  on_a_new_thread(
      [&] { (void)convoy::plan(shape, {.device = Device::cuda, .kernel = "few_filters"}); });
  ASSERT_CUDA(cudaMemset(made_here.output.get(), 0xff, made_here.output_bytes));
  on_a_new_thread([&] {
    RunArguments arguments;
    arguments.output = made_here.output.get();
    arguments.activation = ConstTensorView(made_here.activation.get());
    arguments.filter = made_here.filter.get();
    made_here.plan.run(arguments, nullptr);
  });
  std::vector<std::uint16_t> result(expected.size());
  ASSERT_CUDA(cudaMemcpy(result.data(), made_here.output.get(), made_here.output_bytes,
                         cudaMemcpyDeviceToHost));
  EXPECT_EQ(result, expected);
}

TEST_F(LaunchTest, ErrorsOfOthersAreNeitherReportedNorTaken) {
  EXPECT_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
  Layer layer("few_channels", image(3, 16, 3), false);
  (void)layer.run();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
}

// ---- launch.hpp ---------------------------------------------------------------------------------

TEST_F(LaunchTest, LimitsOfSharedMemoryAreOnlyRaised) {
  raise_shared_memory_limit(write_kernel, 60000, "write");
  EXPECT_EQ(dynamic_shared_limit(), 60000);
  raise_shared_memory_limit(write_kernel, 50000, "write");
  EXPECT_EQ(dynamic_shared_limit(), 60000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      for (int j = 0; j < 50; ++j) {
        raise_shared_memory_limit(write_kernel, 61000 + (i * 50 + j) * 37 % 400 * 16, "write");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(dynamic_shared_limit(), 61000 + 399 * 16);
}

TEST_F(LaunchTest, RefusedLaunchesSayWhatWasAskedAndLeaveNoError) {
  const auto memory = allocate_device_memory(sizeof(int));
  auto* const value = static_cast<int*>(memory.get());
  try {
    launch_kernel(write_kernel, {.name = "write", .grid = 3, .block = 64, .shared_bytes = 1 << 20},
                  value, 1);
    FAIL() << "1 MiB of shared memory was granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::launch_failure);
    const std::string what = error.what();
    for (const char* part : {"write", "3 x 1 x 1 blocks", "64 x 1 x 1 threads", "1048576 bytes",
                             "cudaErrorInvalidValue"}) {
      EXPECT_NE(what.find(part), std::string::npos) << part << " is not in: " << what;
    }
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_THROW(raise_shared_memory_limit(write_kernel, 1 << 20, "write"), Error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_THROW((void)allocate_device_memory(std::size_t{1} << 50), Error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);

  launch_kernel(write_kernel, {.name = "write", .grid = 1, .block = 1, .shared_bytes = 16}, value,
                42);
  int written = 0;
  ASSERT_CUDA(cudaMemcpy(&written, value, sizeof written, cudaMemcpyDeviceToHost));
  EXPECT_EQ(written, 42);
}

}  // namespace
}  // namespace convoy
