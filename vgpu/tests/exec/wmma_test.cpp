// SPDX-License-Identifier: Apache-2.0
// wmma.load, mma and store of small integers against the host's products: every shape, type and
// layout that PTX has, in global and shared memory.
#include <bit>
#include <random>

#include "exec/harness.hpp"
#include "tensor/number_formats.hpp"

namespace vgpu::test {
namespace {

struct Types {
  const char *operand, *from, *to;
};
struct Shape {
  const char* name;
  uint32_t m, n, k;
  std::vector<Types> types;
};

const std::vector<Types> kSixteen = {
    {"f16", "f32", "f32"},  {"f16", "f16", "f16"}, {"f16", "f32", "f16"}, {"f16", "f16", "f32"},
    {"bf16", "f32", "f32"}, {"s8", "s32", "s32"},  {"u8", "s32", "s32"}};
const std::vector<Shape> kShapes = {
    {"m16n16k16", 16, 16, 16, kSixteen},
    {"m8n32k16", 8, 32, 16, kSixteen},
    {"m32n8k16", 32, 8, 16, kSixteen},
    {"m16n16k8", 16, 16, 8, {{"tf32", "f32", "f32"}}},
    {"m8n8k4", 8, 8, 4, {{"f64", "f64", "f64"}}},
    {"m8n8k32", 8, 8, 32, {{"s4", "s32", "s32"}, {"u4", "s32", "s32"}}},
    {"m8n8k128", 8, 8, 128, {{"b1", "s32", "s32"}}}};

uint32_t bits_of(std::string_view type) {
  if (type == "b1") return 1;
  return type.ends_with("64")   ? 64
         : type.ends_with("32") ? 32
         : type.ends_with("16") ? 16
         : type.ends_with("8")  ? 8
                                : 4;
}

uint64_t encoded(std::string_view type, int value) {
  if (type == "f16") return tensor::encode(tensor::kF16, value);
  if (type == "bf16") return tensor::encode(tensor::kBf16, value);
  if (type == "tf32" || type == "f32") return std::bit_cast<uint32_t>(static_cast<float>(value));
  if (type == "f64") return std::bit_cast<uint64_t>(static_cast<double>(value));
  const uint32_t bits = bits_of(type);
  return bits == 64 ? static_cast<uint64_t>(value)
                    : static_cast<uint64_t>(value) & ((uint64_t{1} << bits) - 1);
}

/// A matrix of small integers, stored by rows or columns that are `stride` elements apart.
struct Stored {
  uint32_t rows, columns, stride;
  bool by_rows;
  std::string type;
  std::vector<int> values;
  std::vector<uint8_t> bytes;

  template <typename Random>
  Stored(uint32_t rows_, uint32_t columns_, bool row_major, const std::string& name, Random& random)
      : rows(rows_), columns(columns_), by_rows(row_major), type(name), values(rows_ * columns_) {
    // Wider than the matrix by 32 bytes, so that wrong strides are seen.
    stride = (by_rows ? columns : rows) + 32 * 8 / bits_of(type);
    bytes.assign(uint64_t{stride} * (by_rows ? rows : columns) * bits_of(type) / 8, 0xee);
    for (uint32_t i = 0; i < values.size(); ++i) {
      const int low = type == "u8" || type == "u4" || type == "b1" ? 0 : -4;
      values[i] =
          type == "b1" ? static_cast<int>(random() % 2) : low + static_cast<int>(random() % 8);
      put(i / columns, i % columns, encoded(type, values[i]));
    }
  }
  uint64_t bit_at(uint32_t row, uint32_t column) const {
    return (by_rows ? uint64_t{row} * stride + column : uint64_t{column} * stride + row) *
           bits_of(type);
  }
  void put(uint32_t row, uint32_t column, uint64_t bits) {
    const uint64_t at = bit_at(row, column);
    for (uint32_t i = 0; i < bits_of(type); ++i) {
      uint8_t& byte = bytes[(at + i) / 8];
      byte = static_cast<uint8_t>((byte & ~(1u << (at + i) % 8)) | (bits >> i & 1) << (at + i) % 8);
    }
  }
};

std::string registers(const char* name, size_t count) {
  std::string text = "{";
  for (size_t i = 0; i < count; ++i) {
    text += (i ? ", " : "") + std::string(name) + std::to_string(i);
  }
  return text + "}";
}

/// "Matrix Fragments for WMMA", the tables' counts.
size_t operand_registers(const Shape& s, const std::string& type, uint32_t side) {
  if (type == "f16") return 8;
  if (type == "f64") return 1;
  return size_t{side} * s.k * bits_of(type) / 32 / 32;
}
size_t sum_registers(const Shape& s, const std::string& type) {
  if (type == "f64") return 2;
  return size_t{s.m} * s.n * bits_of(type) / 32 / 32;
}

void check(const Shape& s, const Types& t, bool a_rows, bool b_rows, bool c_rows, bool bit_and) {
  std::mt19937 random(s.m + s.k + a_rows + 2 * b_rows + 4 * c_rows);
  Stored a(s.m, s.k, a_rows, t.operand, random), b(s.k, s.n, b_rows, t.operand, random);
  Stored c(s.m, s.n, c_rows, t.from, random), d(s.m, s.n, !c_rows, t.to, random);
  Buffers buffers;
  const uint64_t pa = buffers.add(a.bytes), pb = buffers.add(b.bytes), pc = buffers.add(c.bytes),
                 pd = buffers.add(d.bytes);
  const std::string word = std::string(t.operand) == "f64" ? "b64" : "b32";
  const std::string ra = registers("%a", operand_registers(s, t.operand, s.m)),
                    rb = registers("%b", operand_registers(s, t.operand, s.n)),
                    rc = registers("%c", sum_registers(s, t.from)),
                    rd = registers("%d", sum_registers(s, t.to));
  auto layout = [](bool rows) { return std::string(rows ? "row" : "col"); };
  const std::string shape = s.name, types = std::string(t.operand) == "f16"
                                                ? "." + std::string(t.to) + "." + t.from
                                                : "." + std::string(t.to) + "." + t.operand + "." +
                                                      t.operand + "." + t.from;
  const bool one_bit = std::string(t.operand) == "b1";
  const std::string body = "  .reg ." + word +
                           " %a<9>, %b<9>, %c<9>, %d<9>;\n  .reg .b64 %p<5>;\n" + R"(
  ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [c]; ld.param.u64 %p3, [d];
  wmma.load.a.sync.aligned.)" +
                           layout(a_rows) + "." + shape + ".global." + t.operand + " " + ra +
                           ", [%p0], " + std::to_string(a.stride) + R"(;
  wmma.load.b.sync.aligned.)" +
                           shape + "." + layout(b_rows) + "." + t.operand + " " + rb + ", [%p1], " +
                           std::to_string(b.stride) + R"(;
  wmma.load.c.sync.aligned.)" +
                           layout(c_rows) + "." + shape + ".global." + t.from + " " + rc +
                           ", [%p2], " + std::to_string(c.stride) + R"(;
  wmma.mma.)" + (one_bit ? bit_and ? "and.popc." : "xor.popc." : "") +
                           "sync.aligned." + layout(a_rows) + "." + layout(b_rows) + "." + shape +
                           types + " " + rd + ", " + ra + ", " + rb + ", " + rc + R"(;
  wmma.store.d.sync.aligned.)" +
                           layout(!c_rows) + "." + shape + ".global." + t.to + " [%p3], " + rd +
                           ", " + std::to_string(d.stride) + ";\n  ret;";
  SCOPED_TRACE(body);
  auto result =
      run_module(kernel_text(".param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d", body),
                 Params() << pa << pb << pc << pd, buffers);
  ASSERT_EQ(result.cuda_error, 0) << result.report;
  for (uint32_t row = 0; row < s.m; ++row) {
    for (uint32_t column = 0; column < s.n; ++column) {
      int sum = c.values[row * s.n + column];
      for (uint32_t k = 0; k < s.k; ++k) {
        const int left = a.values[row * s.k + k], right = b.values[k * s.n + column];
        sum += one_bit ? (bit_and ? left & right : left ^ right) : left * right;
      }
      d.put(row, column, encoded(t.to, sum));
    }
  }
  // Whole: the gaps between rows have not been touched.
  EXPECT_EQ(buffers.read<uint8_t>(pd, d.bytes.size()), d.bytes);
}

TEST(Wmma, EveryShapeTypeAndLayout) {
  for (const Shape& s : kShapes) {
    for (const Types& t : s.types) {
      const bool narrow = bits_of(t.operand) < 8;
      for (int layouts = 0; layouts < 8; ++layouts) {
        const bool a_rows = layouts & 1, b_rows = layouts & 2;
        if (narrow && (!a_rows || b_rows)) continue;
        check(s, t, a_rows, b_rows, layouts & 4, layouts & 4);
        if (HasFailure()) return;
      }
    }
  }
}

std::string report_of(const std::string& body) {
  Buffers buffers;
  const uint64_t out = buffers.add(4096);
  auto text = kernel_text(".param .u64 out", R"(
  .reg .b32 %a<9>, %lane; .reg .b64 %p<4>;
  .shared .align 32 .b8 tile[1024];
  ld.param.u64 %p0, [out];
  mov.u32 %lane, %tid.x;
  cvt.u64.u32 %p1, %lane;
  )" + body + "\nret;");
  return run_module(text, Params() << out, buffers).report;
}

TEST(Wmma, ReportsMisuse) {
  const std::string f16 = " {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}, ";
  EXPECT_EQ(report_of("wmma.load.a.sync.aligned.row.m16n16k16.global.f16" + f16 + "[%p0], 16;"),
            "");
  auto names = [&](const std::string& body, const char* part) {
    EXPECT_NE(report_of(body).find(part), std::string::npos) << report_of(body);
  };
  names("wmma.load.a.sync.aligned.row.m16n16k16.global.f16" + f16 + "[%p0+16], 16;",
        "must be a multiple of 32 bytes");
  names("wmma.load.a.sync.aligned.row.m16n16k16.global.f16" + f16 + "[%p0], 20;", "of 16 bytes");
  names("wmma.load.a.sync.aligned.row.m16n16k16.global.f16" + f16 + "[%p0], 8;",
        "less than the 16 elements of a row");
  names(
      "add.s64 %p0, %p0, %p1;\nwmma.load.a.sync.aligned.row.m16n16k16.global.f16" + f16 + "[%p0];",
      "they must be the same");
  names("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16" + f16 + "[tile+512], 64;",
        "out of bounds");
}

}  // namespace
}  // namespace vgpu::test
