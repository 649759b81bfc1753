// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Each row of fp32 scores, to fp32 or bf16.
void softmax_on_gpu(const float* scores, void* out, long long rows, long long columns, bool bf16);
