// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace convoy::cli {

/// What the program returns.
enum ExitCode : int {
  kSuccess = 0,
  kVerificationFailed = 1,  ///< --verify found an output past the bound.
  kBadInput = 2,            ///< Bad command line, file or problem, or one that no kernel can run.
  kFailure = 3,             ///< Out of memory, a failed launch, a broken invariant.
};

// Each adds one subcommand to the program. When it is chosen, `exit_code` receives its result;
// errors are thrown.
void add_conv_commands(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_tune_command(CLI::App& app, int& exit_code);
void add_info_command(CLI::App& app, int& exit_code);
void add_explain_command(CLI::App& app, int& exit_code);
void add_demo_command(CLI::App& app, int& exit_code);
void add_view_command(CLI::App& app, int& exit_code);
/// man and completion, of the commands added before and after.
void add_help_commands(CLI::App& app, int& exit_code);

}  // namespace convoy::cli
