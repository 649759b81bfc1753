// SPDX-License-Identifier: Apache-2.0
//
// What `convoy bench --vs cudnn` runs. A program of its own, so that `convoy` itself needs no
// cuDNN.
//
// convoy_vs_cudnn [--all-kernels] [--kernels PREFIX]... [--kernel NAME] [--engines PART]
//                 [--cutlass] [--dtype TYPE] [--tf32] [--seconds S] [--csv FILE]
//                 [--tuning FILE] [--chain RUNS] [--budget S] [--part I/N] [--lock FILE] SHAPES...
// SHAPES: shape files (the set is named after the file) or shape strings. --part: every N-th shape
// from the I-th on (0 to N - 1). Most of a shape's time goes into building cuDNN's plans, on one
// core: several processes share a list by --part, and the GPU by --lock. --cutlass: its
// convolutions for compute capability 8.0 are the peer, where CUTLASS_PATH named the folder of its
// include/ when the build was configured.
#include <cstdio>
#include <filesystem>

#include "command_line.hpp"
#include "convoy/error.hpp"
#include "cutlass_convolution.hpp"
#include "versus.hpp"

namespace {

using namespace convoy;

std::vector<bench::VersusSet> sets_of(const std::vector<std::string>& words) {
  std::vector<bench::VersusSet> sets;
  for (const std::string& word : words) {
    const bool is_set = std::filesystem::exists(word) || !cli::find_shape_set(word).empty();
    const std::string name = is_set ? std::filesystem::path(word).stem().string() : "shapes";
    // Shapes given one by one are one set.
    if (is_set || sets.empty() || sets.back().name != name) sets.push_back({name, {}});
    for (cli::ShapeCase& shape : cli::resolve_shapes(word)) {
      sets.back().cases.push_back(std::move(shape));
    }
  }
  return sets;
}

void parse_part(const std::string& part, bench::VersusOptions& options) {
  int end = 0;
  if (std::sscanf(part.c_str(), "%d/%d%n", &options.part, &options.parts, &end) != 2 ||
      part[std::size_t(end)] != '\0' || options.part < 0 || options.part >= options.parts) {
    throw Error(Status::invalid_argument,
                "--part " + part + " is not legal; legal: I/N with 0 <= I < N");
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::VersusOptions options;
  std::vector<std::string> words;
  std::string part = "0/1";
  bench::CommandLine line("convoy_vs_cudnn", "Layers by Convoy and by cuDNN's best plan.");
  line.flag("--all-kernels", options.all_kernels, "every kernel that the model gives a chance");
  line.words("--kernels", options.families, "those alone whose names begin so");
  line.word("--kernel", options.kernel, "Convoy's kernel; else dispatch chooses");
  line.word("--engines", options.engines, "cuDNN's plans alone whose kernels have this in a name");
  line.flag("--cutlass", options.cutlass, "CUTLASS's convolutions for 8.0 in place of cuDNN's");
  line.dtype(options.dtype);
  line.flag("--tf32", options.allow_tf32, "with fp32: products of TF32 will do, on both sides");
  line.number("--seconds", options.seconds, "of timed runs, each side of each layer");
  line.number("--budget", options.budget_s, "seconds after which no layer is begun");
  line.whole("--chain", options.chain, 1, 1000, "runs of a CUDA graph that is timed as a whole");
  line.word("--part", part, "I/N: every N-th layer from the I-th on");
  line.word("--lock", options.lock_path, "held while the GPU is timed");
  line.word("--tuning", options.tuning_path, "with all kernels: the best ones as a tuning file");
  line.word("--csv", options.csv_path, "the table as a file; - is stdout");
  line.rest("SHAPES", words, 1, bench::kShapesHelp);
  return line.run(argc, argv, [&] {
    parse_part(part, options);
    if (options.cutlass && bench::cutlass_version().empty()) {
      throw Error(
          Status::unsupported,
          "--cutlass: this program was built without CUTLASS; CUTLASS_PATH names the folder "
          "that holds its include/ when the build is configured");
    }
    options.all_kernels |= !options.families.empty() || !options.tuning_path.empty();
    const int different = bench::compare_with_cudnn(sets_of(words), options);
    if (different > 0) std::fprintf(stderr, "%d outputs differ from the peer's\n", different);
    return different > 0 ? 1 : 0;
  });
}
