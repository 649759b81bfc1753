// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_file.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "convoy/error.hpp"
#include "io/atomic_file.hpp"
#include "io/jpeg.hpp"
#include "io/npy.hpp"
#include "io/png.hpp"
#include "io/safetensors.hpp"

namespace convoy::io {
namespace {

enum class Format { npy, safetensors, png, jpeg };

struct Spec {
  std::string path;
  std::string tensor;  ///< Of a safetensors file; empty where not given.
  Format format = Format::npy;
};

bool ends_with(std::string_view text, std::string_view end) {
  if (text.size() < end.size()) return false;
  return std::equal(
      end.begin(), end.end(), text.end() - std::ptrdiff_t(end.size()),
      [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

/// How to read a picture of another kind.
std::string advice(const std::string& text) {
  for (const char* const kind : {".webp", ".heic", ".avif", ".gif", ".bmp", ".tif", ".tiff"}) {
    if (ends_with(text, kind)) return "; ImageMagick makes a PNG: convert " + text + " picture.png";
  }
  return "";
}

Spec parse_spec(const std::string& text) {
  constexpr std::string_view kNamed = ".safetensors:";
  const std::size_t named = text.find(kNamed);
  if (named != text.npos) {
    const std::size_t end = named + kNamed.size();
    return {text.substr(0, end - 1), text.substr(end), Format::safetensors};
  }
  if (ends_with(text, ".npy")) return {text, "", Format::npy};
  if (ends_with(text, ".safetensors")) return {text, "", Format::safetensors};
  if (ends_with(text, ".png")) return {text, "", Format::png};
  if (ends_with(text, ".jpg") || ends_with(text, ".jpeg")) return {text, "", Format::jpeg};
  throw Error(Status::invalid_argument,
              "'" + text +
                  "': unknown kind of file; supported: .npy, .png, .safetensors, "
                  ".safetensors:TENSOR, and .jpg to read" +
                  advice(text));
}

/// Of a file that is to be written.
Spec parse_output(const std::string& text) {
  Spec spec = parse_spec(text);
  if (spec.format != Format::jpeg) return spec;
  throw Error(Status::invalid_argument,
              text +
                  ": JPEG is not written, it would lose; supported: .npy, .png, .safetensors, "
                  ".safetensors:TENSOR");
}

}  // namespace

HostTensor read_tensor(const std::string& spec_text) {
  const Spec spec = parse_spec(spec_text);
  FileSource source(spec.path);
  switch (spec.format) {
    case Format::npy:
      return read_npy(source);
    case Format::safetensors:
      return read_safetensors(source, spec.tensor);
    case Format::png:
      return read_png(source);
    case Format::jpeg:
      break;
  }
  return read_jpeg(source);
}

void write_tensor(const std::string& spec_text, const HostTensor& tensor) {
  const Spec spec = parse_output(spec_text);
  if (spec.format == Format::png) {
    const HostTensor picture = picture_of(tensor);
    AtomicFile file(spec.path);
    write_png(file, picture);
    file.commit();
    return;
  }
  AtomicFile file(spec.path);
  if (spec.format == Format::npy) {
    write_npy(file, tensor);
  } else {
    write_safetensors(file, tensor, spec.tensor.empty() ? "output" : spec.tensor);
  }
  file.commit();
}

void check_can_write_tensor(const std::string& spec) {
  check_can_write(parse_output(spec).path);
}

bool is_same_file(const std::string& spec, const std::string& other) {
  return is_same_path(parse_spec(spec).path, parse_spec(other).path);
}

}  // namespace convoy::io
