#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the correction of model times (src/kernels/common/time_correction.hpp); write its weights.

    bench/shapes/wild.py --seeds 0:1000 --layers 16 > layers.txt
    bench/shapes/random_layers.py --seeds 0:7000 >> layers.txt
    build/gpu/bin/convoy_measure_kernels --uncorrected --csv cold.csv --runs 7 --reach 1.5 \\
        --sample 0.03 layers.txt    # on a GPU: once an H100, once an H200, both with --twice again
    build/gpu/bin/convoy_correction_inputs --memory-gbs 3352 cold.csv warm.csv > h100.csv
    bench/choice/train_correction.py h100.csv h200.csv \\
        --write src/kernels/common/time_correction_half.inc

That is the network of 16-bit elements. The one of TF32 is trained on times of layers without types,
measured with --dtype fp32: --name kTf32, written to time_correction_tf32.inc.

Where a GPU is not to be had, --taught-gbs of convoy_correction_inputs stands in for its times.

New tiles beside others that a network knows (before/ is the build that it comes with):

    before/convoy_correction_inputs --corrected --taught-gbs 4814 times.csv > known.csv
    before/convoy_correction_inputs --shapes --taught-gbs 4814 layers.txt > h200.csv
    before/convoy_correction_inputs --shapes --taught-gbs 3352 layers.txt > h100.csv
    convoy_correction_inputs --corrected times.csv > new.csv
    bench/choice/train_correction.py new.csv --known known.csv --taught h200.csv h100.csv \\
        --start src/kernels/common/time_correction_tiles.inc --name kHopperTiles --write ...

--start: weights to train on from. --known: what they say of the measured rows; a layer's times are
brought to their level, where other kernels' times are. --taught: what they say of any layers, which
must not be forgotten.

A layer is trained on or kept for judging as a whole: --judge says which share is kept, --folds N
trains N times and judges each layer once. Printed is the regret of choices: the time of the kernel
that the corrected times choose over that of the fastest measured one. Minimised is the error of
the logarithm of each time. A row counts the more, the nearer its kernel is to the fastest of the
layer, or seems to be.
"""

import argparse
import csv
import math
import random
import re

import torch

HIDDEN = 96
REACH = 0.15  # A kernel that is, or seems, so much slower than the fastest counts 1/e.
LIMIT = 0.5   # Of the logarithm of a correction, as in time_correction.cpp.
TAUGHT = 0.4  # What rows of --taught count, beside measured ones.


class Correction(torch.nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.first = torch.nn.Linear(inputs, HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, HIDDEN)
        self.last = torch.nn.Linear(HIDDEN, 1)
        torch.nn.init.zeros_(self.last.weight)
        torch.nn.init.zeros_(self.last.bias)

    def forward(self, x):
        x = torch.nn.functional.silu(self.first(x))
        x = torch.nn.functional.silu(self.second(x))
        return LIMIT * torch.tanh(self.last(x)[:, 0])


def read_weights(path):
    """The network of a file that write() made."""
    with open(path) as file:
        parts = re.split(r"\.(first|second|last)(_bias)? = ", file.read())[1:]
    weights = {}
    for name, bias, text in zip(parts[::3], parts[1::3], parts[2::3]):
        rows = [
            [float(v.rstrip("f")) for v in row.split(", ")]
            for row in re.findall(r"\{([^{}]+)\}", text)
        ]
        key = name + (".bias" if bias else ".weight")
        weights[key] = torch.tensor(rows[0]) if bias else torch.tensor(rows).T
    network = Correction(weights["first.weight"].shape[1])
    network.load_state_dict(weights)
    return network


class Rows:
    """Measured times: x [rows, inputs], the layer of each, its logarithm over the model's."""

    def __init__(self, paths, device):
        layers, x, layer, us, model, names = {}, [], [], [], [], []
        for path in paths:
            with open(path, newline="") as file:
                for row in csv.reader(file):
                    if row[0] == "problem":
                        continue
                    key = (path, row[0], row[1], row[2])
                    layer.append(layers.setdefault(key, len(layers)))
                    names.append(tuple(row[:5]))
                    us.append(float(row[5]))
                    model.append(float(row[6]))
                    x.append([float(v) for v in row[7:]])
        self.names, self.rows = list(layers), names
        self.x, self.layer = torch.tensor(x, device=device), torch.tensor(layer, device=device)
        self.us, self.model = torch.tensor(us, device=device), torch.tensor(model, device=device)
        self.target = torch.log(self.us / self.model)
        none = torch.full((len(layers),), 1e9, device=device)
        self.best = none.scatter_reduce(0, self.layer, self.us, "amin")

    def level(self, path):
        """Bring each layer to the level of the times in `path`: by its known fast kernels."""
        with open(path, newline="") as file:
            known = {tuple(row[:5]): float(row[5]) for row in list(csv.reader(file))[1:]}
        offsets = {}
        for name, at, us in zip(self.rows, self.layer.tolist(), self.us.tolist()):
            if name in known and us < 1.12 * float(self.best[at]):
                offsets.setdefault(at, []).append(math.log(us / known[name]))
        means = {at: sum(values) / len(values) for at, values in offsets.items()}
        usual = sum(means.values()) / len(means)
        off = torch.tensor([means.get(at, usual) for at in range(len(self.names))])
        off = off.to(self.us.device)
        self.target -= off[self.layer]
        self.us *= torch.exp(-off)[self.layer]
        self.best *= torch.exp(-off)

    def regrets(self, corrections, rows):
        """Of each layer among `rows`."""
        predicted = (self.model[rows] * torch.exp(corrections)).tolist()
        best, chosen = self.best.tolist(), {}
        for at, measured, us in zip(self.layer[rows].tolist(), self.us[rows].tolist(), predicted):
            if at not in chosen or us < chosen[at][0]:
                chosen[at] = (us, measured)
        return {at: us / best[at] for at, (_, us) in chosen.items()}


def train(rows, chosen, epochs, start=None, taught=None, seed=0):
    torch.manual_seed(seed)
    mean, scale = rows.x[chosen].mean(0), rows.x[chosen].std(0) + 1e-3
    x = (rows.x - mean) / scale
    network = Correction(x.shape[1])
    if start:
        network = read_weights(start)
        with torch.no_grad():
            network.first.bias += network.first.weight @ mean.cpu()
            network.first.weight *= scale.cpu()
    network = network.to(x.device)
    rate, decay = (3e-3, 0.003) if start else (4e-3, 0.01)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    if taught:
        taught_x = (taught.x - mean) / scale
        taught_weight = torch.exp(-(taught.us / taught.best[taught.layer] - 1) / REACH)
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 + math.cos(math.pi * epoch / epochs)) / 2 + 1e-5
        for batch in chosen[torch.randperm(len(chosen)).to(x.device)].split(1024):
            corrections = network(x[batch])
            # A slow kernel that seems fast would be chosen.
            seems = torch.minimum(rows.us[batch],
                                  rows.model[batch] * torch.exp(corrections.detach()))
            weight = torch.exp(-(seems / rows.best[rows.layer[batch]] - 1).clamp(min=0) / REACH)
            loss = (weight * (corrections - rows.target[batch]).abs()).sum() / weight.sum()
            if taught:
                some = torch.randint(len(taught_x), (2048,), device=x.device)
                off = (network(taught_x[some]) - taught.target[some].clamp(-0.495, 0.495)).abs()
                loss += TAUGHT * (taught_weight[some] * off).sum() / taught_weight[some].sum()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
    # Of inputs as they are.
    with torch.no_grad():
        network.first.bias -= network.first.weight @ (mean / scale)
        network.first.weight /= scale
    return network


def report(title, regrets):
    values = sorted(regrets.values())
    count = len(values)
    shares = "  ".join(f"<= {at:.2f}: {sum(v <= at for v in values) / count:.3f}"
                       for at in (1.01, 1.03, 1.05, 1.1, 1.3))
    print(f"{title}: {count} layers, mean {sum(values) / count:.4f}  {shares}  "
          f"worst {values[-1]:.3f}", flush=True)


def write(network, path, name):
    def numbers(values):
        texts = (f"{value:.5g}" for value in values)
        return ", ".join(f"{text}f" if "." in text or "e" in text else f"{text}.0f"
                         for text in texts)

    parts = []
    for part in ("first", "second", "last"):
        layer = getattr(network, part)
        rows = "".join(f"    {{{numbers(row)}}},\n" for row in layer.weight.T.tolist())
        parts += [f".{part} = {{\n{rows}}}", f".{part}_bias = {{{numbers(layer.bias.tolist())}}}"]
    with open(path, "w") as file:
        file.write("// SPDX-License-Identifier: Apache-2.0\n//\n"
                   "// Written by bench/choice/train_correction.py.\n// clang-format off\n"
                   f"constexpr Network {name} = {{\n" + ",\n".join(parts) + "};\n"
                   "// clang-format on\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--write", help="the weights, trained on all that is not kept")
    parser.add_argument(
        "--name", default="kHalfPrecision", help="of the network, or kHopperTiles, kTf32"
    )
    parser.add_argument("--start", help="weights to train on from")
    parser.add_argument("--known", help="times that they give for the measured rows")
    parser.add_argument("--taught", nargs="*", help="times that they give for other layers")
    parser.add_argument("--judge", type=float, default=0.05)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=160)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    rows = Rows(options.inputs, options.device)
    if options.known:
        rows.level(options.known)
    taught = Rows(options.taught, options.device) if options.taught else None
    everything = torch.arange(len(rows.us), device=options.device)
    print(f"{len(rows.us)} times of {len(rows.names)} layers")
    report("not corrected", rows.regrets(torch.zeros_like(rows.us), everything))
    random.seed(1)
    # The same layer on two GPUs is one.
    draw = {}
    order = [draw.setdefault(name[1:], random.random()) for name in rows.names]
    place = torch.tensor(order, device=options.device)[rows.layer]
    judged = {}
    for fold in range(options.folds):
        kept = (place >= fold / options.folds) & (place < (fold + 1) / options.folds)
        network = train(rows, everything[~kept], options.epochs, options.start, taught)
        with torch.no_grad():
            fold_regrets = rows.regrets(network(rows.x[kept]), everything[kept])
        report(f"fold {fold}", fold_regrets)
        judged |= fold_regrets
    if options.folds:
        report("all folds", judged)
    if options.write:
        kept = place < options.judge
        network = train(rows, everything[~kept], options.epochs, options.start, taught)
        with torch.no_grad():
            report("trained on", rows.regrets(network(rows.x[~kept]), everything[~kept]))
            if kept.any():
                report("kept", rows.regrets(network(rows.x[kept]), everything[kept]))
        write(network, options.write, options.name)


if __name__ == "__main__":
    main()
