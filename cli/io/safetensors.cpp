// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "convoy/error.hpp"
#include "io/printable.hpp"

namespace convoy::io {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLargestSafetensorsHeader = 100'000'000;  // The format's own limit.
constexpr std::size_t kDeepestHeader = 4;  // File, tensor, list; one to spare.

std::uint64_t from_little_endian(const std::array<unsigned char, 8>& bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

/// A name from the file, fit for one line of a message.
std::string shown(const std::string& name) {
  constexpr std::size_t kLongest = 80;
  const std::string line = printable(name);
  return line.size() <= kLongest ? line : line.substr(0, kLongest) + "...";
}

/// Sees the header's JSON go by: no deeper than the format needs, each name once.
/// NOTE: not by the callback of Json::parse, which looks through a whole object at the end of each
/// of its values.
class HeaderCheck : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    keys_.back().push_back(name);
    return true;
  }
  bool end_object() override {
    std::vector<std::string>& names = keys_.back();
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) repeated = *twice;
    return close() && !repeated;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  bool too_deep = false;
  std::optional<std::string> repeated;

 private:
  bool open() {
    too_deep = keys_.size() >= kDeepestHeader;
    keys_.emplace_back();
    return !too_deep;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::vector<std::string>> keys_;  ///< Of the objects that are open.
};

Json parse_header(const ByteSource& source, const std::string& text) {
  HeaderCheck check;
  const bool good = Json::sax_parse(text, &check);
  if (check.too_deep) source.fail("the safetensors header is nested too deeply");
  if (check.repeated) {
    source.fail("the safetensors header has '" + shown(*check.repeated) + "' twice");
  }
  Json header = good ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json();
  if (!header.is_object()) source.fail("the safetensors header is not a JSON object");
  return header;
}

/// "a, b, c, ... (12 in all)"
std::string list_tensors(const Json& header) {
  constexpr std::size_t kListed = 6;
  std::string out;
  std::size_t count = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (count < kListed) out += (count > 0 ? ", " : "") + shown(name);
    ++count;
  }
  if (count > kListed) out += ", ... (" + std::to_string(count) + " in all)";
  return count == 0 ? "none" : out;
}

/// The entry of the wanted tensor, or of the only one.
Json::const_iterator find_tensor(const ByteSource& source, const Json& header,
                                 const std::string& tensor) {
  if (!tensor.empty()) {
    const auto entry = header.find(tensor);
    if (entry == header.end() || tensor == "__metadata__") {
      source.fail("holds no tensor '" + shown(tensor) + "'; it holds: " + list_tensors(header));
    }
    return entry;
  }
  auto only = header.end();
  for (auto entry = header.begin(); entry != header.end(); ++entry) {
    if (entry.key() == "__metadata__") continue;
    if (only != header.end()) {
      source.fail("holds several tensors, name one as FILE:TENSOR; it holds: " +
                  list_tensors(header));
    }
    only = entry;
  }
  if (only == header.end()) source.fail("holds no tensor");
  return only;
}

/// A list of integers, each of which fits 63 bits.
std::vector<std::int64_t> integers(const ByteSource& source, const Json& entry, const char* key,
                                   const std::string& tensor) {
  const auto found = entry.find(key);
  std::vector<std::int64_t> values;
  bool good = found != entry.end() && found->is_array();
  if (good) {
    for (const Json& value : *found) {
      good = good && value.is_number_unsigned() && value.get<std::uint64_t>() <= INT64_MAX;
      if (good) values.push_back(value.get<std::int64_t>());
    }
  }
  if (!good) {
    source.fail("tensor '" + shown(tensor) + "': " + key + " is not a list of integers from 0 on");
  }
  return values;
}

DType dtype_of(const ByteSource& source, const Json& entry, const std::string& tensor) {
  const auto found = entry.find("dtype");
  const std::string name =
      found != entry.end() && found->is_string() ? found->get<std::string>() : "";
  if (name == "F32") return DType::fp32;
  if (name == "F16") return DType::fp16;
  if (name == "BF16") return DType::bf16;
  source.fail("tensor '" + shown(tensor) + "' holds elements of type '" + shown(name) +
              "'; supported: F16, BF16, F32");
}

}  // namespace

HostTensor read_safetensors(ByteSource& source, const std::string& tensor) {
  std::array<unsigned char, 8> length{};
  source.read(0, length.data(), length.size());
  const std::uint64_t header_bytes = from_little_endian(length);
  if (header_bytes > kLargestSafetensorsHeader) {
    source.fail("is not a safetensors file: a header of " + std::to_string(header_bytes) +
                " bytes; at most " + std::to_string(kLargestSafetensorsHeader) + " are legal");
  }
  if (header_bytes > source.size() - length.size()) {
    source.fail("truncated: a header of " + std::to_string(header_bytes) + " bytes, the file has " +
                std::to_string(source.size()));
  }
  std::string text(header_bytes, '\0');
  source.read(length.size(), text.data(), text.size());
  const Json header = parse_header(source, text);
  const auto entry = find_tensor(source, header, tensor);
  const std::string& name = entry.key();
  if (!entry->is_object()) source.fail("tensor '" + shown(name) + "' is not a JSON object");

  const DType dtype = dtype_of(source, *entry, name);
  const std::vector<std::int64_t> shape = integers(source, *entry, "shape", name);
  const std::vector<std::int64_t> range = integers(source, *entry, "data_offsets", name);
  if (range.size() != 2 || range[0] > range[1]) {
    source.fail("tensor '" + shown(name) + "': data_offsets is not [begin, end]");
  }

  // The file must hold what the header promises before memory is reserved for it.
  const std::uint64_t data_bytes = source.size() - length.size() - header_bytes;
  const std::uint64_t begin = std::uint64_t(range[0]), end = std::uint64_t(range[1]);
  if (end > data_bytes) {
    source.fail("truncated: tensor '" + shown(name) + "' ends at byte " + std::to_string(end) +
                " of the data, the file holds " + std::to_string(data_bytes));
  }
  std::uint64_t expected = 0;
  try {
    expected = checked_bytes(shape, size_of(dtype));
  } catch (const Error& error) {
    source.fail("tensor '" + shown(name) + "': " + error.what());
  }
  if (expected != end - begin) {
    source.fail("tensor '" + shown(name) + "': shape " + shape_to_string(shape) + " of " +
                to_string(dtype) + " needs " + std::to_string(expected) +
                " bytes, data_offsets give " + std::to_string(end - begin));
  }

  HostTensor out(dtype, shape);
  source.read(length.size() + header_bytes + begin, out.bytes.data(), out.bytes.size());
  return out;
}

void write_safetensors(AtomicFile& file, const HostTensor& tensor, const std::string& name) {
  const char* dtype = tensor.dtype == DType::fp32   ? "F32"
                      : tensor.dtype == DType::fp16 ? "F16"
                                                    : "BF16";
  const Json header = {{name,
                        {{"dtype", dtype},
                         {"shape", tensor.shape},
                         {"data_offsets", {std::uint64_t{0}, tensor.bytes.size()}}}}};
  // Pad with spaces, so that the data is aligned.
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<unsigned char>(std::uint64_t{text.size()} >> (8 * i));
  }
  file.write(length.data(), length.size());
  file.write(text.data(), text.size());
  file.write(tensor.bytes.data(), tensor.bytes.size());
}

}  // namespace convoy::io
