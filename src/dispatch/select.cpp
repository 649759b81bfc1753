// SPDX-License-Identifier: Apache-2.0
#include "dispatch/select.hpp"

#include <algorithm>
#include <optional>

#include "core/text.hpp"
#include "dispatch/device.hpp"
#include "dispatch/option_check.hpp"
#include "dispatch/statistics.hpp"

namespace convoy {
namespace {

void check_prologue(const PrologueKind& prologue) {
  require_enum(prologue.norm, PrologueNorm::rms, "prologue.norm");
  require_enum(prologue.activation, Activation::clamp, "prologue.activation");
  switch (prologue.activation) {
    case Activation::none:
      return;
    case Activation::relu:
    case Activation::gelu:
    case Activation::gelu_tanh:
    case Activation::silu:
      if (prologue.any()) return;
      throw_invalid("prologue.activation = ", to_string(prologue.activation),
                    " without a norm; legal: with prologue.norm = scale_shift or rms; nearest: "
                    "scale_shift with scales of 1 and shifts of 0");
    default:
      throw_invalid("prologue.activation = ", to_string(prologue.activation),
                    " is not legal; legal: none, relu, gelu, gelu_tanh, silu");
  }
}

void check_options(const PlanOptions& options) {
  require_dtype(options.dtype, "dtype");
  require_dtype(options.output_dtype.value_or(options.dtype), "output_dtype");
  require_dtype(options.epilogue.bias_dtype, "epilogue.bias_dtype");
  require_enum(options.epilogue.activation, Activation::clamp, "epilogue.activation");
  require_enum(options.epilogue.order, ResidualOrder::before_activation, "epilogue.order");
  require_enum(options.epilogue.rounding, EpilogueRounding::each_step, "epilogue.rounding");
  check_prologue(options.prologue);
  require_enum(options.shuffle.order, ShuffleOrder::channels_inner, "shuffle.order");
  require_enum(options.shuffle.residual, ShuffleResidual::tiled, "shuffle.residual");
  require_enum(options.device, Device::cuda, "device");
  require_enum(options.upsample_folding, UpsampleFolding::fast, "upsample_folding");
  if (options.device_index < -1) {
    throw_invalid("device_index = ", options.device_index,
                  " is not legal; legal: -1 (the current device) or a device number; nearest: -1");
  }
}

/// Letters to change, add or drop to get from a to b; or to the beginning of b, which counts as one
/// more.
std::size_t distance_to(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return std::min(row[b.size()], *std::min_element(row.begin(), row.end()) + 1);
}

void check_kernel_name(const std::string& wanted, const CandidateList& kernels) {
  if (wanted.empty()) return;
  std::vector<std::pair<std::size_t, std::string>> names;
  for (const auto& kernel : kernels) {
    const std::string name = kernel->name();
    if (name == wanted) return;
    names.emplace_back(distance_to(wanted, name), name);
  }
  std::sort(names.begin(), names.end());
  std::string nearest;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, names.size()); ++i) {
    nearest += (i > 0 ? ", " : "") + names[i].second;
  }
  throw_invalid("kernel = '", wanted.substr(0, 80), "' is not a kernel of this library; nearest: ",
                nearest.empty() ? "none, no backend was built" : nearest,
                "; `convoy explain` and candidates() list all ", names.size());
}

/// A kernel that was measured to be slower than the best one, though the model has it faster: by so
/// much (the median of such kernels on an H200, bench/results/h200/tune.csv).
constexpr double kBeaten = 1.03;

void use_measurements(const std::vector<Considered*>& able, const TuningDatabase& tuning) {
  if (able.empty()) return;
  PlanRequest request = able.front()->request;  // All have the same.
  std::optional<TunedKernel> choice;
  const auto find_kernel = [&](const PlanRequest& measured) -> Considered* {
    choice = tuning.find(tuning_key(measured));
    if (!choice) return nullptr;
    const auto found = std::find_if(able.begin(), able.end(), [&](const Considered* entry) {
      return entry->line.kernel == choice->kernel;
    });
    return found == able.end() ? nullptr : *found;
  };
  // What was measured with a packed filter holds with a dense one where the kernel reads the same.
  const auto find_chosen = [&]() -> Considered* {
    if (Considered* const found = find_kernel(request)) return found;
    if (request.packed_filter) return nullptr;
    PlanRequest packed = request;
    packed.packed_filter = true;
    Considered* const found = find_kernel(packed);
    return found != nullptr && found->kernel->packs_as_dense(request) ? found : nullptr;
  };
  // NOTE: nothing was measured with statistics, which some kernels take in passing and others not.
  const bool with_statistics = request.statistics_groups > 0;
  request.statistics_groups = 0;
  const Considered* best = nullptr;
  if (Considered* const measured = find_chosen()) {
    if (!with_statistics) {
      measured->tuned = true;
      measured->line.estimated_us = choice->us;
      return;
    }
    best = measured;
  } else {
    request.epilogue = {};
    best = find_chosen();
  }
  if (best == nullptr) return;
  // NOTE: the model errs more by layers than between the kernels of one.
  const double scale = choice->us / best->kernel->judge(request).estimated_us;
  for (Considered* const entry : able) {
    const double plain = scale * entry->kernel->judge(request).estimated_us;
    const double known = entry == best ? choice->us : std::max(plain, kBeaten * choice->us);
    entry->line.estimated_us = known + scale * entry->line.estimated_us - plain;
  }
}

}  // namespace

std::string backend_name(const DeviceInfo& device) {
  if (device.kind == Device::cpu) return text("cpu (", device.name, ")");
  if (device.index < 0) return text("cuda (", device.name, ")");
  return text("cuda:", device.index, " (", device.name, ")");
}

std::vector<Considered> select(const ConvGeometry& geometry, const PlanOptions& options,
                               const CandidateList& kernels, Ask ask, const TuningDatabase& tuning,
                               const DeviceInfo* gpu) {
  check_options(options);
  check_shuffle(geometry, options.shuffle, options.epilogue.residual);
  check_statistics(geometry, options.shuffle, options.statistics_groups);
  check_kernel_name(options.kernel, kernels);

  if (gpu != nullptr && gpu->multiprocessors < 1) {
    throw_invalid("gpu.multiprocessors = ", gpu->multiprocessors,
                  " is not legal; legal: at least 1; nearest: 1");
  }

  // Ask for the devices once.
  std::string no_cuda;
  std::optional<DeviceInfo> cuda;
  if (options.device == Device::cpu) {
    no_cuda = "device = cpu was asked for";
  } else if (gpu != nullptr) {
    cuda = *gpu;
  } else {
    cuda = usable_cuda_device(options.device_index, &no_cuda);
  }
  const DeviceInfo cpu = cpu_device();

  // Judge every kernel.
  std::vector<Considered> all;
  bool cuda_runs = false;
  for (const auto& kernel : kernels) {
    Considered entry;
    entry.kernel = kernel.get();
    entry.line.kernel = kernel->name();
    entry.request.geometry = geometry;
    entry.request.geometry.upsample_folding = options.upsample_folding;
    entry.request.dtype = options.dtype;
    entry.request.output_dtype = options.output_dtype.value_or(options.dtype);
    entry.request.epilogue = options.epilogue;
    entry.request.prologue = options.prologue;
    entry.request.shuffle = options.shuffle;
    entry.request.statistics_groups = options.statistics_groups;
    entry.request.packed_filter = options.packed_filter;
    entry.request.allow_tf32 = options.allow_tf32;
    if (kernel->device() == Device::cuda && !cuda) {
      entry.line.backend = "cuda";
      entry.line.reason = no_cuda;
    } else if (kernel->device() == Device::cpu && options.device == Device::cuda) {
      entry.line.backend = "cpu";
      entry.line.reason = "device = cuda was asked for";
    } else if (kernel->device() == Device::cpu && ask == Ask::needed && cuda_runs) {
      entry.line.backend = "cpu";
      entry.line.reason = "not asked: a CUDA kernel runs it";
    } else {
      entry.request.device = kernel->device() == Device::cuda ? *cuda : cpu;
      entry.line.backend = backend_name(entry.request.device);
      // Where there is nothing to compute nobody is asked: anyone can do that.
      if (!geometry.empty() && options.prologue.any() && !kernel->takes_prologues()) {
        entry.line.reason = text("prologue = ", to_string(options.prologue), "; legal: none");
      } else if (!geometry.empty()) {
        Judgement judgement = kernel->judge(entry.request);
        entry.line.reason = std::move(judgement.refusal);
        entry.line.estimated_us = judgement.estimated_us;
        if (entry.line.reason.empty()) {
          entry.line.statistics = statistics_source(*kernel, entry.request);
        }
      }
    }
    if (entry.line.reason.empty() && !options.kernel.empty() &&
        entry.line.kernel != options.kernel) {
      entry.line.reason = text("kernel = ", options.kernel, " was asked for");
      entry.passed_over = true;
    }
    cuda_runs = cuda_runs || (kernel->device() == Device::cuda && entry.line.reason.empty());
    all.push_back(std::move(entry));
  }

  rank(all, tuning);
  if (!all.empty() && all.front().line.reason.empty()) all.front().line.chosen = true;
  return all;
}

void rank(std::vector<Considered>& all, const TuningDatabase& tuning) {
  std::vector<Considered*> able;
  for (Considered& entry : all) {
    if (entry.line.reason.empty() && entry.kernel->device() == Device::cuda) able.push_back(&entry);
  }
  use_measurements(able, tuning);

  // What can run, the GPU before the CPU, the measured choice, then by estimated time.
  std::stable_sort(all.begin(), all.end(), [](const Considered& a, const Considered& b) {
    if (a.line.reason.empty() != b.line.reason.empty()) return a.line.reason.empty();
    if (!a.line.reason.empty()) return false;
    const Device device_a = a.kernel->device();
    const Device device_b = b.kernel->device();
    if (device_a != device_b) return device_a == Device::cuda;
    if (a.tuned != b.tuned) return a.tuned;
    return a.line.estimated_us < b.line.estimated_us;
  });
}

}  // namespace convoy
