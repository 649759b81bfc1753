// SPDX-License-Identifier: Apache-2.0
#include "tensor/smem_descriptor.hpp"

#include <array>
#include <cstring>

#include "fault.hpp"
#include "tensor/number_formats.hpp"

namespace vgpu::tensor {
namespace {

constexpr uint32_t kAddressMask = 0x3ffff;  // descriptors hold 18-bit byte addresses

uint32_t field(uint64_t bits, int low, int width) {
  return static_cast<uint32_t>(bits >> low & ((uint64_t{1} << width) - 1));
}

void require_zero(const char* instruction, uint64_t bits, int low, int width) {
  uint32_t value = field(bits, low, width);
  if (value != 0) {
    fault(kIllegalInstruction,
          "%s matrix descriptor 0x%016llx: reserved bits %d-%d are 0x%x, they must be 0",
          instruction, static_cast<unsigned long long>(bits), low, low + width - 1, value);
  }
}

/// The fields that both kinds of descriptor share.
SmemDescriptor decode_common(const char* instruction, uint64_t bits) {
  require_zero(instruction, bits, 14, 2);
  require_zero(instruction, bits, 30, 2);
  SmemDescriptor descriptor;
  descriptor.start_address = field(bits, 0, 14) << 4;
  descriptor.leading_byte_offset = field(bits, 16, 14) << 4;
  descriptor.stride_byte_offset = field(bits, 32, 14) << 4;
  descriptor.base_offset = field(bits, 49, 3);
  // NOTE: a base offset tells that the swizzle pattern does not start at a multiple of its period.
  // What the hardware then does is not proven here, so it is refused.
  if (descriptor.base_offset != 0) {
    fault(kNotSupported,
          "%s matrix descriptor 0x%016llx: base offset (bits 49-51) %u is not supported, only 0: "
          "align the swizzle pattern to 1024 (128B), 512 (64B) or 256 (32B) bytes",
          instruction, static_cast<unsigned long long>(bits), descriptor.base_offset);
  }
  return descriptor;
}

}  // namespace

const char* name_of(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return "none";
    case Swizzle::b32:
      return "32B";
    case Swizzle::b64:
      return "64B";
    case Swizzle::b128:
      return "128B";
    case Swizzle::b128_atom32:
      return "128B with 32B atoms";
  }
  return "?";
}

uint32_t span_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return 16;
    case Swizzle::b32:
      return 32;
    case Swizzle::b64:
      return 64;
    case Swizzle::b128:
    case Swizzle::b128_atom32:
      return 128;
  }
  return 16;
}

uint32_t swizzle_address(Swizzle swizzle, uint32_t address) {
  switch (swizzle) {
    case Swizzle::none:
      return address;
    case Swizzle::b32:
      return address ^ (address >> 7 & 1) << 4;
    case Swizzle::b64:
      return address ^ (address >> 7 & 3) << 4;
    case Swizzle::b128:
      return address ^ (address >> 7 & 7) << 4;
    case Swizzle::b128_atom32:
      return address ^ (address >> 7 & 3) << 5;
  }
  return address;
}

SmemDescriptor decode_wgmma_descriptor(uint64_t bits) {
  SmemDescriptor descriptor = decode_common("wgmma", bits);
  require_zero("wgmma", bits, 46, 3);
  require_zero("wgmma", bits, 52, 10);
  constexpr std::array<Swizzle, 4> kModes = {Swizzle::none, Swizzle::b128, Swizzle::b64,
                                             Swizzle::b32};
  descriptor.swizzle = kModes[field(bits, 62, 2)];
  return descriptor;
}

SmemDescriptor decode_tcgen05_descriptor(uint64_t bits) {
  SmemDescriptor descriptor = decode_common("tcgen05", bits);
  auto raw = static_cast<unsigned long long>(bits);
  if (field(bits, 46, 3) != 1) {
    fault(kIllegalInstruction,
          "tcgen05 matrix descriptor 0x%016llx: bits 46-48 are 0x%x, they must be 0b001 (a wgmma "
          "descriptor?)",
          raw, field(bits, 46, 3));
  }
  if (field(bits, 52, 1) != 0) {
    fault(kIllegalInstruction,
          "tcgen05 matrix descriptor 0x%016llx: bit 52 (absolute leading-dimension address) exists "
          "on sm_103a only; use 0 (relative byte offset)",
          raw);
  }
  require_zero("tcgen05", bits, 53, 8);
  switch (field(bits, 61, 3)) {
    case 0:
      descriptor.swizzle = Swizzle::none;
      break;
    case 1:
      descriptor.swizzle = Swizzle::b128_atom32;
      break;
    case 2:
      descriptor.swizzle = Swizzle::b128;
      break;
    case 4:
      descriptor.swizzle = Swizzle::b64;
      break;
    case 6:
      descriptor.swizzle = Swizzle::b32;
      break;
    default:
      fault(
          kIllegalInstruction,
          "tcgen05 matrix descriptor 0x%016llx: swizzle mode (bits 61-63) %u is invalid; legal: 0 "
          "(none), 1 (128B with 32B atoms), 2 (128B), 4 (64B), 6 (32B)",
          raw, field(bits, 61, 3));
  }
  return descriptor;
}

std::string describe(const SmemDescriptor& descriptor) {
  return format("start 0x%x, LBO %u, SBO %u, swizzle %s", descriptor.start_address,
                descriptor.leading_byte_offset, descriptor.stride_byte_offset,
                name_of(descriptor.swizzle));
}

namespace {

/// What k and mn each add to the address of an element, before the swizzle.
uint32_t k_offset(const SmemDescriptor& descriptor, Major major, uint32_t k,
                  uint32_t element_bytes) {
  const uint32_t lbo = descriptor.leading_byte_offset, sbo = descriptor.stride_byte_offset;
  const bool plain = descriptor.swizzle == Swizzle::none;
  if (major == Major::k) {
    const uint32_t k_bytes = k * element_bytes;
    return plain ? k_bytes / 16 * lbo + k_bytes % 16 : k_bytes;
  }
  if (plain) return k % 8 * 16 + k / 8 * lbo;
  const uint32_t rows = descriptor.swizzle == Swizzle::b128_atom32 ? 4 : 8;
  return k % rows * span_bytes(descriptor.swizzle) + k / rows * sbo;
}
uint32_t mn_offset(const SmemDescriptor& descriptor, Major major, uint32_t mn,
                   uint32_t element_bytes) {
  const uint32_t lbo = descriptor.leading_byte_offset, sbo = descriptor.stride_byte_offset;
  const uint32_t span = span_bytes(descriptor.swizzle);
  if (major == Major::k) return mn % 8 * span + mn / 8 * sbo;
  const uint32_t mn_bytes = mn * element_bytes;
  if (descriptor.swizzle == Swizzle::none) return mn_bytes % 16 + mn_bytes / 16 * sbo;
  return mn_bytes % span + mn_bytes / span * lbo;
}

}  // namespace

uint32_t element_address(const SmemDescriptor& descriptor, Major major, uint32_t mn, uint32_t k,
                         uint32_t element_bytes) {
  const uint32_t offset = mn_offset(descriptor, major, mn, element_bytes) +
                          k_offset(descriptor, major, k, element_bytes);
  return swizzle_address(descriptor.swizzle, (descriptor.start_address + offset) & kAddressMask);
}

const char* name_of(ElementType type) {
  switch (type) {
    case ElementType::f16:
      return "f16";
    case ElementType::bf16:
      return "bf16";
    case ElementType::tf32:
      return "tf32";
    case ElementType::e4m3:
      return "e4m3";
    case ElementType::e5m2:
      return "e5m2";
    case ElementType::e2m3:
      return "e2m3";
    case ElementType::e3m2:
      return "e3m2";
    case ElementType::e2m1:
      return "e2m1";
    case ElementType::s8:
      return "s8";
    case ElementType::u8:
      return "u8";
  }
  return "?";
}

uint32_t container_bytes(ElementType type) {
  switch (type) {
    case ElementType::tf32:
      return 4;
    case ElementType::f16:
    case ElementType::bf16:
      return 2;
    default:
      return 1;
  }
}

bool is_integer(ElementType type) {
  return type == ElementType::s8 || type == ElementType::u8;
}

namespace {

template <typename Word>
Word load(const uint8_t* bytes, uint32_t index) {
  Word word;
  std::memcpy(&word, bytes + index * sizeof(Word), sizeof(Word));
  return word;
}

/// Widens the elements of one 16-byte chunk; returns how many there are.
uint32_t widen_chunk(ElementType type, const uint8_t* chunk, float* values) {
  switch (type) {
    case ElementType::f16:
      for (uint32_t i = 0; i < 8; ++i) values[i] = f16_to_f32(load<uint16_t>(chunk, i));
      return 8;
    case ElementType::bf16:
      for (uint32_t i = 0; i < 8; ++i) values[i] = bf16_to_f32(load<uint16_t>(chunk, i));
      return 8;
    case ElementType::tf32:
      for (uint32_t i = 0; i < 4; ++i) values[i] = tf32_operand(load<uint32_t>(chunk, i));
      return 4;
    case ElementType::e4m3:
      for (uint32_t i = 0; i < 16; ++i) values[i] = e4m3_to_f32(chunk[i]);
      return 16;
    case ElementType::e5m2:
      for (uint32_t i = 0; i < 16; ++i) values[i] = e5m2_to_f32(chunk[i]);
      return 16;
    case ElementType::e2m3:
    case ElementType::e3m2: {
      // 16 six-bit values in the low 12 bytes, lowest bits first.
      const FloatFormat& format = type == ElementType::e2m3 ? kE2m3 : kE3m2;
      for (uint32_t i = 0; i < 16; ++i) {
        uint32_t bit = 6 * i;
        uint32_t word = chunk[bit / 8] | uint32_t{chunk[bit / 8 + 1]} << 8;
        values[i] = decode(format, word >> bit % 8 & 0x3f);
      }
      return 16;
    }
    case ElementType::e2m1:
      // 16 four-bit values in the low 8 bytes.
      for (uint32_t i = 0; i < 16; ++i) {
        values[i] = decode(kE2m1, chunk[i / 2] >> (i % 2 * 4) & 0xf);
      }
      return 16;
    case ElementType::s8:
    case ElementType::u8:
      break;
  }
  fault(kInvalidPtx, "%s elements are not floating point", name_of(type));
}

uint32_t widen_chunk(ElementType type, const uint8_t* chunk, int32_t* values) {
  for (uint32_t i = 0; i < 16; ++i) {
    values[i] = type == ElementType::s8 ? static_cast<int8_t>(chunk[i]) : chunk[i];
  }
  return 16;
}

}  // namespace

namespace {

/// How an operand divides into 16-byte chunks: along k in K-major matrices, along mn in MN-major
/// ones.
struct ChunkWalk {
  explicit ChunkWalk(const SmemOperand& operand)
      : k_major(operand.major == Major::k),
        bytes(container_bytes(operand.type)),
        per_chunk(16 / bytes),
        k_total(operand.k_bytes / bytes),
        mn_step(k_major ? 1 : per_chunk),
        k_step(k_major ? per_chunk : 1) {}

  bool k_major;
  uint32_t bytes, per_chunk, k_total, mn_step, k_step;
};

}  // namespace

constexpr uint32_t kMostK = 64;  // elements of a byte

void find_chunks(const SmemOperand& operand, const SharedView& shared, OperandChunks& chunks) {
  const ChunkWalk walk(operand);
  if (walk.k_major && operand.descriptor.swizzle == Swizzle::b32 && operand.k_bytes > 32) {
    fault(kIllegalInstruction,
          "matrix operand with 64 bytes of K (sparse products' B) in a K-major layout with swizzle "
          "32B, whose rows are 32 bytes (%s); legal: no swizzle, 64B, 128B",
          describe(operand.descriptor).c_str());
  }
  const SmemDescriptor descriptor = operand.descriptor;
  uint32_t k_offsets[kMostK];
  for (uint32_t k = 0; k < walk.k_total; k += walk.k_step) {
    k_offsets[k] = k_offset(descriptor, operand.major, k, walk.bytes);
  }
  chunks.count = 0;
  for (uint32_t mn = 0; mn < operand.mn; mn += walk.mn_step) {
    const uint32_t row = descriptor.start_address +
                         mn_offset(descriptor, operand.major, operand.first_mn + mn, walk.bytes);
    for (uint32_t k = 0; k < walk.k_total; k += walk.k_step) {
      const uint32_t address =
          swizzle_address(descriptor.swizzle, (row + k_offsets[k]) & kAddressMask);
      if (address < shared.first || address + 16 > shared.end) {
        fault(
            kIllegalAddress,
            "matrix operand reaches shared address 0x%x, outside the CTA's 0x%x..0x%x (element mn "
            "%u, k %u of a %s-major %s matrix: %s)",
            address, shared.first, shared.end, operand.first_mn + mn, k, walk.k_major ? "K" : "MN",
            name_of(operand.type), describe(operand.descriptor).c_str());
      }
      chunks.addresses[chunks.count++] = address;
    }
  }
}

template <typename Value>
void read_operand(const SmemOperand& operand, const SharedView& shared, uint32_t cta,
                  AccessVisitor* visitor, Value* panel, uint32_t mn_stride, uint32_t k_stride) {
  OperandChunks chunks;
  find_chunks(operand, shared, chunks);
  if (visitor) visitor->shared_chunks(cta, chunks.span());
  const ChunkWalk walk(operand);
  const uint32_t value_stride = walk.k_major ? k_stride : mn_stride;
  const uint32_t* address = chunks.addresses.data();
  for (uint32_t mn = 0; mn < operand.mn; mn += walk.mn_step) {
    for (uint32_t k = 0; k < walk.k_total; k += walk.k_step) {
      Value values[16];
      widen_chunk(operand.type, shared.data + *address++, values);
      const uint32_t count =
          walk.k_major ? walk.per_chunk : std::min(walk.per_chunk, operand.mn - mn);
      Value* out = panel + mn * mn_stride + k * k_stride;
      for (uint32_t i = 0; i < count; ++i) {
        out[i * value_stride] = operand.negate ? -values[i] : values[i];
      }
    }
  }
}

template void read_operand<float>(const SmemOperand&, const SharedView&, uint32_t, AccessVisitor*,
                                  float*, uint32_t, uint32_t);
template void read_operand<int32_t>(const SmemOperand&, const SharedView&, uint32_t, AccessVisitor*,
                                    int32_t*, uint32_t, uint32_t);

}  // namespace vgpu::tensor
