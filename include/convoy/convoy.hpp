// SPDX-License-Identifier: Apache-2.0
/// Convoy: forward convolutions for NVIDIA's Hopper and Blackwell GPUs, and for the CPU.
///
/// ```cpp
/// convoy::Conv2dProblemShape problem{.batch = 1, .in_height = 256, .in_width = 256,
///                                    .in_channels = 512, .out_channels = 512,
///                                    .filter_h = 3, .filter_w = 3, .pad_h = 1, .pad_w = 1};
/// convoy::Epilogue epilogue{.bias = bias, .activation = convoy::Activation::silu,
///                           .residual = source, .beta = 1.0f};
/// auto plan = convoy::plan(problem, {.dtype = convoy::DType::bf16, .epilogue = epilogue.kind()});
/// plan.run({.output = d, .activation = a, .filter = w, .epilogue = epilogue}, stream);
/// ```
#pragma once

#include "convoy/elementwise.hpp"
#include "convoy/epilogue.hpp"
#include "convoy/error.hpp"
#include "convoy/im2col.hpp"
#include "convoy/info.hpp"
#include "convoy/norm.hpp"
#include "convoy/plan.hpp"
#include "convoy/problem.hpp"
#include "convoy/prologue.hpp"
#include "convoy/shard.hpp"
#include "convoy/shuffle.hpp"
#include "convoy/tensor.hpp"
#include "convoy/types.hpp"
#include "convoy/version.hpp"
