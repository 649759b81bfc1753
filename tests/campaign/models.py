#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of public packages under convoy.accelerate, on the CPU: random weights, small inputs,
each compared with eager PyTorch.

usage: models.py PACKAGE[:REGEX]... [--out F] [--skip-done] [--jobs N] [--seconds S]
       models.py --list PACKAGE[:REGEX]

Packages: timm, torchvision, smp (segmentation-models-pytorch), monai, kornia, spandrel,
ultralytics, open_clip (zoo_vision.py); diffusers, transformers, towers (the encoders of pictures
and sound inside of transformers' larger models), sound, which is run without the others
(zoo_diffusers_transformers.py: it puts a mock in torchaudio's place). REGEX takes some of a
package's models, --list prints their names. --out: the results, a line of JSON each
(models.jsonl), and a log beside it; --skip-done goes on with that file. --jobs models run at a
time, one at most --seconds. The exit code is 1 where there was a finding.

It is run by hand, not in CI, and takes hours. Nothing is fetched: weights are random, and a model
that wants a file is skipped, with the reason. The packages are installed by hand, beside the
PyTorch and diffusers of `make test-torch`; no script installs them:

    pip install timm torchvision segmentation-models-pytorch monai kornia spandrel ultralytics \\
        open_clip_torch transformers encodec descript-audio-codec vocos

    CONVOY_LIBRARY=build/default/libconvoy.so PYTHONPATH=python .deps/torch/bin/python \\
        tests/campaign/models.py timm monai --out found.jsonl --skip-done

Each model: eager; accelerated twice, with another input where there is one, in inference mode, as
a deep copy; restored, where the bits and what the modules hold must be what they were; with each
way of each layer chosen at random (what a GPU's measurements might choose), with quality="exact",
channels-last, in bf16. Wrong is what is further from eager than 1e-5 and further from fp64 than
four times eager + 1e-6; in bf16, further from fp32 than 1.5 times eager + 2e-3. Models whose
results are discrete are checked for their form. One that does not end in time is a finding.
"""

import argparse
import copy
import json
import os
import pathlib
import random
import re
import select
import subprocess
import sys
import time
import unittest.mock
import urllib.error
import urllib.request
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def tensors(value, seen=None, depth=0):
    """The tensors of a result, in the order of its fields, with their types."""
    import torch

    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (str, bytes, int, float, type(None))) or depth > 8 or id(value) in seen:
        return
    elif isinstance(value, dict):
        seen.add(id(value))
        for key in value:
            yield from tensors(value[key], seen, depth + 1)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors(item, seen, depth + 1)
    elif isinstance(value, torch.nn.Module):
        return
    elif hasattr(value, "__dict__"):
        seen.add(id(value))
        yield from tensors(value.__dict__, seen, depth + 1)


def form(value):
    """Types and shapes of a result."""
    import torch

    if isinstance(value, torch.Tensor):
        return type(value).__name__, tuple(value.shape), str(value.dtype), value.requires_grad
    if isinstance(value, dict):
        return type(value).__name__, [(str(k), form(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [form(v) for v in value]
    return type(value).__name__


def distance(got, expected):
    """The largest relative L2 error of the floating-point tensors; inf where one is of another
    shape or has other NaNs."""
    import torch

    worst = 0.0
    got, expected = list(tensors(got)), list(tensors(expected))
    if len(got) != len(expected):
        return float("inf")
    for a, b in zip(got, expected):
        if a.shape != b.shape:
            return float("inf")
        if a.numel() == 0 or not b.dtype.is_floating_point:
            if not b.dtype.is_floating_point and not torch.equal(a, b):
                worst = max(worst, float((a != b).float().mean()))
            continue
        a, b = a.detach().double(), b.detach().double()
        good = torch.isfinite(b)
        if not torch.equal(good, torch.isfinite(a)):
            return float("inf")
        if good.any():
            norm = b[good].norm().item()
            worst = max(worst, (a[good] - b[good]).norm().item() / max(norm, 1e-12))
    return worst


def same_bits(got, expected):
    import torch

    got, expected = list(tensors(got)), list(tensors(expected))
    return len(got) == len(expected) and all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(got, expected))


def randomise(model):
    """Nothing that is zero or one everywhere stays so."""
    import torch

    with torch.no_grad():
        for module in model.modules():
            if (isinstance(module, torch.nn.modules.batchnorm._NormBase)
                    and module.running_mean is not None):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
        for parameter in model.parameters():
            if not parameter.dtype.is_floating_point or parameter.numel() < 2:
                continue
            if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
                continue
            if bool((parameter == parameter.flatten()[0]).all()):
                if abs(parameter.flatten()[0].item()) < 1e-3:
                    parameter.normal_(0, 0.05)
                else:
                    parameter.mul_(torch.rand_like(parameter) * 0.4 + 0.8)


def cast(value, dtype):
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype.is_floating_point else value.clone()
    if isinstance(value, dict):
        return {k: cast(v, dtype) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(cast(v, dtype) for v in value)
    return value


def contents(model):
    return {name: sorted(vars(part)) for name, part in model.named_modules()}


class Check:
    def __init__(self, case):
        import torch

        self.torch, self.case = torch, case
        self.found: list[str] = []
        self.numbers: dict[str, float] = {}
        self.wide = None

    def call(self, model, given, dtype=None, seed=7):
        args, kwargs = given
        if dtype is not None:
            args, kwargs = cast(args, dtype), cast(kwargs, dtype)
        else:
            args, kwargs = cast(args, self.torch.float32), cast(kwargs, self.torch.float32)
        self.torch.manual_seed(seed)
        random.seed(seed)
        function = model if not self.case.method else getattr(model, self.case.method)
        return function(*args, **kwargs)

    def expect(self, what, model, given, expected, bits=False):
        try:
            got = self.call(model, given)
        except Exception as error:
            self.found.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
            return None
        if form(got) != form(expected):
            self.found.append(f"{what}: another form: {str(form(got))[:200]} for "
                              f"{str(form(expected))[:200]}")
            return got
        if bits and not same_bits(got, expected):
            self.found.append(f"{what}: other bits, {distance(got, expected):.2g}")
            return got
        error = distance(got, expected)
        self.numbers[what] = error
        if error > 1e-5 and not self.case.discrete:
            ours, eager = self.against_wide(given, got, expected)
            if not ours <= 4 * eager + 1e-6:
                self.found.append(f"{what}: error {error:.2g}; against fp64 {ours:.2g}, "
                                  f"PyTorch's {eager:.2g}")
        return got

    def against_wide(self, given, got, expected):
        try:
            if self.wide is None:
                self.wide = copy.deepcopy(self.plain).double()
            exact = self.call(self.wide, given, self.torch.float64)
            return distance(got, exact), distance(expected, exact)
        except Exception:
            return float("inf"), 0.0

    def run(self):
        import convoy
        from convoy import _measure, _trial

        torch = self.torch
        torch.manual_seed(1)
        with torch.no_grad():
            model, inputs = self.case.make()
            model = model.eval().float()
        randomise(model)
        try:
            self.plain = copy.deepcopy(model)
        except Exception as error:
            return {"skipped": f"no deep copy: {error}"[:200]}
        plain = self.plain
        try:
            with torch.no_grad():
                expected = [self.call(plain, given) for given in inputs]
                again = [self.call(plain, given) for given in inputs]
        except Exception as error:
            return {"skipped": f"eager: {type(error).__name__}: {error}"[:300]}
        if any(distance(a, b) > 0 for a, b in zip(again, expected)):
            return {"skipped": "eager gives other numbers each time"}
        if not any(True for _ in tensors(expected)):
            return {"skipped": "no tensor comes out"}
        state = {k: v.clone() for k, v in model.state_dict().items()
                 if isinstance(v, torch.Tensor)}
        before = contents(model)
        try:
            convoy.accelerate(model)
        except convoy.InvalidArgument as error:
            return {"skipped": f"refused: {error}"[:200]}
        began = time.time()
        with torch.no_grad():
            for i, given in enumerate(inputs):
                first = self.expect(f"first {i}", model, given, expected[i])
                second = self.expect(f"second {i}", model, given, expected[i])
                if first is not None and second is not None:
                    self.numbers[f"between {i}"] = distance(second, first)
        report = convoy.report(model)
        taken = sum(part.calls for part in report.taken)
        # Inference mode, a deep copy, threads of the same model.
        with torch.inference_mode():
            self.expect("inference", model, inputs[0], expected[0])
        try:
            twin = copy.deepcopy(model)
        except Exception as error:
            self.found.append(f"deepcopy: {type(error).__name__}: {error}"[:300])
            twin = None
        with torch.no_grad():
            if twin is not None:
                self.expect("copy", twin, inputs[0], expected[0])
                del twin
            now = model.state_dict()
            if list(now) != list(plain.state_dict()):
                self.found.append("state_dict: other keys")
            for key, value in state.items():
                if not torch.equal(torch.nan_to_num(now[key]), torch.nan_to_num(value)):
                    after = plain.state_dict()[key]
                    if not torch.equal(torch.nan_to_num(now[key]), torch.nan_to_num(after)):
                        self.found.append(f"state_dict: {key} changed")
                        break
            convoy.restore(model)
            self.expect("restored", model, inputs[0], expected[0], bits=True)
            if contents(model) != before and contents(model) != contents(plain):
                changed = [name for name, held in contents(model).items()
                           if held != before.get(name)]
                self.found.append(f"contents: {changed[:3]} hold other things")
            # The GPU's choices, at random.
            chance = random.Random(5)

            def microseconds(ways, device, rounds=3):
                for way in ways.values():
                    way()
                return {name: chance.uniform(1, 2) for name in ways}

            _measure.choices.clear()
            with (unittest.mock.patch.object(_measure, "DEVICES", {"cpu"}),
                  unittest.mock.patch.object(_measure, "microseconds", microseconds),
                  unittest.mock.patch.object(_trial, "_QUICKER", 1e9)):
                convoy.accelerate(model)
                for turn in ("probed", "probed again"):
                    self.expect(turn, model, inputs[0], expected[0])
                convoy.restore(model)
            _measure.choices.clear()
            convoy.accelerate(model, quality="exact")
            self.expect("exact", model, inputs[0], expected[0])
            convoy.restore(model)
            self.other_format(model, inputs, expected)
            self.narrow(model, inputs, expected)
        return {"taken": taken, "fused": report.fused, "left": sorted(
            {f"{p.operation}: {p.reason}"[:120] for p in report.left}),
            "left_calls": report.left_calls, "seconds": round(time.time() - began, 1)}

    def other_format(self, model, inputs, expected):
        import convoy

        torch = self.torch
        try:
            model = copy.deepcopy(model).to(memory_format=torch.channels_last)
            args, kwargs = inputs[0]
            args = tuple(a.contiguous(memory_format=torch.channels_last)
                         if isinstance(a, torch.Tensor) and a.dim() == 4 else a for a in args)
            kwargs = {k: a.contiguous(memory_format=torch.channels_last)
                      if isinstance(a, torch.Tensor) and a.dim() == 4 else a
                      for k, a in kwargs.items()}
            self.call(model, (args, kwargs))
        except Exception:
            return  # PyTorch's own refuses that.
        convoy.accelerate(model)
        self.expect("channels-last", model, (args, kwargs), expected[0])

    def narrow(self, model, inputs, expected):
        import convoy

        torch = self.torch
        try:
            model = copy.deepcopy(model).bfloat16()
            plain = self.call(model, inputs[0], torch.bfloat16)
        except Exception:
            return
        convoy.accelerate(model)
        try:
            got = self.call(model, inputs[0], torch.bfloat16)
        except Exception as error:
            self.found.append(f"bf16: {type(error).__name__}: {str(error)[:300]}")
            return
        if form(got) != form(plain):
            self.found.append(f"bf16: another form: {str(form(got))[:200]} for "
                              f"{str(form(plain))[:200]}")
            return
        ours, eager = distance(got, expected[0]), distance(plain, expected[0])
        self.numbers["bf16"], self.numbers["bf16 eager"] = ours, eager
        if not (ours <= 1.5 * eager + 2e-3 or self.case.discrete or eager > 0.3):
            self.found.append(f"bf16: error {ours:.2g}, PyTorch's {eager:.2g}")


def no_weights(*_, **__):
    raise RuntimeError("weights are random here")


def no_network(*_, **__):
    raise urllib.error.URLError("nothing is fetched here")


def work():
    """A process of the campaign: names come in, results go out, a line each."""
    warnings.filterwarnings("ignore")
    import logging

    logging.disable(logging.ERROR)
    import torch

    torch.set_num_threads(1)
    torch.hub.load_state_dict_from_url = no_weights
    urllib.request.urlopen = no_network  # kornia's own way.
    import zoo_vision

    out, sys.stdout = sys.stdout, sys.stderr
    known: dict[str, dict] = {}
    for line in sys.stdin:
        package, name = line.rstrip("\n").split("\t")
        if package not in known:
            known[package] = {case.name: case for case in zoo_vision.cases(package)}
        check = Check(known[package][name])
        try:
            result = check.run()
        except Exception as error:
            import traceback

            traceback.print_exc()
            result = {"skipped": f"{type(error).__name__}: {error}"[:300]}
            if not check.found and hasattr(check, "plain"):
                check.found.append(f"the driver: {type(error).__name__}: {error}"[:300])
        result |= {"package": package, "name": name, "found": check.found,
                   "numbers": {k: float(f"{v:.2g}") for k, v in check.numbers.items()}}
        print(json.dumps(result), file=out, flush=True)


class Worker:
    def __init__(self, log):
        self.log = log
        self.start()

    def start(self):
        # NOTE: of its own, so that a crash or a hang ends one model.
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, text=True, bufsize=1)
        self.buffer, self.case, self.begun, self.done = "", None, 0.0, 0

    def give(self, case):
        self.case, self.begun = case, time.time()
        self.process.stdin.write("\t".join(case) + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()


def names_of(wanted):
    listed = subprocess.run([sys.executable, __file__, "--list", wanted], capture_output=True,
                            text=True)
    if listed.returncode:
        print(listed.stderr[-2000:], file=sys.stderr)
    return [(wanted.partition(":")[0], name) for name in listed.stdout.split("\n") if name]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*")
    parser.add_argument("--list")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=180, help="for one model")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("models.jsonl"))
    parser.add_argument("--skip-done", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    if options.work:
        return work()
    if options.list:
        import zoo_vision

        warnings.filterwarnings("ignore")
        package, _, pattern = options.list.partition(":")
        for case in zoo_vision.cases(package):
            if re.search(pattern, case.name):
                print(case.name)
        return 0
    cases = [case for wanted in options.packages for case in names_of(wanted)]
    if options.skip_done and options.out.exists():
        done = {(r["package"], r["name"]) for r in map(json.loads, options.out.open())}
        cases = [case for case in cases if case not in done]
    print(f"{len(cases)} models", flush=True)
    with options.out.open("a") as out, pathlib.Path(f"{options.out}.log").open("a") as log:
        wrong = run(cases, options, out, log)
    print(f"{wrong} with findings")
    return 1 if wrong else 0


def run(cases, options, out, log):
    waiting, wrong = list(reversed(cases)), 0
    workers = [Worker(log) for _ in range(options.jobs)]

    def record(result):
        nonlocal wrong
        out.write(json.dumps(result) + "\n")
        out.flush()
        wrong += bool(result["found"])
        if result["found"]:
            print(f"{result['package']} {result['name']}: " + "; ".join(result["found"]),
                  flush=True)

    while waiting or any(worker.case for worker in workers):
        for worker in workers:
            if worker.case is None and waiting:
                if worker.done >= 25:  # Memory that packages keep.
                    worker.end()
                    worker.start()
                worker.give(waiting.pop())
        select.select([w.process.stdout for w in workers if w.case], [], [], 1.0)
        for worker in workers:
            if worker.case is None:
                continue
            if select.select([worker.process.stdout], [], [], 0)[0]:
                line = worker.process.stdout.readline()
                if line:
                    record(json.loads(line))
                    worker.case, worker.done = None, worker.done + 1
                    continue
                why = f"the process ended with {worker.process.wait()}"
            elif time.time() - worker.begun > options.seconds:
                why = f"not done after {options.seconds:.0f} s"
            else:
                continue
            package, name = worker.case
            worker.end()
            worker.start()
            record({"package": package, "name": name, "found": [why], "numbers": {}})
    for worker in workers:
        worker.end()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
