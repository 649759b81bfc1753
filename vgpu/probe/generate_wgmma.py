#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the kernels of the wgmma cases: one for each shape, type, operand source and transpose.

    generate_wgmma.py OUTPUT.cu
"""

import sys

ALL_N = list(range(8, 257, 8))
INTEGER_N = [8, 16, 24] + list(range(32, 257, 16))  # PTX ISA, "wgmma.mma_async", .s8 and .u8

# Swizzle mode -> (layout type of the descriptor, stride byte offset): 8 rows of one span.
SWIZZLES = {0: (0, 256), 32: (3, 256), 64: (2, 512), 128: (1, 1024)}

# (accumulator, a, b, k)
FLOAT_TYPES = [("f32", "bf16", "bf16", 16), ("f32", "f16", "f16", 16), ("f16", "f16", "f16", 16),
               ("f32", "tf32", "tf32", 8)]
FP8_TYPES = [(acc, a, b, 32) for acc in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
INTEGER_TYPES = [("s32", a, b, 32) for a in ("s8", "u8") for b in ("s8", "u8")]


class Kernels:
    """The kernels asked for so far, each written once."""

    def __init__(self):
        self.index = {}
        self.lines = []

    def get(self, n, types, from_registers=False, transpose=(0, 0), negate=(1, 1), saturate=False):
        key = (n, types, from_registers, transpose, negate, saturate)
        if key not in self.index:
            self.index[key] = len(self.index)
            self.write(*key)
        return f"wgmma_{self.index[key]}"

    def write(self, n, types, from_registers, transpose, negate, saturate):
        acc, a, b, k = types
        count = n // 4 if acc == "f16" else n // 2
        ctype, letter = ("float", "f") if acc == "f32" else ("uint32_t", "r")
        initial = {"f32": "static_cast<float>(start)", "s32": "static_cast<uint32_t>(start)",
                   "f16": "half_pair(start)"}[acc]
        results = ",".join(f"%{i}" for i in range(count))
        operands = [f'"+{letter}"(d[{i}])' for i in range(count)]
        inputs = []
        if from_registers:
            a_text = "{" + ",".join(f"%{count + i}" for i in range(4)) + "}"
            inputs += [f'"r"(a[{i}])' for i in range(4)]
        else:
            a_text = f"%{count}"
            inputs += ['"l"(desc_a)']
        b_text, scale = f"%{count + len(inputs)}", f"%{count + len(inputs) + 1}"
        inputs += ['"l"(desc_b)', '"r"(scale_d)']
        immediates = ""
        if acc != "s32":
            immediates = f", {negate[0]}, {negate[1]}"
            if k == 16:
                immediates += f", {transpose[1]}" if from_registers else f", {transpose[0]}, {transpose[1]}"
        name = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{acc}.{a}.{b}{'.satfinite' if saturate else ''}"
        text = ("{ .reg .pred p; setp.ne.b32 p, " + scale + ", 0; wgmma.fence.sync.aligned; " + name
                + " {" + results + "}, " + a_text + ", " + b_text + ", p" + immediates
                + "; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }")
        self.lines += [
            f"__global__ void __launch_bounds__(128) wgmma_{self.index[(n, types, from_registers, transpose, negate, saturate)]}(",
            "    const uint32_t* image, uint64_t desc_a, uint64_t desc_b, int scale_d, uint32_t* out) {",
            "  extern __shared__ __align__(1024) uint32_t shared[];",
            "  load_image(image, shared, desc_a, desc_b);",
            f"  {ctype} d[{count}];",
            f"  for (int i = 0; i < {count}; ++i) {{",
            "    const int start = static_cast<int>((threadIdx.x * 7 + i * 3) % 13) - 6;",
            f"    d[i] = {initial};",
            "  }",
        ]
        if from_registers:
            self.lines += ["  uint32_t a[4];", "  for (int i = 0; i < 4; ++i) a[i] = image[threadIdx.x * 4 + i];"]
        self.lines += [
            f'  asm volatile("{text}"',
            f"      : {', '.join(operands)}",
            f"      : {', '.join(inputs)}",
            '      : "memory");',
            f"  for (int i = 0; i < {count}; ++i) out[threadIdx.x * {count} + i] = word_of(d[i]);",
            "}", "",
        ]


def main():
    kernels = Kernels()
    cases = []

    def case(n, types, swizzle=128, lead=1, stride=None, data="integers", scale=1, **options):
        acc, a, b, k = types
        layout, default_stride = SWIZZLES[swizzle]
        stride = stride or default_stride
        name = f"wgmma {data} n{n}k{k} {acc}.{a}.{b}"
        name += " rs" if options.get("from_registers") else " ss"
        name += f" swizzle {swizzle} lead {lead * 16} stride {stride}"
        if options.get("transpose"):
            name += " transpose %d%d" % options["transpose"]
        if options.get("negate"):
            name += " negate %d,%d" % options["negate"]
        name += " satfinite" if options.get("saturate") else ""
        name += "" if scale else " scale 0"
        count = n // 4 if acc == "f16" else n // 2
        kernel = kernels.get(n, types, **options)
        cases.append(f'  add_wgmma_case("{name}", {kernel}, {{"{a}", "{b}", "{data}", {layout}, {lead}, {stride}, '
                     f"{scale}, {count}}});")

    # Every shape of every type.
    for types in FLOAT_TYPES + FP8_TYPES:
        for n in ALL_N:
            case(n, types)
    for types in INTEGER_TYPES:
        for n in INTEGER_N:
            case(n, types)
    # A from registers.
    for types in FLOAT_TYPES + FP8_TYPES + INTEGER_TYPES:
        for n in ([8, 64, 256] if types[1] != "bf16" else ALL_N):
            case(n, types, from_registers=True)
    # Swizzles and strides.
    for types in FLOAT_TYPES + FP8_TYPES[:1] + INTEGER_TYPES[:1]:
        for n in (8, 96, 256):
            for swizzle in (0, 32, 64):
                case(n, types, swizzle)
            case(n, types, 0, lead=8, stride=512)
            case(n, types, 0, lead=130, stride=160)
            case(n, types, 128, stride=1152)
    # MN-major operands.
    for types in FLOAT_TYPES[:3]:
        for n in (8, 64, 80, 128, 256):
            for transpose in ((0, 1), (1, 0), (1, 1)):
                for swizzle in (0, 32, 64, 128):
                    if n * 2 >= swizzle or not transpose[1]:
                        case(n, types, swizzle, lead=128, transpose=transpose)
        case(64, types, 128, lead=128, transpose=(0, 1), from_registers=True)
    # Negated operands, no accumulation, saturation.
    for types in FLOAT_TYPES + FP8_TYPES[:1]:
        for negate in ((-1, 1), (1, -1), (-1, -1)):
            case(64, types, negate=negate)
        case(64, types, scale=0)
    for types in INTEGER_TYPES:
        case(64, types, saturate=True)
        case(64, types, scale=0)
    # Real data: sums round, in an order that the hardware keeps to itself.
    for types in FLOAT_TYPES + FP8_TYPES:
        for n in (8, 64, 256):
            case(n, types, data="real")

    out = ["// Generated by generate_wgmma.py.", '#include "wgmma_table.cuh"', "", "namespace probe {", "namespace {", ""]
    out += kernels.lines
    out += ["}  // namespace", "", "void add_wgmma_cases() {", *cases, "}", "", "}  // namespace probe"]
    open(sys.argv[1], "w").write("\n".join(out) + "\n")
    print(len(kernels.index), "kernels,", len(cases), "cases")


main()
