// SPDX-License-Identifier: Apache-2.0
// The program `convoy`: docs/cli.md.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "commands.hpp"
#include "convoy/convoy.hpp"
#include "io/atomic_file.hpp"
#include "io/printable.hpp"
#include "nearest.hpp"
#include "text.hpp"

namespace {

using namespace convoy::cli;

/// One line on stderr, whatever the message held.
int fail(ExitCode code, std::string message) {
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fprintf(stderr, "convoy: error: %s\n", convoy::io::printable(message).c_str());
  return code;
}

ExitCode exit_code_of(convoy::Status status) {
  switch (status) {
    case convoy::Status::invalid_argument:
    case convoy::Status::unsupported:
    case convoy::Status::io_error:
      return kBadInput;
    default:
      return kFailure;
  }
}

/// What the command line got wrong, with the nearest word that is known.
std::string explain(const CLI::ParseError& error, const CLI::App& app, int argc, char** argv) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::vector<std::string> rest = app.remaining(true);
  if (chosen.empty()) {
    std::vector<std::string> names;
    std::string legal;
    for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(subcommand->get_name());
      legal += (legal.empty() ? "" : ", ") + names.back();
    }
    if (argc < 2) return text("no subcommand is given; legal: ", legal);
    const std::string word = argv[1];
    const std::vector<std::string> options = {"--help", "--version"};
    if (word.size() > 1 && word.starts_with('-')) {
      return text("'", word, "' is not an option of convoy", nearest_hint(word, options),
                  "; legal: --help, --version, or a subcommand: ", legal);
    }
    std::string nearest = nearest_hint(word, names);
    if (nearest.empty()) nearest = nearest_hint("--" + word, options);
    return text("'", word, "' is not a subcommand", nearest, "; legal: ", legal);
  }
  if (rest.empty()) return error.what();
  const std::string& word = rest.front();
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty()) names.push_back("--" + option->get_lnames().front());
  }
  const std::string name = word.substr(0, word.find('='));
  std::string hint = word.starts_with('-') ? nearest_hint(name, names) : "";
  for (const CLI::App* other : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!name.starts_with("--") || other->get_option_no_throw(name) == nullptr) continue;
    hint = text("; convoy ", other->get_name(), " has it");
    break;
  }
  return text("'", word, "' is not ", word.starts_with('-') ? "an option" : "expected",
              " of convoy ", command.get_name(), hint, "; `convoy ", command.get_name(),
              " --help` lists what is");
}

/// Everything printed has arrived; else there is nobody to be told of success.
bool flush_output() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
}

int run(int argc, char** argv) {
  int exit_code = kSuccess;
  CLI::App app("Forward convolutions for Hopper and Blackwell GPUs, and for the CPU.", "convoy");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("convoy ") + convoy::version());
  app.footer(
      "Exit codes: 0 success, 1 --verify found an error past the bound, 2 bad input,\n"
      "3 out of memory or a failed launch. CONVOY_LOG=info|dispatch|trace logs to stderr.");
  add_conv_commands(app, exit_code);
  add_bench_command(app, exit_code);
  add_tune_command(app, exit_code);
  add_info_command(app, exit_code);
  add_explain_command(app, exit_code);
  add_demo_command(app, exit_code);
  add_view_command(app, exit_code);
  add_help_commands(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(kBadInput, explain(error, app, argc, argv));
  } catch (const convoy::Error& error) {
    return fail(exit_code_of(error.status()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(kFailure, "out of memory: the host has none left for what the command needs");
  } catch (const std::exception& error) {
    return fail(kFailure, error.what());
  }
  return exit_code;
}

/// Standard streams that the caller closed are opened so that they fail: else the next file to be
/// opened would take their place, and get what is printed.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    const int mode = stream == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", mode) != stream) std::_Exit(kFailure);
  }
}

bool ended_by_itself = false;

/// A library that finds no memory or no thread for itself ends the process with a code of its own.
void end_in_a_library() {
  if (ended_by_itself) return;
  convoy::io::remove_unfinished();
  std::fputs("convoy: error: a library ended the program: out of memory or threads\n", stderr);
  std::_Exit(kFailure);
}

/// NOTE: a destructor of the JSON library allocates, so that out of memory may end here.
[[noreturn]] void end_without_unwinding() {
  convoy::io::remove_unfinished();
  std::fputs("convoy: error: out of memory, or an exception where none may be\n", stderr);
  std::_Exit(kFailure);
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // A write past `ulimit -f` is to fail, to standard output too.
  std::set_terminate(end_without_unwinding);
  std::atexit(end_in_a_library);
  int exit_code = kFailure;
  try {
    exit_code = run(argc, argv);
  } catch (const std::exception&) {  // Outside of what `run` reports: no memory for that.
    std::fputs("convoy: error: out of memory\n", stderr);
    ended_by_itself = true;
    return kFailure;
  }
  ended_by_itself = true;
  if (flush_output()) return exit_code;
  std::fputs("convoy: error: cannot write to standard output\n", stderr);
  return kBadInput;
}
