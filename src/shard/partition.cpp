// SPDX-License-Identifier: Apache-2.0
//
// Which elements of an axis each rank holds, and the convolution over them. Positions are counted
// in what the filter slides over: cached frames in front, rows and columns after upsampling.
#include <algorithm>

#include "convoy/geometry.hpp"
#include "convoy/shard.hpp"
#include "core/checked.hpp"
#include "core/text.hpp"

namespace convoy {
namespace {

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

/// The axis of a problem that is cut, and what its elements are called.
struct CutAxis {
  int index = 1;  ///< Of ConvGeometry's arrays.
  std::int64_t extent = 0, out = 0, pad = 0, stride = 1, reach = 0, upsample = 1, cached = 0;
  bool reflects = false;
};

CutAxis cut_axis(const ConvGeometry& g, ShardAxis axis) {
  CutAxis cut;
  cut.index = axis == ShardAxis::frames ? 0 : axis == ShardAxis::height ? 1 : 2;
  const auto i = static_cast<std::size_t>(cut.index);
  cut.extent = g.in[i];
  cut.out = g.out[i];
  cut.pad = g.pad_begin[i];
  cut.stride = g.stride[i];
  cut.reach = g.dilation[i] * (g.filter[i] - 1);
  cut.upsample = cut.index == 0 ? 1 : g.upsample;
  cut.cached = cut.index == 0 ? g.cached_frames : 0;
  cut.reflects = g.pad_mode[i] == PadMode::reflect;
  return cut;
}

std::vector<std::int64_t> even_starts(std::int64_t extent, int count) {
  std::vector<std::int64_t> starts;
  for (std::int64_t rank = 0; rank < count; ++rank) {
    starts.push_back(extent / count * rank + std::min(extent % count, rank));
  }
  return starts;
}

/// Throws where they do not ascend from 0 to below `extent`.
void check_starts(const std::vector<std::int64_t>& starts, std::int64_t extent, int count) {
  if (starts.size() != static_cast<std::size_t>(count)) {
    throw_invalid("starts has ", starts.size(), " entries; legal: none or one a rank, ", count);
  }
  for (std::size_t r = 0; r < starts.size(); ++r) {
    const std::int64_t least = r == 0 ? 0 : starts[r - 1] + 1;
    const std::int64_t most = r == 0 ? 0 : extent - 1;
    if (starts[r] >= least && starts[r] <= most) continue;
    throw_invalid("starts[", r, "] = ", starts[r], " is not legal; legal: ", least, " to ", most,
                  " (each rank has an element)");
  }
}

/// Own ranges of an axis that is cut at `starts`.
std::vector<ShardRange> ranges_of(const std::vector<std::int64_t>& starts, std::int64_t extent) {
  std::vector<ShardRange> ranges;
  for (std::size_t r = 0; r < starts.size(); ++r) {
    ranges.push_back({starts[r], r + 1 < starts.size() ? starts[r + 1] : extent, 0, 0});
  }
  return ranges;
}

/// What is wrong with margins that hold more than a neighbour has; empty if nothing is.
std::string margin_fault(const std::vector<ShardRange>& ranges, const char* what) {
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    const std::int64_t before = r > 0 ? ranges[r - 1].own() : 0;
    const std::int64_t after = r + 1 < ranges.size() ? ranges[r + 1].own() : 0;
    const std::int64_t margin = ranges[r].margin_begin, end = ranges[r].margin_end;
    if (margin > before) {
      return text("rank ", r, " needs ", margin, " elements of ", what, " in front of its own, but",
                  " rank ", r - 1, " has ", before);
    }
    if (end > after) {
      return text("rank ", r, " needs ", end, " elements of ", what, " behind its own, but rank ",
                  r + 1, " has ", after);
    }
  }
  return {};
}

/// Fills in the margins and halos of one rank, and the padding and extents of its problem.
void complete(const CutAxis& cut, const ShardSpec& spec, int rank, ShardLayout& part,
              std::int64_t& pad_begin, std::int64_t& pad_end) {
  ShardRange &in = part.input, &out = part.output;
  const bool first = rank == 0, last = rank + 1 == spec.count;
  // The elements that own outputs read.
  const std::int64_t low = out.begin * cut.stride - cut.pad;
  const std::int64_t high = (out.end - 1) * cut.stride - cut.pad + cut.reach;
  std::int64_t lowest = low, highest = high;
  if (cut.reflects) {  // What lies outside is as far inside.
    const std::int64_t last_seen = cut.cached + cut.upsample * cut.extent - 1;
    highest = std::max(highest, -low);
    lowest = std::min(lowest, 2 * last_seen - high);
  }
  const std::int64_t need_begin = floor_div(lowest, cut.upsample) - cut.cached;
  const std::int64_t need_end = floor_div(highest, cut.upsample) - cut.cached + 1;
  part.halo_begin =
      first ? 0
            : std::max<std::int64_t>(in.begin - std::max<std::int64_t>(need_begin, -cut.cached), 0);
  part.halo_end = last ? 0 : std::max<std::int64_t>(std::min(need_end, cut.extent) - in.end, 0);
  in.margin_begin = first ? 0 : std::max(part.halo_begin, spec.input_margin);
  in.margin_end = last ? 0 : std::max(part.halo_end, spec.input_margin);

  // The first element that it holds, and the outputs that start at or after it.
  const std::int64_t origin =
      cut.upsample * (in.begin - in.margin_begin) + (first ? 0 : cut.cached);
  const std::int64_t missing = std::max<std::int64_t>(origin - low, 0);
  out.margin_begin = first ? 0 : std::min(spec.output_margin, out.begin);
  const std::int64_t skipped = origin > low ? 0 : low - origin;
  // NOTE: padding is not negative: outputs in front of the own ones take up what lies before them.
  out.margin_begin = first ? 0 : std::max(out.margin_begin, ceil_div(skipped, cut.stride));
  pad_begin = first ? cut.pad : out.margin_begin * cut.stride - skipped + missing;

  const std::int64_t seen = cut.upsample * in.stored() + (first ? cut.cached : 0);
  out.margin_end = last ? 0 : std::min(spec.output_margin, cut.out - out.end);
  const std::int64_t without = (seen + pad_begin - cut.reach - 1);
  const std::int64_t fitting = without < 0 ? 0 : without / cut.stride + 1;
  const std::int64_t wanted = std::max(out.stored(), fitting);
  if (!last) out.margin_end += wanted - out.stored();
  pad_end = std::max<std::int64_t>((wanted - 1) * cut.stride - without, 0);
}

ProblemShape local_problem(const ProblemShape& problem, const CutAxis& cut, int rank,
                           std::int64_t stored, std::int64_t pad_begin, std::int64_t pad_end) {
  const auto i = static_cast<std::size_t>(cut.index);
  if (const auto* image = std::get_if<Conv2dProblemShape>(&problem)) {
    Conv2dProblemShape local = *image;
    (i == 1 ? local.in_height : local.in_width) = stored;
    (i == 1 ? local.pad_h : local.pad_w) = pad_begin;
    (i == 1 ? local.pad_h_end : local.pad_w_end) = pad_end;
    return local;
  }
  Conv3dProblemShape local = std::get<Conv3dProblemShape>(problem);
  (i == 0 ? local.in_depth : i == 1 ? local.in_height : local.in_width) = stored;
  local.pad_begin[i] = pad_begin;
  local.pad_end[i] = pad_end;
  if (i == 0 && rank > 0) local.cached_frames = 0;
  return local;
}

std::vector<ShardLayout> batch_layouts(const ProblemShape& problem, const ConvGeometry& g,
                                       const ShardSpec& spec) {
  const std::vector<std::int64_t> starts =
      spec.starts.empty() ? even_starts(g.batch, spec.count) : spec.starts;
  check_starts(starts, g.batch, spec.count);
  std::vector<ShardLayout> parts;
  for (const ShardRange& range : ranges_of(starts, g.batch)) {
    ShardLayout part{.input = range, .output = range, .local = problem};
    std::visit([&](auto& local) { local.batch = range.own(); }, part.local);
    parts.push_back(part);
  }
  return parts;
}

/// The parts; or what is wrong with so many of them.
std::vector<ShardLayout> cut_problem(const ProblemShape& problem, const CutAxis& cut,
                                     const ShardSpec& spec, std::string& fault) {
  std::vector<ShardLayout> parts;
  const std::vector<std::int64_t> starts =
      spec.starts.empty() ? even_starts(cut.extent, spec.count) : spec.starts;
  check_starts(starts, cut.extent, spec.count);
  std::vector<std::int64_t> out_starts;
  for (const std::int64_t start : starts) {
    out_starts.push_back(std::min(ceil_div(start * cut.upsample, cut.stride), cut.out));
  }
  std::vector<ShardRange> inputs = ranges_of(starts, cut.extent);
  std::vector<ShardRange> outputs = ranges_of(out_starts, cut.out);
  for (int rank = 0; rank < spec.count; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (outputs[r].own() < 1) {
      fault = text("rank ", rank, " has no output of ", cut.out);
      return {};
    }
    ShardLayout part{.input = inputs[r], .output = outputs[r]};
    std::int64_t pad_begin = 0, pad_end = 0;
    complete(cut, spec, rank, part, pad_begin, pad_end);
    part.local = local_problem(problem, cut, rank, part.input.stored(), pad_begin, pad_end);
    inputs[r] = part.input;
    parts.push_back(part);
  }
  fault = margin_fault(inputs, "the input");
  return parts;
}

/// The largest count below `spec.count` that works; at least 1.
int largest_count(const ProblemShape& problem, const CutAxis& cut, ShardSpec spec) {
  spec.starts.clear();
  spec.count = static_cast<int>(std::min<std::int64_t>(spec.count - 1, cut.extent));
  for (; spec.count > 1; --spec.count) {
    std::string fault;
    cut_problem(problem, cut, spec, fault);
    if (fault.empty()) return spec.count;
  }
  return 1;
}

}  // namespace

const char* to_string(ShardAxis axis) noexcept {
  switch (axis) {
    case ShardAxis::height:
      return "height";
    case ShardAxis::width:
      return "width";
    case ShardAxis::frames:
      return "frames";
    case ShardAxis::batch:
      return "batch";
  }
  return "unknown axis";
}

std::vector<ShardLayout> shard_layouts(const ProblemShape& problem, const ShardSpec& spec) {
  const ConvGeometry g = geometry_of(problem);
  const int axis = static_cast<int>(spec.axis);
  if (axis < 0 || axis > static_cast<int>(ShardAxis::batch)) {
    throw_invalid("axis = ", axis, " is not legal; legal: height (0), width (1), frames (2), ",
                  "batch (3)");
  }
  if (spec.count < 1) {
    throw_invalid("count = ", spec.count, " is not legal; legal: at least 1; nearest: 1");
  }
  if (spec.input_margin < 0 || spec.output_margin < 0) {
    throw_invalid(spec.input_margin < 0 ? "input_margin = " : "output_margin = ",
                  std::min(spec.input_margin, spec.output_margin),
                  " is not legal; legal: at least 0; nearest: 0");
  }
  if (spec.axis == ShardAxis::frames && g.rank == 2) {
    throw_invalid("axis = frames is not legal in 2-D; legal: height, width, batch");
  }
  const CutAxis cut = cut_axis(g, spec.axis);
  const std::int64_t extent = spec.axis == ShardAxis::batch ? g.batch : cut.extent;
  if (spec.count > extent) {
    throw_invalid("count = ", spec.count, " is more than the ", extent, " elements of ",
                  to_string(spec.axis), "; legal: 1 to ", extent,
                  "; nearest: ", std::max<std::int64_t>(extent, 1));
  }
  if (spec.axis == ShardAxis::batch) return batch_layouts(problem, g, spec);
  std::string fault;
  std::vector<ShardLayout> parts = cut_problem(problem, cut, spec, fault);
  if (!fault.empty()) {
    throw_invalid("count = ", spec.count, " cuts ", to_string(spec.axis), " of ",
                  to_string(problem), " too small: ", fault,
                  "; largest legal count, cut evenly: ", largest_count(problem, cut, spec));
  }
  for (const ShardLayout& part : parts) geometry_of(part.local);
  return parts;
}

std::vector<std::int64_t> output_starts(const std::vector<ShardLayout>& layouts) {
  std::vector<std::int64_t> starts;
  for (const ShardLayout& layout : layouts) starts.push_back(layout.output.begin);
  return starts;
}

}  // namespace convoy
