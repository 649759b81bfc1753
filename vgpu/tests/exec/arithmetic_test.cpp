// SPDX-License-Identifier: Apache-2.0
// Every arithmetic opcode on 32 lanes of edge values against the host's arithmetic; also with part
// of the warp, and with one lane.
#include <bit>
#include <cfenv>
#include <climits>
#include <cmath>
#include <functional>

#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

const std::vector<uint32_t> kWords = {
    0,          1,          2,          3,          5,          7,          31,         32,
    33,         100,        255,        256,        0x7fff,     0x8000,     0xffff,     0x10000,
    0x12345678, 0x7ffffffe, 0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe, 0xffffffff, 0xdeadbeef,
    0xcafebabe, 0x00ff00ff, 0xff00ff00, 0x0f0f0f0f, 0x55555555, 0xaaaaaaaa, 0x40000000, 0xc0000000};

/// `op` on every pair (word, rotated word); `expect` gives the result. Runs with all lanes, with
/// odd lanes only and with one lane: inactive lanes keep their old value.
void check_words(const std::string& op, const std::function<uint32_t(uint32_t, uint32_t)>& expect,
                 uint32_t rotate = 5) {
  for (uint32_t mask : {0xffffffffu, 0xaaaaaaaau, 0x00010000u}) {
    std::string body = format(R"(
      .reg .pred %%p;
      .reg .b32 %%b, %%m;
      .reg .b32 %%index;
      mov.u32 %%out, 0x77777777;
      add.u32 %%index, %%lane, %u;
      and.b32 %%index, %%index, 31;
      shfl.sync.idx.b32 %%b, %%in, %%index, 31, -1;
      shr.u32 %%m, %u, %%lane;
      and.b32 %%m, %%m, 1;
      setp.eq.u32 %%p, %%m, 1;
      @%%p )",
                              rotate, mask) +
                       op + ";\n";
    auto out = map_lanes<uint32_t>("b32", "b32", body, kWords);
    for (uint32_t l = 0; l < 32; ++l) {
      uint32_t want = mask >> l & 1 ? expect(kWords[l], kWords[(l + rotate) % 32]) : 0x77777777u;
      EXPECT_EQ(out[l], want) << op << " of " << kWords[l] << " and " << kWords[(l + rotate) % 32]
                              << " lane " << l << " mask " << mask;
    }
  }
}

using U = uint32_t;
int32_t s(U x) {
  return static_cast<int32_t>(x);
}

struct WordCase {
  const char* op;
  std::function<U(U, U)> expect;
};

const WordCase kWordCases[] = {
    {"add.s32 %out, %in, %b", [](U a, U b) { return a + b; }},
    {"sub.u32 %out, %in, %b", [](U a, U b) { return a - b; }},
    {"add.sat.s32 %out, %in, %b",
     [](U a, U b) {
       int64_t r = int64_t{s(a)} + s(b);
       return static_cast<U>(r > INT_MAX ? INT_MAX : r < INT_MIN ? INT_MIN : r);
     }},
    {"mul.lo.s32 %out, %in, %b", [](U a, U b) { return a * b; }},
    {"mul.hi.u32 %out, %in, %b", [](U a, U b) { return static_cast<U>(uint64_t{a} * b >> 32); }},
    {"mul.hi.s32 %out, %in, %b",
     [](U a, U b) { return static_cast<U>(int64_t{s(a)} * s(b) >> 32); }},
    {"mad.lo.s32 %out, %in, %b, %in", [](U a, U b) { return a * b + a; }},
    {"mul24.lo.u32 %out, %in, %b", [](U a, U b) { return (a & 0xffffff) * (b & 0xffffff); }},
    {"div.u32 %out, %in, %b", [](U a, U b) { return b ? a / b : ~0u; }},
    {"rem.u32 %out, %in, %b", [](U a, U b) { return b ? a % b : ~0u; }},
    {"div.s32 %out, %in, %b",
     [](U a, U b) { return !b         ? ~0u
                           : b == ~0u ? 0 - a
                                      : static_cast<U>(s(a) / s(b)); }},
    {"rem.s32 %out, %in, %b",
     [](U a, U b) { return !b         ? ~0u
                           : b == ~0u ? 0
                                      : static_cast<U>(s(a) % s(b)); }},
    {"min.s32 %out, %in, %b", [](U a, U b) { return s(a) < s(b) ? a : b; }},
    {"max.u32 %out, %in, %b", [](U a, U b) { return a > b ? a : b; }},
    {"abs.s32 %out, %in", [](U a, U) { return s(a) < 0 ? 0 - a : a; }},
    {"neg.s32 %out, %in", [](U a, U) { return 0 - a; }},
    {"sad.u32 %out, %in, %b, 3", [](U a, U b) { return (a > b ? a - b : b - a) + 3; }},
    {"and.b32 %out, %in, %b", [](U a, U b) { return a & b; }},
    {"or.b32 %out, %in, %b", [](U a, U b) { return a | b; }},
    {"xor.b32 %out, %in, %b", [](U a, U b) { return a ^ b; }},
    {"not.b32 %out, %in", [](U a, U) { return ~a; }},
    {"cnot.b32 %out, %in", [](U a, U) { return U{a == 0}; }},
    {"shl.b32 %out, %in, %b", [](U a, U b) { return b > 31 ? 0 : a << b; }},
    {"shr.u32 %out, %in, %b", [](U a, U b) { return b > 31 ? 0 : a >> b; }},
    {"shr.s32 %out, %in, %b", [](U a, U b) { return static_cast<U>(s(a) >> (b > 31 ? 31 : b)); }},
    {"shf.l.wrap.b32 %out, %in, %b, 13", [](U a, U b) { return b << 13 | a >> 19; }},
    {"shf.r.clamp.b32 %out, %in, %b, 40", [](U, U b) { return b; }},
    {"bfe.u32 %out, %in, 4, 12", [](U a, U) { return a >> 4 & 0xfff; }},
    {"bfe.s32 %out, %in, 4, 12", [](U a, U) { return static_cast<U>(s(a << 16) >> 20); }},
    {"bfe.u32 %out, %in, %b, 8",
     [](U a, U b) { return (b & 255) > 31 ? 0 : a >> (b & 255) & 255; }},
    {"bfi.b32 %out, %in, %b, 8, 4", [](U a, U b) { return (b & ~0xf00u) | (a & 15) << 8; }},
    {"bfind.u32 %out, %in", [](U a, U) { return a ? 31u - U(std::countl_zero(a)) : ~0u; }},
    {"bfind.shiftamt.u32 %out, %in", [](U a, U) { return a ? U(std::countl_zero(a)) : ~0u; }},
    {"popc.b32 %out, %in", [](U a, U) { return U(std::popcount(a)); }},
    {"clz.b32 %out, %in", [](U a, U) { return U(std::countl_zero(a)); }},
    {"brev.b32 %out, %in",
     [](U a, U) {
       U r = 0;
       for (int k = 0; k < 32; ++k) r |= (a >> k & 1) << (31 - k);
       return r;
     }},
    {"prmt.b32 %out, %in, %b, 0x7531",
     [](U a, U b) {
       return (a >> 8 & 255) | (a >> 24 & 255) << 8 | (b >> 8 & 255) << 16 | (b >> 24) << 24;
     }},
    {"prmt.b32 %out, %in, %b, 0x8210",
     [](U a, U) { return (a & 0xffffff) | (a & 0x80 ? 0xff000000u : 0); }},
    {"lop3.b32 %out, %in, %b, 0x0f0f00ff, 0xe8",
     [](U a, U b) { return (a & b) | (a & 0x0f0f00ff) | (b & 0x0f0f00ff); }},
    {"dp4a.u32.u32 %out, %in, %b, 1",
     [](U a, U b) {
       U r = 1;
       for (int k = 0; k < 4; ++k) r += (a >> 8 * k & 255) * (b >> 8 * k & 255);
       return r;
     }},
    {"dp2a.lo.s32.s32 %out, %in, %b, 0",
     [](U a, U b) {
       return static_cast<U>(int16_t(a) * int8_t(b) + int16_t(a >> 16) * int8_t(b >> 8));
     }},
    {"bmsk.clamp.b32 %out, 4, 8", [](U, U) { return 0xff0u; }},
    {"szext.wrap.s32 %out, %in, 8", [](U a, U) { return static_cast<U>(s(a << 24) >> 24); }},
    {"add.u16x2 %out, %in, %b",
     [](U a, U b) { return ((a + b) & 0xffff) | ((a >> 16) + (b >> 16)) << 16; }},
    {"max.s16x2 %out, %in, %b",
     [](U a, U b) {
       auto m = [](U x, U y) { return U(uint16_t(std::max(int16_t(x), int16_t(y)))); };
       return m(a, b) | m(a >> 16, b >> 16) << 16;
     }},
    {"mov.b32 %out, %b", [](U, U b) { return b; }},
    {"min.relu.s32 %out, %in, %b",
     [](U a, U b) { return static_cast<U>(std::max(0, std::min(s(a), s(b)))); }},
};

TEST(Arithmetic, Words) {
  for (auto& c : kWordCases) check_words(c.op, c.expect);
}

TEST(Arithmetic, WideAndCarry) {
  std::string body = R"(
    .reg .b32 %lo, %hi, %x;
    .reg .b64 %w;
    mov.b64 {%lo, %hi}, %in;
    add.cc.u32 %lo, %lo, -1;
    addc.u32 %hi, %hi, 0;
    mul.wide.u32 %w, %lo, 7;
    cvt.u32.u64 %x, %w;
    mov.b64 %out, {%lo, %hi};)";
  std::vector<uint64_t> in = {0, 1, 0x100000000, 0xffffffffffffffff, 0x123456789abcdef0};
  auto out = map_lanes<uint64_t>("b64", "b64", body, in);
  for (size_t k = 0; k < in.size(); ++k) EXPECT_EQ(out[k], in[k] + 0xffffffffull) << k;
  auto high = map_lanes<uint64_t>("b64", "b64", "mul.hi.u64 %out, %in, 0x9e3779b97f4a7c15;", in);
  for (size_t k = 0; k < in.size(); ++k) {
    EXPECT_EQ(high[k], static_cast<uint64_t>(
                           static_cast<unsigned __int128>(in[k]) * 0x9e3779b97f4a7c15ull >> 64));
  }
  auto shifted = map_lanes<uint64_t>("b64", "b64", "shr.s64 %out, %in, 9;", in);
  for (size_t k = 0; k < in.size(); ++k) {
    EXPECT_EQ(shifted[k], static_cast<uint64_t>(static_cast<int64_t>(in[k]) >> 9));
  }
}

const std::vector<float> kFloats = {
    0.0f,    -0.0f, 1.0f,   -1.0f,   0.5f,     1.5f,      2.5f, -2.5f,    3.1415926f, 1e-40f,
    -1e-40f, 1e30f, -1e38f, 3.4e38f, INFINITY, -INFINITY, NAN,  65504.0f, 65520.0f,   1e-8f};

std::string bits(float x) {
  return format("%a (%08x)", x, std::bit_cast<uint32_t>(x));
}

void check_floats(const std::string& op, const std::function<float(float)>& expect) {
  auto out = map_lanes<float>("f32", "f32", op + ";", kFloats);
  for (size_t k = 0; k < kFloats.size(); ++k) {
    float want = expect(kFloats[k]);
    if (want != want) {
      EXPECT_EQ(std::bit_cast<uint32_t>(out[k]), 0x7fffffffu) << op << " of " << bits(kFloats[k]);
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(out[k]), std::bit_cast<uint32_t>(want))
          << op << " of " << bits(kFloats[k]) << ": " << bits(out[k]) << ", not " << bits(want);
    }
  }
}

float rounded(int mode, const std::function<float()>& f) {
  int saved = std::fegetround();
  std::fesetround(mode);
  volatile float r = f();
  std::fesetround(saved);
  return r;
}

TEST(Arithmetic, Floats) {
  const float third = 0.333333343f;
  check_floats("add.f32 %out, %in, 0f3EAAAAAB", [=](float a) { return a + third; });
  check_floats("sub.rn.f32 %out, %in, 0f3EAAAAAB", [=](float a) { return a - third; });
  check_floats("mul.f32 %out, %in, 0f3EAAAAAB", [=](float a) { return a * third; });
  check_floats("fma.rn.f32 %out, %in, %in, 0f3EAAAAAB",
               [=](float a) { return std::fma(a, a, third); });
  check_floats("fma.rn.sat.f32 %out, %in, %in, 0f3EAAAAAB", [=](float a) {
    float r = std::fma(a, a, third);
    return r != r ? 0.0f : std::min(1.0f, std::max(0.0f, r));
  });
  check_floats("div.rn.f32 %out, 0f3F800000, %in", [](float a) { return 1 / a; });
  check_floats("rcp.rn.f32 %out, %in", [](float a) { return 1 / a; });
  check_floats("sqrt.rn.f32 %out, %in", [](float a) { return std::sqrt(a); });
  check_floats("neg.f32 %out, %in", [](float a) { return -a; });
  check_floats("abs.f32 %out, %in", [](float a) { return std::fabs(a); });
  check_floats("max.f32 %out, %in, 0f00000000", [](float a) { return a > 0 ? a : 0.0f; });
  check_floats("max.NaN.f32 %out, %in, 0fBF800000", [](float a) {
    return a != a ? a : a > -1 ? a : -1.0f;
  });
  check_floats("min.f32 %out, %in, 0f80000000", [](float a) { return a < 0 ? a : -0.0f; });
  check_floats("add.ftz.f32 %out, %in, 0f00000000", [](float a) {
    if (a != 0 && std::fabs(a) < 1e-37f) return std::copysign(0.0f, a) + 0.0f;
    return a + 0.0f;
  });
  for (auto [name, mode] :
       {std::pair{"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}}) {
    check_floats(format("add.%s.f32 %%out, %%in, 0f3EAAAAAB", name), [=](float a) {
      return rounded(mode, [=] {
        volatile float x = a, y = third;
        return x + y;
      });
    });
    check_floats(format("fma.%s.f32 %%out, %%in, %%in, 0f3EAAAAAB", name), [=](float a) {
      return rounded(mode, [=] {
        volatile float x = a;
        return std::fma(x, x, third);
      });
    });
  }
}

TEST(Arithmetic, CopysignOfNanKeepsItsBits) {
  auto out = map_lanes<uint32_t>("b32", "b32", "copysign.f32 %out, 0fBF800000, %in;",
                                 std::vector<uint32_t>{0x7fc01234, 0xffc01234});
  EXPECT_EQ(out[0], 0xffc01234u);
  EXPECT_EQ(out[1], 0xffc01234u);
}

TEST(Arithmetic, FloatPairs) {
  std::string body = R"(
    .reg .b64 %k;
    .reg .b32 %one, %two;
    mov.b32 %one, 0f3F800000;
    mov.b32 %two, 0f40000000;
    mov.b64 %k, {%one, %two};
    fma.rn.f32x2 %out, %in, %k, %k;
    add.f32x2 %out, %out, %k;
    mul.f32x2 %out, %out, %k;)";
  std::vector<std::array<float, 2>> in;
  for (int k = 0; k < 32; ++k) in.push_back({k * 0.5f, k * -0.25f});
  auto out = map_lanes<std::array<float, 2>>("b64", "b64", body, in);
  for (int k = 0; k < 32; ++k) {
    EXPECT_EQ(out[k][0], (in[k][0] + 1 + 1) * 1);
    EXPECT_EQ(out[k][1], (in[k][1] * 2 + 2 + 2) * 2);
  }
}

TEST(Arithmetic, Halves) {
  // 1 + 2^-11 is a tie: to even. 1 + 2^-11 + 2^-20 is not; a sum rounded twice would lose that.
  std::string body = R"(
    .reg .b16 %a, %b, %c, %r;
    mov.b32 {%a, %b}, %in;
    mov.b16 %c, 0x3c00;
    fma.rn.f16 %r, %a, %b, %c;
    mov.b32 %out, {%r, %r};)";
  std::vector<uint32_t> in = {0x10003c00 /* 2^-11 * 1 */, 0x10013c00 /* a little more */,
                              0x7c003c00};
  auto out = map_lanes<uint32_t>("b32", "b32", body, in);
  EXPECT_EQ(out[0] & 0xffff, 0x3c00u);
  EXPECT_EQ(out[1] & 0xffff, 0x3c01u);
  EXPECT_EQ(out[2] & 0xffff, 0x7c00u);
  auto sums = map_lanes<uint32_t>("b32", "b32", "add.f16x2 %out, %in, %in;",
                                  std::vector<uint32_t>{0x3c004000, 0x7bff0001});
  EXPECT_EQ(sums[0], 0x40004400u);
  EXPECT_EQ(sums[1], 0x7c000002u);
  auto bf = map_lanes<uint32_t>("b32", "b32", "fma.rn.relu.bf16x2 %out, %in, %in, %in;",
                                std::vector<uint32_t>{0x3f80c000, 0xbf003f80});
  EXPECT_EQ(bf[0], 0x40004000u);  // 1 + 1 = 2; 4 - 2 = 2
  EXPECT_EQ(bf[1], 0x00004000u);  // 0.25 - 0.5 < 0
}

TEST(Arithmetic, Comparisons) {
  struct Case {
    const char* op;
    std::function<bool(float, float)> expect;
  };
  const Case cases[] = {
      {"eq", [](float a, float b) { return a == b; }},
      {"ne", [](float a, float b) { return a < b || a > b; }},
      {"lt", [](float a, float b) { return a < b; }},
      {"ge", [](float a, float b) { return a >= b; }},
      {"equ", [](float a, float b) { return !(a < b) && !(a > b); }},
      {"neu", [](float a, float b) { return a != b; }},
      {"ltu", [](float a, float b) { return !(a >= b); }},
      {"gtu", [](float a, float b) { return !(a <= b); }},
      {"leu", [](float a, float b) { return !(a > b); }},
      {"geu", [](float a, float b) { return !(a < b); }},
      {"num", [](float a, float b) { return a == a && b == b; }},
      {"nan", [](float a, float b) { return a != a || b != b; }},
  };
  for (auto& c : cases) {
    // Against 1.0; combined with a predicate, and its complement.
    std::string body = format(R"(
      .reg .pred %%p, %%q, %%t;
      .reg .b32 %%x, %%y;
      setp.ne.u32 %%t, %%lane, 3;
      setp.%s.and.f32 %%p|%%q, %%in, 0f3F800000, %%t;
      selp.b32 %%x, 1, 0, %%p;
      selp.b32 %%y, 2, 0, %%q;
      or.b32 %%out, %%x, %%y;)",
                              c.op);
    auto out = map_lanes<uint32_t>("f32", "b32", body, kFloats);
    for (uint32_t l = 0; l < kFloats.size(); ++l) {
      bool r = c.expect(kFloats[l], 1.0f), t = l != 3;
      EXPECT_EQ(out[l], uint32_t{r && t} | uint32_t{!r && t} << 1) << c.op << " " << kFloats[l];
    }
  }
  auto set = map_lanes<uint32_t>("b32", "b32", "set.gt.u32.s32 %out, %in, -5;", kWords);
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(set[l], s(kWords[l]) > -5 ? ~0u : 0u);
}

TEST(Arithmetic, Conversions) {
  auto same = [](const std::vector<float>& in, const std::string& op,
                 const std::function<uint32_t(float)>& expect) {
    auto out = map_lanes<uint32_t>("f32", "b32", op + ";", in);
    for (size_t k = 0; k < in.size(); ++k) EXPECT_EQ(out[k], expect(in[k])) << op << " " << in[k];
  };
  auto to_int = [](double x, double lo, double hi) {
    return x != x ? 0.0 : x < lo ? lo : x > hi ? hi : x;
  };
  same(kFloats, "cvt.rzi.s32.f32 %out, %in", [&](float a) {
    return static_cast<uint32_t>(static_cast<int32_t>(to_int(std::trunc(a), INT_MIN, INT_MAX)));
  });
  same(kFloats, "cvt.rni.u32.f32 %out, %in",
       [&](float a) { return static_cast<uint32_t>(to_int(std::nearbyint(a), 0, 4294967295.0)); });
  same(kFloats, "cvt.rmi.s32.f32 %out, %in", [&](float a) {
    return static_cast<uint32_t>(static_cast<int32_t>(to_int(std::floor(a), INT_MIN, INT_MAX)));
  });
  same(kFloats, "cvt.sat.f32.f32 %out, %in", [](float a) {
    return std::bit_cast<uint32_t>(a != a ? 0.0f : a > 1 ? 1.0f : a > 0 ? a : 0.0f);
  });
  same({1.0f, -2.0f, 65504.0f, 65520.0f, NAN}, "cvt.rn.f16x2.f32 %out, %in, 0f3F800000",
       [](float a) {
         uint32_t high = a == 1       ? 0x3c00
                         : a == -2    ? 0xc000
                         : a == 65504 ? 0x7bff
                         : a == a     ? 0x7c00
                                      : 0x7fff;
         return high << 16 | 0x3c00;
       });
  same({1.0f, -3.0f}, "cvt.rn.relu.bf16x2.f32 %out, %in, %in",
       [](float a) { return a > 0 ? 0x3f803f80u : 0u; });
  auto e4m3 = map_lanes<uint32_t>("f32", "b32", R"(
      .reg .b16 %h;
      cvt.rn.satfinite.e4m3x2.f32 %h, %in, 0f3F800000;
      cvt.u32.u16 %out, %h;)",
                                  std::vector<float>{1.0f, 500.0f, NAN, -0.0625f});
  EXPECT_EQ(e4m3[0], 0x3838u);
  EXPECT_EQ(e4m3[1], 0x7e38u);
  EXPECT_EQ(e4m3[2], 0x7f38u);
  EXPECT_EQ(e4m3[3], 0x9838u);
  // Sign and zero extension into wider registers.
  auto narrow = map_lanes<uint32_t>("b32", "b32", "cvt.s32.s8 %out, %in;", kWords);
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(narrow[l], static_cast<uint32_t>(int8_t(kWords[l])));
  auto clamp = map_lanes<uint32_t>("b32", "b32", "cvt.sat.u8.s32 %out, %in;", kWords);
  for (uint32_t l = 0; l < 32; ++l) {
    EXPECT_EQ(clamp[l], static_cast<uint32_t>(std::min(255, std::max(0, s(kWords[l])))));
  }
  auto big =
      map_lanes<float>("b64", "f32", "cvt.rn.f32.u64 %out, %in;",
                       std::vector<uint64_t>{0x8000008000000001ull, 0x8000008000000000ull, 7});
  EXPECT_EQ(big[0], 9223373136366403584.0f);  // just past a tie
  EXPECT_EQ(big[1], 9223372036854775808.0f);  // the tie: to even
  EXPECT_EQ(big[2], 7.0f);
  auto wide = map_lanes<uint64_t>("f64", "b64", "cvt.rzi.s64.f64 %out, %in;",
                                  std::vector<double>{NAN, 1e300, -1e300, -2.9});
  EXPECT_EQ(wide[0], 0x8000000000000000ull);
  EXPECT_EQ(wide[1], 0x7fffffffffffffffull);
  EXPECT_EQ(wide[2], 0x8000000000000000ull);
  EXPECT_EQ(wide[3], static_cast<uint64_t>(-2));
}

TEST(Arithmetic, PackUnpackAndSelect) {
  auto out = map_lanes<uint64_t>("b64", "b64", R"(
    .reg .b16 %a, %b, %c, %d;
    .reg .b32 %x, %y;
    mov.b64 {%a, %b, %c, %d}, %in;
    mov.b64 %out, {%d, %c, %b, %a};
    mov.b64 {%x, _}, %out;
    mov.b64 %out, {%x, %x};)",
                                 std::vector<uint64_t>{0x1111222233334444ull});
  EXPECT_EQ(out[0], 0x2222111122221111ull);
}

TEST(Arithmetic, SelectionsAndComparisonsFlush) {
  // slct.ftz takes -1e-40 for -0, and so does setp.ftz of f16; NaN selects b.
  auto selected = map_lanes<uint32_t>("f32", "b32", "slct.ftz.u32.f32 %out, 1, 2, %in;",
                                      std::vector<float>{-1e-40f, -1.0f, 0.0f, NAN});
  EXPECT_EQ(selected, (std::vector<uint32_t>{1, 2, 1, 2}));
  auto less = map_lanes<uint32_t>("b32", "b32", R"(
    .reg .pred %p, %q;
    .reg .b16 %a, %b;
    mov.b32 {%a, %b}, %in;
    setp.lt.ftz.f16 %p, %a, %b;
    selp.b32 %out, 1, 0, %p;
    setp.lt.ftz.f16x2 %p|%q, %in, 0;
    @%p or.b32 %out, %out, 2;
    @%q or.b32 %out, %out, 4;)",
                                  std::vector<uint32_t>{0x00010000, 0x04000001, 0x84018001});
  EXPECT_EQ(less, (std::vector<uint32_t>{0, 1, 4}));
}

TEST(Arithmetic, SaturatedAndSignedHighProducts) {
  check_words("mad24.hi.sat.s32 %out, %in, %b, 0x7fffff00", [](U a, U b) {
    const int64_t product = int64_t{s(a << 8) >> 8} * (s(b << 8) >> 8);
    const int64_t sum = int64_t{static_cast<int32_t>(product >> 16)} + 0x7fffff00;
    return static_cast<U>(std::min<int64_t>(sum, INT32_MAX));
  });
  // The high half of a signed product, with the carries of a sum without sign.
  auto out = map_lanes<uint32_t>("b32", "b32", R"(
    mad.hi.cc.s32 %out, %in, 7, 1;
    madc.hi.s32 %out, %in, 7, %out;)",
                                 kWords);
  for (size_t k = 0; k < kWords.size(); ++k) {
    const auto high = static_cast<U>(int64_t{s(kWords[k])} * 7 >> 32);
    const uint64_t first = uint64_t{high} + 1;
    EXPECT_EQ(out[k], static_cast<U>(high + first + (first >> 32))) << k;
  }
}

TEST(Arithmetic, TablesWithPredicatesAndNthBits) {
  auto out = map_lanes<uint32_t>("b32", "b32", R"(
    .reg .pred %p, %q;
    .reg .b32 %d;
    setp.eq.u32 %q, %lane, 1;
    lop3.or.b32 %d|%p, %in, 0xff, 0, 0xc0, %q;
    selp.b32 %out, 256, 0, %p;
    or.b32 %out, %out, %d;
    lop3.and.b32 _|%p, %in, 0xff, 0, 0xc0, %q;
    @%p or.b32 %out, %out, 512;)",
                                 std::vector<uint32_t>{0x1234, 0x1200, 0x1200, 0x1201});
  EXPECT_EQ(out, (std::vector<uint32_t>{0x134, 0x100, 0, 0x101}));
  auto both = map_lanes<uint32_t>("b32", "b32", R"(
    .reg .pred %p, %q;
    setp.ne.u32 %q, %lane, 1;
    lop3.and.b32 _|%p, %in, 0xff, 0, 0xc0, !%q;
    selp.b32 %out, 1, 0, %p;)",
                                  std::vector<uint32_t>{3, 3, 0});
  EXPECT_EQ(both, (std::vector<uint32_t>{0, 1, 0}));
  auto nth = [](int base, int offset) {
    return map_lanes<uint32_t>("b32", "b32", format("fns.b32 %%out, %%in, %d, %d;", base, offset),
                               std::vector<uint32_t>{0x80000151, 0});
  };
  EXPECT_EQ(nth(0, 1)[0], 0u);
  EXPECT_EQ(nth(1, 2)[0], 6u);
  EXPECT_EQ(nth(9, 1)[0], 31u);
  EXPECT_EQ(nth(6, -2)[0], 4u);
  EXPECT_EQ(nth(8, 0)[0], 8u);
  EXPECT_EQ(nth(7, 0)[0], 0xffffffffu);
  EXPECT_EQ(nth(4, -3)[0], 0xffffffffu);
  EXPECT_EQ(nth(0, 1)[1], 0xffffffffu);
}

TEST(Arithmetic, DirectedPairsAndMixedPrecision) {
  const std::vector<std::array<float, 2>> pairs = {{1.0f, -1.0f}, {0.3f, 3e38f}, {1e-40f, -7.0f}};
  const float third = 1.0f / 3;
  for (auto [name, mode] :
       {std::pair{"rz", FE_TOWARDZERO}, std::pair{"rm", FE_DOWNWARD}, std::pair{"rp", FE_UPWARD}}) {
    auto out = map_lanes<std::array<float, 2>>(
        "b64", "b64", format("fma.%s.f32x2 %%out, %%in, %%in, 0x3eaaaaab3eaaaaab;", name), pairs);
    for (size_t k = 0; k < pairs.size(); ++k) {
      for (size_t half = 0; half < 2; ++half) {
        volatile float x = pairs[k][half];
        EXPECT_EQ(out[k][half], rounded(mode, [&] { return std::fma(x, x, third); })) << name;
      }
    }
    auto mixed = map_lanes<float>("f32", "f32",
                                  format(".reg .b16 %%h;\nmov.b16 %%h, 0x3555;\n"
                                         "fma.%s.f32.f16 %%out, %%h, %%h, %%in;\n"
                                         "sub.%s.f32.f16 %%out, %%h, %%out;",
                                         name, name),
                                  kFloats);
    volatile float h = 0.333251953125f;
    for (size_t k = 0; k < kFloats.size(); ++k) {
      volatile float x = kFloats[k];
      const float want = rounded(mode, [&] {
        volatile float sum = std::fma(h, h, x);
        return h - sum;
      });
      if (want == want) EXPECT_EQ(mixed[k], want) << name << " " << bits(x);
    }
  }
}

TEST(Arithmetic, GrossReciprocals) {
  const std::vector<double> in = {3.0,      -7.0,      1e-310, -1e-310,  0.0, -0.0,
                                  INFINITY, -INFINITY, 1e308,  1.2345e9, NAN, 0x1.00000ffffffffp+0};
  auto rcp = map_lanes<double>("f64", "f64", "rcp.approx.ftz.f64 %out, %in;", in);
  auto rsqrt = map_lanes<double>("f64", "f64", "rsqrt.approx.ftz.f64 %out, %in;", in);
  for (size_t k = 0; k < in.size(); ++k) {
    // Nothing is in the lower half, and nothing of the source's is used.
    EXPECT_EQ(std::bit_cast<uint64_t>(rcp[k]) & 0xffffffff, 0u) << in[k];
    EXPECT_EQ(std::bit_cast<uint64_t>(rsqrt[k]) & 0xffffffff, 0u) << in[k];
  }
  EXPECT_NEAR(rcp[0] * 3, 1, 0x1p-20);
  EXPECT_NEAR(rcp[1] * -7, 1, 0x1p-20);
  // What an H200 gives: cut off behind the 20 bits.
  const std::vector<uint32_t> cut = {0x3ff00000, 0x3fef059e, 0x3fee1a17, 0x3fed3c21,
                                     0x3fec6a99, 0x3feba47b, 0x3feae8dd, 0x3fea36f1};
  std::vector<double> steps;
  for (uint64_t k = 0; k < cut.size(); ++k) {
    steps.push_back(std::bit_cast<double>((0x3ff00000 + k * 0x8123) << 32 | 0x9abcdef0));
  }
  const auto reciprocals = map_lanes<double>("f64", "f64", "rcp.approx.ftz.f64 %out, %in;", steps);
  for (size_t k = 0; k < cut.size(); ++k) {
    EXPECT_EQ(std::bit_cast<uint64_t>(reciprocals[k]), uint64_t{cut[k]} << 32) << k;
  }
  // Roots of an H200: those of f32, cut off; of the exact ones, the first four would be smaller.
  const std::vector<std::pair<uint32_t, uint32_t>> roots = {
      {0x3ff00686, 0x3feff97c}, {0x3ff007f8, 0x3feff80b}, {0x3ff00a48, 0x3feff5bd},
      {0x3ff014b0, 0x3fefeb64}, {0x3ff04400, 0x3fefbcd5}, {0x3ffa0000, 0x3fe91a55},
      {0x40000000, 0x3fe6a09e}, {0x40023400, 0x3fe536c6}, {0x400ffe00, 0x3fe00080}};
  std::vector<double> squares;
  for (const auto& [square, root] : roots) {
    squares.push_back(std::bit_cast<double>(uint64_t{square} << 32 | 0x9abcdef0));
  }
  const auto found = map_lanes<double>("f64", "f64", "rsqrt.approx.ftz.f64 %out, %in;", squares);
  for (size_t k = 0; k < roots.size(); ++k) {
    EXPECT_EQ(std::bit_cast<uint64_t>(found[k]), uint64_t{roots[k].second} << 32) << k;
  }
  EXPECT_EQ(rcp[2], INFINITY);
  EXPECT_EQ(rcp[3], -INFINITY);
  EXPECT_EQ(rcp[4], INFINITY);
  EXPECT_EQ(rcp[5], -INFINITY);
  EXPECT_EQ(std::bit_cast<uint64_t>(rcp[7]), uint64_t{1} << 63);
  EXPECT_EQ(rcp[8], 0.0);  // 1e-308 is subnormal
  EXPECT_TRUE(rcp[10] != rcp[10]);
  EXPECT_EQ(rcp[11], 1.0);
  EXPECT_EQ(rsqrt[2], INFINITY);
  EXPECT_EQ(rsqrt[3], -INFINITY);
  EXPECT_TRUE(rsqrt[1] != rsqrt[1]);
  EXPECT_NEAR(rsqrt[9] * std::sqrt(1.2345e9), 1, 0x1p-20);
}

TEST(Arithmetic, UnknownModifiersAreRefused) {
  for (const char* op : {"fma.rn.oob.f32 %f, %f, %f, %f;", "add.rs.f32 %f, %f, %f;",
                         "cvt.rs.f16x2.f32 %r, %f, %f, %r;", "frobnicate.u32 %r, %r;"}) {
    auto text = kernel_text("", std::string(".reg .f32 %f; .reg .b32 %r;\n") + op + "\nret;");
    const std::string refusal = exec::Program::load(text)->refusals();
    EXPECT_NE(refusal.find(std::string(op).substr(0, std::string(op).find(' '))), std::string::npos)
        << op << ": " << refusal;
  }
}

// What ptxas would refuse: an instruction that came after the module's target.
TEST(Arithmetic, RefusesInstructionsNewerThanTheTarget) {
  const auto refusal = [](const std::string& target, const std::string& body) {
    std::string text = kernel_text("", body + "\nret;");
    const std::string from = "sm_100a";
    text.replace(text.find(from), from.size(), target);
    return exec::Program::load(text)->refusals();
  };
  EXPECT_EQ(refusal("sm_80", "cp.async.wait_all;"), "");
  EXPECT_EQ(refusal("sm_90", "griddepcontrol.wait;"), "");
  EXPECT_NE(refusal("sm_80", "griddepcontrol.wait;").find("needs .target sm_90 or later"),
            std::string::npos);
  EXPECT_NE(refusal("sm_89", "cp.async.bulk.commit_group;").find("sm_90 or later"),
            std::string::npos);
  EXPECT_NE(refusal("sm_90a", "tcgen05.wait::ld.sync.aligned;").find("sm_100 or later"),
            std::string::npos);
}

// Every refusal has a reason, and counts the uses that it is about.
TEST(Arithmetic, RefusalsSayWhy) {
  Buffers buffers;
  auto refusal = [&](const std::string& body) {
    auto result = run_module(kernel_text("", body), Params(), buffers);
    EXPECT_EQ(result.cuda_error, kNotSupported) << result.report;
    return result.report;
  };
  const std::string specials = refusal(R"(.reg .b32 %r;
    mov.u32 %r, %laneid;
    mov.u32 %r, %nosuch;
    mov.u32 %r, %nosuch;
    mov.u32 %r, %neither;)");
  EXPECT_NE(specials.find("mov.u32 (2 uses, first at PTX line 9): special register %nosuch"),
            std::string::npos)
      << specials;
  EXPECT_NE(specials.find("mov.u32 (1 use, first at PTX line 11): special register %neither"),
            std::string::npos)
      << specials;
  const std::string together = refusal("barrier.cluster.wait.relaxed.aligned;");
  EXPECT_NE(together.find("known, but not together"), std::string::npos) << together;
  for (const auto& [op, why] :
       {std::pair{"tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%r], %d, %d, [%r], %r, %p;",
                  "figures of the PTX ISA"},
        std::pair{"wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%f,%f,%f,%f}, %d, "
                  "%d, %r, 2, 1, 1, 1, 0, 0;",
                  "sp-sel is 2"},
        std::pair{"cvt.rs.f16x2.f32 %r, %f, %f, %r;", "stochastic"}}) {
    const std::string text =
        refusal(std::string(".reg .b32 %r; .reg .b64 %d; .reg .f32 %f; .reg .pred %p;\n") + op);
    EXPECT_NE(text.find(why), std::string::npos) << text;
  }
}

// A kernel with forms that are not known is refused when it is launched; its module's others run.
TEST(Arithmetic, AKernelIsRefusedAlone) {
  Buffers buffers;
  const uint64_t out = buffers.add(4);
  const std::string strange =
      ".visible .entry strange() { .reg .b32 %r; frobnicate.u32 %r, %r; ret; }\n"
      ".func again() { call again; ret; }\n.visible .entry recurses() { call again; ret; }\n";
  const auto text = kernel_text(".param .u64 out", R"(.reg .b64 %rd;
    ld.param.u64 %rd, [out];
    st.global.u32 [%rd], 7;)",
                                strange);
  auto result = run_module(text, Params() << out, buffers);
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  EXPECT_EQ(buffers.read<uint32_t>(out, 1)[0], 7u);
  const std::string refusals = exec::Program::load(text)->refusals();
  EXPECT_NE(refusals.find("kernel strange"), std::string::npos) << refusals;
  EXPECT_NE(refusals.find("again is recursive"), std::string::npos) << refusals;
}

TEST(Arithmetic, RegisterWidthsAreChecked) {
  auto text = kernel_text("", ".reg .b64 %d; .reg .b32 %r;\nadd.s32 %d, %r, %r;\nret;");
  EXPECT_NE(exec::Program::load(text)->refusals().find("register %d has 64 bits"),
            std::string::npos);
}

}  // namespace
}  // namespace vgpu::test
