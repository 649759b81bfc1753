// SPDX-License-Identifier: Apache-2.0
// The program `convoy`: docs/cli.md.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "commands.hpp"
#include "convoy/convoy.hpp"

namespace {

using namespace convoy::cli;

/// One line on stderr, whatever the message held.
int fail(ExitCode code, std::string message) {
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fprintf(stderr, "convoy: error: %s\n", message.c_str());
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

}  // namespace

int main(int argc, char** argv) {
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(kBadInput, error.what());
  } catch (const convoy::Error& error) {
    return fail(exit_code_of(error.status()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(kFailure, "out of memory");
  } catch (const std::exception& error) {
    return fail(kFailure, error.what());
  }
  return exit_code;
}
