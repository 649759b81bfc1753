// SPDX-License-Identifier: Apache-2.0
// Speed of the interpreter: lane instructions a second on a plain and on a warp-specialised kernel
// (processor time, one thread), what the checks cost there, how far two threads scale, and the time
// to load a megabyte of PTX.
#include <algorithm>
#include <ctime>

#include "check/checker.hpp"
#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double processor_seconds() {
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

void run(const char* name, const std::string& text, const Launch& launch) {
  Buffers buffers;
  uint64_t out = buffers.add(1 << 16);
  double start = processor_seconds();
  auto result = run_module(text, Params() << out, buffers, launch);
  double seconds = processor_seconds() - start;
  if (result.cuda_error) std::printf("%s\n", result.report.c_str());
  std::printf("%-36s %8.1f M lane instructions/s, %6.2f M warp instructions/s\n", name,
              1e-6 * static_cast<double>(result.lane_instructions) / seconds,
              1e-6 * static_cast<double>(result.warp_instructions) / seconds);
}

const char kArithmetic[] = R"(
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  cvt.rn.f32.u32 %f0, %r0;
  mov.u32 %r1, 0;
LOOP:
  fma.rn.f32 %f1, %f0, %f0, %f1;
  mad.lo.s32 %r2, %r1, 3, %r0;
  and.b32 %r3, %r2, 1023;
  shl.b32 %r4, %r3, 2;
  cvt.u64.u32 %rd1, %r4;
  add.s64 %rd2, %rd0, %rd1;
  ld.global.f32 %f2, [%rd2];
  add.f32 %f1, %f1, %f2;
  add.s32 %r1, %r1, 1;
  setp.lt.s32 %p0, %r1, 20000;
  @%p0 bra LOOP;
  mul.wide.u32 %rd1, %r0, 4;
  add.s64 %rd2, %rd0, %rd1;
  st.global.f32 [%rd2+4096], %f1;
  ret;)";

/// One producer lane and three consumer warps over a ring of four bulk copies.
const char kSpecialised[] = R"(
  .reg .pred %p<8>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<4>;
  .shared .align 128 .b8 ring[16384];
  .shared .align 8 .b8 bars[64];
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, ring;
  mov.u32 %r2, bars;
  setp.ne.u32 %p7, %r0, 0;
  @%p7 bra READY;
  mbarrier.init.shared::cta.b64 [%r2], 1;
  mbarrier.init.shared::cta.b64 [%r2+8], 1;
  mbarrier.init.shared::cta.b64 [%r2+16], 1;
  mbarrier.init.shared::cta.b64 [%r2+24], 1;
  mbarrier.init.shared::cta.b64 [%r2+32], 96;
  mbarrier.init.shared::cta.b64 [%r2+40], 96;
  mbarrier.init.shared::cta.b64 [%r2+48], 96;
  mbarrier.init.shared::cta.b64 [%r2+56], 96;
  fence.mbarrier_init.release.cluster;
READY:
  bar.sync 0;
  mov.u32 %r3, 0;
  mov.u32 %r4, 0;
  setp.lt.u32 %p0, %r0, 32;
  @!%p0 bra CONSUME;
  @%p7 bra DONE;
PRODUCE:
  and.b32 %r5, %r3, 3;
  shl.b32 %r6, %r5, 3;
  add.s32 %r7, %r2, %r6;
  shl.b32 %r8, %r5, 12;
  add.s32 %r9, %r1, %r8;
  shr.u32 %r10, %r3, 2;
  and.b32 %r10, %r10, 1;
  xor.b32 %r10, %r10, 1;
EMPTY:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r7+32], %r10;
  @!%p1 bra EMPTY;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 4096;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%rd0], 4096, [%r7];
  add.s32 %r3, %r3, 1;
  setp.lt.u32 %p2, %r3, 4000;
  @%p2 bra PRODUCE;
  bra DONE;
CONSUME:
  and.b32 %r5, %r3, 3;
  shl.b32 %r6, %r5, 3;
  add.s32 %r7, %r2, %r6;
  shr.u32 %r10, %r3, 2;
  and.b32 %r10, %r10, 1;
FULL:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r7], %r10;
  @!%p1 bra FULL;
  shl.b32 %r8, %r5, 12;
  add.s32 %r9, %r1, %r8;
  and.b32 %r11, %r0, 31;
  shl.b32 %r11, %r11, 4;
  add.s32 %r9, %r9, %r11;
  mov.u32 %r12, 0;
SUM:
  ld.shared.v4.u32 {%r13, %r14, %r15, %r16}, [%r9];
  add.s32 %r4, %r4, %r13;
  xor.b32 %r4, %r4, %r14;
  add.s32 %r4, %r4, %r15;
  xor.b32 %r4, %r4, %r16;
  add.s32 %r9, %r9, 512;
  add.s32 %r12, %r12, 1;
  setp.lt.u32 %p3, %r12, 8;
  @%p3 bra SUM;
  mbarrier.arrive.shared::cta.b64 _, [%r7+32];
  add.s32 %r3, %r3, 1;
  setp.lt.u32 %p2, %r3, 4000;
  @%p2 bra CONSUME;
DONE:
  ret;)";

struct Times {
  double wall = 1e9, processor = 1e9;
};
/// Runs once and keeps the least of each time.
void run_timed(const std::string& text, const Launch& launch, Times& best) {
  Buffers buffers;
  uint64_t out = buffers.add(1 << 16);
  const double wall = seconds_of(CLOCK_MONOTONIC), processor = processor_seconds();
  auto result = run_module(text, Params() << out, buffers, launch);
  best.wall = std::min(best.wall, seconds_of(CLOCK_MONOTONIC) - wall);
  best.processor = std::min(best.processor, processor_seconds() - processor);
  if (result.cuda_error) std::printf("%s\n", result.report.c_str());
}

constexpr int kRepeats = 5;

/// 32 clusters on one and on two threads, in turns. On a busy machine the processor time tells how
/// far two threads can scale: 2 x that of one thread / that of two.
void scaling(const char* name, const std::string& text, Launch launch, bool checked) {
  std::unique_ptr<exec::Observer> checker;
  if (checked) checker = check::make_checker(check::CheckOptions::parse("all"), nullptr, {});
  launch.observer = checker.get();
  launch.grid.x = 32;
  Times times[2];
  for (int k = 0; k < kRepeats; ++k) {
    for (uint32_t threads : {1u, 2u}) {
      launch.options.threads = threads;
      run_timed(text, launch, times[threads - 1]);
    }
  }
  std::printf("%-36s %8.2f x with two threads (%.2f x by processor time)\n", name,
              times[0].wall / times[1].wall, 2 * times[0].processor / times[1].processor);
}

/// Processor time with all checks over that without.
void check_cost(const char* name, const std::string& text, Launch launch) {
  const auto checker = check::make_checker(check::CheckOptions::parse("all"), nullptr, {});
  Times plain, checked;
  for (int k = 0; k < kRepeats; ++k) {
    launch.observer = nullptr;
    run_timed(text, launch, plain);
    launch.observer = checker.get();
    run_timed(text, launch, checked);
  }
  std::printf("%-36s %8.2f x the processor time with all checks\n", name,
              checked.processor / plain.processor);
}

void load_speed() {
  // About a megabyte of what a compiler writes.
  std::string body =
      ".reg .pred %p<2>; .reg .b32 %r<9000>; .reg .b64 %rd<4>;\nld.param.u64 %rd0, [out];\n";
  for (int k = 0; body.size() < (1 << 20); ++k) {
    body += format(
        ".loc 1 %d 3\nadd.s32 %%r%d, %%r%d, %d;\nmul.lo.s32 %%r%d, %%r%d, %%r%d;\n"
        "st.global.u32 [%%rd0+%d], %%r%d;\n",
        k, (k + 1) % 9000, k % 9000, k, (k + 2) % 9000, k % 9000, (k + 1) % 9000, k % 1000 * 4,
        (k + 2) % 9000);
  }
  auto text = kernel_text(".param .u64 out", body + "ret;", ".file 1 \"a.cu\"");
  double start = processor_seconds();
  auto program = exec::Program::load(text);
  std::printf("%-36s %8.3f s for %.2f MB\n", "load", processor_seconds() - start,
              1e-6 * static_cast<double>(text.size()));
}

}  // namespace
}  // namespace vgpu::test

/// vgpu_benchmark [speed | checks | threads | load]: one part, or all.
int main(int argc, char** argv) {
  using namespace vgpu::test;
  const std::string part = argc > 1 ? argv[1] : "";
  const auto wanted = [&](const char* name) { return part.empty() || part == name; };
  const std::string arithmetic = kernel_text(".param .u64 out", kArithmetic);
  const std::string ring = kernel_text(".param .u64 out", kSpecialised);
  Launch launch;
  launch.block.x = 128;
  launch.grid.x = 4;
  if (wanted("speed")) {
    run("arithmetic and loads", arithmetic, launch);
    Launch specialised = launch;
    run("warp-specialised, late", ring, specialised);
    specialised.options.delivery = vgpu::exec::Delivery::sweep;
    run("warp-specialised, sweep", ring, specialised);
  }
  if (wanted("checks")) {
    check_cost("arithmetic and loads", arithmetic, launch);
    check_cost("warp-specialised", ring, launch);
  }
  if (wanted("threads")) {
    for (bool checked : {false, true}) {
      scaling(checked ? "arithmetic and loads, checked" : "arithmetic and loads", arithmetic,
              launch, checked);
      scaling(checked ? "warp-specialised, checked" : "warp-specialised", ring, launch, checked);
    }
  }
  if (wanted("load")) load_speed();
  return 0;
}
