// SPDX-License-Identifier: Apache-2.0
#include "device_case.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <sstream>

#include "core/dtype.hpp"
#include "core/padding.hpp"

namespace convoy::test {
namespace {

// ---- Elements -------------------------------------------------------------------------------

float rounded(float x, DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return float_from_bf16(bf16_from_float(x));
    case DType::fp16:
      return float_from_fp16(fp16_from_float(x));
    case DType::fp32:
      return x;
  }
  return x;
}

void store(std::vector<unsigned char>& bytes, std::int64_t i, float x, DType dtype) {
  if (dtype == DType::fp32) {
    std::memcpy(bytes.data() + i * 4, &x, 4);
    return;
  }
  const std::uint16_t bits = dtype == DType::bf16 ? bf16_from_float(x) : fp16_from_float(x);
  std::memcpy(bytes.data() + i * 2, &bits, 2);
}

float load(const std::vector<unsigned char>& bytes, std::int64_t i, DType dtype) {
  if (dtype == DType::fp32) {
    float x;
    std::memcpy(&x, bytes.data() + i * 4, 4);
    return x;
  }
  std::uint16_t bits;
  std::memcpy(&bits, bytes.data() + i * 2, 2);
  return dtype == DType::bf16 ? float_from_bf16(bits) : float_from_fp16(bits);
}

// ---- Device memory with guards --------------------------------------------------------------

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw Error(Status::launch_failure, std::string(what) + ": " + cudaGetErrorString(error));
  }
}

class GuardedBuffer {
 public:
  static constexpr std::size_t kGuard = 512;
  static constexpr unsigned char kPattern = 0xA5;

  explicit GuardedBuffer(std::size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&memory_, bytes + 2 * kGuard), "cudaMalloc");
    check(cudaMemset(memory_, kPattern, bytes + 2 * kGuard), "cudaMemset");
    // All ones: a NaN of every type.
    check(cudaMemset(data(), 0xFF, bytes), "cudaMemset");
  }
  ~GuardedBuffer() { cudaFree(memory_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  void* data() const { return static_cast<unsigned char*>(memory_) + kGuard; }
  void upload(const std::vector<unsigned char>& from) {
    check(cudaMemcpy(data(), from.data(), from.size(), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<unsigned char> download() const {
    std::vector<unsigned char> into(bytes_);
    check(cudaMemcpy(into.data(), data(), bytes_, cudaMemcpyDeviceToHost), "download");
    return into;
  }
  bool intact() const {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    check(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "download");
    const auto guards_hold = [](auto begin, auto end) {
      return std::all_of(begin, end, [](unsigned char byte) { return byte == kPattern; });
    };
    return guards_hold(all.begin(), all.begin() + kGuard) &&
           guards_hold(all.end() - kGuard, all.end());
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

// ---- The convolution in fp64 ----------------------------------------------------------------

struct HostTensors {
  std::vector<float> activation, cache, filter, bias, residual;
};

std::int64_t filter_index(const ConvGeometry& g, FilterLayout layout, std::int64_t k,
                          std::int64_t t, std::int64_t r, std::int64_t s, std::int64_t c) {
  const std::int64_t K = g.out_channels, C = g.group_channels();
  const std::int64_t T = g.filter[0], R = g.filter[1], S = g.filter[2];
  switch (layout) {
    case FilterLayout::krsc:
    case FilterLayout::ktrsc:
      return (((k * T + t) * R + r) * S + s) * C + c;
    case FilterLayout::kcrs:
    case FilterLayout::kctrs:
      return (((k * C + c) * T + t) * R + r) * S + s;
    case FilterLayout::rscf:
    case FilterLayout::trscf:
      return (((t * R + r) * S + s) * C + c) * K + k;
  }
  return -1;
}

// The sum under output element (n, z, p, q, k), `filter` as KTRSC.
double reference_sum(const ConvGeometry& g, const HostTensors& host, std::int64_t n, std::int64_t z,
                     std::int64_t p, std::int64_t q, std::int64_t k) {
  const std::int64_t C = g.group_channels(), group = k / g.group_filters();
  const auto seen = g.seen();
  double sum = 0;
  for (std::int64_t t = 0; t < g.filter[0]; ++t) {
    const std::int64_t d =
        padded_source(z * g.stride[0] - g.pad_begin[0] + t * g.dilation[0], seen[0], g.pad_mode[0]);
    for (std::int64_t r = 0; r < g.filter[1]; ++r) {
      const std::int64_t h = padded_source(p * g.stride[1] - g.pad_begin[1] + r * g.dilation[1],
                                           seen[1], g.pad_mode[1]);
      for (std::int64_t s = 0; s < g.filter[2]; ++s) {
        const std::int64_t w = padded_source(q * g.stride[2] - g.pad_begin[2] + s * g.dilation[2],
                                             seen[2], g.pad_mode[2]);
        if (d < 0 || h < 0 || w < 0) continue;
        const bool cached = d < g.cached_frames;
        const std::int64_t frame =
            cached ? n * g.cached_frames + d : n * g.in[0] + d - g.cached_frames;
        const float* x =
            (cached ? host.cache : host.activation).data() +
            ((frame * g.in[1] + h / g.upsample) * g.in[2] + w / g.upsample) * g.in_channels +
            group * C;
        const float* y =
            host.filter.data() + (((k * g.filter[0] + t) * g.filter[1] + r) * g.filter[2] + s) * C;
        for (std::int64_t c = 0; c < C; ++c) sum += double(x[c]) * double(y[c]);
      }
    }
  }
  return sum;
}

double activated(const Epilogue& e, double x) {
  const double a = e.parameter_a, b = e.parameter_b;
  switch (e.activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::leaky_relu:
      return x > 0 ? x : a * x;
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::tanh:
      return std::tanh(x);
    case Activation::hardswish:
      return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
    case Activation::clamp:
      return std::min(std::max(x, a), b);
  }
  return x;
}

double reference_epilogue(const Epilogue& e, double sum, double bias, double residual,
                          DType output) {
  const bool each = e.rounding == EpilogueRounding::each_step;
  const auto step = [&](double x) {
    return each ? double(rounded(static_cast<float>(x), output)) : x;
  };
  double v = step(sum);
  v = step(v * e.scale);
  v = step(v + bias);
  const double joined = step(double(e.beta) * residual);
  if (e.order == ResidualOrder::before_activation) return activated(e, step(v + joined));
  return step(activated(e, v)) + joined;
}

bool exact_activation(Activation activation) {
  return activation == Activation::none || activation == Activation::relu ||
         activation == Activation::clamp;
}

std::vector<unsigned char> to_bytes(const std::vector<float>& values, DType dtype) {
  std::vector<unsigned char> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store(bytes, static_cast<std::int64_t>(i), values[i], dtype);
  }
  return bytes;
}

template <typename Use>
auto with_problem(const DeviceCase& test, Use&& use) {
  const ConvGeometry& g = test.geometry;
  if (g.rank == 2) {
    Conv2dProblemShape shape{.batch = g.batch,
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
    return use(shape);
  }
  Conv3dProblemShape shape{.batch = g.batch,
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
  return use(shape);
}

PlanOptions options_of(const DeviceCase& test) {
  PlanOptions options = test.options;
  options.device = Device::cuda;
  Epilogue epilogue = test.epilogue;
  // Any address says that there is one.
  epilogue.bias = test.bias ? &epilogue : nullptr;
  epilogue.residual = test.residual ? &epilogue : nullptr;
  options.epilogue = epilogue.kind();
  return options;
}

std::string check_next_cache(const DeviceCase& test, const HostTensors& host,
                             const std::vector<unsigned char>& bytes) {
  const ConvGeometry& g = test.geometry;
  const std::int64_t frame = g.in[1] * g.in[2] * g.in_channels;
  const std::int64_t next = g.next_cache_frames();
  for (std::int64_t n = 0; n < g.batch; ++n) {
    for (std::int64_t f = 0; f < next; ++f) {
      const std::int64_t d = g.cached_frames + g.in[0] - next + f;
      for (std::int64_t i = 0; i < frame; ++i) {
        float want = 0;
        if (d >= g.cached_frames) {
          want = host.activation[(n * g.in[0] + d - g.cached_frames) * frame + i];
        } else if (d >= 0) {
          want = host.cache[(n * g.cached_frames + d) * frame + i];
        }
        const float got = load(bytes, (n * next + f) * frame + i, test.options.dtype);
        if (got != want) {
          std::ostringstream text;
          text << "next_cache frame " << f << " element " << i << ": got " << got << ", want "
               << want;
          return text.str();
        }
      }
    }
  }
  return {};
}

}  // namespace

bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::string DeviceCase::describe() const {
  std::ostringstream text;
  text << with_problem(*this, [](const auto& shape) { return shape.to_string(); }) << " "
       << to_string(options.dtype) << " -> "
       << to_string(options.output_dtype.value_or(options.dtype)) << " " << to_string(layout)
       << ", " << to_string(epilogue.activation) << (bias ? " bias" : "")
       << (residual ? " residual" : "") << (residual_in_place ? " in place" : "") << " "
       << to_string(epilogue.order) << " " << to_string(epilogue.rounding) << ", seed " << seed
       << ", kernel " << (options.kernel.empty() ? "chosen" : options.kernel);
  return text.str();
}

Plan plan_case(const DeviceCase& test) {
  const PlanOptions options = options_of(test);
  return with_problem(test, [&](const auto& shape) { return plan(shape, options); });
}

ConvGeometry legal_geometry(const DeviceCase& test) {
  return with_problem(test, [](const auto& shape) { return geometry_of(shape); });
}

std::vector<Candidate> candidates_of(const DeviceCase& test) {
  const PlanOptions options = options_of(test);
  return with_problem(test, [&](const auto& shape) { return candidates(shape, options); });
}

DeviceCase image(const Conv2dProblemShape& shape) {
  DeviceCase test;
  test.geometry = geometry_of(shape);
  test.layout = FilterLayout::krsc;
  return test;
}

DeviceCase volume(const Conv3dProblemShape& shape) {
  DeviceCase test;
  test.geometry = geometry_of(shape);
  return test;
}

std::string run_case(const DeviceCase& test) {
  const ConvGeometry& g = test.geometry;
  const DType in = test.options.dtype, out = test.options.output_dtype.value_or(in);
  std::mt19937_64 random(test.seed);
  // Half the values are zero, so that long sums stay small.
  const auto integers = [&](std::int64_t count, int low, int high) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      const std::uint64_t bits = random();
      value = bits & 1 ? float(low + int((bits >> 1) % std::uint64_t(high - low + 1))) : 0.0f;
    }
    return values;
  };
  HostTensors host;
  host.activation = integers(g.activation_elements(), -3, 3);
  host.cache = integers(g.cache_elements(), -3, 3);
  host.filter = integers(g.filter_elements(), -2, 2);
  if (test.bias) host.bias = integers(g.out_channels, -8, 8);
  if (test.residual) host.residual = integers(g.output_elements(), -8, 8);
  if (!exact_activation(test.epilogue.activation)) {
    // Keep the sums where activations are curved; powers of two stay exact.
    for (float& value : host.filter) value *= 0.0625f;
  }

  std::vector<float> laid_out(host.filter.size());
  for (std::int64_t k = 0, i = 0; k < g.out_channels; ++k) {
    for (std::int64_t t = 0; t < g.filter[0]; ++t) {
      for (std::int64_t r = 0; r < g.filter[1]; ++r) {
        for (std::int64_t s = 0; s < g.filter[2]; ++s) {
          for (std::int64_t c = 0; c < g.group_channels(); ++c, ++i) {
            laid_out[filter_index(g, test.layout, k, t, r, s, c)] = host.filter[i];
          }
        }
      }
    }
  }

  const auto upload = [](const std::vector<float>& values, DType dtype) {
    auto buffer = std::make_unique<GuardedBuffer>(values.size() * size_of(dtype));
    buffer->upload(to_bytes(values, dtype));
    return buffer;
  };
  const auto activation = upload(host.activation, in), cache = upload(host.cache, in);
  const auto filter = upload(laid_out, in);
  const auto bias = upload(host.bias, test.epilogue.bias_dtype);
  GuardedBuffer output(static_cast<std::size_t>(g.output_elements()) * size_of(out));
  const auto residual = upload(host.residual, out);
  if (test.residual_in_place) output.upload(to_bytes(host.residual, out));
  const std::int64_t next_elements =
      test.next_cache ? g.batch * g.next_cache_frames() * g.in[1] * g.in[2] * g.in_channels : 0;
  GuardedBuffer next(static_cast<std::size_t>(next_elements) * size_of(in));

  const Plan plan = plan_case(test);
  const bool dense = test.layout == FilterLayout::krsc || test.layout == FilterLayout::ktrsc;
  RunArguments arguments;
  arguments.output = output.data();
  arguments.activation = ConstTensorView(activation->data());
  arguments.filter = test.options.packed_filter || !dense
                         ? FilterRef(plan.pack_filter(filter->data(), test.layout))
                         : FilterRef(filter->data());
  arguments.epilogue = test.epilogue;
  if (test.bias) arguments.epilogue.bias = bias->data();
  if (test.residual) {
    arguments.epilogue.residual = test.residual_in_place ? output.data() : residual->data();
  }
  if (g.cached_frames > 0) arguments.cache = ConstTensorView(cache->data());
  if (next_elements > 0) arguments.next_cache = next.data();
  GuardedBuffer workspace(plan.workspace_bytes());
  if (plan.workspace_bytes() > 0) arguments.workspace = workspace.data();
  if (test.launch) {
    RunPointers pointers;
    pointers.output = output.data();
    pointers.activation = activation->data();
    pointers.filter = filter->data();
    pointers.cache = g.cached_frames > 0 ? cache->data() : nullptr;
    pointers.epilogue = arguments.epilogue;
    test.launch(g, pointers);
  } else {
    plan.run(arguments);
  }
  check(cudaDeviceSynchronize(), "run");

  const GuardedBuffer* const buffers[] = {activation.get(), cache.get(), filter.get(), bias.get(),
                                          residual.get(),   &output,     &next,        &workspace};
  for (const GuardedBuffer* buffer : buffers) {
    if (!buffer->intact()) return "wrote outside a buffer";
  }

  const std::vector<unsigned char> bytes = output.download();
  const std::int64_t elements = g.output_elements();
  const std::int64_t step =
      test.sample == 0 ? 1 : std::max<std::int64_t>(1, elements / test.sample) | 1;
  for (std::int64_t i = 0; i < elements; i += step) {
    std::int64_t rest = i;
    const std::int64_t k = rest % g.out_channels;
    rest /= g.out_channels;
    const std::int64_t q = rest % g.out[2];
    rest /= g.out[2];
    const std::int64_t p = rest % g.out[1];
    rest /= g.out[1];
    const std::int64_t z = rest % g.out[0], n = rest / g.out[0];
    const double sum = reference_sum(g, host, n, z, p, q, k);
    const double want = reference_epilogue(test.epilogue, sum, test.bias ? host.bias[k] : 0,
                                           test.residual ? host.residual[i] : 0, out);
    const float got = load(bytes, i, out);
    const float nearest = rounded(static_cast<float>(want), out);
    bool right = got == nearest;
    if (!right && !exact_activation(test.epilogue.activation)) {
      const double unit = out == DType::bf16 ? 0x1p-8 : out == DType::fp16 ? 0x1p-11 : 0x1p-20;
      const bool each = test.epilogue.rounding == EpilogueRounding::each_step;
      right = std::abs(got - want) <= (each ? 2 : 1) * unit * std::abs(want) + 0x1p-20;
    }
    if (!right) {
      std::ostringstream text;
      text << "output[" << n << ", " << z << ", " << p << ", " << q << ", " << k << "]: got " << got
           << ", want " << want << " (rounded " << nearest << ")";
      return text.str();
    }
  }
  if (next_elements > 0) return check_next_cache(test, host, next.download());
  return {};
}

}  // namespace convoy::test
