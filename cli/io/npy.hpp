// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/atomic_file.hpp"
#include "io/byte_source.hpp"
#include "io/host_tensor.hpp"

namespace convoy::io {

/// Reads a NumPy file, format 1.0 to 3.0 (NEP 1): '<f2', '<f4', and '<V2' or '|V2', which is how
/// ml_dtypes' bfloat16 is saved. Fortran order is brought into C order. Throws Error{io_error} for
/// anything else, and where the body is not exactly as long as the header says.
HostTensor read_npy(ByteSource& source);

/// Writes format 1.0, C order; bf16 as '<V2' (read it with `.view(ml_dtypes.bfloat16)`).
void write_npy(AtomicFile& file, const HostTensor& tensor);

}  // namespace convoy::io
