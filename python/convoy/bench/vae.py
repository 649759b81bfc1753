# SPDX-License-Identifier: Apache-2.0
"""Autoencoders of diffusers with their published configurations and random weights, in bf16 on one
GPU: PyTorch eager in its best memory format, Convoy by convoy.accelerate, and the same in a CUDA
graph (convoy.graphed); optionally torch.compile, by PyTorch's own backend and by Convoy's. The ways
take turns in one process. peak GB: what PyTorch allocates during a call; kept GB: what of the
device's memory a way holds between calls, its copy of the weights, packed filters and the graph's
memory among it.

    python -m convoy.bench vae                      all of them, decode
    python -m convoy.bench vae wan21 --size 480x832x81
    python -m convoy.bench vae flux tiny --parts decode,encode --variants eager,compile,convoy
"""

import argparse
import collections
import copy
import functools
import gc
import multiprocessing
import os
import statistics
import sys
import time

import torch

import convoy

from . import chart, vae_models
from .rows import csv_file, save, seconds

FIELDS = ("name", "part", "size", "way", "median_ms", "best_ms", "rounds", "ratio", "host_ms",
          "first_call_s", "peak_gb", "kept_gb", "error", *(f"{kind}_ms" for kind in chart.KINDS),
          "note")


def arguments(words):
    parser = argparse.ArgumentParser(
        prog="python -m convoy.bench vae", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", metavar="CLASS",
                        help="of " + ", ".join(vae_models.BY_NAME) + "; all, if none is given")
    parser.add_argument("--size", type=vae_models.size, metavar="HxW[xFRAMES]",
                        help="of the decoded pixels; without it each class has its own")
    parser.add_argument("--parts", default="decode", help="of decode, encode")
    parser.add_argument("--variants", default="eager,convoy,graph",
                        help="of eager, compile, max-autotune, convoy, convoy-fast (upsampling "
                        "folded fast), convoy-exact (quality=\"exact\"), convoy-compile "
                        "(compile=True), graph, dynamo (torch.compile with "
                        "convoy.dynamo_backend), dynamo-graph (its CUDA graphs)")
    parser.add_argument("--budget", type=seconds, default=240.0,
                        help="seconds; classes that do not fit any more are named and left out")
    parser.add_argument("--each", type=float, metavar="SECONDS",
                        help="every class and part in a process of its own, ended after SECONDS")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of every way, at most")
    parser.add_argument("--csv", type=csv_file, help="file for the rows, written as they come")
    parser.add_argument("--svg", help="file for a chart of where the device's time goes")
    parser.add_argument("--one-format", action="store_true",
                        help="eager in the one memory format that was the quicker on an H200")
    parser.add_argument("--no-check", action="store_true", help="no errors against fp32")
    parser.add_argument("--no-probe", action="store_true",
                        help="all that Convoy can run, measured quicker or not")
    parser.add_argument("--profile", action="store_true", help="device time by kind of kernel")
    parser.add_argument("--report", action="store_true", help="convoy.report of each model")
    parser.add_argument("--small", action="store_true",
                        help="the small configurations of the tests, to try this script")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"),
                        help="cpu: only with --small")
    options = parser.parse_args(words)
    for name in options.classes:
        if name not in vae_models.BY_NAME:
            parser.error(f"CLASS: no {name!r}; legal: {', '.join(vae_models.BY_NAME)}")
    legal = {"eager", "compile", "max-autotune", "dynamo", "dynamo-graph", *_OPTIONS}
    for name, given, known in (("--parts", options.parts, {"decode", "encode"}),
                               ("--variants", options.variants, legal)):
        unknown = [word for word in given.split(",") if word not in known]
        if unknown:
            parser.error(f"{name}: no {unknown[0]!r}; legal: of {', '.join(sorted(known))}")
    options.classes = options.classes or list(vae_models.BY_NAME)
    options.profile = options.profile or bool(options.svg)
    return options


class Clock:
    """Times on the GPU, or on the CPU."""

    def __init__(self, device):
        self.cuda = device == "cuda"

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def milliseconds(self, run):
        """(time until it is done, time until the call is back)."""
        self.wait()
        begin = time.perf_counter()
        run()
        host = time.perf_counter()
        self.wait()
        return (time.perf_counter() - begin) * 1e3, (host - begin) * 1e3


def release():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def in_format(model, channels_last):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in model.parameters():
        if parameter.dim() in formats:
            parameter.data = parameter.data.contiguous(
                memory_format=formats[parameter.dim()] if channels_last
                else torch.contiguous_format)
    return model


_OPTIONS: dict[str, dict] = {
    "convoy": {}, "graph": {}, "convoy-fast": dict(upsample_folding="fast"),
    "convoy-exact": dict(quality="exact"), "convoy-compile": dict(compile=True),
}


class Case:
    """One model and one part of it, in several ways."""

    def __init__(self, vae, part, options, clock):
        torch._dynamo.reset()  # Else shapes of other models are taken for ones that change.
        self.vae, self.part, self.options, self.clock = vae, part, options, clock
        self.dtype = torch.bfloat16
        self.plain = vae.make(options.small, self.dtype, options.device)
        generator = torch.Generator().manual_seed(2)
        self.keywords = vae.small_keywords if options.small else vae.keywords
        latent = vae.small_latent if options.small else vae.latent
        z = torch.randn(latent, generator=generator).to(options.device, self.dtype)
        self.given = z
        if part == "encode":
            with torch.no_grad():
                shape = vae.small_sample if options.small else self._decoded_shape(z)
            x = torch.rand(shape, generator=generator) * 2 - 1
            self.given = x.to(options.device, self.dtype)

    def _decoded_shape(self, z):
        frames, height, width = ([1, *map(int, self.vae.size.split("x"))])[-3:]
        if z.dim() == 4:
            return (z.shape[0], 3, height, width)
        return (z.shape[0], 3, frames, height, width)

    def run(self, model, given):
        if self.part == "encode":
            return vae_models.encoded(model, given)
        return vae_models.decoded(model, given, self.keywords)

    def accelerated(self, **keywords):
        model = in_format(copy.deepcopy(self.plain), False)
        return convoy.accelerate(model, probe=not self.options.no_probe, **keywords)

    def compiled(self, probe, graphs=False):
        """A copy of the model, and its call under torch.compile with Convoy's backend."""
        model = in_format(copy.deepcopy(self.plain), False)
        return model, torch.compile(
            lambda given: self.run(model, given), backend=convoy.dynamo_backend,
            mode="reduce-overhead" if graphs else None,
            # NOTE: PyTorch takes a mode or options, not both.
            options=None if graphs else {"probe": probe})

    def best_format(self):
        """PyTorch's model in the memory format in which it is quicker."""
        spent = {}
        known = (self.vae.channels_last,)
        for channels_last in known if self.options.one_format else (True, False):
            in_format(self.plain, channels_last)
            given = self.given
            if channels_last:
                given = given.contiguous(memory_format=(
                    torch.channels_last if given.dim() == 4 else torch.channels_last_3d))
            run = lambda given=given: self.run(self.plain, given)
            run()
            spent[channels_last] = self.clock.milliseconds(run)[0], run
        channels_last = min(spent, key=lambda which: spent[which][0])
        in_format(self.plain, channels_last)
        return spent[channels_last][1], "channels-last" if channels_last else "NCHW"

    def way(self, kind):
        """(function, what it must keep, note)."""
        if kind == "eager":
            run, note = self.best_format()
            return run, None, note
        if kind in ("compile", "max-autotune"):
            mode = None if kind == "compile" else "max-autotune-no-cudagraphs"
            compiled = torch.compile(self.run, mode=mode)
            return (lambda: compiled(self.plain, self.given)), None, ""
        if kind in ("dynamo", "dynamo-graph"):
            model, compiled = self.compiled(not self.options.no_probe, kind == "dynamo-graph")
            for _ in range(4):  # The second call of a shape is noted, the fourth captured.
                compiled(self.given)
            return (lambda: compiled(self.given)), (model, compiled), ""
        model = self.accelerated(**_OPTIONS[kind])
        run = lambda: self.run(model, self.given)
        if kind == "graph":
            call = convoy.graphed(lambda given: self.run(model, given), model)
            for _ in range(2):  # The second is captured.
                call(self.given)
            if call.left:
                raise RuntimeError(f"not captured: {dict(call.left)}")
            return (lambda: call(self.given)), (model, call), ""
        return run, model, ""

    def error(self, kind):
        """Relative error against fp32 with the same weights, on a small crop of the input."""
        if kind not in ("eager", "convoy", "convoy-fast", "convoy-exact", "dynamo"):
            return None
        given = self.given
        limits = (64, 64, 17) if self.part == "encode" else (16, 16, 5)
        for axis, limit in zip((-1, -2, -3), limits if given.dim() == 5 else limits[:2]):
            given = given.narrow(axis, 0, min(given.shape[axis], limit))
        given = given.contiguous()
        if not hasattr(self, "reference"):
            exact = copy.deepcopy(self.plain).float()
            tf32 = torch.backends.cudnn.allow_tf32
            torch.backends.cudnn.allow_tf32 = False
            self.reference = self.run(exact, given.float())
            torch.backends.cudnn.allow_tf32 = tf32
        if kind == "dynamo":
            _, run = self.compiled(probe=False)
            for _ in range(2):  # The second is noted.
                run(given)
        else:
            model = self.plain if kind == "eager" else convoy.accelerate(
                copy.deepcopy(self.plain), probe=False, **_OPTIONS[kind])
            run = functools.partial(self.run, model)
        got = run(given).float()
        return ((got - self.reference).norm() / self.reference.norm()).item()


def measure(case, options, clock, deadline, tell):
    """Rows of one case. tell(rows): of what is there so far."""
    rows: dict[str, dict] = {}
    ways: dict[str, tuple] = {}
    for kind in options.variants.split(","):
        if kind.endswith("graph") and options.device == "cpu":
            continue
        row = rows[kind] = dict(name=case.vae.name, part=case.part, way=kind, note="",
                                size="small" if options.small else case.vae.size)
        release()
        try:
            begin = time.perf_counter()
            free = torch.cuda.mem_get_info()[0] if clock.cuda else 0
            run, kept, note = case.way(kind)
            run()
            clock.wait()
            row["first_call_s"] = time.perf_counter() - begin
            row["note"] = note
            if kind.startswith(("convoy", "dynamo")) and not torch.equal(run(), run()):
                row["note"] += " two runs differ in their bits"
            if clock.cuda:
                release()
                row["kept_gb"] = (free - torch.cuda.mem_get_info()[0]) / 1e9
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                run()
                clock.wait()
                row["peak_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
            ways[kind] = run, kept, []
        except Exception as error:  # One way that fails is a row that says so.
            row["note"] = f"failed: {type(error).__name__}: {str(error)[:300]}"
            print(f"  {case.vae.name} {case.part} {kind}: {row['note']}", flush=True)
    for count in range(options.rounds):
        if count >= 2 and time.perf_counter() > deadline:
            break
        for run, _, times in ways.values():
            times.append(clock.milliseconds(run))
    eager = None
    for kind, (_, kept, times) in ways.items():
        row = rows[kind]
        row["median_ms"] = statistics.median(t for t, _ in times)
        row["best_ms"] = min(t for t, _ in times)
        row["host_ms"] = statistics.median(h for _, h in times)
        row["rounds"] = len(times)
        eager = row["median_ms"] if kind == "eager" else eager
        row["ratio"] = eager / row["median_ms"] if eager else None
        if options.report and kind == "convoy":
            print(convoy.report(kept), flush=True)
        if options.profile and clock.cuda:
            row.update(profile(kind, ways[kind][0], top=0 if options.svg else 12))
    ways.clear()
    release()
    tell(list(rows.values()))
    if not options.no_check:
        for kind, row in rows.items():
            try:
                row["error"] = case.error(kind)
            except Exception as error:
                row["note"] += f" no error: {type(error).__name__}: {str(error)[:200]}"
    return list(rows.values())


_KINDS = (  # The first that fits.
    ("attention", ("flash", "fmha", "attention")),
    ("attention", ("gemm", "cublas", "nvjet", "Kernel2", "splitK")),  # Its matrices too.
    ("attention", ("SoftMax", "softmax")),
    ("norm", ("norm", "Norm", "moments", "Moments")),
    ("convolution", ("conv", "sm90", "sm100", "cudnn", "xmma", "cutlass", "implicit")),
    ("copy", ("copy", "Memcpy", "Cat", "cat_", "transpose", "nchw", "nhwc", "Nchw", "Nhwc", "fill",
              "Memset", "pad")),
)


def profile(kind, run, top=12):
    """Milliseconds of the device by kind of kernel; prints the heaviest kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as result:
        run()
        torch.cuda.synchronize()
    kinds: collections.Counter[str] = collections.Counter()
    kernels: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for event in result.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        name, spent = event.name, event.time_range.elapsed_us()
        kernels[name] += spent
        counts[name] += 1
        kinds[next((k for k, words in _KINDS if any(w in name for w in words)), "other")] += spent
    print(f"  {kind}: " + ", ".join(f"{k} {us / 1e3:.2f} ms" for k, us in kinds.most_common()))
    for name, us in kernels.most_common(top):
        print(f"    {us / 1e3:9.3f} ms {counts[name]:6d} x  {name[:120]}", flush=True)
    return {f"{kind}_ms": kinds[kind] / 1e3 for kind in chart.KINDS}


def show(rows):
    for row in rows:
        text = lambda key, form: format(row[key], form) if row.get(key) is not None else "-"
        print(f"{row['name']:10s} {row['part']:7s} {row['size']:>12s} {row['way']:13s} "
              f"{text('median_ms', '.2f'):>9s} {text('best_ms', '.2f'):>9s} "
              f"{text('ratio', '.2f'):>6s} {text('host_ms', '.1f'):>8s} "
              f"{text('first_call_s', '.1f'):>7s} {text('peak_gb', '.2f'):>7s} "
              f"{text('kept_gb', '.2f'):>7s} "
              f"{text('error', '.2e'):>9s} {row['note']}", flush=True)


def rows_of(options, part, name, seconds, tell=lambda rows: None):
    """Rows of one class and part, whatever fails. seconds: for more than two rounds."""
    deadline = time.perf_counter() + seconds
    clock = Clock(options.device)
    try:
        with torch.no_grad():
            vae = vae_models.BY_NAME[name]
            if options.size and not options.small:
                vae = vae_models.resized(vae, options.size)
            made = measure(Case(vae, part, options, clock), options, clock, deadline, tell)
    except Exception as error:
        made = [dict(name=name, part=part, size="", way="-",
                     note=f"failed: {type(error).__name__}: {str(error)[:300]}")]
    release()
    return made


def in_a_process(options, part, name, limit, share):
    """As rows_of, in a process that ends after `limit` seconds."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def work():
        reader.close()
        writer.send(rows_of(options, part, name, share, writer.send))

    child = context.Process(target=work)
    child.start()
    writer.close()
    rows, deadline, note = [], time.perf_counter() + limit, ""
    try:
        while True:
            if not reader.poll(max(deadline - time.perf_counter(), 0)):
                note = f"stopped after {limit:.0f} s"
                child.kill()
                break
            rows = reader.recv()
    except EOFError:
        pass
    child.join()
    if child.exitcode != 0 and not note:
        note = f"the process ended with {child.exitcode}"
    if note:
        rows = rows or [dict(name=name, part=part, size="", way="-", note="")]
        for row in rows:
            row["note"] = f"{row['note']} {note}".strip()
    return rows


def main(words):
    options = arguments(words)
    if options.each:  # NOTE: CUDA does not survive a fork: nothing here may start it.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("convoy.bench vae: no CUDA device; legal here: --small --device cpu")
    if options.device == "cuda":
        torch.backends.cudnn.benchmark = True
    if options.device == "cuda" and not options.each:
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
              f"convoy {convoy.version()}")
    import diffusers

    diffusers.utils.logging.set_verbosity_error()
    begin = time.perf_counter()
    print(f"{'name':10s} {'part':7s} {'size':>12s} {'way':13s} {'median ms':>9s} {'best':>9s} "
          f"{'ratio':>6s} {'host ms':>8s} {'first s':>7s} {'peak GB':>7s} {'kept GB':>7s} "
          f"{'error':>9s} note", flush=True)
    jobs = [(part, name) for part in options.parts.split(",") for name in options.classes]
    rows = []
    for count, (part, name) in enumerate(jobs):
        left = options.budget - (time.perf_counter() - begin)
        if left <= 0:
            print("left out, no time: " + ", ".join(f"{n} {p}" for p, n in jobs[count:]))
            break
        # A fair share of what is left, and not less than two rounds.
        share = left / (len(jobs) - count)
        if options.each:
            made = in_a_process(options, part, name, min(options.each, left), share)
        else:
            made = rows_of(options, part, name, share)
        show(made)
        rows += made
        if options.csv:
            save(options.csv, FIELDS, rows)
        if options.svg:
            with open(options.svg, "w") as file:
                file.write(chart.drawn(rows))
    return 0 if all(row.get("median_ms") is not None for row in rows) else 1
