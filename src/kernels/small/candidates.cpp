// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/candidates.hpp"

namespace convoy::small {

void register_kernels(CandidateList& list) {
  list.push_back(make_few_filters_candidate());
  list.push_back(make_few_filters_async_candidate());
  list.push_back(make_narrow_input_candidate());
  list.push_back(make_few_channels_candidate());
  list.push_back(make_few_channels_fma_candidate());
  list.push_back(make_pointwise_candidate());
  list.push_back(make_pointwise_narrow_candidate());
  list.push_back(make_pointwise_stream_candidate());
  list.push_back(make_line_stream_candidate());
  list.push_back(make_depthwise_candidate());
  list.push_back(make_grouped_candidate());
  list.push_back(make_grouped_patch_candidate());
  add_sliced_k_candidates(list);
  list.push_back(make_general_candidate());
}

}  // namespace convoy::small
