# SPDX-License-Identifier: Apache-2.0
"""What a call of an accelerated model costs the host: pictures so small that the CPU computes next
to nothing, beside the same models without Convoy. The minimum of several batches of calls.

    python bench/accelerate_host.py [NAME...]
    python bench/accelerate_host.py --compare FOLDER FOLDER [--rounds 5] [NAME...]

--compare: two folders that hold the package, in turns, a process each; medians of the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def models():
    """name: () -> (model, inputs)."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        """GroupNorm, SiLU, convolution, twice, and a sum."""

        def __init__(self, c=8):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(2, c), nn.GroupNorm(2, c)
            self.conv1, self.conv2 = (nn.Conv2d(c, c, 3, padding=1) for _ in range(2))

        def forward(self, x):
            h = self.conv1(F.silu(self.norm1(x)))
            return x + self.conv2(F.silu(self.norm2(h)))

    class Residual(nn.Module):
        """Of ResNet-50: three convolutions and batch norms, and a fourth where channels change."""

        def __init__(self, given, c, stride):
            super().__init__()
            conv = lambda i, o, r, s=1: nn.Conv2d(i, o, r, s, r // 2, bias=False)
            self.conv1, self.bn1 = conv(given, c, 1), nn.BatchNorm2d(c)
            self.conv2, self.bn2 = conv(c, c, 3, stride), nn.BatchNorm2d(c)
            self.conv3, self.bn3 = conv(c, 4 * c, 1), nn.BatchNorm2d(4 * c)
            self.relu, self.down = nn.ReLU(inplace=True), None
            if given != 4 * c:
                self.down = nn.Sequential(conv(given, 4 * c, 1, stride), nn.BatchNorm2d(4 * c))

        def forward(self, x):
            h = self.relu(self.bn1(self.conv1(x)))
            h = self.relu(self.bn2(self.conv2(h)))
            h = self.bn3(self.conv3(h))
            h += x if self.down is None else self.down(x)
            return self.relu(h)

    def resnet():
        c, given, parts = 4, 8, [nn.Conv2d(3, 8, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for level, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                parts.append(Residual(given, c, 2 if level and not i else 1))
                given = 4 * c
            c += 4
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 10)]
        return nn.Sequential(*parts), (torch.randn(1, 3, 32, 32),)

    def autoencoder():
        from diffusers import AutoencoderKL

        model = AutoencoderKL(block_out_channels=(8, 8, 8, 8), norm_num_groups=4,
                              down_block_types=("DownEncoderBlock2D",) * 4,
                              up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2)
        return model.decoder, (torch.randn(1, 4, 2, 2),)

    def unet_block():
        from diffusers.models.unets.unet_2d_blocks import CrossAttnDownBlock2D

        model = CrossAttnDownBlock2D(8, 8, 16, num_layers=2, resnet_groups=4,
                                     num_attention_heads=2, cross_attention_dim=8)
        return model, (torch.randn(1, 8, 4, 4), torch.randn(1, 16), torch.randn(1, 3, 8))

    class Dense(nn.Module):
        """Of ESRGAN: five convolutions, each of all before it, joined; a scaled residual."""

        def __init__(self, width=8, growth=4):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Conv2d(width + i * growth, growth if i < 4 else width, 3, padding=1)
                for i in range(5))

        def forward(self, x):
            seen = x
            for layer in self.layers[:-1]:
                seen = torch.cat([seen, F.leaky_relu(layer(seen), 0.2)], 1)
            return x + 0.2 * self.layers[-1](seen)

    class Dense3(nn.Sequential):
        """Three of them with another scaled residual."""

        def __init__(self):
            super().__init__(*(Dense() for _ in range(3)))

        def forward(self, x):
            return x + 0.2 * super().forward(x)

    return {
        "block": lambda: (Block(), (torch.randn(1, 8, 4, 4),)),
        "esrgan": lambda: (nn.Sequential(*(Dense3() for _ in range(4))),
                           (torch.randn(1, 8, 4, 4),)),
        "resnet": resnet, "autoencoder": autoencoder, "unet_block": unet_block,
        "convolutions": lambda: (
            nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(50))),
            (torch.randn(1, 8, 4, 4),)),
    }


def microseconds(run, seconds=1.0):
    """The shortest mean of a batch of calls, of those within `seconds`; this thread's own time,
    which others on the core do not add to."""
    clock = time.thread_time
    for _ in range(5):
        run()
    begin = clock()
    run()
    calls = max(1, int(0.02 / (clock() - begin)))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = clock()
        for _ in range(calls):
            run()
        best = min(best, (clock() - begin) / calls)
    return best * 1e6


def measured(names):
    import copy

    import convoy
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {}
    with torch.no_grad():
        for name, make in models().items():
            if names and name not in names:
                continue
            model, inputs = make()
            model.eval()
            ours = convoy.accelerate(copy.deepcopy(model), probe=False)
            found[name] = {"pytorch": microseconds(lambda: model(*inputs)),
                           "accelerated": microseconds(lambda: ours(*inputs))}
    return found


def compared(folders, rounds, names):
    """{name: {way: [of each folder]}}: medians."""
    seen = {}
    for _ in range(rounds):
        for i, folder in enumerate(folders):
            run = subprocess.run([sys.executable, __file__, "--json", *names], check=True,
                                 env={**os.environ, "PYTHONPATH": folder}, stdout=subprocess.PIPE)
            for name, ways in json.loads(run.stdout).items():
                for way, spent in ways.items():
                    seen.setdefault(name, {}).setdefault(way, ([], []))[i].append(spent)
    return {name: {way: [statistics.median(of) for of in both] for way, both in ways.items()}
            for name, ways in seen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--compare", nargs=2, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compare:
        for name, ways in compared(options.compare, options.rounds, options.names).items():
            (plain, _), (before, after) = ways["pytorch"], ways["accelerated"]
            print(f"{name}: PyTorch {plain:.1f} us, accelerated {before:.1f} -> {after:.1f}")
        return
    found = measured(options.names)
    if options.json:
        print(json.dumps(found))
        return
    for name, ways in found.items():
        print(f"{name}: " + ", ".join(f"{way} {spent:.1f} us" for way, spent in ways.items()))


if __name__ == "__main__":
    main()
