// SPDX-License-Identifier: Apache-2.0
#include "dispatch/run_check.hpp"

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "core/filter_layout.hpp"
#include "core/text.hpp"
#include "dispatch/option_check.hpp"
#include "dispatch/pointer_check.hpp"

namespace convoy {
namespace {

TensorShape tensor_shape(const ConvGeometry& g, DType dtype, std::array<std::int64_t, 3> spatial,
                         std::int64_t channels) {
  if (g.rank == 2) {
    return {dtype, Layout::nhwc, {g.batch, spatial[1], spatial[2], channels, 0}};
  }
  return {dtype, Layout::ndhwc, {g.batch, spatial[0], spatial[1], spatial[2], channels}};
}

std::string shape_text(const TensorShape& shape) {
  std::string out = text(to_string(shape.dtype), " ", to_string(shape.layout), " [");
  for (int i = 0; i < shape.rank(); ++i) out += text(i > 0 ? ", " : "", shape.extents[i]);
  return out + "]";
}

std::size_t bytes_of(const TensorShape& shape) {
  std::size_t bytes = size_of(shape.dtype);
  for (int i = 0; i < shape.rank(); ++i) bytes *= static_cast<std::size_t>(shape.extents[i]);
  return bytes;
}

void check_shape(const std::optional<TensorShape>& got, const TensorShape& planned,
                 const char* name) {
  if (!got) return;
  TensorShape seen = *got;
  if (seen.rank() == 4) seen.extents[4] = 0;  // The fifth extent has no meaning in NHWC.
  if (seen == planned) return;
  throw_invalid(name, " is ", shape_text(seen), ", but the plan is for ", shape_text(planned));
}

}  // namespace

RunContract::RunContract(const PlanRequest& request, std::string filter_format,
                         std::string packed_format, std::size_t workspace_bytes)
    : geometry_(request.geometry),
      device_(request.device.kind),
      kind_(request.epilogue),
      prologue_(request.prologue),
      statistics_groups_(request.statistics_groups),
      filter_format_(std::move(filter_format)),
      packed_format_(std::move(packed_format)),
      workspace_bytes_(workspace_bytes) {
  const ConvGeometry& g = geometry_;
  output_ = tensor_shape(g, request.output_dtype, shuffled_extents(g, request.shuffle),
                         shuffled_channels(g, request.shuffle));
  residual_ = output_;
  if (request.shuffle.residual != ShuffleResidual::output) {
    residual_ = tensor_shape(g, request.output_dtype, g.out, request.shuffle.residual_channels);
  }
  activation_ = tensor_shape(g, request.dtype, g.in, g.in_channels);
  cache_ = tensor_shape(g, request.dtype, {g.cached_frames, g.in[1], g.in[2]}, g.in_channels);
  next_cache_ =
      tensor_shape(g, request.dtype, {g.next_cache_frames(), g.in[1], g.in[2]}, g.in_channels);
  if (g.rank == 2) {  // No frames to cache.
    cache_.extents[0] = 0;
    next_cache_.extents[0] = 0;
  }
  filter_bytes_ = static_cast<std::size_t>(g.filter_elements()) * size_of(request.dtype);
}

void RunContract::check_epilogue(const Epilogue& epilogue) const {
  const EpilogueKind got = epilogue.kind();
  // With beta == 0 the residual is never read, so that its pointer may be null.
  const bool residual_agrees =
      got.residual == kind_.residual || (kind_.residual && epilogue.beta == 0.0f);
  const bool agrees = got.bias == kind_.bias && (!got.bias || got.bias_dtype == kind_.bias_dtype) &&
                      got.activation == kind_.activation && residual_agrees &&
                      (!got.residual || got.order == kind_.order) && got.rounding == kind_.rounding;
  if (!agrees) {
    throw_invalid("epilogue is ", to_string(got), ", but the plan is for ", to_string(kind_));
  }
  if (got.bias) check_pointer(epilogue.bias, "epilogue.bias");
  if (got.residual) {
    check_shape(epilogue.residual_shape, residual_, "epilogue.residual");
    if (epilogue.beta != 0.0f) check_pointer(epilogue.residual, "epilogue.residual");
  }
}

void RunContract::check_prologue(const Prologue& prologue) const {
  if (prologue.kind() != prologue_) {
    throw_invalid("prologue is ", to_string(prologue.kind()), ", but the plan is for ",
                  to_string(prologue_));
  }
  // NOTE: the coefficients of a norm are [2, N, C]: shifts begin where scales end.
  const std::uintptr_t of_channels =
      geometry_.in_channels % 4 == 0 ? kPointerAlignment : alignof(float);
  const auto check = [&](const float* pointer, bool wanted, const char* name,
                         std::uintptr_t alignment) {
    if (wanted) return check_pointer(pointer, name, alignment);
    if (pointer == nullptr) return;
    throw_invalid(name, " is given, but a prologue of norm ", to_string(prologue.norm),
                  " does not read it; legal: null");
  };
  check(prologue.scale, prologue_.any(), "prologue.scale", of_channels);
  check(prologue.shift, prologue_.norm == PrologueNorm::scale_shift, "prologue.shift", of_channels);
  check(prologue.inverse_rms, prologue_.norm == PrologueNorm::rms, "prologue.inverse_rms",
        kPointerAlignment);
}

const void* RunContract::check_filter(const FilterRef& filter) const {
  if (filter.packed) {
    if (filter.packed.format() != packed_format_) {
      throw_invalid("filter was packed as '", filter.packed.format(), "', but the plan reads '",
                    packed_format_, "'; pack it with this plan's pack_filter");
    }
  } else if (filter_format_ != "ktrsc") {
    throw_invalid("filter is a bare pointer, but the plan was made with packed_filter and reads '",
                  packed_format_, "'; pack it with this plan's pack_filter");
  }
  check_pointer(filter.data, "filter");
  return filter.data;
}

void RunContract::check_overlap(const RunPointers& pointers, std::size_t filter_bytes) const {
  const Span output = {"output", pointers.output, bytes_of(output_)};
  const Span next_cache = {"next_cache", pointers.next_cache, bytes_of(next_cache_)};
  const Span residual = {"epilogue.residual",
                         pointers.epilogue.beta != 0.0f ? pointers.epilogue.residual : nullptr,
                         bytes_of(residual_)};
  const Span workspace = {"workspace", pointers.workspace, workspace_bytes_};
  const auto floats = [](std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(float);
  };
  const std::int64_t channels = geometry_.in_channels;
  const std::int64_t images = prologue_.norm == PrologueNorm::scale_shift ? geometry_.batch : 1;
  const Prologue& prologue = pointers.prologue;
  const Span inputs[] = {
      {"activation", pointers.activation, bytes_of(activation_)},
      {"filter", pointers.filter, filter_bytes},
      {"cache", pointers.cache, bytes_of(cache_)},
      {"epilogue.bias", pointers.epilogue.bias,
       static_cast<std::size_t>(geometry_.out_channels) * size_of(kind_.bias_dtype)},
      {"prologue.scale", prologue.scale, floats(images * channels)},
      {"prologue.shift", prologue.shift, floats(images * channels)},
      {"prologue.inverse_rms", prologue.inverse_rms,
       floats(geometry_.activation_elements() / channels)}};
  for (const Span& input : inputs) {
    require_disjoint(output, input);
    require_disjoint(next_cache, input);
    require_disjoint(workspace, input);
  }
  if (residual.data != output.data || residual_ != output_) require_disjoint(output, residual);
  require_disjoint(next_cache, residual);
  require_disjoint(next_cache, output);
  require_disjoint(workspace, residual);
  require_disjoint(workspace, output);
  require_disjoint(workspace, next_cache);
  const Span statistics = {"statistics", pointers.statistics,
                           floats(geometry_.batch * statistics_groups_ * 2)};
  for (const Span& input : inputs) require_disjoint(statistics, input);
  for (const Span& other : {output, next_cache, residual, workspace}) {
    require_disjoint(statistics, other);
  }
}

RunPointers RunContract::check(const RunArguments& arguments) const {
  RunPointers pointers;
  check_epilogue(arguments.epilogue);
  pointers.epilogue = arguments.epilogue;
  check_prologue(arguments.prologue);
  pointers.prologue = arguments.prologue;

  check_shape(arguments.output.shape, output_, "output");
  check_pointer(arguments.output.data, "output");
  pointers.output = arguments.output.data;

  check_shape(arguments.activation.shape, activation_, "activation");
  check_pointer(arguments.activation.data, "activation");
  pointers.activation = arguments.activation.data;

  pointers.filter = check_filter(arguments.filter);

  if (geometry_.cached_frames > 0) {
    check_shape(arguments.cache.shape, cache_, "cache");
    check_pointer(arguments.cache.data, "cache");
    pointers.cache = arguments.cache.data;
  } else if (arguments.cache.data != nullptr) {
    throw_invalid("cache is given, but the plan has cached_frames = 0");
  }

  if (arguments.next_cache.data != nullptr) {
    if (geometry_.rank != 3) throw_invalid("next_cache is given, but the plan is 2-D");
    check_shape(arguments.next_cache.shape, next_cache_, "next_cache");
    check_pointer(arguments.next_cache.data, "next_cache");
    const std::int64_t wanted = geometry_.next_cache_frames();
    const std::int64_t frames = geometry_.seen()[0];
    if (frames < wanted && geometry_.pad_mode[0] != PadMode::zero) {
      throw_invalid("next_cache takes ", wanted, " frames, but cache and activation have ", frames,
                    " and pad_mode[0] is ", to_string(geometry_.pad_mode[0]),
                    "; legal: pad_mode zero, or at least ", wanted, " frames");
    }
    if (wanted > 0) pointers.next_cache = arguments.next_cache.data;
  }

  if (statistics_groups_ > 0) {
    check_pointer(arguments.statistics, "statistics");
    pointers.statistics = arguments.statistics;
  } else if (arguments.statistics != nullptr) {
    throw_invalid("statistics is given, but the plan has statistics_groups = 0");
  }

  if (arguments.workspace != nullptr) {
    check_pointer(arguments.workspace, "workspace");
    pointers.workspace = arguments.workspace;
  } else if (workspace_bytes_ > 0 && device_ != Device::cpu) {
    throw_invalid("workspace is null, but the plan needs ", workspace_bytes_, " bytes");
  }
  const PackedFilter& packed = arguments.filter.packed;
  check_overlap(pointers, packed ? packed.bytes() : filter_bytes_);
  return pointers;
}

void RunContract::check_filter_to_pack(const void* filter, FilterLayout layout) const {
  require_enum(layout, FilterLayout::trscf, "layout");
  filter_strides(geometry_, layout);
  if (geometry_.filter_elements() > 0) check_pointer(filter, "filter");
}

}  // namespace convoy
