#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds of the virtual GPU on programs, in turns.

    vgpu/tests/compare_speed.py OLD NEW [--gpu h200] [--checks none,all] [--rounds 9]
                                [--instructions] -- PROGRAM [ARGUMENT ...] [-- PROGRAM ...]

OLD and NEW are folders with libcudart.so.13 (lib/vgpu of a build). Prints the processor time of
each (the least of the rounds, and the median of the rounds' ratios), or with --instructions the
instructions that valgrind's callgrind counts, which do not depend on what else the machine does.
"""
import argparse
import os
import re
import resource
import statistics
import subprocess
import sys


def environment(library: str, gpu: str, checks: str) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": library, "VGPU_GPU": gpu, "VGPU_CHECK": checks,
            "VGPU_LOG": "0"}


def run(command: list[str], variables: dict[str, str], errors: int) -> str:
    """Runs it, whatever its exit status: programs end as their checks do. Gives what it said."""
    result = subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, stderr=errors,
                            text=True, check=False)
    if result.returncode < 0:
        sys.exit(f"compare_speed: {command[0]} ended by signal {-result.returncode} "
                 f"({variables['LD_LIBRARY_PATH']})")
    return result.stderr or ""


def seconds(command: list[str], variables: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(command, variables, subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def instructions(command: list[str], variables: dict[str, str]) -> float:
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command]
    said = run(valgrind, variables, subprocess.PIPE)
    found = re.search(r"Collected : (\d+)", said)
    if not found:
        sys.exit(f"compare_speed: valgrind counted nothing:\n{said}")
    return int(found[1]) / 1e6


def compare(options: argparse.Namespace, command: list[str], checks: str) -> str:
    measure = instructions if options.instructions else seconds
    rounds = 1 if options.instructions else options.rounds
    variables = [environment(library, options.gpu, checks) for library in (options.old, options.new)]
    times: list[list[float]] = [[], []]
    for turn in range(rounds):
        # Whoever goes first alternates too.
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            times[which].append(measure(command, variables[which]))
    ratio = statistics.median(new / old for old, new in zip(*times))
    name = " ".join([os.path.basename(command[0]), *command[1:]])
    unit = "M" if options.instructions else "s"
    return (f"{name:40} {checks:6} {min(times[0]):9.3f} {unit} {min(times[1]):9.3f} {unit}"
            f"  least {min(times[1]) / min(times[0]):.3f}  median {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--checks", default="none,all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--instructions", action="store_true")
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    programs: list[list[str]] = [[]]
    for word in arguments[split + 1:]:
        if word == "--":
            programs.append([])
        else:
            programs[-1].append(word)
    if options.rounds < 1 or not all(programs):
        parser.error("rounds from 1, and a program behind each --")
    print(f"{'program':40} {'checks':6} {'old':>11} {'new':>11}  new / old")
    for command in programs:
        for checks in options.checks.split(","):
            print(compare(options, command, checks), flush=True)


if __name__ == "__main__":
    main()
