#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program `convoy` used wrongly, in the wrong place, or interrupted: one clear line, the exit
code that is documented, nothing lost and nothing left behind.

usage: misuse_test.py CONVOY [unittest options]
"""

import json
import math
import os
import resource
import signal
import stat
import struct
import subprocess
import sys
import time
import unittest
import zlib

from program_case import CONVOY, ProgramCase, npy_bytes, png_bytes, read_npy, safetensors_bytes

SANITIZED = bool(os.environ.get("CONVOY_SANITIZED"))


class MisuseTest(ProgramCase):
    def setUp(self):
        super().setUp()
        self.write_npy("x.npy", (1, 4, 4, 6))
        self.write_npy("w.npy", (4, 3, 3, 6))

    def conv2d(self, *more, output="y.npy", x="x.npy", w="w.npy"):
        return ("conv2d", "--input", x, "--filter", w, "--output", output, "--device", "cpu", *more)

    # ---- outputs ----

    def test_two_outputs_need_two_files(self):
        self.write_npy("x3.npy", (1, 3, 4, 4, 2))
        self.write_npy("w3.npy", (3, 3, 3, 3, 2))
        os.symlink("y.npy", self.path("link.npy"))
        for output, cache in (("y.npy", "y.npy"), ("y.npy", "./y.npy"), ("y.npy", "link.npy"),
                              ("y.safetensors:a", "y.safetensors:b")):
            self.refuse("are the same file", "conv3d", "--input", "x3.npy", "--filter", "w3.npy",
                        "--output", output, "--next-cache", cache, "--device", "cpu")

    def test_outputs_keep_mode_and_links(self):
        self.write("y.npy", b"old")
        os.chmod(self.path("y.npy"), 0o600)
        os.symlink("y.npy", self.path("link.npy"))
        self.succeed(*self.conv2d(output="link.npy"))
        self.assertTrue(os.path.islink(self.path("link.npy")))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("y.npy")).st_mode), 0o600)
        self.assertEqual(read_npy(self.path("y.npy"))[0], (1, 2, 2, 4))
        # A link to a file that is not there yet makes it.
        os.symlink("later.npy", self.path("early.npy"))
        self.succeed(*self.conv2d(output="early.npy"))
        self.assertEqual(read_npy(self.path("later.npy"))[0], (1, 2, 2, 4))
        os.symlink("/dev/null", self.path("null.npy"))
        self.refuse("not a regular file", *self.conv2d(output="null.npy"))
        os.symlink("loop.npy", self.path("loop.npy"))
        self.refuse("too many symbolic links", *self.conv2d(output="loop.npy"))
        if os.geteuid() != 0:
            os.chmod(self.path("y.npy"), 0o400)
            self.refuse("Permission denied", *self.conv2d())

    def test_standard_output_that_is_full(self):
        commands = [
            ("bench", "n1h4w4c4k4", "--runs", 1, "--csv", "--device", "cpu"),
            ("bench", "n1h4w4c4k4", "--runs", 1, "--device", "cpu"),
            ("bench", "--list"),
            ("info",), ("info", "--json"), ("explain", "n1h4w4c4k4"), ("demo", "--size", 16),
            ("--help",), ("bench", "--help"), ("--version",),
            self.conv2d(), self.conv2d("--json"),
        ]
        for command in commands:
            with self.subTest(command=command), open("/dev/full", "w") as full:
                done = subprocess.run([CONVOY, *map(str, command)], stdout=full,
                                      stderr=subprocess.PIPE, text=True, cwd=self.folder)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("cannot write to standard output", done.stderr)
        closed = subprocess.run(["sh", "-c", f"'{CONVOY}' info >&-"], stderr=subprocess.PIPE)
        self.assertEqual(closed.returncode, 2, closed.stderr)

    def test_signals_leave_nothing_behind(self):
        # A write past `ulimit -f` fails like a full disk.
        done = subprocess.run(
            [CONVOY, *map(str, self.conv2d("--upsample", 2, "--pad", 40))], cwd=self.folder,
            capture_output=True, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("File too large", done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["w.npy", "x.npy"])

    def test_control_characters_do_not_reach_the_terminal(self):
        name = "a\x1b[31m\x9b\u009b\x07.npy"
        done = self.run_convoy(*self.conv2d(x=name))
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot open", done.stderr)
        self.write(name, npy_bytes((1, 4, 4, 6), [0.0] * 96))
        told = self.succeed(*self.conv2d(x=name, output=name))
        for text in (done.stderr, told):
            wild = [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
            self.assertFalse(wild, ascii(text))
        # A name that is no UTF-8 is no reason for an error after the work is done.
        bytes_name = os.fsdecode(b"b\xff.npy")
        json.loads(self.succeed(*self.conv2d("--json", output=bytes_name)))

    # ---- words ----

    def test_unknown_words_are_named_with_the_nearest(self):
        self.refuse("'frobnicate' is not a subcommand; legal: conv2d", "frobnicate")
        self.refuse("nearest: explain", "explian", "n1h4w4c4k4")
        self.refuse("no subcommand is given")
        self.refuse("'--padding' is not an option of convoy conv2d; nearest: --pad",
                    *self.conv2d("--padding", 1))
        self.refuse("nearest: --activation", *self.conv2d("--activaton", "relu"))
        self.refuse("'spare' is not expected", *self.conv2d("spare"))
        self.refuse("unknown field 'p'; nearest: ph1pw1", "explain", "n1h4w4c4k4r3s3p1")
        self.refuse("unknown field 'stride'; nearest: sh2sw2", "explain", "n1h4w4c4k4stride2")
        self.refuse("nearest: onednn", *self.conv2d("--kernel", "oneddn"))

    def test_a_filter_of_another_layout_is_recognised(self):
        self.write_npy("kcrs.npy", (4, 6, 3, 3))
        self.refuse("--filter-layout KCRS fits", *self.conv2d(w="kcrs.npy"))
        self.write_npy("rscf.npy", (3, 3, 6, 4))
        self.refuse("--filter-layout RSCF fits", *self.conv2d(w="rscf.npy"))
        self.write_npy("none.npy", (4, 3, 3, 5))
        done = self.run_convoy(*self.conv2d(w="none.npy"))
        self.assertNotIn("fits", done.stderr)
        self.assertIn("in each of 1 groups, the input has 6", done.stderr)

    def test_numbers_that_do_not_fit(self):
        for option in ("--stride", "--pad", "--dilation", "--groups", "--upsample"):
            self.refuse("does not fit 64 bits", *self.conv2d(option, "99999999999999999999"))
            self.refuse("is not a whole number", *self.conv2d(option, "1.5"))
        for option, more in (("--scale", ()), ("--beta", ("--residual", "r.npy"))):
            for number in ("nan", "inf", "1e99", "1x"):
                self.refuse("is not a finite number", *self.conv2d(*more, option, number))
        self.refuse("--beta requires --residual", *self.conv2d("--beta", 2))
        self.refuse("--residual-before-activation requires --residual",
                    *self.conv2d("--residual-before-activation"))
        self.refuse("'nan' is not a number", *self.conv2d("--activation", "leaky_relu:nan"))
        self.refuse("'nan' is not a number", *self.conv2d("--activation", "clamp:nan,1"))
        self.refuse("--seed", "bench", "n1h4w4c4k4", "--seed", "99999999999999999999")

    def test_where_the_memory_ends(self):
        if SANITIZED:
            self.skipTest("sanitizers map terabytes of their own")
        done = self.run_convoy("bench", "n1h40000w40000c64k64", "--runs", 1, "--device", "cpu",
                               limit=2 << 30)
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("a tensor of 204800000000 bytes", done.stderr)

    # ---- results ----

    def test_filters_that_are_not_finite_under_padding(self):
        random = self.random
        for case in range(24):
            kind = ("fp32", "bf16", "fp16")[case % 3]
            c, k = random.choice((1, 3, 8, 16)), random.choice((1, 4, 16))
            x = [random.uniform(-2, 2) for _ in range(2 * 6 * 5 * c)]
            w = [random.uniform(-2, 2) for _ in range(k * 9 * c)]
            for _ in range(random.randint(1, 4)):
                w[random.randrange(len(w))] = random.choice((math.inf, -math.inf, math.nan))
            self.write_npy("xi.npy", (2, 6, 5, c), x, kind)
            self.write_npy("wi.npy", (k, 3, 3, c), w, kind)
            with self.subTest(kind=kind, c=c, k=k):
                self.succeed(*self.conv2d(
                    "--pad", random.choice((1, 2)), "--stride", random.choice((1, 2)), "--verify",
                    "--activation", random.choice(("none", "relu", "silu", "clamp")),
                    x="xi.npy", w="wi.npy"))

    # ---- files ----

    def limited(self, reason, spec, seconds=5.0):
        """Refused soon, and without much memory."""
        begin = time.monotonic()
        limit = None if SANITIZED else 1 << 30
        done = self.run_convoy(*self.conv2d(x=spec), limit=limit)
        self.assertIn(reason, done.stderr)
        self.assertEqual(done.returncode, 2)
        self.assertLess(time.monotonic() - begin, seconds * (20 if SANITIZED else 1))

    def test_png_that_promises_too_much(self):
        def chunk(kind, data, length=None):
            crc = struct.pack(">I", zlib.crc32(kind + data))
            return struct.pack(">I", len(data) if length is None else length) + kind + data + crc

        signature = b"\x89PNG\r\n\x1a\n"
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 6, 8, 2, 0, 0, 0))
        for kind in (b"tEXt", b"iCCP", b"eXIf", b"tRNS", b"PLTE", b"IDAT", b"zTXt"):
            self.write("long.png", signature + head + chunk(kind, b"", 0x7FFFFFF0))
            self.limited("truncated", "long.png")
        # 8 x 6 pixels, and a gigabyte of zeros behind them.
        pack = zlib.compressobj(9)
        bomb = b"".join(pack.compress(bytes(1 << 20)) for _ in range(1024)) + pack.flush()
        self.write("bomb.png", signature + head + chunk(b"IDAT", bomb) + chunk(b"IEND", b""))
        self.limited("too many for 8 x 6", "bomb.png")
        # Texts and profiles are passed over, whatever they unpack to.
        text = b"a\0\0" + zlib.compress(bytes(64 << 20), 9)
        picture = png_bytes(3, 2, [bytes(9), bytes(9)])
        self.write("text.png", picture[:33] + chunk(b"zTXt", text) + picture[33:])
        self.write_npy("w1.npy", (1, 1, 1, 3))
        self.succeed(*self.conv2d(x="text.png", w="w1.npy"))

    def test_safetensors_with_many_tensors(self):
        header = {f"layer.{i}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
                  for i in range(100_000)}
        text = json.dumps(header).encode()
        self.write("many.safetensors", struct.pack("<Q", len(text)) + text + bytes(4))
        self.limited("has rank 1", "many.safetensors:layer.99999")
        self.limited("(100000 in all)", "many.safetensors")
        text = text[:-1] + b', "layer.5": 1}'
        self.write("twice.safetensors", struct.pack("<Q", len(text)) + text + bytes(4))
        self.limited("has 'layer.5' twice", "twice.safetensors:layer.7")
        self.write("x.safetensors", safetensors_bytes({"a": ((1, 4, 4, 6), [0.0] * 96, "fp32")}))
        self.succeed(*self.conv2d(x="x.safetensors:a"))

    # ---- the environment ----

    def test_tuning_files_that_cannot_be_read(self):
        os.mkfifo(self.path("pipe"))
        self.write("corrupt.txt", b"\xff\xfe nothing of the kind\n")
        for path, reason in (("/dev/zero", "is not a regular file"),
                             (self.path("pipe"), "is not a regular file"),
                             (self.folder, "is not a regular file"),
                             (self.path("corrupt.txt"), "is not a tuning file"),
                             (self.path("none.txt"), "cannot open: No such file")):
            done = self.run_convoy(*self.conv2d(), CONVOY_TUNING=path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(reason, done.stderr)
            self.assertIn(path, done.stderr)
        home = self.path("home")
        done = self.run_convoy(*self.conv2d(), XDG_CACHE_HOME=home, CONVOY_TUNING="")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_folders_that_cannot_be_made(self):
        self.write("file", b"")
        self.refuse("cannot make the folder file/demo: Not a directory", "demo", "--output",
                    "file/demo", "--size", 16)

    def test_no_gpu_is_said_once(self):
        told = self.run_convoy("info").stdout
        if "NVIDIA GPU" not in told:
            self.skipTest("there is a GPU, or no CUDA in this build")
        self.assertEqual(told.count("NVIDIA GPU"), 1, told)
        explained = self.run_convoy("explain", "n1h64w64c64k64r3s3").stdout
        self.assertLessEqual(explained.count("NVIDIA GPU"), 1, explained)
        conv = self.run_convoy("conv2d", "--input", "x.npy", "--filter", "w.npy", "--output",
                               "y.npy").stdout
        self.assertIn(": running on the CPU", conv)
        done = self.run_convoy("conv2d", "--input", "x.npy", "--filter", "w.npy", "--output",
                               "y.npy", "--device", "cuda")
        self.assertEqual(done.returncode, 2)
        self.assertIn("with device = cuda: no NVIDIA GPU", done.stderr)
        self.assertLess(len(done.stderr), 300)


class SignalTest(ProgramCase):
    def test_ignored_and_fatal_signals(self):
        """A large output is being written when the signal comes."""
        self.write_npy("x.npy", (1, 64, 64, 1), [1.0] * 4096)
        self.write_npy("w.npy", (512, 1, 1, 1), [1.0] * 512)
        command = [CONVOY, "conv2d", "--input", "x.npy", "--filter", "w.npy", "--upsample", "2",
                   "--output", "y.npy", "--device", "cpu"]

        def interrupt(number, ignore):
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN) if ignore else None)
            while process.poll() is None:
                if any(".part-" in name for name in os.listdir(self.folder)):
                    process.send_signal(number)
                    break
            return process.wait()

        for number in (signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
            ended = interrupt(number, False)
            self.assertIn(ended, (-number, 0))  # 0: it was done already.
            names = sorted(os.listdir(self.folder))
            self.assertFalse([name for name in names if "part" in name], names)
        self.assertEqual(interrupt(signal.SIGHUP, True), 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
