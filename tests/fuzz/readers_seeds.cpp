// SPDX-License-Identifier: Apache-2.0
// make_seeds FOLDER: small valid inputs for each fuzzer to begin with, made by Convoy's own
// writers; JPEG, which Convoy does not write, by libjpeg.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#ifdef CONVOY_JPEG_SEEDS
#include <jpeglib.h>  // NOTE: after <cstdio>, whose types it uses.
#endif

#include "io/npy.hpp"
#include "io/png.hpp"
#include "io/safetensors.hpp"

namespace {

using namespace convoy;
using namespace convoy::io;

HostTensor counting(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor(dtype, std::move(shape));
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes.data()[i] = std::byte(i % 61);
  return tensor;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

#ifdef CONVOY_JPEG_SEEDS
// A picture of 9x10 pixels, of 1 or 3 channels.
void write_jpeg(const std::string& path, int channels, bool progressive) {
  jpeg_compress_struct picture{};
  jpeg_error_mgr errors{};
  picture.err = jpeg_std_error(&errors);
  jpeg_create_compress(&picture);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&picture, &bytes, &size);
  picture.image_width = 10;
  picture.image_height = 9;
  picture.input_components = channels;
  picture.in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&picture);
  if (progressive) jpeg_simple_progression(&picture);
  jpeg_start_compress(&picture, TRUE);
  std::string row(10 * static_cast<std::size_t>(channels), '\0');
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<char>(7 * i);
  auto* line = reinterpret_cast<JSAMPROW>(row.data());
  while (picture.next_scanline < picture.image_height) jpeg_write_scanlines(&picture, &line, 1);
  jpeg_finish_compress(&picture);
  write_text(path, std::string(reinterpret_cast<const char*>(bytes), size));
  jpeg_destroy_compress(&picture);
  std::free(bytes);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  const std::string root = argv[1];
  const auto folder = [&](const char* target) {
    std::filesystem::create_directories(root + "/" + target);
    return root + "/" + target + "/";
  };

  const std::string npy = folder("readers_npy"), safe = folder("readers_safetensors");
  int number = 0;
  for (DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const auto& shape : {std::vector<std::int64_t>{2, 3}, {1, 2, 2, 1}, {0, 4}}) {
      const HostTensor tensor = counting(dtype, shape);
      AtomicFile array(npy + std::to_string(number));
      write_npy(array, tensor);
      array.commit();
      AtomicFile named(safe + std::to_string(number));
      write_safetensors(named, tensor, "w");
      named.commit();
      ++number;
    }
  }
  const std::string header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }\n";
  write_text(npy + "fortran", std::string("\x93NUMPY\x02\x00", 8) + char(header.size()) +
                                  std::string(3, '\0') + header + std::string(8, 'x'));

  const std::string png = folder("readers_png");
  for (std::int64_t channels : {1, 3}) {
    HostTensor image(DType::fp32, {3, 5, channels});
    std::memset(image.bytes.data(), 0x3e, image.bytes.size());
    AtomicFile file(png + std::to_string(channels));
    write_png(file, image);
    file.commit();
  }

#ifdef CONVOY_JPEG_SEEDS
  const std::string jpeg = folder("readers_jpeg");
  write_jpeg(jpeg + "grey", 1, false);
  write_jpeg(jpeg + "colour", 3, false);
  write_jpeg(jpeg + "progressive", 3, true);
#endif

  const std::string shape = folder("readers_shape");
  number = 0;
  for (const char* text :
       {"n1h256w256c512k512r3s3ph1pw1", "n1d4h120w208c384k384t3r3s3pd2pde0ph1pw1cache2sd2dd2md1",
        "n2h64w64c8k8r3s3phe1pwe1mh2mw2up2g2", "mb1ic8id4ih5iw6oc8oh5kd3kh3ph1dh1sh2g2n\"x\"",
        "convbfp16 -n 1 -c 8 -_ 3 -! 4 -H 5 -W 6 -k 8 -@ 3 -y 3 -x 3 -$ 1 -p 1 -q 1 -l 2 -g 2"}) {
    write_text(shape + std::to_string(number++), text);
  }
  return 0;
}
