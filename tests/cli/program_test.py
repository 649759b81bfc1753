#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program `convoy` as a person calls it: files in, files out, bad input refused.

Only the standard library is needed; the files and the expected values are made here.
usage: program_test.py CONVOY [unittest options]
"""

import json
import math
import os
import select
import struct
import subprocess
import sys
import unittest

from program_case import (
    CONVOY,
    ProgramCase,
    npy_bytes,
    png_bytes,
    read_npy,
    safetensors_bytes,
    unpack,
)

# ---- the convolution in plain Python ----

def convolve(x, x_shape, w, w_shape, pad, stride, dilation, groups=1):
    """2-D and 3-D: x [N, (D,) H, W, C], w [K, (T,) R, S, C / groups]; pad [(begin, end)] per
        axis."""
    rank = len(x_shape) - 2
    n_, c_ = x_shape[0], x_shape[-1]
    k_, cg = w_shape[0], w_shape[-1]
    spatial, taps = x_shape[1:-1], w_shape[1:-1]
    out = [(i + sum(p) - d * (t - 1) - 1) // s + 1
           for i, p, d, t, s in zip(spatial, pad, dilation, taps, stride)]

    def points(extents):
        if not extents:
            return [()]
        return [(i, *rest) for i in range(extents[0]) for rest in points(extents[1:])]

    def flat(index, extents):
        at = 0
        for i, extent in zip(index, extents):
            at = at * extent + i
        return at

    result = []
    for n in range(n_):
        for o in points(out):
            for k in range(k_):
                total = 0.0
                for tap in points(taps):
                    at = [o[a] * stride[a] - pad[a][0] + tap[a] * dilation[a] for a in range(rank)]
                    if any(i < 0 or i >= e for i, e in zip(at, spatial)):
                        continue
                    base = flat((n, *at), (n_, *spatial)) * c_ + k // (k_ // groups) * cg
                    filter_base = flat((k, *tap), (k_, *taps)) * cg
                    total += sum(x[base + c] * w[filter_base + c] for c in range(cg))
                result.append(total)
    return (n_, *out, k_), result


def silu(x):
    return x / (1 + math.exp(-x))


class ProgramTest(ProgramCase):
    # ---- the main job ----

    def test_2d_small_integers_are_exact_in_every_type(self):
        for kind in ("fp32", "fp16", "bf16"):
            x = self.write_npy("x.npy", (2, 5, 6, 4), kind=kind)
            w = self.write_npy("w.npy", (8, 3, 3, 2), kind=kind)
            out = self.succeed("conv2d", "--input", "x.npy", "--filter", "w.npy",
                               "--pad", "1,2,0,1", "--stride", "2,1", "--groups", 2,
                               "--output", "y.npy", "--verify", "--device", "cpu")
            self.assertIn("verify    passed", out)
            shape, expected = convolve(x, (2, 5, 6, 4), w, (8, 3, 3, 2), [(1, 2), (0, 1)], (2, 1),
                                       (1, 1), groups=2)
            got_shape, got, got_kind = read_npy(self.path("y.npy"))
            self.assertEqual(got_kind, kind, "the output has the input's type")
            self.assertEqual(got_shape, shape)
            self.assertEqual(got, expected)

    def test_3d_with_dilation_and_causal_padding(self):
        x = self.write_npy("x.npy", (1, 4, 5, 5, 3))
        w = self.write_npy("w.npy", (2, 3, 3, 3, 3))
        self.succeed("conv3d", "--input", "x.npy", "--filter", "w.npy", "--pad", "2,0,1,1,2,2",
                     "--dilation", "1,1,2", "--output", "y.npy", "--device", "cpu")
        shape, expected = convolve(x, (1, 4, 5, 5, 3), w, (2, 3, 3, 3, 3), [(2, 0), (1, 1), (2, 2)],
                                   (1, 1, 1), (1, 1, 2))
        got_shape, got, _ = read_npy(self.path("y.npy"))
        self.assertEqual((got_shape, got), (shape, expected))

    def test_cache_carries_on_where_the_last_call_ended(self):
        # Two calls with a cache give what one call over all frames gives.
        x = self.write_npy("x.npy", (1, 6, 4, 4, 2))
        frame = 4 * 4 * 2
        self.write_npy("a.npy", (1, 3, 4, 4, 2), x[: 3 * frame])
        self.write_npy("b.npy", (1, 3, 4, 4, 2), x[3 * frame :])
        self.write_npy("zero.npy", (1, 2, 4, 4, 2), [0.0] * 2 * frame)
        w = self.write_npy("w.npy", (3, 3, 3, 3, 2))
        for name, cache, after in (("a", "zero.npy", "c1.npy"), ("b", "c1.npy", "c2.npy")):
            self.succeed("conv3d", "--input", f"{name}.npy", "--filter", "w.npy", "--pad", "0,1,1",
                         "--cache", cache, "--next-cache", after, "--output", f"y{name}.npy",
                         "--verify", "--device", "cpu")
        _, expected = convolve(x, (1, 6, 4, 4, 2), w, (3, 3, 3, 3, 2), [(2, 0), (1, 1), (1, 1)],
                               (1, 1, 1), (1, 1, 1))
        self.assertEqual(read_npy(self.path("ya.npy"))[1] + read_npy(self.path("yb.npy"))[1],
                         expected)
        self.assertEqual(read_npy(self.path("c2.npy"))[1], x[4 * frame :])

    def test_epilogue_and_filter_layouts(self):
        x = self.write_npy("x.npy", (4, 4, 2))
        k, r, s, c = 3, 3, 2, 2
        w = self.write_npy("KRSC.npy", (k, r, s, c))
        at = {"K": k, "R": r, "S": s, "C": c, "F": k}

        def value(i):
            i = {"K": i.get("K", i.get("F")), **i}
            return w[((i["K"] * r + i["R"]) * s + i["S"]) * c + i["C"]]

        for layout in ("KCRS", "RSCF"):
            values = [value(dict(zip(layout, (a, b, d, e))))
                      for a in range(at[layout[0]]) for b in range(at[layout[1]])
                      for d in range(at[layout[2]]) for e in range(at[layout[3]])]
            self.write_npy(f"{layout}.npy", [at[a] for a in layout], values)
        bias = self.write_npy("b.npy", (k,))
        residual = self.write_npy("c.npy", (4, 3, k))
        _, conv = convolve(x, (1, 4, 4, 2), w, (k, r, s, c), [(1, 1), (0, 0)], (1, 1), (1, 1))
        expected = [silu(0.5 * v + bias[i % k]) + 2 * residual[i] for i, v in enumerate(conv)]
        for layout in ("KRSC", "KCRS", "RSCF"):
            self.succeed("conv2d", "--input", "x.npy", "--filter", f"{layout}.npy",
                         "--filter-layout", layout, "--pad", "1,0", "--scale", 0.5, "--bias",
                         "b.npy", "--activation", "silu", "--residual", "c.npy", "--beta", 2,
                         "--output", "y.npy", "--verify", "--device", "cpu")
            shape, got, _ = read_npy(self.path("y.npy"))
            self.assertEqual(shape, (4, 3, k), "an input without N gives an output without N")
            for a, b in zip(got, expected):
                self.assertAlmostEqual(a, b, delta=1e-5 * max(1, abs(b)))

    def test_a_shuffled_output_with_a_shortcut(self):
        # DC-AE's upsampling: filters become pixels, the input's channels repeat.
        x = self.write_npy("x.npy", (1, 3, 4, 2))
        w = self.write_npy("w.npy", (8, 3, 3, 2))
        out = self.succeed("conv2d", "--input", "x.npy", "--filter", "w.npy", "--pad", 1,
                           "--shuffle", 2, "--residual", "x.npy", "--shortcut", "interleaved",
                           "--output", "y.npy", "--verify", "--device", "cpu")
        self.assertIn("shuffle   shuffle(1x2x2,interleaved2)", out)
        _, conv = convolve(x, (1, 3, 4, 2), w, (8, 3, 3, 2), [(1, 1), (1, 1)], (1, 1), (1, 1))
        expected = []
        for row in range(6):
            for column in range(8):
                for c in range(2):
                    pixel = row // 2 * 4 + column // 2
                    k = c * 4 + row % 2 * 2 + column % 2
                    expected.append(conv[pixel * 8 + k] + x[pixel * 2 + k // 4])
        shape, got, _ = read_npy(self.path("y.npy"))
        self.assertEqual((shape, got), ((1, 6, 8, 2), expected))
        for option, text in (("--shuffle-order", "--shuffle-order = 'no'; legal: outer, inner"),
                             ("--shortcut", "--shortcut = 'no'; legal: interleaved, tiled")):
            self.refuse(text, "conv2d", "--input", "x.npy", "--filter", "w.npy", "--pad", 1,
                        "--shuffle", 2, "--residual", "x.npy", option, "no", "--output", "z.npy",
                        "--device", "cpu")

    def test_frames_interleave_without_the_first(self):
        x = self.write_npy("x.npy", (1, 2, 2, 3, 2))
        w = self.write_npy("w.npy", (4, 3, 1, 1, 2))
        self.succeed("conv3d", "--input", "x.npy", "--filter", "w.npy", "--pad", "2,0,0,0,0,0",
                     "--shuffle", "2,1,1", "--shuffle-order", "inner", "--drop-frames", 1,
                     "--output", "y.npy", "--verify", "--device", "cpu")
        _, conv = convolve(x, (1, 2, 2, 3, 2), w, (4, 3, 1, 1, 2), [(2, 0), (0, 0), (0, 0)],
                           (1, 1, 1), (1, 1, 1))
        expected = [conv[(frame // 2 * 6 + pixel) * 4 + frame % 2 * 2 + c]
                    for frame in (1, 2, 3) for pixel in range(6) for c in range(2)]
        shape, got, _ = read_npy(self.path("y.npy"))
        self.assertEqual((shape, got), ((1, 3, 2, 3, 2), expected))

    def test_clamp_alone_is_relu6(self):
        self.write_npy("x.npy", (1, 1, 5, 1), [-3.0, 0.0, 0.005, 5.0, 9.0])
        self.write_npy("w.npy", (1, 1, 1, 1), [1.0])
        for activation, low, high in (("clamp", 0, 6), ("clamp:-1,2", -1, 2)):
            self.succeed("conv2d", "--input", "x.npy", "--filter", "w.npy", "--activation",
                         activation, "--output", "y.npy", "--verify", "--device", "cpu")
            expected = [min(max(v, low), high) for v in (-3.0, 0.0, 0.005, 5.0, 9.0)]
            for a, b in zip(read_npy(self.path("y.npy"))[1], expected):
                self.assertAlmostEqual(a, b, places=6)

    def test_safetensors_in_and_out(self):
        x = [float(i % 7) for i in range(2 * 3 * 4)]
        self.write("m.safetensors", safetensors_bytes({
            "x": ((1, 2, 3, 4), x, "fp32"), "conv.weight": ((1, 4, 1, 1), [1, 2, 3, 4], "bf16")}))
        self.succeed("conv2d", "--input", "m.safetensors:x",
                     "--filter", "m.safetensors:conv.weight",
                     "--filter-layout", "KCRS", "--output", "y.safetensors:out", "--device", "cpu")
        with open(self.path("y.safetensors"), "rb") as file:
            data = file.read()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        self.assertEqual(header["out"]["dtype"], "F32")
        self.assertEqual(header["out"]["shape"], [1, 2, 3, 1])
        expected = [sum(x[4 * i + c] * (c + 1) for c in range(4)) for i in range(6)]
        self.assertEqual(unpack("fp32", data[8 + length :]), expected)

    def test_png_in_and_out(self):
        rows = [bytes((x * 20 + y * 3 + c) % 256 for x in range(6) for c in range(3))
                for y in range(5)]
        self.write("x.png", png_bytes(6, 5, rows))
        # Swap red and blue; an RGB picture comes out.
        self.write_npy("w.npy", (3, 1, 1, 3), [0, 0, 1, 0, 1, 0, 1, 0, 0])
        self.succeed("conv2d", "--input", "x.png", "--filter", "w.npy", "--output", "y.png",
                     "--device", "cpu")
        with open(self.path("y.png"), "rb") as file:
            data = file.read()
        self.assertEqual(struct.unpack(">IIBB", data[16:26]), (6, 5, 8, 2))
        # Through a second swap the picture is the first one again.
        self.succeed("conv2d", "--input", "y.png", "--filter", "w.npy", "--output", "z.npy",
                     "--device", "cpu")
        _, got, kind = read_npy(self.path("z.npy"))
        self.assertEqual(kind, "fp32")
        for a, b in zip(got, b"".join(rows)):
            self.assertAlmostEqual(a, b / 255, places=6)

    def test_nan_and_infinity_pass_through(self):
        x = [1.0] * 9
        x[0], x[8] = math.nan, math.inf
        for kind in ("fp32", "fp16", "bf16"):
            self.write_npy("x.npy", (1, 3, 3, 1), x, kind)
            self.write_npy("w.npy", (2, 1, 1, 1), [1.0, -2.0], kind)
            self.succeed("conv2d", "--input", "x.npy", "--filter", "w.npy", "--output", "y.npy",
                         "--verify", "--device", "cpu")
            _, got, _ = read_npy(self.path("y.npy"))
            self.assertTrue(math.isnan(got[0]) and math.isnan(got[1]))
            self.assertEqual(got[16:], [math.inf, -math.inf])
            self.assertEqual(got[2:16], [1.0, -2.0] * 7)

    def test_zero_sized_batch_gives_a_zero_sized_file(self):
        self.write_npy("x.npy", (0, 4, 4, 2))
        self.write_npy("w.npy", (3, 3, 3, 2))
        self.succeed("conv2d", "--input", "x.npy", "--filter", "w.npy", "--output", "y.npy",
                     "--verify", "--device", "cpu")
        self.assertEqual(read_npy(self.path("y.npy"))[:2], ((0, 2, 2, 3), []))

    def test_json(self):
        self.write_npy("x.npy", (1, 4, 4, 2), kind="bf16")
        self.write_npy("w.npy", (3, 3, 3, 2), kind="bf16")
        told = json.loads(self.succeed("conv2d", "--input", "x.npy", "--filter", "w.npy",
                                       "--output", "y.npy", "--output-dtype", "fp32",
                                       "--verify", "--json", "--device", "cpu"))
        self.assertEqual(told["problem"], "n1h4w4c2k3r3s3")
        self.assertEqual(told["output_dtype"], "fp32")
        self.assertTrue(told["verify"]["passed"])
        self.assertLessEqual(told["verify"]["worst_of_bound"], 1)
        self.assertEqual(read_npy(self.path("y.npy"))[2], "fp32")

    def test_verify_finds_a_wrong_output(self):
        wrong = os.environ.get("CONVOY_WRONG_ONEDNN")
        if not wrong:
            self.skipTest("CONVOY_WRONG_ONEDNN names no library")
        self.write_npy("x.npy", (1, 4, 4, 2))
        self.write_npy("w.npy", (3, 1, 1, 2))
        arguments = ("conv2d", "--input", "x.npy", "--filter", "w.npy", "--output", "y.npy",
                     "--verify", "--device", "cpu")
        done = self.run_convoy(*arguments, preload=wrong)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("verify    FAILED", done.stdout)
        self.assertIn("past the bound; worst at (0, 0, 0, 0)", done.stdout)
        self.assertEqual(read_npy(self.path("y.npy"))[0], (1, 4, 4, 3), "written all the same")
        done = self.run_convoy(*arguments, "--json", preload=wrong)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertFalse(json.loads(done.stdout)["verify"]["passed"])
        done = self.run_convoy("bench", "n1h4w4c4k4", "--runs", 1, "--dtype", "fp32", "--verify",
                               "--csv", "--device", "cpu", preload=wrong)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)

    def test_progress_is_for_terminals(self):
        # NOTE: a layer of milliseconds: short runs reach their largest number before the time is
        # up.
        timing = ["bench", "n1h128w128c64k64r3s3", "--device", "cpu", "--dtype", "fp32", "--time",
                  "1.5"]
        try:
            terminal, other_end = os.openpty()
        except OSError as error:  # A root without /dev/pts.
            self.skipTest(f"no pseudo-terminal: {error}")
        try:
            done = subprocess.run([CONVOY, *timing], stdout=subprocess.PIPE, stderr=other_end,
                                  timeout=300)
            ready, _, _ = select.select([terminal], [], [], 0)
            told = os.read(terminal, 1 << 16) if ready else b""
        finally:
            os.close(terminal)
            os.close(other_end)
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"\rtiming n1h128w128c64k64r3s3: 1 s", told)
        self.assertNotIn(b"timing", done.stdout)
        # Into a pipe nothing: succeed() sees to it.
        self.succeed(*timing)

    # ---- bad input ----

    def conv2d(self, x="x.npy", w="w.npy", *more, output="y.npy"):
        return ("conv2d", "--input", x, "--filter", w, "--output", output, "--device", "cpu", *more)

    def test_bad_files(self):
        good = npy_bytes((1, 4, 4, 2), [0.0] * 32)
        self.write("x.npy", good)
        self.write_npy("w.npy", (3, 3, 3, 2))
        self.refuse("none.npy: cannot open", *self.conv2d("none.npy"))
        os.mkdir(self.path("folder.npy"))
        self.refuse("folder.npy: is not a regular file", *self.conv2d("folder.npy"))
        self.write("cut.npy", good[:-5])
        self.refuse("cut.npy: truncated", *self.conv2d("cut.npy"))
        self.write("head.npy", good[:9])
        self.refuse("head.npy: truncated", *self.conv2d("head.npy"))
        self.write("double.npy", npy_bytes((4,), [0.0] * 8, descr="<f8"))
        self.refuse("type '<f8'", *self.conv2d("double.npy"))
        self.write_npy("flat.npy", (4,))
        self.refuse("flat.npy: shape (4,) has rank 1", *self.conv2d("flat.npy"))
        self.write_npy("five.npy", (1, 1, 4, 4, 2))
        self.refuse("five.npy: shape (1, 1, 4, 4, 2) has rank 5", *self.conv2d("five.npy"))
        self.refuse("five.npy: shape (1, 1, 4, 4, 2) has rank 5; legal: 4 [KRSC]",
                    *self.conv2d(w="five.npy"))
        self.refuse("unknown kind of file", *self.conv2d("x.tiff"))
        self.refuse("is not a PNG file", *self.conv2d(self.write("bad.png", good)))
        self.write("x.safetensors", safetensors_bytes({"a": ((1,), [1], "fp32")}))
        self.refuse("holds no tensor 'b'", *self.conv2d("x.safetensors:b"))

    def test_huge_header_reserves_no_memory(self):
        self.write_npy("w.npy", (3, 3, 3, 2))
        small = b"\0" * 64
        many = 1 << 40
        self.write("x.npy", npy_bytes((1, many, 4, 2), []) + small)
        header = json.dumps({"a": {"dtype": "F32", "shape": [many, 4],
                                   "data_offsets": [0, many * 16]}}).encode()
        self.write("x.safetensors", struct.pack("<Q", len(header)) + header + small)
        self.write("long.safetensors", struct.pack("<Q", 90_000_000) + small)
        self.write("x.png", png_bytes(2, 1, [b"\0" * 6], claim=(900_000, 900_000)))
        for file in ("x.npy", "x.safetensors:a", "long.safetensors", "x.png"):
            # Under a limit that a wrongly reserved tensor would break through. Sanitizers map
            # terabytes of their own, so they do without.
            limit = None if os.environ.get("CONVOY_SANITIZED") else 2 << 30
            self.refuse("truncated", *self.conv2d(file), limit=limit)

    def test_bad_problems(self):
        self.write_npy("x.npy", (1, 4, 4, 6))
        self.write_npy("w.npy", (4, 3, 3, 6))
        self.refuse("in each of 1 groups", *self.conv2d(w=self.wide(5)))
        self.refuse("groups", *self.conv2d("x.npy", "w.npy", "--groups", 4))
        self.refuse("groups", *self.conv2d("x.npy", "w.npy", "--groups", 0))
        self.refuse("spans", *self.conv2d("x.npy", "w.npy", "--dilation", 2))
        self.refuse("stride", *self.conv2d("x.npy", "w.npy", "--stride", 0))
        self.refuse("pad", *self.conv2d("x.npy", "w.npy", "--pad=-1"))
        self.refuse("does not fit 64 bits", *self.conv2d("x.npy", "w.npy", "--pad", 2**62))
        self.refuse("--pad has 3 values", *self.conv2d("x.npy", "w.npy", "--pad", "1,2,3"))
        self.refuse("activation 'sill'", *self.conv2d("x.npy", "w.npy", "--activation", "sill"))
        self.refuse("LO = 2 is not at most HI = 1",
                    *self.conv2d("x.npy", "w.npy", "--activation", "clamp:2,1"))
        self.refuse("dtype 'int8'", *self.conv2d("x.npy", "w.npy", "--dtype", "int8"))
        self.refuse("dtype 'int8'", *self.conv2d("x.npy", "w.npy", "--output-dtype", "int8"))
        self.refuse("filter layout KTRSC is of the other rank",
                    *self.conv2d("x.npy", "w.npy", "--filter-layout", "KTRSC"))
        self.write_npy("c.npy", (1, 4, 4, 4))
        self.refuse("the residual has shape (1, 4, 4, 4); legal: (1, 2, 2, 4)",
                    *self.conv2d("x.npy", "w.npy", "--residual", "c.npy"))
        self.write_npy("b.npy", (5,))
        self.refuse("the bias has shape (5,); legal: (4,)",
                    *self.conv2d("x.npy", "w.npy", "--bias", "b.npy"))
        self.refuse("no-such", *self.conv2d("x.npy", "w.npy", "--kernel", "no-such"))
        self.write_npy("empty.npy", (1, 0, 4, 6))
        self.refuse("in_height = 0", *self.conv2d("empty.npy"))

    def wide(self, channels):
        self.write_npy("wide.npy", (4, 3, 3, channels))
        return "wide.npy"

    def test_bad_outputs(self):
        self.write_npy("x.npy", (1, 4, 4, 2))
        self.write_npy("w.npy", (3, 3, 3, 2))
        self.refuse("there is no folder", *self.conv2d(output="no/such/y.npy"))
        self.refuse("unknown kind of file", *self.conv2d(output="y.gif"))
        os.mkdir(self.path("y.npy"))
        self.refuse("it is a folder", *self.conv2d())

    def test_full_disk(self):
        self.write_npy("x.npy", (1, 120, 120, 2))
        self.write_npy("w.npy", (3, 1, 1, 2))
        for output in ("y.npy", "y.safetensors", "y.png"):
            self.refuse("cannot write", *self.conv2d(output=output), largest_file=1000)

    def test_failed_run_leaves_the_old_output(self):
        self.write("y.npy", b"old")
        self.write_npy("w.npy", (3, 3, 3, 2))
        self.refuse("cannot open", *self.conv2d("none.npy"))
        with open(self.path("y.npy"), "rb") as file:
            self.assertEqual(file.read(), b"old")

    def test_bad_command_lines(self):
        self.refuse("", "no-such-command")
        self.refuse("--input", "conv2d")
        self.refuse("", "conv2d", "--no-such-option")
        self.refuse("no shape is given", "bench")
        self.refuse("--csv", "bench", "n1h4w4c4k4", "--csv", "--json")
        self.refuse("is neither a shape file, nor a named set", "bench", "n1h2")
        self.refuse("is neither a shape file", "explain", "n1h2w2")

    # ---- the other subcommands ----

    def test_bench(self):
        shape = "n1h8w8c4k4r3s3ph1pw1"
        out = self.succeed("bench", shape, "--device", "cpu", "--runs", 3, "--csv", "--verify",
                           "--bias", "--activation", "relu", "--residual")
        head, row = (line.split(",") for line in out.strip().split("\n"))
        case = dict(zip(head, row))
        self.assertEqual(case["epilogue"], "bias_fp32+relu+residual")
        self.assertEqual(case["problem"], shape)
        self.assertEqual(case["runs"], "3")
        self.assertEqual(case["verified"], "yes")
        self.assertGreater(float(case["median_us"]), 0)
        # The repro line is a command that runs.
        self.succeed(*case["repro"].split()[1:], "--runs", 1)
        self.write("set.txt", b"n1h4w4c4k4r1s1 count=3 name=a\nmb1ic4ih4oc4kh1\n")
        told = json.loads(self.succeed("bench", "./set.txt", "--device", "cpu", "--runs", 1,
                                       "--json"))
        self.assertEqual([case["count"] for case in told["cases"]], [3, 1])
        self.assertIn("resnet50", self.succeed("bench", "--list"))

    def test_bench_of_a_norm_in_front(self):
        shape = "n1h8w8c12k4r3s3ph1pw1"
        for words, kind in ((("--norm", "rms"), "rms"),
                            (("--norm", "group", "--norm-groups", "4", "--norm-activation",
                              "silu"), "scale_shift+silu")):
            out = self.succeed("bench", shape, "--device", "cpu", "--runs", 2, "--csv", "--verify",
                               *words)
            case = dict(zip(*(line.split(",") for line in out.strip().split("\n"))))
            self.assertEqual((case["epilogue"], case["verified"]), (f"{kind} > none", "yes"))
            self.assertEqual(case["repro"].split()[-1 - len(words):-1], list(words))
            self.succeed(*case["repro"].split()[1:], "--runs", 1)
        self.refuse("groups = 32 does not divide channels = 12", "bench", shape, "--device", "cpu",
                    "--norm", "group")
        self.refuse("--norm excludes --shards", "bench", shape, "--norm", "rms", "--shards", 2)

    def test_bench_over_ranks(self):
        shape = "n1h12w8c16k16r3s3ph1pw1"
        for axis, ranks, sent in (("height", 3, 2 * 8 * 16 * 4), ("batch", 1, 0)):
            out = self.succeed("bench", shape, "--device", "cpu", "--runs", 2, "--csv", "--dtype",
                               "fp32", "--shards", ranks, "--axis", axis, "--bias", "--residual")
            case = dict(zip(*(line.split(",") for line in out.strip().split("\n"))))
            self.assertEqual((case["problem"], case["ranks"], case["axis"], case["transport"]),
                             (shape, str(ranks), axis, "in-process"))
            self.assertEqual((case["runs"], case["sent_bytes"], case["same_bits"]),
                             ("2", str(sent), "yes"))
            self.assertGreater(float(case["us"]), 0)
            self.assertEqual(float(case["interior_us"]) > 0, ranks > 1)
            # Rows with margins, the filter whole and the bias, 4 bytes each.
            rows = 12 // ranks
            held = 8 * 16 * ((rows + 2 * (ranks > 1)) + 2 * rows) + 9 * 16 * 16 + 16
            self.assertGreaterEqual(int(case["rank_bytes"]), 4 * held)  # And a workspace.
            self.assertEqual(int(case["rank_bytes"]) < int(case["one_bytes"]), ranks > 1)
        self.refuse("largest legal count", "bench", "n1h8w4c4k4r9s9ph4pw4", "--device", "cpu",
                    "--shards", 4)
        self.refuse("legal: height, width, frames, batch", "bench", shape, "--shards", 2, "--axis",
                    "rows", "--device", "cpu")
        self.refuse("--axis requires --shards", "bench", shape, "--axis", "width")
        self.refuse("--shards", "bench", shape, "--shards", 2, "--verify", "--device", "cpu")

    def test_shipped_sets_are_all_legal(self):
        for name in self.succeed("bench", "--list").split():
            cases = json.loads(self.succeed("explain", name, "--json"))
            self.assertGreater(len(cases), 10, name)
            for case in cases:
                self.assertTrue(case["candidates"], case)

    def test_info_and_explain(self):
        told = json.loads(self.succeed("info", "--json"))
        self.assertRegex(told["version"], r"^\d+\.\d+\.\d+ \(git ")
        self.assertTrue(told["devices"])
        self.assertIn(told["version"], self.succeed("--version"))
        out = self.succeed("explain", "n1h8w8c4k4r3s3", "--device", "cpu")
        self.assertIn("0.", out)
        refused = json.loads(self.succeed("explain", "n1h8w8c4k4r3s3", "--device", "cuda",
                                          "--json"))
        for candidate in refused[0]["candidates"]:
            self.assertTrue(candidate["chosen"] or candidate["reason"] or
                            candidate["estimated_us"] > 0)

    def test_view(self):
        self.write_npy("x.npy", (1, 5, 7, 8))
        told = self.succeed("view", "x.npy")
        self.assertIn("x.npy (1, 5, 7, 8) fp32 as x.png", told)
        with open(self.path("x.png"), "rb") as file:
            width, height = struct.unpack(">II", file.read()[16:24])
        self.assertIn(f"{width} x {height} pixels", told)
        self.assertGreaterEqual(width * height, 8 * 5 * 7)
        self.write_npy("flat.npy", (5, 7))
        self.assertIn("7 x 5 pixels", self.succeed("view", "flat.npy", "--output", "p.png"))
        self.refuse("would replace it", "view", "x.png")
        self.write_npy("row.npy", (5,))
        self.refuse("has no pixels", "view", "row.npy")

    def test_man_and_completion_know_every_option(self):
        man = self.succeed("man")
        scripts = [self.succeed("completion", shell) for shell in ("bash", "zsh", "fish")]
        for command in ("conv2d", "bench", "demo"):
            for word in self.succeed(command, "--help").split():
                if word.startswith("--") and word.strip(",").strip("-").isalpha():
                    option = word.strip(",")
                    self.assertIn(option.replace("-", "\\-"), man)
                    for script in scripts[:2]:
                        self.assertIn(option, script)
                    self.assertIn("-l " + option[2:], scripts[2])
        done = subprocess.run(
            ["bash", "-c", scripts[0] + "COMP_WORDS=(convoy conv2d --pa); COMP_CWORD=2; _convoy; "
                                        'echo "${COMPREPLY[@]}"'], capture_output=True, text=True)
        self.assertEqual(done.stdout.split(), ["--pad", "--pad-mode"], done.stderr)

    def test_demo_of_a_picture(self):
        for name, color, pixels in (("rgb.png", 2, 3), ("grey.png", 0, 1), ("alpha.png", 6, 4)):
            rows = [bytes((x * 7 + y * 5 + c) % 256 for x in range(20) for c in range(pixels))
                    for y in range(18)]
            self.write(name, png_bytes(20, 18, rows, color=color))
            told = self.succeed("demo", "--image", name, "--output", "out", "--device", "cpu")
            self.assertIn("20 x 18 RGB", told)
            self.assertTrue(os.path.exists(self.path("out/result.png")))
        self.refuse("ImageMagick makes a PNG", "demo", "--image", "x.webp", "--output", "out")

    def test_explain_answers_for_gpus_that_are_not_here(self):
        shape = "n1h64w64c64k64r3s3"
        names = {"h100": "NVIDIA H100", "h200": "NVIDIA H200", "b200": "NVIDIA B200",
                 "rtx5090": "NVIDIA GeForce RTX 5090"}
        for gpu, name in names.items():
            told = json.loads(self.succeed("explain", shape, "--gpu", gpu, "--device", "cuda",
                                           "--json"))
            cuda = [c for c in told[0]["candidates"] if c["backend"].startswith("cuda")]
            for candidate in cuda:
                self.assertIn(name, candidate["backend"])
            if cuda:  # A build with CUDA: the general kernel runs anything anywhere.
                self.assertTrue(cuda[0]["chosen"])
                self.assertGreater(cuda[0]["estimated_us"], 1.0)
                general = next(c for c in cuda if c["kernel"] == "general")
                self.assertEqual(general["reason"], "")
            for candidate in cuda:
                if candidate["kernel"].startswith("sm90_") and gpu in ("b200", "rtx5090"):
                    self.assertIn("compute capability", candidate["reason"])
            # Kernels without machine code for GPUs that have others of their own.
            own = {"h100": "sm90_", "h200": "sm90_", "b200": "sm100_"}.get(gpu, "none")
            spared = any(c["kernel"].startswith(own) for c in cuda)
            for candidate in cuda:
                if candidate["kernel"] in ("mma_fprop_64x96_s4_bf16", "few_filters_async"):
                    self.assertEqual("CONVOY_OTHER_GPUS" in candidate["reason"], spared)
        self.refuse("GPU 'h800' is not known; legal: a100, rtx3090, l40s, rtx4090, h100, h200, "
                    "b200, rtx5090", "explain", shape, "--gpu", "h800")
        self.refuse("--gpu h200 with --device cpu", "explain", shape, "--gpu", "h200",
                    "--device", "cpu")

    def test_explain_takes_what_a_convolution_is_fused_with(self):
        shape = "n1h64w64c64k64r3s3ph1pw1"
        wide = "n1d4h16w16c64k64t3r3s3pd1ph1pw1"

        def able(*words):
            told = json.loads(self.succeed("explain", *words, "--json", "--gpu", "h200"))
            return {c["kernel"]: c["estimated_us"] for c in told[0]["candidates"]
                    if not c["reason"]}

        plain = able(shape)
        for words in (("--norm", "group", "--norm-activation", "silu"), ("--norm", "rms")):
            if plain:  # A build with CUDA.
                self.assertIn("normalised_copy", able(shape, *words))
                self.assertNotIn("general", able(shape, *words))
        # Patches normalised in place, where no copy is quicker: of one tile of filters on Hopper.
        norm = ("--norm", "group", "--norm-activation", "silu")
        for gpu, layer in (("h200", "n1h1024w1024c128k128r3s3ph1pw1"),
                           ("b200", "n1h1024w1024c128k128r3s3ph1pw1"),
                           ("b200", "n1h256w256c512k512r3s3ph1pw1")):
            told = json.loads(self.succeed("explain", layer, *norm, "--json", "--gpu", gpu))
            chosen = [c["kernel"] for c in told[0]["candidates"] if c["chosen"]]
            if plain:
                self.assertRegex(chosen[0], "_normalised_bf16$")
        for kernel, time in able(shape, "--shuffle", 2).items():  # Nothing is stored for nothing.
            self.assertGreaterEqual(time, plain[kernel])
        stored = able(wide, "--shuffle", "2,2,2", "--shuffle-order", "inner", "--drop-frames", 1)
        self.assertEqual(stored == able(wide), not plain)
        self.refuse("norm 'layer' is not known; legal: group, rms", "explain", shape, "--norm",
                    "layer")
        self.refuse("--norm-activation requires --norm", "explain", shape, "--norm-activation",
                    "silu")
        self.refuse("--shuffle has 3 values; legal: 1 or 2", "explain", shape, "--shuffle",
                    "2,2,2")
        self.refuse("out_channels = 64 does not divide into 1*3*3 = 9 pixels", "explain", shape,
                    "--shuffle", 3)

    def test_demo(self):
        out = self.succeed("demo", "--size", 64, "--device", "cpu", "--output", "demo")
        self.assertIn("ran on cpu", out)
        self.assertEqual(out.count("of the bound"), 2)
        for name in ("landscape.png", "features.png", "result.png"):
            with open(self.path(f"demo/{name}"), "rb") as file:
                self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
        # The commands that it prints repeat it.
        self.succeed("conv2d", "--input", "demo/landscape.png", "--filter", "demo/stem.npy",
                     "--pad", 3, "--dtype", "bf16", "--output", "features.npy", "--verify",
                     "--device", "cpu")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
