# SPDX-License-Identifier: Apache-2.0
"""fp32 convolutions without TF32 on a GPU: time and error of Convoy's kernels that split their
operands, of its FMA kernel, and of PyTorch's cuDNN with and without TF32.

    python bench/split_operands.py [--rounds 20] [--positive]

One process, runs interleaved, L2 flushed before each, medians. Errors are of 4096 outputs against
fp64 on the same numbers: root mean square over that of an fp32 FMA loop (kernel `general`), and the
largest likewise. `--positive`: absolute values, whose sums do not cancel."""

import argparse
import dataclasses
import statistics

import convoy
import torch


@dataclasses.dataclass(frozen=True)
class Layer:
    batch: int
    extent: int
    channels: int
    filters: int
    taps: int
    stride: int = 1


LAYERS = [
    Layer(1, 256, 512, 512, 3),
    Layer(1, 512, 256, 256, 3),
    Layer(1, 1024, 128, 128, 3),
    Layer(1, 128, 512, 512, 3),
    Layer(1, 64, 512, 512, 3),
    Layer(16, 56, 64, 64, 3),
    Layer(16, 28, 128, 128, 3),
    Layer(1, 28, 128, 128, 3),
    Layer(16, 14, 1024, 256, 1),
    Layer(1, 512, 256, 256, 3, 2),
]


def problem_of(layer):
    pad = layer.taps // 2
    return convoy.Conv2d(batch=layer.batch, in_height=layer.extent, in_width=layer.extent,
                         in_channels=layer.channels, out_channels=layer.filters,
                         filter=(layer.taps, layer.taps), pad=(pad,) * 4,
                         stride=(layer.stride, layer.stride))


def convoy_runs(layer, x, w):
    """Name to function of the kernels to compare: the two best that split, and the FMA kernel."""
    problem = problem_of(layer)
    options = convoy.Options(dtype="fp32", device="cuda", packed_filter=True)
    split = [c["kernel"] for c in convoy.candidates(problem, options)
             if "tf32x3" in c["kernel"] and not c["reason"]]
    copies = [name for name in split if name.startswith("split_copy")]
    others = [name for name in split if not name.startswith("split_copy")][:2]
    stream = torch.cuda.current_stream().cuda_stream
    runs = {}
    for name in [*copies, *others, "general"]:
        plan = convoy.Plan(problem, dataclasses.replace(options, kernel=name))
        packed = plan.pack_filter(w.data_ptr(), "KRSC", stream)
        output = torch.empty(plan.output_shape, device="cuda")
        workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device="cuda")

        def run(plan=plan, packed=packed, output=output, workspace=workspace):
            plan.run(output.data_ptr(), x.data_ptr(), packed, workspace=workspace.data_ptr(),
                     stream=stream)
            return output

        runs[name] = run
    return runs


def cudnn_runs(layer, x, w):
    image = x.permute(0, 3, 1, 2)  # Channels last, as Convoy has it.
    filters = w.permute(0, 3, 1, 2)

    def run(tf32):
        torch.backends.cudnn.allow_tf32 = tf32
        out = torch.conv2d(image, filters, stride=layer.stride, padding=layer.taps // 2)
        return out.permute(0, 2, 3, 1)

    return {"cudnn_fp32": lambda: run(False), "cudnn_tf32": lambda: run(True)}


def exact(layer, x, w, at):
    """The outputs `at` (image, row, column), all filters, in fp64."""
    pad = layer.taps // 2
    padded = torch.nn.functional.pad(x, (0, 0, pad, pad, pad, pad))
    n, p, q = (i.tolist() for i in at)
    s, t = layer.stride, layer.taps
    patches = torch.stack([padded[n, p * s:p * s + t, q * s:q * s + t]
                           for n, p, q in zip(n, p, q, strict=True)])
    return patches.double().flatten(1) @ w.double().flatten(1).T


def milliseconds(run, flush):
    flush.zero_()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--positive", action="store_true")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print("layer,run,us,tflops,rms_over_fma,largest_over_fma")
    for layer in LAYERS:
        torch.manual_seed(0)
        x = torch.randn(layer.batch, layer.extent, layer.extent, layer.channels, device="cuda")
        w = torch.randn(layer.filters, layer.taps, layer.taps, layer.channels, device="cuda")
        if options.positive:
            x, w = x.abs(), w.abs()
        runs = convoy_runs(layer, x, w) | cudnn_runs(layer, x, w)
        out = (layer.extent + 2 * (layer.taps // 2) - layer.taps) // layer.stride + 1
        at = [torch.randint(0, most, (max(1, 4096 // layer.filters),), device="cuda")
              for most in (layer.batch, out, out)]
        wanted = exact(layer, x, w, at)
        errors = {name: run()[tuple(at)].double() - wanted for name, run in runs.items()}
        times = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                times[name].append(milliseconds(run, flush))
        flops = 2.0 * layer.batch * out * out * layer.filters * layer.channels * layer.taps**2
        fma = errors["general"]
        for name in runs:
            us = 1e3 * statistics.median(times[name])
            rms = (errors[name].square().mean() / fma.square().mean()).sqrt().item()
            largest = (errors[name].abs().max() / fma.abs().max()).item()
            print(f"{layer.batch}x{layer.extent}x{layer.channels}>{layer.filters} {layer.taps}x"
                  f"{layer.taps}/{layer.stride},{name},{us:.1f},{flops / us * 1e-6:.1f},"
                  f"{rms:.2f},{largest:.2f}", flush=True)


if __name__ == "__main__":
    main()
