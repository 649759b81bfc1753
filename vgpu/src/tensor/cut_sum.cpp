// SPDX-License-Identifier: Apache-2.0
#include "tensor/cut_sum.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace vgpu::tensor {
namespace {

std::atomic<bool> g_cut{false};

/// x without what lies below 2^exponent, towards zero.
double cut_below(double x, int exponent) {
  return std::ldexp(std::trunc(std::ldexp(x, -exponent)), exponent);
}

}  // namespace

void set_cut_sums(bool cut) {
  g_cut.store(cut, std::memory_order_relaxed);
}
bool cut_sums() {
  return g_cut.load(std::memory_order_relaxed);
}

float cut_sum(float sum, const float* a, uint32_t a_step, const float* b, uint32_t b_step,
              uint32_t count) {
  constexpr int kLastBit = 23, kLeast = -149;
  // NOTE: products of 11 bits by 11 are exact as doubles, and so is the sum of addends with one
  // last bit.
  int largest = kLeast - kLastBit;
  bool finite = std::isfinite(sum);
  const auto see = [&](double x) {
    finite = finite && std::isfinite(x);
    if (x != 0 && finite) largest = std::max(largest, std::ilogb(x));
  };
  see(sum);
  for (uint32_t i = 0; i < count; ++i) see(double{a[i * a_step]} * double{b[i * b_step]});
  if (!finite) {
    for (uint32_t i = 0; i < count; ++i) sum = std::fma(a[i * a_step], b[i * b_step], sum);
    return sum;
  }
  const int last = std::max(largest - kLastBit, kLeast);
  double total = cut_below(sum, last);
  for (uint32_t i = 0; i < count; ++i) {
    total += cut_below(double{a[i * a_step]} * double{b[i * b_step]}, last);
  }
  if (total == 0) return 0.0f;
  return static_cast<float>(cut_below(total, std::max(std::ilogb(total) - kLastBit, kLeast)));
}

}  // namespace vgpu::tensor
