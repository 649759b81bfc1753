#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two outputs of vgpu_probe: that of an H200 and that of the virtual one.

    compare.py h200.txt -- COMMAND...        runs the command and compares its output

Every line must be equal, word for word, except:
- "wgmma real": sums of real data round in an order the hardware does not tell. The shown words may
  differ by a fraction of the largest value of their line (BOUNDS).
- "approx": approximate functions, whose last bits PTX leaves open. They must answer, no more.
Exit status 1 when something else differs.
"""

import math
import pathlib
import struct
import subprocess
import sys

# Accumulator and operand type -> fraction of the largest value. NOTE: the tensor cores of an H200
# add products of 8-bit floats with about 13 bits.
BOUNDS = {("f32", "bf16"): 2.0**-21, ("f32", "f16"): 2.0**-21, ("f32", "tf32"): 2.0**-21,
          ("f32", "e4m3"): 2.0**-12, ("f32", "e5m2"): 2.0**-12,
          ("f16", "f16"): 2.0**-9, ("f16", "e4m3"): 2.0**-9, ("f16", "e5m2"): 2.0**-9}


def parse(text):
    return dict(line.rstrip().split(":", 1) for line in text.splitlines() if ":" in line)


def values(result, accumulator):
    words = [int(word, 16) for word in result.split()[1:]]
    if accumulator == "f32":
        return [struct.unpack("<f", struct.pack("<I", word))[0] for word in words]
    return [value for word in words for value in struct.unpack("<2e", struct.pack("<I", word))]


def within_bound(name, expected, got):
    accumulator, a, _ = name.split()[3].split(".")
    if "error" in got:
        return False
    x, y = values(expected, accumulator), values(got, accumulator)
    largest = max(abs(value) for value in x if math.isfinite(value))
    # Infinities must be equal; NaN compares as false, so it fails.
    return len(x) == len(y) and all(
        p == q or abs(p - q) <= BOUNDS[accumulator, a] * largest for p, q in zip(x, y))


def main():
    split = sys.argv.index("--")
    expected = parse(pathlib.Path(sys.argv[1]).read_text())
    run = subprocess.run(sys.argv[split + 1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         text=True)
    got = parse(run.stdout)
    exact = bounded = answered = 0
    problems = [f"no case '{name}' in h200.txt" for name in got if name not in expected]
    for name, result in expected.items():
        if name not in got:
            problems.append(f"{name}: not run")
        elif name.startswith("wgmma real"):
            bounded += 1
            if not within_bound(name, result, got[name]):
                problems.append(f"{name}: outside the bound\n"
                                f"  H200    {result}\n  virtual {got[name]}")
        elif name.startswith("approx"):
            answered += 1
            if "error" in got[name] or "no answer" in got[name]:
                problems.append(f"{name}: {got[name]}")
        else:
            exact += 1
            if got[name] != result:
                problems.append(f"{name}:\n  H200    {result}\n  virtual {got[name]}")
    print("\n".join(problems))
    print(f"{exact} cases compared word for word, {bounded} within a bound, "
          f"{answered} approximate; {len(problems)} differ; exit status of the run {run.returncode}")
    return 1 if problems or run.returncode or not exact else 0


sys.exit(main())
