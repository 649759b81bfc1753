// SPDX-License-Identifier: Apache-2.0
#include "dispatch/tuning.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/log.hpp"
#include "core/text.hpp"

namespace convoy {

/// Generated from data/tuning/*.txt by src/dispatch/CMakeLists.txt.
extern const char* const kShippedTuning[];
extern const int kShippedTuningCount;

namespace {

constexpr std::string_view kHeader = "convoy-tuning 2";
constexpr std::string_view kPlainHeader = "convoy-tuning 1";  ///< Without the epilogue.
constexpr std::string_view kSeparator = " | ";

std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

[[noreturn]] void fail(const std::string& origin, int number, const std::string& what) {
  throw Error(Status::io_error, text(origin, ":", number, ": ", what));
}

// Kernels that had another name when users tuned.
std::string_view current_name(std::string_view kernel) {
  constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
      {"portable_halo", "few_filters"},    {"portable_patch", "few_channels"},
      {"portable_pointwise", "pointwise"}, {"portable_depthwise", "depthwise"},
      {"portable_grouped", "grouped"},     {"portable_general", "general"}};
  for (const auto& [before, now] : kRenamed) {
    if (kernel == before) return now;
  }
  return kernel;
}

/// Why no line of a file can hold this choice; empty where one can.
std::string wrong_choice(const TunedKernel& choice) {
  const std::string& kernel = choice.kernel;
  if (kernel.empty() || kernel == "|" || kernel.find_first_of(" \n") != kernel.npos) {
    return text("kernel = '", kernel, "'; legal: a kernel's name, such as 'pointwise'");
  }
  if (!std::isfinite(choice.us) || choice.us <= 0) {
    return text("us = ", choice.us, " of kernel ", kernel, "; legal: above 0, finite");
  }
  return {};
}

/// What is wrong with "<device> | <types> | <epilogue> | <shape>", without the epilogue where
/// `fields` is 3; empty where nothing is. The words of the shape are those of tuning_key.
std::string wrong_key(std::string_view key, int fields) {
  int found = 0;
  std::string_view field;
  for (bool more = true; more; ++found) {
    const std::size_t end = key.find(kSeparator);
    more = end != key.npos;
    field = key.substr(0, end);
    if (field.find_first_not_of(' ') == field.npos) return text("field ", found + 1, " is empty");
    if (more) key.remove_prefix(end + kSeparator.size());
  }
  if (found != fields) return text(found, " fields behind the kernel, not ", fields);
  constexpr std::string_view kWords = "ndhwckfslpgu";
  for (std::size_t i = 0; i <= kWords.size(); ++i) {
    const std::size_t end = std::min(field.find(' '), field.size());
    const std::string_view word = field.substr(0, end);
    field.remove_prefix(std::min(end + 1, field.size()));
    // The modes of padding come last: three letters.
    const bool legal = i < kWords.size() ? word.size() > 1 && word[0] == kWords[i]
                                         : word.size() == 3 && field.empty() && word[2] != '\r';
    if (!legal) {
      return text("the shape ends early or is none, at its word ", i + 1, ", '", word.substr(0, 20),
                  "'");
    }
  }
  return {};
}

}  // namespace

TuningDatabase TuningDatabase::parse(std::string_view content, const std::string& origin) {
  TuningDatabase database;
  const std::string_view header = next_line(content);
  if (header != kHeader && header != kPlainHeader) {
    std::string shown(header.substr(0, 40));
    for (char& c : shown) c = c < ' ' || c > '~' ? '?' : c;
    fail(origin, 1,
         text("'", shown, "' is not a tuning file of this version; legal: '", kHeader, "' or '",
              kPlainHeader, "'; make it anew with `convoy tune`"));
  }
  for (int number = 2; !content.empty(); ++number) {
    const std::string_view line = next_line(content);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t separator = line.find(kSeparator);
    const std::string_view choice = line.substr(0, separator);
    const std::size_t space = choice.find(' ');
    TunedKernel tuned;
    const char* const end = choice.data() + std::min(space, choice.size());
    const auto [rest, error] = std::from_chars(choice.data(), end, tuned.us);
    const bool is_number = error == std::errc{} && rest == end;
    if (space != choice.npos) tuned.kernel = current_name(choice.substr(space + 1));
    if (separator == line.npos || !is_number || !wrong_choice(tuned).empty()) {
      fail(origin, number,
           "not '<microseconds> <kernel> | <device> | <types> | <epilogue> | <shape>'");
    }
    std::string key(line.substr(separator + kSeparator.size()));
    const std::string wrong = wrong_key(key, header == kPlainHeader ? 3 : 4);
    if (!wrong.empty()) {
      fail(origin, number,
           text(wrong,
                "; legal: '<microseconds> <kernel> | <device> | <types> | <epilogue> | "
                "<shape>', as `convoy tune` writes it"));
    }
    if (const std::size_t shape = key.rfind(kSeparator);
        header == kPlainHeader && shape != key.npos)
      key.insert(shape, text(kSeparator, epilogue_class({})));
    database.set(key, std::move(tuned));
  }
  return database;
}

std::string TuningDatabase::to_text() const {
  std::string result = text(kHeader, "\n");
  for (const auto& [key, choice] : choices_) {
    // NOTE: short times by their own digits: two behind the point may leave 0, which is refused.
    char digits[64];
    const bool usual = choice.us >= 1 && choice.us < 1e15;
    const std::to_chars_result end =
        usual ? std::to_chars(digits, std::end(digits), choice.us, std::chars_format::fixed, 2)
              : std::to_chars(digits, std::end(digits), choice.us);
    result += text(std::string_view(digits, end.ptr), " ", choice.kernel, kSeparator, key, "\n");
  }
  return result;
}

std::optional<TunedKernel> TuningDatabase::find(const std::string& key) const {
  const auto found = choices_.find(key);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

void TuningDatabase::set(const std::string& key, TunedKernel choice) {
  // NOTE: so that a file that was written can be read.
  if (key.empty() || key.find('\n') != key.npos || key.back() == '\r') {
    throw_invalid("key = '", key, "'; legal: one line, as tuning_key gives it");
  }
  if (const std::string wrong = wrong_choice(choice); !wrong.empty()) throw_invalid(wrong);
  choices_[key] = std::move(choice);
}

void TuningDatabase::merge(const TuningDatabase& other) {
  for (const auto& [key, choice] : other.choices_) choices_[key] = choice;
}

std::string epilogue_class(const EpilogueKind& epilogue) {
  std::string name = epilogue.activation == Activation::none   ? "plain"
                     : epilogue.activation == Activation::relu ? "relu"
                                                               : "activation";
  if (epilogue.residual) name += "+residual";
  if (epilogue.rounding == EpilogueRounding::each_step) name += "+each_step";
  return name;
}

std::string tuning_key(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const auto triple = [](const std::array<std::int64_t, 3>& v) {
    return text(v[0], "x", v[1], "x", v[2]);
  };
  std::string modes;
  for (const PadMode mode : g.pad_mode)
    modes += to_string(mode)[0] == 'z' ? 'z' : to_string(mode)[2];
  // What a packed filter of an upsampling holds depends on the folding; "u2" alone is the fast one.
  const bool exact_folding =
      g.upsample == 2 && request.packed_filter && g.upsample_folding == UpsampleFolding::exact;
  // What was measured without a prologue says nothing of one: few kernels take them.
  const std::string prologue =
      request.prologue.any() ? to_string(request.prologue) + " > " : std::string();
  return text(request.device.name, kSeparator, to_string(request.dtype), ">",
              to_string(request.output_dtype),
              request.allow_tf32 && request.dtype == DType::fp32 ? " tf32" : "",
              request.packed_filter ? " packed" : " dense", kSeparator, prologue,
              epilogue_class(request.epilogue),
              request.shuffle.any() ? " > " + to_string(request.shuffle) : std::string(),
              kSeparator, "n", g.batch, " d", g.cached_frames, "+", g.in[0], " h", g.in[1], " w",
              g.in[2], " c", g.in_channels, " k", g.out_channels, " f", triple(g.filter), " s",
              triple(g.stride), " l", triple(g.dilation), " p", triple(g.pad_begin), ":",
              triple(g.pad_end), " g", g.groups, " u", g.upsample, exact_folding ? "e " : " ",
              modes);
}

std::string tuning_key(const ProblemShape& problem, const PlanOptions& options,
                       const DeviceInfo& device) {
  ConvGeometry geometry = geometry_of(problem);
  geometry.upsample_folding = options.upsample_folding;
  return tuning_key({.geometry = geometry,
                     .dtype = options.dtype,
                     .output_dtype = options.output_dtype.value_or(options.dtype),
                     .epilogue = options.epilogue,
                     .prologue = options.prologue,
                     .shuffle = options.shuffle,
                     .packed_filter = options.packed_filter,
                     .allow_tf32 = options.allow_tf32,
                     .device = device});
}

std::string user_tuning_path() {
  if (const char* path = std::getenv("CONVOY_TUNING"); path != nullptr) return path;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return text(cache, "/convoy/tuning.txt");
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return text(home, "/.cache/convoy/tuning.txt");
  }
  return {};
}

TuningDatabase shipped_tuning() {
  TuningDatabase database;
  for (int i = 0; i < kShippedTuningCount; ++i) {
    database.merge(TuningDatabase::parse(kShippedTuning[i], "shipped tuning"));
  }
  return database;
}

namespace {

/// The user's file, or nothing and why where there is one that cannot be read. Devices and pipes
/// are refused, which have no end.
std::optional<std::string> read_user_file(const std::string& path, std::string& refusal) {
  constexpr off_t kLargest = TuningDatabase::kMostFileBytes;
  const auto refuse = [&](const std::string& why) {
    refusal = why;
    return std::nullopt;
  };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return refuse(text("cannot open: ", std::strerror(errno)));
  const std::unique_ptr<const int, void (*)(const int*)> closer(&descriptor,
                                                                [](const int* d) { close(*d); });
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    return refuse("is not a regular file");
  }
  if (status.st_size > kLargest) {
    return refuse(text("has ", status.st_size, " bytes; legal: at most ", kLargest));
  }
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t got = read(descriptor, content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(text("cannot read: ", std::strerror(errno)));
    if (got == 0) return refuse("was cut while it was being read");
    done += static_cast<std::size_t>(got);
  }
  return content;
}

}  // namespace

const TuningDatabase& tuning_database() {
  static const TuningDatabase all = [] {
    TuningDatabase database = shipped_tuning();
    const std::string path = user_tuning_path();
    if (path.empty()) return database;
    std::string refusal;
    const std::optional<std::string> content = read_user_file(path, refusal);
    const char* const named = std::getenv("CONVOY_TUNING");
    const bool is_absent = !content && access(path.c_str(), F_OK) != 0;
    if (is_absent && (named == nullptr || *named == '\0')) return database;
    if (!content) refusal = text(path, ": ", refusal);
    try {
      if (content) database.merge(TuningDatabase::parse(*content, path));
    } catch (const Error& error) {
      refusal = error.what();
    }
    if (!refusal.empty()) {
      log_always("tuning", {refusal + "; its choices are left out"});
    }
    return database;
  }();
  return all;
}

}  // namespace convoy
