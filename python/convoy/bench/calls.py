# SPDX-License-Identifier: Apache-2.0
"""Host time of single calls, beside PyTorch's own: small tensors, so that nothing else counts. The
CPU's figures are of an empty batch, for which no library computes anything."""

import argparse
import time

import torch
import torch.nn.functional as F

import convoy
import convoy.torch

from .. import _operators
from ..torch import _known


def microseconds(run, cuda, batches=60, calls=100):
    """The shortest mean of `calls` calls; the device is waited for between batches."""
    best = float("inf")
    for _ in range(batches):
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best * 1e6


def rows(device):
    cuda = device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    make = lambda *shape: torch.randn(shape, device=device, dtype=dtype)
    last = lambda x: x.contiguous(memory_format=torch.channels_last)
    x, w = last(make(1 if cuda else 0, 64, 16, 16)), torch.nn.Parameter(last(make(64, 64, 3, 3)))
    b, r = make(64), torch.empty_like(x)
    model = torch.nn.Sequential(*(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(50)))
    model = model.to(device, dtype).to(memory_format=torch.channels_last).eval()
    ours = convoy.accelerate(torch.nn.Sequential(*model), probe=False)
    operator = torch.ops.convoy.conv2d.default
    rest = ([1, 1], [1, 1, 1, 1], [1, 1], 1, "none", 1.0)
    yield "F.conv2d", lambda: F.conv2d(x, w, b, padding=1), 1
    yield "torch.ops.convoy.conv2d", lambda: operator(x, w, b, None, *rest), 1
    yield "torch.ops.convoy.conv2d, packed", lambda: operator(x, w, b, None, *rest, 1, True), 1
    yield "convoy.torch.conv2d, packed", lambda: convoy.torch.conv2d(
        x, w, b, padding=1, packed=True), 1
    yield "the same + silu + residual", lambda: convoy.torch.conv2d(
        x, w, b, padding=1, packed=True, activation="silu", residual=r), 1
    if _operators.library is not None:
        (call,) = [c for c in _known.convolutions.values() if c.packed and c.activation is None]
        number, packed = call.number_and_filter(w)
        yield "torch.ops.convoy._run_conv", lambda: _operators.run_conv(
            number, packed, x, None, b, None, None), 1
    if x.numel():
        yield "F.group_norm", lambda: F.group_norm(x, 32, b, b), 1
        yield "convoy.torch.group_norm", lambda: convoy.torch.group_norm(x, 32, b, b), 1
        yield "a layer of a model of 50 convolutions", lambda: model(x), 50
        yield "a layer of it accelerated", lambda: ours(x), 50


def main(words):
    parser = argparse.ArgumentParser(
        prog="python -m convoy.bench calls", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"),
                        default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(words)
    print("operators in C++" if _operators.library is not None
          else f"operators in Python: {_operators.why_not}")
    with torch.no_grad():
        for name, run, layers in rows(options.device):
            run()
            calls = 100 // layers
            spent = microseconds(run, options.device == "cuda", calls=calls) / layers
            print(f"{spent:8.2f} us  {name}", flush=True)
    return 0
