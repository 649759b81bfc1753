#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check and time every sm90 forward instance, one by one, against PyTorch (cuDNN).

    bench/sm90/build.sh build/sm90 bf16
    python3 bench/sm90/fprop.py build/sm90/libconvoy_sm90_bench.so check
    python3 bench/sm90/fprop.py build/sm90/libconvoy_sm90_bench.so bench [SHAPES] [instance filter]

check: small random integers, so that fp32 accumulation is exact and every output bit must match;
each instance runs in a process of its own with a time limit, so that a hang ends.
bench: instances and cuDNN interleaved in one process, in an order drawn anew each round (launches
keep 0.9 us by their place in the stream), L2 flushed before each run, random data, median of many.
SHAPES: part of a title of BENCH, or shape strings of `convoy bench`, separated by commas.
"""
import ctypes
import os
import random
import re
import signal
import sys
import time

import torch
import torch.nn.functional as F

ACTIVATIONS = {"none": 0, "relu": 1, "leaky_relu": 2, "gelu": 3, "gelu_tanh": 4, "silu": 5,
               "sigmoid": 6, "tanh": 7, "hardswish": 8, "clamp": 9}


def problem(n=1, cache=0, d=1, h=8, w=8, c=64, k=64, t=1, r=3, s=3, pad=(0, 1, 1), pad_end=None,
            stride=(1, 1, 1), dilation=(1, 1, 1), upsample=1):
    return dict(n=n, cache=cache, d=d, h=h, w=w, c=c, k=k, filter=(t, r, s), pad=tuple(pad),
                pad_end=tuple(pad if pad_end is None else pad_end), stride=tuple(stride),
                dilation=tuple(dilation), upsample=upsample)


def wan(d, h, w, c, k, t=3, cache=2, r=3, s=3, front=0):
    return problem(d=d - cache, cache=cache, h=h, w=w, c=c, k=k, t=t, r=r, s=s,
                   pad=(front, r // 2, s // 2), pad_end=(0, r // 2, s // 2))


# Each with the reason it is there.
CHECKS = [
    ("one tile, 3x3", problem(h=16, w=16)),
    ("several M and N tiles, several channel blocks", problem(h=40, w=48, c=192, k=288)),
    ("ragged patch edges", problem(h=19, w=37, c=64, k=96)),
    ("batch straddled by tiles", problem(n=5, h=7, w=7, c=128, k=64)),
    ("C = 96: half a channel block", problem(h=17, w=20, c=96, k=96)),
    ("C = 8, 16, 40: part of an MMA step", problem(h=12, w=12, c=8, k=64)),
    ("C = 40", problem(h=12, w=12, c=40, k=40)),
    ("K not a multiple of 8: stores without TMA", problem(h=13, w=13, c=64, k=37)),
    ("1x1", problem(n=2, h=15, w=17, c=128, k=192, r=1, s=1, pad=(0, 0, 0))),
    ("1x1 stride 2", problem(n=2, h=16, w=18, c=64, k=64, r=1, s=1, pad=(0, 0, 0),
                             stride=(1, 2, 2))),
    ("stride 2, pad 1", problem(n=2, h=23, w=30, c=64, k=64, stride=(1, 2, 2))),
    ("stride 3x1, dilation 1x2, 5x3", problem(h=33, w=21, c=32, k=64, r=5, s=3, pad=(0, 2, 2),
                                              stride=(1, 3, 1), dilation=(1, 1, 2))),
    ("asymmetric padding", problem(h=16, w=16, c=64, k=64, pad=(0, 0, 1), pad_end=(0, 1, 0))),
    ("3-D", problem(n=2, d=4, h=12, w=20, c=64, k=64, t=3, pad=(1, 1, 1))),
    ("3-D causal padding, skipped taps", problem(d=5, h=16, w=16, c=96, k=96, t=3, pad=(2, 1, 1),
                                                 pad_end=(0, 1, 1))),
    ("3-D cache", wan(6, 24, 16, 96, 96)),
    ("3-D cache and padding, two batches", dict(wan(5, 16, 24, 64, 128, cache=1, front=1), n=2)),
    ("3x1x1 with cache", wan(6, 16, 16, 128, 192, r=1, s=1)),
    ("3-D stride 2 in depth, dilation 2", problem(d=9, h=12, w=12, c=64, k=64, t=3, pad=(2, 1, 1),
                                                  stride=(2, 1, 1), dilation=(2, 1, 1))),
    ("3-D small frames", problem(n=2, d=6, h=5, w=6, c=64, k=64, t=3, pad=(1, 1, 1))),
    ("3-D all taps in padding", problem(d=1, h=8, w=8, c=64, k=64, t=1, pad=(2, 1, 1),
                                        pad_end=(2, 1, 1))),
    ("filter beyond the im2col offsets", problem(h=140, w=300, c=16, k=64, r=1, s=3,
                                                 pad=(0, 0, 130), dilation=(1, 1, 130))),
    ("5x5 dilation 2", problem(h=30, w=30, c=64, k=64, r=5, s=5, pad=(0, 4, 4),
                               dilation=(1, 2, 2))),
    ("many tiles per CTA", problem(n=2, h=256, w=256, c=64, k=320)),
    ("folded nearest-2x upsampling", problem(h=20, w=24, c=64, k=96, upsample=2)),
]

BENCH = [
    ("flux up1", problem(h=256, w=256, c=512, k=512)),
    ("flux up2", problem(h=512, w=512, c=256, k=256)),
    ("flux up3", problem(h=1024, w=1024, c=128, k=128)),
    ("flux mid", problem(h=128, w=128, c=512, k=512)),
    ("flux up-conv", problem(h=1024, w=1024, c=256, k=256)),
    ("flux 256-128", problem(h=1024, w=1024, c=256, k=128)),
    ("flux shortcut", problem(h=512, w=512, c=512, k=256, r=1, s=1, pad=(0, 0, 0))),
    ("wan up3", wan(6, 480, 832, 96, 96)),
    ("wan up2", wan(6, 240, 416, 192, 192)),
    ("wan up1", wan(4, 120, 208, 384, 384)),
    ("wan mid", wan(3, 60, 104, 384, 384)),
    ("wan 2d", problem(n=4, h=480, w=832, c=192, k=96)),
    ("wan 2d 384-192", problem(n=4, h=240, w=416, c=384, k=192)),
    ("wan time", wan(4, 120, 208, 384, 768, r=1, s=1)),
    ("qwen", wan(1, 1024, 1024, 96, 96, cache=0, front=2)),
    ("small 16", problem(h=16, w=16, c=512, k=512)),
    ("small 32", problem(h=32, w=32, c=512, k=256)),
    ("small 64", problem(h=64, w=64, c=256, k=128)),
    ("small 128", problem(h=128, w=128, c=128, k=128)),
    ("resnet 56", problem(n=64, h=56, w=56, c=64, k=64)),
    ("resnet 28", problem(n=64, h=28, w=28, c=128, k=128)),
    ("resnet 14", problem(n=64, h=14, w=14, c=256, k=256)),
    ("resnet 7", problem(n=64, h=7, w=7, c=512, k=512)),
    ("sdxl 320", problem(n=2, h=128, w=128, c=320, k=320)),
    ("sdxl 640", problem(n=2, h=64, w=64, c=640, k=640)),
    ("sdxl 1280", problem(n=2, h=32, w=32, c=1280, k=1280)),
    ("up 512 folded", problem(h=128, w=128, c=512, k=512, upsample=2)),
    ("up 256 folded", problem(h=512, w=512, c=256, k=256, upsample=2)),
]


def shape(text):
    """The problem of a shape string such as n64h56w56c128k128r3s3ph1sh2pw1sw2."""
    fields = re.findall(r"(pde|pd|ph|pw|sh|sw|sd|cache|[ndhwcktrs])(\d+)", text)
    v = {key: int(number) for key, number in fields}
    pad = tuple(v.get(key, 0) for key in ("pd", "ph", "pw"))
    return problem(n=v.get("n", 1), cache=v.get("cache", 0), d=v.get("d", 1), h=v["h"], w=v["w"],
                   c=v["c"], k=v["k"], t=v.get("t", 1), r=v.get("r", 1), s=v.get("s", 1), pad=pad,
                   pad_end=(v.get("pde", pad[0]), pad[1], pad[2]),
                   stride=tuple(v.get(key, 1) for key in ("sd", "sh", "sw")))


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.convoy_sm90_plan.restype = ctypes.c_void_p
        self.lib.convoy_sm90_plan.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
                                              ctypes.c_int, ctypes.c_char_p]
        self.lib.convoy_sm90_run.argtypes = [ctypes.c_void_p] * 10 + [ctypes.c_char_p]
        self.lib.convoy_sm90_plan_text.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self.lib.convoy_sm90_set_band.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.lib.convoy_sm90_estimate.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        self.lib.convoy_sm90_estimate.restype = ctypes.c_double
        self.lib.convoy_sm90_destroy.argtypes = [ctypes.c_void_p]
        self.sms = 132

    def names(self):
        text = ctypes.create_string_buffer(128)
        result = []
        for i in range(self.lib.convoy_sm90_count()):
            self.lib.convoy_sm90_name(i, text)
            result.append(text.value.decode())
        return result

    @staticmethod
    def values(p):
        values = [p["n"], p["cache"], p["d"], p["h"], p["w"], p["c"], p["k"], *p["filter"],
                  *p["pad"], *p["pad_end"], *p["stride"], *p["dilation"], p["upsample"]]
        return (ctypes.c_int64 * 23)(*values)

    def estimate(self, plan, p):
        return self.lib.convoy_sm90_estimate(plan, self.values(p), self.sms)

    def plan(self, instance, p, splits=0):
        error = ctypes.create_string_buffer(512)
        plan = self.lib.convoy_sm90_plan(instance, self.values(p), splits,
                                         self.sms, error)
        return plan, error.value.decode()

    def text(self, plan):
        text = ctypes.create_string_buffer(256)
        self.lib.convoy_sm90_plan_text(plan, text)
        return text.value.decode()

    def run(self, plan, out, x, cache, w, bias=None, residual=None, scale=1.0, beta=1.0,
            activation="none", order=0, rounding=0):
        def pointer(t):
            return None if t is None else t.data_ptr()
        values = (ctypes.c_float * 4)(scale, beta, 0.01, 6.0)
        dtype = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
        kinds = (ctypes.c_int * 4)(0 if bias is None else dtype[bias.dtype],
                                   ACTIVATIONS[activation], order, rounding)
        error = ctypes.create_string_buffer(512)
        if self.lib.convoy_sm90_run(plan, pointer(out), pointer(x), pointer(cache), pointer(w),
                                    pointer(bias), pointer(residual), values, kinds,
                                    torch.cuda.current_stream().cuda_stream, error):
            raise RuntimeError(error.value.decode())


def make(p, dtype, integers, seed=0):
    """x [N, D, H, W, C], cache or None, w [K, T, R, S, C]."""
    g = torch.Generator(device="cuda").manual_seed(seed)
    def draw(shape, low, high, std):
        if integers:
            return torch.randint(low, high + 1, shape, generator=g, device="cuda").to(dtype)
        return (torch.randn(shape, generator=g, device="cuda") * std).to(dtype)
    x = draw((p["n"], p["d"], p["h"], p["w"], p["c"]), -3, 3, 1.0)
    cache = draw((p["n"], p["cache"], p["h"], p["w"], p["c"]), -3, 3, 1.0) if p["cache"] else None
    fan = p["c"] * p["filter"][0] * p["filter"][1] * p["filter"][2]
    w = draw((p["k"], *p["filter"], p["c"]), -2, 2, fan ** -0.5)
    return x, cache, w


def fold(w):
    """Four 2x2 phase filters of a 3x3 filter after nearest-2x upsampling: [4K, T, 2, 2, C]."""
    phases = []
    for py in range(2):
        rows = [w[:, :, 0], w[:, :, 1] + w[:, :, 2]] if py == 0 else \
               [w[:, :, 0] + w[:, :, 1], w[:, :, 2]]
        for px in range(2):
            cols = []
            for row in rows:
                pair = [row[:, :, 0], row[:, :, 1] + row[:, :, 2]] if px == 0 else \
                       [row[:, :, 0] + row[:, :, 1], row[:, :, 2]]
                cols.append(torch.stack(pair, 2))
            phases.append(torch.stack(cols, 2))
    return torch.cat(phases, 0).contiguous()


def reference(p, x, cache, w):
    """fp32 (or the input's type) convolution by PyTorch, channels-last result [N, Z, P, Q, K]."""
    full = x if cache is None else torch.cat([cache, x], 1)
    full = full.permute(0, 4, 1, 2, 3)
    if p["upsample"] == 2:
        full = F.interpolate(full, scale_factor=(1, 2, 2), mode="nearest")
    pad, end = p["pad"], p["pad_end"]
    full = F.pad(full, (pad[2], end[2], pad[1], end[1], pad[0], end[0]))
    y = F.conv3d(full, w.permute(0, 4, 1, 2, 3), stride=p["stride"], dilation=p["dilation"])
    return y.permute(0, 2, 3, 4, 1).contiguous()


def check_instance(lib, instance, name):
    torch.backends.cudnn.allow_tf32 = False
    in_name, out_name = name.split(" ")[0].split(">")
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    dtype, out_dtype = types[in_name], types[out_name]
    ran = failed = refused = 0
    epilogues = [
        dict(), dict(bias=1, activation="relu"), dict(residual=1),
        dict(bias=1, residual=1, beta=2.0, scale=0.5, activation="relu", order=1),
        dict(bias=1, residual=1, activation="silu"),
        dict(bias=2, residual=1, activation="silu", rounding=1),
    ]
    for number, (why, p) in enumerate(CHECKS):
        plan, _reason = lib.plan(instance, p)
        if not plan:
            refused += 1
            continue
        x, cache, w = make(p, dtype, True, number)
        exact = reference(p, x.float(), None if cache is None else cache.float(), w.float())
        packed = fold(w) if p["upsample"] == 2 else w
        for e in ([epilogues[0], epilogues[1 + number % 5]] if number else epilogues):
            g = torch.Generator(device="cuda").manual_seed(number)
            bias = residual = None
            want = exact
            step = (lambda v: v.to(out_dtype).float()) if e.get("rounding") else (lambda v: v)
            want = step(want)
            if "scale" in e:
                want = step(want * e["scale"])
            if e.get("bias"):
                bias = torch.randint(-4, 5, (p["k"],), generator=g, device="cuda").to(
                    torch.float32 if e["bias"] == 1 else dtype)
                want = step(want + bias.float())
            add = 0
            if e.get("residual"):
                residual = torch.randint(-4, 5, exact.shape, generator=g, device="cuda")
                residual = residual.to(out_dtype)
                add = step(e.get("beta", 1.0) * residual.float())
            act = e.get("activation", "none")
            apply = {"none": lambda v: v, "relu": torch.relu, "silu": F.silu}[act]
            if e.get("order") == 1:
                want = step(apply(step(want + add)))
            else:
                want = step(apply(want))
                want = step(want + add)
            want = want.to(out_dtype)
            # Guard elements around the output; NaN inside, so that unwritten ones show.
            guard = 256
            flat = torch.full((want.numel() + 2 * guard,), float("nan"), dtype=out_dtype,
                              device="cuda")
            out = flat[guard:guard + want.numel()].view(want.shape)
            arguments = {key: v for key, v in e.items() if key not in ("bias", "residual")}
            lib.run(plan, out, x, cache, packed, bias=bias, residual=residual, **arguments)
            torch.cuda.synchronize()
            ran += 1
            # Rounded after each step, SiLU has PyTorch's bits too.
            tolerance = 1e-2 if act == "silu" and not e.get("rounding") else 0.0
            good = (out == want) | ((out.float() - want.float()).abs() <= tolerance *
                                    (1 + want.float().abs()))
            clean = flat[:guard].isnan().all() and flat[-guard:].isnan().all()
            if not (good.all() and clean):
                failed += 1
                bad = (~good).nonzero()
                first = bad[0].tolist() if len(bad) else None
                print(f"  FAIL {name}: {why}: {e}: {len(bad)} of {want.numel()} differ, first "
                      f"{first} got {out[tuple(first)].item() if first else None} want "
                      f"{want[tuple(first)].item() if first else None}, guards clean "
                      f"{bool(clean)}; {lib.text(plan)}", flush=True)
                break
            again = torch.empty_like(out)
            lib.run(plan, again, x, cache, packed, bias=bias, residual=residual, **arguments)
            if not torch.equal(again, out):
                print(f"  FAIL {name}: {why}: two runs differ", flush=True)
                failed += 1
        lib.lib.convoy_sm90_destroy(plan)
    print(f"{name}: {ran} runs, {refused} problems refused, {failed} failed", flush=True)
    return failed


def check(path, pattern):
    names = Library(path).names()
    todo = [i for i, n in enumerate(names) if pattern in n]
    running, bad = {}, 0
    while todo or running:
        while todo and len(running) < 6:
            i = todo.pop(0)
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                try:
                    code = 1 if check_instance(Library(path), i, names[i]) else 0
                except BaseException as error:
                    print(f"  FAIL {names[i]}: {error}", flush=True)
                    code = 1
                os._exit(code)
            running[pid] = i
        pid, status = os.wait()
        i = running.pop(pid)
        if status:
            bad += 1
            if os.WIFSIGNALED(status):
                print(f"  FAIL {names[i]}: killed by signal {os.WTERMSIG(status)} (hang?)",
                      flush=True)
    print("check:", "FAILED" if bad else "passed")
    return bad


def bench(path, pattern, instance_pattern, rounds=21):
    torch.backends.cudnn.benchmark = True
    lib = Library(path)
    lib.sms = torch.cuda.get_device_properties(0).multi_processor_count
    names = lib.names()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    b = torch.randn(8192, 8192, device="cuda").bfloat16()
    todo = [(title, p) for title, p in BENCH if pattern in title]
    for title, p in todo or [(text, shape(text)) for text in pattern.split(",")]:
        x, cache, w = make(p, torch.bfloat16, False)
        packed = fold(w) if p["upsample"] == 2 else w
        full = x if cache is None else torch.cat([cache, x], 1)
        full = full.permute(0, 4, 1, 2, 3)
        up = F.interpolate(full, scale_factor=(1, 2, 2), mode="nearest") if p["upsample"] == 2 \
            else full
        pad, end = p["pad"], p["pad_end"]
        symmetric = pad == end
        if not symmetric:
            up = F.pad(up, (pad[2], end[2], pad[1], end[1], pad[0], end[0]))
        wt = w.permute(0, 4, 1, 2, 3)
        if p["filter"][0] == 1 and p["stride"][0] == 1:
            u = up.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)
            wt = wt.squeeze(2).contiguous(memory_format=torch.channels_last)
            peer = lambda: F.conv2d(u, wt, stride=p["stride"][1:], dilation=p["dilation"][1:],
                                    padding=pad[1:] if symmetric else 0)
        else:
            up = up.contiguous(memory_format=torch.channels_last_3d)
            wt = wt.contiguous(memory_format=torch.channels_last_3d)
            peer = lambda: F.conv3d(up, wt, stride=p["stride"], dilation=p["dilation"],
                                    padding=pad if symmetric else 0)
        y = peer()
        if p["filter"][0] == 1 and p["stride"][0] == 1:
            want = y.permute(0, 2, 3, 1).reshape(p["n"], -1, y.shape[2], y.shape[3], p["k"])
        else:
            want = y.permute(0, 2, 3, 4, 1)
        want = want.float()
        variants = {"cudnn": peer, "gemm": lambda: a @ b}
        plans = {}
        for i, name in enumerate(names):
            if not name.startswith("bf16>bf16") or instance_pattern not in name:
                continue
            for split in ([1, 2, 4, 8] if "splitk" in name else [1]):
                plan, _ = lib.plan(i, p, split)
                if not plan:
                    continue
                label = name.split(" ")[1] + (f"_{split}" if "splitk" in name else "")
                tiles = int(lib.text(plan).split("tiles ")[1].split(" ")[0])
                if "splitk" in name and tiles > 2 * lib.sms:
                    continue
                out = torch.full(want.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
                plans[label] = plan
                run = lambda plan=plan, out=out: lib.run(plan, out, x, cache, packed)
                try:
                    run()
                    torch.cuda.synchronize()
                except RuntimeError as error:
                    print(f"  {label}: {error}")
                    continue
                error = ((out.float() - want).norm() / want.norm()).item()
                if not error < 5e-3:
                    print(f"  WRONG {title} {label}: relative error {error}; {lib.text(plan)}")
                variants[label] = run
        # The model's choice once more with bias, SiLU and residual in its epilogue.
        guess = min(plans, key=lambda label: lib.estimate(plans[label], p))
        bias = torch.randn(p["k"], device="cuda")
        residual = torch.randn(want.shape, device="cuda").to(torch.bfloat16)
        fused_out = torch.empty_like(residual)
        variants["fused"] = lambda: lib.run(plans[guess], fused_out, x, cache, packed, bias=bias,
                                            residual=residual, activation="silu")
        for run in variants.values():
            for _ in range(2):
                run()
        times = {label: [] for label in variants}
        for _ in range(rounds):
            for label, run in random.sample(list(variants.items()), len(variants)):
                flush.zero_()
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(
                    enable_timing=True)
                start.record()
                run()
                stop.record()
                times[label].append((start, stop))
        torch.cuda.synchronize()
        median = {label: sorted(s.elapsed_time(e) * 1e3 for s, e in pairs)[len(pairs) // 2]
                  for label, pairs in times.items()}
        flop = 2 * want.numel() * p["c"] * p["filter"][0] * p["filter"][1] * p["filter"][2]
        cudnn = median["cudnn"]
        print(f"{title:15s} cudnn {cudnn:8.1f} us {flop / cudnn * 1e-6:6.1f} TF | gemm "
              f"{2 * 8192 ** 3 / median['gemm'] * 1e-6:5.0f}", end="")
        rest = sorted((t, label) for label, t in median.items()
                      if label not in ("cudnn", "gemm", "fused"))
        print(f" | model picks {guess}: {rest[0][0] / median[guess]:.2f} of best, fused epilogue "
              f"x{median['fused'] / median[guess]:.2f}", end="")
        for t, label in rest[:10]:
            print(f" | {label} {t:.1f} x{cudnn / t:.3f} "
                  f"(model {lib.estimate(plans[label], p):.0f})",
                  end="")
        print(flush=True)
        for plan in plans.values():
            lib.lib.convoy_sm90_destroy(plan)


if __name__ == "__main__":
    library, mode = sys.argv[1], sys.argv[2]
    pattern = sys.argv[3] if len(sys.argv) > 3 else ""
    began = time.time()
    if mode == "check":
        result = check(library, pattern)
    else:
        bench(library, pattern, sys.argv[4] if len(sys.argv) > 4 else "")
        result = 0
    print(f"{mode}: {time.time() - began:.0f} s")
    sys.exit(1 if result else 0)
