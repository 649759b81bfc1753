// SPDX-License-Identifier: Apache-2.0
//
// What the models of kernels leave out. They say what bounds a kernel, within some 5 % of where it
// is fast; neighbouring tiles differ by less. A small network, trained on measured times of layers
// of wild.py and random_layers.py (bench/choice/train_correction.py), corrects them by what they
// say and by what the layer and the kernel are like.
#pragma once

#include <array>

#include "convoy/epilogue.hpp"
#include "core/candidate.hpp"
#include "core/geometry.hpp"

namespace convoy {

/// Whose time is corrected.
enum class CorrectedKernel : int {
  fprop,
  pointwise,
  pointwise_stream,
  stem,
  mma_fprop,
  few_filters,
  sliced_k,
  narrow_input,
  few_channels,
  pointwise_narrow
};

/// A kernel on a layer, as its model sees it. What a kernel's model does not know stays as it is
/// here.
struct ModelledTime {
  double us = 0.0;                           ///< The model's time,
  double compute_us = 0.0, memory_us = 0.0;  ///< and what it is made of.
  double rounds = 1.0;       ///< Of tiles that a multiprocessor takes, one after the other.
  double filled = 1.0;       ///< Share of those rounds' places that have a tile.
  double busy = 1.0;         ///< Share of the multiprocessors that have one.
  double blocks = 1.0;       ///< Of K, in a tile.
  double main_cycles = 1.0;  ///< Of a tile: of its blocks, of its epilogue,
  double epilogue_cycles = 1.0;
  double mma_cycles = 1.0;  ///< and of one block: multiplied, loaded.
  double load_cycles = 1.0;
  double l2_bytes = 1.0;                ///< That all tiles load.
  double steps = 4.0;                   ///< MMA steps of a block.
  double block_m = 1.0, block_n = 1.0;  ///< Of a tile: pixels, filters.
  double stages = 1.0, consumers = 1.0;
  double cluster_m = 1.0, cluster_n = 1.0;
  double splits = 1.0;  ///< CTAs that share a tile's K loop.
  bool pingpong = false, swapped = false, halo = false, planes = false, resident = false;
  bool splits_k = false;      ///< Its schedule is one that could.
  bool direct_store = false;  ///< Outputs leave from registers.
};

/// Inputs of a network: logarithms, shares and flags. `dtype`: of input and output.
inline constexpr int kCorrectionInputs = 56;
std::array<float, kCorrectionInputs> correction_inputs(CorrectedKernel kernel,
                                                       const ModelledTime& time,
                                                       const ConvGeometry& geometry,
                                                       const EpilogueKind& epilogue, DType dtype);

/// The model's time, corrected: between 0.6 and 1.65 times as long. There are two networks: of
/// 16-bit elements, and of fp32 that is multiplied as TF32.
double corrected_us(CorrectedKernel kernel, const ModelledTime& time, const ConvGeometry& geometry,
                    const EpilogueKind& epilogue, DType dtype);

/// Whether a network was trained on such problems: 16-bit elements, or fp32 without groups and
/// upsampling.
bool knows_problem(const ConvGeometry& geometry, DType dtype);

/// The same where a network was trained on such requests, else the model's time as it is: on GPUs
/// of compute capability 9.0, outputs of the input's type, fp32 where TF32 is allowed; no norm. Not
/// for kernels whose fp32 operands come in parts.
double corrected_us(CorrectedKernel kernel, const ModelledTime& time, const PlanRequest& request);

/// Whether times are corrected at all, which they are from the start: the network is trained on
/// what the models say by themselves. For tools of one thread.
void correct_times(bool corrected);

}  // namespace convoy
