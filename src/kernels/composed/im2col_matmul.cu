// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "core/checked.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/composed/candidates.hpp"

namespace convoy::composed {
namespace {

constexpr int kThreads = 256;

// Elements of 16 bytes, where C is a multiple of 8 of them.
struct alignas(16) Vector8 {
  std::uint16_t e[8];
};

// One vector of a row a thread; neighbouring threads take neighbouring channels.
template <typename Vector>
__global__ void __launch_bounds__(kThreads)
    im2col_kernel(Vector* columns, const std::uint16_t* activation, const std::uint16_t* cache,
                  const __grid_constant__ DeviceGeometry g, std::int64_t row_begin,
                  std::int64_t vectors, std::int64_t pitch) {
  constexpr int kWidth = sizeof(Vector) / 2;
  const std::int64_t row_vectors = pitch / kWidth;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += step) {
    const std::int64_t row = i / row_vectors;
    const std::int64_t column = (i - row * row_vectors) * kWidth;
    Vector value{};
    if (column < g.reduction) {
      const auto tap = static_cast<int>(column / g.channels);
      const auto channel = static_cast<int>(column - std::int64_t{tap} * g.channels);
      const int s = tap % g.filter[2];
      const int r = tap / g.filter[2] % g.filter[1];
      const int t = tap / g.filter[2] / g.filter[1];
      const OutputPixel at = output_pixel(g, row_begin + row);
      const std::uint16_t* pixel =
          input_pixel(g, activation, cache, at.n, at.z * g.stride[0] - g.pad[0] + t * g.dilation[0],
                      at.p * g.stride[1] - g.pad[1] + r * g.dilation[1],
                      at.q * g.stride[2] - g.pad[2] + s * g.dilation[2]);
      if (pixel != nullptr) value = *reinterpret_cast<const Vector*>(pixel + channel);
    }
    columns[i] = value;
  }
}

// Rows of the filter matrix, padded with zeros to `pitch` elements.
__global__ void __launch_bounds__(kThreads)
    pad_filter_kernel(std::uint16_t* padded, const std::uint16_t* filter, std::int64_t reduction,
                      std::int64_t pitch, std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    const std::int64_t k = i / pitch, column = i - k * pitch;
    padded[i] = column < reduction ? filter[k * reduction + column] : std::uint16_t{0};
  }
}

unsigned blocks_for(std::int64_t items) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(items, kThreads), 1, std::int64_t{1} << 16));
}

// Columns of the matrices: T·R·S·C, rounded up to rows of a multiple of 16 bytes.
std::int64_t pitch_of(const ConvGeometry& g) {
  return ceil_div(g.gemm_k(), 8) * 8;
}

// The matrix product of one chunk, as a 1x1 convolution over a row of `rows` pixels.
PlanRequest chunk_request(const PlanRequest& request, std::int64_t rows) {
  Conv2dProblemShape problem;
  problem.in_height = 1;
  problem.in_width = rows;
  problem.in_channels = pitch_of(request.geometry);
  problem.out_channels = request.geometry.out_channels;
  return inner_request(request, problem, request.output_dtype, request.epilogue);
}

class Im2colMatmulPlan : public ExecutablePlan {
 public:
  Im2colMatmulPlan(const InnerKernels& inner, const PlanRequest& request,
                   const Im2colChunks& chunks)
      : request_(request), chunks_(chunks), pitch_(pitch_of(request.geometry)) {
    const std::int64_t last = request.geometry.gemm_m() - (chunks.count - 1) * chunks.rows;
    gemm_ = bind(inner, chunks.rows);
    last_gemm_ = last == chunks.rows ? nullptr : bind(inner, last);
    const std::size_t element = size_of(request.dtype);
    columns_bytes_ = aligned_part(static_cast<std::size_t>(chunks.rows * pitch_) * element);
    if (pads_filter() && !request.packed_filter) {
      filter_bytes_ = aligned_part(packed_filter_bytes());
    }
    inner_workspace_ = std::max(gemm_->workspace_bytes(),
                                last_gemm_ ? last_gemm_->workspace_bytes() : std::size_t{0});
  }

  // Workspace: columns, padded filter (where the caller gives the dense one), inner workspace.
  std::size_t workspace_bytes() const override {
    return columns_bytes_ + filter_bytes_ + inner_workspace_;
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    char* columns = static_cast<char*>(pointers.workspace);
    char* padded = columns + columns_bytes_;
    RunPointers inner = pointers;
    inner.cache = inner.next_cache = nullptr;
    inner.workspace = padded + filter_bytes_;
    inner.activation = columns;
    if (filter_bytes_ > 0) {
      pad_filter(padded, pointers.filter, stream);
      inner.filter = padded;
    }
    const auto row_bytes =
        g.out_channels * static_cast<std::int64_t>(size_of(request_.output_dtype));
    for (std::int64_t i = 0; i < chunks_.count; ++i) {
      const std::int64_t begin = i * chunks_.rows;
      const std::int64_t end = std::min(begin + chunks_.rows, g.gemm_m());
      im2col_device(columns, pointers.activation, pointers.cache, g, request_.dtype, begin, end,
                    pitch_, stream);
      inner.output = static_cast<char*>(pointers.output) + begin * row_bytes;
      if (pointers.epilogue.residual != nullptr) {
        inner.epilogue.residual =
            static_cast<const char*>(pointers.epilogue.residual) + begin * row_bytes;
      }
      (i + 1 == chunks_.count && last_gemm_ ? last_gemm_ : gemm_)->run(inner, stream);
    }
    if (pointers.next_cache != nullptr) {
      write_next_cache(pointers.next_cache, pointers.cache, pointers.activation, g, request_.dtype,
                       stream);
    }
  }

  std::string filter_format() const override {
    return pads_filter() && request_.packed_filter ? "gemm_rows" : "ktrsc";
  }
  std::size_t packed_filter_bytes() const override {
    return static_cast<std::size_t>(request_.geometry.out_channels * pitch_) *
           size_of(request_.dtype);
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (!pads_filter()) {
      repack_filter(packed, filter, layout, request_.geometry, request_.dtype, stream);
      return;
    }
    // NOTE: packing is not `run`: it may take memory and wait.
    const auto dense = allocate_device_memory(
        static_cast<std::size_t>(request_.geometry.filter_elements()) * size_of(request_.dtype));
    repack_filter(dense.get(), filter, layout, request_.geometry, request_.dtype, stream);
    pad_filter(packed, dense.get(), stream);
    const cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) {
      throw Error(Status::launch_failure,
                  std::string("packing a filter: ") + cudaGetErrorString(error));
    }
  }
  std::shared_ptr<void> allocate(std::size_t bytes) const override {
    return allocate_device_memory(bytes);
  }

 private:
  std::shared_ptr<ExecutablePlan> bind(const InnerKernels& inner, std::int64_t rows) const {
    const PlanRequest request = chunk_request(request_, rows);
    const InnerKernel chosen = inner.choose(request);
    if (chosen.kernel == nullptr) throw Error(Status::unsupported, chosen.reason);
    return chosen.kernel->make(request);
  }
  bool pads_filter() const { return pitch_ != request_.geometry.gemm_k(); }
  void pad_filter(void* padded, const void* filter, cudaStream_t stream) const {
    const std::int64_t elements = request_.geometry.out_channels * pitch_;
    launch_kernel(
        pad_filter_kernel,
        {.name = "pad_filter", .grid = blocks_for(elements), .block = kThreads, .stream = stream},
        static_cast<std::uint16_t*>(padded), static_cast<const std::uint16_t*>(filter),
        request_.geometry.gemm_k(), pitch_, elements);
  }

  PlanRequest request_;
  Im2colChunks chunks_;
  std::int64_t pitch_;
  std::size_t columns_bytes_ = 0, filter_bytes_ = 0, inner_workspace_ = 0;
  std::shared_ptr<ExecutablePlan> gemm_, last_gemm_;
};

class Im2colMatmulCandidate : public KernelCandidate {
 public:
  Im2colMatmulCandidate(InnerKernels inner, int rank, std::size_t scratch_bytes)
      : inner_(std::move(inner)), rank_(rank), scratch_bytes_(scratch_bytes) {}

  std::string name() const override {
    return rank_ == 2 ? "im2col_matmul_conv2d" : "im2col_matmul_conv3d";
  }
  Device device() const override { return Device::cuda; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (g.rank != rank_) {
      return "a " + std::to_string(g.rank) + "-D problem; this kernel computes " +
             std::to_string(rank_) + "-D ones";
    }
    if (request.dtype == DType::fp32) return "type fp32; legal: bf16, fp16";
    if (g.groups != 1) return "groups = " + std::to_string(g.groups) + "; legal: 1";
    std::string reason = device_geometry_refusal(g);
    if (!reason.empty()) return reason;
    const Im2colChunks parts = chunks(request);
    const InnerKernel gemm = inner_.choose(chunk_request(request, parts.rows));
    if (!gemm.reason.empty()) return gemm.reason;

    // The columns are written and read once more than the data: 3 TB/s on the devices of today.
    constexpr double kBytesPerUs = 3e6;
    constexpr double kLaunchUs = 3.0;
    const double bytes =
        2.0 * double(g.gemm_m()) * double(pitch_of(g)) * double(size_of(request.dtype));
    return double(parts.count) * (gemm.estimated_us + kLaunchUs) + bytes / kBytesPerUs;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<Im2colMatmulPlan>(inner_, request, chunks(request));
  }

 private:
  Im2colChunks chunks(const PlanRequest& request) const {
    return im2col_chunks(
        request.geometry.gemm_m(),
        pitch_of(request.geometry) * static_cast<std::int64_t>(size_of(request.dtype)),
        scratch_bytes_);
  }

  InnerKernels inner_;
  int rank_;
  std::size_t scratch_bytes_;
};

}  // namespace

Im2colChunks im2col_chunks(std::int64_t gemm_m, std::int64_t row_bytes, std::size_t budget) {
  if (gemm_m == 0) return {};
  const std::int64_t most =
      std::max(kIm2colLeastRows, static_cast<std::int64_t>(budget) / row_bytes / 8 * 8);
  const std::int64_t count = ceil_div(gemm_m, most);
  const std::int64_t rows = std::min(gemm_m, ceil_div(ceil_div(gemm_m, count), 8) * 8);
  return {rows, ceil_div(gemm_m, rows)};
}

void im2col_device(void* columns, const void* activation, const void* cache,
                   const ConvGeometry& geometry, DType dtype, std::int64_t row_begin,
                   std::int64_t row_end, std::int64_t pitch, cudaStream_t stream) {
  if (size_of(dtype) != 2) throw Error(Status::unsupported, "im2col on the device: bf16, fp16");
  const DeviceGeometry g = device_geometry(geometry);
  const std::int64_t elements = (row_end - row_begin) * pitch;
  const auto* input = static_cast<const std::uint16_t*>(activation);
  const auto* cached = static_cast<const std::uint16_t*>(cache);
  const auto launch = [&]<typename Vector>(Vector* to) {
    const std::int64_t vectors = elements * 2 / static_cast<std::int64_t>(sizeof(Vector));
    launch_kernel(
        im2col_kernel<Vector>,
        {.name = "im2col", .grid = blocks_for(vectors), .block = kThreads, .stream = stream}, to,
        input, cached, g, row_begin, vectors, pitch);
  };
  if (g.channels % 8 == 0) {
    launch(static_cast<Vector8*>(columns));
  } else {
    launch(static_cast<std::uint16_t*>(columns));
  }
}

std::unique_ptr<KernelCandidate> make_im2col_matmul_candidate(InnerKernels inner, int rank,
                                                              std::size_t scratch_bytes) {
  return std::make_unique<Im2colMatmulCandidate>(std::move(inner), rank, scratch_bytes);
}

}  // namespace convoy::composed
