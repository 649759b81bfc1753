// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <zstd.h>

#include <cstring>
#include <functional>

#include "fault.hpp"
#include "runtime/fatbin.hpp"

namespace vgpu::runtime {
namespace {

constexpr uint64_t kLz4 = 0x2000, kZstd = 0x8000, kArchSpecific = 0x100000, kFamily = 0x200000;

template <typename T>
void put(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// One entry of a container as nvcc writes it.
std::string entry(bool ptx, uint32_t arch, uint64_t flags, std::string payload,
                  size_t unpacked_bytes) {
  const size_t stored = payload.size();
  payload.resize((payload.size() + 7) / 8 * 8);
  std::string bytes(64, '\0');
  put<uint16_t>(bytes, 0, ptx ? 1 : 2);
  put<uint32_t>(bytes, 4, 64);
  put<uint64_t>(bytes, 8, payload.size());
  put<uint32_t>(bytes, 16, flags & (kLz4 | kZstd) ? static_cast<uint32_t>(stored) : 0);
  put<uint32_t>(bytes, 28, arch);
  put<uint64_t>(bytes, 40, flags);
  put<uint64_t>(bytes, 56, unpacked_bytes);
  return bytes + payload;
}

std::string container(const std::vector<std::string>& entries) {
  std::string body;
  for (const std::string& one : entries) body += one;
  std::string bytes(16, '\0');
  put<uint32_t>(bytes, 0, 0xBA55ED50);
  put<uint16_t>(bytes, 4, 1);
  put<uint16_t>(bytes, 6, 16);
  put<uint64_t>(bytes, 8, body.size());
  return bytes + body;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

FatEntry ptx_entry(uint32_t arch, char suffix) {
  FatEntry result;
  result.is_ptx = true;
  result.arch = arch;
  result.suffix = suffix;
  result.ptx = "ptx";
  return result;
}

std::string message_of(const std::function<void()>& body, int error) {
  try {
    body();
  } catch (const Fault& problem) {
    EXPECT_EQ(problem.cuda_error, error);
    return problem.text;
  }
  ADD_FAILURE() << "no fault";
  return {};
}

TEST(FatContainer, ReadsEveryPacking) {
  std::string text = ".version 9.0\n.target sm_90a\n";
  for (int i = 0; i < 50; ++i) text += "// the same line again\n";
  const std::string literal_block = [&] {
    std::string block("\xf0", 1);  // one sequence of literals only
    size_t left = text.size() - 15;
    for (; left >= 255; left -= 255) block += '\xff';
    block += static_cast<char>(left);
    return block + text;
  }();
  const std::string bytes = container({
      entry(true, 90, kArchSpecific, text, text.size()),
      entry(true, 100, kArchSpecific | kZstd, zstd(text), text.size()),
      entry(true, 100, kFamily | kLz4, literal_block, text.size()),
      entry(false, 90, kArchSpecific, "machine code", 0),
  });
  const auto entries = read_fat_container(bytes.data());
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0].name(), "PTX compute_90a");
  EXPECT_EQ(entries[1].name(), "PTX compute_100a");
  EXPECT_EQ(entries[2].name(), "PTX compute_100f");
  EXPECT_EQ(entries[3].name(), "SASS sm_90a");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(entries[i].ptx, text) << entries[i].problem;
}

TEST(FatContainer, RefusesDamage) {
  std::string bytes = container({entry(true, 90, 0, "text", 4)});
  std::string wrong_magic = bytes;
  wrong_magic[0] = 0;
  EXPECT_NE(message_of([&] { read_fat_container(wrong_magic.data()); }, kInvalidPtx).find("magic"),
            std::string::npos);
  std::string long_entry = bytes;
  put<uint64_t>(long_entry, 16 + 8, 1 << 20);
  message_of([&] { read_fat_container(long_entry.data()); }, kInvalidPtx);

  // Damaged data are a problem only of the entry they belong to.
  std::string packed = zstd("some text, long enough");
  packed[packed.size() / 2] ^= 0x55;
  packed.resize(packed.size() - 3);
  const std::string distance_too_far(
      "\x10"
      "a\x09\0\0",
      5);
  const std::string damaged =
      container({entry(true, 90, kArchSpecific | kZstd, packed, 22),
                 entry(true, 90, kArchSpecific | kLz4, distance_too_far, 5)});
  const auto entries = read_fat_container(damaged.data());
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_NE(entries[0].problem.find("zstd"), std::string::npos);
  EXPECT_NE(entries[1].problem.find("LZ4"), std::string::npos);
  EXPECT_NE(message_of([&] { choose_ptx(entries, 90); }, kInvalidPtx).find("compute_90a"),
            std::string::npos);
}

TEST(ChoosePtx, PrefersTheExactArchitecture) {
  const std::vector<FatEntry> all = {ptx_entry(80, 0),   ptx_entry(90, 0),    ptx_entry(90, 'a'),
                                     ptx_entry(100, 0),  ptx_entry(100, 'f'), ptx_entry(100, 'a'),
                                     ptx_entry(103, 'a')};
  EXPECT_EQ(choose_ptx(all, 90).name(), "PTX compute_90a");
  EXPECT_EQ(choose_ptx(all, 100).name(), "PTX compute_100a");
  EXPECT_EQ(choose_ptx({ptx_entry(80, 0), ptx_entry(90, 0), ptx_entry(90, 'a')}, 100).name(),
            "PTX compute_90");
  EXPECT_EQ(choose_ptx({ptx_entry(100, 0), ptx_entry(100, 'f')}, 100).name(), "PTX compute_100f");
}

TEST(ChoosePtx, NamesTheFlagToAdd) {
  FatEntry sass;
  sass.arch = 90;
  sass.suffix = 'a';
  const std::string text = message_of(
      [&] {
        choose_ptx({sass, ptx_entry(90, 'a')}, 100);
      },
      kNoKernelImageForDevice);
  EXPECT_NE(text.find("SASS sm_90a, PTX compute_90a"), std::string::npos) << text;
  EXPECT_NE(text.find("arch=compute_100a,code=[sm_100a,compute_100a]"), std::string::npos) << text;
}

TEST(FatImage, TakesPlainPtx) {
  const auto entries = read_fat_image(".version 9.0\n.target sm_100a\n.address_size 64\n");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].name(), "PTX compute_100a");
  message_of([] { read_fat_image("\177ELF and machine code"); }, kNoKernelImageForDevice);
  message_of([] { read_fat_image("no directive at all"); }, kInvalidPtx);
}

}  // namespace
}  // namespace vgpu::runtime
