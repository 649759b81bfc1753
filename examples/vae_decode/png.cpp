// SPDX-License-Identifier: Apache-2.0
#include "png.hpp"

#include <png.h>

#include <stdexcept>

void write_png(const std::string& path, const std::vector<std::uint8_t>& rgb, std::uint32_t width,
               std::uint32_t height) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width;
  image.height = height;
  image.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&image, path.c_str(), 0, rgb.data(), 0, nullptr) == 0) {
    throw std::runtime_error(path + ": " + image.message);
  }
}
