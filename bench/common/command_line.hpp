// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "convoy/types.hpp"
#include "shape_file.hpp"

namespace CLI {
class App;
}

namespace convoy::bench {

/// The command line of a measuring program. What an option was before is its default.
class CommandLine {
 public:
  /// `program`: its name, which begins the line of an error.
  CommandLine(const std::string& program, const std::string& description);
  ~CommandLine();

  void flag(const std::string& name, bool& value, const std::string& help);
  /// A finite number, not below 0.
  void number(const std::string& name, double& value, const std::string& help);
  /// A whole number of [least, most].
  template <typename Whole>  // int, std::int64_t
  void whole(const std::string& name, Whole& value, Whole least, Whole most,
             const std::string& help);
  void word(const std::string& name, std::string& value, const std::string& help);
  /// One of `legal`.
  void choice(const std::string& name, std::string& value, const std::vector<std::string>& legal,
              const std::string& help);
  /// May be given again, one word each time.
  void words(const std::string& name, std::vector<std::string>& values, const std::string& help);
  /// --dtype bf16|fp16|fp32.
  void dtype(DType& value);
  /// What follows the options: at least `least` words.
  void rest(const std::string& name, std::vector<std::string>& values, int least,
            const std::string& help);

  /// Reads the words, then calls `body`. Returns what it returns, 0 after --help, 2 where the words
  /// are not legal or `body` throws, which one line on stderr tells.
  int run(int argc, char** argv, const std::function<int()>& body);

 private:
  std::unique_ptr<CLI::App> app_;
};

/// Help of `rest` where layers are what it takes.
inline constexpr char kShapesHelp[] = "shape files, names of shipped sets, or shape strings";

/// Calls `compare` with each layer that `words` name (`cli::resolve_shapes`). A layer that throws
/// an Error is told of on stdout and left. Returns how many were.
int for_each_layer(const std::vector<std::string>& words,
                   const std::function<void(const cli::ShapeCase&)>& compare);

}  // namespace convoy::bench
