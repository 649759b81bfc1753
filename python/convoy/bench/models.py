# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision, timm or a file of one's own, with random weights: PyTorch eager in the
quicker of its memory formats (cudnn.benchmark on), the same model in that format after
convoy.accelerate, under torch.compile with convoy.dynamo_backend, and accelerated in a CUDA graph
(convoy.graphed). The ways take turns in one process; medians. Errors are those of the largest
output tensor against the same weights in fp32.

    python -m convoy.bench models timm:resnet50 torchvision:deeplabv3_resnet50
    python -m convoy.bench models timm:convnext_tiny --batch 1,16 --size 384 --dtype fp16
    python -m convoy.bench models bench/models/others.py:esrgan

FILE.py:NAME calls NAME() of that file, which gives (module, tuple of its inputs), in fp32 on the
CPU; FILE.py:all takes every name of the file's list ALL. --batch and --size are not for files.
"""

import argparse
import copy
import functools
import runpy
import statistics
import sys
import time

import torch

import convoy

from .rows import csv_file, save, seconds
from .vae import Clock, in_format, release

FIELDS = ("model", "batch", "size", "dtype", "way", "median_ms", "ratio", "host_ms",
          "first_call_s", "peak_gb", "error", "note")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def arguments(words):
    parser = argparse.ArgumentParser(
        prog="python -m convoy.bench models", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="SOURCE:NAME",
                        help="timm:NAME, torchvision:NAME or FILE.py:FUNCTION")
    parser.add_argument("--batch", default="1", help="images a call; several by commas")
    parser.add_argument("--size", type=int, default=224, metavar="PIXELS",
                        help="height and width of the images")
    parser.add_argument("--dtype", default="bf16", choices=tuple(_DTYPES))
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds of every way")
    parser.add_argument("--budget", type=seconds, default=240.0,
                        help="seconds; models that do not fit any more are named and left out")
    parser.add_argument("--csv", type=csv_file, help="file for the rows, written as they come")
    parser.add_argument("--report", action="store_true", help="convoy.report of each model")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args(words)
    named = []
    for model in options.models:
        source, _, name = model.rpartition(":")
        if _is_of_file(model):
            try:
                names = _file(source)["ALL"] if name == "all" else [name]
                unknown = [one for one in names if one not in _file(source)]
                if unknown:
                    raise KeyError(unknown[0])
            except Exception as error:
                parser.error(f"FILE.py:FUNCTION: got {model!r}: {type(error).__name__}: {error}; "
                             "legal: a file that can be imported, and a function of it")
            named += [f"{source}:{one}" for one in names]
        elif source in ("timm", "torchvision") and name:
            named.append(model)
        else:
            parser.error(f"SOURCE:NAME: got {model!r}; legal: timm:NAME, torchvision:NAME, "
                         "FILE.py:FUNCTION")
    options.models = named
    try:
        options.batch = [int(batch) for batch in options.batch.split(",")]
    except ValueError:
        parser.error(f"--batch: got {options.batch!r}; legal: integers from 1 on, by commas")
    if min(options.batch) < 1 or options.size < 1 or options.rounds < 1:
        parser.error("--batch, --size, --rounds: at least 1")
    return options


def _is_of_file(model):
    return model.rpartition(":")[0].endswith(".py")


@functools.cache
def _file(path):
    """What a file defines."""
    return runpy.run_path(path)


def made(model, batch, options):
    """(the model, evaluated, its inputs), on the device in the type asked for."""
    source, _, name = model.rpartition(":")
    images = batch, 3, options.size, options.size
    torch.manual_seed(0)
    inputs = torch.randn(images, generator=torch.Generator().manual_seed(1)),
    if _is_of_file(model):
        built, inputs = _file(source)[name]()
    elif source == "timm":
        import timm

        built = timm.create_model(name, pretrained=False)
    else:
        import torchvision

        built = torchvision.models.get_model(name, weights=None, weights_backbone=None) \
            if "deeplab" in name or "fcn" in name or "lraspp" in name \
            else torchvision.models.get_model(name, weights=None)
    there = functools.partial(torch.Tensor.to, device=options.device, dtype=_DTYPES[options.dtype])
    return (built.eval().to(options.device, _DTYPES[options.dtype]),
            [there(x) if x.is_floating_point() else x.to(options.device) for x in inputs])


def largest(output):
    """The largest tensor of an output of any kind."""
    if isinstance(output, torch.Tensor):
        return output
    parts = output.values() if isinstance(output, dict) else output
    return max((largest(part) for part in parts), key=torch.Tensor.numel)


def ways_of(plain, inputs, clock):
    """Way to (function, what it must keep, note)."""
    torch._dynamo.reset()  # Else shapes of other models are taken for ones that change.
    spent, made = {}, {}
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for channels_last in (True, False):
        model = in_format(copy.deepcopy(plain), channels_last)
        given = [x.contiguous(memory_format=formats[x.dim()])
                 if channels_last and x.dim() in formats else x for x in inputs]
        run = lambda model=model, given=given: model(*given)
        for _ in range(3):
            run()
        spent[channels_last] = min(clock.milliseconds(run)[0] for _ in range(3))
        made[channels_last] = model, given
    quicker = min(spent, key=lambda which: spent[which])
    plain, inputs = made[quicker]
    del made
    yield "eager", lambda: ((lambda: plain(*inputs)), None,
                            "channels-last" if quicker else "NCHW")

    def accelerated():
        model = convoy.accelerate(copy.deepcopy(plain))
        return (lambda: model(*inputs)), model, ""

    yield "convoy", accelerated

    def dynamo():
        compiled = torch.compile(copy.deepcopy(plain), backend=convoy.dynamo_backend)
        for _ in range(3):  # The second call of a shape is noted.
            compiled(*inputs)
        return (lambda: compiled(*inputs)), compiled, ""

    yield "dynamo", dynamo

    def graph():
        model = convoy.accelerate(copy.deepcopy(plain))
        call = convoy.graphed(model, model)
        for _ in range(2):  # The second is captured.
            call(*inputs)
        if call.left:
            raise RuntimeError(f"not captured: {dict(call.left)}")
        return (lambda: call(*inputs)), (model, call), ""

    if clock.cuda:
        yield "graph", graph


def measure(name, batch, options, clock):
    """Rows of one model with one batch."""
    plain, inputs = made(name, batch, options)
    size = "x".join(map(str, inputs[0].shape)) if _is_of_file(name) else options.size
    with torch.backends.cudnn.flags(benchmark=False, allow_tf32=False):
        wanted = largest(copy.deepcopy(plain).float()(
            *(x.float() if x.is_floating_point() else x for x in inputs)))
    rows: list[dict] = []
    ready: list[tuple] = []
    for way, prepare in ways_of(plain, inputs, clock):
        row = dict(model=name, batch=inputs[0].shape[0], size=size, dtype=options.dtype, way=way)
        rows.append(row)
        release()
        try:
            begin = time.perf_counter()
            run, kept, row["note"] = prepare()
            got = largest(run()).float()
            clock.wait()
            row["first_call_s"] = time.perf_counter() - begin
            row["error"] = ((got - wanted).norm() / wanted.norm()).item()
            for _ in range(3):
                again = largest(run()).float()
            if way != "eager" and not torch.equal(again, largest(run()).float()):
                row["note"] += " two runs differ in their bits"
            if clock.cuda:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                run()
                clock.wait()
                row["peak_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
            ready.append((row, run, kept, []))
        except Exception as error:  # One way that fails is a row that says so.
            row["note"] = f"failed: {type(error).__name__}: {str(error)[:300]}"
    for _ in range(options.rounds):
        for _, run, _, times in ready:
            times.append(clock.milliseconds(run))
    for row, _, kept, times in ready:
        row["median_ms"] = statistics.median(spent for spent, _ in times)
        row["host_ms"] = statistics.median(host for _, host in times)
        row["ratio"] = rows[0].get("median_ms", float("nan")) / row["median_ms"]
        if options.report and row["way"] == "convoy":
            print(convoy.report(kept), flush=True)
    return rows


def main(words):
    options = arguments(words)
    if options.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("convoy.bench models: no CUDA device; legal here: --device cpu")
        torch.backends.cudnn.benchmark = True
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
              f"convoy {convoy.version()}")
    clock, begin = Clock(options.device), time.perf_counter()
    jobs = [(name, batch) for name in options.models
            for batch in (options.batch[:1] if _is_of_file(name) else options.batch)]
    rows = []
    for count, (name, batch) in enumerate(jobs):
        if time.perf_counter() - begin > options.budget:
            print("left out, no time: " + ", ".join(f"{n} x {b}" for n, b in jobs[count:]))
            break
        try:
            with torch.no_grad():
                new = measure(name, batch, options, clock)
        except Exception as error:
            new = [dict(model=name, batch=batch, way="-",
                        note=f"failed: {type(error).__name__}: {str(error)[:300]}")]
        release()
        for row in new:
            text = lambda key, form, row=row: format(row[key], form) if key in row else "-"
            print(f"{row['model']:40s} x {row['batch']:<3d} {row['way']:7s} "
                  f"{text('median_ms', '8.3f')} ms, {text('ratio', '.2f')} of eager, host "
                  f"{text('host_ms', '.2f')} ms, first {text('first_call_s', '.1f')} s, peak "
                  f"{text('peak_gb', '.2f')} GB, error {text('error', '.1e')} "
                  f"{row.get('note', '')}", flush=True)
        rows += new
        if options.csv:
            save(options.csv, FIELDS, rows)
    return 0 if all("median_ms" in row for row in rows) else 1
