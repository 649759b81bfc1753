// SPDX-License-Identifier: Apache-2.0
// What Plan::run costs on the CPU beyond oneDNN called directly.
//
//   cpu_overhead [--rounds 300]
//
// Both run the same problem on the same tensors in one process, taking turns; the times are
// medians, and "more" is the median over the rounds of ours / direct - 1, which other load on the
// machine disturbs least. "direct" is a bare primitive with its own packed weights, memory objects
// made before. Rows with an epilogue compare with oneDNN's convolution alone: what the bias,
// activation and residual add.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "convoy/convoy.hpp"
#include "convoy/dtype.hpp"
#include "convoy/geometry.hpp"
#include "onednn/onednn.hpp"

namespace {

using namespace convoy;

struct Row {
  const char* name;
  std::int64_t size, channels, filters, filter;
  DType dtype;
  bool packed;
  bool epilogue;
};

constexpr Row kRows[] = {
    {"64x64x64->64 3x3", 64, 64, 64, 3, DType::fp32, true, false},
    {"64x64x64->64 3x3", 64, 64, 64, 3, DType::bf16, true, false},
    {"64x64x64->64 3x3, filter not packed", 64, 64, 64, 3, DType::fp32, false, false},
    {"64x64x64->64 3x3, filter not packed", 64, 64, 64, 3, DType::bf16, false, false},
    {"64x64x64->64 3x3, bias+silu+residual", 64, 64, 64, 3, DType::fp32, true, true},
    {"64x64x64->64 3x3, bias+silu+residual", 64, 64, 64, 3, DType::bf16, true, true},
    {"128x128x128->128 3x3", 128, 128, 128, 3, DType::fp32, true, false},
    {"128x128x128->128 3x3", 128, 128, 128, 3, DType::bf16, true, false},
    {"256x256x128->3 3x3", 256, 128, 3, 3, DType::bf16, true, false},
    {"128x128x256->256 1x1", 128, 256, 256, 1, DType::bf16, true, false},
};

class Buffer {
 public:
  Buffer(std::int64_t elements, DType dtype, float size)
      : memory_(std::aligned_alloc(64, (static_cast<std::size_t>(elements) * 4 + 127) / 64 * 64)) {
    std::uint32_t state = 12345;
    for (std::int64_t i = 0; i < elements; ++i) {
      state = state * 1664525u + 1013904223u;
      store_element(memory_, i, dtype, size * (static_cast<float>(state >> 8) * 0x1p-23f - 1.0f));
    }
  }
  ~Buffer() { std::free(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return memory_; }

 private:
  void* memory_;
};

double microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void measure(const Row& row, int rounds) {
  const Conv2dProblemShape problem{.in_height = row.size,
                                   .in_width = row.size,
                                   .in_channels = row.channels,
                                   .out_channels = row.filters,
                                   .filter_h = row.filter,
                                   .filter_w = row.filter,
                                   .pad_h = row.filter / 2,
                                   .pad_w = row.filter / 2};
  const ConvGeometry g = geometry_of(problem);
  const Buffer activation(g.activation_elements(), row.dtype, 1.0f);
  const Buffer filter(g.filter_elements(), row.dtype, 0.05f);
  const Buffer bias(g.out_channels, DType::fp32, 1.0f);
  const Buffer residual(g.output_elements(), row.dtype, 1.0f);
  const Buffer output(g.output_elements(), row.dtype, 0.0f);
  const Buffer direct_output(g.output_elements(), row.dtype, 0.0f);

  // Ours.
  Epilogue epilogue;
  if (row.epilogue) {
    epilogue.bias = bias.data();
    epilogue.activation = Activation::silu;
    epilogue.residual = residual.data();
  }
  const Plan planned = plan(problem, {.dtype = row.dtype,
                                      .epilogue = epilogue.kind(),
                                      .device = Device::cpu,
                                      .packed_filter = row.packed});
  RunArguments arguments{.output = output.data(), .activation = activation.data()};
  arguments.epilogue = epilogue;
  if (row.packed) {
    arguments.filter = planned.pack_filter(filter.data(), FilterLayout::krsc);
  } else {
    arguments.filter = filter.data();
  }

  // oneDNN by itself.
  const auto type =
      row.dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  const onednn::ConvShape shape = {.rank = 2,
                                   .images = 1,
                                   .in = g.in,
                                   .out = g.out,
                                   .pad_begin = g.pad_begin,
                                   .pad_end = g.pad_end};
  const auto description = onednn::describe(g, shape, {.input = type, .output = type});
  const dnnl::convolution_forward primitive(description);
  const dnnl::engine& engine = onednn::cpu_engine();
  dnnl::stream stream(engine);
  dnnl::memory source(description.src_desc(), engine, activation.data());
  dnnl::memory weights(description.weights_desc(), engine);
  dnnl::memory destination(description.dst_desc(), engine, direct_output.data());
  dnnl::memory scratchpad(description.scratchpad_desc(), engine);
  onednn::reorder(weights.get_data_handle(), description.weights_desc(), filter.data(),
                  onednn::plain_weights(g, FilterLayout::krsc, type));
  const std::unordered_map<int, dnnl::memory> direct_arguments = {
      {DNNL_ARG_SRC, source},
      {DNNL_ARG_WEIGHTS, weights},
      {DNNL_ARG_DST, destination},
      {DNNL_ARG_SCRATCHPAD, scratchpad}};

  std::vector<double> ours;
  std::vector<double> direct;
  const auto run_ours = [&] {
    const auto begin = std::chrono::steady_clock::now();
    planned.run(arguments);
    ours.push_back(microseconds(std::chrono::steady_clock::now() - begin));
  };
  const auto run_direct = [&] {
    const auto begin = std::chrono::steady_clock::now();
    primitive.execute(stream, direct_arguments);
    stream.wait();
    direct.push_back(microseconds(std::chrono::steady_clock::now() - begin));
  };
  for (int i = 0; i < 10; ++i) {
    run_ours();
    run_direct();
  }
  ours.clear();
  direct.clear();
  for (int i = 0; i < rounds; ++i) {  // Who goes first takes turns too.
    if (i % 2 == 0) run_ours();
    run_direct();
    if (i % 2 == 1) run_ours();
  }
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / direct[i]);
  const double us = median(ours);
  const double direct_us = median(direct);
  const bool same = row.epilogue || std::memcmp(output.data(), direct_output.data(),
                                                static_cast<std::size_t>(g.output_elements()) *
                                                    size_of(row.dtype)) == 0;
  std::printf("%-38s %-5s %10.1f %10.1f %+8.2f %% %8.1f  %s\n", row.name, to_string(row.dtype),
              direct_us, us, 100.0 * (median(ratios) - 1.0), g.flops() / us / 1e3,
              row.epilogue ? "-"
              : same       ? "same bits"
                           : "DIFFERENT");
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 300;
  if (argc == 3 && std::string(argv[1]) == "--rounds") rounds = std::max(1, std::atoi(argv[2]));
  std::printf("oneDNN %d.%d.%d, %d rounds, medians in microseconds\n", DNNL_VERSION_MAJOR,
              DNNL_VERSION_MINOR, DNNL_VERSION_PATCH, rounds);
  std::printf("%-38s %-5s %10s %10s %10s %8s  %s\n", "problem", "type", "oneDNN", "convoy", "more",
              "GFLOP/s", "output");
  for (const Row& row : kRows) {
    try {
      measure(row, rounds);
    } catch (const dnnl::error&) {
      std::printf("%-38s %-5s oneDNN has no such kernel for this processor\n", row.name,
                  to_string(row.dtype));
    }
    std::fflush(stdout);
  }
  return 0;
}
