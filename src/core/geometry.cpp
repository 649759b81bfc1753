// SPDX-License-Identifier: Apache-2.0
#include "convoy/geometry.hpp"

#include <algorithm>
#include <numeric>

#include "core/checked.hpp"
#include "core/divisors.hpp"

namespace convoy {
namespace {

/// What the user calls the fields, so that errors speak of them and not of the canonical form.
struct AxisNames {
  const char* in;
  const char* filter;
  const char* pad_begin;
  const char* pad_end;
  const char* stride;
  const char* dilation;
  const char* out;
};

constexpr std::array<AxisNames, 3> kNames2d = {{
    {"depth", "filter_t", "pad_d", "pad_d_end", "stride_d", "dilation_d", "out_depth"},
    {"in_height", "filter_h", "pad_h", "pad_h_end", "stride_h", "dilation_h", "out_height"},
    {"in_width", "filter_w", "pad_w", "pad_w_end", "stride_w", "dilation_w", "out_width"},
}};
constexpr std::array<AxisNames, 3> kNames3d = {{
    {"in_depth", "filter[0]", "pad_begin[0]", "pad_end[0]", "stride[0]", "dilation[0]",
     "out_depth"},
    {"in_height", "filter[1]", "pad_begin[1]", "pad_end[1]", "stride[1]", "dilation[1]",
     "out_height"},
    {"in_width", "filter[2]", "pad_begin[2]", "pad_end[2]", "stride[2]", "dilation[2]",
     "out_width"},
}};

void require_at_least(std::int64_t value, std::int64_t least, const char* name) {
  if (value < least) {
    throw_invalid(name, " = ", value, " is not legal; legal: at least ", least,
                  "; nearest: ", least);
  }
}

void require_pad_mode(PadMode mode, const char* name) {
  if (mode != PadMode::zero && mode != PadMode::replicate && mode != PadMode::reflect) {
    throw_invalid("pad_mode of ", name, " = ", static_cast<int>(mode),
                  " is not legal; legal: zero (0), replicate (1), reflect (2)");
  }
}

/// The common divisor of a and b that is nearest to `wanted` from below.
std::int64_t nearest_groups(std::int64_t a, std::int64_t b, std::int64_t wanted) {
  // With K = 0 every divisor of C is legal: gcd(C, 0) = C.
  return largest_divisor(std::gcd(a, b), std::min(wanted, std::int64_t{4096}));
}

void check_channels(const ConvGeometry& g) {
  require_at_least(g.batch, 0, "batch");
  require_at_least(g.in_channels, 1, "in_channels");
  require_at_least(g.out_channels, 0, "out_channels");
  require_at_least(g.groups, 1, "groups");
  const std::int64_t nearest = nearest_groups(g.in_channels, g.out_channels, g.groups);
  if (g.in_channels % g.groups != 0) {
    throw_invalid("groups = ", g.groups, " does not divide in_channels = ", g.in_channels,
                  "; legal: a divisor of in_channels and out_channels; nearest: ", nearest);
  }
  if (g.out_channels % g.groups != 0) {
    throw_invalid("groups = ", g.groups, " does not divide out_channels = ", g.out_channels,
                  "; legal: a divisor of in_channels and out_channels; nearest: ", nearest);
  }
}

/// Output extent of one axis whose filter slides over `seen` elements.
std::int64_t output_extent(const ConvGeometry& g, int axis, std::int64_t seen,
                           const AxisNames& name) {
  const std::int64_t pad_begin = g.pad_begin[axis];
  const std::int64_t pad_end = g.pad_end[axis];
  require_at_least(g.filter[axis], 1, name.filter);
  require_at_least(pad_begin, 0, name.pad_begin);
  require_at_least(pad_end, 0, name.pad_end);
  require_at_least(g.stride[axis], 1, name.stride);
  require_at_least(g.dilation[axis], 1, name.dilation);
  require_pad_mode(g.pad_mode[axis], name.in);
  if (g.pad_mode[axis] == PadMode::reflect && std::max(pad_begin, pad_end) >= seen) {
    throw_invalid(pad_begin >= seen ? name.pad_begin : name.pad_end, " = ",
                  std::max(pad_begin, pad_end), " cannot reflect ", seen, " elements of ", name.in,
                  "; legal with pad_mode reflect: at most ", seen - 1, "; nearest: ", seen - 1);
  }

  const std::int64_t reach =
      checked_product({g.dilation[axis], g.filter[axis] - 1}, "dilation * (filter - 1)");
  const std::int64_t span = checked_add(reach, 1, "filter span");
  const std::int64_t padded =
      checked_add(checked_add(seen, pad_begin, "padded input"), pad_end, "padded input");
  if (span > padded) {
    throw_invalid(name.filter, " = ", g.filter[axis], " with ", name.dilation, " = ",
                  g.dilation[axis], " spans ", span, " elements, but the padded input has ", padded,
                  " (", seen, " + ", pad_begin, " + ", pad_end, "); legal: a span of at most ",
                  padded, "; nearest: ", name.filter, " = ", (padded - 1) / g.dilation[axis] + 1,
                  " or ", span - padded, " more of padding");
  }
  return (padded - span) / g.stride[axis] + 1;
}

/// Check every field and product, and fill in `out`.
void complete(ConvGeometry& g, const std::array<AxisNames, 3>& names) {
  check_channels(g);
  require_at_least(g.cached_frames, 0, "cached_frames");
  for (int axis = g.rank == 2 ? 1 : 0; axis < 3; ++axis) {
    require_at_least(g.in[axis], 1, names[axis].in);
  }
  if (g.upsample != 1 && g.upsample != 2) {
    throw_invalid("upsample = ", g.upsample,
                  " is not legal; legal: 1 or 2; nearest: ", g.upsample < 2 ? 1 : 2);
  }

  const std::array<std::int64_t, 3> seen = {
      checked_add(g.cached_frames, g.in[0], "cached_frames + in_depth"),
      checked_product({g.upsample, g.in[1]}, "upsample * in_height"),
      checked_product({g.upsample, g.in[2]}, "upsample * in_width")};
  for (int axis = 0; axis < 3; ++axis) {
    g.out[axis] = output_extent(g, axis, seen[axis], names[axis]);
  }

  // The widest type has 4 bytes; with these in range no later index or byte count can overflow,
  // whatever the order of the factors: an empty batch or no filters count as one here.
  constexpr std::int64_t kBytes = 4;
  const std::int64_t batch = std::max<std::int64_t>(g.batch, 1);
  const std::int64_t filters = std::max<std::int64_t>(g.out_channels, 1);
  checked_product({batch, seen[0], seen[1], seen[2], g.in_channels, kBytes}, "activation bytes");
  checked_product({filters, g.filter[0], g.filter[1], g.filter[2], g.in_channels, kBytes},
                  "filter bytes");
  checked_product({batch, g.out[0], g.out[1], g.out[2], filters, kBytes}, "output bytes");
  const std::int64_t next_frames =
      checked_product({g.filter[0] - 1, g.dilation[0]}, "next cache frames");
  checked_product({batch, next_frames, g.in[1], g.in[2], g.in_channels, kBytes},
                  "next cache bytes");
}

}  // namespace

ConvGeometry geometry_of(const Conv2dProblemShape& problem) {
  ConvGeometry g;
  g.rank = 2;
  g.batch = problem.batch;
  g.in = {1, problem.in_height, problem.in_width};
  g.in_channels = problem.in_channels;
  g.out_channels = problem.out_channels;
  g.filter = {1, problem.filter_h, problem.filter_w};
  g.pad_begin = {0, problem.pad_h, problem.pad_w};
  g.pad_end = {0, problem.pad_h_end.value_or(problem.pad_h),
               problem.pad_w_end.value_or(problem.pad_w)};
  g.stride = {1, problem.stride_h, problem.stride_w};
  g.dilation = {1, problem.dilation_h, problem.dilation_w};
  g.pad_mode = {PadMode::zero, problem.pad_mode, problem.pad_mode};
  g.groups = problem.groups;
  g.upsample = problem.upsample;
  complete(g, kNames2d);
  return g;
}

ConvGeometry geometry_of(const Conv3dProblemShape& problem) {
  ConvGeometry g;
  g.rank = 3;
  g.batch = problem.batch;
  g.in = {problem.in_depth, problem.in_height, problem.in_width};
  g.cached_frames = problem.cached_frames;
  g.in_channels = problem.in_channels;
  g.out_channels = problem.out_channels;
  g.filter = problem.filter;
  g.pad_begin = problem.pad_begin;
  g.pad_end = problem.pad_end;
  g.stride = problem.stride;
  g.dilation = problem.dilation;
  g.pad_mode = problem.pad_mode;
  g.groups = problem.groups;
  complete(g, kNames3d);
  return g;
}

ConvGeometry geometry_of(const ProblemShape& problem) {
  return std::visit([](const auto& shape) { return geometry_of(shape); }, problem);
}

}  // namespace convoy
