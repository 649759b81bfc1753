// SPDX-License-Identifier: Apache-2.0
// Speed of the tensor operations on one thread, in multiply-accumulates a second.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "matrix_layout.hpp"
#include "tensor/tcgen05_mma.hpp"

namespace {

using namespace vgpu::tensor;
using Clock = std::chrono::steady_clock;

template <typename Run>
void measure(const char* name, double macs, Run run) {
  run();
  int count = 0;
  auto start = Clock::now();
  double seconds = 0;
  while (seconds < 0.3) {
    run();
    ++count;
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::printf("%-40s %7.2f G MAC/s\n", name, macs * count / seconds * 1e-9);
}

}  // namespace

int main() {
  std::vector<uint8_t> shared(200 * 1024, 0);
  const SharedView view{shared.data(), 1024, static_cast<uint32_t>(shared.size())};
  test::Matrix a = test::Matrix::make(Swizzle::b128, Major::k, 2, 128, 0x2000);
  test::Matrix b = test::Matrix::make(Swizzle::b128, Major::k, 2, 256, 0x10000);

  Tmem tmem[2];
  for (Tmem& t : tmem) t.allocate(512, 1);
  const CtaMemory ctas[] = {{view, &tmem[0]}, {view, &tmem[1]}};
  for (uint32_t n : {64u, 128u, 256u}) {
    Tcgen05Mma mma{.instruction_descriptor = 1 << 4 | 1 << 7 | 1 << 10 | n / 8 << 17 | 8 << 24,
                   .a = a.tcgen05_bits(),
                   .b_descriptor = b.tcgen05_bits()};
    measure(("tcgen05.mma bf16 128x" + std::to_string(n) + "x16").c_str(), 128.0 * n * 16, [&] {
      tcgen05_mma(mma, {ctas, 1}, nullptr);
    });
  }
  Tcgen05Mma fp8{.kind = MmaKind::f8f6f4,
                 .instruction_descriptor = 1 << 4 | 32 << 17 | 8 << 24,
                 .a = a.tcgen05_bits(),
                 .b_descriptor = b.tcgen05_bits()};
  measure("tcgen05.mma e4m3 128x256x32", 128.0 * 256 * 32, [&] {
    tcgen05_mma(fp8, {ctas, 1}, nullptr);
  });
  Tcgen05Mma i8 = fp8;
  i8.kind = MmaKind::i8;
  i8.instruction_descriptor = 2 << 4 | 32 << 17 | 8 << 24;
  measure("tcgen05.mma u8 128x256x32", 128.0 * 256 * 32, [&] {
    tcgen05_mma(i8, {ctas, 1}, nullptr);
  });

  std::vector<uint32_t> words(4 * 128 * 32);
  std::vector<uint32_t*> registers(4 * 128);
  for (size_t i = 0; i < registers.size(); ++i) registers[i] = &words[i * 32];
  for (uint32_t n : {64u, 128u, 256u}) {
    WgmmaInstruction instruction{.n = n};
    WgmmaOperands operands{.a_descriptor = a.wgmma_bits(), .b_descriptor = b.wgmma_bits()};
    for (uint32_t warp = 0; warp < 4; ++warp) operands.d_registers[warp] = &registers[warp * 128];
    measure(("wgmma bf16 64x" + std::to_string(n) + "x16").c_str(), 64.0 * n * 16,
            [&] { wgmma(instruction, operands, view); });
  }
}
