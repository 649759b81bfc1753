// SPDX-License-Identifier: Apache-2.0
#include "io/npy.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "convoy/error.hpp"

namespace convoy::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kLargestNpyHeader = 1 << 20;
constexpr std::size_t kLargestRank = 32;  // NumPy's own limit before 2.0; 64 since.

/// The three fields of the header.
struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

/// Parser of the header's Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}
class HeaderParser {
 public:
  HeaderParser(const ByteSource& source, std::string_view text) : source_(source), text_(text) {}

  Header parse() {
    Header header;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !header.descr) {
        if (peek() == '[') source_.fail("holds a structured dtype; supported: " + supported());
        header.descr = quoted();
      } else if (key == "fortran_order" && !header.fortran_order) {
        header.fortran_order = boolean();
      } else if (key == "shape" && !header.shape) {
        header.shape = tuple();
      } else {
        source_.fail("unexpected or repeated key '" + key + "' in the npy header");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (peek() != '\0') source_.fail("text after the end of the npy header");
    if (!header.descr || !header.fortran_order || !header.shape) {
      source_.fail("npy header without descr, fortran_order or shape");
    }
    return header;
  }

  static std::string supported() {
    return "float16 '<f2', float32 '<f4', bfloat16 of ml_dtypes '<V2'";
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  /// The next character that is not a space; '\0' at the end.
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) {
      source_.fail(std::string("malformed npy header: '") + wanted + "' expected at character " +
                   std::to_string(at_));
    }
  }
  std::string quoted() {
    const char quote = peek() == '"' ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find(quote, at_);
    if (end == text_.npos || end - at_ > 64) source_.fail("malformed npy header: open string");
    std::string value(text_.substr(at_, end - at_));
    for (char& c : value) {
      if (c < ' ' || c > '~') c = '?';
    }
    at_ = end + 1;
    return value;
  }
  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::strlen(word);
        return value;
      }
    }
    source_.fail("malformed npy header: fortran_order is neither True nor False");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      if (values.size() == kLargestRank) {
        source_.fail("more than " + std::to_string(kLargestRank) + " extents in the npy header");
      }
      values.push_back(extent());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }
  std::int64_t extent() {
    skip_space();
    std::int64_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) {
      source_.fail("an extent in the npy header does not fit 64 bits");
    }
    if (error != std::errc{}) source_.fail("malformed npy header: extent expected");
    if (value < 0) source_.fail("negative extent " + std::to_string(value) + " in the npy header");
    at_ += static_cast<std::size_t>(end - begin);
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2's long integers.
    return value;
  }

  const ByteSource& source_;
  std::string_view text_;
  std::size_t at_ = 0;
};

DType dtype_of(const ByteSource& source, const std::string& descr) {
  if (descr == "<f4") return DType::fp32;
  if (descr == "<f2") return DType::fp16;
  if (descr == "<V2" || descr == "|V2") return DType::bf16;
  const std::string hint = descr.starts_with('>') ? " (big-endian)" : "";
  source.fail("holds elements of type '" + descr + "'" + hint +
              "; supported: " + HeaderParser::supported());
}

/// Copies a tensor whose first extent is fastest into one whose last extent is.
void from_fortran_order(const std::byte* in, HostTensor& out) {
  const std::size_t rank = out.shape.size();
  const std::size_t bytes = size_of(out.dtype);
  std::vector<std::int64_t> stride(rank, 1), index(rank, 0);
  for (std::size_t axis = 1; axis < rank; ++axis) {
    stride[axis] = stride[axis - 1] * out.shape[axis - 1];
  }
  std::int64_t from = 0;
  for (std::int64_t to = 0; to < out.elements(); ++to) {
    std::memcpy(out.bytes.data() + std::size_t(to) * bytes, in + std::size_t(from) * bytes, bytes);
    for (std::size_t axis = rank; axis-- > 0;) {
      from += stride[axis];
      if (++index[axis] < out.shape[axis]) break;
      from -= stride[axis] * out.shape[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace

HostTensor read_npy(ByteSource& source) {
  // Magic, version, length of the header: 2 bytes in version 1, 4 bytes from version 2 on.
  std::array<unsigned char, 12> start{};
  source.read(0, start.data(), std::min<std::uint64_t>(start.size(), source.size()));
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    source.fail("is not an npy file: it does not begin with \\x93NUMPY");
  }
  const int version = start[6];
  if (version < 1 || version > 3) {
    source.fail("npy format version " + std::to_string(version) + "; supported: 1 to 3");
  }
  const std::size_t header_at = version == 1 ? 10 : 12;
  std::size_t header_bytes = start[8] | start[9] << 8;
  if (version > 1) header_bytes |= std::size_t{start[10]} << 16 | std::size_t{start[11]} << 24;
  if (header_bytes > kLargestNpyHeader) {
    source.fail("npy header of " + std::to_string(header_bytes) + " bytes; at most " +
                std::to_string(kLargestNpyHeader) + " are read");
  }
  if (source.size() < header_at || header_bytes > source.size() - header_at) {
    source.fail("truncated: the npy header is cut off");
  }
  std::string text(header_bytes, '\0');
  source.read(header_at, text.data(), text.size());
  const Header header = HeaderParser(source, text).parse();
  const DType dtype = dtype_of(source, *header.descr);

  // The file must hold what the header promises before memory is reserved for it.
  const std::uint64_t body_at = header_at + header_bytes;
  const std::uint64_t body_bytes = source.size() - body_at;
  std::uint64_t expected = 0;
  try {
    expected = checked_bytes(*header.shape, size_of(dtype));
  } catch (const Error& error) {
    source.fail(error.what());
  }
  if (expected != body_bytes) {
    source.fail(std::string(expected > body_bytes ? "truncated" : "too long") +
                ": the header says shape " + shape_to_string(*header.shape) + " of " +
                to_string(dtype) + ", " + std::to_string(expected) + " bytes; the file holds " +
                std::to_string(body_bytes));
  }

  HostTensor tensor(dtype, *header.shape);
  if (*header.fortran_order && tensor.rank() > 1) {
    AlignedBytes raw(expected);
    source.read(body_at, raw.data(), raw.size());
    from_fortran_order(raw.data(), tensor);
  } else {
    source.read(body_at, tensor.bytes.data(), tensor.bytes.size());
  }
  return tensor;
}

void write_npy(AtomicFile& file, const HostTensor& tensor) {
  const char* descr = tensor.dtype == DType::fp32   ? "<f4"
                      : tensor.dtype == DType::fp16 ? "<f2"
                                                    : "<V2";
  std::string header = std::string("{'descr': '") + descr +
                       "', 'fortran_order': False, 'shape': " + shape_to_string(tensor.shape) +
                       ", }";
  // Pad with spaces, so that the body begins at a multiple of 64 bytes; end with a newline.
  const std::size_t preamble = kMagic.size() + 4;
  header.append(63 - (preamble + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string start(kMagic);
  start += {'\x01', '\x00', char(header.size() & 0xff), char(header.size() >> 8)};
  file.write(start.data(), start.size());
  file.write(header.data(), header.size());
  file.write(tensor.bytes.data(), tensor.bytes.size());
}

}  // namespace convoy::io
