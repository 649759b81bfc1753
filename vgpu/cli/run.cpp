// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>

#include "commands.hpp"
#include "elf_file.hpp"

namespace vgpu::cli {
namespace {

constexpr int kUsageError = 2, kCannotRun = 126, kCannotStart = 127;
constexpr const char* kLibrary = "libcudart.so.13";

const char* const kUsage = R"(usage: vgpu run [options] [--] program [arguments]

Runs a CUDA program on a virtual GPU. The program is not changed; it must be built with
  nvcc -cudart shared -gencode arch=compute_100a,code=[sm_100a,compute_100a]     (b200)
  nvcc -cudart shared -gencode arch=compute_100f,code=[sm_100f,compute_100f]     (b200, b300)
  nvcc -cudart shared -gencode arch=compute_90a,code=[sm_90a,compute_90a]        (h200)
  nvcc -cudart shared -gencode arch=compute_80,code=[sm_80,compute_80]           (any)

  --gpu NAME          the GPU to stand in for (default b200): a100, rtx3090, l40s, rtx4090, h200,
                      b200, b300 or rtx5090
  --seed N            seed of every random choice (default 1); the same seed repeats a run
  --delivery POLICY   when asynchronous operations (TMA, MMA) happen: late, early, sweep or random
                      (default late, as late as is legal)
  --sums KIND         how tensor cores add products in fp32: fused (default, one after the other,
                      rounded to nearest) or cut (several at once, cut off towards zero, which is
                      nearer to what GPUs do, and slower here)
  --check LIST        all (default), none, or a comma-separated list of
                      race            unordered accesses of shared memory and TMEM
                      proxy           generic writes that TMA or MMA reads without a proxy fence
                      init            reads of memory that was never written
                      mbarrier        barriers used before their initialisation, or overwritten;
                                      arrivals that their CTA does not outlive, as notes
                      tcgen05         missing tcgen05 fences, as notes
                      registers       registers of wgmma and tcgen05.ld used too early
                      leak            TMEM that is never freed
                      reads           (not in all) reads before a TMA write without a proxy fence
                      strict          (with others) notes are errors
                      Bounds, alignment and use after free (oob) are always checked.
  --stats             statistics of every kernel on stderr at the end
  --trace FILE        timeline of the kernels as Chrome-trace JSON; open it in ui.perfetto.dev
  --threads N         host threads that run clusters (default 1)
  --spin N            warp instructions without side effects until a kernel counts as stuck
                      (default 100000000)
  --sms N             streaming multiprocessors (default: as many as the GPU has)
  --log N             0 silent, 1 failures (default), 2 every launch, 3 tensor maps
)";

struct Option {
  const char* name;
  const char* variable;
  bool has_value;
};

constexpr Option kOptions[] = {
    {"--gpu", "VGPU_GPU", true},           {"--seed", "VGPU_SEED", true},
    {"--delivery", "VGPU_DELIVERY", true}, {"--check", "VGPU_CHECK", true},
    {"--sums", "VGPU_SUMS", true},         {"--stats", "VGPU_STATS", false},
    {"--trace", "VGPU_TRACE", true},       {"--threads", "VGPU_THREADS", true},
    {"--sms", "VGPU_SMS", true},           {"--spin", "VGPU_SPIN", true},
    {"--log", "VGPU_LOG", true},
};

int usage_error(const std::string& problem) {
  std::fprintf(stderr, "vgpu run: %s\nSee 'vgpu run --help'.\n", problem.c_str());
  return kUsageError;
}

bool is_one_of(const std::string& value, std::initializer_list<const char*> choices) {
  for (const char* choice : choices) {
    if (value == choice) return true;
  }
  return false;
}

// Empty when the value is legal for the option.
std::string check_value(const std::string& name, const std::string& value) {
  if (name == "--gpu" && !is_one_of(value, {"a100", "rtx3090", "l40s", "rtx4090", "h200", "b200",
                                            "b300", "rtx5090"})) {
    return "--gpu " + value +
           ": it must be a100, rtx3090, l40s, rtx4090, h200, b200, b300 or rtx5090";
  }
  if (name == "--delivery" && !is_one_of(value, {"late", "early", "sweep", "random"})) {
    return "--delivery " + value + ": it must be late, early, sweep or random";
  }
  if (name == "--sums" && !is_one_of(value, {"fused", "cut"})) {
    return "--sums " + value + ": it must be fused or cut";
  }
  if (is_one_of(name, {"--seed", "--threads", "--sms", "--spin", "--log"})) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const uint64_t low = name == "--spin" ? 1000 : name == "--threads" || name == "--sms" ? 1 : 0;
    const uint64_t high = name == "--seed" || name == "--spin" ? ~0ull
                          : name == "--log"                    ? 3
                          : name == "--sms"                    ? 4096
                                                               : 1024;
    if (error != std::errc() || end != value.data() + value.size() || number < low ||
        number > high) {
      return name + " " + value + ": it must be a number from " + std::to_string(low) + " to " +
             std::to_string(high);
    }
  }
  if (name == "--trace" && value.empty()) return "--trace: the file name is empty";
  return {};
}

// The program's file: as execvp would find it.
std::optional<std::string> find_program(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (name.find('/') != std::string::npos) {
    return fs::exists(name, ignored) ? std::optional(name) : std::nullopt;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0 && !fs::is_directory(candidate, ignored)) {
      return candidate;
    }
  }
  return std::nullopt;
}

// Why a program cannot run on the virtual GPU; empty when nothing speaks against it. Scripts and
// programs whose kernels are in a shared library cannot be judged by their file: they pass.
std::string check_program(const ElfFile& program) {
  const bool has_kernels =
      program.has_section(".nv_fatbin") || program.has_section(".nvFatBinSegment");
  if (program.has_section("__nv_relfatbin")) {
    return "it was built with -rdc=true (relocatable device code), which hides the PTX of its "
           "kernels from the fat binary the runtime sees. Build it without -rdc=true "
           "(CMake: CUDA_SEPARABLE_COMPILATION OFF)";
  }
  if (!has_kernels || program.needs(kLibrary)) return {};
  for (const std::string& library : program.needed) {
    if (library.rfind("libcudart.so.", 0) == 0) {
      return "it is linked with " + library + ". Build it with CUDA 13, whose runtime is " +
             std::string(kLibrary);
    }
  }
  return "it holds kernels and is linked with the static CUDA runtime, nvcc's default. Link it "
         "with\n  nvcc -cudart shared\n(CMake: set the target's CUDA_RUNTIME_LIBRARY to Shared)";
}

void put_in_front(const char* variable, const std::string& value) {
  const char* old = std::getenv(variable);
  const std::string joined = old && *old ? value + ":" + old : value;
  setenv(variable, joined.c_str(), 1);
}

// The folder of libcudart.so.13 and libcuda.so.1; empty (and an explanation on stderr) when it is
// not found.
std::string library_folder() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path folder = self.parent_path().parent_path() / "lib" / "vgpu";
    if (fs::exists(folder / kLibrary, error)) return folder.string();
    std::fprintf(stderr, "vgpu: %s is not in %s\n", kLibrary, folder.c_str());
  }
  return {};
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  size_t at = 0;
  for (; at < arguments.size(); ++at) {
    std::string name = arguments[at], value;
    if (name == "--help" || name == "-h") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (name == "--") {
      ++at;
      break;
    }
    if (name.empty() || name[0] != '-') break;
    const size_t equals = name.find('=');
    const bool joined = equals != std::string::npos;
    if (joined) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const Option* option = nullptr;
    for (const Option& known : kOptions) {
      if (name == known.name) option = &known;
    }
    if (option == nullptr) return usage_error("unknown option " + name);
    if (!option->has_value) {
      if (joined) return usage_error(name + " takes no value");
      value = "1";
    } else if (!joined) {
      if (++at >= arguments.size()) return usage_error(name + " needs a value");
      value = arguments[at];
    }
    if (const std::string problem = check_value(name, value); !problem.empty()) {
      return usage_error(problem);
    }
    setenv(option->variable, value.c_str(), 1);
  }
  if (at >= arguments.size()) return usage_error("no program given");

  const std::string& name = arguments[at];
  const std::optional<std::string> path = find_program(name);
  if (!path) {
    std::fprintf(stderr, "vgpu run: %s: not found\n", name.c_str());
    return kCannotStart;
  }
  const std::string folder = library_folder();
  if (folder.empty()) return kCannotStart;
  const std::optional<ElfFile> program = read_elf(*path);
  if (program) {
    if (const std::string problem = check_program(*program); !problem.empty()) {
      std::fprintf(stderr, "vgpu run: %s cannot run on the virtual GPU: %s\n", name.c_str(),
                   problem.c_str());
      return kCannotRun;
    }
    // NOTE: the loader looks into DT_RPATH before LD_LIBRARY_PATH; a preloaded library of the same
    // name wins over both.
    if (program->has_rpath) put_in_front("LD_PRELOAD", folder + "/" + kLibrary);
  }
  put_in_front("LD_LIBRARY_PATH", folder);

  std::vector<char*> argv;
  for (size_t i = at; i < arguments.size(); ++i) {
    argv.push_back(const_cast<char*>(arguments[i].c_str()));
  }
  argv.push_back(nullptr);
  execv(path->c_str(), argv.data());
  std::fprintf(stderr, "vgpu run: %s: %s\n", path->c_str(), std::strerror(errno));
  return kCannotStart;
}

}  // namespace vgpu::cli
