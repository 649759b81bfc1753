// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"
#include "io/printable.hpp"
#include "nearest.hpp"
#include "text.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>

namespace convoy::cli {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// The value among `values` whose to_string() is `word`, without regard to case.
template <typename Enum, std::size_t N>
Enum parse_word(const char* what, const std::string& word, const Enum (&values)[N]) {
  std::string legal;
  std::vector<std::string> names;
  for (Enum value : values) {
    if (lower(to_string(value)) == lower(word)) return value;
    names.push_back(lower(to_string(value)));
    legal += (legal.empty() ? "" : ", ") + std::string(to_string(value));
  }
  throw_invalid(what, " '", word, "' is not known", nearest_hint(lower(word), names),
                "; legal: ", legal);
}

/// A whole number of 64 bits; what is wrong with the word where it is none.
std::string parse_whole(const std::string& word, std::int64_t& value) {
  const char* const first = word.data() + (word.starts_with('+') ? 1 : 0);
  const char* const last = word.data() + word.size();
  const auto [end, error] = std::from_chars(first, last, value);
  if (error == std::errc::result_out_of_range) return "'" + word + "' does not fit 64 bits";
  if (error != std::errc{} || end != last) return "'" + word + "' is not a whole number";
  return "";
}

/// A number of fp32 as people write it, "+1" too; what is wrong with it where it is none.
std::string parse_number(const std::string& word, float& value) {
  const char* const first = word.data() + (word.starts_with('+') ? 1 : 0);
  const char* const last = word.data() + word.size();
  const auto [end, error] = std::from_chars(first, last, value);
  if (error == std::errc::result_out_of_range && end == last) {
    return "'" + word + "' does not fit fp32";
  }
  if (error != std::errc{} || end != last || std::isnan(value)) {
    return "'" + word + "' is not a number";
  }
  return "";
}

float parse_float(const std::string& text, const std::string& word) {
  float value = 0;
  const std::string wrong = parse_number(text, value);
  if (!wrong.empty()) throw_invalid("activation '", word, "': ", wrong);
  return value;
}

}  // namespace

const CLI::Validator& whole_number() {
  static const CLI::Validator validator(
      [](const std::string& word) {
        std::int64_t value = 0;
        return parse_whole(word, value);
      },
      "");
  return validator;
}

CLI::Option* add_whole_numbers(CLI::App& command, const std::string& name,
                               std::vector<std::int64_t>& values, const std::string& help) {
  // NOTE: not by CLI11's delimiter, which leaves out what is empty: ",1" would be "1".
  const auto parse = [&values, name](const std::string& words) {
    values.clear();
    for (std::size_t begin = 0; begin <= words.size();) {
      const std::size_t end = std::min(words.find(',', begin), words.size());
      const std::string wrong =
          parse_whole(words.substr(begin, end - begin), values.emplace_back());
      if (!wrong.empty()) throw CLI::ValidationError(name, wrong);
      begin = end + 1;
    }
  };
  return command.add_option_function<std::string>(name, parse, help)->type_name("INT,...");
}

const CLI::Validator& finite_number() {
  static const CLI::Validator validator(
      [](const std::string& word) -> std::string {
        float value = 0;
        std::string wrong = parse_number(word, value);
        if (wrong.empty() && std::isinf(value)) return "'" + word + "' is not a finite number";
        return wrong;
      },
      "");
  return validator;
}

DType parse_dtype(const std::string& word) {
  return parse_word("dtype", word, {DType::bf16, DType::fp16, DType::fp32});
}

Device parse_device(const std::string& word) {
  if (lower(word) == "auto") return Device::automatic;
  if (lower(word) == "cpu") return Device::cpu;
  if (lower(word) == "cuda") return Device::cuda;
  throw_invalid("device '", word, "' is not known; legal: auto, cpu, cuda");
}

FilterLayout parse_filter_layout(const std::string& word) {
  if (lower(word) == "qrscf") return FilterLayout::trscf;
  if (lower(word) == "fcrs") return FilterLayout::kcrs;
  if (lower(word) == "rscf") return FilterLayout::rscf;
  return parse_word("filter layout", word,
                    {FilterLayout::krsc, FilterLayout::kcrs, FilterLayout::rscf,
                     FilterLayout::ktrsc, FilterLayout::kctrs, FilterLayout::trscf});
}

PadMode parse_pad_mode(const std::string& word) {
  return parse_word("pad mode", word, {PadMode::zero, PadMode::replicate, PadMode::reflect});
}

UpsampleFolding parse_upsample_folding(const std::string& word) {
  return parse_word("upsample folding", word, {UpsampleFolding::exact, UpsampleFolding::fast});
}

void parse_activation(const std::string& word, Epilogue& epilogue) {
  const std::size_t colon = word.find(':');
  epilogue.activation =
      parse_word("activation", word.substr(0, colon),
                 {Activation::none, Activation::relu, Activation::leaky_relu, Activation::gelu,
                  Activation::gelu_tanh, Activation::silu, Activation::sigmoid, Activation::tanh,
                  Activation::hardswish, Activation::clamp});
  if (colon == word.npos) return;
  const std::string parameters = word.substr(colon + 1);
  const std::size_t comma = parameters.find(',');
  const bool pair = comma != parameters.npos;
  if (epilogue.activation == Activation::leaky_relu && !pair) {
    epilogue.parameter_a = parse_float(parameters, word);
  } else if (epilogue.activation == Activation::clamp && pair) {
    epilogue.parameter_a = parse_float(parameters.substr(0, comma), word);
    epilogue.parameter_b = parse_float(parameters.substr(comma + 1), word);
    if (!(epilogue.parameter_a <= epilogue.parameter_b)) {
      throw_invalid("activation '", word, "': LO = ", epilogue.parameter_a,
                    " is not at most HI = ", epilogue.parameter_b,
                    "; legal: clamp:LO,HI, LO <= HI");
    }
  } else {
    throw_invalid("activation '", word, "': legal with parameters: leaky_relu:SLOPE, clamp:LO,HI");
  }
}

CLI::Option* PrologueWords::add_to(CLI::App& command, const std::string& help) {
  CLI::Option* const which = command.add_option("--norm", norm, help);
  command.add_option("--norm-activation", activation, "none, relu, gelu, gelu_tanh or silu")
      ->needs(which)
      ->capture_default_str();
  return which;
}

PrologueKind PrologueWords::kind() const {
  if (norm.empty()) return {};
  if (norm != "group" && norm != "rms") {
    throw_invalid("norm '", norm, "' is not known; legal: group, rms");
  }
  Epilogue words;
  parse_activation(activation, words);
  return {.norm = norm == "rms" ? PrologueNorm::rms : PrologueNorm::scale_shift,
          .activation = words.activation};
}

std::array<std::int64_t, 3> per_axis(const std::vector<std::int64_t>& values, int rank,
                                     const char* option) {
  const auto axes = std::size_t(rank);
  std::array<std::int64_t, 3> out = {1, 1, 1};
  if (values.size() > 1 && values.size() != axes) {
    throw_invalid(option, " has ", values.size(), " values; legal: 1 or ", rank);
  }
  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (values.empty()) continue;
    out[3 - axes + axis] = values.size() == 1 ? values[0] : values[axis];
  }
  return out;
}

void ShuffleWords::add_to(CLI::App& command, const std::string& axes, bool frames) {
  CLI::Option* const given =
      add_whole_numbers(command, "--shuffle", factors,
                        "F | " + axes + ": filters become " +
                            (frames ? "frames, rows and columns (depth to space)"
                                    : "rows and columns of the output (depth to space)"));
  command
      .add_option("--shuffle-order", order,
                  "outer: filters (c, dt, dh, dw), as pixel_shuffle; inner: (dt, dh, dw, c)")
      ->needs(given)
      ->capture_default_str();
  if (!frames) return;
  command.add_option("--drop-frames", dropped_frames, "first frames of a shuffled output left out")
      ->check(whole_number())
      ->needs(given);
}

OutputShuffle ShuffleWords::shuffle(int rank) const {
  OutputShuffle made;
  made.factors = per_axis(factors, rank, "--shuffle");
  if (order == "inner") {
    made.order = ShuffleOrder::channels_inner;
  } else if (order != "outer") {
    throw_invalid("--shuffle-order = '", io::printable(order), "'; legal: outer, inner");
  }
  made.dropped_frames = dropped_frames;
  return made;
}

void EpilogueOptions::add_to(CLI::App& command) {
  command.add_flag("--bias", bias, "with a bias");
  command.add_option("--activation", activation, "as in conv2d")->capture_default_str();
  command.add_flag("--residual", residual, "with a residual");
}

EpilogueKind EpilogueOptions::kind() const {
  Epilogue epilogue;
  parse_activation(activation, epilogue);
  EpilogueKind kind = epilogue.kind();
  kind.bias = bias;
  kind.residual = residual;
  return kind;
}

void CommonOptions::add_to(CLI::App& command) {
  command.add_option("--dtype", dtype, "bf16, fp16 or fp32: type of the computation's tensors");
  command.add_flag("--tf32", tf32, "with fp32: products of TF32 (10 bits of mantissa) will do");
  command.add_option("--device", device, "auto, cpu or cuda")->capture_default_str();
  command.add_option("--kernel", kernel, "run this kernel (a name of `convoy explain`) or fail");
  command
      .add_option("--upsample-folding", upsample_folding,
                  "exact, or fast: twice as fast on a GPU, filters summed to 16 bits")
      ->capture_default_str();
  command.add_flag("--json", json, "print JSON on stdout");
}

void CommonOptions::apply_to(PlanOptions& options) const {
  options.device = device_choice();
  options.kernel = kernel;
  options.allow_tf32 = tf32;
  options.upsample_folding = parse_upsample_folding(upsample_folding);
}

}  // namespace convoy::cli
