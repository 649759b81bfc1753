#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How good the model's choices are, by the file that `convoy tune --csv` writes.

    bench/sm90/model_regret.py bench/results/h200/tune.csv
"""
import collections
import csv
import sys

kernels = collections.defaultdict(list)
for row in csv.DictReader(open(sys.argv[1])):
    kernels[row["problem"]].append((float(row["modelled_us"]), float(row["us"]), row["kernel"]))
regret = sorted(((min(rows)[1] / min(us for _, us, _ in rows), problem, min(rows)[2])
                 for problem, rows in kernels.items()), reverse=True)
print(f"within 5 %: {sum(r[0] <= 1.05 for r in regret)} of {len(regret)}; "
      f"mean {sum(r[0] for r in regret) / len(regret):.4f}; the worst:")
for ratio, problem, kernel in regret[:8]:
    print(f"  {ratio:.3f}  {problem}  {kernel}")
