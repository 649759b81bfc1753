// SPDX-License-Identifier: Apache-2.0
//
// What the correction of model times is trained on (train_correction.py): the rows of
// `convoy_measure_kernels` whose kernels it corrects, each with the network's inputs.
//
//   convoy_correction_inputs --memory-gbs 3352 COLD.csv WARM.csv > inputs.csv
//     --memory-gbs       of the GPU that the times are of, GB/s (4814, an H200; an H100 has 3352)
//     --multiprocessors  of it (132)
//     --corrected        modelled times in the files are corrected by this build's network (without
//                        `--uncorrected`)
//     --taught-gbs       instead of measured times, those that the network of this build gives for
//                        a GPU of such memory, times what the mean below is over the first file's
//                        time: what a network must not forget that is trained on another GPU
//     --shapes           with --taught-gbs: the files are shape files, of bf16; every kernel on
//                        every layer
//
// A kernel's time is its mean over the files; what one of them lacks is left out. So a file of code
// that comes cold and one of warm code (--twice) make times that stand between.
//
// CSV columns: problem, dtype, epilogue, kernel, splits, us, model_us (not corrected), x0 ...
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>

#include "command_line.hpp"
#include "convoy/info.hpp"
#include "core/rewriting.hpp"
#include "core/text.hpp"
#include "dispatch/backends.hpp"
#include "kernels/mma/model.hpp"
#include "kernels/sm90/model.hpp"
#include "measured_times.hpp"
#include "shape_file.hpp"
#include "shape_string.hpp"

namespace {

using namespace convoy;

struct Options {
  double memory_gbs = 4814;
  int multiprocessors = 132;
  double taught_gbs = 0;
  bool corrected = false;
  bool shapes = false;
  std::vector<std::string> files;
};

class Writer {
 public:
  explicit Writer(const Options& options) : options_(options) {
    for (const sm90::Instance& instance : sm90::instances()) {
      instances_[sm90::name_of(instance)] = &instance;
    }
    for (const mma::Instance& instance : mma::instances()) {
      mma_instances_[mma::name_of(instance)] = &instance;
    }
    for (const auto& candidate : registry()) candidates_[candidate->name()] = candidate.get();
  }

  void write() const {
    std::printf("problem,dtype,epilogue,kernel,splits,us,model_us");
    for (int i = 0; i < kCorrectionInputs; ++i) std::printf(",x%d", i);
    std::printf("\n");
    if (options_.shapes) {
      write_shapes();
    } else {
      write_measured();
    }
  }

 private:
  void write_measured() const {
    const std::vector<cli::MeasuredTime> rows = cli::read_measured_times(options_.files.front());
    std::vector<std::map<std::string, double>> others;
    for (std::size_t i = 1; i < options_.files.size(); ++i) {
      std::map<std::string, double>& times = others.emplace_back();
      for (const cli::MeasuredTime& row : cli::read_measured_times(options_.files[i])) {
        times[key_of(row)] = row.us;
      }
    }
    for (cli::MeasuredTime row : rows) {
      const std::string key = key_of(row);
      const auto has_it = [&](const auto& times) { return times.contains(key); };
      if (!std::all_of(others.begin(), others.end(), has_it)) continue;
      const double first_us = row.us;
      for (const auto& times : others) row.us += times.at(key);
      row.us /= static_cast<double>(options_.files.size());
      write_row(row, first_us);
    }
  }

  void write_shapes() const {
    for (const std::string& file : options_.files) {
      for (const cli::ShapeCase& layer : cli::read_shape_file(file)) {
        for (const auto& [name, instance] : instances_) {
          // What shows only once the tiling is known, as in judge().
          try {
            write_taught_tile(layer, name, *instance);
          } catch (const Error& error) {
            if (error.status() != Status::unsupported) throw;
          }
        }
        for (const auto& [name, candidate] : candidates_) write_taught(layer, name, *candidate);
      }
    }
  }

  // A kernel outside sm90_fprop, as dispatch judges it.
  void write_taught(const cli::ShapeCase& layer, const std::string& name,
                    const KernelCandidate& candidate) const {
    const ConvGeometry g = geometry_of(layer.problem);
    const EpilogueKind kind = layer.epilogue.value_or(EpilogueKind{});
    cli::MeasuredTime row = {.problem = to_string(layer.problem),
                             .dtype = "bf16",
                             .epilogue = to_string(kind),
                             .kernel = name,
                             .splits = 0};
    ModelledTime time;
    const std::optional<CorrectedKernel> family = family_of(row, time);
    if (!family || g.groups != 1 || g.upsample != 1 || !rewritings(g).empty()) return;
    const PlanRequest request = request_of(g, kind, DType::bf16, options_.taught_gbs);
    if (const auto tile = mma_instances_.find(name); tile != mma_instances_.end()) {
      if (!mma::refusal(*tile->second, g, true).empty()) return;
      row.splits = mma::fastest_tiling(*tile->second, request).splits;
      time.splits = row.splits;
    }
    const std::optional<double> us = judged_us(candidate, request, true);
    if (!us) return;
    time.us = judged_us(candidate, request, false).value();
    write_line(row, *us, time.us, correction_inputs(*family, time, g, kind, DType::bf16));
  }

  static PlanRequest request_of(const ConvGeometry& g, const EpilogueKind& kind, DType dtype,
                                double memory_gbs) {
    PlanRequest request;
    request.geometry = g;
    request.dtype = request.output_dtype = dtype;
    request.epilogue = kind;
    request.packed_filter = true;
    request.allow_tf32 = dtype == DType::fp32;
    request.device = known_gpu("h200");
    request.device.memory_gbs = memory_gbs;
    return request;
  }

  // Nothing where it refuses.
  static std::optional<double> judged_us(const KernelCandidate& candidate,
                                         const PlanRequest& request, bool corrected) {
    correct_times(corrected);
    const Judgement judgement = candidate.judge(request);
    correct_times(true);
    if (!judgement.refusal.empty()) return std::nullopt;
    return judgement.estimated_us;
  }

  void write_taught_tile(const cli::ShapeCase& layer, const std::string& name,
                         const sm90::Instance& instance) const {
    const ConvGeometry g = geometry_of(layer.problem);
    const EpilogueKind kind = layer.epilogue.value_or(EpilogueKind{});
    const sm90::Config& config = instance.config;
    if (config.in != DType::bf16 || config.out != config.in || g.groups != 1 || g.upsample != 1) {
      return;
    }
    for (int splits = 1; splits <= (config.splits_k() ? sm90::kMostSplits : 1); ++splits) {
      const ModelledTime time = tile_time(instance, g, splits, kind, options_.taught_gbs);
      write_line({.problem = to_string(layer.problem),
                  .dtype = "bf16",
                  .epilogue = to_string(kind),
                  .kernel = name,
                  .splits = config.splits_k() ? splits : 0},
                 corrected_us(CorrectedKernel::fprop, time, g, kind, DType::bf16), time.us,
                 correction_inputs(CorrectedKernel::fprop, time, g, kind, DType::bf16));
    }
  }

  static std::string key_of(const cli::MeasuredTime& row) {
    return text(row.layer(), " ", row.kernel, " ", row.splits);
  }

  void write_row(const cli::MeasuredTime& row, double first_us) const {
    const ConvGeometry given = geometry_of(cli::parse_shape(row.problem).problem);
    const EpilogueKind kind = cli::parse_epilogue(row.epilogue);
    const DType dtype = row.dtype == "fp32" ? DType::fp32 : DType::bf16;  // fp16 is as bf16.
    std::vector<Rewriting> forms = {{given, false}};
    // Each split of a kernel is measured on the problem as it is.
    const bool as_given = row.splits > 0;
    if (!as_given) {
      const std::vector<Rewriting> others = rewritings(given);
      forms.insert(forms.end(), others.begin(), others.end());
    }
    CorrectedKernel family = CorrectedKernel::fprop;
    double us = row.us;
    Rewriting form;
    ModelledTime time;
    if (const auto found = instances_.find(row.kernel); found != instances_.end()) {
      const sm90::Config& config = found->second->config;
      if (config.is_blockwise() || config.out != config.in || !knows_problem(given, dtype)) return;
      // The form that dispatch ran is the one whose time the file has.
      double nearest = std::numeric_limits<double>::max();
      int able = 0;
      for (const Rewriting& each : forms) {
        if (!sm90::refusal(*found->second, each.geometry, true).empty()) continue;
        ++able;
        const ModelledTime modelled =
            tile_time(*found->second, each.geometry, row.splits, kind, options_.memory_gbs);
        const double us_of_file = options_.corrected
                                      ? corrected_us(family, modelled, each.geometry, kind, dtype)
                                      : modelled.us;
        const double off = std::abs(us_of_file * rewriting_doubt(each) - row.modelled_us);
        if (off >= nearest) continue;
        nearest = off;
        form = each;
        time = modelled;
      }
      // NOTE: times in a file may be those of another build's network.
      if (able == 0 || (able > 1 && nearest > 0.01 * row.modelled_us)) return;
      if (options_.taught_gbs > 0) {
        time = tile_time(*found->second, form.geometry, row.splits, kind, options_.taught_gbs);
        us = corrected_us(family, time, form.geometry, kind, dtype) * rewriting_doubt(form) *
             row.us / first_us;
      }
    } else {
      const std::optional<CorrectedKernel> other = family_of(row, time);
      // NOTE: which of several forms such a kernel ran is not told by the file.
      if (!other || options_.taught_gbs > 0 || forms.size() > 1 || !knows_problem(given, dtype)) {
        return;
      }
      family = *other;
      form = forms[0];
      const PlanRequest request = request_of(given, kind, dtype, options_.memory_gbs);
      if (const auto tile = mma_instances_.find(row.kernel); tile != mma_instances_.end()) {
        time.us = mma::estimate_us(
            mma::plan_tiling(*tile->second, given, true, std::max(row.splits, 1)), request);
      } else {
        const auto candidate = candidates_.find(row.kernel);
        if (candidate == candidates_.end()) return;
        const std::optional<double> modelled = judged_us(*candidate->second, request, false);
        if (!modelled) return;
        time.us = *modelled;
      }
    }
    write_line(row, us, time.us * rewriting_doubt(form),
               correction_inputs(family, time, form.geometry, kind, dtype));
  }

  static void write_line(const cli::MeasuredTime& row, double us, double model_us,
                         const std::array<float, kCorrectionInputs>& inputs) {
    std::printf("%s,%s,%s,%s,%d,%.3f,%.4f", row.problem.c_str(), row.dtype.c_str(),
                row.epilogue.c_str(), row.kernel.c_str(), row.splits, us, model_us);
    for (const float x : inputs) std::printf(",%.6g", static_cast<double>(x));
    std::printf("\n");
  }

  ModelledTime tile_time(const sm90::Instance& instance, const ConvGeometry& g, int splits,
                         const EpilogueKind& kind, double memory_gbs) const {
    DeviceInfo device;
    device.compute_capability = 90;
    device.memory_gbs = memory_gbs;
    const sm90::Tiling tiling = sm90::plan_tiling(instance, g,
                                                  {.packed_filter = true,
                                                   .multiprocessors = options_.multiprocessors,
                                                   .splits = std::max(splits, 1),
                                                   .prologue = {},
                                                   .statistics_groups = 0});
    return sm90::model_time(g, tiling, options_.multiprocessors, kind, sm90::constants_of(device));
  }

  // Of a kernel outside sm90_fprop, with what its name says; nothing where it is not corrected.
  std::optional<CorrectedKernel> family_of(const cli::MeasuredTime& row, ModelledTime& time) const {
    if (const auto tile = mma_instances_.find(row.kernel); tile != mma_instances_.end()) {
      if (tile->second->config.split) return std::nullopt;
      time.block_m = tile->second->config.block_m;
      time.block_n = tile->second->config.block_n;
      time.splits = std::max(row.splits, 1);
      return CorrectedKernel::mma_fprop;
    }
    int pixels = 0, filters = 0, blocks = 1;  // sliced_k_16x32_4cta
    if (std::sscanf(row.kernel.c_str(), "sliced_k_%dx%d_%dcta", &pixels, &filters, &blocks) >= 2) {
      time.block_m = pixels;
      time.block_n = filters;
      time.splits = blocks;
      return CorrectedKernel::sliced_k;
    }
    const std::map<std::string, CorrectedKernel> others = {
        {"few_channels", CorrectedKernel::few_channels},
        {"few_filters", CorrectedKernel::few_filters},
        {"narrow_input", CorrectedKernel::narrow_input},
        {"pointwise", CorrectedKernel::pointwise},
        {"pointwise_narrow", CorrectedKernel::pointwise_narrow},
        {"pointwise_stream", CorrectedKernel::pointwise_stream},
        {"sm90_stem", CorrectedKernel::stem}};
    const auto other = others.find(row.kernel);
    if (other == others.end()) return std::nullopt;
    return other->second;
  }

  Options options_;
  std::map<std::string, const sm90::Instance*> instances_;
  std::map<std::string, const mma::Instance*> mma_instances_;
  std::map<std::string, const KernelCandidate*> candidates_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bench::CommandLine line("convoy_correction_inputs", "Inputs of the correction of model times.");
  line.number("--memory-gbs", options.memory_gbs, "of the GPU that the times are of");
  line.whole("--multiprocessors", options.multiprocessors, 1, 1000, "of it");
  line.number("--taught-gbs", options.taught_gbs, "times that this build's network gives for it");
  line.flag("--shapes", options.shapes, "with --taught-gbs: the files are shape files");
  line.flag("--corrected", options.corrected, "modelled times in the files are corrected ones");
  line.rest("TIMES", options.files, 1, "files of convoy_measure_kernels");
  return line.run(argc, argv, [&] {
    if (options.shapes && options.taught_gbs <= 0) {
      throw Error(Status::invalid_argument,
                  "--shapes without --taught-gbs; legal: both (nothing was measured); nearest: "
                  "--taught-gbs 4814, of an H200");
    }
    Writer(options).write();
    return 0;
  });
}
