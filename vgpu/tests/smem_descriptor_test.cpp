// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "matrix_layout.hpp"
#include "tensor/smem_descriptor.hpp"

namespace vgpu::tensor {
namespace {

using test::fault_text;
using test::Matrix;

TEST(SmemDescriptor, DecodesWgmmaFields) {
  uint64_t bits = 0x1234ull | 0x0567ull << 16 | 0x089aull << 32 | 2ull << 62;
  SmemDescriptor descriptor = decode_wgmma_descriptor(bits);
  EXPECT_EQ(descriptor.start_address, 0x12340u);
  EXPECT_EQ(descriptor.leading_byte_offset, 0x5670u);
  EXPECT_EQ(descriptor.stride_byte_offset, 0x89a0u);
  EXPECT_EQ(descriptor.swizzle, Swizzle::b64);
  EXPECT_EQ(decode_wgmma_descriptor(0).swizzle, Swizzle::none);
  EXPECT_EQ(decode_wgmma_descriptor(1ull << 62).swizzle, Swizzle::b128);
  EXPECT_EQ(decode_wgmma_descriptor(3ull << 62).swizzle, Swizzle::b32);
}

TEST(SmemDescriptor, DecodesTcgen05Fields) {
  uint64_t bits = 0x0040ull | 0x0001ull << 16 | 0x0040ull << 32 | 1ull << 46 | 2ull << 61;
  SmemDescriptor descriptor = decode_tcgen05_descriptor(bits);
  EXPECT_EQ(descriptor.start_address, 0x400u);
  EXPECT_EQ(descriptor.stride_byte_offset, 1024u);
  EXPECT_EQ(descriptor.swizzle, Swizzle::b128);
  const std::pair<uint64_t, Swizzle> modes[] = {{0, Swizzle::none},
                                                {1, Swizzle::b128_atom32},
                                                {2, Swizzle::b128},
                                                {4, Swizzle::b64},
                                                {6, Swizzle::b32}};
  for (auto [mode, swizzle] : modes) {
    EXPECT_EQ(decode_tcgen05_descriptor(1ull << 46 | mode << 61).swizzle, swizzle);
  }
}

TEST(SmemDescriptor, IllegalFieldsAreNamed) {
  auto wgmma = [](uint64_t bits) { return fault_text([&] { decode_wgmma_descriptor(bits); }); };
  auto tcgen05 = [](uint64_t bits) { return fault_text([&] { decode_tcgen05_descriptor(bits); }); };
  EXPECT_NE(wgmma(1ull << 14).find("bits 14-15"), std::string::npos);
  EXPECT_NE(wgmma(1ull << 31).find("bits 30-31"), std::string::npos);
  EXPECT_NE(wgmma(1ull << 46).find("bits 46-48"), std::string::npos);
  EXPECT_NE(wgmma(1ull << 55).find("bits 52-61"), std::string::npos);
  EXPECT_NE(wgmma(3ull << 49).find("base offset (bits 49-51) 3"), std::string::npos);
  EXPECT_NE(tcgen05(0).find("0b001"), std::string::npos);
  EXPECT_NE(tcgen05(1ull << 46 | 1ull << 52).find("bit 52"), std::string::npos);
  EXPECT_NE(tcgen05(1ull << 46 | 1ull << 60).find("bits 53-60"), std::string::npos);
  for (uint64_t mode : {3, 5, 7}) {
    EXPECT_NE(tcgen05(1ull << 46 | mode << 61).find("swizzle mode"), std::string::npos);
  }
  EXPECT_EQ(tcgen05(1ull << 46), "no fault");
}

TEST(SmemDescriptor, AddressesMatchTheFigures) {
  for (Swizzle swizzle :
       {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128, Swizzle::b128_atom32}) {
    for (Major major : {Major::k, Major::mn}) {
      for (uint32_t bytes : {1u, 2u, 4u}) {
        if (swizzle == Swizzle::b128_atom32 && (major == Major::k || bytes != 4)) continue;
        Matrix matrix = Matrix::make(swizzle, major, bytes, 256, 0x2000);
        SmemDescriptor descriptor = decode_tcgen05_descriptor(matrix.tcgen05_bits());
        for (uint32_t mn = 0; mn < 256; ++mn) {
          for (uint32_t k = 0; k < 32 / bytes; ++k) {
            ASSERT_EQ(element_address(descriptor, major, mn, k, bytes), matrix.address(mn, k))
                << name_of(swizzle) << " major " << int(major) << " bytes " << bytes << " mn " << mn
                << " k " << k;
          }
        }
      }
    }
  }
}

TEST(SmemDescriptor, AdvancingAlongKStaysInThePattern) {
  // Kernels step K by adding bytes to the start address inside a 128-byte row.
  SmemDescriptor descriptor{
      .start_address = 0x2000, .stride_byte_offset = 1024, .swizzle = Swizzle::b128};
  SmemDescriptor next = descriptor;
  next.start_address += 32;
  for (uint32_t mn = 0; mn < 64; ++mn) {
    for (uint32_t k = 0; k < 16; ++k) {
      EXPECT_EQ(element_address(next, Major::k, mn, k, 2),
                element_address(descriptor, Major::k, mn, k + 16, 2));
    }
  }
}

TEST(SmemDescriptor, OutOfBoundsIsExplained) {
  std::vector<uint8_t> memory(4096);
  SharedView shared{memory.data(), 1024, 4096};
  Matrix matrix = Matrix::make(Swizzle::b128, Major::k, 2, 64, 1024);
  SmemOperand operand{decode_wgmma_descriptor(matrix.wgmma_bits()), Major::k, ElementType::bf16,
                      64};
  std::vector<float> panel(64 * 16);
  std::string text =
      fault_text([&] { read_operand(operand, shared, 0, nullptr, panel.data(), 16, 1); });
  EXPECT_NE(text.find("outside the CTA's 0x400..0x1000"), std::string::npos) << text;
  operand.descriptor.start_address = 512;
  operand.mn = 8;
  text = fault_text([&] { read_operand(operand, shared, 0, nullptr, panel.data(), 16, 1); });
  EXPECT_NE(text.find("shared address 0x240"), std::string::npos) << text;
}

}  // namespace
}  // namespace vgpu::tensor
