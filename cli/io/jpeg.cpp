// SPDX-License-Identifier: Apache-2.0
#include "io/jpeg.hpp"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <string>
#include <vector>

// NOTE: in this order, after <cstdio>: libjpeg's headers include nothing.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "convoy/error.hpp"

namespace convoy::io {
namespace {

// NOTE: libjpeg reports errors by a function that may not return: it jumps, which skips
// destructors. So everything with a destructor lives in `JpegDecoder`, outside the functions that
// call setjmp.

constexpr int kMostScans = 100;  // Of a progressive file; encoders write some ten.

struct JpegDecoder {
  JpegDecoder() = default;
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf failed{};
  std::array<char, JMSG_LENGTH_MAX> message{};
  std::vector<unsigned char> file, row;
};

[[noreturn]] void fail_jpeg(j_common_ptr jpeg) {
  auto* decoder = static_cast<JpegDecoder*>(jpeg->client_data);
  jpeg->err->format_message(jpeg, decoder->message.data());
  std::longjmp(decoder->failed, 1);
}

/// A warning is damage, but for two that harm no pixel.
void on_message(j_common_ptr jpeg, int level) {
  const int code = jpeg->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR) fail_jpeg(jpeg);
}

void on_progress(j_common_ptr jpeg) {
  auto* decoder = static_cast<JpegDecoder*>(jpeg->client_data);
  if (decoder->jpeg.input_scan_number <= kMostScans) return;
  std::snprintf(decoder->message.data(), decoder->message.size(), "more than %d scans", kMostScans);
  std::longjmp(decoder->failed, 1);
}

bool start_jpeg(JpegDecoder& d) {
  d.jpeg.err = jpeg_std_error(&d.errors);
  d.jpeg.client_data = &d;
  d.errors.error_exit = fail_jpeg;
  d.errors.emit_message = on_message;
  d.progress.progress_monitor = on_progress;
  if (setjmp(d.failed)) return false;
  jpeg_create_decompress(&d.jpeg);
  d.jpeg.progress = &d.progress;
  return true;
}

bool read_jpeg_header(JpegDecoder& d) {
  if (setjmp(d.failed)) return false;
  jpeg_mem_src(&d.jpeg, d.file.data(), static_cast<unsigned long>(d.file.size()));
  jpeg_read_header(&d.jpeg, TRUE);
  return true;
}

/// Rows as they come, each sample over 255.
void decode_jpeg_rows(JpegDecoder& d, float* values) {
  jpeg_start_decompress(&d.jpeg);
  while (d.jpeg.output_scanline < d.jpeg.output_height) {
    JSAMPROW row = d.row.data();
    jpeg_read_scanlines(&d.jpeg, &row, 1);
    values = std::transform(d.row.begin(), d.row.end(), values,
                            [](unsigned char sample) { return float(sample) / 255.0f; });
  }
  jpeg_finish_decompress(&d.jpeg);
}

// NOTE: what changes does so in another function: a longjmp may lose changes of setjmp's own.
bool read_jpeg_pixels(JpegDecoder& d, float* values) {
  if (setjmp(d.failed)) return false;
  decode_jpeg_rows(d, values);
  return true;
}

}  // namespace

bool can_read_jpeg() {
  return true;
}

HostTensor read_jpeg(ByteSource& source) {
  std::array<unsigned char, 2> signature{};
  source.read(0, signature.data(), std::min<std::uint64_t>(signature.size(), source.size()));
  if (signature[0] != 0xff || signature[1] != 0xd8) source.fail("is not a JPEG file");

  JpegDecoder d;
  d.file.resize(source.size());
  source.read(0, d.file.data(), d.file.size());
  const auto refuse = [&] { source.fail(std::string("bad JPEG: ") + d.message.data()); };
  if (!start_jpeg(d) || !read_jpeg_header(d)) refuse();

  // Huffman's codes spend at least one bit on each 8 x 8 block (ITU-T T.81): a header that promises
  // more is wrong, and no memory is reserved for it.
  constexpr std::uint64_t kMostPixelsPerByte = 8 * 64;
  const std::uint64_t width = d.jpeg.image_width, height = d.jpeg.image_height;
  if (width * height / kMostPixelsPerByte > source.size()) {
    source.fail("truncated: the header says " + std::to_string(width) + " x " +
                std::to_string(height) + " pixels, more than " + std::to_string(source.size()) +
                " bytes can hold");
  }
  const bool grey = d.jpeg.jpeg_color_space == JCS_GRAYSCALE;
  if (!grey && d.jpeg.jpeg_color_space != JCS_YCbCr && d.jpeg.jpeg_color_space != JCS_RGB) {
    source.fail("is a JPEG of " + std::to_string(d.jpeg.num_components) +
                " components that are neither grey nor colours (CMYK?); supported: grey, YCbCr, "
                "RGB");
  }
  d.jpeg.out_color_space = grey ? JCS_GRAYSCALE : JCS_RGB;
  const std::int64_t channels = grey ? 1 : 3;
  d.row.resize(std::size_t(width) * std::size_t(channels));
  HostTensor image(DType::fp32, {std::int64_t(height), std::int64_t(width), channels});
  if (!read_jpeg_pixels(d, reinterpret_cast<float*>(image.bytes.data()))) refuse();
  return image;
}

}  // namespace convoy::io
