// SPDX-License-Identifier: Apache-2.0
//
// Kernels that are composed of the implicit-GEMM kernels: what the direct ones decline falls
// through to these, in this order.
#include "kernels/portable/im2col_matmul.hpp"
#include "kernels/portable/qslice.hpp"

namespace convoy {

void register_composed_kernels(CandidateList& list) {
  list.push_back(make_qslice_candidate());
  list.push_back(make_im2col_matmul_candidate(2));
  list.push_back(make_im2col_matmul_candidate(3));
}

}  // namespace convoy
