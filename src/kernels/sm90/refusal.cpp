// SPDX-License-Identifier: Apache-2.0
//
// Which problems an instance can run, and why not the others (host.hpp).
#include <algorithm>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/sm90/host.hpp"
#include "kernels/sm90/loading.hpp"

namespace convoy::sm90 {
namespace {

using implicit_gemm::KernelView;
using implicit_gemm::kMaxCoordinate;

// Padding and reach of a filter that the kernel's coordinates were checked with.
constexpr std::int64_t kMaxPadding = 30000;
constexpr std::int64_t kMaxReach = 60000;

std::string halo_refusal(const Config& config, const ConvGeometry& g) {
  for (int axis = 1; axis < 3; ++axis) {
    if (!config.has_planes() && g.stride[axis] != 1) {
      return text("stride of ", kAxisNames[axis], " = ", g.stride[axis],
                  "; legal: 1 (taps slide over a halo); nearest: 1");
    }
    if (g.stride[axis] != 1 && g.dilation[axis] != 1) {
      return text("dilation of ", kAxisNames[axis], " = ", g.dilation[axis], " with stride ",
                  g.stride[axis], "; legal: 1 (taps slide over planes of the input); nearest: 1");
    }
  }
  if (config.has_planes() && g.stride[1] == 1 && g.stride[2] == 1) {
    return "strides of 1; legal: one of height or width above 1 (planes of the input)";
  }
  const KernelView view = implicit_gemm::kernel_view(g);
  const std::int64_t height = view.filter[1], width = view.filter[2];
  if (height * width == 1) return "a filter of 1x1; legal: more taps (one has no halo)";
  if (choose_patch(config, g, view).columns == 0) {
    return text("the halo of a ", height, "x", width, " filter with dilation ", g.dilation[1], "x",
                g.dilation[2], " does not fit a stage; legal: at most ", config.halo_pixels,
                " pixels of a patch with its halo");
  }
  return {};
}

// Padding by replication and reflection across a frame: pixels of a patch that lie outside the
// input are copied from others of the same patch (border.cuh).
std::string border_refusal(const Config& config, const ConvGeometry& g) {
  if (!config.fills_border()) return implicit_gemm::pad_mode_refusal(g, 1);
  const PatchTiling tiling = choose_patch(config, g, implicit_gemm::kernel_view(g));
  std::string reason = implicit_gemm::border_refusal(
      g, 1, {tiling.tile_height, tiling.halo_height, tiling.tiles_down});
  if (reason.empty()) {
    reason = implicit_gemm::border_refusal(
        g, 2, {tiling.tile_width, tiling.halo_width, tiling.tiles_across});
  }
  return reason;
}

std::string resident_refusal(const Config& config, const ConvGeometry& g) {
  if (!g.dense_output()) {
    return "an output with pitches; legal: a dense one (filters stay in shared memory)";
  }
  if (!implicit_gemm::is_planar(g) || choose_loader(config, g) != Loader::tiled ||
      g.gemm_m() > kMaxCoordinate) {
    return text("a filter of ", g.filter[0], "x", g.filter[1], "x", g.filter[2],
                " with its strides and padding; legal: 1x1x1, stride 1, no padding (filters stay "
                "in shared memory)");
  }
  const std::int64_t most = config.filter_stages * config.block_k();
  if (g.in_channels > most) {
    return text("in_channels = ", g.in_channels, "; legal: at most ", most,
                " (filters stay in shared memory); nearest: ", most);
  }
  return {};
}

std::string shared_activation_refusal(const Config& config, const ConvGeometry& g) {
  if (choose_loader(config, g) != Loader::tiled) {
    return text("a filter of ", g.filter[1], "x", g.filter[2],
                " with its strides and padding; legal: 1x1, stride 1, no padding (CTAs share "
                "activation tiles)");
  }
  const std::int64_t n_tiles = ceil_div(g.out_channels, config.block_n);
  if (n_tiles % config.cluster_n != 0) {
    return text("out_channels = ", g.out_channels, " are ", n_tiles, " tiles of ", config.block_n,
                " filters; legal: a multiple of ", config.cluster_n,
                " tiles (CTAs share activation tiles)");
  }
  return {};
}

// Groups whose output rows TMA can store.
std::string group_refusal(const Config& config, const ConvGeometry& g) {
  if (g.groups == 1) {
    return config.input == Input::grouped_runs
               ? "groups = 1; legal: more (runs of a group's pixels)"
               : "";
  }
  if (!config.takes_groups()) {
    return text("groups = ", g.groups, "; legal: 1 (tiles of halo, planes and ",
                "grouped take more)");
  }
  if (g.upsample != 1) return text("groups = ", g.groups, " with upsample; legal: 1");
  const auto unit = static_cast<std::int64_t>(16 / size_of(config.out));
  if (g.group_filters() % unit != 0) {
    return text(
        "out_channels / groups = ", g.group_filters(), "; legal: a multiple of ", unit,
        " (TMA needs rows of 16 bytes); nearest: ", ceil_div(g.group_filters(), unit) * unit);
  }
  return {};
}

// Rows of the output that TMA stores.
bool has_tma_rows(const Config& config, const ConvGeometry& g) {
  return g.out_channels * static_cast<std::int64_t>(size_of(config.out)) % 16 == 0;
}

}  // namespace

EpiloguePath path_of(const Config& config, const EpilogueKind& epilogue, bool direct_store) {
  if (direct_store || epilogue.rounding == EpilogueRounding::each_step) {
    return EpiloguePath::general;
  }
  switch (epilogue.activation) {
    case Activation::none:
    case Activation::relu:
    case Activation::silu:
    case Activation::leaky_relu:
      if (epilogue.residual) return EpiloguePath::fused;
      return epilogue.activation == Activation::none || epilogue.activation == Activation::relu
                 ? EpiloguePath::linear
                 : EpiloguePath::plain;
    case Activation::clamp:
    case Activation::hardswish:
      if (!epilogue.residual && !config.splits_k()) return EpiloguePath::plain;
      break;
    default:
      break;
  }
  // By approximations that only 16-bit outputs hide.
  if (config.out == DType::fp32) return EpiloguePath::general;
  return epilogue.residual && !config.splits_k() ? EpiloguePath::general : EpiloguePath::curved;
}

const void* entry_of(const Instance& instance, EpiloguePath path, bool is_matrix) {
  // Longer paths compute what shorter ones do.
  const EpiloguePath longer[] = {EpiloguePath::linear, EpiloguePath::plain, EpiloguePath::fused};
  const auto find = [&](const void* const(&kernels)[kEpiloguePaths]) {
    const void* kernel = kernels[static_cast<int>(path)];
    for (const EpiloguePath other : longer) {
      if (kernel == nullptr && other > path) kernel = kernels[static_cast<int>(other)];
    }
    return kernel;
  };
  const void* const of_matrices = is_matrix ? find(instance.matrix_kernels) : nullptr;
  if (of_matrices != nullptr) return of_matrices;
  const bool is_alone = !instance.has(EpiloguePath::plain) && !instance.has(EpiloguePath::fused);
  return is_alone ? instance.kernels[static_cast<int>(EpiloguePath::general)]
                  : find(instance.kernels);
}

std::string legal_epilogues(const Instance& instance) {
  const bool splits = instance.config.splits_k(), curved = instance.has(EpiloguePath::curved);
  if (instance.has(EpiloguePath::general)) {
    return "any but gelu, gelu_tanh, sigmoid or tanh without a residual, rounded once";
  }
  if (splits && curved) return "rounded once";
  return text("none, relu, silu, leaky_relu",
              splits   ? ""
              : curved ? ", and any without a residual"
                       : ", and clamp, hardswish without a residual",
              ", rounded once");
}

std::string refusal(const Instance& instance, const ConvGeometry& g, bool packed_filter) {
  const Config& config = instance.config;
  std::string reason = implicit_gemm::refusal(g, packed_filter, config.in, true);
  if (reason.empty()) reason = group_refusal(config, g);
  if (reason.empty()) reason = implicit_gemm::output_pitch_refusal(g, config.out);
  if (reason.empty()) reason = implicit_gemm::coordinate_refusal(g);
  for (int axis = 0; axis < 3 && reason.empty(); ++axis) {
    const std::int64_t padding = std::max(g.pad_begin[axis], g.pad_end[axis]);
    const std::int64_t reach = (g.filter[axis] - 1) * g.dilation[axis];
    if (padding > kMaxPadding) {
      reason =
          text("padding of ", kAxisNames[axis], " = ", padding, "; legal: at most ", kMaxPadding);
    } else if (reach > kMaxReach) {
      reason = text("(filter - 1) * dilation of ", kAxisNames[axis], " = ", reach,
                    "; legal: at most ", kMaxReach);
    }
  }
  if (reason.empty() && config.has_halo()) reason = halo_refusal(config, g);
  if (reason.empty()) reason = border_refusal(config, g);
  if (reason.empty() && config.is_resident()) reason = resident_refusal(config, g);
  if (reason.empty() && config.cluster_n > 1) reason = shared_activation_refusal(config, g);
  if (!reason.empty()) return reason;
  if (config.is_swapped() && is_patched(choose_loader(config, g))) {
    return "pixels would come in patches; legal: runs of pixels (filters are the rows of the MMA)";
  }
  const std::int64_t tiles = std::max<std::int64_t>(1, ceil_div(g.gemm_m(), 16)) * g.groups *
                             ceil_div(g.group_filters(), 64) * 4;
  if (tiles > kMaxCoordinate) {
    return text("up to ", tiles, " tiles; legal: at most ", kMaxCoordinate, " (32-bit counters)");
  }
  return {};
}

std::string prologue_refusal(const Instance& instance, const ConvGeometry& g,
                             const PrologueKind& prologue) {
  const Config& config = instance.config;
  if (!config.normalises()) {
    return prologue.any() ? text("prologue = ", to_string(prologue), "; legal: none") : "";
  }
  if (prologue.activation == Activation::gelu || prologue.activation == Activation::gelu_tanh) {
    return text("prologue.activation = ", to_string(prologue.activation),
                "; legal: none, relu, silu (in shared memory)");
  }
  std::string reason = implicit_gemm::normaliser_refusal(g, prologue);
  if (!reason.empty() || prologue.norm != PrologueNorm::rms) return reason;
  const PatchTiling tiling = choose_patch(config, g, implicit_gemm::kernel_view(g));
  const std::int64_t floats =
      implicit_gemm::inverse_rms_pitch(tiling.halo_width) * tiling.halo_height;
  if (floats > config.inverse_rms_floats()) {
    return text("a patch of ", tiling.halo_height, "x", tiling.halo_width, " pixels has ", floats,
                " of inverse RMS, in rows of 4; legal: at most ", config.inverse_rms_floats());
  }
  return {};
}

std::string epilogue_refusal(const Instance& instance, const ConvGeometry& g,
                             const EpilogueKind& epilogue) {
  const bool direct_store = !has_tma_rows(instance.config, g);
  const EpiloguePath path = path_of(instance.config, epilogue, direct_store);
  if (entry_of(instance, path, false) != nullptr) return {};
  if (direct_store) {
    return text("out_channels = ", g.out_channels,
                "; legal: rows of a multiple of 16 bytes (TMA stores)");
  }
  return text("an epilogue ", to_string(epilogue), "; legal: ", legal_epilogues(instance));
}

std::string statistics_refusal(const Instance& instance, const ConvGeometry& g,
                               const EpilogueKind& epilogue, std::int64_t groups) {
  const std::string statistics = text("statistics of ", groups, " groups");
  if (!instance.has(EpiloguePath::statistics)) {
    return statistics + "; legal: none (no such epilogue in this instance)";
  }
  if (g.groups != 1) {
    return text(statistics, " of a convolution of groups = ", g.groups, "; legal: 1");
  }
  if (g.out_channels / groups % kSliceFilters != 0) {
    return text(statistics, " of ", g.out_channels / groups, " filters; legal: groups of a ",
                "multiple of ", kSliceFilters, " filters");
  }
  const Activation activation = epilogue.activation;
  if (epilogue.rounding == EpilogueRounding::each_step ||
      (activation != Activation::none && activation != Activation::relu &&
       activation != Activation::silu)) {
    return text(statistics, " behind an epilogue ", to_string(epilogue),
                "; legal: none, relu, silu, rounded once");
  }
  if (!has_tma_rows(instance.config, g)) {
    return text(statistics, " of out_channels = ", g.out_channels,
                "; legal: rows of a multiple of 16 bytes (TMA stores)");
  }
  if (!g.dense_output()) return statistics + " of an output with pitches; legal: a dense one";
  if (choose_loader(instance.config, g) == Loader::line) {
    return statistics + " of images of one row; legal: more rows (a tile is a patch of them)";
  }
  return {};
}

}  // namespace convoy::sm90
