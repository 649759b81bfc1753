// SPDX-License-Identifier: Apache-2.0
//
// Chains of pointwise steps on a GPU, real or virtual, against the same steps on the host.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "convoy/dtype.hpp"
#include "convoy/elementwise.hpp"
#include "convoy/error.hpp"
#include "support/elements.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

class Elementwise : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
};

using Op = ElementwiseOp;

struct Case {
  ElementwiseProblem problem;
  DType dtype = DType::bf16;
  bool in_place = false;  ///< The output is operand 0, which is dense.
};

std::int64_t count_of(const ElementwiseProblem& p) {
  return p.batch * p.depth * p.height * p.width * p.channels;
}

std::int64_t elements_of(const ElementwiseProblem& p, const ElementwiseOperand& operand) {
  const std::int64_t extents[5] = {p.batch, p.depth, p.height, p.width, p.channels};
  std::int64_t last = 0;
  for (int axis = 0; axis < 5; ++axis) {
    std::int64_t most = extents[axis] - 1;
    if (axis >= 1 && axis <= 3) {
      most = (most + operand.offset[axis - 1]) / operand.ratio[axis - 1];
    }
    last += most * operand.strides[axis];
  }
  return last + 1;
}

/// What a chain gives, element by element.
std::vector<float> expected(const Case& test, const std::vector<std::vector<float>>& operands,
                            const std::vector<float>& coefficients) {
  const ElementwiseProblem& p = test.problem;
  std::vector<float> result;
  for (std::int64_t i = 0; i < count_of(p); ++i) {
    const std::int64_t c = i % p.channels, pixel = i / p.channels, w = pixel % p.width;
    const std::int64_t row = pixel / p.width, h = row % p.height;
    const std::int64_t d = row / p.height % p.depth, n = row / p.height / p.depth;
    const auto value = [&](int operand) {
      const ElementwiseOperand& o = p.operands[static_cast<std::size_t>(operand)];
      const std::int64_t at[5] = {n, (d + o.offset[0]) / o.ratio[0], (h + o.offset[1]) / o.ratio[1],
                                  (w + o.offset[2]) / o.ratio[2], c};
      std::int64_t element = 0;
      for (int axis = 0; axis < 5; ++axis) element += at[axis] * o.strides[axis];
      return operands[static_cast<std::size_t>(operand)][static_cast<std::size_t>(element)];
    };
    float v = value(0), kept = 0;
    for (const ElementwiseStep& step : p.steps) {
      const float x = step.operand == ElementwiseStep::kNumber ? step.number
                      : step.operand == ElementwiseStep::kKept ? kept
                                                               : value(step.operand);
      const auto nc = static_cast<std::size_t>(n * p.channels + c);
      switch (step.op) {
        case Op::load:
          kept = v, v = x;
          break;
        case Op::add:
          v = v + x;
          break;
        case Op::subtract:
          v = v - x;
          break;
        case Op::subtract_from:
          v = x - v;
          break;
        case Op::multiply:
          v = v * x;
          break;
        case Op::affine:
          v = std::fmaf(v, coefficients[nc],
                        coefficients[static_cast<std::size_t>(p.batch * p.channels) + nc]);
          break;
        case Op::activation:
          v = step.activation == Activation::relu ? std::fmax(v, 0.0f) : v / (1 + std::exp(-v));
          break;
      }
      v = round_to(test.dtype, v);
    }
    result.push_back(v);
  }
  return result;
}

/// Empty, or what is wrong with a chain's output.
std::string run(const Case& test, std::uint64_t seed) {
  const ElementwiseProblem& p = test.problem;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  std::vector<std::vector<float>> values;
  std::vector<GuardedBuffer> buffers;
  ElementwiseArguments arguments;
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    values.emplace_back(static_cast<std::size_t>(elements_of(p, p.operands[i])));
    for (float& v : values.back()) v = round_to(test.dtype, normal(random));
    const auto bytes = encode(values.back(), test.dtype);
    buffers.emplace_back(bytes.size());
    buffers.back().upload(bytes.data());
    arguments.operands[i] = buffers.back().data();
  }
  std::vector<float> coefficients(static_cast<std::size_t>(2 * p.batch * p.channels));
  for (float& v : coefficients) v = normal(random);
  GuardedBuffer affine(coefficients.size() * sizeof(float));
  affine.upload(coefficients.data());
  for (const ElementwiseStep& step : p.steps) {
    if (step.op == Op::affine) arguments.coefficients = static_cast<const float*>(affine.data());
  }
  const std::size_t bytes = static_cast<std::size_t>(count_of(p)) * size_of(test.dtype);
  GuardedBuffer output(bytes);
  arguments.output = test.in_place ? buffers[0].data() : output.data();
  plan(p, {.dtype = test.dtype, .device = Device::cuda}).run(arguments);
  const GuardedBuffer& written = test.in_place ? buffers[0] : output;
  const std::vector<float> got = decode(written.download(), test.dtype);
  if (!written.guards_intact()) return "wrote around the output";
  const std::vector<float> want = expected(test, values, coefficients);
  const bool is_curved = !p.steps.empty() && p.steps.back().op == Op::activation &&
                         p.steps.back().activation == Activation::silu;
  const float unit = !is_curved                  ? 0.0f
                     : test.dtype == DType::bf16 ? 0x1p-7f
                     : test.dtype == DType::fp16 ? 0x1p-10f
                                                 : 0x1p-19f;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!(std::fabs(got[i] - want[i]) <= unit * std::fabs(want[i]) + unit * 1e-3f)) {
      return "element " + std::to_string(i) + ": got " + std::to_string(got[i]) + ", want " +
             std::to_string(want[i]);
    }
  }
  return "";
}

ElementwiseStep step(Op op, int operand) {
  return {.op = op, .operand = operand};
}
ElementwiseStep activation(Activation kind) {
  return {.op = Op::activation, .activation = kind};
}

TEST_F(Elementwise, BlendOfTwoTensors) {
  // a·x + (1 - a)·y, a of each frame.
  Case test{.problem = {.batch = 2, .depth = 3, .height = 5, .width = 7, .channels = 40}};
  const auto dense = ElementwiseOperand::dense(3, 5, 7, 40);
  test.problem.operands = {dense, dense, {{3, 1, 0, 0, 0}}, {{3, 1, 0, 0, 0}}};
  test.problem.steps = {step(Op::multiply, 2), step(Op::load, 1), step(Op::multiply, 3),
                        step(Op::add, ElementwiseStep::kKept)};
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    test.dtype = dtype;
    EXPECT_EQ(run(test, 1), "");
  }
}

TEST_F(Elementwise, NormModulatedByFewerPixels) {
  // What a spatial norm does: norm(x)·y + b, then SiLU, y and b of a quarter of the rows and
  // columns; the first frame alone, later ones in pairs.
  const std::int64_t c = 48;
  Case test{.problem = {.batch = 2, .depth = 5, .height = 8, .width = 12, .channels = c}};
  const auto low = ElementwiseOperand{
      .strides = {3 * 2 * 3 * c, 2 * 3 * c, 3 * c, c, 1}, .ratio = {2, 4, 4}, .offset = {1, 0, 0}};
  test.problem.operands = {ElementwiseOperand::dense(5, 8, 12, c), low, low};
  test.problem.steps = {step(Op::affine, 0), step(Op::multiply, 1), step(Op::add, 2),
                        activation(Activation::silu)};
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    test.dtype = dtype;
    EXPECT_EQ(run(test, 2), "");
    test.in_place = !test.in_place;
  }
}

TEST_F(Elementwise, RandomChains) {
  std::mt19937 random(7);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int round = 0; round < 120; ++round) {
    Case test;
    ElementwiseProblem& p = test.problem;
    const int channels[] = {1, 3, 8, 20, 64};
    p.batch = draw(1, 2), p.depth = draw(1, 3), p.height = draw(1, 6), p.width = draw(1, 9);
    p.channels = channels[draw(0, 4)];
    test.dtype = static_cast<DType>(draw(0, 2));
    const int operands = draw(1, 4);
    for (int i = 0; i < operands; ++i) {
      auto operand = ElementwiseOperand::dense(p.depth, p.height, p.width, p.channels);
      const int kind = draw(0, 4);
      if (kind >= 1) {
        for (int axis = 0; axis < 4; ++axis) {
          if (draw(0, 1) == 0) operand.strides[axis] = 0;
        }
      }
      if (kind == 2) operand.strides[4] = 0;
      if (kind >= 3) {
        for (int axis = 0; axis < 3; ++axis) {
          operand.ratio[axis] = draw(1, 4);
          operand.offset[axis] = draw(0, static_cast<int>(operand.ratio[axis]) - 1);
        }
      }
      p.operands.push_back(operand);
    }
    bool keeps = false;
    for (int i = draw(0, 8); i > 0; --i) {
      const auto op = static_cast<Op>(draw(0, 6));
      ElementwiseStep next =
          step(op, draw(keeps ? ElementwiseStep::kKept : ElementwiseStep::kNumber, operands - 1));
      next.number = 0.5f;
      next.activation = Activation::relu;
      keeps = keeps || op == Op::load;
      p.steps.push_back(next);
    }
    if (draw(0, 1) == 0) p.steps.push_back(activation(Activation::silu));
    EXPECT_EQ(run(test, static_cast<std::uint64_t>(round)), "") << p.to_string();
  }
}

TEST_F(Elementwise, WhatOverlapsOrIsMissingIsRefused) {
  ElementwiseProblem problem{.height = 4, .width = 4, .channels = 16};
  problem.operands = {ElementwiseOperand::dense(1, 4, 4, 16), {{0, 0, 0, 0, 1}}};
  problem.steps = {step(Op::add, 1)};
  const ElementwisePlan made = plan(problem, {.device = Device::cuda});
  const GuardedBuffer memory(4096);
  auto* const bytes = static_cast<unsigned char*>(memory.data());
  const auto refusal = [&](const ElementwiseArguments& arguments) -> std::string {
    try {
      made.run(arguments);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal({.output = bytes, .operands = {bytes + 16, bytes + 1024}}).find("overlaps"),
            std::string::npos);
  EXPECT_NE(refusal({.output = bytes, .operands = {bytes, bytes + 16}}).find("operands[1]"),
            std::string::npos);
  EXPECT_NE(refusal({.output = bytes, .operands = {bytes, nullptr}}).find("operands[1] is null"),
            std::string::npos);
  EXPECT_NE(refusal({.output = bytes, .operands = {bytes + 8, bytes + 1024}}).find("not aligned"),
            std::string::npos);
  EXPECT_EQ(refusal({.output = bytes, .operands = {bytes, bytes + 1024}}), "");
}

}  // namespace
}  // namespace convoy::test
