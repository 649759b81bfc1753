// SPDX-License-Identifier: Apache-2.0
// Runs the kernels of programs/check_cases.cu under `vgpu run`: the bad form of each must end with
// the report that names its bug, the good form must be clean.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

namespace {

struct Case {
  const char* name;
  std::vector<const char*> gpus;
  std::vector<const char*> report;  ///< texts that the report must hold; empty: no bad form
};

/// Names the case in test lists.
void PrintTo(const Case& test, std::ostream* out) {
  *out << test.name;
}

const std::vector<const char*> kBoth = {"h200", "b200"}, kH200 = {"h200"}, kB200 = {"b200"};
const Case kCases[] = {
    {"race_shared", kBoth, {"race check", "read by warp 1", "write by warp 0", "a barrier"}},
    {"race_exited", kBoth, {"race check", "read by warp 0", "write by warp 1", "a barrier"}},
    {"race_relaxed_wait", kBoth, {"race check", "read by warp 0", "write by warp 1", "missing: "}},
    {"race_load", kBoth, {"race check", "bulk load", "read by warp 1"}},
    {"race_reload", kBoth, {"race check", "bulk load", "missing: "}},
    {"race_store_reuse", kBoth, {"race check", "bulk store", "cp.async.bulk.wait_group.read"}},
    {"store_at_exit", kBoth, {"race check", "the kernel ends", "cp.async.bulk.wait_group"}},
    {"race_cp_async", kBoth, {"race check", "cp.async", "missing: "}},
    {"race_cp_async_arrive", kBoth, {"race check", "cp.async", "missing: "}},
    {"race_cluster", kBoth, {"race check", "of CTA 1", "a barrier"}},
    {"race_cluster_copy", kBoth, {"race check", "cp.async", "read by warp 1"}},
    {"arrival_at_exit", kBoth, {"mbarrier check", "CTA 0 ends", "missing: a wait for phase 0"}},
    {"box_off_pattern", kBoth, {"oob check", "pattern repeats every 1024 bytes"}},
    {"early_access", kBoth, {"race check", "which that one writes", "griddepcontrol.wait"}},
    {"reload_fenced", kBoth, {}},
    {"race_same_value", kBoth, {"race check", "write by warp 0", "write by warp 1"}},
    {"race_two_values", kBoth, {"race check", "write by warp 0", "write by warp 1"}},
    {"cp_async_unfenced", kBoth, {}},
    {"lanes_exchange", kBoth, {"race check", "two lanes of warp 0", "__syncwarp()"}},
    {"lanes_halves", kBoth, {"race check", "two lanes of warp 0", "__syncwarp()"}},
    {"lanes_copy", kBoth, {"race check", "bulk store that lane 0 issued", "__syncwarp()"}},
    {"lanes_cp_async", kBoth, {"race check", "write by lane", "cp.async", "__syncwarp()"}},
    {"lanes_apart", kBoth, {}},
    {"empty_copy", kBoth, {}},
    {"ring", kBoth, {"deadlock: every warp waits", "1 of 1 arrivals pending", "warps 1,2"}},
    {"oob_global", kBoth, {"cudaErrorIllegalAddress", "past the end of allocation #"}},
    {"oob_misaligned", kBoth, {"cudaErrorMisalignedAddress", "misaligned access: 4 bytes"}},
    {"oob_freed", kBoth, {"cudaErrorIllegalAddress", "freed"}},
    {"oob_shared", kBoth, {"cudaErrorIllegalAddress", "shared"}},
    {"oob_local", kBoth, {"cudaErrorIllegalAddress", "local"}},
    {"proxy_store", kBoth, {"proxy check", "fence.proxy.async", "bulk store"}},
    {"proxy_load", kBoth, {"proxy check", "fence.proxy.async", "bulk load"}},
    {"init_shared", kBoth, {"init check", "never written", "shared memory"}},
    {"init_follow", kBoth, {"init check", "never written", "is stored to global memory"}},
    {"init_branch", kBoth, {"init check", "never written", "decides whether"}},
    {"init_address", kBoth, {"init check", "never written", "is an address"}},
    {"init_padding", kBoth, {}},
    {"init_fields", kBoth, {"init check", "never written", "decides whether"}},
    {"init_rows", kBoth, {"init check", "never written", "is stored to global memory"}},
    {"init_rows_stored", kBoth, {"init check", "never written", "is stored to global memory"}},
    {"init_decided", kH200, {"init check", "never written", "decides whether"}},
    {"init_choice", kH200, {"init check", "never written", "is stored to global memory"}},
    {"init_exchange", kH200, {"init check", "never written", "is stored to global memory"}},
    {"init_spilled", kH200, {"init check", "never written", "is stored to global memory"}},
    {"init_global", kBoth, {"init check", "global memory that was never written"}},
    {"mbarrier_order", kBoth, {"mbarrier check", "before its initialisation is ordered"}},
    {"mbarrier_fence", kBoth, {"mbarrier check", "fence.mbarrier_init"}},
    {"mbarrier_inval", kBoth, {"mbarrier check", "is invalid already"}},
    {"mbarrier_overwritten", kBoth, {"mbarrier check", "write over the live mbarrier"}},
    {"wgmma_proxy", kH200, {"proxy check", "wgmma", "fence.proxy.async"}},
    {"wgmma_copied", kH200, {"proxy check", "cp.async", "fence.proxy.async", "wgmma"}},
    {"wgmma_fence", kH200, {"race check", "wgmma.fence"}},
    {"wgmma_wait", kH200, {"race check", "read by a wgmma", "wgmma.wait_group"}},
    {"wgmma_early_read", kH200, {"registers check", "wgmma.mma_async", "wgmma.wait_group"}},
    {"wgmma_refence", kH200, {"registers check", "ordinary access", "wgmma.fence"}},
    {"wgmma_rows_dropped", kH200, {"race check", "read by a wgmma", "write by a bulk load"}},
    {"wgmma_rows_stored", kH200, {"race check", "read by a wgmma", "write by a bulk load"}},
    {"wgmma_rows_branch", kH200, {"race check", "read by a wgmma", "write by a bulk load"}},
    {"wgmma_unwritten_dropped", kH200, {"init check", "never written", "read by a wgmma"}},
    {"wgmma_unwritten_stored", kH200, {"init check", "never written", "read by a wgmma"}},
    {"tcgen05_proxy", kB200, {"proxy check", "tcgen05.mma", "fence.proxy.async"}},
    {"tcgen05_unwritten", kB200, {"init check", "TMEM", "tcgen05.mma"}},
    {"tcgen05_commit_wait", kB200, {"race check", "TMEM", "tcgen05.mma", "tcgen05.commit"}},
    {"tcgen05_wait_ld", kB200, {"race check", "tcgen05.ld", "missing: an arrival by warp"}},
    {"tcgen05_fence_after", kB200, {"tcgen05 check", "tcgen05.fence::after_thread_sync"}},
    {"tcgen05_fence_before", kB200, {"tcgen05 check", "tcgen05.fence::before_thread_sync"}},
    {"tcgen05_early_read", kB200, {"registers check", "tcgen05.ld", "tcgen05.wait::ld"}},
    {"tcgen05_early_copy", kB200, {"registers check", "tcgen05.ld", "tcgen05.wait::ld"}},
    {"tcgen05_copies", kB200, {"race check", "tcgen05.cp", "tcgen05.commit"}},
    {"tcgen05_shift_copy", kB200, {"race check", "tcgen05.shift", "tcgen05.cp", "tcgen05.commit"}},
    {"tcgen05_stored", kB200, {"race check", "tcgen05.st", "tcgen05.mma", "tcgen05.wait::st"}},
    {"tcgen05_relaxed", kB200, {}},
    {"tcgen05_leak", kB200, {"leak check", "32 TMEM columns", "tcgen05.dealloc"}},
    {"tcgen05_early_dealloc", kB200, {"TMEM", "tcgen05."}},
    {"tcgen05_outside", kB200, {"tcgen05.ld reaches TMEM columns 32..32", "not allocated"}},
    {"tcgen05_other_lanes", kB200, {"tcgen05 check", "names lane 32", "missing: 0 << 16"}},
    {"tcgen05_freed_twice", kB200, {"tcgen05.dealloc of columns 0..31", "no allocation"}},
    {"tcgen05_base_offset", kB200, {"base offset (bits 49-51) 1 is not supported"}},
    {"tcgen05_reserved_bits", kB200, {"reserved bits 53-60 are 0x1, they must be 0"}},
    {"tcgen05_hopper_descriptor", kB200, {"bits 46-48 are 0x0, they must be 0b001"}},
    {"tcgen05_shape", kB200, {"M (bits 24-28, times 16) is 96; legal with cta_group::1: 64, 128"}},
    {"tcgen05_commit_at_exit", kB200, {"tcgen05.commit", "mbarrier", "CTA"}},
    {"tcgen05_others_commit", kB200, {"race check", "one thread that issues and commits"}},
    {"tcgen05_late_alloc", kB200, {"tcgen05 check", "behind griddepcontrol.launch_dependents"}},
    {"answer_reread",
     kB200,
     {"proxy check", "clusterlaunchcontrol.try_cancel", "fence.proxy.async"}},
    {"answer_unawaited", kB200, {"check", "clusterlaunchcontrol"}},
    {"answer_after_end", kB200, {"by a warp that has seen an earlier one fail"}},
};

struct Outcome {
  int status = -1;
  std::string text;
};

Outcome run(const std::string& gpu, const std::string& delivery, const std::string& arguments,
            const std::string& checks = "all,strict") {
  const std::string command = std::string(VGPU_PROGRAM) + " run --gpu " + gpu + " --delivery " +
                              delivery + " --check " + checks + " -- " CHECK_CASES_PROGRAM " " +
                              arguments + " 2>&1";
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return outcome;
  std::array<char, 4096> buffer;
  while (size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.text.append(buffer.data(), bytes);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return outcome;
}

class CheckCases : public testing::TestWithParam<Case> {};

TEST_P(CheckCases, TheBugIsReported) {
  const Case& test = GetParam();
  if (test.report.empty()) return;
  for (const char* gpu : test.gpus) {
    for (const char* delivery : {"late", "early"}) {
      Outcome outcome = run(gpu, delivery, std::string(test.name) + " bad");
      EXPECT_NE(outcome.status, 0) << gpu << " " << delivery << "\n" << outcome.text;
      for (const char* text : test.report) {
        EXPECT_NE(outcome.text.find(text), std::string::npos)
            << gpu << " " << delivery << ": no '" << text << "' in\n"
            << outcome.text;
      }
      EXPECT_NE(outcome.text.find("check_cases.cu:"), std::string::npos) << outcome.text;
    }
  }
}

TEST_P(CheckCases, TheRepairedKernelIsClean) {
  const Case& test = GetParam();
  for (const char* gpu : test.gpus) {
    for (const char* delivery : {"late", "early", "random"}) {
      Outcome outcome = run(gpu, delivery, std::string(test.name) + " good");
      EXPECT_EQ(outcome.status, 0) << gpu << " " << delivery << "\n" << outcome.text;
      EXPECT_NE(outcome.text.find("no error"), std::string::npos);
      EXPECT_EQ(outcome.text.find("check"), std::string::npos) << outcome.text;
    }
  }
}

// A tcgen05.ld's values before the wait, also under other names: register dependencies hold.
TEST(CheckCasesAtEase, EarlyUseOfALoadIsANote) {
  for (const char* name : {"tcgen05_early_copy bad", "tcgen05_early_read bad"}) {
    const Outcome outcome = run("b200", "late", name, "all");
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    EXPECT_NE(outcome.text.find("note: registers check"), std::string::npos) << outcome.text;
  }
}

// A wgmma that reads rows behind its tile while a copy fills them: their products decide.
TEST(CheckCasesAtEase, RowsBehindATileMatterWhereTheirProductsDo) {
  for (const char* delivery : {"late", "early", "sweep", "random"}) {
    const Outcome dropped = run("h200", delivery, "wgmma_rows_dropped bad", "all");
    EXPECT_EQ(dropped.status, 0) << delivery << "\n" << dropped.text;
    EXPECT_NE(dropped.text.find("note: race check"), std::string::npos) << dropped.text;
    EXPECT_NE(dropped.text.find("used:    never"), std::string::npos) << dropped.text;
    for (const char* name : {"wgmma_rows_stored bad", "wgmma_rows_branch bad"}) {
      const Outcome used = run("h200", delivery, name, "all");
      EXPECT_NE(used.status, 0) << delivery << " " << name << "\n" << used.text;
      EXPECT_NE(used.text.find("race check"), std::string::npos) << used.text;
    }
  }
  // The copy came first: the report says what became of the products.
  const Outcome stored = run("h200", "early", "wgmma_rows_stored bad", "all");
  EXPECT_NE(stored.text.find("used:    what it gave is stored at"), std::string::npos)
      << stored.text;
  const Outcome branch = run("h200", "early", "wgmma_rows_branch bad", "all");
  EXPECT_NE(branch.text.find("used:    what it gave decides whether"), std::string::npos)
      << branch.text;
  // Without the registers nobody knows.
  EXPECT_NE(run("h200", "late", "wgmma_rows_dropped bad", "all,-registers").status, 0);
}

// Rows of A that nobody has written: followed by row through products, registers and memory.
TEST(CheckCasesAtEase, UnwrittenRowsMatterWhereTheirProductsDo) {
  for (const char* delivery : {"late", "early"}) {
    const Outcome dropped = run("h200", delivery, "wgmma_unwritten_dropped bad", "all");
    EXPECT_EQ(dropped.status, 0) << delivery << "\n" << dropped.text;
    EXPECT_NE(dropped.text.find("note: init check"), std::string::npos) << dropped.text;
    const Outcome stored = run("h200", delivery, "wgmma_unwritten_stored bad", "all");
    EXPECT_NE(stored.status, 0) << delivery << "\n" << stored.text;
    EXPECT_NE(stored.text.find("used:    what it gave is stored at"), std::string::npos)
        << stored.text;
  }
}

// What is computed from unwritten values may lie in global memory until somebody takes it.
TEST(CheckCasesAtEase, AWorkspaceMayHoldWhatIsDropped) {
  const Outcome dropped = run("h200", "late", "init_workspace good", "all");
  EXPECT_EQ(dropped.status, 0) << dropped.text;
  const Outcome used = run("h200", "late", "init_workspace bad", "all");
  EXPECT_NE(used.status, 0) << used.text;
  for (const char* text : {"init check", "what it gave is stored at", "is copied to the host"}) {
    EXPECT_NE(used.text.find(text), std::string::npos) << used.text;
  }
  const Outcome strict = run("h200", "late", "init_workspace good", "all,strict");
  EXPECT_NE(strict.text.find("is stored to global memory"), std::string::npos) << strict.text;
}

// Loads of a buffer before the next copy into it: most kernels have an mbarrier alone between them.
TEST(CheckCasesAtEase, ReadsAreWatchedWhenAsked) {
  const Outcome unfenced = run("h200", "late", "race_reload good", "all,reads");
  EXPECT_NE(unfenced.status, 0) << unfenced.text;
  for (const char* text : {"proxy check", "was read through the generic proxy", "is written"}) {
    EXPECT_NE(unfenced.text.find(text), std::string::npos) << unfenced.text;
  }
  EXPECT_EQ(run("h200", "late", "reload_fenced good", "all,reads,strict").status, 0);
}

// What the field does and gets away with.
TEST(CheckCasesAtEase, SomeBrokenRulesAreNotes) {
  for (const char* name : {"race_exited", "race_relaxed_wait", "race_cluster", "race_cluster_copy",
                           "race_same_value", "mbarrier_fence", "mbarrier_inval", "arrival_at_exit",
                           "box_off_pattern", "early_access", "wgmma_copied"}) {
    const Outcome outcome = run("h200", "late", std::string(name) + " bad", "all");
    EXPECT_EQ(outcome.status, 0) << name << "\n" << outcome.text;
    EXPECT_NE(outcome.text.find("note: "), std::string::npos) << name << "\n" << outcome.text;
  }
  for (const char* name : {"tcgen05_copies bad", "tcgen05_stored bad"}) {
    const Outcome copies = run("b200", "late", name, "all");
    EXPECT_EQ(copies.status, 0) << copies.text;
    EXPECT_NE(copies.text.find("note: race check"), std::string::npos) << copies.text;
  }
  EXPECT_NE(run("h200", "late", "race_two_values bad", "all").status, 0);
  // A copy of what was never written is told as a note, what is computed from it is an error.
  EXPECT_EQ(run("h200", "late", "init_shared bad", "all").status, 0);
  EXPECT_NE(run("h200", "late", "init_follow bad", "all").status, 0);
  EXPECT_EQ(run("h200", "late", "init_follow bad", "all,strict,-init").status, 0);
}

INSTANTIATE_TEST_SUITE_P(Each, CheckCases, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
