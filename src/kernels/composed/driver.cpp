// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/driver.hpp"

#include "core/checked.hpp"
#include "core/text.hpp"
#include "core/workspace.hpp"
#include "kernels/common/filter_packing.hpp"
#include "kernels/composed/transforms.hpp"

namespace convoy::composed {
namespace {

constexpr std::int64_t kElementBytes = 2;  // bf16, fp16

}  // namespace

void check_qslice_layout(FilterLayout layout) {
  if (layout != FilterLayout::ktrsc && layout != FilterLayout::trscf) {
    throw_invalid("filter layout = ", to_string(layout), "; legal: KTRSC, TRSCF (Q-slices)");
  }
}

std::size_t ktrsc_filter_bytes(const ConvGeometry& g, FilterLayout layout) {
  const bool ktrsc = layout == FilterLayout::ktrsc || layout == FilterLayout::krsc;
  return ktrsc ? 0 : workspace_part(g.filter_elements() * kElementBytes);
}

const void* make_ktrsc_filter(void* workspace, const void* filter, const ConvGeometry& g,
                              FilterLayout layout, cudaStream_t stream) {
  if (ktrsc_filter_bytes(g, layout) == 0) return filter;
  repack_filter(workspace, filter, layout, g, DType::bf16, stream);
  return workspace;
}

QsliceDriver::QsliceDriver(const ConvGeometry& g, bool sliced_filter, FilterLayout layout)
    : geometry_(g),
      layout_(layout),
      accumulator_bytes_(
          workspace_part(g.output_elements() * static_cast<std::int64_t>(sizeof(float)))),
      slices_bytes_(sliced_filter ? 0 : workspace_part(g.filter_elements() * kElementBytes)) {}

Conv2dProblemShape QsliceDriver::slice_problem() const {
  const ConvGeometry& g = geometry_;
  Conv2dProblemShape problem;
  problem.batch = g.out[0];
  problem.in_height = g.in[1];
  problem.in_width = g.in[2];
  problem.in_channels = g.in_channels;
  problem.out_channels = g.out_channels;
  problem.filter_h = g.filter[1];
  problem.filter_w = g.filter[2];
  problem.pad_h = g.pad_begin[1];
  problem.pad_w = g.pad_begin[2];
  problem.pad_h_end = g.pad_end[1];
  problem.pad_w_end = g.pad_end[2];
  return problem;
}

const void* QsliceDriver::make_slices(const RunPointers& pointers, cudaStream_t stream) const {
  if (slices_bytes_ == 0) return pointers.filter;
  char* const slices = static_cast<char*>(pointers.workspace) + accumulator_bytes_;
  if (layout_ == FilterLayout::ktrsc) {
    slice_filter(slices, pointers.filter, geometry_, stream);
    return slices;
  }
  check_qslice_layout(layout_);
  const ConvGeometry slice = geometry_of(slice_problem());
  const std::int64_t bytes = slice.filter_elements() * kElementBytes;
  for (std::int64_t t = 0; t < geometry_.filter[0]; ++t) {
    repack_filter(slices + t * bytes, static_cast<const char*>(pointers.filter) + t * bytes,
                  FilterLayout::rscf, slice, DType::bf16, stream);
  }
  return slices;
}

RunPointers QsliceDriver::slice_pointers(const RunPointers& pointers, const void* slices,
                                         std::int64_t n, std::int64_t t) const {
  const ConvGeometry& g = geometry_;
  const std::int64_t frame_bytes = g.in[1] * g.in[2] * g.in_channels * kElementBytes;
  const std::int64_t slice_bytes = g.filter_elements() / g.filter[0] * kElementBytes;
  const std::int64_t image_elements = g.output_elements() / g.batch;
  RunPointers inner;
  inner.activation =
      static_cast<const char*>(pointers.activation) + (n * g.in[0] + t) * frame_bytes;
  inner.filter = static_cast<const char*>(slices) + t * slice_bytes;
  inner.output = static_cast<float*>(pointers.workspace) + n * image_elements;
  inner.workspace = static_cast<char*>(pointers.workspace) + workspace_bytes();
  // The first depth does not read the accumulator.
  inner.epilogue.residual = inner.output;
  inner.epilogue.beta = t == 0 ? 0.0f : 1.0f;
  return inner;
}

Im2colChunks im2col_chunks(std::int64_t gemm_m, std::int64_t row_bytes, std::size_t budget) {
  if (gemm_m == 0) return {};
  const std::int64_t most =
      std::max(kIm2colLeastRows, static_cast<std::int64_t>(budget) / row_bytes / 8 * 8);
  const std::int64_t count = ceil_div(gemm_m, most);
  const std::int64_t rows = std::min(gemm_m, ceil_div(ceil_div(gemm_m, count), 8) * 8);
  return {rows, ceil_div(gemm_m, rows)};
}

Im2colMatmulDriver::Im2colMatmulDriver(const ConvGeometry& g, DType output_dtype,
                                       bool padded_filter, std::size_t scratch_bytes)
    : geometry_(g),
      output_row_bytes_(g.out_channels * static_cast<std::int64_t>(size_of(output_dtype))),
      pitch_(ceil_div(g.gemm_k(), 8) * 8),
      chunks_(im2col_chunks(g.gemm_m(), pitch_ * kElementBytes, scratch_bytes)),
      columns_bytes_(workspace_part(chunks_.rows * pitch_ * kElementBytes)),
      filter_bytes_(pads_filter() && !padded_filter
                        ? workspace_part(g.out_channels * pitch_ * kElementBytes)
                        : 0) {}

Conv2dProblemShape Im2colMatmulDriver::gemm_problem(std::int64_t rows) const {
  Conv2dProblemShape problem;
  problem.in_height = 1;
  problem.in_width = rows;
  problem.in_channels = pitch_;
  problem.out_channels = geometry_.out_channels;
  return problem;
}

const void* Im2colMatmulDriver::make_filter(const RunPointers& pointers,
                                            cudaStream_t stream) const {
  if (filter_bytes_ == 0) return pointers.filter;
  char* const padded = static_cast<char*>(pointers.workspace) + columns_bytes_;
  pad_filter_rows(padded, pointers.filter, geometry_, pitch_, stream);
  return padded;
}

void Im2colMatmulDriver::write_columns(const RunPointers& pointers, std::int64_t first,
                                       std::int64_t rows, cudaStream_t stream) const {
  write_im2col_rows(pointers.workspace, pointers.activation, pointers.cache, geometry_, first,
                    first + rows, pitch_, stream);
}

RunPointers Im2colMatmulDriver::gemm_pointers(const RunPointers& pointers, const void* filter,
                                              std::int64_t first) const {
  const std::int64_t offset = first * output_row_bytes_;
  RunPointers inner = pointers;
  inner.activation = pointers.workspace;
  inner.cache = inner.next_cache = nullptr;
  inner.filter = filter;
  inner.output = static_cast<char*>(pointers.output) + offset;
  inner.workspace = static_cast<char*>(pointers.workspace) + workspace_bytes();
  if (pointers.epilogue.residual != nullptr) {
    inner.epilogue.residual = static_cast<const char*>(pointers.epilogue.residual) + offset;
  }
  return inner;
}

}  // namespace convoy::composed
