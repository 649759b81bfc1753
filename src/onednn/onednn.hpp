// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>

#include "convoy/geometry.hpp"

namespace convoy::onednn {

// The little of oneDNN that this library needs, the same for its versions 2 and 3.

/// The CPU engine of the process.
const dnnl::engine& cpu_engine();

/// One convolution as oneDNN sees it: zero padding only, extents in the order depth, height, width.
struct ConvShape {
  int rank = 2;  ///< 2: depth is left out.
  std::int64_t images = 1;
  std::array<std::int64_t, 3> in = {1, 1, 1};
  std::array<std::int64_t, 3> out = {1, 1, 1};
  std::array<std::int64_t, 3> pad_begin = {0, 0, 0};
  std::array<std::int64_t, 3> pad_end = {0, 0, 0};

  friend bool operator==(const ConvShape&, const ConvShape&) = default;
};

struct ConvTypes {
  dnnl::memory::data_type input = dnnl::memory::data_type::f32;  ///< Source and weights.
  dnnl::memory::data_type output = dnnl::memory::data_type::f32;
  bool bias = false;  ///< fp32, [K].

  friend bool operator==(const ConvTypes&, const ConvTypes&) = default;
};

/// Weights as the user holds them, in a given layout: a plain strided descriptor.
dnnl::memory::desc plain_weights(const ConvGeometry& geometry, FilterLayout layout,
                                 dnnl::memory::data_type type);

/// Channels-last source and destination, weights in whatever format oneDNN likes best, scratchpad
/// given by the caller. Throws dnnl::error where oneDNN has no such convolution.
dnnl::convolution_forward::primitive_desc describe(const ConvGeometry& geometry,
                                                   const ConvShape& shape, const ConvTypes& types);

/// The convolution that was described; several threads may call it.
dnnl::convolution_forward primitive_of(
    const dnnl::convolution_forward::primitive_desc& description);

/// "AB16b16a" and strides: equal texts mean equal formats.
std::string format_text(const dnnl::memory::desc& desc);

/// The buffers of one execution.
struct ConvBuffers {
  const void* source = nullptr;
  const void* weights = nullptr;
  const float* bias = nullptr;  ///< Where `ConvTypes::bias` was set.
  void* destination = nullptr;
  void* scratchpad = nullptr;
};

/// A primitive with its arguments, for one execution at a time. oneDNN's objects are made once: an
/// execution exchanges those alone whose buffer is another than the last time.
class ConvExecution {
 public:
  ConvExecution(const dnnl::convolution_forward& primitive,
                const dnnl::convolution_forward::primitive_desc& description);
  void execute(const ConvBuffers& buffers);

 private:
  void set(int argument, const void* buffer);

  dnnl::convolution_forward primitive_;
  dnnl::stream stream_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

/// Convert weights between formats.
void reorder(void* to, const dnnl::memory::desc& to_desc, const void* from,
             const dnnl::memory::desc& from_desc);

}  // namespace convoy::onednn
