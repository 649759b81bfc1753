// SPDX-License-Identifier: Apache-2.0
//
// What `convoy bench --vs cudnn` runs. A program of its own, so that `convoy` itself needs no
// cuDNN.
//
// convoy_vs_cudnn [--all-kernels] [--kernels PREFIX]... [--kernel NAME] [--engines PART]
//                 [--dtype TYPE] [--seconds S] [--csv FILE]
//                 [--tuning FILE] [--chain RUNS] [--budget S] [--part I/N] [--lock FILE] SHAPES...
// SHAPES: shape files (the set is named after the file) or shape strings. --part: every N-th shape
// from the I-th on (0 to N - 1). Most of a shape's time goes into building cuDNN's plans, on one
// core: several processes share a list by --part, and the GPU by --lock.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "convoy/error.hpp"
#include "versus.hpp"

int main(int argc, char** argv) {
  // Rows appear as they come, also through a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  convoy::bench::VersusOptions options;
  std::vector<convoy::bench::VersusSet> sets;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const auto value = [&] {
        if (i + 1 == argc) {
          throw convoy::Error(convoy::Status::invalid_argument, word + " needs a value");
        }
        return std::string(argv[++i]);
      };
      if (word == "--all-kernels") {
        options.all_kernels = true;
      } else if (word == "--kernels") {
        options.all_kernels = true;
        options.families.push_back(value());
      } else if (word == "--engines") {
        options.engines = value();
      } else if (word == "--kernel") {
        options.kernel = value();
      } else if (word == "--seconds") {
        options.seconds = std::stod(value());
      } else if (word == "--budget") {
        options.budget_s = std::stod(value());
      } else if (word == "--lock") {
        options.lock_path = value();
      } else if (word == "--part") {
        const std::string part = value();
        if (std::sscanf(part.c_str(), "%d/%d", &options.part, &options.parts) != 2 ||
            options.part < 0 || options.part >= options.parts) {
          throw convoy::Error(convoy::Status::invalid_argument,
                              "--part " + part + " is not legal; legal: I/N with 0 <= I < N");
        }
      } else if (word == "--chain") {
        const std::string runs = value();
        const auto [end, error] =
            std::from_chars(runs.data(), runs.data() + runs.size(), options.chain);
        if (error != std::errc{} || end != runs.data() + runs.size() || options.chain < 1 ||
            options.chain > 1000) {
          throw convoy::Error(convoy::Status::invalid_argument,
                              "--chain " + runs + " is not legal; legal: 1 to 1000");
        }
      } else if (word == "--tuning") {
        options.all_kernels = true;
        options.tuning_path = value();
      } else if (word == "--dtype") {
        const std::string name = value();
        if (name != "bf16" && name != "fp16" && name != "fp32") {
          throw convoy::Error(convoy::Status::invalid_argument,
                              "--dtype " + name + " is not legal; legal: bf16, fp16, fp32");
        }
        options.dtype = name == "bf16"   ? convoy::DType::bf16
                        : name == "fp16" ? convoy::DType::fp16
                                         : convoy::DType::fp32;
      } else if (word == "--csv") {
        options.csv_path = value();
      } else {
        const bool is_set =
            std::filesystem::exists(word) || !convoy::cli::find_shape_set(word).empty();
        const std::string name =
            is_set ? std::filesystem::path(word).stem().string() : std::string("shapes");
        // Shapes given one by one are one set.
        if (is_set || sets.empty() || sets.back().name != name) sets.push_back({name, {}});
        for (convoy::cli::ShapeCase& shape : convoy::cli::resolve_shapes(word)) {
          sets.back().cases.push_back(std::move(shape));
        }
      }
    }
    if (sets.empty()) {
      throw convoy::Error(convoy::Status::invalid_argument, "no shape file or shape is given");
    }
    const int different = convoy::bench::compare_with_cudnn(sets, options);
    if (different > 0) std::fprintf(stderr, "%d outputs differ from cuDNN's\n", different);
    return different > 0 ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "convoy_vs_cudnn: %s\n", error.what());
    return 2;
  }
}
