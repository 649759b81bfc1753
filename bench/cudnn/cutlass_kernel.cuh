// SPDX-License-Identifier: Apache-2.0
// One tile of CUTLASS's sm80 convolutions, in 2-D and in 3-D.
#pragma once

#include <cutlass/conv/kernel/default_conv2d_fprop.h>
#include <cutlass/conv/kernel/default_conv3d_fprop.h>
// NOTE: this one leaves to those before it what it needs.
#include <cutlass/conv/device/implicit_gemm_convolution.h>

#include <memory>

#include "convoy/error.hpp"
#include "cutlass_convolution.hpp"
#include "device_memory.hpp"
#include "text.hpp"

namespace convoy::bench {

template <int kM, int kN, int kK, int kWarpsM, int kWarpsN, int kStages>
struct CutlassTile {
  using Element = cutlass::bfloat16_t;
  using Tile = cutlass::gemm::GemmShape<kM, kN, kK>;
  using Warp = cutlass::gemm::GemmShape<kM / kWarpsM, kN / kWarpsN, kK>;
  using Mma = cutlass::gemm::GemmShape<16, 8, 16>;
  using Epilogue = cutlass::epilogue::thread::LinearCombination<Element, 8, float, float>;
  using Order = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>;
  using Image = cutlass::layout::TensorNHWC;
  using Volume = cutlass::layout::TensorNDHWC;

  using Conv2d = cutlass::conv::device::ImplicitGemmConvolution<
      typename cutlass::conv::kernel::DefaultConv2dFprop<
          Element, Image, Element, Image, Element, Image, float, cutlass::arch::OpClassTensorOp,
          cutlass::arch::Sm80, Tile, Warp, Mma, Epilogue, Order, kStages,
          cutlass::arch::OpMultiplyAdd, cutlass::conv::IteratorAlgorithm::kOptimized,
          cutlass::conv::StrideSupport::kStrided, 8, 8>::Kernel>;
  using Conv3d = cutlass::conv::device::ImplicitGemmConvolution<
      typename cutlass::conv::kernel::DefaultConv3dFprop<
          Element, Volume, Element, Volume, Element, Volume, float, cutlass::arch::OpClassTensorOp,
          cutlass::arch::Sm80, Tile, Warp, Mma, Epilogue, Order, kStages,
          cutlass::arch::OpMultiplyAdd, cutlass::conv::IteratorAlgorithm::kOptimized,
          cutlass::conv::StrideSupport::kStrided>::Kernel>;

  static cutlass::conv::Conv3dProblemSize problem_size(const ConvGeometry& g, int slices) {
    const auto i = [](std::int64_t value) { return static_cast<int>(value); };
    return {i(g.batch),
            i(g.cached_frames + g.in[0]),
            i(g.in[1]),
            i(g.in[2]),
            i(g.in_channels),
            i(g.out_channels),
            i(g.filter[0]),
            i(g.filter[1]),
            i(g.filter[2]),
            i(g.out[0]),
            i(g.out[1]),
            i(g.out[2]),
            i(g.pad_begin[0]),
            i(g.pad_begin[1]),
            i(g.pad_begin[2]),
            i(g.stride[0]),
            i(g.stride[1]),
            i(g.stride[2]),
            i(g.dilation[0]),
            i(g.dilation[1]),
            i(g.dilation[2]),
            cutlass::conv::Mode::kCrossCorrelation,
            slices,
            1};
  }

  // Set up anew where the tensors are not those of the run before.
  template <typename Convolution>
  struct Launcher {
    typename Convolution::UnderlyingKernel::ConvProblemSize size;
    cli::DeviceMemory semaphores;
    Convolution convolution = {};
    const void* activation = nullptr;
    const void* filter = nullptr;
    void* output = nullptr;

    using Layout = typename Convolution::LayoutA;
    using Reference = cutlass::TensorRef<Element, Layout>;

    typename Convolution::Arguments arguments() const {
      const auto tensor = [](const void* data, auto extent) {
        return Reference(static_cast<Element*>(const_cast<void*>(data)), Layout::packed(extent));
      };
      const Reference out = tensor(output, size.output_extent());
      return {size,
              tensor(activation, size.activation_extent()),
              tensor(filter, size.filter_extent()),
              out,
              out,
              {1.0f, 0.0f}};
    }
    bool takes_it() {
      if (Convolution::can_implement(arguments()) != cutlass::Status::kSuccess) return false;
      semaphores = cli::DeviceMemory(Device::cuda, Convolution::get_workspace_size(arguments()));
      return true;
    }
    void run(const void* x, const void* w, void* y, cudaStream_t stream) {
      if (x != activation || w != filter || y != output) {
        activation = x, filter = w, output = y;
        check(convolution.initialize(arguments(), semaphores.data(), stream));
      }
      check(convolution.run(stream));
    }
    static void check(cutlass::Status status) {
      if (status == cutlass::Status::kSuccess) return;
      throw Error(Status::launch_failure,
                  cli::text("CUTLASS: ", cutlass::cutlassGetStatusString(status)));
    }
  };

  template <typename Convolution>
  static void add(typename Convolution::UnderlyingKernel::ConvProblemSize size,
                  std::vector<CutlassConvolution>& list) {
    auto launcher = std::make_shared<Launcher<Convolution>>();
    launcher->size = size;
    if (!launcher->takes_it()) return;
    std::string name = cli::text(kM, "x", kN, "x", kK, "_s", kStages);
    if (size.split_k_slices > 1) name += cli::text(" k", size.split_k_slices);
    list.push_back({name, [launcher](const void* x, const void* w, void* y, cudaStream_t stream) {
                      launcher->run(x, w, y, stream);
                    }});
  }

  static void add(const ConvGeometry& g, int multiprocessors,
                  std::vector<CutlassConvolution>& list) {
    const std::int64_t tiles =
        (g.gemm_m() + kM - 1) / kM * ((std::int64_t(g.out_channels) + kN - 1) / kN);
    for (int slices = 1; slices <= 8; slices *= 2) {
      if (slices > 1 && tiles * slices > 2 * multiprocessors) break;
      const cutlass::conv::Conv3dProblemSize size = problem_size(g, slices);
      if (g.rank == 3) {
        add<Conv3d>(size, list);
      } else {
        add<Conv2d>(size, list);  // What a volume's size adds to an image's is cut off.
      }
    }
  }
};

}  // namespace convoy::bench
