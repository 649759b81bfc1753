// SPDX-License-Identifier: Apache-2.0
#include "support/conv_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "core/dtype.hpp"
#include "core/filter_layout.hpp"
#include "core/text.hpp"
#include "reference/reference.hpp"
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

/// Any pointer but null: says "there is one" in the epilogue of a case.
const void* const kPresent = &kPresent;

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

Epilogue random_epilogue(Random& random, bool exact) {
  Epilogue e;
  if (random.chance(40)) return e;
  if (random.chance(60)) {
    e.bias = kPresent;
    e.bias_dtype = random.pick({DType::bf16, DType::fp16, DType::fp32});
  }
  if (exact) {
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
  if (random.chance(50)) e.residual = kPresent;
  e.order = random.pick({ResidualOrder::after_activation, ResidualOrder::before_activation});
  e.rounding = random.chance(70) ? EpilogueRounding::once : EpilogueRounding::each_step;
  return e;
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

std::vector<unsigned char> encode(const std::vector<float>& values, DType dtype) {
  std::vector<unsigned char> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(bytes.data(), static_cast<std::int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

GuardedBuffer upload(Device device, const std::vector<float>& values, DType dtype) {
  GuardedBuffer buffer(device, values.size() * size_of(dtype));
  buffer.upload(encode(values, dtype).data());
  return buffer;
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

/// The values that an exact case must give: the expectation rounded to the type, bit for bit.
std::string compare_exactly(const std::vector<unsigned char>& got, DType dtype,
                            const reference::Expectation& expectation) {
  for (std::size_t i = 0; i < expectation.value.size(); ++i) {
    const double wanted = reference::round_fp64(dtype, expectation.value[i]);
    const double x = load_element(got.data(), static_cast<std::int64_t>(i), dtype);
    if (x != wanted) return text("element ", i, " is ", x, ", exactly ", wanted, " expected");
  }
  return {};
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
  const std::int64_t wanted = (g.filter[0] - 1) * g.dilation[0];
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

ConvCase random_case(std::uint64_t seed, const CaseLimits& limits) {
  Random random(seed);
  ConvCase c;
  c.seed = seed;
  while (true) {
    c.problem = random_problem(random, limits);
    try {
      const ConvGeometry g = geometry_of(c.problem);
      if (g.flops() <= limits.flops) break;
    } catch (const Error&) {
      continue;  // Filter larger than the input, reflection too wide: draw again.
    }
  }
  c.exact = random.chance(50);
  c.epilogue = random_epilogue(random, c.exact);
  c.options.dtype = random.pick({DType::bf16, DType::bf16, DType::fp16, DType::fp32});
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
  return c;
}

std::string describe(const ConvCase& c) {
  const Epilogue& e = c.epilogue;
  std::string out = text(to_string(c.problem), " ", to_string(c.options.dtype), "->",
                         to_string(c.options.output_dtype.value_or(c.options.dtype)), " filter ",
                         to_string(c.filter_layout), c.options.packed_filter ? " packed" : " bare");
  out += text(", ", to_string(e), c.residual_in_place && e.residual != nullptr ? " in place" : "");
  if (c.next_cache) out += " next_cache";
  if (!c.bring_workspace) out += " own_workspace";
  return out + (c.exact ? " integers" : " reals");
}

CaseResult run_case(const ConvCase& c) {
  const ConvGeometry g = geometry_of(c.problem);
  PlanOptions options = c.options;
  options.epilogue = c.epilogue.kind();
  const DType dtype = options.dtype;
  const DType out_dtype = options.output_dtype.value_or(dtype);
  const Plan plan = convoy::plan(c.problem, options);
  const Device device = plan.info().backend.rfind("cuda", 0) == 0 ? Device::cuda : Device::cpu;

  // Make the tensors.
  Random random(c.seed ^ 0x5bd1e995u);
  const float filter_size =
      1.7f / std::sqrt(static_cast<float>(std::max<std::int64_t>(1, g.gemm_k())));
  const auto activation = random_values(random, g.activation_elements(), dtype, c.exact, 1.0f);
  const auto cache = random_values(random, g.cache_elements(), dtype, c.exact, 1.0f);
  const auto filter = random_values(random, g.filter_elements(), dtype, c.exact, filter_size);
  const auto bias = random_values(random, c.epilogue.bias != nullptr ? g.out_channels : 0,
                                  c.epilogue.bias_dtype, c.exact, 1.0f);
  const auto residual = random_values(
      random, c.epilogue.residual != nullptr ? g.output_elements() : 0, out_dtype, c.exact, 1.0f);

  // Put them on the device.
  const GuardedBuffer d_activation = upload(device, activation, dtype);
  const GuardedBuffer d_cache = upload(device, cache, dtype);
  const GuardedBuffer d_filter = upload(device, lay_out_filter(filter, g, c.filter_layout), dtype);
  const GuardedBuffer d_bias = upload(device, bias, c.epilogue.bias_dtype);
  GuardedBuffer d_residual = upload(device, residual, out_dtype);
  GuardedBuffer d_output(device,
                         static_cast<std::size_t>(g.output_elements()) * size_of(out_dtype));
  const auto next_expected =
      c.next_cache ? expected_next_cache(g, activation, cache) : std::vector<float>();
  GuardedBuffer d_next_cache(device, next_expected.size() * size_of(dtype));
  GuardedBuffer d_workspace(device, plan.workspace_bytes());

  RunArguments arguments;
  arguments.activation = {d_activation.data(), plan.activation_shape()};
  if (options.packed_filter) {
    arguments.filter = plan.pack_filter(d_filter.data(), c.filter_layout);
  } else {
    arguments.filter = d_filter.data();
  }
  arguments.epilogue = c.epilogue;
  const bool in_place = c.residual_in_place && c.epilogue.residual != nullptr;
  void* output = in_place ? d_residual.data() : d_output.data();
  arguments.output = {output, plan.output_shape()};
  if (c.epilogue.bias != nullptr) arguments.epilogue.bias = d_bias.data();
  if (c.epilogue.residual != nullptr) arguments.epilogue.residual = d_residual.data();
  if (g.cached_frames > 0) arguments.cache = {d_cache.data(), plan.cache_shape()};
  if (c.next_cache) arguments.next_cache = {d_next_cache.data(), plan.next_cache_shape()};
  if (c.bring_workspace || device == Device::cuda) arguments.workspace = d_workspace.data();

  // Run twice from the same state.
  std::vector<unsigned char> outputs[2];
  for (auto& bytes : outputs) {
    d_output.fill_with_nan();
    d_next_cache.fill_with_nan();
    d_workspace.fill_with_nan();
    if (in_place) d_residual.upload(encode(residual, out_dtype).data());
    plan.run(arguments);
    synchronize(device);
    bytes = in_place ? d_residual.download() : d_output.download();
  }

  // Check.
  CaseResult result;
  result.kernel = plan.info().kernel;
  const bool folded =
      arguments.filter.packed.format().find("upsampled_phases") != std::string::npos;
  const reference::Expectation expectation =
      reference::expect(g, {activation.data(), cache.data(), filter.data()},
                        {c.epilogue, bias.empty() ? nullptr : bias.data(),
                         residual.empty() ? nullptr : residual.data()},
                        out_dtype, 4e9, folded ? reference::half_ulp(dtype) : 0.0);
  result.detail = c.exact ? compare_exactly(outputs[0], out_dtype, expectation)
                          : compare_bounded(outputs[0], out_dtype, expectation);
  if (result.detail.empty() && outputs[0] != outputs[1]) result.detail = "two runs differ in bits";
  if (result.detail.empty() && c.next_cache && !g.empty() &&
      d_next_cache.download() != encode(next_expected, dtype)) {
    result.detail = "next_cache is wrong";
  }
  const std::pair<const char*, const GuardedBuffer*> buffers[] = {
      {"output", &d_output},     {"activation", &d_activation}, {"filter", &d_filter},
      {"cache", &d_cache},       {"next_cache", &d_next_cache}, {"bias", &d_bias},
      {"residual", &d_residual}, {"workspace", &d_workspace}};
  for (const auto& [name, buffer] : buffers) {
    if (result.detail.empty() && !buffer->guards_intact()) {
      result.detail = text("bytes around ", name, " were overwritten");
    }
  }
  if (result.detail.empty() && d_activation.download() != encode(activation, dtype)) {
    result.detail = "the activation was changed";
  }
  result.pass = result.detail.empty();
  return result;
}

}  // namespace convoy::test
