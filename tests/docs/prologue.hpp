// SPDX-License-Identifier: Apache-2.0
// What the pages' C++ examples take as given.
#pragma once

#include <convoy/convoy.hpp>
#include <cstdio>
#include <utility>

namespace page {

extern void *d, *a, *w, *x, *y, *workspace, *conv_workspace, *frames, *cache, *next, *filter,
    *weights;
extern void *bias, *source, *gamma, *beta, *gate, *out;
extern float *factors, *known;
extern cudaStream_t stream;
extern convoy::TensorShape shape_of_my_tensor;
extern convoy::Conv2dProblemShape problem;
extern convoy::PlanOptions options;
extern convoy::Plan plan;

}  // namespace page
