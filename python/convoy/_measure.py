# SPDX-License-Identifier: Apache-2.0
"""Times of the ways to compute one thing on a GPU, and what was found by them."""

import itertools
import logging
import math
import time

import torch

from ._bounded import Bounded

_log = logging.getLogger("convoy")
DEVICES = {"cuda"}  # Where Convoy and PyTorch are compared.
# What was found to be quickest, by shape: of a convolution or norm (call, kernel, reason, times),
# of a norm with a convolution (whether they are one call, times).
choices: dict[tuple, tuple] = Bounded(16384)


def is_capturing(device):
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def microseconds(ways, device, rounds=3):
    """The GPU's time in the shortest of `rounds` runs of each way, in turns; without those that
    cannot run. Raises what the last one did where none can."""
    best: dict[str, float] = {}
    failure, slowest = None, 0.0
    with torch.cuda.device(device):  # Where the events are.
        for name, run in ways.items():
            try:
                run()
                begun = time.perf_counter()
                run()
                slowest = max(slowest, time.perf_counter() - begun)
                best[name] = math.inf
            except RuntimeError as error:  # Out of memory; too large for this way.
                _log.warning("convoy: %s is not measured: %s", name, error)
                failure = error
        if failure is not None and not best:
            raise failure
        for _, name in itertools.product(range(rounds), list(best)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # NOTE: the GPU waits until the host has asked for all of it, so that the host's time,
            # which the whole call is judged by, is not in it. At most 2 GHz.
            torch.cuda._sleep(int(min(1.5 * slowest + 5e-5, 0.01) * 2e9))
            begin.record()
            ways[name]()
            end.record()
            end.synchronize()
            best[name] = min(best[name], begin.elapsed_time(end) * 1e3)
    return best


def beside_pytorch(ours, eager, device):
    """(why it is left to PyTorch, "" where Convoy is as quick; the times of both)."""
    spent = microseconds({"fused": ours, "pytorch": eager}, device)
    fused, plain = (spent.get(way, math.inf) for way in ("fused", "pytorch"))
    if plain < fused:
        return f"PyTorch is quicker here: {plain:.0f} µs; Convoy: {fused:.0f} µs", spent
    return "", spent
