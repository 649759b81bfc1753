// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "convoy/dtype.hpp"
#include "convoy/error.hpp"

namespace convoy::bench {

CommandLine::CommandLine(const std::string& program, const std::string& description)
    : app_(std::make_unique<CLI::App>(description, program)) {}

CommandLine::~CommandLine() = default;

void CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  app_->add_flag(name, value, help);
}

void CommandLine::number(const std::string& name, double& value, const std::string& help) {
  const auto is_legal = [](const std::string& word) -> std::string {
    double number = 0;
    // NOTE: CLI11 takes infinities and what is too large for a double.
    if (CLI::detail::lexical_cast(word, number) && number >= 0 && std::isfinite(number)) return "";
    return "'" + word + "' is not legal; legal: a number, 0 or more";
  };
  app_->add_option(name, value, help)
      ->check(CLI::Validator(is_legal, ""))
      ->type_name("NUMBER")
      ->capture_default_str();
}

template <typename Whole>
void CommandLine::whole(const std::string& name, Whole& value, Whole least, Whole most,
                        const std::string& help) {
  const auto in_range = [least, most](const std::string& word) -> std::string {
    Whole number = 0;
    if (CLI::detail::lexical_cast(word, number) && number >= least && number <= most) return "";
    return "'" + word + "' is not legal; legal: whole numbers from " + std::to_string(least) +
           " to " + std::to_string(most);
  };
  app_->add_option(name, value, help)
      ->check(CLI::Validator(in_range, ""))
      ->type_name("INT")
      ->capture_default_str();
}
template void CommandLine::whole(const std::string&, int&, int, int, const std::string&);
template void CommandLine::whole(const std::string&, std::int64_t&, std::int64_t, std::int64_t,
                                 const std::string&);

void CommandLine::word(const std::string& name, std::string& value, const std::string& help) {
  app_->add_option(name, value, help)->type_name("WORD");
}

void CommandLine::choice(const std::string& name, std::string& value,
                         const std::vector<std::string>& legal, const std::string& help) {
  const std::string list = CLI::detail::join(legal, ", ");
  const auto is_legal = [legal, list](const std::string& word) -> std::string {
    if (std::find(legal.begin(), legal.end(), word) != legal.end()) return "";
    return "'" + word + "' is not known; legal: " + list;
  };
  app_->add_option(name, value, help + ": " + list)
      ->check(CLI::Validator(is_legal, ""))
      ->type_name("WORD");
}

void CommandLine::words(const std::string& name, std::vector<std::string>& values,
                        const std::string& help) {
  app_->add_option(name, values, help + "; may be given again")
      ->type_name("WORD")
      ->allow_extra_args(false);
}

void CommandLine::dtype(DType& value) {
  const auto parse = [&value](const std::string& word) {
    for (const DType type : {DType::bf16, DType::fp16, DType::fp32}) {
      if (word != to_string(type)) continue;
      value = type;
      return;
    }
    throw CLI::ValidationError("--dtype", "'" + word + "' is not known; legal: bf16, fp16, fp32");
  };
  app_->add_option_function<std::string>("--dtype", parse, "bf16, fp16 or fp32")->type_name("WORD");
}

void CommandLine::rest(const std::string& name, std::vector<std::string>& values, int least,
                       const std::string& help) {
  app_->add_option(name, values, help)->type_name("")->required()->expected(least, 1 << 20);
}

int CommandLine::run(int argc, char** argv, const std::function<int()>& body) {
  // Rows appear as they come, also through a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string program = app_->get_name();
  try {
    app_->parse(argc, argv);
    return body();
  } catch (const CLI::CallForHelp& help) {
    return app_->exit(help);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), error.what());
    return 2;
  }
}

int for_each_layer(const std::vector<std::string>& words,
                   const std::function<void(const cli::ShapeCase&)>& compare) {
  int failed = 0;
  for (const std::string& word : words) {
    for (const cli::ShapeCase& shape : cli::resolve_shapes(word)) {
      try {
        compare(shape);
      } catch (const Error& error) {
        ++failed;
        std::printf("%s: %s\n", to_string(shape.problem).c_str(), error.what());
      }
    }
  }
  return failed;
}

}  // namespace convoy::bench
