// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "commands.hpp"
#include "fault.hpp"

namespace vgpu::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Site {
  std::string index;
  uint32_t line = 0;
  std::string function, source, opcode;
};

struct Effect {
  uint64_t executed = 0, useful = 0;
};

struct Outcome {
  int status = 0;  ///< exit status; 128 + signal; -1: ran out of time
  std::string out, err;
  double seconds = 0;
};

struct Arguments {
  std::vector<std::string> run_options;  ///< handed on to `vgpu run`
  std::vector<std::string> program;
  int runs = 3;        ///< runs of each mutant until something notices
  int jobs = 1;        ///< mutants that run at a time
  double timeout = 0;  ///< seconds a run; 0: ten times the unchanged program and 10 s
  std::string only;    ///< part of the opcode, the function or the source
  bool fail_on_survivors = false;
  bool help = false;
};

constexpr char kUsage[] = R"(usage: vgpu mutate [options] -- program [arguments]

Deletes one synchronising instruction of the program's kernels at a time, runs the program, and
tells what noticed:
  reported      a check, a fault or a deadlock report names the problem
  wrong result  no report, but the exit status or the output changed
  no effect     never executed, or it ordered nothing new in the unchanged run
  SURVIVED      none of these

It takes the options of 'vgpu run', and
  --runs N              how often a mutant runs until something notices: the first time as given,
                        then with random delivery and seeds 1, 2, ... (1 to 100, default 3)
  --jobs N              how many mutants run at a time (1 to 256, default 1)
  --timeout SECONDS     for one run (default: ten times the unchanged program, and 10 s)
  --only TEXT           only instructions whose opcode, function or source line holds TEXT
  --fail-on-survivors   exit status 1 when a deletion with an effect is not reported
)";

/// The whole of `text` as a number from `low` to `high`, else nothing.
template <typename T>
std::optional<T> parse_number(const std::string& text, T low, T high) {
  T number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !(number >= low && number <= high)) return {};
  return number;
}

/// What is wrong with the command line; empty when nothing is.
std::string parse(const std::vector<std::string>& words, Arguments& arguments) {
  size_t at = 0;
  for (; at < words.size() && words[at] != "--"; ++at) {
    const std::string& word = words[at];
    if (word == "--help" || word == "-h") {
      arguments.help = true;
      return {};
    }
    if (word == "--fail-on-survivors") {
      arguments.fail_on_survivors = true;
      continue;
    }
    const bool count = word == "--runs" || word == "--jobs";
    if (!count && word != "--timeout" && word != "--only") {
      arguments.run_options.push_back(word);
      continue;
    }
    if (++at >= words.size()) return word + " needs a value";
    const std::string& value = words[at];
    if (count) {
      const int most = word == "--runs" ? 100 : 256;
      const std::optional<int> number = parse_number(value, 1, most);
      if (!number) return format("%s %s: it must be 1 to %d", word.c_str(), value.c_str(), most);
      (word == "--runs" ? arguments.runs : arguments.jobs) = *number;
    } else if (word == "--timeout") {
      const std::optional<double> number = parse_number(value, 1e-3, 1e9);
      if (!number) {
        return format("--timeout %s: it must be a number of seconds, 0.001 to 1e9", value.c_str());
      }
      arguments.timeout = *number;
    } else {
      arguments.only = value;
    }
  }
  if (at + 1 >= words.size()) return "no program given";
  arguments.program.assign(words.begin() + static_cast<std::ptrdiff_t>(at) + 1, words.end());
  return {};
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Runs `vgpu run` as a child, its output in files of `folder`. One call at a time for each name.
class Runner {
 public:
  Runner(std::string self, const Arguments& arguments, std::filesystem::path folder)
      : self_(std::move(self)), arguments_(arguments), folder_(std::move(folder)) {}

  Outcome run(const std::map<std::string, std::string>& environment,
              const std::vector<std::string>& more_options, double timeout,
              const std::string& name) const {
    const auto out = folder_ / (name + ".out"), err = folder_ / (name + ".err");
    const auto start = Clock::now();
    Outcome outcome;
    const pid_t child = start_child(environment, more_options, out, err);
    outcome.status = child > 0 ? wait_for(child, start, timeout) : 127;
    outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    outcome.out = read_file(out);
    outcome.err = read_file(err);
    return outcome;
  }

 private:
  static std::vector<char*> pointers_to(std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  /// In a process group of its own; -1 when it cannot be started.
  pid_t start_child(const std::map<std::string, std::string>& environment,
                    const std::vector<std::string>& more_options, const std::filesystem::path& out,
                    const std::filesystem::path& err) const {
    std::vector<std::string> words = {self_, "run"}, variables;
    words.insert(words.end(), arguments_.run_options.begin(), arguments_.run_options.end());
    words.insert(words.end(), more_options.begin(), more_options.end());
    words.push_back("--");
    words.insert(words.end(), arguments_.program.begin(), arguments_.program.end());
    for (char** variable = environ; *variable; ++variable) {
      if (!environment.contains(std::string(*variable, std::strcspn(*variable, "=")))) {
        variables.push_back(*variable);
      }
    }
    for (const auto& [name, value] : environment) {
      variables.push_back(format("%s=%s", name.c_str(), value.c_str()));
    }

    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    for (auto [path, descriptor] : {std::pair{&out, 1}, std::pair{&err, 2}}) {
      posix_spawn_file_actions_addopen(&files, descriptor, path->c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0600);
    }
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    pid_t child = -1;
    const int error = posix_spawn(&child, self_.c_str(), &files, &attributes,
                                  pointers_to(words).data(), pointers_to(variables).data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (error == 0) return child;
    std::fprintf(stderr, "vgpu mutate: cannot start vgpu run: %s\n", std::strerror(error));
    return -1;
  }

  static int wait_for(pid_t child, Clock::time_point start, double timeout) {
    for (;;) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) == child) {
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      if (timeout > 0 && std::chrono::duration<double>(Clock::now() - start).count() > timeout) {
        kill(-child, SIGKILL);
        waitpid(child, &status, 0);
        return -1;
      }
      usleep(2000);
    }
  }

  std::string self_;
  const Arguments& arguments_;
  std::filesystem::path folder_;
};

std::vector<Site> read_sites(const std::filesystem::path& path) {
  std::vector<Site> sites;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    Site site;
    std::istringstream fields(line);
    std::string number;
    std::getline(fields, site.index, '\t');
    std::getline(fields, number, '\t');
    std::getline(fields, site.function, '\t');
    std::getline(fields, site.source, '\t');
    std::getline(fields, site.opcode, '\t');
    site.line = static_cast<uint32_t>(std::strtoul(number.c_str(), nullptr, 10));
    sites.push_back(std::move(site));
  }
  return sites;
}

std::map<uint32_t, Effect> read_effects(const std::filesystem::path& path) {
  std::map<uint32_t, Effect> effects;
  std::istringstream lines(read_file(path));
  uint32_t line;
  Effect effect;
  while (lines >> line >> effect.executed >> effect.useful) effects[line] = effect;
  return effects;
}

/// The line that says what was reported, or nothing.
std::string report_line(const std::string& err, const std::string& baseline_err) {
  std::istringstream lines(err);
  std::string in_kernel;
  for (std::string line; std::getline(lines, line);) {
    if (baseline_err.find(line) != std::string::npos) continue;
    for (const char* mark : {" check: ", "note: ", "deadlock"}) {
      if (line.find(mark) != std::string::npos) return line;
    }
    if (!in_kernel.empty()) return line.empty() ? in_kernel : line;
    if (line.starts_with("[vgpu]") && line.find(" in kernel ") != std::string::npos) {
      in_kernel = line;
    }
  }
  return in_kernel;
}

std::string shortened(std::string text, size_t width) {
  if (text.starts_with("[vgpu] ")) text.erase(0, 7);
  if (text.size() > width) text = text.substr(0, width - 3) + "...";
  return text;
}

struct Verdict {
  enum class Kind : uint8_t { reported, wrong, no_effect, survived } kind = Kind::survived;
  std::string detail;
};

struct Score {
  int reported = 0, wrong = 0, no_effect = 0, survived = 0;
};

class Mutator {
 public:
  Mutator(const Arguments& arguments, const Runner& runner, std::filesystem::path folder)
      : arguments_(arguments), runner_(runner), folder_(std::move(folder)) {}

  int run() {
    const auto list = folder_ / "sites", log = folder_ / "effects";
    baseline_ =
        runner_.run({{"VGPU_MUTATE", "list:" + list.string()}, {"VGPU_SYNC_EFFECTS", log.string()}},
                    {}, 0, "baseline");
    if (baseline_.status != 0) {
      std::fprintf(stderr, "vgpu mutate: the unchanged program ends with status %d:\n%s%s",
                   baseline_.status, baseline_.out.c_str(), baseline_.err.c_str());
      return 2;
    }
    const std::vector<Site> sites = read_sites(list);
    effects_ = read_effects(log);
    if (sites.empty()) {
      std::fprintf(stderr,
                   "vgpu mutate: the program's kernels have no synchronising instruction\n");
      return 2;
    }
    std::printf("unchanged program: %.2f s, %zu synchronising instructions\n", baseline_.seconds,
                sites.size());
    std::vector<Site> chosen;
    for (const Site& site : sites) {
      if (selected(site)) chosen.push_back(site);
    }
    const Score score = judge_all(chosen);
    const int counted = score.reported + score.wrong + score.survived;
    std::printf(
        "%d deletions: %d reported, %d wrong result only, %d no effect, %d survived; "
        "reported of those with an effect: %d of %d\n",
        counted + score.no_effect, score.reported, score.wrong, score.no_effect, score.survived,
        score.reported, counted);
    return arguments_.fail_on_survivors && score.survived + score.wrong > 0 ? 1 : 0;
  }

 private:
  bool selected(const Site& site) const {
    return arguments_.only.empty() || site.opcode.find(arguments_.only) != std::string::npos ||
           site.function.find(arguments_.only) != std::string::npos ||
           site.source.find(arguments_.only) != std::string::npos;
  }

  /// Judges them, `jobs` at a time, and prints the verdicts in their order.
  Score judge_all(const std::vector<Site>& sites) {
    Score score;
    std::vector<Verdict> verdicts(sites.size());
    std::vector<bool> done(sites.size());
    std::mutex mutex;  // guards what is above and the output
    size_t printed = 0;
    std::atomic<size_t> next = 0;
    auto work = [&](int job) {
      for (size_t k = next++; k < sites.size(); k = next++) {
        Verdict verdict = judge(sites[k], "job" + std::to_string(job));
        std::lock_guard lock(mutex);
        verdicts[k] = std::move(verdict);
        done[k] = true;
        for (; printed < sites.size() && done[printed]; ++printed) {
          print(sites[printed], verdicts[printed], score);
        }
      }
    };
    std::vector<std::thread> others;
    for (int job = 1; job < arguments_.jobs; ++job) others.emplace_back(work, job);
    work(0);
    for (std::thread& other : others) other.join();
    return score;
  }

  Verdict judge(const Site& site, const std::string& job) const {
    const auto known = effects_.find(site.line);
    const Effect effect = known != effects_.end() ? known->second : Effect{};
    // Deleting what never runs changes nothing: not worth a run.
    if (effect.executed == 0) return {Verdict::Kind::no_effect, "never executed"};
    const double timeout =
        arguments_.timeout > 0 ? arguments_.timeout : 10 * baseline_.seconds + 10;
    for (int attempt = 0; attempt < arguments_.runs; ++attempt) {
      std::vector<std::string> options;
      if (attempt > 0) options = {"--delivery", "random", "--seed", std::to_string(attempt)};
      const Outcome outcome =
          runner_.run({{"VGPU_MUTATE", "delete:" + site.index}}, options, timeout, job);
      const std::string report = report_line(outcome.err, baseline_.err);
      if (!report.empty()) return {Verdict::Kind::reported, report};
      if (outcome.status == -1) return {Verdict::Kind::wrong, "ran out of time"};
      if (outcome.status != baseline_.status || outcome.out != baseline_.out) {
        return {Verdict::Kind::wrong, "exit status " + std::to_string(outcome.status)};
      }
    }
    if (effect.useful == 0) {
      return {Verdict::Kind::no_effect, "ordered nothing new whenever it ran"};
    }
    return {Verdict::Kind::survived, ""};
  }

  static void print(const Site& site, const Verdict& verdict, Score& score) {
    const char* name = "";
    switch (verdict.kind) {
      case Verdict::Kind::reported:
        name = "reported";
        ++score.reported;
        break;
      case Verdict::Kind::wrong:
        name = "wrong result";
        ++score.wrong;
        break;
      case Verdict::Kind::no_effect:
        name = "no effect";
        ++score.no_effect;
        break;
      case Verdict::Kind::survived:
        name = "SURVIVED";
        ++score.survived;
        break;
    }
    const std::string where =
        site.source.empty() ? "ptx line " + std::to_string(site.line) : site.source;
    std::printf("%-12s  %-44s  %-52s  %s\n", name, where.c_str(), site.opcode.c_str(),
                shortened(verdict.detail, 110).c_str());
    std::fflush(stdout);
  }

  const Arguments& arguments_;
  const Runner& runner_;
  std::filesystem::path folder_;
  Outcome baseline_;
  std::map<uint32_t, Effect> effects_;
};

}  // namespace

int mutate(const std::vector<std::string>& words) {
  Arguments arguments;
  if (const std::string problem = parse(words, arguments); !problem.empty()) {
    std::fprintf(stderr, "vgpu mutate: %s\nSee 'vgpu mutate --help'.\n", problem.c_str());
    return 2;
  }
  if (arguments.help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  std::string pattern = (std::filesystem::temp_directory_path() / "vgpu-mutate-XXXXXX").string();
  if (!mkdtemp(pattern.data())) {
    std::perror("vgpu mutate: cannot make a temporary folder");
    return 2;
  }
  const std::filesystem::path folder = pattern;
  const Runner runner("/proc/self/exe", arguments, folder);
  const int status = Mutator(arguments, runner, folder).run();
  std::filesystem::remove_all(folder);
  return status;
}

}  // namespace vgpu::cli
