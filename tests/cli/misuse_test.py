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

from program_case import (
    CONVOY,
    JPEG_BASELINE,
    JPEG_PROGRESSIVE,
    ProgramCase,
    npy_bytes,
    png_bytes,
    read_npy,
    safetensors_bytes,
)

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

    def test_names_as_long_as_a_folder_takes(self):
        for name in ("a" * 251 + ".npy", "é" * 125 + ".npy", "日" * 83 + ".npy"):
            self.succeed(*self.conv2d(output=name))
            self.assertEqual(read_npy(self.path(name))[0], (1, 2, 2, 4))
            os.unlink(self.path(name))
        self.refuse("File name too long", *self.conv2d(output="a" * 252 + ".npy"))
        deep = "/".join(["d" * 200] * 25) + "/y.npy"
        self.refuse("File name too long", *self.conv2d(output=deep))
        self.refuse("'': unknown kind of file", *self.conv2d(output=""))

    def test_closed_standard_streams(self):
        """What a file is opened as must not be what something is printed to."""
        expected = self.succeed(*self.conv2d())
        with open(self.path("y.npy"), "rb") as file:
            content = file.read()
        self.assertIn("onednn", expected)
        for closed, code in ((">&-", 2), ("2>&-", 0), ("<&-", 0), ("<&- >&- 2>&-", 2)):
            words = " ".join(f"'{word}'" for word in (CONVOY, *self.conv2d(output="z.npy")))
            done = subprocess.run(["sh", "-c", f"{words} {closed}"], cwd=self.folder,
                                  capture_output=True, env={**os.environ, "CONVOY_LOG": "trace"})
            self.assertEqual(done.returncode, code, (closed, done.stderr))
            with open(self.path("z.npy"), "rb") as file:
                self.assertEqual(file.read(), content, closed)

    def test_standard_output_that_grows_too_large(self):
        # Past `ulimit -f`: an error, not the end by a signal.
        with open(self.path("list"), "wb") as file:
            done = subprocess.run(
                [CONVOY, "man"], stdout=file, stderr=subprocess.PIPE, text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("cannot write to standard output", done.stderr)

    def test_no_more_threads(self):
        """A library that ends the process by itself does not end it with a code of --verify's."""
        if os.geteuid() != 0 or SANITIZED:
            self.skipTest("only root may become a user with few threads")
        os.chmod(self.folder, 0o777)

        def become_nobody():
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

        for command in (self.conv2d("--pad", 40, "--upsample", 2),
                        ("demo", "--size", 64, "--device", "cpu")):
            done = subprocess.run([CONVOY, *map(str, command)], cwd=self.folder, text=True,
                                  capture_output=True, preexec_fn=become_nobody,
                                  env={**os.environ, "OMP_NUM_THREADS": "4"})
            if "ermission denied" in done.stderr:
                self.skipTest("the program is not for everybody to run")
            self.assertIn(done.returncode, (0, 3), done.stderr)
            if done.returncode == 3:
                self.assertEqual(done.stderr.count("convoy: error"), 1, done.stderr)

    def test_standard_output_that_is_full(self):
        commands = [
            ("bench", "n1h4w4c4k4", "--runs", 1, "--csv", "--device", "cpu"),
            ("bench", "n1h4w4c4k4", "--runs", 1, "--device", "cpu"),
            ("bench", "--list"),
            ("info",), ("info", "--json"), ("explain", "n1h4w4c4k4"), ("demo", "--size", 16),
            ("--help",), ("bench", "--help"), ("--version",), ("man",), ("completion", "bash"),
            ("view", "x.npy"),
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
        told = self.succeed("demo", "--size", 16, "--device", "cpu", "--output", "d\x1b[31m 'd'")
        self.assertFalse([c for c in told if c != "\n" and ord(c) < 32], ascii(told))
        self.assertIn("--filter 'd?[31m '\\''d'\\''/stem.npy'", told)
        # A name that is no UTF-8 is no reason for an error after the work is done.
        bytes_name = os.fsdecode(b"b\xff.npy")
        json.loads(self.succeed(*self.conv2d("--json", output=bytes_name)))

    # ---- words ----

    def test_unknown_words_are_named_with_the_nearest(self):
        self.refuse("'frobnicate' is not a subcommand; legal: conv2d", "frobnicate")
        self.refuse("nearest: explain", "explian", "n1h4w4c4k4")
        self.refuse("'help' is not a subcommand; nearest: --help", "help")
        self.refuse("nearest: --version", "version")
        self.refuse("and .jpg to read", *self.conv2d(output="y"))
        self.refuse("no subcommand is given")
        self.refuse("'--padding' is not an option of convoy conv2d; nearest: --pad",
                    *self.conv2d("--padding", 1))
        self.refuse("nearest: --activation", *self.conv2d("--activaton", "relu"))
        self.refuse("'spare' is not expected", *self.conv2d("spare"))
        self.refuse("unknown field 'p'; nearest: ph1pw1", "explain", "n1h4w4c4k4r3s3p1")
        self.refuse("unknown field 'stride'; nearest: sh2sw2", "explain", "n1h4w4c4k4stride2")
        self.refuse("nearest: onednn", *self.conv2d("--kernel", "oneddn"))
        self.refuse("'--bogus' is not an option of convoy; legal: --help", "--bogus")
        self.refuse("nearest: --version", "--versoin")
        self.refuse("nearest: resnet50", "bench", "resnet5")
        self.refuse("nearest: flux1_vae_decode", "bench", "fluxx")
        self.refuse("nearest: onednn", "bench", "n1h4w4c4k4", "--kernel", "one")
        if "sm90_fprop" in self.succeed("explain", "n1h4w4c4k4", "--json"):  # A build with Hopper.
            self.refuse("nearest: sm90_fprop_128x32_pingpong", "bench", "n1h4w4c4k4", "--kernel",
                        "sm90_fprop_128x33")
        self.refuse("--next-cache' is not an option of convoy conv2d; convoy conv3d has it",
                    *self.conv2d("--next-cache", "y.npy"))
        self.refuse("activation 'rellu' is not known; nearest: relu",
                    *self.conv2d("--activation", "rellu"))
        self.refuse("pad mode 'replciate' is not known; nearest: replicate",
                    *self.conv2d("--pad-mode", "replciate"))
        self.refuse("dtype 'fp61' is not known; nearest: fp16", *self.conv2d("--dtype", "fp61"))
        self.refuse("--list takes no shape", "bench", "--list", "resnet50")

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
        for word in (",1", "1,", "1,,2", "", ","):
            self.refuse("'' is not a whole number", *self.conv2d("--pad", word))
        # Products that do not fit 64 bits.
        for groups in (2**63 - 1, 3074457345618258603, 4):
            self.refuse("legal: --groups that divides 6", *self.conv2d("--groups", groups))
        self.succeed(*self.conv2d("--scale", "+1", "--pad", "+1,2"))
        for option, word in (("--time", "nan"), ("--seed", "-1")):
            self.refuse(option, "bench", "n1h4w4c4k4", option, word)
        for option, more in (("--scale", ()), ("--beta", ("--residual", "r.npy"))):
            for number, reason in (("nan", "is not a number"), ("inf", "is not a finite number"),
                                   ("1e99", "does not fit fp32"), ("1x", "is not a number")):
                self.refuse(reason, *self.conv2d(*more, option, number))
        self.refuse("--beta requires --residual", *self.conv2d("--beta", 2))
        self.refuse("--shuffle-order requires --shuffle", *self.conv2d("--shuffle-order", "inner"))
        self.refuse("--drop-frames requires --shuffle", "explain", "n1d3h4w4c4k4", "--drop-frames",
                    1)
        for word, reason in (("99999999999999999999", "does not fit 64 bits"),
                             ("2.5", "is not a whole number"), ("-1", "nearest: 0"),
                             (3, "nearest: 2"), (2**62, "nearest: 4")):
            self.refuse(reason, "explain", "n1h4w4c4k4", "--statistics", word)
        # Its divisors are not tried one by one.
        begun = time.monotonic()
        self.refuse("nearest: 1", "explain", "n1h1w1c1k2147483647", "--statistics", 2147483646)
        self.assertLess(time.monotonic() - begun, 3)
        self.refuse("--shards: '2.5' is not a whole number", "bench", "n1h4w4c4k4", "--shards", 2.5)
        for shards, most in ((5, 4), (1024, 4)):
            self.refuse(f"legal: 1 to {most}; nearest: {most}", "bench", "n1h4w4c4k4", "--device",
                        "cpu", "--shards", shards)
        self.refuse("--residual-before-activation requires --residual",
                    *self.conv2d("--residual-before-activation"))
        self.refuse("'nan' is not a number", *self.conv2d("--activation", "leaky_relu:nan"))
        self.refuse("'nan' is not a number", *self.conv2d("--activation", "clamp:nan,1"))
        self.refuse("--seed", "bench", "n1h4w4c4k4", "--seed", "99999999999999999999")

    def test_options_without_effect(self):
        for more, reason in (
                (("--norm", "rms", "--norm-groups", 2), "--norm-groups = 2 with --norm rms"),
                (("--norm", "group", "--norm-groups", 2, "--norm-rule", "norm_floor"),
                 "--norm-rule = 'norm_floor' with --norm group"),
                (("--upsample-folding", "fast"), "legal: with --upsample 2"),
                (("--tf32", "--dtype", "bf16"), "--tf32 with tensors of bf16")):
            self.refuse(reason, *self.conv2d(*more))
        self.write_npy("x8.npy", (1, 4, 4, 8))
        self.write_npy("w8.npy", (4, 3, 3, 8))
        self.succeed(*self.conv2d("--norm", "group", "--norm-groups", 2, "--tf32", x="x8.npy",
                                  w="w8.npy"))
        self.succeed(*self.conv2d("--norm", "rms", "--norm-rule", "norm_floor"))
        self.succeed(*self.conv2d("--upsample", 2, "--upsample-folding", "fast"))
        self.refuse("not in range", "bench", "n1h4w4c4k4", "--seed", "-1")

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
        # NOTE: blocks between full flushes repeat, which saves packing a gigabyte.
        pack = zlib.compressobj(9)
        head_of_it = pack.compress(bytes(1 << 20)) + pack.flush(zlib.Z_FULL_FLUSH)
        again = pack.compress(bytes(1 << 20)) + pack.flush(zlib.Z_FULL_FLUSH)
        bomb = head_of_it + again * 1023
        self.write("bomb.png", signature + head + chunk(b"IDAT", bomb) + chunk(b"IEND", b""))
        self.limited("too many for 8 x 6", "bomb.png")
        # Texts and profiles are passed over, whatever they unpack to.
        text = b"a\0\0" + zlib.compress(bytes(64 << 20), 9)
        picture = png_bytes(3, 2, [bytes(9), bytes(9)])
        self.write("text.png", picture[:33] + chunk(b"zTXt", text) + picture[33:])
        self.write_npy("w1.npy", (1, 1, 1, 3))
        self.succeed(*self.conv2d(x="text.png", w="w1.npy"))

    def test_jpeg(self):
        self.write("my.jpg", JPEG_BASELINE)
        if ".jpg" not in json.loads(self.run_convoy("info", "--json").stdout)["files"]:
            self.refuse("this build reads no JPEG", "demo", "--image", "my.jpg", "--output", "d")
            self.skipTest("no libjpeg in this build")
        for name, data in (("my.jpg", JPEG_BASELINE), ("MY.JPEG", JPEG_PROGRESSIVE)):
            self.write(name, data)
            self.write_npy("one.npy", (3, 1, 1, 3), [1, 0, 0, 0, 1, 0, 0, 0, 1])
            self.succeed(*self.conv2d(x=name, w="one.npy"))
            shape, values, _ = read_npy(self.path("y.npy"))
            self.assertEqual(shape, (16, 24, 3))
            for y in range(16):
                for x in range(24):
                    for c, value in enumerate((40 + 8 * x, 200 - 10 * y, 90)):
                        got = 255 * values[(y * 24 + x) * 3 + c]
                        self.assertLess(abs(got - value), 40, (y, x, c))  # Of quality 30.
        told = self.succeed("demo", "--image", "my.jpg", "--output", "d", "--device", "cpu")
        self.assertIn("24 x 16 RGB", told)
        self.succeed("view", "my.jpg")
        self.refuse("my.jpg: JPEG is not written", *self.conv2d(output="my.jpg"))
        for damaged in (JPEG_BASELINE[:200], JPEG_BASELINE[:-9], JPEG_PROGRESSIVE[:350],
                        b"\xff\xd8"):
            self.write("bad.jpg", damaged)
            self.limited("bad JPEG", "bad.jpg")
        size = JPEG_BASELINE.index(b"\xff\xc0") + 5
        wide = JPEG_BASELINE[:size] + b"\xff\xdc\xff\xdc" + JPEG_BASELINE[size + 4 :]
        self.write("wide.jpg", wide)
        self.limited("65500 x 65500 pixels, more than", "wide.jpg")

    def test_safetensors_with_many_tensors(self):
        # A sanitized program is slower by as much; what is not in proportion shows in the other.
        count = 10_000 if SANITIZED else 100_000
        header = {f"layer.{i}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
                  for i in range(count)}
        text = json.dumps(header).encode()
        self.write("many.safetensors", struct.pack("<Q", len(text)) + text + bytes(4))
        self.limited("has rank 1", f"many.safetensors:layer.{count - 1}")
        self.limited(f"({count} in all)", "many.safetensors")
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
        # Nothing is made for a picture that is not there.
        self.refuse("none.png: cannot open", "demo", "--output", "d", "--image", "none.png")
        self.refuse("dtype 'fp8'", "demo", "--output", "d", "--dtype", "fp8")

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
