// SPDX-License-Identifier: Apache-2.0
// The operators of PyTorch, torch.ops.convoy. Their fake kernels and gradients are in Python
// (python/convoy/torch/).
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "plans.hpp"

namespace convoy_torch {
namespace {

using Integers = std::vector<std::int64_t>;
using MaybeTensor = std::optional<Tensor>;

/// An operator that is written in Python, of a tensor and a number.
std::int64_t ask_python(const char* name, const Tensor& tensor, std::int64_t number) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(tensor),
                                    torch::stable::detail::from(number)};
  if (torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION) != 0) {
    fail(CONVOY_INTERNAL, std::string(name) + " failed");
  }
  return torch::stable::detail::to<std::int64_t>(stack[0]);
}

/// As F.conv2d: PyTorch's own setting says whether fp32 may be multiplied as TF32.
bool allows_tf32(const Tensor& x) {
  const Facts facts(x);
  static const std::int32_t fp32 = aoti_torch_dtype_float32();
  return facts.on_gpu() && facts.dtype == fp32 && ask_python("convoy::_allows_tf32", x, 0) != 0;
}

Tensor convolve(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias,
                const MaybeTensor& residual, const MaybeTensor& cache, const ConvOptions& options,
                double beta, Tensor* following = nullptr) {
  ConvInputs inputs{.x = x, .weight = weight, .bias = bias, .residual = residual, .cache = cache};
  const NumberedConv conv = conv_runner(inputs, options);
  if (conv.number != nullptr) {
    // NOTE: Python sees when a weight goes or changes; this interface does not.
    const std::int64_t packed = ask_python("convoy::_packed_filter", *weight, conv.number->value());
    inputs.packed = reinterpret_cast<convoy_packed_filter_t>(packed);
  }
  return conv.runner->run(inputs, static_cast<float>(beta), following);
}

Tensor conv2d(const Tensor x, const Tensor weight, const MaybeTensor bias,
              const MaybeTensor residual, const Integers stride, const Integers padding,
              const Integers dilation, std::int64_t groups, const std::string activation,
              double beta, std::int64_t upsample, bool packed, const std::string upsample_folding,
              const std::string padding_mode) {
  const ConvOptions options{stride,
                            padding,
                            dilation,
                            groups,
                            activation,
                            upsample,
                            packed || upsample != 1,  // Folded filters exist packed only.
                            upsample_folding,
                            padding_mode,
                            allows_tf32(x)};
  return convolve(x, weight, bias, residual, std::nullopt, options, beta);
}

Tensor convolve_3d(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                   const MaybeTensor& residual, const Integers& stride, const Integers& padding,
                   const Integers& dilation, std::int64_t groups, const std::string& activation,
                   double beta, const MaybeTensor& cache, bool packed,
                   const std::string& padding_mode, Tensor* following) {
  const std::string folding = "exact";
  const ConvOptions options{stride, padding, dilation, groups,       activation,
                            1,      packed,  folding,  padding_mode, allows_tf32(x)};
  return convolve(x, weight, bias, residual, cache, options, beta, following);
}

Tensor conv3d(const Tensor x, const Tensor weight, const MaybeTensor bias,
              const MaybeTensor residual, const Integers stride, const Integers padding,
              const Integers dilation, std::int64_t groups, const std::string activation,
              double beta, const MaybeTensor cache, bool packed, const std::string padding_mode) {
  return convolve_3d(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                     cache, packed, padding_mode, nullptr);
}

std::tuple<Tensor, Tensor> conv3d_next_cache(const Tensor x, const Tensor weight,
                                             const MaybeTensor bias, const MaybeTensor residual,
                                             const Integers stride, const Integers padding,
                                             const Integers dilation, std::int64_t groups,
                                             const std::string activation, double beta,
                                             const MaybeTensor cache, bool packed,
                                             const std::string padding_mode) {
  Tensor following;
  Tensor output = convolve_3d(x, weight, bias, residual, stride, padding, dilation, groups,
                              activation, beta, cache, packed, padding_mode, &following);
  return {output, following};
}

Tensor group_norm(const Tensor x, std::int64_t groups, const MaybeTensor weight,
                  const MaybeTensor bias, double eps, const std::string activation) {
  return norm_runner(x, groups, weight, bias, eps, "added", activation)->run(x, weight, bias);
}

Tensor rms_norm(const Tensor x, const MaybeTensor weight, const MaybeTensor bias, double eps,
                const std::string rule, const std::string activation) {
  return norm_runner(x, std::nullopt, weight, bias, eps, rule, activation)->run(x, weight, bias);
}

/// A convolution that Python has made a call of (convoy_torch_conv). packed: the address of one of
/// the library's packed filters, or 0 and `weight`.
Tensor run_conv(std::int64_t number, std::int64_t packed, const Tensor x, const MaybeTensor weight,
                const MaybeTensor bias, const MaybeTensor residual, const MaybeTensor cache,
                const MaybeTensor coefficients) {
  const auto runner = numbered_convs().find(number);
  if (runner == nullptr) {
    fail(CONVOY_INVALID_ARGUMENT, "no call has the number " + std::to_string(number));
  }
  return runner->run({.x = x,
                      .weight = weight,
                      .packed = reinterpret_cast<convoy_packed_filter_t>(packed),
                      .bias = bias,
                      .residual = residual,
                      .cache = cache,
                      .coefficients = coefficients ? &*coefficients : nullptr},
                     std::nanf(""));
}

Tensor run_norm(std::int64_t number, const Tensor x, const MaybeTensor weight,
                const MaybeTensor bias) {
  const auto runner = numbered_norms().find(number);
  if (runner == nullptr) {
    fail(CONVOY_INVALID_ARGUMENT, "no call has the number " + std::to_string(number));
  }
  return runner->run(x, weight, bias);
}

// NOTE: exceptions stay on this side of the C functions; their text is the library's or ours.
template <class Step>
std::int32_t guarded(const char** text, const Step& step) {
  static thread_local std::string kept;
  try {
    step();
    return CONVOY_OK;
  } catch (const std::exception& error) {
    kept = error.what();
    *text = kept.c_str();
    return CONVOY_INTERNAL;
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(convoy, library) {
  library.def(
      "conv2d(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, "
      "int[] padding, int[] dilation, int groups, str activation, float beta, int upsample=1, "
      "bool packed=False, str upsample_folding=\"exact\", str padding_mode=\"zeros\") -> Tensor");
  library.def(
      "conv3d(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, "
      "int[] padding, int[] dilation, int groups, str activation, float beta, "
      "Tensor? cache=None, bool packed=False, str padding_mode=\"zeros\") -> Tensor");
  library.def(
      "conv3d_next_cache(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, "
      "int[] padding, int[] dilation, int groups, str activation, float beta, "
      "Tensor? cache=None, bool packed=False, str padding_mode=\"zeros\") -> (Tensor, Tensor)");
  library.def(
      "group_norm(Tensor x, int groups, Tensor? weight, Tensor? bias, float eps, "
      "str activation) -> Tensor");
  library.def(
      "rms_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, str rule, str activation) "
      "-> Tensor");
  library.def(
      "_run_conv(int number, int packed, Tensor x, Tensor? weight, Tensor? bias, "
      "Tensor? residual, Tensor? cache, Tensor? coefficients=None) -> Tensor");
  library.def("_run_norm(int number, Tensor x, Tensor? weight, Tensor? bias) -> Tensor");
}

// The same on either device: the library runs where its plan is.
#define CONVOY_TORCH_KERNELS(library)                               \
  library.impl("conv2d", TORCH_BOX(&conv2d));                       \
  library.impl("conv3d", TORCH_BOX(&conv3d));                       \
  library.impl("conv3d_next_cache", TORCH_BOX(&conv3d_next_cache)); \
  library.impl("group_norm", TORCH_BOX(&group_norm));               \
  library.impl("rms_norm", TORCH_BOX(&rms_norm));                   \
  library.impl("_run_conv", TORCH_BOX(&run_conv));                  \
  library.impl("_run_norm", TORCH_BOX(&run_norm))

STABLE_TORCH_LIBRARY_IMPL(convoy, CPU, library) {
  CONVOY_TORCH_KERNELS(library);
}
STABLE_TORCH_LIBRARY_IMPL(convoy, CUDA, library) {
  CONVOY_TORCH_KERNELS(library);
}

}  // namespace convoy_torch

// What Python calls by ctypes (python/convoy/_operators.py). A function returns 0, or leaves a
// text.

#define CONVOY_TORCH_API extern "C" __attribute__((visibility("default")))

using convoy_torch::guarded;

/// A call of a plan of Python's, which outlives it. prologue: null for none.
CONVOY_TORCH_API std::int32_t convoy_torch_conv(convoy_plan_t plan,
                                                const convoy_epilogue_t* epilogue,
                                                const convoy_prologue_t* prologue,
                                                std::int64_t filter_elements, std::int64_t* number,
                                                const char** text) {
  return guarded(text, [&] {
    *number = convoy_torch::numbered_convs().add(std::make_shared<const convoy_torch::ConvRunner>(
        plan, *epilogue, prologue, filter_elements));
  });
}

CONVOY_TORCH_API void convoy_torch_forget_conv(std::int64_t number) {
  convoy_torch::numbered_convs().remove(number);
}

/// images: of a plan whose result is coefficients; else 0.
CONVOY_TORCH_API std::int32_t convoy_torch_norm(convoy_norm_plan_t plan,
                                                const convoy_norm_arguments_t* arguments,
                                                std::int64_t elements, std::int64_t channels,
                                                std::int32_t dtype, std::int32_t parameter_dtype,
                                                std::int64_t images, std::int64_t* number,
                                                const char** text) {
  return guarded(text, [&] {
    *number = convoy_torch::numbered_norms().add(std::make_shared<const convoy_torch::NormRunner>(
        plan, *arguments,
        convoy_torch::NormTensors{elements, channels, dtype, parameter_dtype, images}));
  });
}

CONVOY_TORCH_API void convoy_torch_forget_norm(std::int64_t number) {
  convoy_torch::numbered_norms().remove(number);
}

/// The plan of a call, to pack a filter for; null where there is none of this number.
CONVOY_TORCH_API convoy_plan_t convoy_torch_plan(std::int64_t number) {
  const auto runner = convoy_torch::numbered_convs().find(number);
  return runner == nullptr ? nullptr : runner->plan();
}

CONVOY_TORCH_API void convoy_torch_forget_plans() {
  convoy_torch::forget_plans();
}

/// The version of the library that this one was built with.
CONVOY_TORCH_API std::int32_t convoy_torch_version() {
  return CONVOY_VERSION;
}
