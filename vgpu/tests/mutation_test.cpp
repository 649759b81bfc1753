// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "check/checker.hpp"
#include "check/mutation.hpp"
#include "exec/harness.hpp"
#include "fault.hpp"

namespace vgpu::check {
namespace {

const char kPtx[] = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 p)
{
.reg .pred %p<4>;
.reg .b32 %r<4>;
// two statements a line, guards, labels, and a statement of two lines
.loc 1 12 3
@%p1 bar.sync 0;
mov.u32 %r1, %tid.x; bar.sync 1; bar.sync 1, 64;
.loc 1 30 5, function_name $L__info, inlined_at 1 40 1
.loc 2 20 7, function_name $L__info, inlined_at 1 30 5
.loc 2 13 3, function_name $L__info, inlined_at 2 20 7
{ .reg .pred done; LOOP: mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], %r2; @done bra DONE; bra LOOP; DONE: }
@!%p2 mbarrier.arrive.shared::cta.b64 _, [%r1];
barrier.sync 2,
  64;
add.u32 %r1, %r1, 1;
ret;
}
.file 1 "kernel.cu"
.file 2 "wrappers.cuh"
)";

TEST(Mutation, KnowsSynchronisingOpcodes) {
  for (const char* opcode :
       {"bar.sync", "bar.warp.sync", "barrier.cluster.arrive.release.aligned", "fence.proxy.async",
        "mbarrier.arrive.expect_tx.shared::cta.b64", "tcgen05.wait::ld.sync.aligned",
        "tcgen05.fence::after_thread_sync", "wgmma.fence.sync.aligned",
        "cp.async.bulk.wait_group.read", "membar.gl", "griddepcontrol.wait"}) {
    EXPECT_TRUE(is_synchronising(opcode)) << opcode;
  }
  for (const char* opcode : {"ld.shared.u32", "cp.async.bulk.tensor.2d", "wgmma.mma_async", "bra",
                             "tcgen05.mma.cta_group::1.kind::f16", "mbarrier.inval.shared.b64"}) {
    EXPECT_FALSE(is_synchronising(opcode)) << opcode;
  }
}

std::vector<SyncSite> sites() {
  return find_sync_sites(*ptx::parse(kPtx));
}

TEST(Mutation, FindsEverySite) {
  const std::vector<SyncSite> found = sites();
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found[0].line, 10u);
  EXPECT_EQ(found[0].source, "kernel.cu:12");
  EXPECT_EQ(found[0].function, "kernel");
  EXPECT_EQ(found[1].line, 11u);
  EXPECT_EQ(found[1].nth, 0u);
  EXPECT_EQ(found[2].line, 11u);
  EXPECT_EQ(found[2].nth, 1u);
  EXPECT_EQ(found[3].opcode, "mbarrier.try_wait.parity.shared::cta.b64");
  EXPECT_EQ(found[3].source, "wrappers.cuh:13, inlined at kernel.cu:30");
  EXPECT_EQ(found[4].opcode, "mbarrier.arrive.shared::cta.b64");
}

std::string line_of(const std::string& text, uint32_t line) {
  size_t at = 0;
  for (uint32_t k = 1; k < line; ++k) at = text.find('\n', at) + 1;
  return text.substr(at, text.find('\n', at) - at);
}

TEST(Mutation, DeletesOneInstructionWithItsGuard) {
  const std::vector<SyncSite> found = sites();
  for (const SyncSite& site : found) {
    std::string text = delete_site(kPtx, site);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
              std::count(std::begin(kPtx), std::end(kPtx), '\n'));
    // What is left still parses, with one synchronising instruction less.
    EXPECT_EQ(find_sync_sites(*ptx::parse(text)).size(), found.size() - 1) << site.opcode;
  }
  EXPECT_EQ(line_of(delete_site(kPtx, found[0]), 10).find_first_not_of(' '), std::string::npos);
  std::string second = line_of(delete_site(kPtx, found[2]), 11);
  EXPECT_NE(second.find("bar.sync 1;"), std::string::npos);
  EXPECT_EQ(second.find("bar.sync 1, 64"), std::string::npos);
  EXPECT_NE(second.find("mov.u32"), std::string::npos);
  std::string arrive = delete_site(kPtx, found[4]);
  EXPECT_EQ(line_of(arrive, 16).find_first_not_of(' '), std::string::npos);
}

TEST(Mutation, WaitsSucceedAtOnce) {
  std::string line = line_of(delete_site(kPtx, sites()[3]), 15);
  EXPECT_NE(line.find("setp.eq.u32 done, 0, 0;"), std::string::npos) << line;
  EXPECT_NE(line.find("LOOP:"), std::string::npos);
  EXPECT_NE(line.find("@done bra DONE;"), std::string::npos);
  EXPECT_EQ(line.find("try_wait"), std::string::npos);
}

SyncSite site_at(uint32_t line) {
  SyncSite site;
  site.line = line;
  site.opcode = "bar.sync";
  return site;
}

TEST(Mutation, BadRequestsAreExplained) {
  EXPECT_THROW(delete_site(kPtx, site_at(3)), Fault);
  EXPECT_THROW(delete_site(kPtx, site_at(300)), Fault);
  setenv("VGPU_MUTATE", "delete:x", 1);
  EXPECT_THROW(mutate_from_environment(kPtx), Fault);
  setenv("VGPU_MUTATE", "remove:1", 1);
  EXPECT_THROW(mutate_from_environment(kPtx), Fault);
  unsetenv("VGPU_MUTATE");
  EXPECT_EQ(mutate_from_environment(kPtx), kPtx);
}

/// What instructions were good for in a run: by opcode, how often they ran and ordered something.
std::map<std::string, std::pair<uint64_t, uint64_t>> effects_of(const std::string& text,
                                                                const test::Launch& launch) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("vgpu-effects-" + std::to_string(static_cast<long>(getpid())));
  setenv("VGPU_SYNC_EFFECTS", path.c_str(), 1);
  const auto checker = make_checker(CheckOptions::parse("all"), nullptr, {});
  unsetenv("VGPU_SYNC_EFFECTS");
  test::Launch observed = launch;
  observed.observer = checker.get();
  test::Buffers buffers;
  const auto result = test::run_module(text, test::Params(), buffers, observed);
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> by_line;
  std::ifstream file(path);
  uint32_t line = 0;
  std::pair<uint64_t, uint64_t> effect;
  while (file >> line >> effect.first >> effect.second) by_line[line] = effect;
  std::filesystem::remove(path);
  std::map<std::string, std::pair<uint64_t, uint64_t>> effects;
  for (const SyncSite& site : find_sync_sites(*ptx::parse(text))) {
    effects[site.opcode] = by_line[site.line];
  }
  return effects;
}

TEST(Mutation, KnowsWhatRanAndWhatItWasGoodFor) {
  // Warp 0 hands over to warp 1 and goes on; warps 2 and 3 never come.
  const std::string text = test::kernel_text("", R"(
    .shared .align 4 .b32 word;
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, word;
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra OTHER;
    st.shared.u32 [%r1], %r1;
    bar.arrive 1, 64;
    griddepcontrol.launch_dependents;
    ret;
OTHER:
    bar.sync 1, 64;
    ld.shared.u32 %r2, [%r1];
    setp.ge.u32 %p1, %r0, 64;
    @%p1 membar.gl;
    ret;)");
  test::Launch launch;
  launch.block.x = 64;
  const auto effects = effects_of(text, launch);
  using Effect = std::pair<uint64_t, uint64_t>;
  const Effect useful{1, 1}, useless{1, 0}, never{0, 0};
  EXPECT_EQ(effects.at("bar.arrive"), useful);
  EXPECT_EQ(effects.at("bar.sync"), useful);
  EXPECT_EQ(effects.at("griddepcontrol.launch_dependents"), useless);
  EXPECT_EQ(effects.at("membar.gl"), never);
}

}  // namespace
}  // namespace vgpu::check
