#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the kernels of the arithmetic cases: one for each PTX instruction form below.

    generate_math.py OUTPUT.cu

Each kernel applies one instruction to every row of an operand table; the result words are the case.
"""

import sys

# Operand letters are those of inline PTX: h 16 bits, r 32, l 64, f float, d double.
# (instruction, result, operands)
CONVERSIONS = [
    *[(f"cvt.{mode}.{kind}.f32", "h", "f")
      for kind in ("f16", "bf16") for mode in ("rn", "rz", "rn.relu", "rz.relu")],
    *[(f"cvt.{mode}.{kind}.f32", "r", "ff")
      for kind in ("f16x2", "bf16x2") for mode in ("rn", "rz", "rn.relu", "rz.relu")],
    *[(f"cvt.{mode}.tf32.f32", "r", "f") for mode in ("rna", "rn", "rz", "rn.relu", "rz.relu")],
    *[(f"cvt.rn.satfinite{relu}.{kind}.f32", "h", "ff")
      for kind in ("e4m3x2", "e5m2x2") for relu in ("", ".relu")],
    *[(f"cvt.rn.satfinite{relu}.{kind}.f16x2", "h", "r")
      for kind in ("e4m3x2", "e5m2x2") for relu in ("", ".relu")],
    *[(f"cvt.rn{relu}.f16x2.{kind}", "r", "h")
      for kind in ("e4m3x2", "e5m2x2") for relu in ("", ".relu")],
    ("cvt.f32.f16", "f", "h"), ("cvt.f32.bf16", "f", "h"), ("cvt.ftz.f32.f16", "f", "h"),
    *[(f"cvt.{mode}.f32.f32", "f", "f")
      for mode in ("rni", "rzi", "rmi", "rpi", "rni.ftz", "rzi.sat", "sat", "ftz", "ftz.sat")],
    *[(f"cvt.{mode}.f16.f16", "h", "h") for mode in ("rni", "rzi", "rmi", "rpi", "sat")],
    *[(f"cvt.{mode}.{kind}.f32", letter, "f")
      for kind, letter in (("s32", "r"), ("u32", "r"), ("s64", "l"), ("u64", "l"), ("s16", "h"), ("u16", "h"))
      for mode in ("rni", "rzi", "rmi", "rpi", "rni.ftz")],
    *[(f"cvt.{mode}.{kind}.f16", "r", "h") for kind in ("s32", "u32") for mode in ("rni", "rzi")],
    *[(f"cvt.{mode}.f32.{kind}", "f", letter)
      for kind, letter in (("s32", "r"), ("u32", "r"), ("s64", "l"), ("u64", "l"), ("s16", "h"))
      for mode in ("rn", "rz", "rm", "rp", "rn.sat")],
    *[(f"cvt.{mode}.f16.{kind}", "h", "r") for kind in ("s32", "u32") for mode in ("rn", "rz")],
    *[(f"cvt.{mode}.bf16.{kind}", "h", "r") for kind in ("s32", "u32") for mode in ("rn", "rz")],
    *[(f"cvt.{mode}.f32.f64", "f", "d") for mode in ("rn", "rz", "rm", "rp", "rn.ftz", "rn.sat")],
    ("cvt.f64.f32", "d", "f"), ("cvt.rn.f16.f64", "h", "d"),
    *[(f"cvt.{mode}.{kind}.f64", letter, "d")
      for kind, letter in (("s32", "r"), ("u32", "r"), ("s64", "l"), ("u64", "l")) for mode in ("rni", "rzi")],
    *[(f"cvt.{mode}.f64.{kind}", "d", "l") for kind in ("s64", "u64") for mode in ("rn", "rz")],
    *[(f"cvt.{kind}.s32", "r", "r") for kind in ("s8", "u8", "sat.s8", "sat.u8")],
    *[(f"cvt.{kind}.s32", "h", "r") for kind in ("s16", "u16", "sat.s16", "sat.u16")],
    *[(f"cvt.{kind}.u32", "h", "r") for kind in ("sat.s16", "sat.u16")],
    ("cvt.sat.u32.s32", "r", "r"), ("cvt.sat.s32.u32", "r", "r"), ("cvt.sat.s32.s64", "r", "l"),
    ("cvt.s64.s32", "l", "r"), ("cvt.u64.u32", "l", "r"), ("cvt.u32.u16", "r", "h"),
    ("cvt.s32.s16", "r", "h"), ("cvt.pack.sat.u8.s32.b32", "r", "rrr"),
    ("cvt.pack.sat.s8.s32.b32", "r", "rrr"), ("cvt.pack.sat.s16.s32", "r", "rr"),
]

FLOATS = [
    *[(f"{op}.{mode}.f32", "f", "ff") for op in ("add", "sub", "mul")
      for mode in ("rn", "rz", "rm", "rp", "rn.ftz", "rn.sat", "rn.ftz.sat")],
    *[(f"fma.{mode}.f32", "f", "fff")
      for mode in ("rn", "rz", "rm", "rp", "rn.ftz", "rn.sat", "rn.ftz.sat")],
    *[(f"{op}.{mode}.f32", "f", "f") for op in ("rcp", "sqrt") for mode in ("rn", "rz", "rm", "rp")],
    *[(f"div.{mode}.f32", "f", "ff") for mode in ("rn", "rz", "rm", "rp", "rn.ftz")],
    *[(f"{op}{mode}.f32", "f", "ff") for op in ("min", "max")
      for mode in ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs")],
    ("abs.f32", "f", "f"), ("neg.f32", "f", "f"), ("abs.ftz.f32", "f", "f"),
    ("copysign.f32", "f", "ff"),
    *[(f"{op}.{mode}f64", "d", "dd") for op in ("add", "mul") for mode in ("rn.", "rz.", "rm.", "rp.")],
    ("fma.rn.f64", "d", "ddd"), ("div.rn.f64", "d", "dd"), ("sqrt.rn.f64", "d", "d"),
    ("min.f64", "d", "dd"), ("max.f64", "d", "dd"),
    *[(f"{op}.{kind}", "r", "rr") for op in ("add.rn", "sub.rn", "mul.rn") for kind in ("f16x2", "bf16x2")],
    *[(f"{op}.f16x2", "r", "rr") for op in ("add.ftz", "add.sat", "add.ftz.sat", "mul.sat")],
    *[(f"fma.rn{mode}.f16x2", "r", "rrr") for mode in ("", ".ftz", ".sat", ".relu", ".ftz.relu")],
    *[(f"fma.rn{mode}.bf16x2", "r", "rrr") for mode in ("", ".relu")],
    *[(f"{op}{mode}.{kind}", "r", "rr") for op in ("min", "max") for kind in ("f16x2", "bf16x2")
      for mode in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")],
    *[(f"{op}.{kind}", "r", "r") for op in ("abs", "neg") for kind in ("f16x2", "bf16x2")],
    *[(f"{op}.{kind}", "h", "hh") for op in ("add.rn", "mul.rn") for kind in ("f16", "bf16")],
    ("fma.rn.f16", "h", "hhh"), ("fma.rn.bf16", "h", "hhh"),
]

INTEGERS = [
    *[(f"{op}.{kind}", "r", "rr") for op in ("mul.lo", "mul.hi", "mul24.lo", "mul24.hi", "div", "rem", "min", "max", "shr")
      for kind in ("s32", "u32")],
    *[(f"{op}.{kind}", "l", "ll") for op in ("mul.lo", "mul.hi", "div", "rem", "min", "max") for kind in ("s64", "u64")],
    *[(f"mul.wide.{kind}", "l", "rr") for kind in ("s32", "u32")],
    *[(f"mad.{part}.{kind}", "r", "rrr") for part in ("lo", "hi") for kind in ("s32", "u32")],
    ("mad.hi.sat.s32", "r", "rrr"), ("mad.wide.s32", "l", "rrl"), ("mad.wide.u32", "l", "rrl"),
    ("mad24.lo.s32", "r", "rrr"), ("mad24.hi.u32", "r", "rrr"),
    *[(f"sad.{kind}", "r", "rrr") for kind in ("s32", "u32")],
    ("add.sat.s32", "r", "rr"), ("sub.sat.s32", "r", "rr"),
    ("max.s32.relu", "r", "rr"), ("min.s32.relu", "r", "rr"),
    ("shl.b32", "r", "rr"), ("shl.b64", "l", "lr"), ("shr.s64", "l", "lr"), ("shr.u64", "l", "lr"),
    *[(f"shf.{way}.{mode}.b32", "r", "rrr") for way in ("l", "r") for mode in ("wrap", "clamp")],
    *[(f"bfind.{kind}", "r", letter) for kind, letter in (("s32", "r"), ("u32", "r"), ("s64", "l"), ("u64", "l"))],
    *[(f"bfind.shiftamt.{kind}", "r", "r") for kind in ("s32", "u32")],
    *[(f"{op}.b32", "r", "r") for op in ("clz", "popc", "brev", "not", "cnot")],
    *[(f"{op}.b64", "r", "l") for op in ("clz", "popc")], ("brev.b64", "l", "l"),
    *[(f"bfe.{kind}", "r", "rrr") for kind in ("s32", "u32")], 
    ("bfi.b32", "r", "rrrr"),
    *[(f"bmsk.{mode}.b32", "r", "rr") for mode in ("wrap", "clamp")],
    *[(f"szext.{mode}.{kind}", "r", "rr") for mode in ("wrap", "clamp") for kind in ("s32", "u32")],
    *[(f"prmt.b32{mode}", "r", "rrr") for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")],
    *[(f"dp4a.{a}.{b}", "r", "rrr") for a in ("s32", "u32") for b in ("s32", "u32")],
    *[(f"dp2a.{part}.{a}.{a}", "r", "rrr") for part in ("lo", "hi") for a in ("s32", "u32")],
    ("slct.s32.s32", "r", "rrr"), ("abs.s32", "r", "r"), ("neg.s32", "r", "r"), ("abs.s64", "l", "l"),
    ("min.s16x2", "r", "rr"), ("max.u16x2", "r", "rr"), ("add.s16x2", "r", "rr"),
]

# Instructions with an immediate, written as full statements: $z result, $a $b $c operands.
STATEMENTS = [
    *[(f"lop3 {table:#x}", f"lop3.b32 $z, $a, $b, $c, {table:#x};", "r", "rrr") for table in (0xE8, 0x96, 0x2A)],
    *[(f"setp {op}.f32", "{ .reg .pred p; setp.%s.f32 p, $a, $b; selp.u32 $z, 1, 0, p; }" % op, "r", "ff")
      for op in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")],
    *[(f"setp {op}.{kind}", "{ .reg .pred p; setp.%s.%s p, $a, $b; selp.u32 $z, 1, 0, p; }" % (op, kind), "r", "rr")
      for op, kind in (("lt", "s32"), ("lo", "u32"), ("ge", "s32"), ("hs", "u32"), ("lt", "f16x2") )[:4]],
    *[(f"testp {op}.f32", "{ .reg .pred p; testp.%s.f32 p, $a; selp.u32 $z, 1, 0, p; }" % op, "r", "f")
      for op in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")],
    # Position and length of the 64-bit forms must be below 256.
    *[(f"bfe.{kind}", "{ .reg .u32 p, n; and.b32 p, $b, 255; and.b32 n, $c, 255; bfe.%s $z, $a, p, n; }" % kind, "l", "lrr")
      for kind in ("s64", "u64")],
    ("bfi.b64", "{ .reg .u32 p, n; and.b32 p, $c, 255; and.b32 n, $d, 255; bfi.b64 $z, $a, $b, p, n; }", "l", "llrr"),
    ("set.gt.u32.f32", "set.gt.u32.f32 $z, $a, $b;", "r", "ff"),
    ("set.lt.f32.s32", "set.lt.f32.s32 $z, $a, $b;", "f", "rr"),
    ("set.gt.f16x2.f16x2", "set.gt.f16x2.f16x2 $z, $a, $b;", "r", "rr"),
    ("set.geu.bf16x2.bf16x2", "set.geu.bf16x2.bf16x2 $z, $a, $b;", "r", "rr"),
    ("add.cc chain", "{ .reg .u32 l, h; add.cc.u32 l, $a, $b; addc.u32 h, $c, 0; xor.b32 $z, l, h; }", "r", "rrr"),
    ("sub.cc chain", "{ .reg .u32 l, h; sub.cc.u32 l, $a, $b; subc.u32 h, $c, 7; xor.b32 $z, l, h; }", "r", "rrr"),
    ("mad.cc chain", "{ .reg .u32 l, h; mad.lo.cc.u32 l, $a, $b, $c; madc.hi.u32 h, $a, $b, 0; xor.b32 $z, l, h; }", "r", "rrr"),
    *[(f"shfl {mode} {clamp:#x}",
       "{ .reg .pred p; .reg .u32 v, q; shfl.sync.%s.b32 v|p, $a, %s, %d, 0xffffffff; selp.u32 q, 0x10000, 0, p; xor.b32 $z, v, q; }"
       % (mode, lane, clamp), "r", "r")
      for mode, lane, clamp in (("up", 3, 0), ("down", 5, 31), ("bfly", 9, 31), ("idx", 7, 31), ("idx", 20, 0x181F), ("down", 2, 0x1807), ("up", 1, 0x1800))],
    ("vote ballot", "{ .reg .pred p; setp.lt.s32 p, $a, 0; vote.sync.ballot.b32 $z, p, 0xffffffff; }", "r", "r"),
    *[(f"vote {mode}", "{ .reg .pred p, q; setp.lt.s32 p, $a, 0; vote.sync.%s.pred q, p, 0xffffffff; selp.u32 $z, 1, 0, q; }" % mode, "r", "r")
      for mode in ("all", "any", "uni")],
    ("match any", "{ .reg .u32 m; and.b32 m, $a, 7; match.any.sync.b32 $z, m, 0xffffffff; }", "r", "r"),
    ("match all", "{ .reg .pred p; .reg .u32 m, q; and.b32 m, $a, 0; match.all.sync.b32 q|p, m, 0xffffffff; selp.u32 $z, q, 0, p; }", "r", "r"),
    *[(f"redux {op}", f"redux.sync.{op} $z, $a, 0xffffffff;", "r", "r")
      for op in ("add.s32", "add.u32", "min.s32", "min.u32", "max.s32", "max.u32", "and.b32", "or.b32", "xor.b32")],
]

# Not exact on the hardware: compared within a few units in the last place.
APPROXIMATIONS = [
    *[(f"{op}.approx{mode}.f32", "f", "f") for op in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos") for mode in ("", ".ftz")],
    ("tanh.approx.f32", "f", "f"), ("div.approx.f32", "f", "ff"), ("div.full.f32", "f", "ff"),
    ("ex2.approx.f16x2", "r", "r"), ("tanh.approx.f16x2", "r", "r"),
    ("ex2.approx.ftz.bf16x2", "r", "r"), ("tanh.approx.bf16x2", "r", "r"),
]

C_TYPES = {"h": "uint16_t", "r": "uint32_t", "l": "uint64_t", "f": "float", "d": "double"}


def kernel(index, statement, result, operands):
    """One kernel: row i of the operand table in, one or two words out."""
    lines = [f"__global__ void math_{index}(const uint64_t* rows, uint32_t* out) {{",
             "  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;"]
    for position, letter in enumerate(operands):
        # Floats and doubles have columns of their own: bit patterns that suit them.
        column = {"f": 4, "d": 8}.get(letter, 0) + position
        lines.append(f"  const {C_TYPES[letter]} o{position} = bits<{C_TYPES[letter]}>(rows[i * 12 + {column}]);")
    lines.append(f"  {C_TYPES[result]} d;")
    for name, number in [("$z", 0)] + [("$" + "abcd"[k], k + 1) for k in range(len(operands))]:
        statement = statement.replace(name, f"%{number}")
    inputs = ", ".join(f'"{letter}"(o{k})' for k, letter in enumerate(operands))
    lines.append(f'  asm volatile("{statement}" : "={result}"(d) : {inputs});')
    lines += ["  store(out, i, d);", "}"]
    return lines


def main():
    out = ["// Generated by generate_math.py.", '#include "math_table.cuh"', "", "namespace probe {", "namespace {", ""]
    names = []
    groups = (("convert", CONVERSIONS), ("float", FLOATS), ("integer", INTEGERS), ("approx", APPROXIMATIONS))
    cases = [(f"{group} {name}", f"{name} $z, " + ", ".join("$" + "abcd"[k] for k in range(len(operands))) + ";", result, operands)
             for group, entries in groups for name, result, operands in entries]
    cases += [(f"statement {name}", *rest) for name, *rest in STATEMENTS]
    for index, (name, statement, result, operands) in enumerate(cases):
        out += kernel(index, statement, result, operands) + [""]
        names.append(f'  add_math_case("{name}", math_{index});')
    out += ["}  // namespace", "", "void add_math_cases() {", *names, "}", "", "}  // namespace probe"]
    open(sys.argv[1], "w").write("\n".join(out) + "\n")


main()
