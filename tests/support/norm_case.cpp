// SPDX-License-Identifier: Apache-2.0
#include "support/norm_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "convoy/dtype.hpp"
#include "reference/reference.hpp"
#include "support/elements.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

std::vector<float> normal(std::mt19937_64& random, std::int64_t count, double offset, double spread,
                          DType dtype) {
  std::normal_distribution<double> distribution(offset, spread);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = round_to(dtype, static_cast<float>(distribution(random)));
  return values;
}

/// Mean and standard deviation (with epsilon) of one group, in two passes.
struct Moments {
  double mean = 0, deviation = 0, largest = 0;
};

Moments moments_of(const NormCase& test, const std::vector<float>& x, std::int64_t image,
                   std::int64_t group) {
  const std::int64_t width = test.channels / test.groups;
  const auto each = [&](auto&& use) {
    for (std::int64_t p = 0; p < test.pixels; ++p) {
      const std::int64_t at = (image * test.pixels + p) * test.channels + group * width;
      for (std::int64_t c = 0; c < width; ++c) use(double(x[static_cast<std::size_t>(at + c)]));
    }
  };
  Moments m;
  const double count = double(width) * double(test.pixels);
  each([&](double v) { m.mean += v / count, m.largest = std::max(m.largest, std::fabs(v)); });
  each([&](double v) { m.deviation += (v - m.mean) * (v - m.mean) / count; });
  m.deviation = std::sqrt(m.deviation + double(test.epsilon));
  return m;
}

std::string compare(const NormCase& test, const std::vector<float>& x,
                    const std::vector<float>& scale, const std::vector<float>& bias,
                    const std::vector<unsigned char>& got) {
  const DType dtype = test.options.dtype;
  const double unit = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::fp16 ? 0x1p-11 : 0x1p-21;
  const std::int64_t width = test.channels / test.groups;
  for (std::int64_t image = 0; image < test.batch; ++image) {
    std::vector<Moments> groups;
    for (std::int64_t g = 0; !test.rms && g < test.groups; ++g) {
      groups.push_back(moments_of(test, x, image, g));
    }
    for (std::int64_t p = 0; p < test.pixels; ++p) {
      const std::int64_t pixel = image * test.pixels + p;
      double sum = 0;
      for (std::int64_t c = 0; test.rms && c < test.channels; ++c) {
        const double v = x[static_cast<std::size_t>(pixel * test.channels + c)];
        sum += v * v;
      }
      const auto channels = double(test.channels);
      const double divisor =
          test.rule == RmsEpsilon::added
              ? std::sqrt(sum / channels + double(test.epsilon))
              : std::max(std::sqrt(sum), double(test.epsilon)) / std::sqrt(channels);
      for (std::int64_t c = 0; c < test.channels; ++c) {
        const std::int64_t i = pixel * test.channels + c;
        const double gamma = test.options.scale ? scale[static_cast<std::size_t>(c)] : 1.0;
        const double beta = test.options.bias ? bias[static_cast<std::size_t>(c)] : 0.0;
        const double v = x[static_cast<std::size_t>(i)];
        double normed = v / divisor, condition = 1;
        if (!test.rms) {
          const Moments& m = groups[static_cast<std::size_t>(c / width)];
          normed = (v - m.mean) / m.deviation;
          condition = m.largest / m.deviation;
        }
        const double want =
            reference::activate_fp64(normed * gamma + beta, test.options.activation, NAN, NAN);
        const double result = load_element(got.data(), i, dtype);
        // A rounding of the mean shifts every value by a rounding of the largest one.
        const double slack =
            (3e-7 * condition + 4e-6 * (1 + std::fabs(normed))) * (1 + std::fabs(gamma)) + 1e-6;
        if (!(std::fabs(result - want) <= unit * std::fabs(want) + slack)) {
          std::ostringstream text;
          text << "image " << image << " pixel " << p << " channel " << c << ": got " << result
               << ", want " << want;
          return text.str();
        }
      }
    }
  }
  return {};
}

}  // namespace

std::string NormCase::describe() const {
  std::ostringstream text;
  text << (rms ? "rms_norm" : "group_norm") << " n" << batch << "p" << pixels << "c" << channels
       << "g" << groups << " epsilon " << epsilon << " " << to_string(rule) << " "
       << to_string(options.dtype) << (options.scale ? " scale" : "")
       << (options.bias ? " bias" : "") << " of " << to_string(options.parameter_dtype) << " "
       << to_string(options.activation)
       << (options.result == NormResult::coefficients ? " coefficients" : "")
       << (in_place ? " in place" : "") << ", values " << offset << " ± " << spread << ", seed "
       << seed;
  return text.str();
}

NormPlan plan_norm(const NormCase& test) {
  if (test.rms) {
    return plan(RmsNormProblem{.pixels = test.batch * test.pixels,
                               .channels = test.channels,
                               .epsilon = test.epsilon,
                               .rule = test.rule},
                test.options);
  }
  return plan(GroupNormProblem{.batch = test.batch,
                               .pixels = test.pixels,
                               .channels = test.channels,
                               .groups = test.groups,
                               .epsilon = test.epsilon},
              test.options);
}

/// What coefficients make of the input, in the type of a tensor: fp32.
std::vector<unsigned char> normalised(const NormCase& test, const std::vector<float>& x,
                                      const std::vector<unsigned char>& coefficients) {
  const std::int64_t c = test.channels, count = test.batch * test.pixels * c;
  const auto at = [&](std::int64_t i) { return load_element(coefficients.data(), i, DType::fp32); };
  std::vector<float> y;
  for (std::int64_t i = 0; i < count; ++i) {
    const double v = x[static_cast<std::size_t>(i)];
    const std::int64_t factor = i / c / test.pixels * c + i % c;
    y.push_back(static_cast<float>(test.rms ? v * double(at(i / c))
                                            : v * double(at(factor)) +
                                                  double(at(test.batch * c + factor))));
  }
  return encode(y, DType::fp32);
}

std::string run_norm_case(const NormCase& test) {
  std::mt19937_64 random(test.seed);
  const DType dtype = test.options.dtype, parameter = test.options.parameter_dtype;
  const Device device = test.options.device;
  const std::int64_t count = test.batch * test.pixels * test.channels;
  const std::vector<float> x = normal(random, count, test.offset, test.spread, dtype);
  const std::vector<float> scale = normal(random, test.channels, 1, 0.5, parameter);
  const std::vector<float> bias = normal(random, test.channels, 0, 0.5, parameter);

  const auto buffer = [&](const std::vector<float>& values, DType type) {
    const std::vector<unsigned char> bytes = encode(values, type);
    GuardedBuffer memory(device, bytes.size());
    memory.upload(bytes.data());
    return memory;
  };
  const NormPlan plan = plan_norm(test);
  std::vector<unsigned char> results[2];
  for (std::vector<unsigned char>& result : results) {
    GuardedBuffer input = buffer(x, dtype), gamma = buffer(scale, parameter);
    GuardedBuffer beta = buffer(bias, parameter);
    const bool coefficients = test.options.result == NormResult::coefficients;
    const std::int64_t floats =
        test.rms ? test.batch * test.pixels : 2 * test.batch * test.channels;
    GuardedBuffer output(device,
                         coefficients ? static_cast<std::size_t>(floats) * 4 : input.bytes());
    GuardedBuffer workspace(device, plan.workspace_bytes());
    plan.run({.output = test.in_place ? input.data() : output.data(),
              .input = input.data(),
              .scale = test.options.scale ? gamma.data() : nullptr,
              .bias = test.options.bias ? beta.data() : nullptr,
              .workspace = plan.workspace_bytes() > 0 ? workspace.data() : nullptr});
    synchronize(device);
    result = (test.in_place ? input : output).download();
    for (const GuardedBuffer* memory : {&input, &gamma, &beta, &output, &workspace}) {
      if (!memory->guards_intact()) return "wrote outside a buffer";
    }
    if (!test.in_place && input.download() != encode(x, dtype)) return "changed its input";
  }
  if (results[0] != results[1]) return "two runs gave different bits";
  if (test.options.result == NormResult::tensor) {
    return compare(test, x, scale, bias, results[0]);
  }
  NormCase as_tensor = test;
  as_tensor.options.dtype = DType::fp32;
  return compare(as_tensor, x, scale, bias, normalised(test, x, results[0]));
}

NormCase random_norm_case(std::mt19937_64& random, Device device) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % std::uint64_t(high - low + 1));
  };
  NormCase test;
  test.rms = pick(0, 1) == 1;
  test.batch = pick(1, 3);
  test.pixels = pick(0, 3) == 0 ? pick(1, 2000) : pick(1, 200);
  test.groups = pick(1, 12);
  const std::int64_t widths[] = {1, 2, 3, 4, 5, 8, 10, 16, 24, 40, 100};
  test.channels = test.groups * widths[pick(0, 10)];
  if (test.batch * test.pixels * test.channels > 100000) test.pixels = 50;
  test.epsilon = pick(0, 1) == 0 ? 1e-6f : 1e-3f;
  test.rule = static_cast<RmsEpsilon>(pick(0, 1));
  test.options = {.dtype = static_cast<DType>(pick(0, 2)),
                  .scale = pick(0, 3) != 0,
                  .bias = pick(0, 1) == 0,
                  .parameter_dtype = static_cast<DType>(pick(0, 2)),
                  .activation = static_cast<Activation>(pick(0, 9)),
                  .device = device};
  if (pick(0, 1) == 0) test.options.activation = Activation::silu;
  test.in_place = pick(0, 2) == 0;
  test.offset = pick(0, 2) == 0 ? static_cast<double>(pick(-20, 20)) : 0.0;
  test.seed = random();
  // Of the seed, so that the other cases are as they were.
  if (test.seed % 5 == 0) {
    test.options.result = NormResult::coefficients;
    test.options.activation = Activation::none;
    if (test.rms) test.options.scale = test.options.bias = false;
    test.in_place = false;
  }
  return test;
}

}  // namespace convoy::test
