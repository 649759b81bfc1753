#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What fused epilogues cost over the plain convolution, on layers of long and short K loops.

    bench/sm90/fused.py [--program build/default/bin/convoy] > bench/results/h200/fused.csv
    bench/sm90/fused.py --library before=build/old --library after=build/default   # two builds

Rounds of one process an epilogue, each timing every shape; the table of ratios (median over the
rounds, and of the fastest runs) goes to stderr. With several libraries the rounds alternate.
"""
import argparse
import csv
import os
import statistics
import subprocess
import sys

SHAPES = [
    "n1h1024w1024c128k128r3s3ph1pw1", "n1h512w512c256k256r3s3ph1pw1",
    "n1h256w256c512k512r3s3ph1pw1",
    "n1h128w128c384k384r1s1", "n1h512w512c512k256r1s1", "n1h64w64c256k128r3s3ph1pw1",
    "n1d2h120w208c384k384t3r3s3ph1pw1cache2",
]
OPTIONS = ["", "--bias", "--bias --activation silu", "--bias --activation silu --residual",
           "--bias --activation gelu"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/default/bin/convoy")
    parser.add_argument("--library", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", default="0.08")
    parser.add_argument("--kernel", help="this kernel for all shapes")
    parser.add_argument("shapes", nargs="*")
    o = parser.parse_args()
    shapes = o.shapes or SHAPES
    libraries = [entry.split("=", 1) for entry in o.library] or [["", None]]
    out = csv.writer(sys.stdout, lineterminator="\n")
    head = ["problem", "options", "run", "kernel", "runs", "median_us", "min_us"]
    out.writerow(head + (["library"] if o.library else []))
    times = {}
    for round_ in range(1, o.rounds + 1):
        for options in OPTIONS:
            for name, folder in libraries:
                environment = dict(os.environ)
                if folder:
                    environment["LD_LIBRARY_PATH"] = ":".join(
                        [folder] + environment.get("LD_LIBRARY_PATH", "").split(":"))
                text = subprocess.run(
                    [o.program, "bench", "--device", "cuda", "--csv", "--time", o.time]
                    + (["--kernel", o.kernel] if o.kernel else []) + options.split() + shapes,
                    env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
                for row in csv.DictReader(text.splitlines()):
                    out.writerow([row["problem"], options, round_, row["kernel"], row["runs"],
                                  row["median_us"], row["min_us"]] + ([name] if o.library else []))
                    times.setdefault((row["problem"], options, name), []).append(
                        (float(row["median_us"]), float(row["min_us"]), row["kernel"]))
                sys.stdout.flush()
    for name, _ in libraries:
        print(f"{name}\n{'problem':42}{'plain us':>10}" +
              "".join(f"{option or 'again':>40}"[-26:] for option in OPTIONS[1:]), file=sys.stderr)
        for problem in dict.fromkeys(key[0] for key in times):
            def of(option, which):
                return statistics.median(t[which] for t in times[problem, option, name])
            print(f"{problem:42}{of('', 0):10.1f}" + "".join(
                f"{of(option, 0) / of('', 0):18.3f} ({of(option, 1) / of('', 1):.3f})"
                for option in OPTIONS[1:]) + "  " + times[problem, OPTIONS[2], name][0][2],
                file=sys.stderr)


main()
