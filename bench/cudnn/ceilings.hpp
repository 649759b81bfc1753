// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace convoy::bench {

/// What this card does now: the best of cuBLAS on an 8192³ bf16 product of random matrices (fp32
/// sums), and a device-to-device copy of 2 GiB, bytes read plus bytes written.
struct Ceilings {
  double gemm_tflops = 0;
  double copy_gbs = 0;
};
Ceilings measure_ceilings();

}  // namespace convoy::bench
