// SPDX-License-Identifier: Apache-2.0
#include "support/conv_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>

#include "convoy/dtype.hpp"
#include "core/filter_layout.hpp"
#include "core/shuffle.hpp"
#include "core/text.hpp"
#include "reference/reference.hpp"
#include "support/elements.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

/// Random choices that are the same on every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed * 0x9e3779b97f4a7c15u + 1) {}

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(0, 99) < percent; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
  /// Uniform in [-1, 1).
  float real() { return static_cast<float>(between(-(1 << 23), (1 << 23) - 1)) * 0x1p-23f; }

 private:
  std::mt19937_64 engine_;
};

std::int64_t random_channels(Random& random, const CaseLimits& limits) {
  if (limits.aligned_channels && random.chance(80)) {
    return random.pick<std::int64_t>({8, 16, 24, 32, 48, 64, 72, 96, 128, 192, 256});
  }
  return random.pick<std::int64_t>(
      {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 31, 32, 48, 64, 65, 96, 128});
}

/// One axis: extents, filter, padding, stride, dilation.
struct Axis {
  std::int64_t in, filter, pad_begin, pad_end, stride, dilation;
  PadMode mode;
};

Axis random_axis(Random& random, std::int64_t most_in, std::int64_t most_filter) {
  Axis axis{};
  axis.in = random.between(1, most_in);
  axis.filter = random.chance(30)   ? 1
                : random.chance(50) ? std::min<std::int64_t>(3, most_filter)
                                    : random.between(1, most_filter);
  axis.stride = random.chance(65) ? 1 : random.between(1, 3);
  axis.dilation = random.chance(75) ? 1 : random.between(1, 3);
  const std::int64_t reach = axis.dilation * (axis.filter - 1);
  const bool same = random.chance(50);
  axis.pad_begin = same ? reach / 2 : random.between(0, reach + (random.chance(10) ? 2 : 0));
  axis.pad_end = same ? reach / 2 : random.between(0, reach);
  axis.mode =
      random.chance(80) ? PadMode::zero : random.pick({PadMode::replicate, PadMode::reflect});
  return axis;
}

ProblemShape random_problem(Random& random, const CaseLimits& limits) {
  std::int64_t in_channels = random_channels(random, limits);
  std::int64_t out_channels = random_channels(random, limits);
  std::int64_t groups = 1;
  if (random.chance(15)) {
    groups = random.chance(30) ? in_channels : random.pick<std::int64_t>({2, 3, 4, 8});
    out_channels = groups * random.between(1, 3);
    in_channels = in_channels % groups == 0 ? in_channels : groups * random.between(1, 8);
  }
  const std::int64_t batch = random.chance(2) ? 0 : random.chance(60) ? 1 : random.between(2, 3);

  const Axis h = random_axis(random, 33, 5);
  const Axis w = random_axis(random, 33, 5);
  if (random.chance(60)) {
    Conv2dProblemShape p;
    p.batch = batch;
    p.in_height = h.in;
    p.in_width = w.in;
    p.in_channels = in_channels;
    p.out_channels = random.chance(1) ? 0 : out_channels;
    p.filter_h = h.filter;
    p.filter_w = w.filter;
    p.pad_h = h.pad_begin;
    p.pad_w = w.pad_begin;
    if (h.pad_end != h.pad_begin) p.pad_h_end = h.pad_end;
    if (w.pad_end != w.pad_begin) p.pad_w_end = w.pad_end;
    p.stride_h = h.stride;
    p.stride_w = w.stride;
    p.dilation_h = h.dilation;
    p.dilation_w = w.dilation;
    p.groups = groups;
    p.pad_mode = h.mode;
    p.upsample = random.chance(15) ? 2 : 1;
    if (p.upsample == 2 && random.chance(60)) {  // One that kernels fold into the filter.
      p.filter_h = p.filter_w = 3;
      p.pad_h = p.pad_w = 1;
      p.pad_h_end = p.pad_w_end = std::nullopt;
      p.stride_h = p.stride_w = p.dilation_h = p.dilation_w = 1;
    }
    return p;
  }
  const Axis d = random_axis(random, 6, 4);
  Conv3dProblemShape p;
  p.batch = batch;
  p.in_depth = d.in;
  p.in_height = std::min<std::int64_t>(h.in, 17);
  p.in_width = std::min<std::int64_t>(w.in, 17);
  p.in_channels = in_channels;
  p.out_channels = out_channels;
  p.filter = {d.filter, h.filter, w.filter};
  p.pad_begin = {d.pad_begin, h.pad_begin, w.pad_begin};
  p.pad_end = {d.pad_end, h.pad_end, w.pad_end};
  p.stride = {d.stride, h.stride, w.stride};
  p.dilation = {d.dilation, h.dilation, w.dilation};
  p.groups = groups;
  p.pad_mode = {d.mode, h.mode, w.mode};
  if (random.chance(40)) p.cached_frames = random.between(1, 3);
  return p;
}

/// Layers whose extents go together in ways that independent draws hardly ever meet: patches that
/// tile the input (all of it, or a row), wide groups, depthwise filters of every size, and what
/// most networks are made of: square filters that keep the extents, channels by eights.
Conv3dProblemShape random_network_volume(Random& random, const CaseLimits& limits) {
  Conv3dProblemShape p;
  p.batch = random.between(1, 3);
  p.out_channels = random_channels(random, limits);
  const int kind = static_cast<int>(random.between(0, 3));
  if (kind == 0) {
    p.in_channels = random_channels(random, limits);
    std::int64_t* const in[3] = {&p.in_depth, &p.in_height, &p.in_width};
    for (int axis = 0; axis < 3; ++axis) {
      const std::int64_t patch = random.chance(30) ? 1 : random.between(2, axis == 0 ? 3 : 16);
      const std::int64_t repeats = axis > 0 && random.chance(20) ? 2 : 1;
      p.stride[axis] = patch;
      p.filter[axis] = patch * repeats;
      *in[axis] = patch * random.between(repeats, 4);
      if (random.chance(25)) p.pad_begin[axis] = patch;
      if (random.chance(25)) p.pad_end[axis] = random.between(0, patch);
      if (random.chance(15)) *in[axis] += random.between(0, patch - 1);
    }
    if (random.chance(20)) p.cached_frames = random.between(1, 3);
    return p;
  }
  p.in_depth = random.chance(70) ? 1 : random.between(2, 4);
  p.in_height = random.chance(30) ? 1 : random.between(2, 20);
  p.in_width = random.between(1, 40);
  if (kind == 1) {
    p.groups = random.between(2, 5);
    p.in_channels = p.groups * 8 * random.between(1, random.chance(70) ? 4 : 17);
    p.out_channels = random.chance(60) ? p.in_channels : p.groups * 8 * random.between(1, 9);
  } else if (kind == 2) {
    p.groups = p.in_channels = p.out_channels = 8 * random.between(1, random.chance(70) ? 4 : 20);
  } else {
    p.in_channels = 8 * random.between(1, random.chance(70) ? 12 : 40);
    p.out_channels = 8 * random.between(1, random.chance(70) ? 12 : 40);
  }
  const std::int64_t extents[3] = {p.in_depth, p.in_height, p.in_width};
  const std::int64_t square = random.pick<std::int64_t>({1, 3, 3, 5, 7});
  const std::int64_t stride = random.chance(70) ? 1 : 2;
  for (int axis = 0; axis < 3; ++axis) {
    if (extents[axis] == 1) continue;
    p.filter[axis] = axis == 0 ? random.pick<std::int64_t>({1, 3, 3, 4}) : square;
    if (kind == 2 && p.in_depth == 1 && p.in_height == 1) {
      p.filter[axis] = random.pick<std::int64_t>({3, 4, 5, 7, 8, 9, 15, 31});
    }
    if (axis > 0) p.stride[axis] = stride;
    p.dilation[axis] = random.chance(80) ? 1 : random.between(2, 3);
    const std::int64_t reach = p.dilation[axis] * (p.filter[axis] - 1);
    const int same = kind == 3 ? 85 : 60;
    p.pad_begin[axis] = random.chance(same) ? reach / 2 : random.between(0, reach);
    p.pad_end[axis] = random.chance(same) ? reach / 2 : random.between(0, reach);
  }
  if (p.in_depth > 1 && random.chance(20)) p.cached_frames = random.between(1, 2);
  return p;
}

ProblemShape random_network_layer(Random& random, const CaseLimits& limits) {
  Conv3dProblemShape p = random_network_volume(random, limits);
  if (p.cached_frames > 0 || random.chance(40)) return p;
  const bool doubled = p.groups == 1 && random.chance(20);
  return Conv2dProblemShape{.batch = p.batch,
                            .in_height = p.in_height,
                            .in_width = p.in_width,
                            .in_channels = p.in_channels,
                            .out_channels = p.out_channels,
                            .filter_h = p.filter[1],
                            .filter_w = p.filter[2],
                            .pad_h = p.pad_begin[1],
                            .pad_w = p.pad_begin[2],
                            .stride_h = p.stride[1],
                            .stride_w = p.stride[2],
                            .dilation_h = p.dilation[1],
                            .dilation_w = p.dilation[2],
                            .groups = p.groups,
                            .pad_h_end = p.pad_end[1],
                            .pad_w_end = p.pad_end[2],
                            .upsample = doubled ? 2 : 1};
}

void random_epilogue(Random& random, ConvCase& c) {
  Epilogue& e = c.epilogue;
  if (random.chance(40)) return;
  if (random.chance(60)) {
    c.bias = true;
    e.bias_dtype = random.pick({DType::bf16, DType::fp16, DType::fp32});
  }
  if (c.exact) {
    e.activation = random.pick(
        {Activation::none, Activation::relu, Activation::leaky_relu, Activation::clamp});
    e.scale = random.pick({1.0f, 1.0f, 0.5f, -2.0f});
    e.parameter_a = e.activation == Activation::clamp ? -3.0f : 0.25f;
    e.beta = random.pick({1.0f, 1.0f, 0.0f, -0.5f});
  } else {
    e.activation = static_cast<Activation>(random.between(0, 9));
    e.scale = random.chance(70) ? 1.0f : 2.0f * random.real();
    e.parameter_a = e.activation == Activation::clamp ? -0.5f : 0.1f;
    e.beta = random.chance(60) ? 1.0f : random.chance(30) ? 0.0f : 2.0f * random.real();
  }
  e.parameter_b = 1.5f;
  c.residual = random.chance(50);
  e.order = random.pick({ResidualOrder::after_activation, ResidualOrder::before_activation});
  e.rounding = random.chance(70) ? EpilogueRounding::once : EpilogueRounding::each_step;
}

/// Whether integers stay exact in fp32 through the epilogue.
bool exact_on_integers(const Epilogue& e) {
  switch (e.activation) {
    case Activation::none:
    case Activation::relu:
    case Activation::clamp:
      return true;
    case Activation::leaky_relu: {
      const float scaled = 256.0f * e.parameter_a;
      return scaled == std::nearbyint(scaled) && std::fabs(scaled) < 1024.0f;
    }
    default:
      return false;
  }
}

bool exact_on_integers(const PrologueKind& prologue) {
  return prologue.activation == Activation::none || prologue.activation == Activation::relu;
}

/// What a prologue reads: [N, C] or [C], [N, C], and a value for each pixel.
struct PrologueValues {
  std::vector<float> scale, shift, inverse_rms;

  Prologue prologue(const PrologueKind& kind) const {
    const auto data = [](const std::vector<float>& of) { return of.empty() ? nullptr : of.data(); };
    return {.norm = kind.norm,
            .activation = kind.activation,
            .scale = data(scale),
            .shift = data(shift),
            .inverse_rms = data(inverse_rms)};
  }
};

/// Such that integers stay integers or halves where exact.
PrologueValues random_prologue(Random& random, const ConvGeometry& g, const PrologueKind& kind,
                               bool exact) {
  PrologueValues values;
  const bool rms = kind.norm == PrologueNorm::rms;
  const std::int64_t factors = !kind.any() ? 0 : rms ? g.in_channels : g.batch * g.in_channels;
  for (std::int64_t i = 0; i < factors; ++i) {
    values.scale.push_back(exact ? random.pick({1.0f, -1.0f, 2.0f}) : 1.0f + 0.5f * random.real());
    if (rms) continue;
    values.shift.push_back(exact ? static_cast<float>(random.between(-2, 2)) : random.real());
  }
  for (std::int64_t i = 0; rms && i < g.activation_elements() / g.in_channels; ++i) {
    values.inverse_rms.push_back(exact ? random.pick({1.0f, 2.0f, 0.5f}) : 1.3f + random.real());
  }
  return values;
}

/// Values of one tensor, already rounded to its type. Integers where exact, some of them zero.
std::vector<float> random_values(Random& random, std::int64_t count, DType dtype, bool exact,
                                 float size) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value =
        exact ? static_cast<float>(random.between(-2, 2)) : round_to(dtype, size * random.real());
  }
  return values;
}

/// The KTRSC filter, laid out as the case wants it.
std::vector<float> lay_out_filter(const std::vector<float>& ktrsc, const ConvGeometry& g,
                                  FilterLayout layout) {
  std::vector<float> out(ktrsc.size());
  const auto stride = filter_strides(g, layout);
  std::size_t i = 0;
  for (std::int64_t k = 0; k < g.out_channels; ++k) {
    for (std::int64_t t = 0; t < g.filter[0]; ++t) {
      for (std::int64_t r = 0; r < g.filter[1]; ++r) {
        for (std::int64_t s = 0; s < g.filter[2]; ++s) {
          for (std::int64_t c = 0; c < g.group_channels(); ++c) {
            const std::int64_t at =
                k * stride[0] + t * stride[1] + r * stride[2] + s * stride[3] + c * stride[4];
            out[static_cast<std::size_t>(at)] = ktrsc[i++];
          }
        }
      }
    }
  }
  return out;
}

std::string compare_bounded(const std::vector<unsigned char>& got, DType dtype,
                            const reference::Expectation& expectation) {
  const reference::Comparison c = reference::compare(got.data(), dtype, expectation);
  if (c.pass) return {};
  return text(c.mismatches, " of ", expectation.value.size(), " elements are past their bound; ",
              "worst: element ", c.worst, " is ", c.worst_got, ", expected ", c.worst_expected,
              " +- ", c.worst_bound);
}

/// The last frames of cache + activation, zeros in front where there are fewer.
std::vector<float> expected_next_cache(const ConvGeometry& g, const std::vector<float>& activation,
                                       const std::vector<float>& cache) {
  const std::int64_t frame = g.in[1] * g.in[2] * g.in_channels;
  const std::int64_t wanted = g.next_cache_frames();
  std::vector<float> out;
  for (std::int64_t n = 0; n < g.batch; ++n) {
    std::vector<float> all(static_cast<std::size_t>(wanted * frame), 0.0f);
    const auto append = [&](const std::vector<float>& from, std::int64_t frames) {
      const auto begin = from.begin() + n * frames * frame;
      all.insert(all.end(), begin, begin + frames * frame);
    };
    if (g.cached_frames > 0) append(cache, g.cached_frames);
    append(activation, g.in[0]);
    out.insert(out.end(), all.end() - wanted * frame, all.end());
  }
  return out;
}

}  // namespace

namespace {

/// Some cases have their output shuffled, by filters that divide so. Draws of its own.
void random_shuffle(std::uint64_t seed, const CaseLimits& limits, ConvCase& c) {
  Random random(seed ^ 0x73687566666c65u);
  if (!random.chance(15)) return;
  const bool deep = std::holds_alternative<Conv3dProblemShape>(c.problem);
  OutputShuffle shuffle;
  const auto factor = [&] { return random.pick<std::int64_t>({1, 2, 2, 2, 3}); };
  shuffle.factors = {deep ? factor() : 1, factor(), factor()};
  shuffle.order = random.pick({ShuffleOrder::channels_outer, ShuffleOrder::channels_inner});
  if (random.chance(50)) shuffle.dropped_frames = random.between(0, shuffle.factors[0] - 1);
  const std::int64_t groups = std::visit([](const auto& p) { return p.groups; }, c.problem);
  const std::int64_t unit = shuffle.phases() * groups;
  const auto channels = [&](std::int64_t old) {
    const std::int64_t least = (old + unit - 1) / unit;
    return unit * (limits.aligned_channels && random.chance(70) ? (least + 7) / 8 * 8 : least);
  };
  const ProblemShape asked = c.problem;
  std::visit([&](auto& p) { p.out_channels = channels(p.out_channels); }, c.problem);
  if (geometry_of(c.problem).flops() > limits.flops) {
    c.problem = asked;
    return;
  }
  const std::int64_t filters = std::visit([](const auto& p) { return p.out_channels; }, c.problem);
  const bool repeated = random.chance(40);
  std::int64_t sources = random.between(1, std::max<std::int64_t>(1, filters));
  while (filters % sources != 0) --sources;
  if (c.residual && shuffle.any() && repeated) {
    shuffle.residual = random.pick({ShuffleResidual::interleaved, ShuffleResidual::tiled});
    shuffle.residual_channels = sources;
  }
  c.options.shuffle = shuffle;
}

}  // namespace

ConvCase random_case(std::uint64_t seed, const CaseLimits& limits) {
  Random random(seed);
  ConvCase c;
  c.seed = seed;
  // Draws of its own, so that the other cases are as they were.
  Random networks(seed ^ 0x6e6574776f726b73u);
  const bool layer = networks.chance(20);
  while (true) {
    c.problem = layer ? random_network_layer(networks, limits) : random_problem(random, limits);
    try {
      const ConvGeometry g = geometry_of(c.problem);
      if (g.flops() <= limits.flops) break;
    } catch (const Error&) {
      continue;  // Filter larger than the input, reflection too wide: draw again.
    }
  }
  c.exact = random.chance(50);
  random_epilogue(random, c);
  c.options.dtype = random.pick({DType::bf16, DType::bf16, DType::fp16, DType::fp32});
  c.options.allow_tf32 = seed % 2 == 0;
  if (random.chance(20)) {
    c.options.output_dtype = random.pick({DType::bf16, DType::fp16, DType::fp32});
  }
  const bool flat = std::holds_alternative<Conv2dProblemShape>(c.problem);
  c.options.packed_filter = random.chance(60);
  if (c.options.packed_filter) {
    c.filter_layout =
        flat ? random.pick({FilterLayout::krsc, FilterLayout::kcrs, FilterLayout::rscf})
             : random.pick({FilterLayout::ktrsc, FilterLayout::kctrs, FilterLayout::trscf});
  } else {
    c.filter_layout = flat ? FilterLayout::krsc : FilterLayout::ktrsc;
  }
  const auto* deep = std::get_if<Conv3dProblemShape>(&c.problem);
  if (deep != nullptr && deep->filter[0] > 1 && random.chance(60)) {
    const bool enough =
        deep->cached_frames + deep->in_depth >= (deep->filter[0] - 1) * deep->dilation[0];
    c.next_cache = enough || deep->pad_mode[0] == PadMode::zero;
  }
  c.bring_workspace = random.chance(50);
  c.residual_in_place = random.chance(30);
  if (random.chance(50)) c.options.upsample_folding = UpsampleFolding::fast;
  Random prologues(seed ^ 0x70726f6c6f677565u);
  if (prologues.chance(15)) {
    c.options.prologue.norm = prologues.pick({PrologueNorm::scale_shift, PrologueNorm::rms});
    c.options.prologue.activation =
        prologues.pick({Activation::none, Activation::silu, Activation::silu, Activation::relu,
                        Activation::gelu, Activation::gelu_tanh});
  }
  random_shuffle(seed, limits, c);
  Random statistics(seed ^ 0x73746174u);
  if (statistics.chance(20)) {
    const ConvGeometry g = geometry_of(c.problem);
    const std::int64_t channels = shuffled_channels(g, c.options.shuffle);
    std::int64_t groups = statistics.between(1, std::max<std::int64_t>(1, channels / 2));
    while (channels % groups != 0) --groups;
    const bool none = g.batch > 0 && shuffled_elements(g, c.options.shuffle) == 0;
    c.options.statistics_groups = none ? 0 : groups;
  }
  return c;
}

ConvCase random_sibling(const ConvCase& c, std::uint64_t seed, const CaseLimits& limits) {
  Random random(seed);
  for (int attempt = 0; attempt < 20; ++attempt) {
    ConvGeometry g = geometry_of(c.problem);
    const std::int64_t width = random.pick<std::int64_t>({1, 2, 4});
    if (g.groups == 1) {
      g.in_channels = random.chance(50) ? g.in_channels * width
                                        : std::max<std::int64_t>(1, g.in_channels / width);
    }
    for (int axis = g.rank == 2 ? 1 : 0; axis < 3; ++axis) {
      if (random.chance(60)) g.in[axis] = random.between(1, axis == 0 ? 6 : 40);
      if (axis > 0 && random.chance(40)) {
        g.filter[axis] = random.pick<std::int64_t>({1, 3, 5});
        g.pad_begin[axis] = g.pad_end[axis] = g.dilation[axis] * (g.filter[axis] / 2);
      }
    }
    ConvCase sibling = c;
    sibling.seed = seed;
    sibling.problem = problem_of(g);
    sibling.next_cache = false;
    try {
      if (geometry_of(sibling.problem).flops() <= limits.flops) return sibling;
    } catch (const Error&) {
      continue;  // Not legal: draw again.
    }
  }
  return c;
}

ConvCase image(const Conv2dProblemShape& shape) {
  ConvCase c;
  c.problem = shape;
  c.options.device = Device::cuda;
  c.exact = true;
  c.runs = 1;
  return c;
}

ConvCase volume(const Conv3dProblemShape& shape) {
  ConvCase c = image({});
  c.problem = shape;
  c.filter_layout = FilterLayout::ktrsc;
  return c;
}

ProblemShape problem_of(const ConvGeometry& g) {
  if (g.rank == 2) {
    return Conv2dProblemShape{.batch = g.batch,
                              .in_height = g.in[1],
                              .in_width = g.in[2],
                              .in_channels = g.in_channels,
                              .out_channels = g.out_channels,
                              .filter_h = g.filter[1],
                              .filter_w = g.filter[2],
                              .pad_h = g.pad_begin[1],
                              .pad_w = g.pad_begin[2],
                              .stride_h = g.stride[1],
                              .stride_w = g.stride[2],
                              .dilation_h = g.dilation[1],
                              .dilation_w = g.dilation[2],
                              .groups = g.groups,
                              .pad_h_end = g.pad_end[1],
                              .pad_w_end = g.pad_end[2],
                              .pad_mode = g.pad_mode[1],
                              .upsample = g.upsample};
  }
  return Conv3dProblemShape{.batch = g.batch,
                            .in_depth = g.in[0],
                            .in_height = g.in[1],
                            .in_width = g.in[2],
                            .in_channels = g.in_channels,
                            .out_channels = g.out_channels,
                            .filter = g.filter,
                            .pad_begin = g.pad_begin,
                            .pad_end = g.pad_end,
                            .stride = g.stride,
                            .dilation = g.dilation,
                            .groups = g.groups,
                            .pad_mode = g.pad_mode,
                            .cached_frames = g.cached_frames};
}

namespace {

std::int64_t flat_upsample(const ConvCase& c) {
  const auto* const flat = std::get_if<Conv2dProblemShape>(&c.problem);
  return flat != nullptr ? flat->upsample : 1;
}

}  // namespace

std::string describe(const ConvCase& c) {
  Epilogue shown = c.epilogue;
  // Any address says that there is one.
  shown.bias = c.bias ? &shown : nullptr;
  shown.residual = c.residual ? &shown : nullptr;
  std::string out = text(to_string(c.problem), " ", to_string(c.options.dtype), "->",
                         to_string(c.options.output_dtype.value_or(c.options.dtype)), " filter ",
                         to_string(c.filter_layout),
                         c.options.packed_filter ? " packed, " : " bare, ", to_string(shown));
  if (c.options.allow_tf32 && c.options.dtype == DType::fp32) out += ", tf32 allowed";
  if (c.residual && c.residual_in_place) out += " in place";
  if (c.options.prologue.any()) out += ", prologue " + to_string(c.options.prologue);
  if (c.options.shuffle.any()) out += ", " + to_string(c.options.shuffle);
  if (c.options.statistics_groups > 0) {
    out += text(", statistics of ", c.options.statistics_groups, " groups");
  }
  if (c.bias_offset != 0.0f) out += text(", bias + ", c.bias_offset);
  if (c.next_cache) out += ", next_cache";
  if (!c.bring_workspace) out += ", own workspace";
  if (flat_upsample(c) == 2) out += text(", ", to_string(c.options.upsample_folding), " folding");
  const bool exact =
      c.exact && exact_on_integers(c.epilogue) && exact_on_integers(c.options.prologue);
  out += exact ? ", integers" : ", reals";
  return text(out, ", seed ", c.seed, ", kernel ",
              c.options.kernel.empty() ? "chosen" : c.options.kernel);
}

PlanOptions options_of(const ConvCase& c) {
  if (c.epilogue.bias != nullptr || c.epilogue.residual != nullptr) {
    throw std::logic_error("ConvCase: set `bias` and `residual`, not the epilogue's pointers");
  }
  PlanOptions options = c.options;
  options.epilogue = c.epilogue.kind();
  options.epilogue.bias = c.bias;
  options.epilogue.residual = c.residual;
  return options;
}

Plan plan_case(const ConvCase& c) {
  return plan(c.problem, options_of(c));
}

std::vector<Candidate> candidates_of(const ConvCase& c) {
  return candidates(c.problem, options_of(c));
}

// ---- Statistics -----------------------------------------------------------------------------

namespace {

/// What is wrong with the statistics of an output, as it lies there; empty if nothing is.
std::string compare_statistics(const ConvGeometry& g, const PlanOptions& options,
                               const std::vector<unsigned char>& output, DType dtype,
                               const std::vector<unsigned char>& got) {
  const std::int64_t channels = shuffled_channels(g, options.shuffle);
  const std::int64_t pixels = shuffled_elements(g, options.shuffle) / (g.batch * channels);
  const std::int64_t groups = options.statistics_groups, width = channels / groups;
  for (std::int64_t n = 0; n < g.batch; ++n) {
    for (std::int64_t group = 0; group < groups; ++group) {
      const auto for_each = [&](auto&& body) {
        for (std::int64_t pixel = n * pixels; pixel < (n + 1) * pixels; ++pixel) {
          for (std::int64_t c = group * width; c < (group + 1) * width; ++c) {
            body(static_cast<double>(load_element(output.data(), pixel * channels + c, dtype)));
          }
        }
      };
      const double count = static_cast<double>(pixels * width);
      double mean = 0, variance = 0, largest = 0;
      for_each([&](double v) {
        mean += v / count;
        largest = std::max(largest, std::fabs(v));
      });
      for_each([&](double v) { variance += (v - mean) * (v - mean) / count; });
      if (!std::isfinite(variance)) continue;
      const std::int64_t at = (n * groups + group) * 2;
      const double got_mean = load_element(got.data(), at, DType::fp32);
      const double got_variance = load_element(got.data(), at + 1, DType::fp32);
      // fp32: some roundings of the largest value, and of the squares of deviations.
      const double mean_slack = 1e-6 * largest;
      const double slack = 3e-5 * variance + mean_slack * mean_slack;
      if (std::fabs(got_mean - mean) <= mean_slack && std::fabs(got_variance - variance) <= slack) {
        continue;
      }
      return text("statistics of image ", n, ", group ", group, " are ", got_mean, ", ",
                  got_variance, "; expected ", mean, ", ", variance);
    }
  }
  return {};
}

}  // namespace

// ---- PreparedCase ---------------------------------------------------------------------------

/// What does not change from run to run.
struct PreparedCase::Shared {
  ConvCase c;
  ConvGeometry g;
  Plan plan;
  Device device;
  DType dtype, out_dtype;
  bool in_place, dense;
  // Bytes as they lie on the device.
  std::vector<unsigned char> activation, cache, filter, bias, residual, packed_bytes;
  std::vector<unsigned char> scale, shift, inverse_rms;  // Of the prologue.
  std::vector<float> next_cache;
  GuardedBuffer d_filter;
  PackedFilter packed;
  reference::Expectation expected;
  bool exact;

  explicit Shared(const ConvCase& of)
      : c(of),
        g(geometry_of(c.problem)),
        plan(plan_case(c)),
        device(plan.info().backend.starts_with("cuda") ? Device::cuda : Device::cpu),
        dtype(c.options.dtype),
        out_dtype(c.options.output_dtype.value_or(dtype)),
        in_place(c.residual_in_place && c.residual &&
                 c.options.shuffle.residual == ShuffleResidual::output),
        dense(c.filter_layout == FilterLayout::krsc || c.filter_layout == FilterLayout::ktrsc),
        exact(c.exact && exact_on_integers(c.epilogue) && exact_on_integers(c.options.prologue)) {
    Random random(c.seed ^ 0x5bd1e995u);
    const float filter_size =
        1.7f / std::sqrt(static_cast<float>(std::max<std::int64_t>(1, g.gemm_k())));
    auto x = random_values(random, g.activation_elements(), dtype, exact, 1.0f);
    auto before = random_values(random, g.cache_elements(), dtype, exact, 1.0f);
    auto w = random_values(random, g.filter_elements(), dtype, exact, filter_size);
    auto b = random_values(random, c.bias ? g.out_channels : 0, c.epilogue.bias_dtype, exact, 1.0f);
    for (float& value : b) value += c.bias_offset;
    const OutputShuffle& shuffle = c.options.shuffle;
    auto source = random_values(random, c.residual ? residual_elements(g, shuffle) : 0, out_dtype,
                                exact, 1.0f);
    activation = encode(x, dtype);
    cache = encode(before, dtype);
    filter = encode(lay_out_filter(w, g, c.filter_layout), dtype);
    bias = encode(b, c.epilogue.bias_dtype);
    for (std::size_t i = 0; i < b.size(); ++i) {
      b[i] = static_cast<float>(
          load_element(bias.data(), static_cast<std::int64_t>(i), c.epilogue.bias_dtype));
    }
    residual = encode(source, out_dtype);
    Random prologue_random(c.seed ^ 0x70726f6cu);
    const PrologueValues values = random_prologue(prologue_random, g, c.options.prologue, exact);
    scale = encode(values.scale, DType::fp32);
    shift = encode(values.shift, DType::fp32);
    inverse_rms = encode(values.inverse_rms, DType::fp32);
    // What is convolved.
    double activation_error = 0.0;
    x = reference::apply_prologue(g, x.data(), values.prologue(c.options.prologue), dtype,
                                  &activation_error);
    if (c.next_cache) next_cache = expected_next_cache(g, x, before);

    d_filter = GuardedBuffer(device, filter.size());
    d_filter.upload(filter.data());
    if (c.options.packed_filter || !dense) {
      packed = plan.pack_filter(d_filter.data(), c.filter_layout);
      synchronize(device);
      packed_bytes = download(device, packed.data(), packed.bytes());
    }
    // What the kernel multiplies. NOTE: nothing else may stand out of the bound of fp32 sums.
    const bool tf32 = plan.info().tf32;
    const bool folded = packed && packed.format().find("upsampled_phases") != std::string::npos;
    if (tf32) {
      for (auto* const operand : {&x, &before, folded ? nullptr : &w}) {
        if (operand == nullptr) continue;
        for (float& value : *operand) value = reference::round_to_tf32(value);
      }
    }
    if (c.residual && shuffle.any()) {
      source = reference::residual_of_filters(g, shuffle, source.data());
    }
    const std::int64_t elements = g.output_elements();
    expected = reference::expect(
        g, {x.data(), before.data(), w.data()},
        {c.epilogue, c.bias ? b.data() : nullptr, c.residual ? source.data() : nullptr}, out_dtype,
        {.filter_rounding = tf32 && folded    ? 0x1p-11
                            : c.allow_folding ? reference::filter_rounding(packed.format(), dtype)
                                              : 0,
         .activation_rounding =
             exact ? 0 : reference::activation_rounding(c.options.prologue, dtype, tf32),
         .activation_error = exact ? 0 : activation_error,
         // NOTE: odd, so that every filter of an even number has its turn.
         .step = c.sample == 0 || shuffle.any()
                     ? 1
                     : std::max<std::int64_t>(1, elements / c.sample) | 1});
    if (shuffle.any()) expected = reference::shuffled(g, shuffle, expected);
  }
};

/// The buffers of one run at a time.
struct PreparedCase::Tensors {
  GuardedBuffer activation, cache, bias, residual, output, next_cache, workspace;
  GuardedBuffer scale, shift, inverse_rms, statistics;
  /// Bits of the first run, once they were right.
  std::vector<unsigned char> first_output, first_statistics;

  explicit Tensors(const Shared& s)
      : activation(s.device, s.activation.size()),
        cache(s.device, s.cache.size()),
        bias(s.device, s.bias.size()),
        residual(s.device, s.residual.size()),
        output(s.device, static_cast<std::size_t>(shuffled_elements(s.g, s.c.options.shuffle)) *
                             size_of(s.out_dtype)),
        next_cache(s.device, s.next_cache.size() * size_of(s.dtype)),
        workspace(s.device, s.plan.workspace_bytes()),
        scale(s.device, s.scale.size()),
        shift(s.device, s.shift.size()),
        inverse_rms(s.device, s.inverse_rms.size()),
        statistics(s.device, static_cast<std::size_t>(s.g.batch * s.c.options.statistics_groups) *
                                 2 * sizeof(float)) {
    scale.upload(s.scale.data());
    shift.upload(s.shift.data());
    inverse_rms.upload(s.inverse_rms.data());
    activation.upload(s.activation.data());
    cache.upload(s.cache.data());
    bias.upload(s.bias.data());
    residual.upload(s.residual.data());
  }
};

PreparedCase::PreparedCase(const ConvCase& c) : PreparedCase(std::make_shared<Shared>(c)) {}
PreparedCase::PreparedCase(std::shared_ptr<Shared> shared)
    : shared_(std::move(shared)), tensors_(std::make_unique<Tensors>(*shared_)) {}
PreparedCase::~PreparedCase() = default;
PreparedCase::PreparedCase(PreparedCase&&) noexcept = default;
PreparedCase& PreparedCase::operator=(PreparedCase&&) noexcept = default;

PreparedCase PreparedCase::twin() const {
  return PreparedCase(shared_);
}
const ConvCase& PreparedCase::conv_case() const {
  return shared_->c;
}
const std::string& PreparedCase::kernel() const {
  return shared_->plan.info().kernel;
}

void PreparedCase::run(cudaStream_t stream) {
  const Shared& s = *shared_;
  Tensors& t = *tensors_;
  t.output.fill_with_nan(stream);
  t.next_cache.fill_with_nan(stream);
  t.workspace.fill_with_nan(stream);
  t.statistics.fill_with_nan(stream);
  if (s.in_place) t.residual.upload(s.residual.data(), stream);

  RunArguments arguments;
  arguments.activation = {t.activation.data(), s.plan.activation_shape()};
  arguments.filter = s.packed ? FilterRef(s.packed) : FilterRef(s.d_filter.data());
  arguments.epilogue = s.c.epilogue;
  arguments.output = {s.in_place ? t.residual.data() : t.output.data(), s.plan.output_shape()};
  if (s.c.bias) arguments.epilogue.bias = t.bias.data();
  if (s.c.residual) arguments.epilogue.residual = t.residual.data();
  if (s.g.cached_frames > 0) arguments.cache = {t.cache.data(), s.plan.cache_shape()};
  if (s.c.next_cache) arguments.next_cache = {t.next_cache.data(), s.plan.next_cache_shape()};
  const auto floats = [](const GuardedBuffer& buffer) {
    return buffer.bytes() > 0 ? static_cast<const float*>(buffer.data()) : nullptr;
  };
  arguments.prologue = {.norm = s.c.options.prologue.norm,
                        .activation = s.c.options.prologue.activation,
                        .scale = floats(t.scale),
                        .shift = floats(t.shift),
                        .inverse_rms = floats(t.inverse_rms)};
  if (s.c.options.statistics_groups > 0) {
    arguments.statistics = static_cast<float*>(t.statistics.data());
  }
  if (s.c.bring_workspace || s.device == Device::cuda) arguments.workspace = t.workspace.data();
  if (!s.c.launch) {
    s.plan.run(arguments, stream);
    return;
  }
  RunPointers pointers;
  pointers.output = arguments.output.data;
  pointers.activation = t.activation.data();
  pointers.filter = s.d_filter.data();
  pointers.cache = s.g.cached_frames > 0 ? t.cache.data() : nullptr;
  pointers.epilogue = arguments.epilogue;
  s.c.launch(s.g, pointers);
}

std::string PreparedCase::check(cudaStream_t stream) {
  const Shared& s = *shared_;
  Tensors& t = *tensors_;
  const std::vector<unsigned char> output = (s.in_place ? t.residual : t.output).download(stream);
  // NOTE: against the reference once: the bits of later runs are held against the first one's.
  if (t.first_output.empty()) {
    const std::string wrong =
        s.exact ? reference::compare_exactly(output.data(), s.out_dtype, s.expected)
                : compare_bounded(output, s.out_dtype, s.expected);
    if (!wrong.empty()) return wrong;
    t.first_output = output;
  } else if (output != t.first_output) {
    return "the bits differ from the first run's";
  }
  if (s.c.options.statistics_groups > 0 && !s.g.empty()) {
    const std::vector<unsigned char> got = t.statistics.download(stream);
    if (t.first_statistics.empty()) {
      const std::string wrong = compare_statistics(s.g, s.c.options, output, s.out_dtype, got);
      if (!wrong.empty()) return wrong;
      t.first_statistics = got;
    } else if (got != t.first_statistics) {
      return "the bits of the statistics differ from the first run's";
    }
  }
  if (s.c.next_cache && !s.g.empty()) {
    // Approximate exponentials may be rounded to the element beside.
    const double slack =
        s.exact ? 0.0 : reference::activation_rounding(s.c.options.prologue, s.dtype, false);
    const double least = slack > 0.0 ? 1e-6 : 0.0;
    const std::vector<unsigned char> got = t.next_cache.download(stream);
    for (std::size_t i = 0; i < s.next_cache.size(); ++i) {
      const double value = load_element(got.data(), static_cast<std::int64_t>(i), s.dtype);
      const double wanted = s.next_cache[i];
      if (std::fabs(value - wanted) <= slack * std::fabs(wanted) + least) continue;
      return text("next_cache is wrong: element ", i, " is ", value, ", expected ", wanted);
    }
  }
  const struct {
    const char* name;
    const GuardedBuffer& buffer;
    const std::vector<unsigned char>* unchanged;  // Null where it is written.
  } buffers[] = {{"activation", t.activation, &s.activation},
                 {"filter", s.d_filter, &s.filter},
                 {"cache", t.cache, &s.cache},
                 {"bias", t.bias, &s.bias},
                 {"prologue.scale", t.scale, &s.scale},
                 {"prologue.shift", t.shift, &s.shift},
                 {"prologue.inverse_rms", t.inverse_rms, &s.inverse_rms},
                 {"residual", t.residual, s.in_place ? nullptr : &s.residual},
                 {"output", t.output, nullptr},
                 {"next_cache", t.next_cache, nullptr},
                 {"statistics", t.statistics, nullptr},
                 {"workspace", t.workspace, nullptr}};
  for (const auto& [name, buffer, unchanged] : buffers) {
    if (!buffer.guards_intact(stream)) return text("bytes around ", name, " were overwritten");
    if (unchanged != nullptr && buffer.download(stream) != *unchanged) {
      return text("the ", name, " was changed");
    }
  }
  if (s.packed && download(s.device, s.packed.data(), s.packed.bytes(), stream) != s.packed_bytes) {
    return "the packed filter was changed";
  }
  return {};
}

CaseResult run_case(const ConvCase& c) {
  PreparedCase prepared(c);
  CaseResult result;
  result.kernel = prepared.kernel();
  for (int run = 0; run < c.runs && result.detail.empty(); ++run) {
    prepared.run();
    result.detail = prepared.check();
  }
  result.pass = result.detail.empty();
  return result;
}

std::string wrong_with(const ConvCase& c) {
  try {
    return run_case(c).detail;
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace convoy::test
