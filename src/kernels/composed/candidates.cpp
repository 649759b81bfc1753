// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/candidates.hpp"

#include "kernels/composed/folded_stride.hpp"
#include "kernels/composed/joined_groups.hpp"
#include "kernels/composed/padded_channels.hpp"
#include "kernels/composed/padded_copy.hpp"
#include "kernels/composed/split_copy.hpp"

namespace convoy::composed {

void register_kernels(CandidateList& list, const InnerKernels& inner) {
  list.push_back(make_qslice_candidate(inner));
  list.push_back(make_padded_channels_candidate(inner));
  list.push_back(make_folded_width_candidate(inner));
  list.push_back(make_folded_stride_candidate(inner));
  list.push_back(make_joined_groups_candidate(inner));
  list.push_back(make_split_copy_candidate(inner));
  list.push_back(make_im2col_matmul_candidate(inner, 2));
  list.push_back(make_im2col_matmul_candidate(inner, 3));
}

void register_copies(CandidateList& list, const InnerKernels& inner) {
  list.push_back(make_padded_copy_candidate(inner));
  list.push_back(make_normalised_copy_candidate(inner));
}

}  // namespace convoy::composed
