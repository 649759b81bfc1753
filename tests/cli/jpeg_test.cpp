// SPDX-License-Identifier: Apache-2.0
#include "io/jpeg.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

// clang-format off
#include <jpeglib.h>
// clang-format on

#include "memory_file.hpp"

namespace convoy::io {
namespace {

struct Encoding {
  J_COLOR_SPACE space = JCS_RGB;
  bool progressive = false;
  int quality = 100;
  std::vector<jpeg_scan_info> scans = {};  ///< Of a progressive one; libjpeg's where empty.
};

/// A JPEG made by libjpeg; `pixels` has as many samples each as the colour space.
std::string encode_jpeg(int width, int height, const std::vector<std::uint8_t>& pixels,
                        const Encoding& how = {}) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&jpeg, &memory, &bytes);
  jpeg.image_width = JDIMENSION(width);
  jpeg.image_height = JDIMENSION(height);
  jpeg.input_components = how.space == JCS_GRAYSCALE ? 1 : how.space == JCS_CMYK ? 4 : 3;
  jpeg.in_color_space = how.space;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, how.quality, TRUE);
  if (how.progressive) jpeg_simple_progression(&jpeg);
  if (!how.scans.empty()) {
    jpeg.scan_info = how.scans.data();
    jpeg.num_scans = int(how.scans.size());
  }
  jpeg_start_compress(&jpeg, TRUE);
  const std::size_t row_bytes = std::size_t(width * jpeg.input_components);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<JSAMPROW>(pixels.data() + jpeg.next_scanline * row_bytes);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string out(reinterpret_cast<char*>(memory), bytes);
  std::free(memory);
  return out;
}

/// Where the marker FF `kind` begins.
std::size_t find_marker(const std::string& jpeg, unsigned char kind) {
  const char marker[] = {char(0xff), char(kind)};
  return jpeg.find(std::string_view(marker, 2));
}

/// Another height and width in the frame's header.
std::string with_size(std::string jpeg, unsigned height, unsigned width, unsigned char frame) {
  const std::size_t at = find_marker(jpeg, frame) + 5;
  jpeg[at] = char(height >> 8);
  jpeg[at + 1] = char(height);
  jpeg[at + 2] = char(width >> 8);
  jpeg[at + 3] = char(width);
  return jpeg;
}

HostTensor decode_jpeg(const std::string& bytes) {
  MemorySource source("file", std::as_bytes(std::span(bytes)));
  return read_jpeg(source);
}

std::string jpeg_refusal(const std::string& bytes) {
  return refusal(bytes, [](ByteSource& source) { read_jpeg(source); });
}

TEST(Jpeg, ReadsGreyAndColours) {
  for (const bool progressive : {false, true}) {
    for (const J_COLOR_SPACE space : {JCS_GRAYSCALE, JCS_RGB}) {
      const int channels = space == JCS_GRAYSCALE ? 1 : 3;
      std::vector<std::uint8_t> pixels;
      for (int i = 0; i < 17 * 10; ++i) {  // Smooth, and of one hue: chroma is kept at half size.
        for (int c = 0; c < channels; ++c) pixels.push_back(std::uint8_t(40 + i + 10 * c));
      }
      const HostTensor image = decode_jpeg(encode_jpeg(17, 10, pixels, {space, progressive}));
      EXPECT_EQ(image.shape, (std::vector<std::int64_t>{10, 17, channels}));
      for (std::size_t i = 0; i < pixels.size(); ++i) {
        EXPECT_NEAR(values<float>(image)[i], float(pixels[i]) / 255.0f, 3.0f / 255.0f) << i;
      }
    }
  }
}

TEST(Jpeg, RefusesWithTheReason) {
  const std::vector<std::uint8_t> pixels(std::size_t(16 * 16 * 4), 99);
  const std::string good = encode_jpeg(16, 16, pixels);
  EXPECT_EQ(jpeg_refusal(good), "accepted");
  const auto expect = [](const std::string& bytes, const std::string& reason) {
    EXPECT_NE(jpeg_refusal(bytes).find(reason), std::string::npos) << jpeg_refusal(bytes);
  };
  expect("", "is not a JPEG file");
  expect("\xff", "is not a JPEG file");
  expect("\x89PNG\r\n\x1a\n and more", "is not a JPEG file");
  expect("\xff\xd8", "bad JPEG");
  for (std::size_t end = 3; end < good.size() - 2; end += 7) {
    expect(good.substr(0, end), "bad JPEG");
  }
  expect(encode_jpeg(16, 16, pixels, {JCS_CMYK}), "supported: grey, YCbCr, RGB");
  // Huge in its header, small in its body: nothing is reserved for it.
  expect(with_size(good, 65500, 65500, 0xc0), "65500 x 65500 pixels, more than");
  expect(with_size(good, 0, 16, 0xc0), "bad JPEG");
  expect(with_size(good, 64, 64, 0xc0), "bad JPEG");  // Body shorter than the header says.
  std::string deep = good;
  deep[find_marker(good, 0xc0) + 4] = 12;  // Bits a sample.
  expect(deep, "bad JPEG");
}

TEST(Jpeg, ManyScansAreRefused) {
  // A scan for each coefficient of each component: each makes the decoder walk the whole picture.
  const std::vector<std::uint8_t> pixels(std::size_t(16 * 16 * 3), 99);
  for (const J_COLOR_SPACE space : {JCS_GRAYSCALE, JCS_RGB}) {
    const int components = space == JCS_GRAYSCALE ? 1 : 3;
    std::vector<jpeg_scan_info> scans = {{components, {0, 1, 2}, 0, 0, 0, 0}};
    for (int component = 0; component < components; ++component) {
      for (int k = 1; k < 64; ++k) scans.push_back({1, {component}, k, k, 0, 0});
    }
    const std::string reason = jpeg_refusal(encode_jpeg(16, 16, pixels, {space, true, 100, scans}));
    const bool few = components == 1;
    EXPECT_NE(reason.find(few ? "accepted" : "more than 100 scans"), std::string::npos) << reason;
  }
}

TEST(Jpeg, DamageIsNoPicture) {
  std::vector<std::uint8_t> pixels(std::size_t(24 * 24 * 3));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = std::uint8_t(i * 37);
  const std::string good = encode_jpeg(24, 24, pixels, {JCS_RGB, false, 90});
  // Whatever changes, the reader refuses or gives a whole picture; see readers_jpeg for more.
  for (std::size_t at = 2; at < good.size(); ++at) {
    for (const unsigned char value : {0x00, 0xff, 0xd9, 0x7f}) {
      std::string damaged = good;
      damaged[at] = char(value);
      jpeg_refusal(damaged);
    }
  }
}

}  // namespace
}  // namespace convoy::io
