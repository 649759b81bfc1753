// SPDX-License-Identifier: Apache-2.0
// Random convolutions against the fp64 reference.
//
//   conv_fuzz [--device cpu|cuda] [--seed 1] [--count 500] [--kernel name | --all-kernels]
//             [--max-flops 2e7] [--aligned] [--verbose]
//
// Case i has seed `seed + i`; a failure prints the command that repeats it alone. Outputs start as
// NaN, every buffer has guard zones, every case runs twice and must give the same bits. Cases that
// no kernel takes are counted, not failed. Exit code: 0 all passed, 1 a failure, 2 wrong usage.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "core/text.hpp"
#include "support/conv_case.hpp"

namespace {

using namespace convoy;
using namespace convoy::test;

struct Settings {
  Device device = Device::cpu;
  std::uint64_t seed = 1;
  std::uint64_t count = 500;
  std::string kernel;
  bool all_kernels = false;
  bool verbose = false;
  CaseLimits limits;
};

[[noreturn]] void usage(const std::string& what) {
  std::fprintf(stderr,
               "conv_fuzz: %s\nusage: conv_fuzz [--device cpu|cuda] [--seed N] [--count N] "
               "[--kernel NAME | --all-kernels] [--max-flops X] [--aligned] [--verbose]\n",
               what.c_str());
  std::exit(2);
}

template <typename Number>
Number number(const std::string& value) {
  Number result{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc{} || end != value.data() + value.size()) {
    usage("'" + value + "' is not a number");
  }
  return result;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) usage(option + " needs a value");
      return argv[++i];
    };
    if (option == "--device") {
      const std::string name = value();
      if (name != "cpu" && name != "cuda") usage("--device " + name + ": cpu or cuda");
      settings.device = name == "cuda" ? Device::cuda : Device::cpu;
    } else if (option == "--seed") {
      settings.seed = number<std::uint64_t>(value());
    } else if (option == "--count") {
      settings.count = number<std::uint64_t>(value());
    } else if (option == "--kernel") {
      settings.kernel = value();
    } else if (option == "--all-kernels") {
      settings.all_kernels = true;
    } else if (option == "--max-flops") {
      settings.limits.flops = number<double>(value());
    } else if (option == "--aligned") {
      settings.limits.aligned_channels = true;
    } else if (option == "--verbose") {
      settings.verbose = true;
    } else {
      usage("unknown option " + option);
    }
  }
  return settings;
}

std::string repro(const Settings& settings, const ConvCase& c) {
  std::string line = text("conv_fuzz --device ", to_string(settings.device), " --seed ", c.seed,
                          " --count 1 --max-flops ", settings.limits.flops);
  if (settings.limits.aligned_channels) line += " --aligned";
  if (!c.options.kernel.empty()) line += " --kernel " + c.options.kernel;
  return line;
}

/// The kernels to run a case on: names, or one empty name for dispatch's own choice.
std::vector<std::string> kernels_to_run(const Settings& settings, const ConvCase& c) {
  if (!settings.all_kernels) return {settings.kernel};
  PlanOptions options = c.options;
  options.epilogue = c.epilogue.kind();
  std::vector<std::string> names;
  for (const Candidate& candidate : convoy::candidates(c.problem, options)) {
    if (candidate.reason.empty()) names.push_back(candidate.kernel);
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  std::map<std::string, int> passed;
  std::uint64_t refused = 0;
  std::uint64_t failed = 0;
  std::uint64_t done = 0;
  bool device_lost = false;
  for (; done < settings.count && !device_lost; ++done) {
    ConvCase c = random_case(settings.seed + done, settings.limits);
    c.options.device = settings.device;
    for (const std::string& kernel : kernels_to_run(settings, c)) {
      if (device_lost) break;
      c.options.kernel = kernel;
      if (settings.verbose) {
        std::printf("%llu %s %s\n", static_cast<unsigned long long>(c.seed), kernel.c_str(),
                    describe(c).c_str());
        std::fflush(stdout);
      }
      CaseResult result;
      try {
        result = run_case(c);
      } catch (const Error& error) {
        if (error.status() == Status::unsupported) {
          ++refused;
          if (settings.verbose) std::printf("  refused: %s\n", error.what());
          continue;
        }
        result.detail = text(to_string(error.status()), ": ", error.what());
      } catch (const std::exception& error) {
        // From the memory of the tests: a CUDA device does nothing more after such a failure.
        device_lost = true;
        result.detail = error.what();
      }
      if (result.pass) {
        ++passed[result.kernel];
        continue;
      }
      ++failed;
      std::printf("FAILED %s\n  %s\n  kernel %s: %s\n", repro(settings, c).c_str(),
                  describe(c).c_str(), result.kernel.c_str(), result.detail.c_str());
      std::fflush(stdout);
    }
  }
  for (const auto& [kernel, times] : passed)
    std::printf("%-40s %d passed\n", kernel.c_str(), times);
  if (device_lost) std::printf("stopped: the device is lost\n");
  std::printf("%llu cases from seed %llu: %llu failed, %llu refused\n",
              static_cast<unsigned long long>(done), static_cast<unsigned long long>(settings.seed),
              static_cast<unsigned long long>(failed), static_cast<unsigned long long>(refused));
  return failed == 0 ? 0 : 1;
}
