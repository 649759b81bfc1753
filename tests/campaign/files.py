#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Malformed files and misused options by the thousand: the program ends soon, in little memory,
with an exit code that is documented and, where it refuses, one line.

usage: files.py CONVOY [--count N] [--seed S]

A line that fails is printed with its seed; its file stays in the folder that is named.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import program_case as case

SANITIZED = bool(os.environ.get("CONVOY_SANITIZED"))
MOST_SECONDS = 60 if SANITIZED else 15  # Of one run, on a machine that does other things too.
MOST_BYTES = 1 << 30  # Of addresses, of a run of files of a few kilobytes.


def good_files(rng):
    values = [rng.uniform(-2, 2) for _ in range(4 * 4 * 4)]
    taps = [rng.uniform(-1, 1) for _ in range(4 * 9 * 4)]
    rows = [bytes(rng.randrange(256) for _ in range(12)) for _ in range(4)]
    kind = rng.choice(("fp32", "fp16", "bf16"))
    return {
        "x.npy": case.npy_bytes((1, 4, 4, 4), values, kind),
        "w.npy": case.npy_bytes((4, 3, 3, 4), taps, kind),
        "x.safetensors": case.safetensors_bytes({"x": ((1, 4, 4, 4), values, kind),
                                                 "y": ((4,), values[:4], kind)}),
        "x.png": case.png_bytes(4, 4, rows),
        "x.jpg": rng.choice((case.JPEG_BASELINE, case.JPEG_PROGRESSIVE)),
        "tuning.txt": b"convoy-tuning 2\n1.5 onednn | cpu | bf16>bf16 packed | plain | "
                      b"n1 d0+1 h4 w4 c4 k4 f1x1x1 s1x1x1 l1x1x1 p0x0x0:0x0x0 g1 u1 zzz\n",
        "shapes.txt": b"n1h4w4c4k4r3s3ph1pw1 count=2 name=a\nmb1ic4oc4ih4kh3ph1\n",
    }


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        kind = rng.randrange(7)
        at = rng.randrange(len(data)) if data else 0
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, ord("9"), ord('"')))
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        elif kind == 4:
            number = rng.choice((0, 1, 2**31, 2**32, 2**62, 2**64 - 1))
            data[at : at + 8] = struct.pack("<Q", number)
        elif kind == 5:
            data[at : at + 4] = struct.pack(">I", rng.choice((0, 2**31 - 1, 2**31, 2**32 - 1)))
        else:
            data[at:at] = data[at : at + rng.randrange(1, 64)]
    return bytes(data)


def mend_png(data):
    """Checksums that hold again, so that what is behind them is read too."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + length]
        if len(body) < 4 + length:
            break
        out += data[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(out) + data[at:]


OPTIONS = ("--pad", "--stride", "--dilation", "--groups", "--scale", "--activation", "--dtype",
           "--filter-layout", "--upsample", "--pad-mode", "--output-dtype", "--kernel", "--beta",
           "--bias", "--residual", "--device", "--upsample-folding", "--shuffle", "--shuffle-order",
           "--shortcut", "--norm", "--norm-activation")
BENCH_OPTIONS = ("--shards", "--axis", "--runs", "--seed", "--dtype", "--norm", "--bias", "--csv",
                 "--activation", "--kernel", "--verify", "--json")
EXPLAIN_OPTIONS = ("--statistics", "--shuffle", "--drop-frames", "--shuffle-order", "--gpu",
                   "--norm", "--dtype", "--dense-filter", "--output-dtype", "--json")
WORDS = ("0", "1", "-1", "2", "3,4", "1,2,3,4", "99999999999999999999", "1e99", "nan", "", "zero",
         "relu", "clamp:1", "clamp:nan,1", "leaky_relu:", "KCRS", "bf16", "x.npy", "\x1b[31m",
         "w.npy", "fast", "2147483648", "cpu", "--", "-", "onednn", "reflect", "each_step", "2,2",
         "inner", "tiled", "interleaved", "group", "rms", "height", "batch", "4", "h200")


def random_command(rng, files):
    """(arguments, environment) of one run."""
    environment = {}
    which = rng.randrange(10)
    if which < 6:
        name = rng.choice(("x.npy", "x.safetensors", "x.png", "x.jpg", "w.npy"))
        files[name] = mutate(rng, files[name])
        if name == "x.png" and rng.random() < 0.7:
            files[name] = mend_png(files[name])
        x = {"x.safetensors": "x.safetensors:x", "w.npy": "x.npy"}.get(name, name)
        command = ["conv2d", "--input", x, "--filter", "w.npy", "--output", "y.npy"]
        if rng.random() < 0.4:
            command = ["view", "x.safetensors:x" if "safe" in name else name, "--output", "v.png"]
    elif which == 6:
        files["shapes.txt"] = mutate(rng, files["shapes.txt"])
        command = ["explain", "./shapes.txt"]
    elif which == 7:
        files["tuning.txt"] = mutate(rng, files["tuning.txt"])
        environment["CONVOY_TUNING"] = "tuning.txt"
        command = ["explain", "n1h4w4c4k4"]
    else:
        command, options = rng.choice((
            (["conv2d", "--input", "x.npy", "--filter", "w.npy", "--output", "y.npy"], OPTIONS),
            (["bench", "n2h6w5c4k4r3s3ph1pw1", "--device", "cpu", "--runs", "1"], BENCH_OPTIONS),
            (["explain", "n2d3h6w5c4k8t2r3s3"], EXPLAIN_OPTIONS)))
        for _ in range(rng.randrange(1, 5)):
            command.append(rng.choice(options))
            if rng.random() < 0.9:
                command.append(rng.choice(WORDS))
    if command[0] == "conv2d" and "--device" not in command:
        command += ["--device", "cpu"]
    return command, environment


def limited():
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(program, seed):
    """(exit code, what is wrong or nothing)"""
    rng = random.Random(seed)
    files = good_files(rng)
    command, environment = random_command(rng, files)
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            pathlib.Path(folder, name).write_bytes(data)
        begin = time.monotonic()
        try:
            done = subprocess.run(
                [program, *command], capture_output=True, text=True, errors="replace", cwd=folder,
                timeout=MOST_SECONDS, preexec_fn=limited,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
        except subprocess.TimeoutExpired:
            return None, f"seed {seed}: {command} runs for {time.monotonic() - begin:.0f} s"
        except ValueError:  # A null character in an argument.
            return 2, ""
        errors = done.stderr.strip().splitlines()
        wrong = ""
        if done.returncode not in (0, 1, 2, 3) or "Sanitizer" in done.stderr:
            wrong = f"exit code {done.returncode}: {done.stderr[-500:]}"
        elif done.returncode in (2, 3) and sum(e.startswith("convoy: error") for e in errors) != 1:
            wrong = f"exit code {done.returncode} with {done.stderr!r}"
        elif done.returncode == 3:
            wrong = f"out of memory: {done.stderr[-300:]}"
        elif any(ord(c) < 32 and c != "\n" for c in done.stdout + done.stderr):
            wrong = f"control characters: {(done.stdout + done.stderr)!r}"
        elif any(".part-" in name for name in os.listdir(folder)):
            wrong = f"left behind: {os.listdir(folder)}"
        return done.returncode, f"seed {seed}: {command}: {wrong}" if wrong else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("convoy")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    program = os.path.abspath(options.convoy)
    codes, wrong = collections.Counter(), []
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        seeds = range(options.seed, options.seed + options.count)
        for code, problem in pool.map(lambda seed: run(program, seed), seeds):
            codes[code] += 1
            if problem:
                wrong.append(problem)
                print(problem, flush=True)
    ended = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items(), key=str))
    seconds = time.monotonic() - begin
    print(f"{options.count} runs from seed {options.seed} in {seconds:.0f} s: exit codes {ended}; "
          f"{len(wrong)} wrong")
    return int(bool(wrong) or codes[0] == 0 or codes[2] == 0)


if __name__ == "__main__":
    sys.exit(main())
