// SPDX-License-Identifier: Apache-2.0
// `vgpu run` from outside: its options, its refusals, programs of every packing.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace {

struct Outcome {
  int status = -1;
  std::string text;  // stdout and stderr
};

Outcome shell(const std::string& command) {
  Outcome outcome;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.text.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

Outcome vgpu(const std::string& arguments) {
  return shell(std::string(VGPU_PROGRAM) + " " + arguments);
}

std::string program(const std::string& name) {
  return std::string(PROGRAM_FOLDER) + "/" + name;
}

bool contains(const Outcome& outcome, const std::string& text) {
  return outcome.text.find(text) != std::string::npos;
}

TEST(Launcher, ExplainsItself) {
  EXPECT_EQ(vgpu("--help").status, 0);
  EXPECT_TRUE(contains(vgpu("--help"), "vgpu run"));
  EXPECT_TRUE(contains(vgpu("run --help"), "--delivery"));
  const Outcome mutate = vgpu("mutate --help");
  EXPECT_EQ(mutate.status, 0);
  for (const char* option : {"--runs", "--jobs", "--timeout", "--only", "--fail-on-survivors"}) {
    EXPECT_TRUE(contains(mutate, option)) << option;
  }
  for (const auto& [options, problem] :
       {std::pair{"--runs 0 -- true", "--runs 0: it must be 1 to 100"},
        std::pair{"--runs 2x -- true", "--runs 2x: it must be 1 to 100"},
        std::pair{"--jobs 257 -- true", "--jobs 257: it must be 1 to 256"},
        std::pair{"--timeout x -- true", "--timeout x: it must be a number"},
        std::pair{"--only", "--only needs a value"}, std::pair{"--gpu h200", "no program given"}}) {
    const Outcome refused = vgpu(std::string("mutate ") + options);
    EXPECT_EQ(refused.status, 2) << options;
    EXPECT_TRUE(contains(refused, problem)) << refused.text;
  }
  EXPECT_EQ(vgpu("").status, 2);
  EXPECT_EQ(vgpu("fly").status, 2);
}

TEST(Launcher, NamesItsVersion) {
  const Outcome version = vgpu("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.text, "vgpu " VGPU_VERSION "\n");
  std::ifstream file(CHANGELOG);
  const std::string changelog{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(changelog.find("\n## " VGPU_VERSION), std::string::npos)
      << VGPU_VERSION " is not in the changelog";
}

TEST(Launcher, DocumentsEveryOption) {
  std::ifstream file(README);
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  const Outcome help = vgpu("run --help");
  std::istringstream lines(help.text);
  int options = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  --")) continue;
    const std::string option = line.substr(2, line.find(' ', 2) - 2);
    EXPECT_NE(readme.find("| `" + option), std::string::npos) << option << " is not in the README";
    ++options;
  }
  EXPECT_EQ(options, 11);
}

TEST(Launcher, RefusesWrongOptions) {
  const auto refuses = [](const std::string& arguments, const std::string& why) {
    const Outcome outcome = vgpu("run " + arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.text;
    EXPECT_TRUE(contains(outcome, why)) << outcome.text;
  };
  refuses("--gpu v100 -- true", "a100, rtx3090, l40s, rtx4090, h200, b200, b300 or rtx5090");
  refuses("--seed x -- true", "number from 0");
  refuses("--threads 0 -- true", "number from 1");
  refuses("--delivery never -- true", "late, early, sweep or random");
  refuses("--sums exact -- true", "fused or cut");
  refuses("--colour -- true", "unknown option --colour");
  refuses("--stats=yes -- true", "takes no value");
  refuses("--gpu", "needs a value");
  refuses("", "no program given");
  EXPECT_EQ(vgpu("run -- /does/not/exist").status, 127);
}

TEST(Launcher, RunsAProgramOfEveryPacking) {
  for (const char* name : {"runtime_calls", "runtime_packing_default", "runtime_packing_speed",
                           "runtime_packing_plain"}) {
    for (const char* gpu : {"h200", "b200"}) {
      const Outcome outcome = vgpu(std::string("run --gpu ") + gpu + " -- " + program(name));
      EXPECT_EQ(outcome.status, 0) << name << " on " << gpu << "\n" << outcome.text;
      EXPECT_TRUE(contains(outcome, "all holds"));
    }
  }
}

TEST(Launcher, TakesEveryOption) {
  const Outcome outcome = vgpu(
      "run --gpu h200 --seed 3 --delivery sweep --check all,-init --threads 2 --sms 8 --log 2 "
      "--spin 1000000 "
      "-- " +
      program("runtime_calls"));
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_TRUE(contains(outcome, "all holds"));
  EXPECT_TRUE(contains(outcome, "lane instructions/s")) << outcome.text;  // a line of --log 2
  // What only the libraries can judge ends the program before main.
  const auto refuses = [](const std::string& option, const std::string& why) {
    const Outcome refused = vgpu("run " + option + " -- " + program("runtime_calls"));
    EXPECT_EQ(refused.status, 2) << refused.text;
    EXPECT_TRUE(contains(refused, why)) << refused.text;
  };
  refuses("--check colour", "check 'colour' is unknown; legal: all, none, or a list of race");
  refuses("--trace /does/not/exist.json", "/does/not/exist.json");
}

TEST(Launcher, PassesArgumentsAndExitStatusOn) {
  EXPECT_EQ(vgpu("run -- sh -c 'exit 7'").status, 7);
  EXPECT_TRUE(
      contains(vgpu("run --seed 5 -- sh -c 'echo seed=$VGPU_SEED $0' word"), "seed=5 word"));
}

TEST(Launcher, RefusesStaticRuntimeAndRelocatableCode) {
  const Outcome with_static = vgpu("run -- " + program("runtime_packing_static"));
  EXPECT_EQ(with_static.status, 126);
  EXPECT_TRUE(contains(with_static, "-cudart shared")) << with_static.text;
  const Outcome relocatable = vgpu("run -- " + program("runtime_packing_rdc"));
  EXPECT_EQ(relocatable.status, 126);
  EXPECT_TRUE(contains(relocatable, "-rdc=true")) << relocatable.text;
}

TEST(Runtime, NamesTheFlagWhenThereIsNoPtx) {
  const Outcome other_gpu = vgpu("run --gpu b200 -- " + program("runtime_packing_sm90_only"));
  EXPECT_EQ(other_gpu.status, 1);
  EXPECT_TRUE(contains(other_gpu, "arch=compute_100a,code=[sm_100a,compute_100a]"))
      << other_gpu.text;
  const Outcome no_ptx = vgpu("run --gpu h200 -- " + program("runtime_packing_sass_only"));
  EXPECT_EQ(no_ptx.status, 1);
  EXPECT_TRUE(contains(no_ptx, "SASS sm_90a")) << no_ptx.text;
}

TEST(Runtime, ListsEveryFormThatItDoesNotKnow) {
  const Outcome outcome = vgpu("run --gpu b200 -- " + program("runtime_packing_unknown"));
  EXPECT_EQ(outcome.status, 42) << outcome.text;
  for (const char* text : {"cudaErrorNotSupported", "2 instruction forms", "vadd.u32.u32.u32.sat",
                           "vabsdiff4.u32.u32.u32.add"}) {
    EXPECT_TRUE(contains(outcome, text)) << text << "\n" << outcome.text;
  }
}

TEST(Runtime, StreamsGoSideBySide) {
  for (const char* options : {"--gpu h200", "--gpu b200 --threads 2 --delivery random"}) {
    const Outcome outcome = vgpu(std::string("run ") + options + " -- " + program("stream_order"));
    EXPECT_EQ(outcome.status, 0) << options << "\n" << outcome.text;
    EXPECT_TRUE(contains(outcome, "streams in order")) << outcome.text;
  }
  const Outcome stuck =
      vgpu("run --gpu h200 --spin 2000000 -- " + program("stream_order") + " deadlock");
  EXPECT_EQ(stuck.status, 0) << stuck.text;
  for (const char* text : {"deadlock of streams", "wait_for", "(polls memory), then kernel"}) {
    EXPECT_TRUE(contains(stuck, text)) << text << "\n" << stuck.text;
  }
}

// A B300 takes PTX of Blackwell's family (compute_100f), not that of the B200 alone.
TEST(Runtime, ABlackwellFamilyProgramRunsOnBoth) {
  for (const char* gpu : {"b200", "b300"}) {
    const Outcome outcome =
        vgpu(std::string("run --gpu ") + gpu + " -- " + program("runtime_packing_family"));
    EXPECT_EQ(outcome.status, 0) << gpu << "\n" << outcome.text;
    EXPECT_TRUE(contains(outcome, "all holds")) << outcome.text;
  }
  const Outcome other = vgpu("run --gpu b300 -- " + program("runtime_calls"));
  EXPECT_EQ(other.status, 1);
  EXPECT_TRUE(contains(other, "no PTX for this GPU (sm_103)")) << other.text;
}

TEST(Runtime, AFaultSticks) {
  const Outcome outcome = vgpu("run --gpu h200 -- " + program("runtime_calls") + " fault");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_TRUE(contains(outcome, "past the end of allocation #1 (cudaMalloc)")) << outcome.text;
}

TEST(Runtime, NamesMisuseOfTheDeviceHeap) {
  for (const auto& [what, report] :
       {std::pair{"past", "of a block of 12 bytes (malloc in a kernel)"},
        std::pair{"stale", "byte 0 of a freed block of 12 bytes (malloc in a kernel)"},
        std::pair{"twice", "where no live block of malloc starts"}}) {
    const Outcome outcome = vgpu("run --gpu h200 -- " + program("runtime_calls") + " heap " + what);
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    EXPECT_TRUE(contains(outcome, report)) << what << "\n" << outcome.text;
  }
}

TEST(Runtime, MathematicalFunctionsKeepTheirBounds) {
  const Outcome outcome = vgpu("run --gpu h200 -- " + program("math_functions"));
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_TRUE(contains(outcome, "all within their bounds")) << outcome.text;
}

TEST(Runtime, GivesCudasErrorCodes) {
  for (const char* gpu : {"h200", "b200"}) {
    const Outcome outcome = vgpu(std::string("run --gpu ") + gpu + " -- " + program("error_codes"));
    EXPECT_EQ(outcome.status, 0) << gpu << "\n" << outcome.text;
    EXPECT_TRUE(contains(outcome, "all codes as expected")) << outcome.text;
    // Each code comes with an explanation.
    for (const char* text : {"only 1 of 1 are pending", "no mbarrier at shared offset",
                             "every warp waits", "TMEM columns still allocated"}) {
      EXPECT_TRUE(contains(outcome, text) || (text[0] == 'T' && *gpu == 'h')) << text << "\n"
                                                                              << outcome.text;
    }
  }
}

TEST(Runtime, TakesProgramsOfTheDriverApi) {
  const Outcome outcome = vgpu("run --gpu h200 -- " + program("driver_calls"));
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  for (const char* text : {"all holds", "no context is current", "the library has no kernel none",
                           "the image is a cubin", "8 bytes of parameters; it takes 24"}) {
    EXPECT_TRUE(contains(outcome, text)) << text << "\n" << outcome.text;
  }
}

TEST(Runtime, ConditionalNodesOfGraphs) {
  for (const char* delivery : {"late", "random"}) {
    const Outcome outcome = vgpu(std::string("run --gpu h200 --delivery ") + delivery + " -- " +
                                 program("graph_conditions"));
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    for (const char* text :
         {"all holds", "if nodes have 1 or 2", "was made for another graph",
          "another node asks the condition", "no conditional node asks", "cannot be cloned",
          "cannot be child graphs", "one executable graph at a time", "runs within its graph only",
          "copies pageable host memory", "has a node of type 3"}) {
      EXPECT_TRUE(contains(outcome, text)) << text << "\n" << outcome.text;
    }
  }
}

TEST(Runtime, NamesUnsupportedCalls) {
  const Outcome outcome = vgpu("run -- " + program("runtime_calls"));
  for (const char* text : {"cudaMallocArray is not provided", "arrays belong to textures",
                           "cuLinkDestroy is not provided", "let nvcc link"}) {
    EXPECT_TRUE(contains(outcome, text)) << text << "\n" << outcome.text;
  }
}

TEST(Trace, WritesStatisticsAndATimeline) {
  const std::string trace = program("launcher_test_trace.json");
  const Outcome outcome =
      vgpu("run --gpu h200 --stats --trace " + trace + " -- " + program("runtime_calls"));
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_TRUE(contains(outcome, "launches")) << outcome.text;
  EXPECT_TRUE(contains(outcome, "warp instructions")) << outcome.text;
  const Outcome parsed = shell("python3 -c \"import json;d=json.load(open('" + trace +
                               "'));print(len([e for e in d['traceEvents'] if e['ph']=='X'])>8)\"");
  EXPECT_EQ(parsed.text, "True\n");
}

}  // namespace
