// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "exec/launch.hpp"
#include "exec/observer.hpp"

/// Runs PTX snippets in process: text in, buffers in and out.
namespace vgpu::test {

inline constexpr exec::Delivery kDeliveries[] = {exec::Delivery::late, exec::Delivery::early,
                                                 exec::Delivery::sweep, exec::Delivery::random};

/// Buffers that a kernel may touch.
class Buffers : public exec::GlobalMemory {
 public:
  /// A buffer's address; its bytes are zero.
  uint64_t add(size_t bytes, bool read_only = false) {
    buffers_.emplace_back((bytes + 511) / 256 * 32 + 32);
    auto base = (reinterpret_cast<uint64_t>(buffers_.back().data()) + 255) / 256 * 256;
    ranges_.push_back({base, bytes, read_only});
    return base;
  }
  template <typename T>
  uint64_t add(const std::vector<T>& values) {
    uint64_t address = add(values.size() * sizeof(T));
    std::memcpy(reinterpret_cast<void*>(address), values.data(), values.size() * sizeof(T));
    return address;
  }
  template <typename T>
  std::vector<T> read(uint64_t address, size_t count) const {
    std::vector<T> values(count);
    std::memcpy(values.data(), reinterpret_cast<const void*>(address), count * sizeof(T));
    return values;
  }
  Range find(uint64_t address) const override {
    for (auto& range : ranges_) {
      if (address - range.base < range.size) return range;
    }
    return {};
  }
  std::string explain(uint64_t address, uint64_t) const override {
    return "no buffer holds " + std::to_string(address);
  }

 private:
  std::list<std::vector<uint64_t>> buffers_;
  std::vector<Range> ranges_;
};

/// The parameter space: values one after the other at their natural alignment.
class Params {
 public:
  template <typename T>
  Params& operator<<(T value) {
    bytes.resize((bytes.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T));
    size_t at = bytes.size();
    bytes.resize(at + sizeof(T));
    std::memcpy(bytes.data() + at, &value, sizeof(T));
    return *this;
  }
  std::vector<uint8_t> bytes;
};

struct Launch {
  exec::Dim3 grid, block{32, 1, 1}, cluster;
  uint32_t dynamic_shared = 0;
  bool cooperative = false;
  exec::Options options;
  exec::Observer* observer = nullptr;
  std::string* printed = nullptr;
};

/// `body` becomes kernel `k` with the parameters declared in `params` (".param .u64 out").
inline std::string kernel_text(const std::string& params, const std::string& body,
                               const std::string& before = "") {
  return ".version 9.0\n.target sm_100a\n.address_size 64\n" + before + "\n.visible .entry k(" +
         params + ")\n{\n" + body + "\n}\n";
}

/// Runs kernel `k` of a module; symbols get storage in `buffers`.
inline exec::LaunchResult run_module(const std::string& text, const Params& params,
                                     Buffers& buffers, const Launch& launch = {}) {
  auto program = exec::Program::load(text);
  std::vector<uint64_t> addresses;
  for (auto& symbol : program->symbols()) {
    addresses.push_back(buffers.add(symbol.size + 1, symbol.is_constant));
    auto& init = symbol.variable->init;
    std::memcpy(reinterpret_cast<void*>(addresses.back()), init.data(), init.size());
  }
  exec::LaunchRequest request;
  request.program = program.get();
  request.kernel = "k";
  request.params = params.bytes;
  request.grid = launch.grid;
  request.block = launch.block;
  request.cluster = launch.cluster;
  request.dynamic_shared = launch.dynamic_shared;
  request.cooperative = launch.cooperative;
  request.symbol_addresses = addresses;
  request.memory = &buffers;
  request.options = launch.options;
  request.observer = launch.observer;
  if (launch.printed) request.print = [&](std::string_view text) { launch.printed->append(text); };
  return exec::launch(request);
}

/// One warp computes a value of type T a lane: `body` sees %in (the lane's input, in a register of
/// `type`), %lane, and leaves its result in %out; more registers may be declared in the body.
template <typename Out, typename In>
std::vector<Out> map_lanes(const std::string& in_type, const std::string& out_type,
                           const std::string& body, const std::vector<In>& inputs) {
  Buffers buffers;
  uint64_t in = buffers.add(inputs), out = buffers.add(inputs.size() * sizeof(Out));
  std::string text = kernel_text(".param .u64 in, .param .u64 out", R"(
.reg .b64 %ra, %rb, %ro;
.reg .b32 %lane;
.reg .)" + in_type + R"( %in;
.reg .)" + out_type + R"( %out;
mov.u32 %lane, %tid.x;
ld.param.u64 %ra, [in];
ld.param.u64 %rb, [out];
mul.wide.u32 %ro, %lane, )" + std::to_string(sizeof(In)) + R"(;
add.s64 %ra, %ra, %ro;
mul.wide.u32 %ro, %lane, )" + std::to_string(sizeof(Out)) + R"(;
add.s64 %rb, %rb, %ro;
ld.global.)" + in_type + R"( %in, [%ra];
)" + body + R"(
st.global.)" + out_type + R"( [%rb], %out;
ret;)");
  Launch launch;
  launch.block.x = static_cast<uint32_t>(inputs.size());
  auto result = run_module(text, Params() << in << out, buffers, launch);
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  return buffers.read<Out>(out, inputs.size());
}

}  // namespace vgpu::test
