// SPDX-License-Identifier: Apache-2.0
#include "tensor/sparsity.hpp"

#include <algorithm>

#include "fault.hpp"

namespace vgpu::tensor {
namespace {

/// Positions in a chunk of the elements that an index places; false: the index is not meaningful.
bool positions(bool two_wide, uint32_t index, uint32_t (&out)[2]) {
  if (two_wide) {
    out[0] = index == 0b1110;
    return index == 0b1110 || index == 0b0100;
  }
  out[0] = index & 3;
  out[1] = index >> 2;
  return out[0] != out[1];
}

}  // namespace

uint32_t metadata_bits(ElementType type) {
  return container_bytes(type) == 1 ? 64 : 32;
}

template <typename Value>
void expand_row(const char* instruction, ElementType type, uint32_t row, uint64_t metadata,
                const Value* elements, uint32_t stored, Value* out, uint32_t run) {
  const bool two_wide = type == ElementType::tf32;
  const uint32_t kept = (two_wide ? 1 : 2) * run, chunk = 2 * kept;
  std::fill_n(out, 2 * stored, Value{});
  for (uint32_t c = 0; c < stored / kept; ++c) {
    const Value* from = elements + c * kept;
    const auto index = static_cast<uint32_t>(metadata >> 4 * c & 15);
    uint32_t at[2];
    if (positions(two_wide, index, at)) {
      for (uint32_t k = 0; k < kept; ++k) out[c * chunk + at[k / run] * run + k % run] = from[k];
    } else if (std::any_of(from, from + kept, [](Value value) { return value != Value{}; })) {
      fault(kIllegalInstruction,
            "%s: the metadata of row %u (0x%llx) have index 0x%x for elements %u..%u of K, whose "
            "behaviour is undefined; legal for %s: %s",
            instruction, row, static_cast<unsigned long long>(metadata), index, c * chunk,
            c * chunk + chunk - 1, name_of(type),
            two_wide ? "0b0100, 0b1110" : "two different positions of 2 bits each");
    }
  }
}

template void expand_row<float>(const char*, ElementType, uint32_t, uint64_t, const float*,
                                uint32_t, float*, uint32_t);
template void expand_row<int32_t>(const char*, ElementType, uint32_t, uint64_t, const int32_t*,
                                  uint32_t, int32_t*, uint32_t);

}  // namespace vgpu::tensor
