#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every allocation and every call of the system fails once, in runs of the program that read and
write each kind of file: the exit code is one of those documented, the error is one line, nothing is
left beside the output, and a file that was there before is whole, the old or the new one. And in
runs of the C interface's test and of the Python package: a status or an exception, never a crash.
What `convoy tune` had measured before the fault is kept, and --resume goes on from it.

usage: faults.py CONVOY FAULT_LIBRARY [--every N] [--io-every N] [--kinds malloc,io]
                 [--runtime LIBRARY] [--c-interface PROGRAM] [--python LIBCONVOY]
                 [--virtual-gpu FOLDER] [--only NAME] [--first N] [--last N]
                 [--distinct [--sample N] [--seed N]] [--jobs N] [--seconds S]

--every N tries every N-th allocation only, --io-every every N-th call (CI), both from --first on:
--every 3 with --first 2, then 3, is the rest of --every 3; and up to --last. --runtime: the
sanitizer's, of a sanitized build; it looks for leaks at the end of each run of the program.
--virtual-gpu: the folder of the virtual GPU's libraries, for runs of `convoy tune` on it; of a
sanitized build: VGPU:BUILD. --only: runs of one name alone.

--distinct tries one allocation, or call, of each stack that leads to one (the first from there,
and the last; a stack of several runs in one of them), and --sample N more of each run, at random.
What failed in truth is counted: the stack is taken where the fault happens, and one that was missed
is tried elsewhere.
--jobs N runs N at a time. --seconds S: none begins later than that; the line says where it ended.
"""

import argparse
import array
import collections
import concurrent.futures
import itertools
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import program_case as case

CODES = (0, 2, 3)


def make_files(folder):
    x = [float(i % 7) - 3 for i in range(4 * 4 * 4)]
    w = [float(i % 5) - 2 for i in range(4 * 9 * 4)]
    (folder / "x.npy").write_bytes(case.npy_bytes((1, 4, 4, 4), x))
    (folder / "w.npy").write_bytes(case.npy_bytes((4, 3, 3, 4), w))
    (folder / "x.safetensors").write_bytes(case.safetensors_bytes({
        "x": ((1, 4, 4, 4), x, "bf16"), "w": ((4, 3, 3, 4), w, "bf16")}))
    rows = [bytes(range(12)) for _ in range(4)]
    (folder / "x.png").write_bytes(case.png_bytes(4, 4, rows))
    (folder / "v.npy").write_bytes(case.npy_bytes((2, 3, 3, 3), w[:54]))
    (folder / "x.jpg").write_bytes(case.JPEG_PROGRESSIVE)
    (folder / "x3.npy").write_bytes(case.npy_bytes((1, 2, 4, 4, 2), x))
    (folder / "w3.npy").write_bytes(case.npy_bytes((2, 3, 3, 3, 2), w[:108]))
    (folder / "shapes.txt").write_text("n1h4w4c4k4 name=a\n")
    (folder / "known.txt").write_text(KNOWN_SHAPE + "\n")
    (folder / "both.txt").write_text(KNOWN_SHAPE + "\n" + NEW_SHAPE + "\n")
    # NOTE: the JSON library's constructors lose what they hold where they throw, and oneDNN does.
    (folder / "leaks.txt").write_text("leak:nlohmann::\nleak:libdnnl\n")


KNOWN_SHAPE, NEW_SHAPE = "n1h8w8c64k64r1s1", "n1h8w8c64k64r3s3ph1pw1"

COMMANDS = {
    "npy": ["conv2d", "--input", "x.npy", "--filter", "w.npy", "--pad", "1", "--activation",
            "silu", "--output", "y.npy", "--device", "cpu", "--verify"],
    "safetensors": ["conv2d", "--input", "x.safetensors:x", "--filter", "x.safetensors:w",
                    "--output", "y.safetensors", "--device", "cpu"],
    "png": ["conv2d", "--input", "x.png", "--filter", "v.npy", "--output", "y.png", "--device",
            "cpu", "--json"],
    "conv3d": ["conv3d", "--input", "x3.npy", "--filter", "w3.npy", "--pad", "1", "--output",
               "y.npy", "--next-cache", "y.next.npy", "--device", "cpu"],
    "jpeg": ["view", "x.jpg", "--output", "y.png"],
    "view": ["view", "x.npy", "--output", "y.png"],
    "demo": ["demo", "--image", "x.png", "--output", "y.demo", "--device", "cpu"],
    "bench": ["bench", "n1h4w4c4k4r3s3ph1pw1", "--bias", "--device", "cpu", "--runs", "1",
              "--verify", "--json"],
    "info": ["info", "--json"],
    "man": ["man"],
    "completion": ["completion", "bash"],
    "explain": ["explain", "shapes.txt"],
    "shuffle": ["conv2d", "--input", "x.npy", "--filter", "w.npy", "--shuffle", "1,2", "--output",
                "y.npy", "--device", "cpu"],
    "statistics": ["explain", "n1h4w4c4k4", "--statistics", "2", "--device", "cpu", "--json"],
    "shards": ["bench", "n1h6w4c8k8r3s3ph1pw1", "--shards", "2", "--device", "cpu", "--runs", "1",
               "--csv"],
}

TUNE = ["--time", "0", "--reach", "1.01", "--output", "tuned.txt", "--csv", "tuned.csv"]
VIRTUAL_COMMANDS = {
    "tune": ["tune", "both.txt", *TUNE, "--resume"],
    "known": ["tune", "known.txt", *TUNE],
}

PYTHON = """
import sys
import numpy as np
import convoy
try:
    x, f = np.ones((1, 6, 6, 4), np.float32), np.ones((4, 3, 3, 4), np.float32)
    for _ in range(2):
        y = convoy.conv2d(x, f, padding=1, bias=f[:, 0, 0, 0], activation="silu")
        convoy.conv2d(x, f.transpose(0, 3, 1, 2), filter_layout="KCRS", upsample=2)
        convoy.conv3d(x[:, None], f[:, None], next_cache=True)
        convoy.group_norm(x, 2)
        convoy.candidates(convoy.Conv2d(1, 8, 8, 4, 8), convoy.Options(device="cpu"))
        convoy.clear_cache()
except (convoy.ConvoyError, MemoryError):
    sys.exit(1)
"""


def read_stacks(path):
    """Numbers that stand for stacks: of each allocation or call, in their order."""
    stacks = array.array("Q")
    if path.exists():
        stacks.frombytes(path.read_bytes())
    return stacks


def run(options, folder, name, kind, at, trace=False):
    """(exit code, stderr, the stack that failed or none)"""
    told, traced = folder / "fault", folder / "trace"
    told.unlink(missing_ok=True)
    libraries = [options.library] + ([options.runtime] if options.runtime else [])
    # The C interface's test leaves what it has where a check fails.
    leaks = int(name not in ("c_interface", "python"))
    environment = {
        **os.environ, "LD_PRELOAD": ":".join(libraries), "CONVOY_FAULT": kind,
        "ASAN_OPTIONS": f"verify_asan_link_order=0:detect_leaks={leaks}",
        "LSAN_OPTIONS": f"print_suppressions=0:suppressions={folder / 'leaks.txt'}",
        "CONVOY_LIBRARY": options.python,
        "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2] / "python"),
        "OPENBLAS_NUM_THREADS": "1",
        "CONVOY_FAULT_AT": str(at), "CONVOY_FAULT_FILE": str(told), "OMP_NUM_THREADS": "1",
        "CONVOY_TUNING": str(folder / "tuning.txt"),
    }
    if trace:
        environment["CONVOY_FAULT_TRACE"] = str(traced)
    if name in VIRTUAL_COMMANDS:
        environment |= {"LD_LIBRARY_PATH": options.virtual_gpu, "VGPU_GPU": "h200",
                        "VGPU_SMS": "8", "VGPU_CHECK": "none"}
    command = {"c_interface": [options.c_interface], "python": [sys.executable, "-c", PYTHON]}.get(
        name) or [options.convoy, *(COMMANDS | VIRTUAL_COMMANDS)[name]]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder,
                          env=environment, timeout=300)
    return done.returncode, done.stderr, next(iter(read_stacks(told)), None)


def outputs(folder):
    """What the files that begin with y., and those in such a folder, hold."""
    files = [p for given in folder.glob("y.*") for p in (given, *given.rglob("*")) if p.is_file()]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def judge(folder, name, kind, before, code, stderr):
    """What is wrong, or nothing."""
    if name in ("c_interface", "python"):
        # NOTE: 1 is what both end with where they are told of a failure.
        return "" if code in (0, 1) and "Sanitizer" not in stderr else f"{code}: {stderr[-2000:]}"
    if code not in CODES:
        return f"exit code {code}: {stderr[-300:]}"
    lines = [line for line in stderr.splitlines() if line.startswith("convoy: error")]
    if code != 0 and len(lines) != 1:
        return f"exit code {code} with {len(lines)} lines of error: {stderr[-300:]}"
    if "Sanitizer" in stderr or (kind == "io" and "where none may be" in stderr):
        return stderr[-2000:]
    if (name, kind, code) == ("shards", "malloc", 2):
        return f"memory of a rank that ended is bad input: {stderr[-300:]}"
    left = sorted(p.name for p in folder.rglob("*.part-*"))
    if left:
        return f"left behind: {left}"
    for file, content in outputs(folder).items():
        if content not in before.get(file, ()):
            return f"{file} is neither the old nor the new one"
    return ""


class Tuning:
    """A tuning file and its table with one shape measured, from which `tune --resume` goes on."""

    FILES = ("tuned.txt", "tuned.csv")

    def __init__(self, options, folder, resumed):
        self.options, self.folder, self.resumed = options, folder, resumed
        code, stderr, _ = run(options, folder, "known", "malloc", 0)
        if code != 0:
            raise RuntimeError(f"tune: without a fault: {code} {stderr}")
        self.old = {name: (folder / name).read_text() for name in self.FILES}

    def restore(self):
        for name, content in self.old.items():
            (self.folder / name).write_text(content)

    def left(self):
        """What a failed run left, without the times of what it measured."""
        texts = ((self.folder / name).read_text() for name in self.FILES)
        return tuple(re.sub(r"[0-9]+\.[0-9]+", "TIME", text) for text in texts)

    def judge(self):
        """What is wrong with what a failed run left, or nothing. One that is known to be good but
        for its times is not resumed again."""
        left = self.left()
        if left in self.resumed:
            return ""
        for attempt in ("left", "resumed"):
            for name, content in self.old.items():
                now = (self.folder / name).read_text()
                lost = [line for line in content.splitlines() if line not in now.splitlines()]
                if lost or not now.endswith("\n"):
                    return f"{attempt}: {name} lost {lost}, ends with {now[-20:]!r}"
            if attempt == "left":
                code, stderr, _ = run(self.options, self.folder, "tune", "malloc", 0)
                if code != 0:
                    return f"--resume after it: {code} {stderr[-300:]}"
        lines = (self.folder / "tuned.txt").read_text().splitlines()
        choices = len(lines) - 1  # The header.
        if choices != 2:
            return f"--resume after it: {choices} choices of 2: {lines}"
        self.resumed.add(left)
        return ""


class Campaign:
    """The runs of one name, with faults of one kind."""

    def __init__(self, options, name, kind):
        self.options, self.name, self.kind, self.note = options, name, kind, ""
        self.codes, self.wrong, self.tried = collections.Counter(), [], 0
        self.failed = set()  # Stacks.
        self.resumed = set()

    def every(self):
        if self.kind == "malloc":
            every = self.options.every
            # Its runs are short.
            return max(1, every // 20) if self.name == "c_interface" else every
        # Few, its threads among them.
        return 1 if self.name == "shards" else self.options.io_every

    def run(self):
        """How many of the stacks that were asked for did not fail."""
        points = itertools.count(self.options.first, self.every())
        points = itertools.takewhile(lambda at: at <= self.options.last, points)
        if not self.options.distinct:
            self.try_all(points)
            self.note = f"; {len(self.failed)} stacks{self.note}"
            return 0
        with tempfile.TemporaryDirectory() as root:
            folder = Folder(self, root)
            stacks = folder.trace()
        places = collections.defaultdict(list)
        with self.options.lock:
            for at, stack in enumerate(stacks, 1):
                if stack not in self.options.taken:
                    places[stack].append(at)
            self.options.taken.update(places)
        first = {at for of_one in places.values() for at in (of_one[0], of_one[-1])}
        others = sorted(set(range(1, len(stacks) + 1)) - first)
        drawn = random.Random(self.options.seed)
        first.update(drawn.sample(others, min(self.options.sample, len(others))))
        self.try_all(sorted(first))
        for attempt in range(1, 5):
            # NOTE: what a run measures decides what it does next: places move.
            missed = [of_one for stack, of_one in places.items() if stack not in self.failed]
            self.try_all(sorted(of_one[min(attempt, len(of_one) - 1)] for of_one in missed))
        missed = sum(stack not in self.failed for stack in places)
        self.note += (f"; {len(places) - missed} of {len(places)} new stacks, "
                      f"{len(self.failed)} in all, of {len(stacks)} points")
        return missed

    def try_all(self, points):
        """Until the points end, or, where they are without end, at the first that is not there."""
        points, ended = iter(points), threading.Event()
        lock = threading.Lock()

        def in_a_folder():
            with tempfile.TemporaryDirectory() as root:
                folder = Folder(self, root)
                while not ended.is_set() and not self.wrong[20:]:
                    with lock:
                        at = next(points, None)
                        if at is None:
                            return
                        if time.monotonic() > self.options.end:
                            self.note = f"; no time for those from {at} on"
                            return ended.set()
                    try:
                        stack, code, problem = folder.fail(at)
                    except subprocess.TimeoutExpired as error:
                        stack, code, problem = 0, -1, str(error)
                    with lock:
                        if stack is None:
                            if not self.options.distinct:
                                ended.set()
                            continue
                        self.tried += 1
                        self.failed.add(stack)
                        self.codes[code] += 1
                        if problem:
                            self.wrong.append(f"{self.name}, {self.kind} {at}: {problem}")

        def work():
            try:
                in_a_folder()
            except Exception as error:
                self.wrong.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(self.options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Folder:
    """Where runs of a campaign read and write."""

    def __init__(self, campaign, root):
        self.campaign, self.path = campaign, pathlib.Path(root)
        self.options, self.name, self.kind = campaign.options, campaign.name, campaign.kind
        make_files(self.path)
        (self.path / "tuning.txt").write_text("convoy-tuning 2\n")
        self.tuning = None
        if self.name in VIRTUAL_COMMANDS:
            self.tuning = Tuning(self.options, self.path, campaign.resumed)
        code, stderr, _ = run(self.options, self.path, self.name, self.kind, 0)
        if code != 0:
            raise RuntimeError(f"{self.name}: without a fault: {code} {stderr}")
        self.fresh = outputs(self.path)
        self.restore()

    def restore(self):
        for file in self.fresh:
            (self.path / file).write_bytes(b"old")
        if self.tuning:
            self.tuning.restore()

    def trace(self):
        """The stacks of all allocations, or calls."""
        run(self.options, self.path, self.name, self.kind, 0, trace=True)
        return read_stacks(self.path / "trace")

    def fail(self, at):
        """(the stack that failed, or none; exit code; what is wrong, or nothing)"""
        self.restore()
        before = {file: (b"old", content) for file, content in self.fresh.items()}
        code, stderr, stack = run(self.options, self.path, self.name, self.kind, at)
        if stack is None:
            return stack, code, ""
        problem = judge(self.path, self.name, self.kind, before, code, stderr)
        if self.tuning and not problem:
            problem = self.tuning.judge()
        for part in self.path.rglob("*.part-*"):
            part.unlink()
        return stack, code, problem


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("convoy")
    parser.add_argument("library")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--io-every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=2**62)
    parser.add_argument("--distinct", action="store_true")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--kinds", default="malloc,io")
    parser.add_argument("--runtime", default="")
    parser.add_argument("--c-interface", default="")
    parser.add_argument("--python", default="")
    parser.add_argument("--virtual-gpu", default="")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.taken, options.lock = set(), threading.Lock()  # Stacks that a run tries.
    options.end = time.monotonic() + options.seconds
    for name in ("convoy", "library", "c_interface", "python", "virtual_gpu"):
        path = getattr(options, name)
        setattr(options, name, os.path.abspath(path) if path else "")
    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        names = [*COMMANDS]
        names += ["c_interface"] if options.c_interface else []
        names += ["python"] if options.python else []
        names += ["tune"] if options.virtual_gpu else []
        if options.only and options.only not in names:
            parser.error(f"--only {options.only}: legal here: {', '.join(names)}")
        names = [options.only] if options.only else names
        campaigns = [Campaign(options, name, kind)
                     for kind in options.kinds.split(",") for name in names]
        jobs = [pool.submit(it.run) for it in campaigns]
        for it, job in zip(campaigns, jobs):
            missed = job.result()
            ended = ", ".join(f"{count} with {code}" for code, count in sorted(it.codes.items()))
            print(f"{it.name:12s} {it.kind:7s} {it.tried:6d} points: exit codes {ended}; "
                  f"{len(it.wrong)} wrong{it.note}", flush=True)
            for problem in it.wrong[:10]:
                print("   ", problem)
            failed = failed or bool(it.wrong) or it.tried == 0 or bool(missed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
