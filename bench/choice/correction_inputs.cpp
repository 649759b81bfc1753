// SPDX-License-Identifier: Apache-2.0
//
// What the correction of model times is trained on (train_correction.py): the rows of
// `convoy_measure_kernels` whose kernels it corrects, each with the network's inputs.
//
//   convoy_correction_inputs --memory-gbs 3352 TIMES.csv > inputs.csv
//     --memory-gbs       of the GPU that the times are of, GB/s (4814, an H200; an H100 has 3352)
//     --multiprocessors  of it (132)
//
// CSV columns: problem, dtype, epilogue, kernel, splits, us (measured), model_us (not corrected),
// x0 ... The model times of kernels outside sm90_fprop are those in the file, which `--uncorrected`
// wrote.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "command_line.hpp"
#include "kernels/mma/model.hpp"
#include "kernels/sm90/model.hpp"
#include "shape_file.hpp"
#include "shape_string.hpp"

namespace {

using namespace convoy;

struct Options {
  double memory_gbs = 4814;
  int multiprocessors = 132;
  std::vector<std::string> files;
};

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  return fields;
}

class Writer {
 public:
  explicit Writer(const Options& options) : options_(options) {
    device_.compute_capability = 90;
    device_.multiprocessors = options.multiprocessors;
    device_.memory_gbs = options.memory_gbs;
    for (const sm90::Instance& instance : sm90::instances()) {
      instances_[sm90::name_of(instance)] = &instance;
    }
    for (const mma::Instance& instance : mma::instances()) {
      mma_instances_[mma::name_of(instance)] = &instance;
    }
    std::printf("problem,dtype,epilogue,kernel,splits,us,model_us");
    for (int i = 0; i < kCorrectionInputs; ++i) std::printf(",x%d", i);
    std::printf("\n");
  }

  void write(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw Error(Status::invalid_argument, path + " cannot be read");
    std::string line;
    std::map<std::string, std::size_t> columns;
    while (std::getline(file, line)) {
      if (line.empty() || line[0] == '#') continue;
      const std::vector<std::string> fields = split(line);
      if (columns.empty()) {
        for (std::size_t i = 0; i < fields.size(); ++i) columns[fields[i]] = i;
        continue;
      }
      const auto field = [&](const char* name) { return fields.at(columns.at(name)); };
      write_row(field("problem"), field("dtype"), field("epilogue"), field("kernel"),
                std::stoi(field("splits")), std::stod(field("us")),
                std::stod(field("modelled_us")));
    }
  }

 private:
  void write_row(const std::string& problem, const std::string& dtype, const std::string& epilogue,
                 const std::string& kernel, int splits, double us, double modelled_us) const {
    const ConvGeometry g = geometry_of(cli::parse_shape(problem).problem);
    const EpilogueKind kind = cli::parse_epilogue(epilogue);
    CorrectedKernel family = CorrectedKernel::fprop;
    ModelledTime time;
    if (const auto found = instances_.find(kernel); found != instances_.end()) {
      const sm90::Config& config = found->second->config;
      if (config.in == DType::fp32 || config.out != config.in || g.groups != 1) return;
      // Dispatch had it run on the problem in another form.
      if (!sm90::refusal(*found->second, g, true).empty()) return;
      const sm90::Tiling tiling = sm90::plan_tiling(*found->second, g,
                                                    {.packed_filter = true,
                                                     .multiprocessors = device_.multiprocessors,
                                                     .splits = std::max(splits, 1),
                                                     .prologue = {},
                                                     .statistics_groups = 0});
      time =
          sm90::model_time(g, tiling, device_.multiprocessors, kind, sm90::constants_of(device_));
    } else {
      const auto tile = mma_instances_.find(kernel);
      if (tile != mma_instances_.end()) {
        family = CorrectedKernel::mma_fprop;
        time.block_m = tile->second->config.block_m;
        time.block_n = tile->second->config.block_n;
        time.splits = std::max(splits, 1);
      } else if (kernel == "few_filters") {
        family = CorrectedKernel::few_filters;
      } else if (kernel == "pointwise") {
        family = CorrectedKernel::pointwise;
      } else if (kernel == "pointwise_stream") {
        family = CorrectedKernel::pointwise_stream;
      } else if (kernel == "sm90_stem") {
        family = CorrectedKernel::stem;
      } else {
        return;
      }
      time.us = modelled_us;
    }
    std::printf("%s,%s,%s,%s,%d,%.3f,%.4f", problem.c_str(), dtype.c_str(), epilogue.c_str(),
                kernel.c_str(), splits, us, time.us);
    for (const float x : correction_inputs(family, time, g, kind)) {
      std::printf(",%.6g", static_cast<double>(x));
    }
    std::printf("\n");
  }

  Options options_;
  DeviceInfo device_;
  std::map<std::string, const sm90::Instance*> instances_;
  std::map<std::string, const mma::Instance*> mma_instances_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bench::CommandLine line("convoy_correction_inputs", "Inputs of the correction of model times.");
  line.number("--memory-gbs", options.memory_gbs, "of the GPU that the times are of");
  line.whole("--multiprocessors", options.multiprocessors, 1, 1000, "of it");
  line.rest("TIMES", options.files, 1, "files of convoy_measure_kernels");
  return line.run(argc, argv, [&] {
    Writer writer(options);
    for (const std::string& file : options.files) writer.write(file);
    return 0;
  });
}
