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

--every N tries every N-th allocation only, --io-every every N-th call (CI), both from --first on:
--every 3 with --first 2, then 3, is the rest of --every 3; and up to --last. --runtime: the
sanitizer's, of a sanitized build; it looks for leaks at the end of each run of the program.
--virtual-gpu: the folder of the virtual GPU's libraries, for runs of `convoy tune` on it; of a
sanitized build: VGPU:BUILD. --only: runs of one name alone.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

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


def run(options, folder, name, kind, at):
    """(exit code, stderr, whether the fault happened)"""
    told = folder / "fault"
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
    if name in VIRTUAL_COMMANDS:
        environment |= {"LD_LIBRARY_PATH": options.virtual_gpu, "VGPU_GPU": "h200",
                        "VGPU_SMS": "8", "VGPU_CHECK": "none"}
    command = {"c_interface": [options.c_interface], "python": [sys.executable, "-c", PYTHON]}.get(
        name) or [options.convoy, *(COMMANDS | VIRTUAL_COMMANDS)[name]]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder,
                          env=environment, timeout=300)
    return done.returncode, done.stderr, told.exists()


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
    left = sorted(p.name for p in folder.iterdir() if ".part-" in p.name)
    if left:
        return f"left behind: {left}"
    outputs = {p.name: p.read_bytes() for p in folder.iterdir() if p.name.startswith("y.")}
    for file, content in outputs.items():
        if content not in before.get(file, ()):
            return f"{file} is neither the old nor the new one"
    return ""


class Tuning:
    """A tuning file and its table with one shape measured, from which `tune --resume` goes on."""

    FILES = ("tuned.txt", "tuned.csv")

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        code, stderr, _ = run(options, folder, "known", "malloc", 0)
        if code != 0:
            raise RuntimeError(f"tune: without a fault: {code} {stderr}")
        self.old = {name: (folder / name).read_text() for name in self.FILES}
        self.resumed = set()

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


def campaign(options, name, kind):
    """(points tried, exit codes, what was wrong)"""
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        make_files(folder)
        (folder / "tuning.txt").write_text("convoy-tuning 2\n")
        tuning = Tuning(options, folder) if name in VIRTUAL_COMMANDS else None
        code, stderr, _ = run(options, folder, name, kind, 0)
        if code != 0:
            return 0, {}, [f"{name}: without a fault: {code} {stderr}"]
        fresh = {p.name: p.read_bytes() for p in folder.iterdir() if p.name.startswith("y.")}
        old = dict.fromkeys(fresh, b"old")
        before = {file: (old[file], fresh[file]) for file in fresh}
        codes, wrong, tried, at = collections.Counter(), [], 0, options.first
        while at <= options.last:
            for file, content in old.items():
                (folder / file).write_bytes(content)
            if tuning:
                tuning.restore()
            code, stderr, happened = run(options, folder, name, kind, at)
            if not happened:
                return tried, codes, wrong
            tried += 1
            codes[code] += 1
            problem = judge(folder, name, kind, before, code, stderr)
            if tuning and not problem:
                problem = tuning.judge()
            if problem:
                wrong.append(f"{name}, {kind} {at}: {problem}")
                for part in folder.glob("*.part-*"):
                    part.unlink()
            every = options.every if kind == "malloc" else options.io_every
            if (name, kind) == ("shards", "io"):
                every = 1  # Few, its threads among them.
            at += max(1, every // 20) if name == "c_interface" else every  # Its runs are short.
        return tried, codes, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("convoy")
    parser.add_argument("library")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--io-every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=2**62)
    parser.add_argument("--kinds", default="malloc,io")
    parser.add_argument("--runtime", default="")
    parser.add_argument("--c-interface", default="")
    parser.add_argument("--python", default="")
    parser.add_argument("--virtual-gpu", default="")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
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
        jobs = {(name, kind): pool.submit(campaign, options, name, kind)
                for kind in options.kinds.split(",") for name in names}
        for (name, kind), job in jobs.items():
            tried, codes, wrong = job.result()
            ended = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items()))
            print(f"{name:12s} {kind:7s} {tried:6d} points: exit codes {ended}; "
                  f"{len(wrong)} wrong", flush=True)
            for problem in wrong[:10]:
                print("   ", problem)
            failed = failed or bool(wrong) or tried == 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
