// SPDX-License-Identifier: Apache-2.0
#include "tma/tensor_map.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace vgpu::tma {
namespace {

constexpr uint32_t kMagic = 0x544d4756;  // "VGMT"

// The 128 bytes of a CUtensorMap. Only this library reads them, so the layout is our own, but for
// bit 85, which programs clear (bit 5 of `flags`).
struct Packed {
  uint32_t magic;
  uint8_t type, rank, interleave, swizzle, l2_promotion, fill, flags, replaced;
  uint8_t element_strides[TensorMap::kMaxRank];
  uint8_t padding[7];
  uint64_t address;
  uint32_t dims_minus_one[TensorMap::kMaxRank];  // 2^32 is legal, 0 is not
  uint16_t box[TensorMap::kMaxRank];
  int16_t lower_corner[3];
  int16_t upper_corner[3];
  uint16_t channels_per_pixel, pixels_per_column;
  uint16_t padding2;
  uint64_t strides[TensorMap::kMaxRank - 1];
};
static_assert(sizeof(Packed) <= 128 && offsetof(Packed, flags) == 85 / 8);
constexpr uint8_t kIm2col = 1, kProbes128k = 1 << 85 % 8;

std::string field(const char* name, int index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

std::string got(const std::string& what, uint64_t value, const std::string& legal) {
  return what + " is " + std::to_string(value) + ": " + legal;
}

bool is_float(DataType type) {
  switch (type) {
    case DataType::float16:
    case DataType::float32:
    case DataType::float64:
    case DataType::bfloat16:
    case DataType::float32_ftz:
    case DataType::tfloat32:
    case DataType::tfloat32_ftz:
      return true;
    default:
      return false;
  }
}

std::string validate_common(const TensorMap& map) {
  const auto type = static_cast<unsigned>(map.type);
  if (type > static_cast<unsigned>(DataType::u6x16_align16)) {
    return got("tensorDataType", type, "it must be one of CUtensorMapDataType, 0 to 15");
  }
  const uint32_t min_rank = map.im2col ? 3 : 1;
  if (map.rank < min_rank || map.rank > TensorMap::kMaxRank) {
    return got("tensorRank", map.rank, "it must be " + std::to_string(min_rank) + " to 5");
  }
  if (map.interleave != Interleave::none) {
    return got("interleave", static_cast<unsigned>(map.interleave),
               "the virtual GPU models CU_TENSOR_MAP_INTERLEAVE_NONE only");
  }
  if (static_cast<unsigned>(map.swizzle) > static_cast<unsigned>(Swizzle::b128_atom64)) {
    return got("swizzle", static_cast<unsigned>(map.swizzle), "it must be one of 0 to 6");
  }
  if (map.l2_promotion > 3) return got("l2Promotion", map.l2_promotion, "it must be 0 to 3");
  if (static_cast<unsigned>(map.fill) > 1) {
    return got("oobFill", static_cast<unsigned>(map.fill), "it must be 0 (zero) or 1 (NaN)");
  }
  if (map.fill == OobFill::nan_request_zero_fma && !is_float(map.type)) {
    return std::string("oobFill NAN_REQUEST_ZERO_FMA needs a floating-point type, not ") +
           to_string(map.type) + "; use CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE";
  }
  if (map.address % 16 != 0) {
    return got("globalAddress modulo 16", map.address % 16, "it must be 0 (16-byte aligned)");
  }
  for (uint32_t i = 0; i < map.rank; ++i) {
    if (map.dims[i] == 0 || map.dims[i] > 1ull << 32) {
      return got(field("globalDim", i), map.dims[i], "it must be 1 to 4294967296");
    }
    // NOTE: dimension 0 too, although TMA then traverses it element by element (measured).
    if (map.element_strides[i] < 1 || map.element_strides[i] > 8) {
      return got(field("elementStrides", i), map.element_strides[i], "it must be 1 to 8");
    }
  }
  for (uint32_t i = 1; i < map.rank; ++i) {
    const std::string name = field("globalStrides", i - 1);
    if (map.strides[i] % 16 != 0) {
      return got(name, map.strides[i],
                 "it must be a multiple of 16 bytes; the next one is " +
                     std::to_string((map.strides[i] + 15) / 16 * 16));
    }
    if (map.strides[i] >= 1ull << 40) {
      return got(name, map.strides[i], "it must be less than 2^40 bytes");
    }
  }
  return {};
}

/// Rules of the sub-byte types beyond those of all types.
std::string validate_sub_byte(const TensorMap& map, int compute_capability) {
  const std::string type = std::string("tensorDataType ") + to_string(map.type);
  if (compute_capability < 100) {
    return type + " needs compute capability 10.0; the nearest type of 9.0 is UINT8";
  }
  if (map.im2col) {
    return type + " with an im2col map is not modelled by the virtual GPU; tiled maps are";
  }
  if (!has_gaps(map.type)) {
    if (map.dims[0] % 2 == 0) return {};
    return got("globalDim[0]", map.dims[0], "with " + type + " it must be a multiple of 2");
  }
  if (map.address % 32 != 0) {
    return got("globalAddress modulo 32", map.address % 32, "with " + type + " it must be 0");
  }
  if (map.dims[0] % 128 != 0) {
    return got("globalDim[0]", map.dims[0], "with " + type + " it must be a multiple of 128");
  }
  for (uint32_t i = 1; i < map.rank; ++i) {
    if (map.strides[i] % 32 != 0) {
      return got(field("globalStrides", static_cast<int>(i) - 1), map.strides[i],
                 "with " + type + " it must be a multiple of 32");
    }
  }
  if (map.box[0] != 128) return got("boxDim[0]", map.box[0], "with " + type + " it must be 128");
  const bool six = map.type == DataType::u6x16_align16;
  switch (map.swizzle) {
    case Swizzle::none:
    case Swizzle::b128:
    case Swizzle::b128_atom32:
      return {};
    case Swizzle::b128_atom64:
      if (six) return {};
      [[fallthrough]];
    default:
      return std::string("swizzle ") + to_string(map.swizzle) + " does not exist with " + type +
             "; legal: NONE, 128B, 128B_ATOM_32B" + (six ? ", 128B_ATOM_64B" : "");
  }
}

std::string validate_inner(const TensorMap& map, const char* name, uint32_t elements) {
  // With gaps 16 elements take 16 bytes of shared memory.
  const uint32_t bits = has_gaps(map.type) ? 8 : element_bits(map.type);
  const uint32_t bytes = elements * bits / 8;
  if (bytes % 16 != 0) {
    return got(
        std::string(name) + " in bytes", bytes,
        "it must be a multiple of 16; the next one is " + std::to_string((bytes + 15) / 16 * 16));
  }
  const uint32_t span = swizzle_span(map.swizzle);
  if (span != 0 && bytes > span) {
    return got(std::string(name) + " in bytes", bytes,
               std::string("swizzle ") + to_string(map.swizzle) + " allows at most " +
                   std::to_string(span) + ", so at most " + std::to_string(span * 8 / bits) +
                   " elements");
  }
  return {};
}

std::string validate_tiled(const TensorMap& map) {
  for (uint32_t i = 0; i < map.rank; ++i) {
    if (map.box[i] < 1 || map.box[i] > 256) {
      return got(field("boxDim", i), map.box[i], "it must be 1 to 256");
    }
  }
  return validate_inner(map, "boxDim[0]", map.box[0]);
}

std::string validate_im2col(const TensorMap& map) {
  // CUDA driver API: the offsets share 16 bits, so higher ranks have narrower ones.
  static constexpr int kLow[] = {-32768, -128, -16}, kHigh[] = {32767, 127, 15};
  const int low = kLow[map.rank - 3], high = kHigh[map.rank - 3];
  for (uint32_t i = 0; i + 2 < map.rank; ++i) {
    for (const bool upper : {false, true}) {
      const int corner = upper ? map.upper_corner[i] : map.lower_corner[i];
      if (corner < low || corner > high) {
        return field(upper ? "pixelBoxUpperCorner" : "pixelBoxLowerCorner", i) + " is " +
               std::to_string(corner) + ": with rank " + std::to_string(map.rank) + " it must be " +
               std::to_string(low) + " to " + std::to_string(high);
      }
    }
    const int64_t extent =
        static_cast<int64_t>(map.dims[1 + i]) + map.upper_corner[i] - map.lower_corner[i];
    if (extent <= 0) {
      return "the bounding box has " + std::to_string(extent) + " pixels along " +
             field("globalDim", static_cast<int>(1 + i)) + " (globalDim " +
             std::to_string(map.dims[1 + i]) + " + upper " + std::to_string(map.upper_corner[i]) +
             " - lower " + std::to_string(map.lower_corner[i]) + "): it must have at least 1";
    }
  }
  if (map.channels_per_pixel < 1 || map.channels_per_pixel > 256) {
    return got("channelsPerPixel", map.channels_per_pixel, "it must be 1 to 256");
  }
  if (map.pixels_per_column < 1 || map.pixels_per_column > 1024) {
    return got("pixelsPerColumn", map.pixels_per_column, "it must be 1 to 1024");
  }
  return validate_inner(map, "channelsPerPixel", map.channels_per_pixel);
}

}  // namespace

uint32_t element_bytes(DataType type) {
  switch (type) {
    case DataType::uint8:
      return 1;
    case DataType::uint16:
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    case DataType::uint32:
    case DataType::int32:
    case DataType::float32:
    case DataType::float32_ftz:
    case DataType::tfloat32:
    case DataType::tfloat32_ftz:
      return 4;
    case DataType::uint64:
    case DataType::int64:
    case DataType::float64:
      return 8;
    case DataType::u4x16_align8:
    case DataType::u4x16_align16:
    case DataType::u6x16_align16:
      return 0;
  }
  return 0;
}

uint32_t element_bits(DataType type) {
  switch (type) {
    case DataType::u4x16_align8:
    case DataType::u4x16_align16:
      return 4;
    case DataType::u6x16_align16:
      return 6;
    default:
      return 8 * element_bytes(type);
  }
}

const char* to_string(DataType type) {
  static constexpr const char* kNames[] = {
      "UINT8",        "UINT16",       "UINT32",        "INT32",        "UINT64",      "INT64",
      "FLOAT16",      "FLOAT32",      "FLOAT64",       "BFLOAT16",     "FLOAT32_FTZ", "TFLOAT32",
      "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B"};
  return static_cast<unsigned>(type) < 16 ? kNames[static_cast<unsigned>(type)] : "unknown";
}

const char* to_string(Swizzle swizzle) {
  static constexpr const char* kNames[] = {
      "NONE", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"};
  return static_cast<unsigned>(swizzle) < 7 ? kNames[static_cast<unsigned>(swizzle)] : "unknown";
}

uint32_t swizzle_span(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return 0;
    case Swizzle::b32:
      return 32;
    case Swizzle::b64:
      return 64;
    default:
      return 128;
  }
}

std::string validate(const TensorMap& map, int compute_capability) {
  if (std::string problem = validate_common(map); !problem.empty()) return problem;
  // NOTE: an H200's driver refuses the atom variants.
  if (compute_capability < 100 && map.swizzle > Swizzle::b128) {
    return std::string("swizzle ") + to_string(map.swizzle) +
           " needs compute capability 10.0; 9.0 has NONE, 32B, 64B and 128B";
  }
  if (map.swizzle == Swizzle::b128_atom32_flip8) {
    return std::string("swizzle ") + to_string(map.swizzle) +
           " is not modelled by the virtual GPU; 128B_ATOM_32B is";
  }
  if (element_bytes(map.type) == 0) {
    if (auto why = validate_sub_byte(map, compute_capability); !why.empty()) return why;
  }
  return map.im2col ? validate_im2col(map) : validate_tiled(map);
}

bool driver_probes_128k(const TensorMap& map) {
  uint64_t dense = map.strides[0], span = map.strides[0];
  bool is_dense = true;
  for (uint32_t i = 0; i < map.rank; ++i) {
    if (i > 0 && map.dims[i] > 1) is_dense = is_dense && map.strides[i] == dense;
    dense *= map.dims[i];
    span += (map.dims[i] - 1) * map.strides[i];
  }
  return !is_dense || span >= 128 << 10;
}

void encode(const TensorMap& map, void* opaque) {
  Packed packed{};
  packed.magic = kMagic;
  packed.type = static_cast<uint8_t>(map.type);
  packed.rank = static_cast<uint8_t>(map.rank);
  packed.interleave = static_cast<uint8_t>(map.interleave);
  packed.swizzle = static_cast<uint8_t>(map.swizzle);
  packed.l2_promotion = map.l2_promotion;
  packed.fill = static_cast<uint8_t>(map.fill);
  packed.flags =
      static_cast<uint8_t>((map.im2col ? kIm2col : 0) | (map.probes_128k ? kProbes128k : 0));
  packed.address = map.address;
  for (uint32_t i = 0; i < map.rank; ++i) {
    packed.dims_minus_one[i] = static_cast<uint32_t>(map.dims[i] - 1);
    packed.element_strides[i] = static_cast<uint8_t>(map.element_strides[i]);
    packed.box[i] = static_cast<uint16_t>(map.box[i]);
    if (i > 0) packed.strides[i - 1] = map.strides[i];
  }
  for (int i = 0; i < 3; ++i) {
    packed.lower_corner[i] = static_cast<int16_t>(map.lower_corner[i]);
    packed.upper_corner[i] = static_cast<int16_t>(map.upper_corner[i]);
  }
  packed.channels_per_pixel = static_cast<uint16_t>(map.channels_per_pixel);
  packed.pixels_per_column = static_cast<uint16_t>(map.pixels_per_column);
  std::memset(opaque, 0, 128);
  std::memcpy(opaque, &packed, sizeof packed);
}

bool decode(const void* opaque, TensorMap& map) {
  Packed packed;
  std::memcpy(&packed, opaque, sizeof packed);
  if (packed.magic != kMagic || packed.rank < 1 || packed.rank > TensorMap::kMaxRank) return false;
  map = TensorMap{};
  map.type = static_cast<DataType>(packed.type);
  map.rank = packed.rank;
  map.interleave = static_cast<Interleave>(packed.interleave);
  map.swizzle = static_cast<Swizzle>(packed.swizzle);
  map.l2_promotion = packed.l2_promotion;
  map.fill = static_cast<OobFill>(packed.fill);
  map.im2col = (packed.flags & kIm2col) != 0;
  map.probes_128k = (packed.flags & kProbes128k) != 0;
  map.address = packed.address;
  map.strides[0] = element_bytes(map.type);
  for (uint32_t i = 0; i < map.rank; ++i) {
    map.dims[i] = static_cast<uint64_t>(packed.dims_minus_one[i]) + 1;
    // NOTE: dimension 0 is traversed element by element whatever its stride says (measured).
    map.element_strides[i] = i == 0 ? 1 : packed.element_strides[i];
    map.box[i] = packed.box[i];
    if (i > 0) map.strides[i] = packed.strides[i - 1];
  }
  for (int i = 0; i < 3; ++i) {
    map.lower_corner[i] = packed.lower_corner[i];
    map.upper_corner[i] = packed.upper_corner[i];
  }
  map.channels_per_pixel = packed.channels_per_pixel;
  map.pixels_per_column = packed.pixels_per_column;
  return true;
}

namespace {

/// The element type of tensormap.replace's table ("new_val" of .elemtype), which has another order
/// than the driver's.
constexpr DataType kElementTypes[] = {
    DataType::uint8,        DataType::uint16,       DataType::uint32,
    DataType::int32,        DataType::uint64,       DataType::int64,
    DataType::float16,      DataType::float32,      DataType::float32_ftz,
    DataType::float64,      DataType::bfloat16,     DataType::tfloat32,
    DataType::tfloat32_ftz, DataType::u4x16_align8, DataType::u4x16_align16,
    DataType::u6x16_align16};

/// Whether the 128 bytes of a map are zeros.
bool is_zero(const void* opaque) {
  const auto* bytes = static_cast<const uint8_t*>(opaque);
  return std::all_of(bytes, bytes + 128, [](uint8_t byte) { return byte == 0; });
}

/// .swizzle_mode and .swizzle_atomicity together are the driver's swizzle.
std::string replace_swizzle(Packed& packed, bool atomicity, uint64_t value) {
  const auto now = static_cast<Swizzle>(packed.swizzle);
  if (!atomicity) {
    if (value > 3) return got("swizzle_mode", value, "the virtual GPU models 0 to 3");
    if (value != 3 || now < Swizzle::b128) packed.swizzle = static_cast<uint8_t>(value);
    return {};
  }
  if (value > 3) return got("swizzle_atomicity", value, "it must be 0 to 3");
  if (now >= Swizzle::b128) {
    packed.swizzle = static_cast<uint8_t>(static_cast<uint64_t>(Swizzle::b128) + value);
  } else if (value != 0) {
    return got("swizzle_atomicity", value, "it needs a swizzle_mode of 128 bytes");
  }
  return {};
}

}  // namespace

std::string replace(void* opaque, Field field, uint32_t ordinal, uint64_t value) {
  Packed packed;
  std::memcpy(&packed, opaque, sizeof packed);
  if (packed.magic != kMagic) {
    // NOTE: PTX speaks of maps that exist; Triton's kernels begin with 128 bytes of zeros and
    // replace every field.
    if (!is_zero(opaque)) {
      return "the 128 bytes are neither zeros nor a tensor map made by cuTensorMapEncode*";
    }
    packed = Packed{};
    packed.magic = kMagic;
    std::fill_n(packed.box, TensorMap::kMaxRank, uint16_t{1});
    std::fill_n(packed.element_strides, TensorMap::kMaxRank, uint8_t{1});
  }
  if ((packed.flags & kIm2col) != 0) return "the map is an im2col map; .tile needs a tiled one";
  const uint32_t ordinals =
      field == Field::global_stride ? TensorMap::kMaxRank - 1 : uint32_t{TensorMap::kMaxRank};
  if (ordinal >= ordinals) {
    return got("the ordinal", ordinal, "it must be 0 to " + std::to_string(ordinals - 1));
  }
  switch (field) {
    case Field::global_address:
      packed.address = value;
      break;
    case Field::rank:
      if (value >= TensorMap::kMaxRank) return got("rank", value, "it must be 0 to 4, for 1 to 5");
      packed.rank = static_cast<uint8_t>(value + 1);
      break;
    case Field::box_dim:
      if (value < 1 || value > 256) return got("box_dim", value, "it must be 1 to 256");
      packed.box[ordinal] = static_cast<uint16_t>(value);
      break;
    case Field::global_dim:
      if (value == 0) return got("global_dim", value, "it must be at least 1");
      packed.dims_minus_one[ordinal] = static_cast<uint32_t>(value - 1);
      break;
    case Field::global_stride:
      packed.strides[ordinal] = value;
      break;
    case Field::element_stride:
      if (value < 1 || value > 8) return got("element_stride", value, "it must be 1 to 8");
      packed.element_strides[ordinal] = static_cast<uint8_t>(value);
      break;
    case Field::elemtype:
      if (value > 15) return got("elemtype", value, "it must be 0 to 15");
      packed.type = static_cast<uint8_t>(kElementTypes[value]);
      break;
    case Field::interleave_layout:
      if (value > 2) return got("interleave_layout", value, "it must be 0 to 2");
      packed.interleave = static_cast<uint8_t>(value);
      break;
    case Field::swizzle_mode:
    case Field::swizzle_atomicity: {
      const std::string why = replace_swizzle(packed, field == Field::swizzle_atomicity, value);
      if (!why.empty()) return why;
      break;
    }
    case Field::fill_mode:
      if (value > 1) return got("fill_mode", value, "it must be 0 (zero) or 1 (NaN)");
      packed.fill = static_cast<uint8_t>(value);
      break;
  }
  packed.replaced = 1;
  std::memcpy(opaque, &packed, sizeof packed);
  return {};
}

bool was_replaced(const void* opaque) {
  Packed packed;
  std::memcpy(&packed, opaque, sizeof packed);
  return packed.replaced != 0;
}

std::string describe(const TensorMap& map) {
  const auto list = [&](const auto* values, uint32_t first, uint32_t count) {
    std::string text = "{";
    for (uint32_t i = first; i < first + count; ++i) {
      text += (i == first ? "" : ", ") + std::to_string(values[i]);
    }
    return text + "}";
  };
  std::string text = std::string(map.im2col ? "im2col" : "tiled") +
                     " tensor map: " + to_string(map.type) + " dims " + list(map.dims, 0, map.rank);
  if (map.rank > 1) text += " strides " + list(map.strides, 1, map.rank - 1);
  if (map.im2col) {
    text += " lower " + list(map.lower_corner, 0, map.rank - 2) + " upper " +
            list(map.upper_corner, 0, map.rank - 2) + " channels " +
            std::to_string(map.channels_per_pixel) + " pixels " +
            std::to_string(map.pixels_per_column);
  } else {
    text += " box " + list(map.box, 0, map.rank);
  }
  return text + " element strides " + list(map.element_strides, 0, map.rank) + " swizzle " +
         to_string(map.swizzle) + (map.fill == OobFill::zero ? " fill zero" : " fill NaN");
}

}  // namespace vgpu::tma
