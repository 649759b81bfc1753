#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the warps of a kernel wait, by lines of 128 bytes of its code.

Reads what Nsight Compute samples of one launch with cold caches:

    ncu --cache-control all --clock-control none --section SourceCounters \\
        --warp-sampling-interval 0 --page source --csv --print-source sass \\
        -k regex:conv_fprop --launch-skip 2 --launch-count 1 \\
        convoy bench n4h24w24c120k120r1s1 --dtype bf16 --runs 5 > samples.csv
    stalls_by_line.py samples.csv

and prints the reasons of all samples, then each line that was executed: how often (by warps), its
samples, and the reasons with more than --least of them. `no_inst` is code that was not there yet,
`imc` a constant; a line behind a gap ("...") is behind a jump, where the prefetcher starts anew.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

INSTRUCTIONS_A_LINE = 8


def samples(path: Path) -> list[dict[str, str]]:
    """The rows of the table, one an instruction, without what is printed around it."""
    lines = path.read_text().splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith('"Address"')]
    if not heads:
        raise SystemExit(f"{path}: no table of instructions; legal: ncu's --page source --csv")
    return [row for row in csv.DictReader(lines[heads[0] :]) if row["Address"]]


def reasons(rows: list[dict[str, str]]) -> Counter[str]:
    """Samples by reason."""
    counts: Counter[str] = Counter()
    for row in rows:
        for column, value in row.items():
            if column.startswith("stall_") and "Not" not in column:
                counts[column.removeprefix("stall_")] += int(value or 0)
    return counts


def in_words(counts: Counter[str], least: int) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in counts.most_common() if n > least)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("samples", type=Path)
    parser.add_argument("--least", type=int, default=5, help="samples not worth a word")
    options = parser.parse_args()

    rows = samples(options.samples)
    executed = [int(row["Instructions Executed"] or 0) for row in rows]
    total = sum(int(row["# Samples"] or 0) for row in rows)
    ran = sum(n > 0 for n in executed)
    print(f"{len(rows)} instructions, {ran} of them executed; {total} samples:")
    print(in_words(reasons(rows), 0))
    print("\ninstruction  executed  samples")
    skipped = False
    for first in range(0, len(rows), INSTRUCTIONS_A_LINE):
        line = rows[first : first + INSTRUCTIONS_A_LINE]
        times = max(executed[first : first + INSTRUCTIONS_A_LINE])
        if times == 0:
            skipped = True
            continue
        if skipped:
            print("        ...")
        skipped = False
        count = sum(int(row["# Samples"] or 0) for row in line)
        why = in_words(reasons(line), options.least)
        print(f"{first:11d} {times:9d} {count:8d}  {why}".rstrip())


if __name__ == "__main__":
    main()
