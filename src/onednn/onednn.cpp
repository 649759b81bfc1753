// SPDX-License-Identifier: Apache-2.0
#include "onednn/onednn.hpp"

#include <mutex>
#include <string>
#include <vector>

#include "core/filter_layout.hpp"
#include "core/fork_safe.hpp"

namespace convoy::onednn {
namespace {

using dnnl::memory;

/// The axes of a problem of this rank, of a depth-height-width array.
memory::dims axes(int rank, const std::array<std::int64_t, 3>& values) {
  if (rank == 2) return {values[1], values[2]};
  return {values[0], values[1], values[2]};
}

memory::desc channels_last(int rank, std::int64_t images, std::int64_t channels,
                           const std::array<std::int64_t, 3>& extents, memory::data_type type) {
  memory::dims dims = {images, channels};
  for (std::int64_t extent : axes(rank, extents)) dims.push_back(extent);
  return {dims, type, rank == 2 ? memory::format_tag::nhwc : memory::format_tag::ndhwc};
}

memory::dims weight_dims(const ConvGeometry& g) {
  memory::dims dims;
  if (g.groups > 1) dims.push_back(g.groups);
  dims.push_back(g.group_filters());
  dims.push_back(g.group_channels());
  for (std::int64_t extent : axes(g.rank, g.filter)) dims.push_back(extent);
  return dims;
}

struct CreationTag;

/// NOTE: oneDNN 2.6 chooses a kernel in a way that two threads must not do at once: one of them may
/// get a convolution whose outputs are wrong, and its cache hands that out from then on. A child of
/// fork() would wait for ever for what another thread was putting into that cache.
std::unique_lock<std::mutex> one_creation_at_a_time() {
  return std::unique_lock(fork_safe_mutex<CreationTag>());
}

/// The primitive of a description; the lock is held.
template <typename Primitive>
Primitive create(const typename Primitive::primitive_desc& description) {
  try {
    return Primitive(description);
  } catch (...) {
    // NOTE: where its memory ends, oneDNN's cache may keep a key that points into the description.
    const int capacity = dnnl::get_primitive_cache_capacity();
    dnnl::set_primitive_cache_capacity(0);
    dnnl::set_primitive_cache_capacity(capacity);
    throw;
  }
}

/// NOTE: oneDNN 2.6.3's bf16 convolutions for AMX read what nobody wrote: of 40,800 random ones on
/// a Xeon with AMX 22 had NaNs or worse in their outputs. Next in its list are those of AVX-512.
dnnl::convolution_forward::primitive_desc without_amx(
    dnnl::convolution_forward::primitive_desc description) {
  const auto has_amx = [&] {
    return std::string(description.impl_info_str()).find("amx") != std::string::npos;
  };
  while (has_amx()) {
    if (!description.next_impl()) throw dnnl::error(dnnl_unimplemented, "no kernel without AMX");
  }
  return description;
}

}  // namespace

const dnnl::engine& cpu_engine() {
  // NOTE: never destroyed: static objects of the caller's may run a plan as the program ends.
  static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

memory::desc plain_weights(const ConvGeometry& g, FilterLayout layout, memory::data_type type) {
  const auto [k, t, r, s, c] = filter_strides(g, layout);
  memory::dims strides;
  if (g.groups > 1) strides.push_back(k * g.group_filters());
  strides.push_back(k);
  strides.push_back(c);
  if (g.rank == 3) strides.push_back(t);
  strides.push_back(r);
  strides.push_back(s);
  return {weight_dims(g), type, strides};
}

dnnl::convolution_forward::primitive_desc describe(const ConvGeometry& g, const ConvShape& shape,
                                                   const ConvTypes& types) {
  const memory::desc source =
      channels_last(shape.rank, shape.images, g.in_channels, shape.in, types.input);
  const memory::desc destination =
      channels_last(shape.rank, shape.images, g.out_channels, shape.out, types.output);
  const memory::desc weights(weight_dims(g), types.input, memory::format_tag::any);
  const memory::desc bias =
      types.bias ? memory::desc({g.out_channels}, memory::data_type::f32, memory::format_tag::x)
                 : memory::desc();
  const memory::dims strides = axes(shape.rank, g.stride);
  memory::dims dilation = axes(shape.rank, g.dilation);
  for (std::int64_t& value : dilation) --value;  // oneDNN counts the elements in between.
  const memory::dims pad_begin = axes(shape.rank, shape.pad_begin);
  const memory::dims pad_end = axes(shape.rank, shape.pad_end);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto lock = one_creation_at_a_time();

#if DNNL_VERSION_MAJOR >= 3
  return without_amx({cpu_engine(), dnnl::prop_kind::forward_inference,
                      dnnl::algorithm::convolution_direct, source, weights, bias, destination,
                      strides, dilation, pad_begin, pad_end, attributes});
#else
  const dnnl::convolution_forward::desc operation(
      dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, source, weights,
      bias, destination, strides, dilation, pad_begin, pad_end);
  return without_amx({operation, attributes, cpu_engine()});
#endif
}

dnnl::convolution_forward primitive_of(
    const dnnl::convolution_forward::primitive_desc& description) {
  const auto lock = one_creation_at_a_time();
  return create<dnnl::convolution_forward>(description);
}

std::string format_text(const memory::desc& desc) {
  std::string out;
  const auto list = [&](const char* name, const auto& values, int count) {
    out += name;
    for (int i = 0; i < count; ++i) out += (i > 0 ? "," : "") + std::to_string(values[i]);
  };
#if DNNL_VERSION_MAJOR >= 3
  list("s", desc.get_strides(), desc.get_ndims());
  list("b", desc.get_inner_blks(), desc.get_inner_nblks());
  list("i", desc.get_inner_idxs(), desc.get_inner_nblks());
  out += "t" + std::to_string(static_cast<int>(desc.get_data_type()));
#else
  const dnnl_blocking_desc_t& blocking = desc.data.format_desc.blocking;
  list("s", blocking.strides, desc.data.ndims);
  list("b", blocking.inner_blks, blocking.inner_nblks);
  list("i", blocking.inner_idxs, blocking.inner_nblks);
  out += "t" + std::to_string(static_cast<int>(desc.data.data_type));
#endif
  return out;
}

ConvExecution::ConvExecution(const dnnl::convolution_forward& primitive,
                             const dnnl::convolution_forward::primitive_desc& description)
    : primitive_(primitive), stream_(cpu_engine()) {
  const auto add = [&](int argument, const memory::desc& desc) {
    arguments_.emplace(argument, memory(desc, cpu_engine(), nullptr));
  };
  add(DNNL_ARG_SRC, description.src_desc());
  add(DNNL_ARG_WEIGHTS, description.weights_desc());
  add(DNNL_ARG_DST, description.dst_desc());
  add(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
  const memory::desc bias = description.bias_desc();
  if (bias.get_size() != 0) add(DNNL_ARG_BIAS, bias);
}

// NOTE: a new memory object, not set_data_handle: that one may write zeros into padded weights,
// which other threads read.
void ConvExecution::set(int argument, const void* buffer) {
  memory& current = arguments_.at(argument);
  if (current.get_data_handle() == buffer) return;
  // oneDNN takes inputs by a pointer to non-const, and reads them only.
  current = memory(current.get_desc(), cpu_engine(), const_cast<void*>(buffer));
}

void ConvExecution::execute(const ConvBuffers& buffers) {
  set(DNNL_ARG_SRC, buffers.source);
  set(DNNL_ARG_WEIGHTS, buffers.weights);
  set(DNNL_ARG_DST, buffers.destination);
  set(DNNL_ARG_SCRATCHPAD, buffers.scratchpad);
  if (arguments_.contains(DNNL_ARG_BIAS)) set(DNNL_ARG_BIAS, buffers.bias);
  primitive_.execute(stream_, arguments_);
  stream_.wait();
}

void reorder(void* to, const memory::desc& to_desc, const void* from,
             const memory::desc& from_desc) {
  const dnnl::engine& engine = cpu_engine();
  dnnl::stream stream(engine);
  memory source(from_desc, engine, const_cast<void*>(from));
  memory destination(to_desc, engine, to);
  const auto conversion = [&] {
    const auto lock = one_creation_at_a_time();
    return create<dnnl::reorder>(dnnl::reorder::primitive_desc(source, destination));
  }();
  conversion.execute(stream, source, destination);
  stream.wait();
}

}  // namespace convoy::onednn
