#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the correction of model times (src/kernels/common/time_correction.hpp); write its weights.

    bench/shapes/wild.py --seeds 1000000:1003000 --layers 16 > layers.txt
    bench/shapes/random_layers.py --seeds 20000:38000 >> layers.txt
    build/gpu/bin/convoy_measure_kernels --csv h200.csv --runs 7 --reach 1.35 --sample 0.01 \\
        layers.txt                  # on an H200: ten minutes
    build/gpu/bin/convoy_correction_inputs --corrected h200.csv > inputs.csv
    for i in 1 2 3 4 5 6 7 8; do for s in 35000 36000; do  # 400 layers of an H100, eight times
        build/gpu/bin/convoy_correction_inputs --memory-gbs 3352 \\
            bench/results/h100/choice_$s.csv > h100_$s.$i.csv
    done; done
    bench/choice/train_correction.py inputs.csv h100_*.csv --judge 0 \\
        --write src/kernels/common/time_correction_half.inc

The kernels that a layer is measured with are those that seem fast; of the others the network knows
little, and some of them seem fast to it. So a build with its weights measures some of the layers
again (--reach 1.25), and it is trained on all of these times, each measurement a file.

That is the network of 16-bit elements. The one of TF32 is trained on times of layers without types,
measured with --dtype fp32: --name kTf32, written to time_correction_tf32.inc, --hidden 96.

--start: weights to train on from. --taught: what the networks of the build say of any layers, which
must not be forgotten (convoy_correction_inputs --shapes --taught-gbs 3352: of an H100).

A layer is trained on or kept for judging as a whole: --judge says which share is kept, --folds N
trains N times and judges each layer once. Printed is the regret of choices: the time of the kernel
that the corrected times choose over that of the fastest measured one. Minimised is the error of
the logarithm of each time, where a row counts the more, the nearer its kernel is to the fastest of
the layer, or seems to be; and the regret to be expected where kernels are chosen by chance, the
one that seems faster more often. Unlike the fastest of noisy times, that mean is right.
"""

import argparse
import csv
import math
import random
import re

import torch

REACH = 0.15  # A kernel that is, or seems, so much slower than the fastest counts 1/e.
LIMIT = 0.5   # Of the logarithm of a correction, as in time_correction.cpp.
TAUGHT = 0.4  # What --taught counts, beside what was measured.
CHOICE = 4    # What the expected regret counts, beside the error of logarithms.
CHANCE = 0.03  # A kernel that seems so much slower than another is chosen 1/e times as often.
WORST = 0.6   # A larger regret counts as this one.
LAYERS = 160  # Of a step.


class Correction(torch.nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.first = torch.nn.Linear(inputs, hidden)
        self.second = torch.nn.Linear(hidden, hidden)
        self.last = torch.nn.Linear(hidden, 1)
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
    network = Correction(*reversed(weights["first.weight"].shape))
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
        self.by_layer = torch.argsort(self.layer)
        self.count = torch.bincount(self.layer)
        self.first = torch.cumsum(self.count, 0) - self.count

    def of(self, layers):
        """The rows of `layers`, and the place among those of each one's layer."""
        rows = torch.cat([self.by_layer[self.first[i]:self.first[i] + self.count[i]]
                          for i in layers.tolist()])
        places = torch.arange(len(layers), device=rows.device)
        return rows, places.repeat_interleave(self.count[layers])

    def cost(self, network, x, layers):
        """What is minimised, of `layers`; x: the inputs as the network takes them."""
        rows, place = self.of(layers)
        corrections = network(x[rows])
        # A slow kernel that seems fast would be chosen.
        seems = torch.minimum(self.us[rows],
                              self.model[rows] * torch.exp(corrections.detach()))
        best = self.best[self.layer[rows]]
        weight = torch.exp(-(seems / best - 1).clamp(min=0) / REACH)
        target = self.target[rows].clamp(-0.99 * LIMIT, 0.99 * LIMIT)
        error = (weight * (corrections - target).abs()).sum() / weight.sum()
        likely = -(torch.log(self.model[rows]) + corrections) / CHANCE
        most = torch.full((len(layers),), -1e9, device=x.device)
        most = most.scatter_reduce(0, place, likely.detach(), "amax")
        chance = torch.exp(likely - most[place])
        whole = torch.zeros(len(layers), device=x.device).index_add(0, place, chance)
        regret = chance / whole[place] * (self.us[rows] / best - 1).clamp(max=WORST)
        return error + CHOICE * regret.sum() / len(layers)

    def regrets(self, corrections, rows):
        """Of each layer among `rows`."""
        predicted = (self.model[rows] * torch.exp(corrections)).tolist()
        best, chosen = self.best.tolist(), {}
        for at, measured, us in zip(self.layer[rows].tolist(), self.us[rows].tolist(), predicted):
            if at not in chosen or us < chosen[at][0]:
                chosen[at] = (us, measured)
        return {at: us / best[at] for at, (_, us) in chosen.items()}


def train(rows, layers, options, taught=None):
    torch.manual_seed(0)
    start, epochs = options.start, options.epochs
    mean, scale = rows.x.mean(0), rows.x.std(0) + 1e-3
    x = (rows.x - mean) / scale
    network = Correction(x.shape[1], options.hidden)
    if start:
        network = read_weights(start)
        with torch.no_grad():
            network.first.bias += network.first.weight @ mean.cpu()
            network.first.weight *= scale.cpu()
    network = network.to(x.device)
    rate, decay = (2e-3, 0.003) if start else (4e-3, 0.01)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    if taught:
        taught_x = (taught.x - mean) / scale
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 + math.cos(math.pi * epoch / epochs)) / 2 + 1e-5
        for batch in layers[torch.randperm(len(layers)).to(x.device)].split(LAYERS):
            loss = rows.cost(network, x, batch)
            if taught:
                some = torch.randint(len(taught.names), (LAYERS // 10,), device=x.device)
                loss += TAUGHT * taught.cost(network, taught_x, some)
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
                   f"constexpr Network<{len(network.first.bias)}> {name} = {{\n"
                   + ",\n".join(parts) + "};\n"
                   "// clang-format on\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--write", help="the weights, trained on all that is not kept")
    parser.add_argument(
        "--name", default="kHalfPrecision", help="of the network, or kTf32"
    )
    parser.add_argument("--start", help="weights to train on from")
    parser.add_argument("--taught", nargs="*", help="times that they give for other layers")
    parser.add_argument("--judge", type=float, default=0.05)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=160, help="units of each hidden layer")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    rows = Rows(options.inputs, options.device)
    taught = Rows(options.taught, options.device) if options.taught else None
    everything = torch.arange(len(rows.us), device=options.device)
    print(f"{len(rows.us)} times of {len(rows.names)} layers")
    report("not corrected", rows.regrets(torch.zeros_like(rows.us), everything))
    random.seed(1)
    # The same layer on two GPUs is one.
    draw = {}
    order = [draw.setdefault(name[1:], random.random()) for name in rows.names]
    order = torch.tensor(order, device=options.device)
    place = order[rows.layer]
    judged = {}
    for fold in range(options.folds):
        kept = (place >= fold / options.folds) & (place < (fold + 1) / options.folds)
        others = (order < fold / options.folds) | (order >= (fold + 1) / options.folds)
        network = train(rows, others.nonzero()[:, 0], options, taught)
        with torch.no_grad():
            fold_regrets = rows.regrets(network(rows.x[kept]), everything[kept])
        report(f"fold {fold}", fold_regrets)
        judged |= fold_regrets
    if options.folds:
        report("all folds", judged)
    if options.write:
        kept = place < options.judge
        layers = (order >= options.judge).nonzero()[:, 0]
        network = train(rows, layers, options, taught)
        with torch.no_grad():
            report("trained on", rows.regrets(network(rows.x[~kept]), everything[~kept]))
            if kept.any():
                report("kept", rows.regrets(network(rows.x[kept]), everything[kept]))
        write(network, options.write, options.name)


if __name__ == "__main__":
    main()
