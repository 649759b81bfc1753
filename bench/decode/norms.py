# SPDX-License-Identifier: Apache-2.0
"""The norms against the copy floor: the bytes that must move, at the rate of a large copy measured
in the same rounds. GroupNorm reads its input twice and writes once; RMSNorm reads and writes once.

    CONVOY_LIBRARY=build/default/libconvoy.so PYTHONPATH=python python3 bench/decode/norms.py
"""

import argparse
import statistics

import convoy.torch as ct
import torch
from measure import cuda_ms

GROUP_NORM = (  # C, pixels: the layers of FLUX.1's decoder.
    (512, 128 * 128), (512, 256 * 256), (512, 512 * 512), (256, 512 * 512), (256, 1024 * 1024),
    (128, 1024 * 1024),
)
RMS_NORM = (  # C, frames, height, width: the layers of Wan 2.1's decoder.
    (384, 1, 60, 104), (192, 2, 120, 208), (384, 2, 120, 208), (192, 4, 240, 416),
    (96, 4, 480, 832),
)


def graph_of(run, inputs):
    """One graph that runs over all inputs in turn."""
    for x in inputs:
        run(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in inputs:
            run(x)
    return graph


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--activation", default="silu")
    options = parser.parse_args()
    big = torch.randn(1 << 29, device="cuda", dtype=torch.bfloat16)
    copy = torch.empty_like(big)
    jobs = []
    for c, pixels in GROUP_NORM:
        shape = (1, c, 1, pixels)
        weight, bias = torch.randn(2, c, device="cuda", dtype=torch.bfloat16)
        jobs.append(("group_norm", c, pixels, shape, 3,
                     lambda x, w=weight, b=bias: ct.group_norm(x, 32, w, b, 1e-6,
                                                               activation=options.activation)))
    for c, t, h, w in RMS_NORM:
        weight = torch.randn(c, device="cuda", dtype=torch.bfloat16)
        jobs.append(("rms_norm", c, t * h * w, (1, c, t, h * w), 2,
                     lambda x, w=weight: ct.rms_norm(x, w, eps=1e-12, rule="norm_floor",
                                                     activation=options.activation)))
    print("norm        C    pixels      MB      us   floor us   of floor   hot us")
    for name, c, pixels, shape, passes, run in jobs:
        size = c * pixels * 2
        count = max(2, -(-400_000_000 // size))  # Together far more than the cache.
        inputs = [
            torch.randn(shape, device="cuda", dtype=torch.bfloat16).contiguous(
                memory_format=torch.channels_last
            )
            for _ in range(min(count, 24))
        ]
        graph, hot = graph_of(run, inputs), graph_of(run, inputs[:1] * len(inputs))
        times, hots, rates = [], [], []
        for _ in range(options.rounds):
            rates.append(2 * big.numel() * 2 / cuda_ms(lambda: copy.copy_(big)))  # Bytes a ms.
            times.append(cuda_ms(graph.replay) / len(inputs))
            hots.append(cuda_ms(hot.replay) / len(inputs))
        spent, rate = statistics.median(times), statistics.median(rates)
        floor = passes * size / rate
        print(f"{name:10s} {c:4d} {pixels:9d} {size / 1e6:7.1f} "
              f"{spent * 1e3:7.1f} {floor * 1e3:10.1f}"
              f" {floor / spent:10.1%} {statistics.median(hots) * 1e3:8.1f}", flush=True)
        del graph, hot, inputs
    print(f"copy: {rate / 1e9:.3f} TB/s")


if __name__ == "__main__":
    with torch.no_grad():
        main()
