// SPDX-License-Identifier: Apache-2.0
//
// The output of a launch as kernels carry it that store from registers or staging memory.
#pragma once

#include <cstdint>

#include "core/candidate.hpp"
#include "kernels/common/epilogue_params.hpp"

namespace convoy {

/// Output [pixels, channels] with its epilogue.
struct ConvOutput {
  void* data;
  const void* residual;
  std::int64_t channels;  ///< K, of all groups.
  DType dtype;
  bool vectors;  ///< Channels come in whole, aligned groups of 8.
  bool plain;    ///< The epilogue changes nothing.
  EpilogueParams epilogue;
};

/// Whether the epilogue is nothing but a bias, which is not rounded apart from the sum.
inline bool at_most_a_bias(const EpilogueParams& e) {
  return e.scale == 1.0f && !e.has_residual && e.activation == Activation::none &&
         !(e.round_each_step && e.bias != nullptr);
}

/// `channels_of_a_group` as well as K decides whether 8 channels at a time can be stored.
inline ConvOutput conv_output(const RunPointers& pointers, DType dtype, std::int64_t channels,
                              std::int64_t channels_of_a_group) {
  const EpilogueParams epilogue(pointers.epilogue);
  return {.data = pointers.output,
          .residual = pointers.epilogue.residual,
          .channels = channels,
          .dtype = dtype,
          .vectors = channels_of_a_group % 8 == 0,
          .plain = at_most_a_bias(epilogue) && epilogue.bias == nullptr,
          .epilogue = epilogue};
}

}  // namespace convoy
