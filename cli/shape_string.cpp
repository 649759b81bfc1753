// SPDX-License-Identifier: Apache-2.0
#include "shape_string.hpp"
#include "text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>
#include <vector>

namespace convoy::cli {
namespace {

constexpr std::size_t kLongestShape = 1024;

/// The fields of a shape by the names of Convoy's own notation.
using Fields = std::map<std::string, std::int64_t, std::less<>>;

/// Fields in the order they came; a field given twice is an error.
void add(Fields& fields, std::string_view key, std::int64_t value, std::string_view written) {
  if (!fields.emplace(key, value).second) {
    throw_invalid("shape: field '", written, "' is given twice");
  }
}

std::int64_t take(Fields& fields, std::string_view key, std::int64_t absent) {
  const auto found = fields.find(key);
  if (found == fields.end()) return absent;
  const std::int64_t value = found->second;
  fields.erase(found);
  return value;
}

std::int64_t take_required(Fields& fields, std::string_view key) {
  if (!fields.contains(key)) throw_invalid("shape: field '", key, "' is missing");
  return take(fields, key, 0);
}

/// Reads an integer at the front of `text` and removes it.
std::int64_t take_integer(std::string_view& text, std::string_view field) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    throw_invalid("shape: the value of '", field, "' does not fit 64 bits");
  }
  if (error != std::errc{}) throw_invalid("shape: field '", field, "' has no number");
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

PadMode pad_mode_of(std::int64_t value, std::string_view field) {
  if (value < 0 || value > 2) {
    throw_invalid("shape: ", field, " = ", value, "; legal: 0 (zero), 1 (replicate), 2 (reflect)");
  }
  return static_cast<PadMode>(value);
}

/// Builds the problem; "d" (or another field of the depth axis) makes it 3-D.
ProblemShape problem_from(Fields fields) {
  Conv3dProblemShape shape;
  const bool is_3d = fields.contains("d") || fields.contains("t");
  shape.batch = take(fields, "n", 1);
  shape.in_depth = is_3d ? take_required(fields, "d") : 1;
  shape.in_height = take_required(fields, "h");
  shape.in_width = take_required(fields, "w");
  shape.in_channels = take_required(fields, "c");
  shape.out_channels = take_required(fields, "k");
  shape.groups = take(fields, "g", 1);
  constexpr std::array<std::string_view, 3> kFilter = {"t", "r", "s"};
  for (std::size_t axis = is_3d ? 0 : 1; axis < 3; ++axis) {
    const std::string letter(1, "dhw"[axis]);
    shape.filter[axis] = take(fields, kFilter[axis], 1);
    shape.pad_begin[axis] = take(fields, "p" + letter, 0);
    shape.pad_end[axis] = take(fields, "p" + letter + "e", shape.pad_begin[axis]);
    shape.stride[axis] = take(fields, "s" + letter, 1);
    shape.dilation[axis] = take(fields, "d" + letter, 1);
    shape.pad_mode[axis] = pad_mode_of(take(fields, "m" + letter, 0), "m" + letter);
  }
  if (is_3d) shape.cached_frames = take(fields, "cache", 0);
  const std::int64_t upsample = is_3d ? 1 : take(fields, "up", 1);
  if (!fields.empty()) {
    throw_invalid("shape: field '", fields.begin()->first, "' does not belong to a ",
                  is_3d ? "3-D" : "2-D", " shape");
  }
  if (is_3d) return shape;

  if (shape.pad_mode[1] != shape.pad_mode[2]) {
    throw_invalid("shape: mh and mw differ; a 2-D shape has one pad mode");
  }
  Conv2dProblemShape flat{.batch = shape.batch,
                          .in_height = shape.in_height,
                          .in_width = shape.in_width,
                          .in_channels = shape.in_channels,
                          .out_channels = shape.out_channels,
                          .filter_h = shape.filter[1],
                          .filter_w = shape.filter[2],
                          .pad_h = shape.pad_begin[1],
                          .pad_w = shape.pad_begin[2],
                          .stride_h = shape.stride[1],
                          .stride_w = shape.stride[2],
                          .dilation_h = shape.dilation[1],
                          .dilation_w = shape.dilation[2],
                          .groups = shape.groups};
  if (shape.pad_end[1] != flat.pad_h) flat.pad_h_end = shape.pad_end[1];
  if (shape.pad_end[2] != flat.pad_w) flat.pad_w_end = shape.pad_end[2];
  flat.pad_mode = shape.pad_mode[1];
  flat.upsample = upsample;
  return flat;
}

/// Splits "n1h256..." into pairs of letters and number. `name` takes benchdnn's n"...".
std::vector<std::pair<std::string, std::int64_t>> split_pairs(std::string_view text,
                                                              std::string& name) {
  std::vector<std::pair<std::string, std::int64_t>> pairs;
  while (!text.empty()) {
    std::size_t letters = 0;
    while (letters < text.size() && text[letters] >= 'a' && text[letters] <= 'z') ++letters;
    const std::string field(text.substr(0, letters));
    if (field.empty()) {
      throw_invalid("shape: a field's name expected at '", text.substr(0, 16), "'");
    }
    text.remove_prefix(letters);
    if (field == "n" && text.starts_with('"')) {
      const std::size_t end = text.find('"', 1);
      if (end == text.npos) throw_invalid("shape: the name n\"... is not closed");
      name = text.substr(1, end - 1);
      text.remove_prefix(end + 1);
      continue;
    }
    pairs.emplace_back(field, take_integer(text, field));
    // benchdnn separates fields by '_' where one likes.
    if (text.starts_with('_')) text.remove_prefix(1);
  }
  return pairs;
}

/// What a field that there is not may have meant: "p1" both paddings, "padw1" the nearest name.
std::string field_hint(const std::string& key, std::int64_t value) {
  const std::string number = std::to_string(value);
  if (key == "p" || key == "pad" || key == "padding") {
    return "; nearest: ph" + number + "pw" + number;
  }
  if (key == "st" || key == "stride") return "; nearest: sh" + number + "sw" + number;
  if (key == "dil" || key == "dilation") return "; nearest: dh" + number + "dw" + number;
  return "; legal: n d h w c k t r s g up cache, p s d m with d, h or w, pde phe pwe";
}

ProblemShape parse_convoy(const std::vector<std::pair<std::string, std::int64_t>>& pairs) {
  static constexpr std::string_view kKnown[] = {
      "n",  "d",   "h",  "w",   "c",  "k",  "t",  "r",  "s",  "g",  "up", "cache", "pd", "pde",
      "ph", "phe", "pw", "pwe", "sd", "sh", "sw", "dd", "dh", "dw", "md", "mh",    "mw"};
  Fields fields;
  for (const auto& [key, value] : pairs) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      throw_invalid("shape: unknown field '", key, "'", field_hint(key, value));
    }
    add(fields, key, value, key);
  }
  return problem_from(std::move(fields));
}

/// benchdnn: mb ic oc g, and per axis i o k p s d with d, h, w; a missing axis is the one before it
/// (square shapes), dilation counts from 0, the output extent implies the padding at the end.
ProblemShape parse_benchdnn(const std::vector<std::pair<std::string, std::int64_t>>& pairs) {
  // With these bounds no sum or product below can overflow.
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  Fields given;
  for (const auto& [key, value] : pairs) {
    if (value < -kLargest || value > kLargest) {
      throw_invalid("shape: ", key, " = ", value, "; legal: at most ", kLargest);
    }
    add(given, key, value, key);
  }

  Fields fields;
  fields["n"] = take(given, "mb", 2);  // benchdnn's default.
  fields["c"] = take_required(given, "ic");
  fields["k"] = take_required(given, "oc");
  fields["g"] = take(given, "g", 1);
  std::size_t first_axis = 3;
  for (std::size_t axis = 3; axis-- > 0;) {
    if (given.contains(std::string("i") + "dhw"[axis])) first_axis = axis;
  }
  if (first_axis > 1) throw_invalid("shape: field 'ih' is missing");

  // Values of the axis before, for the axes that leave a field out.
  std::int64_t in = 0, filter = 1, pad = 0, stride = 1, dilation = 0;
  std::optional<std::int64_t> out;
  for (std::size_t axis = first_axis; axis < 3; ++axis) {
    const std::string letter(1, "dhw"[axis]);
    in = take(given, "i" + letter, in);
    filter = take(given, "k" + letter, filter);
    pad = take(given, "p" + letter, pad);
    stride = take(given, "s" + letter, stride);
    dilation = take(given, "d" + letter, dilation);
    if (given.contains("o" + letter)) out = take(given, "o" + letter, 0);

    fields[letter] = in;
    fields[std::string(1, "trs"[axis])] = filter;
    fields["p" + letter] = pad;
    fields["s" + letter] = stride;
    fields["d" + letter] = dilation + 1;
    if (out) {
      // in + pad + pad_end = (out - 1) * stride + dilation * (filter - 1) + 1
      const std::int64_t needed = (*out - 1) * stride + (dilation + 1) * (filter - 1) + 1;
      const std::int64_t pad_end = needed - in - pad;
      // A symmetric padding that gives this output is meant, even where the last step leaves rest.
      const bool symmetric = pad_end <= pad && pad - pad_end < stride;
      if (!symmetric) fields["p" + letter + "e"] = pad_end;
    }
  }
  if (!given.empty()) throw_invalid("shape: unknown field '", given.begin()->first, "'");
  return problem_from(std::move(fields));
}

/// The options of MIOpenDriver's conv that describe a shape, and what Convoy calls them.
constexpr std::pair<std::string_view, std::string_view> kMiopenOptions[] = {
    {"-n", "n"},  {"--batchsize", "n"},      {"-c", "c"},  {"--in_channels", "c"},
    {"-!", "d"},  {"--in_d", "d"},           {"-H", "h"},  {"--in_h", "h"},
    {"-W", "w"},  {"--in_w", "w"},           {"-k", "k"},  {"--out_channels", "k"},
    {"-@", "t"},  {"--fil_d", "t"},          {"-y", "r"},  {"--fil_h", "r"},
    {"-x", "s"},  {"--fil_w", "s"},          {"-$", "pd"}, {"--pad_d", "pd"},
    {"-p", "ph"}, {"--pad_h", "ph"},         {"-q", "pw"}, {"--pad_w", "pw"},
    {"-#", "sd"}, {"--conv_stride_d", "sd"}, {"-u", "sh"}, {"--conv_stride_h", "sh"},
    {"-v", "sw"}, {"--conv_stride_w", "sw"}, {"-^", "dd"}, {"--dilation_d", "dd"},
    {"-l", "dh"}, {"--dilation_h", "dh"},    {"-j", "dw"}, {"--dilation_w", "dw"},
    {"-g", "g"},  {"--group_count", "g"},
};

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(" \t");
    if (begin == text.npos) return words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

ParsedShape parse_miopen(const std::vector<std::string_view>& words) {
  ParsedShape parsed;
  std::size_t at = 0;
  if (words[at].ends_with("MIOpenDriver")) ++at;
  if (at < words.size() && !words[at].starts_with('-')) {
    if (words[at] == "conv") {
      parsed.dtype = DType::fp32;
    } else if (words[at] == "convfp16") {
      parsed.dtype = DType::fp16;
    } else if (words[at] == "convbfp16") {
      parsed.dtype = DType::bf16;
    } else {
      throw_invalid("shape: unknown operation '", words[at].substr(0, 32),
                    "'; legal: conv, convfp16, convbfp16");
    }
    ++at;
  }
  Fields fields;
  bool is_3d = false;
  for (; at < words.size(); at += 2) {
    const std::string_view option = words[at];
    if (at + 1 == words.size()) throw_invalid("shape: option '", option, "' has no value");
    std::string_view text = words[at + 1];
    // Options that name the operation: only a forward convolution will do.
    if (option == "-m" || option == "--mode") {
      if (text != "conv") throw_invalid("shape: mode '", text, "'; legal: conv");
      continue;
    }
    const std::int64_t value = take_integer(text, option);
    if (!text.empty()) throw_invalid("shape: '", words[at + 1], "' is not an integer");
    if (option == "-F" || option == "--forw") {
      if (value != 1) throw_invalid("shape: ", option, " = ", value, "; legal: 1, forward");
      continue;
    }
    if (option == "-_" || option == "--spatial_dim") {
      if (value != 2 && value != 3) throw_invalid("shape: ", option, " = ", value, "; legal: 2, 3");
      is_3d = value == 3;
      continue;
    }
    const auto* known = std::find_if(std::begin(kMiopenOptions), std::end(kMiopenOptions),
                                     [&](const auto& entry) { return entry.first == option; });
    if (known == std::end(kMiopenOptions)) {
      throw_invalid("shape: unknown option '", option.substr(0, 32), "'");
    }
    add(fields, known->second, value, option);
  }
  if (is_3d) fields.emplace("d", 1);
  parsed.problem = problem_from(std::move(fields));
  return parsed;
}

}  // namespace

ParsedShape parse_shape(std::string_view text) {
  if (text.size() > kLongestShape) {
    throw_invalid("shape: ", text.size(), " characters; legal: at most ", kLongestShape);
  }
  for (char c : text) {
    if (c < ' ' || c > '~') throw_invalid("shape: holds a character that is not printable ASCII");
  }
  const std::vector<std::string_view> words = split_words(text);
  if (words.empty()) throw_invalid("shape: is empty");
  if (words.size() > 1) return parse_miopen(words);

  ParsedShape parsed;
  const auto pairs = split_pairs(words[0], parsed.name);
  bool benchdnn = false;
  for (const auto& pair : pairs) benchdnn = benchdnn || pair.first == "ic";
  parsed.problem = benchdnn ? parse_benchdnn(pairs) : parse_convoy(pairs);
  return parsed;
}

}  // namespace convoy::cli
