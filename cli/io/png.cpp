// SPDX-License-Identifier: Apache-2.0
#include "io/png.hpp"

#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "convoy/error.hpp"

namespace convoy::io {
namespace {

// NOTE: libpng reports errors by longjmp, which skips destructors. So everything with a destructor
// lives in `Decoder` / `Encoder`, outside the functions that call setjmp; callbacks that may throw
// catch and turn the exception into a libpng error.

void keep_message(png_structp png, png_const_charp message) {
  auto* text = static_cast<std::array<char, 128>*>(png_get_error_ptr(png));
  std::snprintf(text->data(), text->size(), "%s", message);
  png_longjmp(png, 1);
}
void ignore_warning(png_structp, png_const_charp) {}

struct Decoder {
  explicit Decoder(ByteSource& source) : source(source) {}
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  ByteSource& source;
  std::uint64_t at = 0;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::array<char, 128> message{};

  png_uint_32 width = 0, height = 0;
  std::uint64_t encoded_row_bytes = 0;  ///< Of a row as it lies in the file, unpacked.
  std::size_t row_bytes = 0;            ///< After the transformations below.
  int channels = 0;
  int bit_depth = 0;
  std::vector<std::byte> pixels;
  std::vector<png_bytep> rows;
};

void read_callback(png_structp png, png_bytep into, std::size_t bytes) {
  auto* decoder = static_cast<Decoder*>(png_get_io_ptr(png));
  bool good = true;
  try {
    decoder->source.read(decoder->at, into, bytes);
    decoder->at += bytes;
  } catch (const std::exception&) {
    good = false;
  }
  if (!good) png_error(png, "truncated");
}

/// Reads the header chunks and asks for 8 or 16 bits of grey or RGB, with alpha where there is one.
bool read_header(Decoder& d) {
  if (setjmp(png_jmpbuf(d.png))) return false;
  png_set_read_fn(d.png, &d, read_callback);
  // A checksum that does not hold is an error everywhere.
  png_set_crc_action(d.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  // Texts, profiles and the like are passed over unread.
  png_set_keep_unknown_chunks(d.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(d.png, d.info);
  d.width = png_get_image_width(d.png, d.info);
  d.height = png_get_image_height(d.png, d.info);
  d.encoded_row_bytes = png_get_rowbytes(d.png, d.info);
  png_set_expand(d.png);
  if (png_get_bit_depth(d.png, d.info) == 16) png_set_swap(d.png);  // To little endian.
  png_set_interlace_handling(d.png);
  png_read_update_info(d.png, d.info);
  d.row_bytes = png_get_rowbytes(d.png, d.info);
  d.channels = png_get_channels(d.png, d.info);
  d.bit_depth = png_get_bit_depth(d.png, d.info);
  return true;
}

bool read_pixels(Decoder& d) {
  if (setjmp(png_jmpbuf(d.png))) return false;
  png_read_image(d.png, d.rows.data());
  png_read_end(d.png, nullptr);
  return true;
}

struct Encoder {
  explicit Encoder(AtomicFile& file) : file(file) {}
  ~Encoder() { png_destroy_write_struct(&png, &info); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  AtomicFile& file;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::array<char, 128> message{};
  std::vector<std::uint8_t> row;
};

void write_callback(png_structp png, png_bytep data, std::size_t bytes) {
  auto* encoder = static_cast<Encoder*>(png_get_io_ptr(png));
  bool good = true;
  try {
    encoder->file.write(data, bytes);
  } catch (const std::exception& error) {
    std::snprintf(encoder->message.data(), encoder->message.size(), "%s", error.what());
    good = false;
  }
  if (!good) png_longjmp(png, 1);
}
void flush_callback(png_structp) {}

bool write_pixels(Encoder& e, const HostTensor& image) {
  const auto height = static_cast<png_uint_32>(image.shape[0]);
  const auto width = static_cast<png_uint_32>(image.shape[1]);
  const int color = image.shape[2] == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB;
  if (setjmp(png_jmpbuf(e.png))) return false;
  png_set_write_fn(e.png, &e, write_callback, flush_callback);
  png_set_IHDR(e.png, e.info, width, height, 8, color, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_compression_level(e.png, 4);
  png_write_info(e.png, e.info);
  const auto* values = reinterpret_cast<const float*>(image.bytes.data());
  for (png_uint_32 y = 0; y < height; ++y) {
    for (std::size_t i = 0; i < e.row.size(); ++i) {
      const float value = values[y * e.row.size() + i];
      // NOTE: written so that NaN becomes 0.
      e.row[i] = value > 0.0f ? std::uint8_t(std::lround(std::min(value, 1.0f) * 255.0f)) : 0;
    }
    png_write_row(e.png, e.row.data());
  }
  png_write_end(e.png, nullptr);
  return true;
}

/// Draws one channel, its range spread over 0 to 1, averaging `factor` by `factor` pixels.
void draw_tile(const float* values, std::int64_t height, std::int64_t width, std::int64_t channels,
               std::int64_t factor, float* tile, std::int64_t sheet_width) {
  float lo = INFINITY, hi = -INFINITY;
  for (std::int64_t i = 0; i < height * width; ++i) {
    const float value = values[i * channels];
    if (!std::isfinite(value)) continue;
    lo = std::min(lo, value);
    hi = std::max(hi, value);
  }
  const double range = hi > lo ? double(hi) - double(lo) : 1.0;
  for (std::int64_t y = 0; y < height; y += factor) {
    for (std::int64_t x = 0; x < width; x += factor) {
      double sum = 0;
      std::int64_t count = 0;
      for (std::int64_t yy = y; yy < std::min(y + factor, height); ++yy) {
        for (std::int64_t xx = x; xx < std::min(x + factor, width); ++xx, ++count) {
          const float value = values[(yy * width + xx) * channels];
          sum += std::isfinite(value) ? (double(value) - double(lo)) / range : 0.0;
        }
      }
      tile[(y / factor) * sheet_width + x / factor] = float(sum / double(count));
    }
  }
}

/// Bytes of all IDAT chunks. Throws where a chunk is longer than the file, so that libpng reserves
/// nothing on a length's word.
std::uint64_t compressed_bytes(ByteSource& source) {
  std::uint64_t total = 0;
  for (std::uint64_t at = 8; at + 8 <= source.size();) {
    std::array<png_byte, 8> head{};
    source.read(at, head.data(), head.size());
    const std::uint64_t length = png_get_uint_32(head.data());
    constexpr std::uint64_t kFrame = 12;  // Length, kind and checksum.
    if (source.size() - at < kFrame || length > source.size() - at - kFrame) {
      source.fail("truncated: a PNG chunk of " + std::to_string(length) + " bytes, the file has " +
                  std::to_string(source.size()));
    }
    if (std::memcmp(head.data() + 4, "IDAT", 4) == 0) total += length;
    if (std::memcmp(head.data() + 4, "IEND", 4) == 0) break;
    at += kFrame + length;
  }
  return total;
}

}  // namespace

HostTensor read_png(ByteSource& source) {
  constexpr std::size_t kSignature = 8;
  std::array<png_byte, kSignature> signature{};
  source.read(0, signature.data(), std::min<std::uint64_t>(kSignature, source.size()));
  if (png_sig_cmp(signature.data(), 0, kSignature) != 0) source.fail("is not a PNG file");

  const std::uint64_t compressed = compressed_bytes(source);

  Decoder d(source);
  d.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &d.message, keep_message, ignore_warning);
  if (d.png != nullptr) d.info = png_create_info_struct(d.png);
  if (d.info == nullptr) throw std::bad_alloc();
  if (!read_header(d)) source.fail(std::string("bad PNG: ") + d.message.data());

  // Deflate packs at best 1032 bytes into one (zlib's technical notes): a header that promises more
  // is wrong, and no memory is reserved for it.
  constexpr std::uint64_t kBestDeflate = 1032;
  const std::uint64_t encoded = (d.encoded_row_bytes + 1) * d.height;
  if (encoded / kBestDeflate > source.size()) {
    source.fail("truncated: the header says " + std::to_string(d.width) + " x " +
                std::to_string(d.height) + " pixels, more than " + std::to_string(source.size()) +
                " bytes can hold");
  }
  // libpng unpacks all there is: no more than a poor packer makes of the declared pixels.
  constexpr std::uint64_t kSlack = 64 << 10;
  if (compressed > 2 * encoded + kSlack) {
    source.fail("bad PNG: " + std::to_string(compressed) + " bytes of pixels, too many for " +
                std::to_string(d.width) + " x " + std::to_string(d.height) + "; legal: at most " +
                std::to_string(2 * encoded + kSlack));
  }
  d.pixels.resize(d.row_bytes * d.height);
  d.rows.resize(d.height);
  for (std::size_t y = 0; y < d.height; ++y) {
    d.rows[y] = reinterpret_cast<png_bytep>(d.pixels.data() + y * d.row_bytes);
  }
  if (!read_pixels(d)) source.fail(std::string("bad PNG: ") + d.message.data());

  HostTensor image(DType::fp32, {d.height, d.width, d.channels});
  auto* values = reinterpret_cast<float*>(image.bytes.data());
  for (std::int64_t i = 0; i < image.elements(); ++i) {
    if (d.bit_depth == 16) {
      std::uint16_t sample = 0;
      std::memcpy(&sample, d.pixels.data() + 2 * i, 2);
      values[i] = float(sample) / 65535.0f;
    } else {
      values[i] = float(std::to_integer<int>(d.pixels[std::size_t(i)])) / 255.0f;
    }
  }
  return image;
}

void write_png(AtomicFile& file, const HostTensor& image) {
  Encoder e(file);
  e.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &e.message, keep_message, ignore_warning);
  if (e.png != nullptr) e.info = png_create_info_struct(e.png);
  if (e.info == nullptr) throw std::bad_alloc();
  e.row.resize(std::size_t(image.shape[1] * image.shape[2]));
  if (!write_pixels(e, image)) file.fail(std::string("cannot write PNG: ") + e.message.data());
}

HostTensor picture_of(const HostTensor& tensor) {
  if (tensor.rank() < 3 || tensor.elements() == 0) {
    throw Error(Status::invalid_argument, "a tensor of shape " + shape_to_string(tensor.shape) +
                                              " has no pixels to write as PNG");
  }
  const HostTensor values = convert(tensor, DType::fp32);
  const std::size_t rank = tensor.shape.size();
  const std::int64_t height = tensor.shape[rank - 3], width = tensor.shape[rank - 2],
                     channels = tensor.shape[rank - 1];
  const std::int64_t frames = tensor.elements() / (height * width * channels);
  if (frames == 1 && (channels == 1 || channels == 3)) {
    HostTensor picture(DType::fp32, {height, width, channels});
    std::memcpy(picture.bytes.data(), values.bytes.data(), values.bytes.size());
    return picture;
  }

  // The grid that is nearest to a square, and the averaging that makes it fit.
  const std::int64_t tiles = frames * channels;
  std::int64_t columns = 1;
  while (columns * width * columns < tiles * height && columns < tiles) ++columns;
  // Rather a grid without empty places, where one is at most twice as wide.
  for (std::int64_t wider = columns; wider <= 2 * columns; ++wider) {
    if (tiles % wider != 0) continue;
    columns = wider;
    break;
  }
  const std::int64_t rows = (tiles + columns - 1) / columns;
  const auto side = [](std::int64_t pixels, std::int64_t count, std::int64_t factor) {
    return count * ((pixels + factor - 1) / factor + 1) - 1;  // One pixel of gap between tiles.
  };
  std::int64_t factor = 1;
  while (std::max(side(width, columns, factor), side(height, rows, factor)) > kLargestSheet) {
    if (factor >= std::max(width, height)) {
      throw Error(Status::invalid_argument,
                  std::to_string(tiles) + " tiles do not fit a contact sheet of " +
                      std::to_string(kLargestSheet) + " pixels; write .npy instead");
    }
    ++factor;
  }
  HostTensor sheet(DType::fp32, {side(height, rows, factor), side(width, columns, factor), 1});
  std::memset(sheet.bytes.data(), 0, sheet.bytes.size());
  auto* pixels = reinterpret_cast<float*>(sheet.bytes.data());
  const auto* data = reinterpret_cast<const float*>(values.bytes.data());
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t y = tile / columns * ((height + factor - 1) / factor + 1);
    const std::int64_t x = tile % columns * ((width + factor - 1) / factor + 1);
    draw_tile(data + tile / channels * height * width * channels + tile % channels, height, width,
              channels, factor, pixels + y * sheet.shape[1] + x, sheet.shape[1]);
  }
  return sheet;
}

}  // namespace convoy::io
