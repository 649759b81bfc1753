#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers of no network: extents, channels and filters drawn at random, for fits that must hold
between the layers of published networks (wild.py).

    bench/shapes/random_layers.py --seeds 0:2500 > random.txt

A seed is a layer, the same everywhere. Two of three filters are 1x1; channels are 8 to 4096, mostly
multiples of 8, pixels 49 to 400,000, both evenly on a logarithmic scale; at most 60 GFLOP and
200 MB. Seeds from 20,000 on draw first layers, groups, strided lines and more epilogues too. Lines
are those of shape files, as of wild.py.
"""
import argparse
import math
import random


def log_uniform(r, low, high):
    return round(math.exp(r.uniform(math.log(low), math.log(high))))


def channels(r):
    value = log_uniform(r, 8, 4096)
    if r.random() < 0.08:
        return value
    step = r.choice([8, 8, 16, 32, 64] if value > 64 else [8])
    return max(step, round(value / step) * step)


MORE = 20_000  # The first seed of more kinds.
KINDS = {"1x1": 64, "3x3": 16, "3x3 stride": 5, "1x1 stride": 3, "large": 4, "line": 3, "volume": 5}
MORE_KINDS = KINDS | {"1x1": 44, "3x3": 18, "3x3 stride": 8, "line stride": 3, "volume stride": 2,
                      "first": 5, "groups": 8}
EPILOGUES = ["none"] * 5 + ["bias"] * 3 + ["bias+relu", "bias+silu", "bias+gelu", "bias+residual",
                                           "bias+relu+residual"]
MORE_EPILOGUES = EPILOGUES + ["bias+relu", "bias+silu", "bias+gelu", "bias+leaky_relu",
                              "bias+hardswish", "bias+clamp", "bias+silu+residual",
                              "bias+leaky_relu+residual"]


def layer(seed):
    r = random.Random(f"layer {seed}")
    kinds = MORE_KINDS if seed >= MORE else KINDS
    while True:
        kind = r.choices(list(kinds), list(kinds.values()))[0]
        pixels = log_uniform(r, 49, 400_000)
        c, k = channels(r), channels(r)
        batch = r.choice([1, 1, 1, 2, 4, 8, 16, 32])
        side = math.sqrt(max(1, pixels / batch))
        aspect = r.choice([1, 1, 1, 1.5, 1.78, 0.6])
        h, w = max(1, round(side / math.sqrt(aspect))), max(1, round(side * math.sqrt(aspect)))
        taps, text = 1, ""
        if kind == "1x1":
            text = f"n{batch}h{h}w{w}c{c}k{k}r1s1"
        elif kind == "1x1 stride":
            text = f"n{batch}h{2 * h}w{2 * w}c{c}k{k}r1s1sh2sw2"
        elif kind == "3x3":
            d = r.choice([1, 1, 1, 1, 2, 4])
            text = f"n{batch}h{h}w{w}c{c}k{k}r3s3ph{d}dh{d}pw{d}dw{d}" if d > 1 else \
                f"n{batch}h{h}w{w}c{c}k{k}r3s3ph1pw1"
            taps = 9
        elif kind == "3x3 stride":
            text = f"n{batch}h{2 * h}w{2 * w}c{c}k{k}r3s3ph1sh2pw1sw2"
            taps = 9
        elif kind == "large":
            f = r.choice([5, 7])
            text, taps = f"n{batch}h{h}w{w}c{c}k{k}r{f}s{f}ph{f // 2}pw{f // 2}", f * f
        elif kind == "line":
            f = r.choice([3, 5, 7, 11])
            text, taps = f"n{batch}h1w{max(1, pixels // batch)}c{c}k{k}r1s{f}pw{f // 2}", f
        elif kind == "line stride":
            f = r.choice([2, 3, 4, 7])
            text = f"n{batch}h1w{max(1, 2 * pixels // batch)}c{c}k{k}r1s{f}pw{f // 2}sw2"
            taps = f
        elif kind == "first":
            c, f, stride = r.randint(1, 8), r.choice([3, 3, 4, 5, 7]), r.choice([1, 2, 2])
            text = (f"n{batch}h{stride * h}w{stride * w}c{c}k{k}r{f}s{f}ph{f // 2}sh{stride}"
                    f"pw{f // 2}sw{stride}")
            taps = f * f
        elif kind == "groups":
            groups, f, stride = r.choice([2, 4, 8, 16, 32]), r.choice([1, 3, 3, 5]), \
                r.choice([1, 1, 2])
            c, k = (max(8, round(v / groups / 8) * 8) for v in (c, k))  # of a group
            text = (f"n{batch}h{stride * h}w{stride * w}c{groups * c}k{groups * k}r{f}s{f}"
                    f"ph{f // 2}sh{stride}pw{f // 2}sw{stride}g{groups}")
            c, k, taps = groups * c, groups * k, f * f / groups
        elif kind == "volume stride":
            d = r.choice([2, 4, 8])
            side = max(1, round(math.sqrt(pixels / d)))
            text = f"n1d{2 * d}h{2 * side}w{2 * side}c{c}k{k}t3r3s3pd1sd2ph1sh2pw1sw2"
            taps = 27
        else:
            d = r.choice([2, 4, 8, 16])
            side = max(1, round(math.sqrt(pixels / d)))
            text, taps = f"n1d{d}h{side}w{side}c{c}k{k}t3r3s3pd1ph1pw1", 27
        # NOTE: of what was drawn; what rounding makes of it differs by little.
        too_long = 2.0 * pixels * c * k * taps > 60e9
        if too_long or 2.0 * (pixels * (c + k) + c * k * taps) > 200e6:
            continue
        dtype = r.choice(["bf16", "bf16", "fp16"])
        epilogue = r.choice(MORE_EPILOGUES if seed >= MORE else EPILOGUES)
        return f"{text} count=1 dtype={dtype} epilogue={epilogue} name=random.{seed}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:1000", help="FIRST:LAST, the last left out")
    first, last = map(int, parser.parse_args().seeds.split(":"))
    for seed in range(first, last):
        print(layer(seed))


if __name__ == "__main__":
    main()
