#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a sm90 forward kernel goes, CTA by CTA, beside cuDNN's total.

    EXTRA=-DCONVOY_SM90_TRACE bench/sm90/build.sh build/sm90-trace bf16
    library=build/sm90-trace/libconvoy_sm90_bench.so
    python3 bench/sm90/cta_trace.py $library [SHAPES [instance filter [activation]]]

SHAPES: part of a title of SHAPES, or shape strings of `convoy bench`, separated by commas. With an
activation (relu, silu, gelu, ...) the kernel adds a bias and computes it; cuDNN does not.

Microseconds, medians of several runs. `event` is the time between two events around the launch,
`span` from the first CTA's start to the last one's end; the rest are medians over CTAs from the
CTA's start: `set-up` done, `first` stage full, and the main loop and epilogue of the 1st to 6th
tile. Modes: `cold` after the L2 cache was overwritten; `code` after that, but with the kernel's
instructions fetched by a run on other data; `data` with inputs read but code cold; `warm` both.
"""
import ctypes
import statistics
import sys

import torch
import torch.nn.functional as F
from fprop import Library, make, problem, shape

SLOTS = 32


def pointwise(n, h, w, c, k):
    return problem(n=n, h=h, w=w, c=c, k=k, r=1, s=1, pad=(0, 0, 0))


SHAPES = [
    ("wan attention 384-384", pointwise(1, 60, 104, 384, 384)),
    ("wan attention 384-1152", pointwise(1, 60, 104, 384, 1152)),
    ("wan shortcut 192-384", pointwise(2, 120, 208, 192, 384)),
    ("resnet 1024-256", pointwise(64, 14, 14, 1024, 256)),
    ("resnet 512-2048", pointwise(64, 7, 7, 512, 2048)),
    ("resnet 64-64", pointwise(64, 56, 56, 64, 64)),
    ("resnet 64-256", pointwise(64, 56, 56, 64, 256)),
    ("resnet 256-64", pointwise(64, 56, 56, 256, 64)),
    ("sdxl 640-320", pointwise(2, 128, 128, 640, 320)),
    ("sdxl 640-1280", pointwise(2, 32, 32, 640, 1280)),
    ("flux shortcut 512-256", pointwise(1, 512, 512, 512, 256)),
    ("3x3 128", problem(h=128, w=128, c=128, k=128)),
    ("3x3 512 at 16", problem(h=16, w=16, c=512, k=512)),
]


def event_time(run):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e3


def summary(stamps):
    """Medians over CTAs, in microseconds."""
    ran = stamps[stamps[:, 1] > 0].double()
    rate = ((ran[:, 7] - ran[:, 2]) / (ran[:, 1] - ran[:, 0])).median().item()  # cycles a ns
    at = lambda slot: (ran[:, slot] - ran[:, 2]) / rate * 1e-3
    result = {"span": (ran[:, 1].max() - ran[:, 0].min()).item() * 1e-3,
              "starts": (ran[:, 0].max() - ran[:, 0].min()).item() * 1e-3,
              "set-up": at(3).median().item(), "load": at(6).median().item(),
              "first": at(9)[ran[:, 9] > 0].median().item(),
              "end": at(7).median().item(), "GHz": rate}
    for tile in range(6):
        has = ran[:, 11 + 4 * tile] > 0
        if not has.any():
            break
        base = 8 + 4 * tile
        turn, full, main, done = (at(base + i)[has] for i in range(4))
        result[f"tile {tile}"] = " ".join(f"{v.median().item():.2f}" for v in
                                          (turn, full - turn, main - full, done - main))
    return result


def trace(lib, title, p, pattern, activation):
    torch.backends.cudnn.benchmark = True
    x, _cache, w = make(p, torch.bfloat16, False)
    tiny = dict(p, n=1, d=1, h=8, w=8, cache=0)
    tiny_x, _, tiny_w = make(tiny, torch.bfloat16, False)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    nchw = x.flatten(0, 1).permute(0, 3, 1, 2)
    wt = w.squeeze(1).permute(0, 3, 1, 2)
    peer = lambda: F.conv2d(nchw, wt, padding=p["pad"][1:])
    want = peer().permute(0, 2, 3, 1).reshape(p["n"], p["d"], p["h"], p["w"], p["k"])

    def median(run, prepare):
        times = []
        for _ in range(9):
            flush.zero_()
            prepare()
            times.append(event_time(run))
        return statistics.median(times)

    warm = lambda prepare: [prepare() for _ in range(2)]
    print(f"{title}: cuDNN cold {median(peer, lambda: None):.1f}, data "
          f"{median(peer, lambda: x.sum()):.1f}, warm {median(peer, lambda: warm(peer)):.1f}")
    for i, name in enumerate(lib.names()):
        if not name.startswith("bf16>bf16") or pattern not in name:
            continue
        plan, _ = lib.plan(i, p)
        tiny_plan, _ = lib.plan(i, tiny)
        if not plan or not tiny_plan:
            continue
        stamps = torch.zeros(1024 * SLOTS, dtype=torch.int64, device="cuda")
        lib.lib.convoy_sm90_set_trace(plan, stamps.data_ptr())
        out = torch.empty_like(want)
        tiny_out = torch.empty(1, 1, 8, 8, p["k"], dtype=torch.bfloat16, device="cuda")
        epilogue = {}
        if activation:
            epilogue = {"bias": torch.zeros(p["k"], device="cuda"), "activation": activation}
        run = lambda: lib.run(plan, out, x, None, w, **epilogue)
        code = lambda: lib.run(tiny_plan, tiny_out, tiny_x, None, tiny_w, **epilogue)
        lib.run(plan, out, x, None, w)
        error = ((out.float() - want.float()).norm() / want.float().norm()).item()
        print(f"  {name.split(' ')[1]}: {lib.text(plan)}{'' if error < 5e-3 else ' WRONG'}")
        for mode, prepare in (("cold", lambda: None), ("code", code), ("data", lambda: x.sum()),
                              ("warm", lambda: warm(run))):
            rows = []
            for _ in range(9):
                stamps.zero_()
                flush.zero_()
                prepare()
                time = event_time(run)
                torch.cuda.synchronize()
                rows.append((time, summary(stamps.view(-1, SLOTS).cpu())))
            rows.sort(key=lambda row: row[0])
            time, s = rows[len(rows) // 2]
            text = " | ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k}: {v}"
                              for k, v in s.items())
            print(f"    {mode} event {time:.1f} | {text}")
        lib.lib.convoy_sm90_destroy(plan)
        lib.lib.convoy_sm90_destroy(tiny_plan)


if __name__ == "__main__":
    library = Library(sys.argv[1])
    library.lib.convoy_sm90_set_trace.argtypes = [ctypes.c_void_p] * 2
    library.sms = torch.cuda.get_device_properties(0).multi_processor_count
    shape_pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    instance_pattern = sys.argv[3] if len(sys.argv) > 3 else ""
    activation = sys.argv[4] if len(sys.argv) > 4 else ""
    todo = [(title, p) for title, p in SHAPES if shape_pattern in title]
    for title, p in todo or [(text, shape(text)) for text in shape_pattern.split(",")]:
        trace(library, title, p, instance_pattern, activation)
