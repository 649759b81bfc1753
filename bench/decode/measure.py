# SPDX-License-Identifier: Apache-2.0
"""What the decoder benchmarks share: variants of a model, CUDA graphs, interleaved medians, errors
against fp32, and where the time goes."""

import argparse
import collections
import gc
import statistics
import time

import layers
import torch


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds of every variant")
    parser.add_argument("--variants", default="eager,channels_last,compile,convoy",
                        help="of eager, channels_last, compile, convoy, convoy_eager, convoy_fast "
                        "(upsampling folded fast)")
    parser.add_argument("--attention-rows", type=int, default=1024)
    parser.add_argument("--no-check", action="store_true", help="skip the fp32 reference")
    parser.add_argument("--profile", action="store_true", help="where Convoy's time goes")
    return parser.parse_args()


def captured(model, z):
    """`model(z)` as a CUDA graph: a function without arguments that replays it."""
    model(z)  # Plans, packed filters.
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(z)

    def replay(model=model):  # The graph reads the model's packed filters: keep it.
        graph.replay()
        return out

    return replay


def cuda_ms(function):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def make_variants(make_model, z, options, memory_format):
    """Name to (function, output of its first call). All have the same parameters."""
    torch.manual_seed(0)
    plain = make_model(layers.TorchLayers).eval().cuda()
    reference = None
    if not options.no_check:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        reference = plain(z.float()).cpu()
        gc.collect()
        torch.cuda.empty_cache()
    plain = plain.to(torch.bfloat16)
    state = plain.state_dict()
    torch.backends.cudnn.benchmark = True

    def build(kind):
        if kind.startswith("convoy"):
            folding = "fast" if kind == "convoy_fast" else "exact"
            model = make_model(layers.convoy_layers(options.attention_rows, folding)).eval().cuda()
            model = model.to(torch.bfloat16)
            model.load_state_dict(state)
            return (lambda: model(z)) if kind == "convoy_eager" else captured(model, z)
        model = make_model(layers.TorchLayers).eval().cuda().to(torch.bfloat16)
        model.load_state_dict(state)
        given = z
        if kind != "eager":
            model = model.to(memory_format=memory_format) if z.dim() == 4 else model
            given = z.contiguous(memory_format=memory_format)
        if kind == "compile":
            compiled = torch.compile(model)
            return lambda: compiled(given)
        return lambda: model(given)

    made = {}
    for kind in options.variants.split(","):
        begin = time.time()
        function = build(kind)
        out = function()
        torch.cuda.synchronize()
        line = f"{kind}: ready in {time.time() - begin:.1f} s"
        if reference is not None:
            got = out.float().cpu()
            error = ((got - reference).norm() / reference.norm()).item()
            line += f", relative error against fp32 {error:.2e}"
        print(line, flush=True)
        del out
        made[kind] = function
    return made


def compare(made, rounds):
    """Medians over rounds in which the variants take turns."""
    times = collections.defaultdict(list)
    for function in made.values():
        function()
    for _ in range(rounds):
        for kind, function in made.items():
            times[kind].append(cuda_ms(function))
    for kind, values in times.items():
        print(f"{kind:14s} median {statistics.median(values):9.2f} ms   min {min(values):9.2f}   "
              f"max {max(values):9.2f}", flush=True)
    return {kind: statistics.median(values) for kind, values in times.items()}


_KINDS = (  # The first that fits.
    ("matmul", ("gemm", "cutlass", "nvjet", "cublas")),
    ("softmax", ("SoftMax",)),
    ("norms", ("norm",)),
    ("convolutions", ("conv",)),
    ("copies", ("copy", "Memcpy", "cat", "elementwise", "Memset", "fill")),
)


def profile(function, top=9):
    """Device time by kind of kernel and the heaviest kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as result:
        function()
        torch.cuda.synchronize()
    kinds, kernels = collections.Counter(), collections.Counter()
    counts = collections.Counter()
    for event in result.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        name, spent = event.name, event.time_range.elapsed_us()
        kernels[name] += spent
        counts[name] += 1
        kind = next((kind for kind, words in _KINDS if any(word in name for word in words)), "rest")
        kinds[kind] += spent
    print("device time: " + ", ".join(f"{kind} {us / 1e3:.2f} ms" for kind, us in
                                      kinds.most_common()))
    for name, us in kernels.most_common(top):
        print(f"  {us / 1e3:8.3f} ms  {counts[name]:5d} x  {name[:150]}")


def attention(tokens, width):
    """One head over `tokens` in PyTorch's way, and with some rows of the scores at a time."""
    q, k, v = (torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ways = {"sdpa": layers.TorchLayers.attend}
    for rows in (512, 1024, 2048, 4096, tokens):
        ways[f"{rows} rows"] = layers.convoy_layers(rows).attend
    texts = []
    for name, attend in ways.items():
        graph = torch.cuda.CUDAGraph()
        attend(q, k, v)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            attend(q, k, v)
        texts.append(f"{name} {statistics.median(cuda_ms(graph.replay) for _ in range(7)):.3f} ms")
    print("attention: " + ", ".join(texts), flush=True)
