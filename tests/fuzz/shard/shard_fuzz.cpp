// SPDX-License-Identifier: Apache-2.0
// Random convolutions over several ranks against one: shard_fuzz --help.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "support/guarded_buffer.hpp"
#include "support/shard_case.hpp"

namespace {

using namespace convoy;

constexpr const char* kHelp =
    "shard_fuzz [--device cpu|cuda] [--ranks 2,3,4] [--axes height,width,frames,batch]\n"
    "           [--seed N] [--count N] [--seconds S] [--max-flops F] [--reals] [--faults]\n"
    "cpu: ranks are threads over host memory; cuda: one device a rank, by NCCL.\n"
    "--faults: a rank that stops and ranks that differ, instead: what each rank says.\n"
    "--reals: real numbers for small integers; sums then depend on their order.\n";

struct Options {
  Device device = Device::cpu;
  std::vector<int> ranks = {1, 2, 3, 4, 8};
  std::vector<ShardAxis> axes = {ShardAxis::height, ShardAxis::width, ShardAxis::frames,
                                 ShardAxis::batch};
  std::uint64_t seed = 1;
  long count = 1000;
  double seconds = 1e9;
  double flops = 2e7;
  bool reals = false;
  bool faults = false;
};

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> found(1);
  for (const char c : list) {
    if (c == ',') {
      found.emplace_back();
    } else {
      found.back() += c;
    }
  }
  return found;
}

ShardAxis axis_of(const std::string& word) {
  for (const ShardAxis axis :
       {ShardAxis::height, ShardAxis::width, ShardAxis::frames, ShardAxis::batch}) {
    if (word == to_string(axis)) return axis;
  }
  std::fprintf(stderr, "axis '%s' is not legal; legal: height, width, frames, batch\n",
               word.c_str());
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    if (name == "--reals") {
      o.reals = true;
      continue;
    }
    if (name == "--faults") {
      o.faults = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fputs(kHelp, stderr);
      std::exit(2);
    }
    const std::string value = argv[++i];
    if (name == "--device" && (value == "cpu" || value == "cuda")) {
      o.device = value == "cuda" ? Device::cuda : Device::cpu;
    } else if (name == "--ranks") {
      o.ranks.clear();
      for (const std::string& word : words(value)) o.ranks.push_back(std::atoi(word.c_str()));
    } else if (name == "--axes") {
      o.axes.clear();
      for (const std::string& word : words(value)) o.axes.push_back(axis_of(word));
    } else if (name == "--seed") {
      o.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "--count") {
      o.count = std::atol(value.c_str());
    } else if (name == "--seconds") {
      o.seconds = std::atof(value.c_str());
    } else if (name == "--max-flops") {
      o.flops = std::atof(value.c_str());
    } else {
      std::fputs(kHelp, stderr);
      std::exit(2);
    }
  }
  return o;
}

/// Every rank must say what is wrong, within the time-out and a little.
int faults(const Options& o) {
  const int ranks = std::max(o.ranks.front(), 2);
  const Conv2dProblemShape layer{.in_height = 32,
                                 .in_width = 32,
                                 .in_channels = 64,
                                 .out_channels = 64,
                                 .filter_h = 3,
                                 .filter_w = 3,
                                 .pad_h = 1,
                                 .pad_w = 1};
  int wrong = 0;
  const auto show = [&](const char* what, const std::vector<std::string>& said, int silent) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string& text = said[static_cast<std::size_t>(rank)];
      std::printf("%s: rank %d: %s\n", what, rank, text.empty() ? "(nothing)" : text.c_str());
      wrong += text.empty() && rank != silent ? 1 : 0;
    }
  };
  const auto plan_of = [&](const Communicator& c, std::int64_t height) {
    Conv2dProblemShape problem = layer;
    problem.in_height = height;
    return plan_shard(problem, {.device = o.device}, c, {.count = ranks});
  };
  test::RankThreads threads(o.device, ranks, std::chrono::seconds(3));
  show("differ", threads.run([&](const Communicator& c) { plan_of(c, 32 + c.rank() % 2); }), -1);
  show("stops", threads.run([&](const Communicator& c) {
    plan_of(c, 32);
    if (c.rank() == 1) return;
    const test::GuardedBuffer sent(o.device, 16), received(o.device, 4096);
    c.all_gather(sent.data(), received.data(), 16);
    c.synchronize();
  }),
       1);
  return wrong > 0 ? 1 : 0;
}

int fuzz(const Options& o) {
  const auto begin = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  long ran = 0, refused = 0, unsupported = 0, failed = 0, interior = 0;
  for (std::uint64_t seed = o.seed; ran + refused < o.count && spent() < o.seconds; ++seed) {
    const int ranks = o.ranks[seed % o.ranks.size()];
    const ShardAxis axis = o.axes[seed / o.ranks.size() % o.axes.size()];
    test::ShardCase c = test::random_shard_case(
        seed, ranks, axis, {.flops = o.flops, .aligned_channels = o.device == Device::cuda});
    c.conv.options.device = o.device;
    c.exact = !o.reals;
    test::ShardResult result;
    try {
      result = test::run_shard_case(c);
    } catch (const Error& error) {
      if (error.status() == Status::unsupported) {
        ++unsupported;
        continue;
      }
      result.wrong = error.what();
    } catch (const std::exception& error) {
      result.wrong = error.what();
    }
    ran += result.ran ? 1 : 0;
    refused += result.ran ? 0 : 1;
    interior += result.interior ? 1 : 0;
    if (result.wrong.empty()) continue;
    ++failed;
    std::printf(
        "FAILED %s\n  %s\n  repeat: shard_fuzz --device %s --seed %llu --count 1 --ranks %d "
        "--axes %s --max-flops %g%s\n",
        describe(c).c_str(), result.wrong.c_str(), o.device == Device::cuda ? "cuda" : "cpu",
        static_cast<unsigned long long>(seed), ranks, to_string(axis), o.flops,
        o.reals ? " --reals" : "");
    if (failed == 20) break;
  }
  std::printf(
      "shard_fuzz: %ld ran (%ld with their interior beside the exchange), %ld cuts refused, "
      "%ld unsupported, %ld failed, %.1f s\n",
      ran, interior, refused, unsupported, failed, spent());
  return failed > 0 || ran == 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    return options.faults ? faults(options) : fuzz(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shard_fuzz: %s\n", error.what());
    return 1;
  }
}
