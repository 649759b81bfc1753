// SPDX-License-Identifier: Apache-2.0
#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "convoy/dtype.hpp"
#include "memory.hpp"
#ifdef VAE_DECODE_CUDA
#include "softmax.hpp"
#endif

namespace {

std::vector<std::uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), convoy::bf16_from_float);
  return bits;
}

// A plan of `problem` with these options, made once.
const convoy::Plan& planned(std::map<std::string, convoy::Plan>& plans,
                            const convoy::ProblemShape& problem,
                            const convoy::PlanOptions& options) {
  const std::string key =
      convoy::to_string(problem) + " " + to_string(options.epilogue) + " " +
      std::to_string(static_cast<int>(options.output_dtype.value_or(options.dtype)));
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, convoy::plan(problem, options)).first;
  return found->second;
}

}  // namespace

std::shared_ptr<void> Layers::put(const std::vector<float>& values, convoy::DType dtype) const {
  auto memory = allocate(values.size() * convoy::size_of(dtype), cuda_);
  if (dtype == convoy::DType::fp32) {
    copy_in(memory.get(), values.data(), values.size() * 4, cuda_);
  } else {
    copy_in(memory.get(), to_bf16(values).data(), values.size() * 2, cuda_);
  }
  return memory;
}

Tensor Layers::upload(const Array& array, bool frames_first) const {
  const auto& s = array.shape;
  const std::int64_t channels = s[frames_first ? 1 : 0], frames = s[frames_first ? 0 : 1];
  const std::int64_t pixels = s[2] * s[3];
  std::vector<float> values(array.values.size());
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t f = 0; f < frames; ++f) {
      const float* from =
          array.values.data() + (frames_first ? f * channels + c : c * frames + f) * pixels;
      for (std::int64_t i = 0; i < pixels; ++i) values[(f * pixels + i) * channels + c] = from[i];
    }
  }
  return {put(values, dtype_), frames, s[2], s[3], channels};
}

std::vector<float> Layers::download(const Tensor& x) const {
  std::vector<float> values(static_cast<std::size_t>(x.elements()));
  if (dtype_ == convoy::DType::fp32) {
    copy_out(values.data(), x.data.get(), values.size() * 4, cuda_);
  } else {
    std::vector<std::uint16_t> bits(values.size());
    copy_out(bits.data(), x.data.get(), bits.size() * 2, cuda_);
    std::ranges::transform(bits, values.begin(), convoy::float_from_bf16);
  }
  return values;
}

Tensor Layers::empty(std::int64_t frames, std::int64_t height, std::int64_t width,
                     std::int64_t channels) const {
  const std::size_t elements = static_cast<std::size_t>(frames * height * width * channels);
  return {allocate(elements * element(), cuda_), frames, height, width, channels};
}

void Layers::copy_frames(const Tensor& from, std::int64_t first, std::int64_t count, Tensor& to,
                         std::int64_t at) const {
  const std::size_t frame = static_cast<std::size_t>(from.elements() / from.frames) * element();
  copy_within(static_cast<char*>(to.data.get()) + static_cast<std::size_t>(at) * frame,
              static_cast<const char*>(from.data.get()) + static_cast<std::size_t>(first) * frame,
              static_cast<std::size_t>(count) * frame, cuda_);
}

Tensor Layers::joined(const Tensor& before, const Tensor& x) const {
  if (before.data == nullptr) return x;
  Tensor all = empty(before.frames + x.frames, x.height, x.width, x.channels);
  copy_frames(before, 0, before.frames, all, 0);
  copy_frames(x, 0, x.frames, all, before.frames);
  return all;
}

Tensor Layers::frames_from_channels(const Tensor& x) const {
  // NOTE: a 1x1 convolution would do it on the GPU; pixels are few where this is needed.
  const std::vector<float> values = download(x);
  const std::int64_t half = x.channels / 2, pixels = x.height * x.width;
  std::vector<float> made(values.size());
  for (std::int64_t f = 0; f < x.frames; ++f) {
    for (std::int64_t i = 0; i < pixels; ++i) {
      for (std::int64_t c = 0; c < x.channels; ++c) {
        made[((2 * f + c / half) * pixels + i) * half + c % half] =
            values[(f * pixels + i) * x.channels + c];
      }
    }
  }
  return {put(made, dtype_), 2 * x.frames, x.height, x.width, half};
}

std::shared_ptr<void> Layers::parameter(const std::string& name,
                                        const std::vector<std::int64_t>& shape) {
  auto& known = parameters_[name];
  if (known == nullptr) known = put(weights_.read(name, shape).values, convoy::DType::fp32);
  return known;
}

Tensor Layers::run(const convoy::ProblemShape& problem, const Tensor& x, const std::string& name,
                   const Tensor* cache, const Tensor* residual) {
  const auto& shape = weights_.shape(name + ".weight");
  const convoy::Epilogue epilogue{.bias = parameter(name + ".bias", {shape[0]}).get(),
                                  .residual = residual ? residual->data.get() : nullptr};
  const convoy::PlanOptions options{
      .dtype = dtype_, .epilogue = epilogue.kind(), .device = device(), .packed_filter = true};
  const convoy::Plan& plan = planned(plans_, problem, options);
  auto& packed = packed_[name + " " + plan.filter_format()];
  if (!packed) {
    const auto dense = put(weights_.read(name + ".weight").values, dtype_);
    packed = plan.pack_filter(
        dense.get(), shape.size() == 4 ? convoy::FilterLayout::kcrs : convoy::FilterLayout::kctrs);
  }
  const auto made = plan.output_shape();
  const auto& e = made.extents;
  Tensor out = made.rank() == 4 ? empty(e[0], e[1], e[2], e[3]) : empty(e[1], e[2], e[3], e[4]);
  const auto workspace = allocate(plan.workspace_bytes(), cuda_);
  plan.run({.output = out.data.get(),
            .activation = x.data.get(),
            .filter = packed,
            .epilogue = epilogue,
            .cache = cache ? cache->data.get() : nullptr,
            .workspace = workspace.get()});
  return out;
}

Tensor Layers::conv2d(const Tensor& x, const std::string& name, const ConvOptions& options) {
  const auto& shape = weights_.shape(name + ".weight");
  if (shape.size() != 4 || shape[1] != x.channels) {
    throw std::runtime_error(name + ".weight has shape " + text_of(shape) + "; legal: [filters, " +
                             std::to_string(x.channels) + ", height, width]");
  }
  return run(convoy::Conv2dProblemShape{.batch = x.frames,
                                        .in_height = x.height,
                                        .in_width = x.width,
                                        .in_channels = x.channels,
                                        .out_channels = shape[0],
                                        .filter_h = shape[2],
                                        .filter_w = shape[3],
                                        .pad_h = options.pad,
                                        .pad_w = options.pad,
                                        .upsample = options.upsample},
             x, name, nullptr, options.residual);
}

Tensor Layers::causal_conv3d(const Tensor& x, const std::string& name, Tensor& cache,
                             const ConvOptions& options) {
  const auto& shape = weights_.shape(name + ".weight");
  if (shape.size() != 5 || shape[1] != x.channels) {
    throw std::runtime_error(name + ".weight has shape " + text_of(shape) + "; legal: [filters, " +
                             std::to_string(x.channels) + ", frames, height, width]");
  }
  const std::int64_t before = shape[2] - 1, cached = cache.data ? cache.frames : 0;
  const Tensor out =
      run(convoy::Conv3dProblemShape{.batch = 1,
                                     .in_depth = x.frames,
                                     .in_height = x.height,
                                     .in_width = x.width,
                                     .in_channels = x.channels,
                                     .out_channels = shape[0],
                                     .filter = {shape[2], shape[3], shape[4]},
                                     .pad_begin = {before - cached, options.pad, options.pad},
                                     .pad_end = {0, options.pad, options.pad},
                                     .cached_frames = cached},
          x, name, cached > 0 ? &cache : nullptr, options.residual);
  if (before > 0) {
    const std::int64_t kept = std::min(before, cached + x.frames);
    const std::int64_t fresh = std::min(kept, x.frames), old = kept - fresh;
    Tensor last = empty(kept, x.height, x.width, x.channels);
    if (old > 0) copy_frames(cache, cached - old, old, last, 0);
    copy_frames(x, x.frames - fresh, fresh, last, old);
    cache = last;
  }
  return out;
}

Tensor Layers::group_norm(const Tensor& x, const std::string& name, std::int64_t groups,
                          bool silu) {
  const convoy::GroupNormProblem problem{.batch = x.frames,
                                         .pixels = x.height * x.width,
                                         .channels = x.channels,
                                         .groups = groups,
                                         .epsilon = 1e-6f};
  const auto activation = silu ? convoy::Activation::silu : convoy::Activation::none;
  const std::string key = problem.to_string() + to_string(activation);
  auto found = norms_.find(key);
  if (found == norms_.end()) {
    found = norms_
                .emplace(key, convoy::plan(
                                  problem,
                                  {.dtype = dtype_, .activation = activation, .device = device()}))
                .first;
  }
  Tensor out = empty(x.frames, x.height, x.width, x.channels);
  const auto workspace = allocate(found->second.workspace_bytes(), cuda_);
  found->second.run({.output = out.data.get(),
                     .input = x.data.get(),
                     .scale = parameter(name + ".weight", {x.channels}).get(),
                     .bias = parameter(name + ".bias", {x.channels}).get(),
                     .workspace = workspace.get()});
  return out;
}

Tensor Layers::rms_norm(const Tensor& x, const std::string& name, bool silu) {
  const convoy::RmsNormProblem problem{.pixels = x.frames * x.height * x.width,
                                       .channels = x.channels,
                                       .epsilon = 1e-12f,
                                       .rule = convoy::RmsEpsilon::norm_floor};
  const auto activation = silu ? convoy::Activation::silu : convoy::Activation::none;
  const std::string key = problem.to_string() + to_string(activation);
  auto found = norms_.find(key);
  if (found == norms_.end()) {
    found = norms_
                .emplace(key, convoy::plan(problem, {.dtype = dtype_,
                                                     .bias = false,
                                                     .activation = activation,
                                                     .device = device()}))
                .first;
  }
  std::vector<std::int64_t> shape = weights_.shape(name + ".gamma");  // [C, 1, 1] or [C, 1, 1, 1].
  std::ranges::fill(shape, 1);
  if (!shape.empty()) shape[0] = x.channels;
  Tensor out = empty(x.frames, x.height, x.width, x.channels);
  const auto workspace = allocate(found->second.workspace_bytes(), cuda_);
  found->second.run({.output = out.data.get(),
                     .input = x.data.get(),
                     .scale = parameter(name + ".gamma", shape).get(),
                     .workspace = workspace.get()});
  return out;
}

// ---- Attention: its products are 1x1 convolutions -----------------------------------------------

const Layers::Linear& Layers::linear(const std::string& name, std::int64_t begin,
                                     std::int64_t end) {
  Linear& known = linears_[name + " " + std::to_string(begin)];
  if (known.weight != nullptr) return known;
  const Array weight = weights_.read(name + ".weight");
  const std::int64_t rows = weight.shape[0];
  const std::int64_t columns = static_cast<std::int64_t>(weight.values.size()) / rows;
  const Array bias = weights_.read(name + ".bias", {rows});
  if (weight.shape.size() < 2 || columns != weight.shape[1] || end > rows) {
    throw std::runtime_error(name + ".weight has shape " + text_of(weight.shape) +
                             "; legal: [at least " + std::to_string(end) + ", channels]");
  }
  known = {
      put({weight.values.begin() + begin * columns, weight.values.begin() + end * columns}, dtype_),
      put({bias.values.begin() + begin, bias.values.begin() + end}, convoy::DType::fp32),
      end - begin, columns};
  return known;
}

void Layers::multiply(std::int64_t rows, std::int64_t columns, std::int64_t filters, const void* a,
                      const void* filter, void* out, float scale, const void* bias,
                      const void* residual, convoy::DType out_dtype) {
  const convoy::Epilogue epilogue{.scale = scale, .bias = bias, .residual = residual};
  const convoy::Conv2dProblemShape problem{
      .in_height = 1, .in_width = rows, .in_channels = columns, .out_channels = filters};
  const convoy::Plan& plan = planned(plans_, problem,
                                     {.dtype = dtype_,
                                      .output_dtype = out_dtype,
                                      .epilogue = epilogue.kind(),
                                      .device = device()});
  const auto workspace = allocate(plan.workspace_bytes(), cuda_);
  plan.run({.output = out,
            .activation = a,
            .filter = filter,
            .epilogue = epilogue,
            .workspace = workspace.get()});
}

void Layers::softmax(const float* scores, void* out, std::int64_t rows,
                     std::int64_t columns) const {
#ifdef VAE_DECODE_CUDA
  if (cuda_) return softmax_on_gpu(scores, out, rows, columns, dtype_ == convoy::DType::bf16);
#endif
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = scores + r * columns;
    const float largest = *std::max_element(row, row + columns);
    double sum = 0;
    for (std::int64_t i = 0; i < columns; ++i) sum += std::exp(row[i] - largest);
    for (std::int64_t i = 0; i < columns; ++i) {
      const auto value = static_cast<float>(std::exp(row[i] - largest) / sum);
      if (dtype_ == convoy::DType::fp32) {
        static_cast<float*>(out)[r * columns + i] = value;
      } else {
        static_cast<std::uint16_t*>(out)[r * columns + i] = convoy::bf16_from_float(value);
      }
    }
  }
}

Tensor Layers::attention(const Tensor& x, const std::vector<std::string>& qkv,
                         const std::string& out, const Tensor& residual) {
  const std::int64_t c = x.channels, tokens = x.height * x.width;
  const bool in_one = qkv.size() == 1;
  const auto part = [&](std::int64_t i) -> const Linear& {
    return in_one ? linear(qkv[0], i * c, (i + 1) * c)
                  : linear(qkv[static_cast<std::size_t>(i)], 0, c);
  };
  const Linear &query = part(0), &key = part(1), &value = part(2), &last = linear(out, 0, c);
  const std::int64_t rows = std::min<std::int64_t>(tokens, 1024);
  Tensor made = empty(x.frames, x.height, x.width, c);
  const Tensor q = empty(1, 1, tokens, c), k = empty(1, 1, tokens, c), v = empty(1, 1, c, tokens);
  const Tensor weights = empty(1, 1, rows, tokens), sums = empty(1, 1, tokens, c);
  const auto scores = allocate(static_cast<std::size_t>(rows * tokens) * 4, cuda_);
  for (std::int64_t f = 0; f < x.frames; ++f) {
    const std::size_t frame = static_cast<std::size_t>(f * tokens * c) * element();
    const char* const from = static_cast<const char*>(x.data.get()) + frame;
    multiply(tokens, c, c, from, query.weight.get(), q.data.get(), 1, query.bias.get(), nullptr,
             dtype_);
    multiply(tokens, c, c, from, key.weight.get(), k.data.get(), 1, key.bias.get(), nullptr,
             dtype_);
    // Values transposed: their weights are the activation, the pixels the filters. Their bias comes
    // last: the weights of a row add up to 1.
    multiply(c, c, tokens, value.weight.get(), from, v.data.get(), 1, nullptr, nullptr, dtype_);
    for (std::int64_t begin = 0; begin < tokens; begin += rows) {
      const std::int64_t here = std::min(rows, tokens - begin);
      const std::size_t offset = static_cast<std::size_t>(begin * c) * element();
      multiply(here, c, tokens, static_cast<const char*>(q.data.get()) + offset, k.data.get(),
               scores.get(), 1 / std::sqrt(static_cast<float>(c)), nullptr, nullptr,
               convoy::DType::fp32);
      softmax(static_cast<const float*>(scores.get()), weights.data.get(), here, tokens);
      multiply(here, tokens, c, weights.data.get(), v.data.get(),
               static_cast<char*>(sums.data.get()) + offset, 1, value.bias.get(), nullptr, dtype_);
    }
    multiply(tokens, c, c, sums.data.get(), last.weight.get(),
             static_cast<char*>(made.data.get()) + frame, 1, last.bias.get(),
             static_cast<const char*>(residual.data.get()) + frame, dtype_);
  }
  return made;
}
