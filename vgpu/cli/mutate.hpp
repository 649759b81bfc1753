// SPDX-License-Identifier: Apache-2.0
#pragma once

/// `vgpu mutate [run options] [--runs N] [--timeout SECONDS] [--only TEXT] [--fail-on-survivors]
///  -- program args`: deletes one synchronising instruction of the program's kernels at a time,
/// runs the program on the virtual GPU, and tells what noticed. `self` is the path of this program.
/// Returns the exit status.
int mutate_main(const char* self, int argc, char** argv);
