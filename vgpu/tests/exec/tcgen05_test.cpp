// SPDX-License-Identifier: Apache-2.0
// The forms of tcgen05.mma, cp and shift as PTX: operands reach the tensor functions, which have
// tests of their own; unsupported forms are refused when the program loads.
#include <functional>
#include <random>

#include "check/checker.hpp"
#include "exec/harness.hpp"
#include "matrix_layout.hpp"
#include "tensor/tcgen05_ldst.hpp"
#include "tensor/tcgen05_mma.hpp"
#include "tensor/tcgen05_scaled_mma.hpp"

namespace vgpu::test {
namespace {

using namespace tensor;
using exec::Delivery;

constexpr uint32_t kImage = 48 * 1024, kColumns = 64, kWindow = 1024;

/// 128 threads put an image into shared memory and 64 columns into TMEM, thread 0 executes `body`
/// (with %t the TMEM address and %desc0, %desc1, %idesc, %extra from the parameters), and all store
/// TMEM.
std::string program(const std::string& body) {
  std::string registers;
  for (uint32_t k = 0; k < 64; ++k) registers += (k ? ", %v" : "%v") + std::to_string(k);
  std::string load, store;
  for (uint32_t k = 0; k < 64; k += 4) {
    const std::string quad = "{%v" + std::to_string(k) + ", %v" + std::to_string(k + 1) + ", %v" +
                             std::to_string(k + 2) + ", %v" + std::to_string(k + 3) + "}";
    load += "ld.global.v4.u32 " + quad + ", [%cells+" + std::to_string(4 * k) + "];\n";
    store += "st.global.v4.u32 [%out+" + std::to_string(4 * k) + "], " + quad + ";\n";
  }
  return kernel_text(
      ".param .u64 image, .param .u64 tmem, .param .u64 out, .param .u64 d0, .param .u64 d1, "
      ".param .u64 extra, .param .u32 id",
      R"(
  .reg .pred %p, %q;
  .reg .b32 %thr, %warp, %lanes, %t, %w, %idesc, %at, %i, %v<64>;
  .reg .b64 %src, %cells, %out, %o, %desc0, %desc1, %extra;
  ld.param.u64 %src, [image];
  ld.param.u64 %cells, [tmem];
  ld.param.u64 %out, [out];
  ld.param.u64 %desc0, [d0];
  ld.param.u64 %desc1, [d1];
  ld.param.u64 %extra, [extra];
  ld.param.u32 %idesc, [id];
  mov.u32 %thr, %tid.x;
  shr.u32 %warp, %thr, 5;
  setp.ne.u32 %p, %warp, 0;
  @%p bra ALLOCATED;
  mov.u32 %at, slot;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 64;
  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
  setp.ne.u32 %q, %thr, 0;
  mov.u32 %at, bar;
  @!%q mbarrier.init.shared::cta.b64 [%at], 1;
  shl.b32 %i, %thr, 4;
COPY:
  mov.u32 %at, image_at;
  add.u32 %at, %at, %i;
  cvt.u64.u32 %o, %i;
  add.u64 %o, %src, %o;
  ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%o];
  st.shared.v4.u32 [%at], {%v0, %v1, %v2, %v3};
  add.u32 %i, %i, 2048;
  setp.lt.u32 %p, %i, )" +
          std::to_string(kImage) + R"(;
  @%p bra COPY;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mov.u32 %at, slot;
  ld.shared.u32 %t, [%at];
  mul.wide.u32 %o, %thr, 256;
  add.u64 %cells, %cells, %o;
  add.u64 %out, %out, %o;
)" + load +
          R"(
  shl.b32 %lanes, %warp, 21;
  add.u32 %w, %t, %lanes;
  tcgen05.st.sync.aligned.32x32b.x64.b32 [%w], {)" +
          registers + R"(};
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  setp.eq.u32 %p, %thr, %thr;
  @%q bra ISSUED;
)" + body +
          R"(
  mov.u32 %at, bar;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%at];
ISSUED:
  mov.u32 %at, bar;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p, [%at], 0;
  @!%p bra WAIT;
  tcgen05.fence::after_thread_sync;
  tcgen05.ld.sync.aligned.32x32b.x64.b32 {)" +
          registers + R"(}, [%w];
  tcgen05.wait::ld.sync.aligned;
)" + store +
          R"(
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  setp.ne.u32 %p, %warp, 0;
  @%p bra DONE;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 64;
DONE:
  ret;)",
      ".shared .align 1024 .b8 image_at[" + std::to_string(kImage) +
          "];\n.shared .align 8 .b64 bar;\n.shared .align 4 .b32 slot;\n");
}

struct Operands {
  uint64_t desc0 = 0, desc1 = 0, extra = 0;
  uint32_t idesc = 0;
};

/// Runs `body` under all policies and compares TMEM with what `expect` makes of the same memory.
void check(const std::string& body, const Operands& operands,
           const std::function<void(const CtaMemory&)>& expect) {
  std::mt19937 random(3);
  std::vector<uint8_t> image(kImage);
  for (uint8_t& byte : image) byte = static_cast<uint8_t>(random());
  std::vector<uint32_t> cells(128 * kColumns);
  for (uint32_t& cell : cells) cell = std::bit_cast<uint32_t>(float(random() % 17) - 8);
  // What the tensor function makes of it. Numbers of scales: columns 56 to 63.
  for (uint32_t lane = 0; lane < 128; ++lane) {
    for (uint32_t column = 56; column < 64; ++column) {
      cells[lane * kColumns + column] = 0x7f7e8080 + lane % 32 + column;
    }
  }
  Tmem tmem;
  tmem.allocate(64, 1);
  for (uint32_t lane = 0; lane < 128; ++lane) {
    for (uint32_t column = 0; column < kColumns; ++column) {
      tmem.row(lane)[column] = cells[lane * kColumns + column];
    }
  }
  std::vector<uint8_t> window(kWindow);
  window.insert(window.end(), image.begin(), image.end());
  expect({{window.data(), kWindow, static_cast<uint32_t>(window.size())}, &tmem});
  bool changed = false;
  for (auto delivery : {Delivery::late, Delivery::early, Delivery::sweep, Delivery::random}) {
    Buffers buffers;
    const uint64_t in = buffers.add(image), before = buffers.add(cells);
    const uint64_t out = buffers.add(cells.size() * 4);
    Launch launch;
    launch.block.x = 128;
    launch.options.delivery = delivery;
    auto result = run_module(program(body),
                             Params() << in << before << out << operands.desc0 << operands.desc1
                                      << operands.extra << operands.idesc,
                             buffers, launch);
    ASSERT_EQ(result.cuda_error, 0) << body << result.report;
    auto after = buffers.read<uint32_t>(out, cells.size());
    for (uint32_t lane = 0; lane < 128; ++lane) {
      for (uint32_t column = 0; column < kColumns; ++column) {
        ASSERT_EQ(after[lane * kColumns + column], tmem.row(lane)[column])
            << body << "lane " << lane << " column " << column;
        changed |= after[lane * kColumns + column] != cells[lane * kColumns + column];
      }
    }
  }
  EXPECT_TRUE(changed) << body;
}

uint64_t matrix(uint32_t mn, uint32_t start) {
  return tensor::test::Matrix::make(Swizzle::b32, Major::k, 1, mn, start).tcgen05_bits();
}

TEST(Tcgen05Forms, WeightStationary) {
  // e4m3 random bytes hold NaNs: integers instead.
  const uint32_t idesc = 2u << 4 | 1u << 7 | 1u << 10 | 64 / 8 << 17;
  for (uint32_t m : {32u, 64u, 128u}) {
    for (std::string collector : {"", ".collector::b0::discard", ".collector::b3::fill"}) {
      for (std::string mask : {"", ", %extra"}) {
        Operands o{matrix(m, 0x400), matrix(64, 0x5000), 0, idesc | m / 16 << 24};
        check("tcgen05.mma.ws.cta_group::1.kind::i8" + collector +
                  " [%t], %desc0, %desc1, %idesc, %p" + mask + ";\n",
              o, [&](const CtaMemory& memory) {
                tensor::Tcgen05Mma mma;
                mma.kind = MmaKind::i8;
                mma.weight_stationary = true;
                mma.instruction_descriptor = o.idesc;
                mma.a = o.desc0;
                mma.b_descriptor = o.desc1;
                tcgen05_mma(mma, {&memory, 1}, nullptr);
              });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Tcgen05Forms, BlockScaled) {
  struct Form {
    const char* text;
    ScaledMmaKind kind;
    uint32_t scales;
    uint32_t type;  ///< of A and B
  };
  // e2m1 takes any byte; as kind::mxf8f6f4 (type 5) it is padded.
  const Form forms[] = {
      {"mxf8f6f4.block_scale", ScaledMmaKind::mxf8f6f4, 1, 5},
      {"mxf8f6f4.block_scale.scale_vec::1X", ScaledMmaKind::mxf8f6f4, 1, 5},
      {"mxf8f6f4.block_scale.block32.collector::a::fill", ScaledMmaKind::mxf8f6f4, 1, 5},
      {"mxf4.block_scale", ScaledMmaKind::mxf4, 2, 1},
      {"mxf4.block_scale.scale_vec::2X", ScaledMmaKind::mxf4, 2, 1},
      {"mxf4.block_scale.block32", ScaledMmaKind::mxf4, 2, 1},
      {"mxf4nvf4.block_scale.scale_vec::2X", ScaledMmaKind::mxf4nvf4, 2, 1},
      {"mxf4nvf4.block_scale.scale_vec::4X", ScaledMmaKind::mxf4nvf4, 4, 1},
      {"mxf4nvf4.block_scale.block16.collector::a::lastuse", ScaledMmaKind::mxf4nvf4, 4, 1},
      {"mxf4nvf4.block_scale.block32", ScaledMmaKind::mxf4nvf4, 2, 1},
  };
  for (const Form& form : forms) {
    Operands o{matrix(128, 0x400), matrix(48, 0x9000), 0,
               form.type << 7 | form.type << 10 | 48 / 8 << 17 | 1u << 23 | 1u << 27};
    check(
        std::string("add.u32 %v0, %t, 56;\nadd.u32 %v1, %t, 60;\ntcgen05.mma.cta_group::1.kind::") +
            form.text + " [%t], %desc0, %desc1, %idesc, [%v0], [%v1], %p;\n",
        o, [&](const CtaMemory& memory) {
          tensor::Tcgen05ScaledMma mma;
          mma.kind = form.kind;
          mma.scales = form.scales;
          mma.instruction_descriptor = o.idesc;
          mma.a = o.desc0;
          mma.b_descriptor = o.desc1;
          mma.scale_a = 56;
          mma.scale_b = 60;
          tcgen05_scaled_mma(mma, {&memory, 1}, nullptr);
        });
    if (HasFatalFailure()) return;
  }
}

TEST(Tcgen05Forms, CopyAndShift) {
  struct Copy {
    const char* text;
    TmemCopyShape shape;
  };
  const Copy copies[] = {{"128x256b", TmemCopyShape::s128x256b},
                         {"128x128b", TmemCopyShape::s128x128b},
                         {"64x128b.warpx2::02_13", TmemCopyShape::s64x128b_02_13},
                         {"64x128b.warpx2::01_23", TmemCopyShape::s64x128b_01_23},
                         {"32x128b.warpx4", TmemCopyShape::s32x128b_warpx4}};
  Operands o{matrix(128, 0x400)};
  for (const Copy& copy : copies) {
    check(
        std::string("tcgen05.cp.cta_group::1.") + copy.text + " [%t], %desc0;\n", o,
        [&](const CtaMemory& memory) { tcgen05_copy(copy.shape, 0, o.desc0, memory, 0, nullptr); });
  }
  // A shift, then the last rows anew.
  check(R"(
    tcgen05.shift.cta_group::1.down [%t];
    add.u32 %v0, %t, 0x1f0000;
    tcgen05.cp.cta_group::1.4x256b [%v0], %desc0;
)",
        o, [&](const CtaMemory& memory) {
          tcgen05_shift(0, memory, 0, nullptr);
          tcgen05_copy(TmemCopyShape::s4x256b, 31u << 16, o.desc0, memory, 0, nullptr);
        });
}

/// Warp `loader` loads TMEM and executes `after`, without a tcgen05.wait::ld; then it meets warp 0,
/// which frees the memory, at the barrier `meet`.
std::pair<exec::LaunchResult, std::string> unwaited_load(
    uint32_t loader, const std::string& after, const char* checks, const char* meet = "bar.sync 0;",
    const char* before = "tcgen05.fence::before_thread_sync;") {
  const std::string text = kernel_text(".param .u64 out", R"(
  .reg .pred %p, %q;
  .reg .b32 %thr, %warp, %at, %t, %a, %v;
  .shared .align 4 .b32 slot[2];
  mov.u32 %thr, %tid.x;
  shr.u32 %warp, %thr, 5;
  setp.ne.u32 %p, %warp, 0;
  setp.ne.u32 %q, %warp, )" + std::to_string(loader) + R"(;
  mov.u32 %at, slot;
  @%p bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 32;
ALLOCATED:
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  ld.shared.u32 %t, [%at];
  shl.b32 %a, %warp, 21;
  add.u32 %a, %a, %t;
  @%q bra MEET;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%a], {%thr};
  tcgen05.wait::st.sync.aligned;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v}, [%a];
)" + after + R"(
MEET:
  )" + before + meet + R"(
  tcgen05.fence::after_thread_sync;
  @%p bra DONE;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 32;
DONE:
  ret;)");
  std::string notes;
  const auto checker = check::make_checker(check::CheckOptions::parse(checks), nullptr,
                                           [&](std::string_view note) { notes += note; });
  Buffers buffers;
  Launch launch;
  launch.block.x = 64;
  launch.observer = checker.get();
  auto result = run_module(text, Params() << buffers.add(256), buffers, launch);
  return {result, notes};
}

TEST(Tcgen05Checks, FreeingAfterAnUnwaitedLoadIsANote) {
  for (uint32_t loader : {0u, 1u}) {
    auto [result, notes] = unwaited_load(loader, "", "all");
    EXPECT_EQ(result.cuda_error, 0) << result.report;
    EXPECT_NE(notes.find("freed after a tcgen05.ld"), std::string::npos) << notes;
    auto [strict, none] = unwaited_load(loader, "", "all,strict");
    EXPECT_NE(strict.report.find("freed after a tcgen05.ld"), std::string::npos) << strict.report;
    auto [waited, clean] = unwaited_load(loader, "tcgen05.wait::ld.sync.aligned;", "all,strict");
    EXPECT_EQ(waited.cuda_error, 0) << waited.report;
    EXPECT_EQ(clean, "");
  }
  // Overwriting what may still be read stays a race.
  auto [raced, more] = unwaited_load(0, R"(
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%a], {%thr};
  tcgen05.wait::st.sync.aligned;)",
                                     "all");
  EXPECT_NE(raced.report.find("nothing orders these two accesses"), std::string::npos)
      << raced.report;
}

// What a relaxed arrival publishes is noted for TMEM as it is for shared memory.
TEST(Tcgen05Checks, FreeingBehindARelaxedArrivalIsANote) {
  const char* waited = "tcgen05.wait::ld.sync.aligned;";
  const std::string arrive = "barrier.cluster.arrive.", pass = "barrier.cluster.wait.acquire;";
  const std::string relaxed = arrive + "relaxed; " + pass, ordered = arrive + "release; " + pass;
  auto [result, notes] = unwaited_load(1, waited, "all", relaxed.c_str(), "");
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  EXPECT_NE(notes.find("tcgen05.dealloc"), std::string::npos) << notes;
  auto [strict, none] = unwaited_load(1, waited, "all,strict", relaxed.c_str(), "");
  EXPECT_NE(strict.report.find("tcgen05.dealloc"), std::string::npos) << strict.report;
  // Fences on both sides order what PTX calls a pattern: relaxed arrivals are enough then.
  auto [fenced, quiet] = unwaited_load(1, waited, "all,strict", relaxed.c_str());
  EXPECT_EQ(fenced.cuda_error, 0) << fenced.report;
  auto [released, clean] = unwaited_load(1, waited, "all,strict", ordered.c_str());
  EXPECT_EQ(released.cuda_error, 0) << released.report;
}

// Copies of shared memory that is written in part leave TMEM written in part: scales of 192 columns
// are copied in two blocks of 128.
TEST(Tcgen05Checks, CopiesOfUnwrittenMemoryAreFollowed) {
  auto run = [](uint32_t column) {
    const std::string text = kernel_text(".param .u64 out", R"(
  .reg .pred %p, %q;
  .reg .b32 %thr, %at, %t, %a, %v, %bar;
  .reg .b64 %desc, %out, %o;
  .shared .align 128 .b8 rows[512];
  .shared .align 8 .b64 barrier;
  .shared .align 4 .b32 slot;
  ld.param.u64 %out, [out];
  mov.u32 %thr, %tid.x;
  setp.eq.u32 %q, %thr, 0;
  mov.u32 %at, slot;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 32;
  ld.shared.u32 %t, [%at];
  mov.u32 %bar, barrier;
  mov.u32 %at, rows;
  shr.u32 %a, %at, 4;
  cvt.u64.u32 %desc, %a;
  or.b64 %desc, %desc, 0x400800080000;
  mad.lo.u32 %at, %thr, 16, %at;
  st.shared.v2.u32 [%at], {%thr, %thr};
  @%q mbarrier.init.shared::cta.b64 [%bar], 1;
  fence.proxy.async.shared::cta;
  bar.warp.sync -1;
  @%q tcgen05.cp.cta_group::1.32x128b.warpx4 [%t], %desc;
  @%q tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], 0;
  @!%p bra WAIT;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v}, [%t+)" + std::to_string(column) +
                                                                R"(];
  tcgen05.wait::ld.sync.aligned;
  add.u32 %v, %v, 1;
  mul.wide.u32 %o, %thr, 4;
  add.u64 %out, %out, %o;
  st.global.u32 [%out], %v;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 32;
  ret;)");
    const auto checker =
        check::make_checker(check::CheckOptions::parse("all"), nullptr, [](std::string_view) {});
    Buffers buffers;
    const uint64_t out = buffers.add(128);
    Launch launch;
    launch.observer = checker.get();
    auto result = run_module(text, Params() << out, buffers, launch);
    return std::pair{result, buffers.read<uint32_t>(out, 32)};
  };
  auto [written, values] = run(1);
  EXPECT_EQ(written.cuda_error, 0) << written.report;
  EXPECT_EQ(values[31], 32u);
  auto [unwritten, none] = run(2);
  EXPECT_NE(unwritten.report.find(", column 2, which was never written"), std::string::npos)
      << unwritten.report;
}

// What PTX does not order and kernels in the field do.
TEST(Tcgen05Checks, UnwaitedTransfersOfAWarpAreNotes) {
  struct Case {
    const char *name, *body, *note;
  };
  const Case cases[] = {{"load, use, store", R"(
  add.u32 %v, %v, 1;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%a], {%v};
  tcgen05.wait::ld.sync.aligned;
  tcgen05.wait::st.sync.aligned;)",
                         "tcgen05.wait::ld"},
                        {"store, load", R"(
  tcgen05.wait::ld.sync.aligned;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%a], {%thr};
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v}, [%a];
  tcgen05.wait::st.sync.aligned;
  tcgen05.wait::ld.sync.aligned;)",
                         "tcgen05.wait::st"},
                        {"other lanes named", R"(
  tcgen05.wait::ld.sync.aligned;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v}, [%t];
  tcgen05.wait::ld.sync.aligned;)",
                         "names lane 0; it reaches lanes 32 to 63"}};
  for (const Case& test : cases) {
    auto [result, notes] = unwaited_load(1, test.body, "all");
    EXPECT_EQ(result.cuda_error, 0) << test.name << "\n" << result.report;
    EXPECT_NE(notes.find(test.note), std::string::npos) << test.name << "\n" << notes;
    auto [strict, none] = unwaited_load(1, test.body, "all,strict");
    EXPECT_NE(strict.cuda_error, 0) << test.name;
  }
  // A store that nothing waits for before its cells are freed is named as such.
  const char* freed = R"(
  tcgen05.wait::ld.sync.aligned;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%a], {%thr};)";
  auto [noted, more] = unwaited_load(0, freed, "all");
  EXPECT_EQ(noted.cuda_error, 0) << noted.report;
  EXPECT_NE(more.find("missing: tcgen05.wait::st"), std::string::npos) << more;
  auto [strict, none] = unwaited_load(0, freed, "all,strict");
  EXPECT_NE(strict.report.find("missing: tcgen05.wait::st"), std::string::npos) << strict.report;
  auto [unchecked, nothing] = unwaited_load(0, freed, "none");
  EXPECT_EQ(unchecked.cuda_error, 0) << unchecked.report;
}

// Arithmetic may stand before the wait, what stores its result or signals may not.
TEST(Tcgen05Checks, UseBeforeTheWaitIsANote) {
  auto [result, notes] =
      unwaited_load(0, "cvt.rn.f32.u32 %v, %v;\ntcgen05.wait::ld.sync.aligned;", "all");
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  EXPECT_NE(notes.find("registers check"), std::string::npos) << notes;
  const char* store = "st.shared.u32 [%at+4], %v;\ntcgen05.wait::ld.sync.aligned;";
  auto [stored, told] = unwaited_load(0, store, "all");
  EXPECT_NE(told.find("registers check"), std::string::npos) << stored.report;
  auto [strict, none] = unwaited_load(0, store, "all,strict");
  EXPECT_NE(strict.report.find("registers check"), std::string::npos) << strict.report;
}

TEST(Tcgen05Forms, UnsupportedFormsAreListed) {
  const char* forms[] = {
      "tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%t], %desc0, %desc1, [%t], %idesc, %p;",
      "tcgen05.mma.cta_group::1.kind::f16.ashift [%t], [%t], %desc1, %idesc, %p;",
      "tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%t], %desc0;",
      "tcgen05.cp.cta_group::1.128x128b.b8x16.b6x16_p32 [%t], %desc0;",
  };
  std::string body;
  for (const char* form : forms) body += std::string(form) + "\n";
  const std::string refusal = exec::Program::load(program(body))->refusals();
  for (const char* form : forms) {
    const std::string opcode = std::string(form).substr(0, std::string(form).find(' '));
    EXPECT_NE(refusal.find(opcode), std::string::npos) << opcode << "\n" << refusal;
  }
}

}  // namespace
}  // namespace vgpu::test
