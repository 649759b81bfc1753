// SPDX-License-Identifier: Apache-2.0
#include "measured_times.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include "convoy/error.hpp"
#include "io/byte_source.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  return fields;
}

class Table {
 public:
  Table(const std::string& path, const std::vector<std::string>& names)
      : path_(path), names_(names) {
    for (const char* name : {"problem", "kernel", "us"}) {
      if (!column(name)) {
        throw Error(Status::io_error, text(path, ": no column '", name,
                                           "'; legal: a file of convoy_measure_kernels or of "
                                           "convoy tune --csv"));
      }
    }
  }

  MeasuredTime row(const std::vector<std::string>& fields, int line) const {
    if (fields.size() < names_.size()) {
      throw Error(Status::io_error, text(path_, ":", line, ": ", fields.size(), " fields; legal: ",
                                         names_.size(), ", one for each column"));
    }
    MeasuredTime time;
    const auto word = [&](const char* name, std::string& value) {
      if (const auto at = column(name)) value = fields[*at];
    };
    const auto number = [&](const char* name, auto& value) {
      const auto at = column(name);
      if (!at) return;
      const std::string& field = fields[*at];
      const char* const end = field.data() + field.size();
      const auto [rest, error] = std::from_chars(field.data(), end, value);
      if (error != std::errc{} || rest != end) {
        throw Error(Status::io_error,
                    text(path_, ":", line, ": ", name, " = '",
                         std::string_view(field).substr(0, 40), "'; legal: a number"));
      }
    };
    word("problem", time.problem);
    word("dtype", time.dtype);
    word("epilogue", time.epilogue);
    word("kernel", time.kernel);
    number("splits", time.splits);
    number("us", time.us);
    number("modelled_us", time.modelled_us);
    return time;
  }

 private:
  std::optional<std::size_t> column(std::string_view name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - names_.begin());
  }

  std::string path_;
  std::vector<std::string> names_;
};

}  // namespace

std::vector<MeasuredTime> read_measured_times(const std::string& path) {
  constexpr std::uint64_t kMost = 1 << 30;
  std::istringstream lines(io::read_all(path, kMost));
  std::vector<MeasuredTime> times;
  std::optional<Table> table;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> fields = split(line);
    if (table) {
      times.push_back(table->row(fields, number));
    } else {
      table.emplace(path, fields);
    }
  }
  if (!table) {
    throw Error(Status::io_error, path + ": empty; legal: a line of column names, then times");
  }
  return times;
}

}  // namespace convoy::cli
