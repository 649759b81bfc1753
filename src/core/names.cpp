// SPDX-License-Identifier: Apache-2.0
// Names of the enumerations, and the version of the library.
#include "convoy/epilogue.hpp"
#include "convoy/error.hpp"
#include "convoy/plan.hpp"
#include "convoy/prologue.hpp"
#include "convoy/shuffle.hpp"
#include "convoy/types.hpp"
#include "convoy/version.hpp"
#include "convoy_git_hash.hpp"
#include "core/text.hpp"

#define CONVOY_TEXT_OF(x) #x
#define CONVOY_TEXT(x) CONVOY_TEXT_OF(x)

namespace convoy {
namespace {

/// `values`: null where only the kind is known.
std::string steps(const EpilogueKind& kind, const Epilogue* values) {
  std::string out;
  const auto add = [&](const std::string& step) { out += (out.empty() ? "" : "+") + step; };
  const auto add_residual = [&](const char* name) {
    const bool plain = values == nullptr || values->beta == 1.0f;
    add(plain ? name : text(name, "(", values->beta, ")"));
  };
  const bool before = kind.order == ResidualOrder::before_activation;
  if (values != nullptr && values->scale != 1.0f) add(text("scale(", values->scale, ")"));
  if (kind.bias) add(text("bias_", to_string(kind.bias_dtype)));
  if (kind.residual && before) add_residual("residual_before_activation");
  if (kind.activation != Activation::none) {
    std::string name = to_string(kind.activation);
    if (values != nullptr && kind.activation == Activation::leaky_relu) {
      name += text("(", parameter_a_of(kind.activation, values->parameter_a), ")");
    } else if (values != nullptr && kind.activation == Activation::clamp) {
      name += text("(", parameter_a_of(kind.activation, values->parameter_a), ",",
                   parameter_b_of(values->parameter_b), ")");
    }
    add(name);
  }
  if (kind.residual && !before) add_residual("residual");
  if (kind.rounding == EpilogueRounding::each_step) add("each_step");
  return out.empty() ? "none" : out;
}

}  // namespace

const char* to_string(Status status) noexcept {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::invalid_argument:
      return "invalid argument";
    case Status::unsupported:
      return "unsupported";
    case Status::out_of_memory:
      return "out of memory";
    case Status::launch_failure:
      return "launch failure";
    case Status::io_error:
      return "i/o error";
    case Status::internal:
      return "internal error";
  }
  return "unknown status";
}

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
    case DType::fp32:
      return "fp32";
  }
  return "unknown dtype";
}

const char* to_string(Layout layout) noexcept {
  switch (layout) {
    case Layout::nhwc:
      return "NHWC";
    case Layout::ndhwc:
      return "NDHWC";
  }
  return "unknown layout";
}

const char* to_string(FilterLayout layout) noexcept {
  switch (layout) {
    case FilterLayout::krsc:
      return "KRSC";
    case FilterLayout::kcrs:
      return "KCRS";
    case FilterLayout::rscf:
      return "RSCF";
    case FilterLayout::ktrsc:
      return "KTRSC";
    case FilterLayout::kctrs:
      return "KCTRS";
    case FilterLayout::trscf:
      return "TRSCF";
  }
  return "unknown filter layout";
}

const char* to_string(PadMode mode) noexcept {
  switch (mode) {
    case PadMode::zero:
      return "zero";
    case PadMode::replicate:
      return "replicate";
    case PadMode::reflect:
      return "reflect";
  }
  return "unknown pad mode";
}

const char* to_string(UpsampleFolding folding) noexcept {
  switch (folding) {
    case UpsampleFolding::exact:
      return "exact";
    case UpsampleFolding::fast:
      return "fast";
  }
  return "?";
}

const char* to_string(Device device) noexcept {
  switch (device) {
    case Device::automatic:
      return "auto";
    case Device::cpu:
      return "cpu";
    case Device::cuda:
      return "cuda";
  }
  return "unknown device";
}

const char* to_string(Activation activation) noexcept {
  switch (activation) {
    case Activation::none:
      return "none";
    case Activation::relu:
      return "relu";
    case Activation::leaky_relu:
      return "leaky_relu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::silu:
      return "silu";
    case Activation::sigmoid:
      return "sigmoid";
    case Activation::tanh:
      return "tanh";
    case Activation::hardswish:
      return "hardswish";
    case Activation::clamp:
      return "clamp";
  }
  return "unknown activation";
}

const char* to_string(ResidualOrder order) noexcept {
  switch (order) {
    case ResidualOrder::after_activation:
      return "after_activation";
    case ResidualOrder::before_activation:
      return "before_activation";
  }
  return "unknown residual order";
}

const char* to_string(EpilogueRounding rounding) noexcept {
  switch (rounding) {
    case EpilogueRounding::once:
      return "once";
    case EpilogueRounding::each_step:
      return "each_step";
  }
  return "unknown rounding";
}

std::string to_string(const EpilogueKind& kind) {
  return steps(kind, nullptr);
}

std::string to_string(const Epilogue& epilogue) {
  return steps(epilogue.kind(), &epilogue);
}

const char* to_string(PrologueNorm norm) noexcept {
  switch (norm) {
    case PrologueNorm::none:
      return "none";
    case PrologueNorm::scale_shift:
      return "scale_shift";
    case PrologueNorm::rms:
      return "rms";
  }
  return "unknown prologue norm";
}

std::string to_string(const PrologueKind& kind) {
  if (!kind.any()) return "none";
  const std::string norm = to_string(kind.norm);
  return kind.activation == Activation::none ? norm : norm + "+" + to_string(kind.activation);
}

const char* to_string(ShuffleOrder order) noexcept {
  switch (order) {
    case ShuffleOrder::channels_outer:
      return "channels_outer";
    case ShuffleOrder::channels_inner:
      return "channels_inner";
  }
  return "unknown shuffle order";
}

const char* to_string(ShuffleResidual residual) noexcept {
  switch (residual) {
    case ShuffleResidual::output:
      return "output";
    case ShuffleResidual::interleaved:
      return "interleaved";
    case ShuffleResidual::tiled:
      return "tiled";
  }
  return "unknown shuffle residual";
}

std::string to_string(const OutputShuffle& shuffle) {
  if (!shuffle.any()) return "none";
  const auto& f = shuffle.factors;
  std::string out = text("shuffle(", f[0], "x", f[1], "x", f[2]);
  if (shuffle.order == ShuffleOrder::channels_inner) out += ",inner";
  if (shuffle.dropped_frames > 0) out += text(",drop", shuffle.dropped_frames);
  if (shuffle.residual != ShuffleResidual::output) {
    out += text(",", to_string(shuffle.residual), shuffle.residual_channels);
  }
  return out + ")";
}

const char* version() noexcept {
  return CONVOY_TEXT(CONVOY_VERSION_MAJOR) "." CONVOY_TEXT(CONVOY_VERSION_MINOR) "." CONVOY_TEXT(
      CONVOY_VERSION_PATCH) " (git " CONVOY_GIT_HASH ")";
}

}  // namespace convoy
