// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convoy/epilogue.hpp"
#include "convoy/geometry.hpp"
#include "convoy/prologue.hpp"
#include "convoy/shuffle.hpp"

namespace convoy::reference {

// What a convolution must give, computed apart from every backend: for the tests, and for
// `convoy --verify`. Operands are fp32 host arrays that hold values of the problem's own type.
// The fp64 loops are the reference; oneDNN stands in for them on large problems, and the unit tests
// hold it against them.
//
// Zeros: a sum starts at +0, so that a sum of zeros is +0 whatever their signs; after it every step
// follows IEEE 754 (-2 · +0 = -0, -0 + +0 = +0), and relu gives +0 for either zero. Kernels must
// give the same signs.
//
// Infinities and NaNs follow IEEE 754 over the taps that lie inside the input. A tap in zero
// padding may or may not be multiplied with its zero, which makes a NaN where the filter is not
// finite.

/// Dense, channels-last; the filter is KTRSC. `cache` is null without cached frames.
struct Operands {
  const float* activation = nullptr;
  const float* cache = nullptr;
  const float* filter = nullptr;
};

/// Repacks a host filter of `layout` into dense KTRSC of the same type.
void to_ktrsc(void* ktrsc, const void* filter, DType dtype, FilterLayout layout,
              const ConvGeometry& geometry);

/// The activation as a prologue leaves it: in fp64, rounded once to `dtype`. `error`, where given,
/// becomes ExpectOptions::activation_error: what a kernel's fp32 may be off in any element, however
/// small, since x·scale and shift cancel, and 1 + erf or tanh of a negative value.
std::vector<float> apply_prologue(const ConvGeometry& geometry, const float* activation,
                                  const Prologue& prologue, DType dtype, double* error = nullptr);

/// ExpectOptions::activation_rounding of a prologue: values between two elements of the type may be
/// rounded to either, since their exponentials are approximate. `tf32`: to TF32 after that.
double activation_rounding(const PrologueKind& prologue, DType dtype, bool tf32);

/// The sum, in fp64, by the loops of the definition, for every `step`-th element of
/// [N, Z, P, Q, K].
std::vector<double> convolve_fp64(const ConvGeometry& geometry, const Operands& operands,
                                  std::int64_t step = 1);

/// The same by oneDNN in fp32, for problems too large for the loops. Throws Error{unsupported} in a
/// build without oneDNN.
std::vector<float> convolve_onednn(const ConvGeometry& geometry, const Operands& operands);

/// Values of an epilogue in fp32: `bias` [K] and `residual` [N, Z, P, Q, K] stand for the pointers
/// of Epilogue, and are null for none.
struct EpilogueOperands {
  Epilogue epilogue;
  const float* bias = nullptr;
  const float* residual = nullptr;
};

/// x rounded once to `dtype`: nearest, ties to even.
double round_fp64(DType dtype, double x);

/// x rounded once to TF32 (10 bits of mantissa): nearest, ties to even, as kernels that multiply
/// fp32 tensors by it round activation and filter.
float round_to_tf32(float x);

/// `a` and `b` are Epilogue's parameters, NaN for the defaults.
double activate_fp64(double x, Activation activation, float a, float b);

/// One output element from its sum. With EpilogueRounding::once the last rounding is left out.
double finish_fp64(double sum, std::int64_t element, std::int64_t channels,
                   const EpilogueOperands& operands, DType output_dtype);

/// What an element may be besides its expected value.
enum class Unusual : unsigned char {
  none,
  /// NaN: the filter has an infinity or a NaN under a tap that lies in zero padding. A kernel may
  /// multiply it by the padding's zero, or leave the tap out.
  nan,
  /// Any infinity or NaN: a folded upsampling adds taps before it multiplies.
  not_finite,
};

/// Every `step`-th output element, and how far from it a correct result may lie: the error of fp32
/// accumulation in any order, of the epilogue in fp32, and of rounding to the output type.
struct Expectation {
  std::vector<double> value;
  std::vector<double> bound;
  /// What else is right where numbers are not finite; empty where nothing is.
  std::vector<Unusual> unusual{};
  std::int64_t step = 1;
};

struct ExpectOptions {
  /// By convolve_fp64 up to this many FLOP, by convolve_onednn (with twice the bound) above.
  double most_fp64_flops = 4e9;
  /// Relative error of the filter that the kernel may read in place of the given one (a folded
  /// upsampling sums taps and rounds the sums to the filter's type).
  double filter_rounding = 0.0;
  /// Likewise of the activation, which a prologue has rounded (`activation_rounding`).
  double activation_rounding = 0.0;
  /// Absolute error of each element of the activation besides (`apply_prologue`).
  double activation_error = 0.0;
  /// Elements 0, step, 2·step and so on; with a step above 1 always by convolve_fp64.
  std::int64_t step = 1;
};

/// ExpectOptions::filter_rounding of a filter packed in this format (`PackedFilter::format`): what
/// UpsampleFolding allows where the upsampling is folded into it, else 0.
double filter_rounding(const std::string& format, DType dtype);

Expectation expect(const ConvGeometry& geometry, const Operands& operands,
                   const EpilogueOperands& epilogue, DType output_dtype,
                   const ExpectOptions& options = {});

/// Where each element of a shuffled output is in [N, Z, P, Q, K].
std::vector<std::int64_t> shuffle_order(const ConvGeometry& geometry, const OutputShuffle& shuffle);

/// The residual of each filter, [N, Z, P, Q, K], of a shuffled problem's residual; zeros in frames
/// that are dropped.
std::vector<float> residual_of_filters(const ConvGeometry& geometry, const OutputShuffle& shuffle,
                                       const float* residual);

/// The expectation of every element of [N, Z, P, Q, K] in the order of the shuffled output.
Expectation shuffled(const ConvGeometry& geometry, const OutputShuffle& shuffle,
                     const Expectation& expectation);

/// Relative half step of a type: rounding x errs by at most this times |x|, above the subnormals.
double half_ulp(DType dtype);

struct Comparison {
  bool pass = true;
  std::int64_t mismatches = 0;
  std::int64_t worst = 0;  ///< Element with the largest error in units of its bound.
  double worst_got = 0;
  double worst_expected = 0;
  double worst_bound = 0;
  double max_error = 0;       ///< Largest absolute error.
  double relative_error = 0;  ///< ‖got - expected‖ / ‖expected‖, Euclidean.
};

/// Compare the elements of `dtype` at `got` with the expectation. A NaN or an infinity agrees only
/// with itself.
Comparison compare(const void* got, DType dtype, const Expectation& expectation);

/// The same for data that determines every bit: each element is the expected value rounded once to
/// `dtype`, the sign of a zero included; NaNs agree whatever their payload. Empty where all are,
/// else the first that is not.
std::string compare_exactly(const void* got, DType dtype, const Expectation& expectation);

}  // namespace convoy::reference
