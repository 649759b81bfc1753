// SPDX-License-Identifier: Apache-2.0
#include "io/png.hpp"

#include <png.h>

#include <cmath>
#include <cstring>

#include "memory_file.hpp"

namespace convoy::io {
namespace {

/// A PNG made by libpng's simplified interface: 8 bits, `channels` of 1, 3 or 4.
std::string encode(int width, int height, int channels, const std::vector<std::uint8_t>& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = png_uint_32(width);
  image.height = png_uint_32(height);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
  png_alloc_size_t bytes = 0;
  EXPECT_TRUE(png_image_write_to_memory(&image, nullptr, &bytes, 0, pixels.data(), 0, nullptr));
  std::string out(bytes, '\0');
  EXPECT_TRUE(png_image_write_to_memory(&image, out.data(), &bytes, 0, pixels.data(), 0, nullptr));
  out.resize(bytes);
  return out;
}

/// Replaces the width and height of the header, and its checksum.
std::string with_size(std::string png, std::uint32_t width, std::uint32_t height) {
  const auto put = [&](std::size_t at, std::uint32_t value) {
    for (int i = 0; i < 4; ++i) png[at + std::size_t(i)] = char(value >> (24 - 8 * i));
  };
  put(16, width);
  put(20, height);
  // CRC-32 of the chunk's type and data (PNG specification, annex D).
  std::uint32_t crc = 0xffffffffu;
  for (std::size_t i = 12; i < 29; ++i) {
    crc ^= std::uint8_t(png[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0);
  }
  put(29, ~crc);
  return png;
}

HostTensor decode(const std::string& bytes) {
  MemorySource source("file", std::as_bytes(std::span(bytes)));
  return read_png(source);
}

std::string png_refusal(const std::string& bytes) {
  return refusal(bytes, [](ByteSource& source) { read_png(source); });
}

TEST(Png, ReadsGreyRgbAndAlpha) {
  for (int channels : {1, 3, 4}) {
    std::vector<std::uint8_t> pixels(std::size_t(2 * 3 * channels));
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = std::uint8_t(11 * i);
    if (channels == 4) {
      for (std::size_t i = 3; i < pixels.size(); i += 4) pixels[i] = 255;
      pixels[3] = 254;  // An alpha that libpng must keep.
    }
    const HostTensor image = decode(encode(3, 2, channels, pixels));
    EXPECT_EQ(image.shape, (std::vector<std::int64_t>{2, 3, channels}));
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      EXPECT_FLOAT_EQ(values<float>(image)[i], float(pixels[i]) / 255.0f) << i;
    }
  }
}

TEST(Png, RefusesWithTheReason) {
  const std::string good = encode(4, 4, 3, std::vector<std::uint8_t>(48, 7));
  EXPECT_EQ(png_refusal(good), "accepted");
  const auto expect = [](const std::string& bytes, const std::string& reason) {
    EXPECT_NE(png_refusal(bytes).find(reason), std::string::npos) << png_refusal(bytes);
  };
  expect("", "is not a PNG file");
  expect("GIF89a, and more bytes", "is not a PNG file");
  expect(good.substr(0, 20), "truncated: a PNG chunk of 13 bytes");
  expect(good.substr(0, good.size() - 12), "bad PNG");
  expect(good.substr(0, good.size() - 14), "truncated: a PNG chunk");
  std::string damaged = good;
  damaged[40] = char(damaged[40] ^ 0x55);
  expect(damaged, "bad PNG");
  // Huge in its header, small in its body: nothing is reserved for it.
  expect(with_size(good, 900'000, 900'000), "more than");
  expect(with_size(good, 0x7fffffff, 0x7fffffff), "bad PNG");
  expect(with_size(good, 0, 4), "bad PNG");
  expect(with_size(good, 4, 8), "bad PNG");  // Body shorter than the header says.
}

TEST(Png, WritesWhatItReads) {
  const TemporaryFolder folder;
  for (std::int64_t channels : {1, 3}) {
    HostTensor image(DType::fp32, {3, 5, channels});
    auto* pixels = reinterpret_cast<float*>(image.bytes.data());
    for (std::int64_t i = 0; i < image.elements(); ++i) pixels[i] = float(i) / 255.0f;
    AtomicFile file(folder / "a.png");
    write_png(file, image);
    file.commit();
    FileSource source(folder / "a.png");
    const HostTensor again = read_png(source);
    EXPECT_EQ(again.shape, image.shape);
    for (std::int64_t i = 0; i < image.elements(); ++i) {
      EXPECT_FLOAT_EQ(values<float>(again)[i], pixels[i]);
    }
  }
}

TEST(Png, ClampsAndWritesNanAsZero) {
  const TemporaryFolder folder;
  HostTensor image(DType::fp32, {1, 4, 1});
  const float in[] = {-1.0f, 2.0f, NAN, 0.5f};
  std::memcpy(image.bytes.data(), in, sizeof(in));
  AtomicFile file(folder / "a.png");
  write_png(file, image);
  file.commit();
  FileSource source(folder / "a.png");
  const HostTensor again = read_png(source);
  EXPECT_EQ(values<float>(again)[0], 0.0f);
  EXPECT_EQ(values<float>(again)[1], 1.0f);
  EXPECT_EQ(values<float>(again)[2], 0.0f);
  EXPECT_FLOAT_EQ(values<float>(again)[3], 128.0f / 255.0f);
}

TEST(Png, ContactSheetHasOneTileForEachChannel) {
  HostTensor tensor(DType::fp32, {1, 8, 8, 4});
  auto* data = reinterpret_cast<float*>(tensor.bytes.data());
  for (std::int64_t i = 0; i < 64; ++i) {
    for (std::int64_t k = 0; k < 4; ++k) {
      // Channel k is -5 but for its left half, which is 3 + k; each tile spreads to 0 and 1.
      data[i * 4 + k] = i % 8 < 4 ? 3.0f + float(k) : -5.0f;
    }
  }
  const HostTensor sheet = picture_of(tensor);
  EXPECT_EQ(sheet.shape, (std::vector<std::int64_t>{17, 17, 1}));
  for (std::int64_t y : {0, 9}) {
    for (std::int64_t x : {0, 9}) {
      EXPECT_EQ(values<float>(sheet)[y * 17 + x], 1.0f);
      EXPECT_EQ(values<float>(sheet)[y * 17 + x + 7], 0.0f);
    }
  }
  // Three channels of one frame are a picture as it is.
  EXPECT_EQ(picture_of(HostTensor(DType::bf16, {1, 8, 6, 3})).shape,
            (std::vector<std::int64_t>{8, 6, 3}));
  // Large ones are averaged down.
  const HostTensor large = picture_of(HostTensor(DType::fp32, {1, 3000, 3000, 4}));
  EXPECT_LE(std::max(large.shape[0], large.shape[1]), kLargestSheet);
  EXPECT_GT(large.shape[0], kLargestSheet / 3);
}

}  // namespace
}  // namespace convoy::io
