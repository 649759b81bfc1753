// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "convoy/epilogue.hpp"
#include "convoy/export.h"

namespace convoy {

/// What the activation is multiplied by before it is convolved.
enum class PrologueNorm : int {
  none = 0,         ///< Nothing: the activation is convolved as it is.
  scale_shift = 1,  ///< x·scale[n, c] + shift[n, c]: GroupNorm with its statistics multiplied in.
  rms = 2,          ///< x·inverse_rms[pixel]·scale[c]: RMSNorm.
};
/// The enumerator's name, "scale_shift".
CONVOY_API const char* to_string(PrologueNorm norm) noexcept;

/// The part of a Prologue that chooses the kernel; pointers may change from run to run.
struct PrologueKind {
  PrologueNorm norm = PrologueNorm::none;    ///< What the activation is multiplied by.
  Activation activation = Activation::none;  ///< none, relu, gelu, gelu_tanh or silu.

  /// There is something to do.
  bool any() const { return norm != PrologueNorm::none; }
  /// All fields are equal.
  friend bool operator==(const PrologueKind&, const PrologueKind&) = default;
};

/// The steps in their order: "scale_shift+silu"; "none" where nothing is done.
CONVOY_API std::string to_string(const PrologueKind& kind);

/// What happens to the activation before it is convolved: a norm whose statistics are known, and a
/// pointwise function. A NormPlan with NormResult::coefficients makes what it reads.
///
/// Values are computed in fp32 and rounded once to the type of the activation, as a norm of its own
/// would store them. Padding comes after it: zeros stay zero, replicated and reflected elements are
/// those that were normalised. The causal cache holds what is convolved: `RunArguments::cache` is
/// not normalised again, `next_cache` receives normalised frames.
struct Prologue {
  PrologueNorm norm = PrologueNorm::none;    ///< What the activation is multiplied by.
  Activation activation = Activation::none;  ///< none, relu, gelu, gelu_tanh or silu.
  const float* scale = nullptr;              ///< scale_shift: [N, C]; rms: [C].
  /// scale_shift: [N, C]. With C no multiple of 4 scale and shift may lie at any fp32: they are the
  /// halves of a norm's coefficients.
  const float* shift = nullptr;
  const float* inverse_rms = nullptr;  ///< rms: [N, H, W] or [N, D, H, W].

  /// What PlanOptions::prologue needs of it.
  PrologueKind kind() const { return {.norm = norm, .activation = activation}; }
};

}  // namespace convoy
