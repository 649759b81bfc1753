#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers of no network: extents, channels and filters drawn at random, for fits that must hold
between the layers of published networks (wild.py).

    bench/shapes/random_layers.py --seeds 0:2500 > random.txt

A seed is a layer, the same everywhere. Two of three filters are 1x1; channels are 8 to 4096, mostly
multiples of 8, pixels 49 to 400,000, both evenly on a logarithmic scale; at most 60 GFLOP and
200 MB. Lines are those of shape files, as of wild.py.
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


def layer(seed):
    r = random.Random(f"layer {seed}")
    while True:
        kind = r.choices(["1x1", "3x3", "3x3 stride", "1x1 stride", "large", "line", "volume"],
                         [64, 16, 5, 3, 4, 3, 5])[0]
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
        else:
            d = r.choice([2, 4, 8, 16])
            side = max(1, round(math.sqrt(pixels / d)))
            text, taps = f"n1d{d}h{side}w{side}c{c}k{k}t3r3s3pd1ph1pw1", 27
        # NOTE: of what was drawn; what rounding makes of it differs by little.
        too_long = 2.0 * pixels * c * k * taps > 60e9
        if too_long or 2.0 * (pixels * (c + k) + c * k * taps) > 200e6:
            continue
        dtype = r.choice(["bf16", "bf16", "fp16"])
        epilogue = r.choice(["none"] * 5 + ["bias"] * 3 + ["bias+relu", "bias+silu", "bias+gelu",
                                                           "bias+residual", "bias+relu+residual"])
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
