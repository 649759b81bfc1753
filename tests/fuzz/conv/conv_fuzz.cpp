// SPDX-License-Identifier: Apache-2.0
// Random convolutions against the fp64 reference.
//
//   conv_fuzz [--device cpu|cuda] [--seed 1] [--count 500] [--kernel name | --all-kernels]
//             [--max-flops 2e7] [--aligned] [--verbose]
//
// Case i has seed `seed + i`; a failure prints the command that repeats it alone. Outputs start as
// NaN, every buffer has guard zones, every case runs twice and must give the same bits. Cases that
// no kernel takes are counted, not failed. Exit code: 0 all passed, 1 a failure, 2 wrong usage.
//
//   conv_fuzz --interleave PLANS [--threads 3] [--rounds 3] [--seed 1] [--count 1] and as above
//
// Many plans alive at once: random problems, each on two of the kernels that take it and with a
// sibling of other extents on the same kernel, until there are PLANS of them. Then all run in
// random order, `rounds` times, from threads with streams of their own, a few enqueued before they
// are checked. Every fourth shares plan and packed filter with the one before. --count repeats the
// whole with the next seeds. With --threads 1 the order is the same every time.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/text.hpp"
#include "support/conv_case.hpp"
#include "support/guarded_buffer.hpp"

namespace {

using namespace convoy;
using namespace convoy::test;

struct Settings {
  Device device = Device::cpu;
  std::uint64_t seed = 1;
  std::uint64_t count = 0;  ///< 0: 500, or with `interleave` 1.
  std::uint64_t interleave = 0;
  unsigned threads = 3;
  unsigned rounds = 3;
  std::string kernel;
  bool all_kernels = false;
  bool verbose = false;
  CaseLimits limits;
};

[[noreturn]] void usage(const std::string& what) {
  std::fprintf(stderr,
               "conv_fuzz: %s\nusage: conv_fuzz [--device cpu|cuda] [--seed N] [--count N] "
               "[--kernel NAME | --all-kernels] [--max-flops X] [--aligned] [--verbose] "
               "[--interleave PLANS [--threads N] [--rounds N]]\n",
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
    } else if (option == "--interleave") {
      settings.interleave = number<std::uint64_t>(value());
    } else if (option == "--threads") {
      settings.threads = number<unsigned>(value());
    } else if (option == "--rounds") {
      settings.rounds = number<unsigned>(value());
    } else if (option == "--verbose") {
      settings.verbose = true;
    } else {
      usage("unknown option " + option);
    }
  }
  if (settings.count == 0) settings.count = settings.interleave > 0 ? 1 : 500;
  if (settings.threads == 0 || settings.rounds == 0) usage("--threads, --rounds: at least 1");
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
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates_of(c)) {
    if (candidate.reason.empty()) names.push_back(candidate.kernel);
  }
  return names;
}

// ---- Many plans alive at once ---------------------------------------------------------------

std::string repro_interleaved(const Settings& settings, std::uint64_t seed) {
  std::string line = text("conv_fuzz --device ", to_string(settings.device), " --interleave ",
                          settings.interleave, " --seed ", seed, " --threads ", settings.threads,
                          " --rounds ", settings.rounds, " --max-flops ", settings.limits.flops);
  if (settings.limits.aligned_channels) line += " --aligned";
  if (!settings.kernel.empty()) line += " --kernel " + settings.kernel;
  return line;
}

/// The kernels that take the case; `settings.kernel` alone where it is given.
std::vector<std::string> kernels_that_take(const Settings& settings, const ConvCase& c) {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates_of(c)) {
    const bool wanted = settings.kernel.empty() || settings.kernel == candidate.kernel;
    if (candidate.reason.empty() && wanted) names.push_back(candidate.kernel);
  }
  return names;
}

/// The cases of one seed: problems on kernels that take them, each with a sibling on the same
/// kernel where that takes it.
std::vector<ConvCase> interleaved_cases(const Settings& settings, std::uint64_t seed) {
  std::vector<ConvCase> cases;
  std::mt19937_64 random(seed);
  constexpr int kMostDraws = 10000;
  for (int draw = 0; draw < kMostDraws && cases.size() < settings.interleave; ++draw) {
    ConvCase c = random_case(random(), settings.limits);
    c.options.device = settings.device;
    ConvCase sibling = random_sibling(c, random(), settings.limits);
    const std::vector<std::string> accepting = kernels_that_take(settings, sibling);
    // NOTE: dozens of kernels may take a problem; more of other problems are worth more.
    constexpr std::size_t kOfOneProblem = 2;
    std::vector<std::string> kernels = kernels_that_take(settings, c);
    std::shuffle(kernels.begin(), kernels.end(), random);
    kernels.resize(std::min(kernels.size(), kOfOneProblem));
    for (const std::string& kernel : kernels) {
      c.options.kernel = sibling.options.kernel = kernel;
      cases.push_back(c);
      if (std::find(accepting.begin(), accepting.end(), kernel) != accepting.end()) {
        cases.push_back(sibling);
      }
    }
  }
  std::shuffle(cases.begin(), cases.end(), random);
  if (cases.size() > settings.interleave) cases.resize(settings.interleave);
  return cases;
}

/// A failure, told once; the others stop.
class Verdict {
 public:
  explicit Verdict(std::string command) : command_(std::move(command)) {}
  bool failed() const { return failed_; }
  void fail(const ConvCase& c, const std::string& detail) {
    const std::scoped_lock lock(mutex_);
    if (failed_.exchange(true)) return;
    std::printf("FAILED %s\n  %s\n  %s\n", command_.c_str(), describe(c).c_str(), detail.c_str());
    std::fflush(stdout);
  }

 private:
  std::string command_;
  std::mutex mutex_;
  std::atomic<bool> failed_ = false;
};

template <typename Work>
void in_threads(unsigned count, const Work& work) {
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

/// One seed. Whether it passed; `runs` counts by kernel.
bool run_interleaved(const Settings& settings, std::uint64_t seed,
                     std::map<std::string, int>& runs) {
  const std::vector<ConvCase> cases = interleaved_cases(settings, seed);
  Verdict verdict(repro_interleaved(settings, seed));
  if (cases.size() < settings.interleave) {
    std::printf("FAILED %s\n  only %zu plans can be made\n",
                repro_interleaved(settings, seed).c_str(), cases.size());
    return false;
  }

  // Make the plans, every fourth one shared by two sets of tensors.
  struct Subject {
    std::optional<PreparedCase> prepared;
    std::mutex mutex;  // One run at a time on one set of tensors.
  };
  std::deque<Subject> subjects(cases.size());
  std::atomic<std::size_t> next = 0;
  in_threads(settings.threads, [&] {
    for (std::size_t i = next++; i < cases.size() && !verdict.failed(); i = next++) {
      if (i % 4 == 3) continue;  // The twin of the one before.
      try {
        subjects[i].prepared.emplace(cases[i]);
        if (i % 4 == 2 && i + 1 < cases.size()) {
          subjects[i + 1].prepared.emplace(subjects[i].prepared->twin());
        }
      } catch (const std::exception& error) {
        verdict.fail(cases[i], error.what());
      }
    }
  });
  if (verdict.failed()) return false;

  // Run them.
  std::vector<std::size_t> order;
  for (unsigned round = 0; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < subjects.size(); ++i) order.push_back(i);
  }
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15u);
  std::shuffle(order.begin(), order.end(), random);
  next = 0;
  in_threads(settings.threads, [&] {
    const Stream stream(settings.device);
    constexpr std::size_t kEnqueued = 3;
    for (std::size_t first = next.fetch_add(kEnqueued); first < order.size() && !verdict.failed();
         first = next.fetch_add(kEnqueued)) {
      // The tensors of these, in the order of their numbers so that no two threads wait for each
      // other; each once.
      std::vector<std::size_t> batch(
          order.begin() + std::ptrdiff_t(first),
          order.begin() + std::ptrdiff_t(std::min(first + kEnqueued, order.size())));
      std::sort(batch.begin(), batch.end());
      batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
      std::vector<std::unique_lock<std::mutex>> locks;
      for (const std::size_t i : batch) locks.emplace_back(subjects[i].mutex);
      std::shuffle(batch.begin(), batch.end(), std::mt19937_64(seed + first));
      std::size_t at = batch.front();
      try {
        for (const std::size_t i : batch) subjects[at = i].prepared->run(stream.get());
        for (const std::size_t i : batch) {
          const std::string wrong = subjects[at = i].prepared->check(stream.get());
          if (!wrong.empty()) verdict.fail(subjects[i].prepared->conv_case(), wrong);
        }
      } catch (const std::exception& error) {
        verdict.fail(subjects[at].prepared->conv_case(), error.what());
      }
    }
  });
  if (verdict.failed()) return false;
  for (const std::size_t i : order) ++runs[subjects[i].prepared->kernel()];
  return true;
}

int interleave(const Settings& settings) {
  std::map<std::string, int> runs;
  std::uint64_t failed = 0;
  for (std::uint64_t i = 0; i < settings.count; ++i) {
    failed += run_interleaved(settings, settings.seed + i, runs) ? 0 : 1;
  }
  for (const auto& [kernel, times] : runs) std::printf("%-40s %d runs\n", kernel.c_str(), times);
  std::printf("%llu times %llu plans alive from seed %llu: %llu failed\n",
              static_cast<unsigned long long>(settings.count),
              static_cast<unsigned long long>(settings.interleave),
              static_cast<unsigned long long>(settings.seed),
              static_cast<unsigned long long>(failed));
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  if (settings.interleave > 0) return interleave(settings);
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
