# SPDX-License-Identifier: Apache-2.0
"""The numpy front end against loops in numpy. Run with CONVOY_LIBRARY and PYTHONPATH set, or
against the installed package."""

import concurrent.futures
import copy
import gc
import inspect
import itertools
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import unittest

import convoy
import numpy as np


def reference(x, filter, begin, end, stride, dilation, groups=1):
    """fp64 convolution of [N, spatial..., C] with [K, spatial..., C / groups], zero padding."""
    axes = x.ndim - 2
    pads = [(0, 0)] + list(zip(begin, end)) + [(0, 0)]
    x = np.pad(x.astype(np.float64), pads)
    filter = filter.astype(np.float64)
    taps = filter.shape[1:-1]
    out = [
        (x.shape[1 + a] - dilation[a] * (taps[a] - 1) - 1) // stride[a] + 1 for a in range(axes)
    ]
    filters, channels = filter.shape[0] // groups, filter.shape[-1]
    y = np.zeros([x.shape[0], *out, filter.shape[0]])
    for tap in np.ndindex(*taps):
        window = tuple(
            slice(tap[a] * dilation[a], tap[a] * dilation[a] + (out[a] - 1) * stride[a] + 1,
                  stride[a])
            for a in range(axes)
        )
        part = x[(slice(None), *window)]
        for g in range(groups):
            k = slice(g * filters, (g + 1) * filters)
            c = slice(g * channels, (g + 1) * channels)
            y[..., k] += part[..., c] @ filter[(k, *tap)].T
    return y


def integers(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def _convolve(arguments):
    return convoy.conv2d(*arguments, padding=1)


class Conv2d(unittest.TestCase):
    def test_matches_loops(self):
        x, f = integers((2, 9, 8, 6)), integers((4, 3, 2, 3), seed=1)
        for dtype in (np.float32, np.float16):
            y = convoy.conv2d(
                x.astype(dtype), f.astype(dtype), padding=(1, 2, 0, 1), stride=(2, 1),
                dilation=(1, 2), groups=2,
            )
            expected = reference(x, f, (1, 0), (2, 1), (2, 1), (1, 2), groups=2)
            self.assertEqual(y.dtype, dtype)
            np.testing.assert_array_equal(y, expected.astype(dtype))

    def test_bfloat16(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("no ml_dtypes")
        x = integers((1, 5, 5, 4), ml_dtypes.bfloat16)
        f = integers((2, 3, 3, 4), ml_dtypes.bfloat16, seed=1)
        y = convoy.conv2d(x, f, output_dtype="fp32")
        np.testing.assert_array_equal(
            y, reference(x.astype(np.float32), f.astype(np.float32), (0, 0), (0, 0), (1, 1), (1, 1))
        )

    def test_filter_layouts(self):
        x, krsc = integers((1, 6, 6, 5)), integers((3, 2, 3, 5), seed=1)
        expected = convoy.conv2d(x, krsc)
        for layout, order in (("KCRS", (0, 3, 1, 2)), ("RSCF", (1, 2, 3, 0))):
            y = convoy.conv2d(x, krsc.transpose(order), filter_layout=layout)
            np.testing.assert_array_equal(y, expected)

    def test_epilogue(self):
        x, f = integers((1, 4, 4, 3)), integers((5, 1, 1, 3), seed=1)
        bias, residual = integers((5,), seed=2), integers((1, 4, 4, 5), seed=3)
        conv = reference(x, f, (0, 0), (0, 0), (1, 1), (1, 1))
        y = convoy.conv2d(
            x, f, bias=bias, activation="relu", residual=residual, beta=0.5, scale=2.0
        )
        np.testing.assert_array_equal(y, np.maximum(2 * conv + bias, 0) + 0.5 * residual)
        y = convoy.conv2d(
            x, f, bias=bias, activation="clamp", parameter_a=-1, parameter_b=2,
            residual=residual, residual_order="before_activation",
        )
        np.testing.assert_array_equal(y, np.clip(conv + bias + residual, -1, 2))

    def test_out_views_and_misaligned_input(self):
        x, f = integers((1, 4, 4, 8)), integers((8, 1, 1, 8), seed=1)
        expected = convoy.conv2d(x, f)
        out = np.full_like(expected, np.nan)
        self.assertIs(convoy.conv2d(x, f, out=out), out)
        np.testing.assert_array_equal(out, expected)
        shifted = np.empty(x.size + 1, np.float32)[1:].reshape(x.shape)
        shifted[...] = x
        np.testing.assert_array_equal(convoy.conv2d(shifted, f), expected)
        np.testing.assert_array_equal(convoy.conv2d(x.transpose(0, 2, 1, 3), f),
                                      expected.transpose(0, 2, 1, 3))

    def test_upsample_and_padding_modes(self):
        x, f = integers((1, 4, 5, 2)), integers((3, 3, 3, 2), seed=1)
        big = x.repeat(2, axis=1).repeat(2, axis=2)
        np.testing.assert_array_equal(
            convoy.conv2d(x, f, padding=1, upsample=2), convoy.conv2d(big, f, padding=1)
        )
        for mode, name in (("replicate", "edge"), ("reflect", "reflect")):
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=name)
            np.testing.assert_array_equal(
                convoy.conv2d(x, f, padding=1, padding_mode=mode), convoy.conv2d(padded, f)
            )

    def test_empty_batch(self):
        y = convoy.conv2d(np.zeros((0, 4, 4, 2), np.float32), integers((3, 1, 1, 2)))
        self.assertEqual(y.shape, (0, 4, 4, 3))

    def test_errors(self):
        x, f = integers((1, 4, 4, 8)), integers((8, 3, 3, 8))
        cases = [
            (dict(filter=integers((8, 9, 9, 8))), "filter_h = 9"),
            (dict(filter=integers((8, 3, 3, 4))), "filter has 4 channels"),
            (dict(filter=f.astype(np.float16)), "filter is float16"),
            (dict(x=x.astype(np.float64), filter=f.astype(np.float64)), "x is float64"),
            (dict(x=x[0]), "x has 3 axes"),
            (dict(activation="swish"), "activation = 'swish'"),
            (dict(filter_layout="KTRSC"), "does not fit a 2-D"),
            (dict(bias=integers((7,))), "bias has 7"),
            (dict(residual=integers((1, 4, 4, 8))), "residual is float32 (1, 4, 4, 8)"),
            (dict(padding=(1, 2, 3)), "padding = (1, 2, 3)"),
            (dict(out=np.empty((1, 2, 2, 8), np.float16)), "out is float16"),
            (dict(kernel="oneddn"), "nearest: onednn"),
        ]
        for change, text in cases:
            arguments = {"x": x, "filter": f, **change}
            with self.assertRaises(convoy.InvalidArgument, msg=text) as caught:
                convoy.conv2d(**arguments)
            self.assertIn(text, str(caught.exception))
            self.assertIsInstance(caught.exception, ValueError)

    def test_other_byte_orders_and_integer_types(self):
        x, f = integers((1, 6, 6, 4)), integers((3, 3, 3, 4), seed=1)
        bias, residual = integers((3,), seed=2), integers((1, 6, 6, 3), seed=3)
        expected = convoy.conv2d(x, f, padding=1, bias=bias, residual=residual)
        y = convoy.conv2d(
            x.astype(">f4"), f.astype(">f4"), padding=np.int64(1), stride=(np.int32(1), 1),
            groups=np.uint8(1), bias=bias.astype(">f4"), residual=residual.astype(">f4"),
        )
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(
            convoy.group_norm(x.astype(">f4"), 2), convoy.group_norm(x, 2)
        )

    def test_numbers_that_would_change(self):
        x, f = integers((1, 6, 6, 4)), integers((3, 3, 3, 4), seed=1)
        cases = [
            (dict(stride=2.9), "stride = 2.9"),
            (dict(stride=(1, 2.0)), "stride = 2.0"),
            (dict(padding=1.0), "padding = 1.0"),
            (dict(padding=2**64), "padding = 18446744073709551616"),
            (dict(padding="some"), "padding = 'some'"),
            (dict(padding="same", stride=2), "legal: stride 1"),
            (dict(dilation="1"), "dilation = '1'"),
            (dict(groups=1.5), "groups = 1.5"),
            (dict(groups=2**70), "groups = "),
            (dict(upsample=2.0), "upsample = 2.0"),
        ]
        for change, text in cases:
            with self.assertRaises(convoy.InvalidArgument, msg=text) as caught:
                convoy.conv2d(x, f, **change)
            self.assertIn(text, str(caught.exception))
        for options, text in ((dict(device_index=1.0), "device_index = 1.0"),
                              (dict(device_index=2**40), "device_index = 1099511627776")):
            with self.assertRaises(convoy.InvalidArgument) as caught:
                convoy.Plan(Planning.problem, convoy.Options(dtype="fp32", **options))
            self.assertIn(text, str(caught.exception))
        with self.assertRaises(convoy.InvalidArgument):
            convoy.Plan(convoy.Conv2d(1.5, 4, 4, 4, 4), convoy.Options(dtype="fp32"))

    def test_same_and_valid_padding(self):
        x = integers((1, 7, 8, 4))
        f = integers((3, 4, 3, 4), seed=1)
        np.testing.assert_array_equal(convoy.conv2d(x, f, padding="valid"), convoy.conv2d(x, f))
        y = convoy.conv2d(x, f, padding="same", dilation=(1, 2))
        self.assertEqual(y.shape, (1, 7, 8, 3))
        np.testing.assert_array_equal(
            y, convoy.conv2d(x, f, padding=(1, 2, 2, 2), dilation=(1, 2))
        )

    def test_outputs_that_may_not_be_written(self):
        x, f = integers((1, 4, 4, 8)), integers((8, 1, 1, 8), seed=1)
        frozen = np.zeros((1, 4, 4, 8), np.float32)
        frozen.flags.writeable = False
        over_bytes = np.frombuffer(bytes(4 * 4 * 8 * 4), np.float32).reshape(1, 4, 4, 8)
        for out, text in ((frozen, "read-only"), (over_bytes, "read-only"),
                          ([0.0], "out is a list"),
                          (frozen.astype(">f4"), "out is >f4")):
            for call in (lambda out=out: convoy.conv2d(x, f, out=out),
                         lambda out=out: convoy.group_norm(x, 2, out=out)):
                with self.assertRaises(convoy.InvalidArgument) as caught:
                    call()
                self.assertIn(text, str(caught.exception))
        self.assertFalse(frozen.any() or over_bytes.any())

    def test_unknown_keywords_are_named(self):
        x, f = integers((1, 4, 4, 8)), integers((8, 1, 1, 8), seed=1)
        with self.assertRaisesRegex(TypeError, "'activaton'; nearest: activation"):
            convoy.conv2d(x, f, activaton="relu")
        with self.assertRaisesRegex(TypeError, "'paddding'; nearest: padding"):
            convoy.conv2d(x, f, paddding=1)

    def test_clamp_is_relu6_by_default(self):
        x = np.array([-3, 0.005, 5, 9], np.float32).reshape(1, 1, 4, 1)
        y = convoy.conv2d(x, np.ones((1, 1, 1, 1), np.float32), activation="clamp")
        np.testing.assert_allclose(y.ravel(), [0, 0.005, 5, 6], rtol=1e-6)
        y = convoy.conv2d(x, np.ones((1, 1, 1, 1), np.float32), activation="leaky_relu")
        np.testing.assert_allclose(y.ravel(), [-0.03, 0.005, 5, 9], rtol=1e-6)
        y = convoy.rms_norm(x[..., [0]], activation="clamp")
        np.testing.assert_allclose(y.ravel(), [0, 1, 1, 1], rtol=2e-2)

    def test_children_of_fork_convolve(self):
        # Threads of the parent's pool are not in the child. NOTE: large enough for several threads.
        x, f = integers((2, 64, 64, 32)), integers((32, 3, 3, 32), seed=1)
        expected = convoy.conv2d(x, f, padding=1)
        pool = multiprocessing.get_context("fork").Pool(2)
        try:
            results = pool.map_async(_convolve, [(x, f)] * 4).get(timeout=60)
        finally:
            pool.terminate()
        for y in results:
            np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(convoy.conv2d(x, f, padding=1), expected)

    def test_children_of_fork_while_threads_plan_and_run(self):
        # What a thread of the parent held at that moment would stay locked in the child.
        code = (
            "import os, signal, sys, threading, time\n"
            "import convoy, numpy as np\n"
            "x = np.ones((1, 8, 8, 4), np.float32)\n"
            "filters = [np.ones((k, 3, 3, 4), np.float32) for k in range(1, 40)]\n"
            "def work(first):\n"
            "    for i in range(first, 10**9):\n"
            "        convoy.conv2d(x, filters[i % 39], padding=1)\n"
            "        if i % 39 == 0: convoy.clear_cache()\n"
            "for first in range(3):\n"
            "    threading.Thread(target=work, args=(first,), daemon=True).start()\n"
            "time.sleep(0.2)\n"
            "for n in range(40):\n"
            "    child = os.fork()\n"
            "    if child == 0:\n"
            "        signal.alarm(20)\n"
            "        convoy.clear_cache()\n"
            "        y = convoy.conv2d(x, filters[n % 39], padding=1)\n"
            "        os._exit(int(y[0, 1, 1, 0] != 36))\n"
            "    code = os.waitpid(child, 0)[1]\n"
            "    if code != 0: break\n"
            "print(n, code, flush=True)\n"
            "os._exit(0)\n"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              env=environment, timeout=120)
        self.assertEqual(done.stdout, "39 0\n", done.stderr)

    def test_plans_share_their_scratch(self):
        # In a process of its own, whose memory is its own. 60 shapes of about 4 MB of scratch.
        code = (
            "import convoy, numpy as np\n"
            "f = np.zeros((32, 3, 3, 32), np.float32)\n"
            "def used():\n"
            "    fields = open('/proc/self/statm').read().split()\n"
            "    return int(fields[1]) * 4096 / 1e6\n"
            "def run(size):\n"
            "    x = np.zeros((1, size, 128, 32), np.float16)\n"
            "    convoy.conv2d(x, f.astype(np.float16), padding=1, activation='silu')\n"
            "run(200)\n"
            "before = used()\n"
            "for size in range(140, 200): run(size)\n"
            "after = used()\n"
            "convoy.clear_cache()\n"
            "print(before, after, used())\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        before, after, cleared = map(float, done.stdout.split())
        self.assertLess(after, before + 60, "60 plans, one piece of scratch")
        self.assertLess(cleared, after)

    def test_threads_share_plans(self):
        x, f = integers((1, 16, 16, 8)), integers((8, 3, 3, 8), seed=1)
        expected = convoy.conv2d(x, f, padding=1)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for y in pool.map(lambda _: convoy.conv2d(x, f, padding=1), range(16)):
                np.testing.assert_array_equal(y, expected)


class Misuse(unittest.TestCase):
    x, f = integers((1, 6, 6, 4)), integers((3, 3, 3, 4), seed=1)

    def refuse(self, text, call, *arguments, kind=convoy.InvalidArgument, **keywords):
        with self.assertRaises(kind, msg=text) as caught:
            call(*arguments, **keywords)
        self.assertIn(text, str(caught.exception))

    def test_sequences(self):
        for value in ({1: 1, 2: 2}, {1, 2}, b"ab", bytearray(b"ab"), iter([1, 1]), None, [[1], [1]],
                      (), np.True_, [1.5, 1]):
            for name in ("stride", "dilation", "padding"):
                self.refuse(f"{name} = ", convoy.conv2d, self.x, self.f, **{name: value})
        self.refuse("padding = b'same'", convoy.conv2d, self.x, self.f, padding=b"same")
        self.refuse("padding = ", convoy.conv2d, self.x, self.f, padding=itertools.repeat(1))
        x, f = self.x[:, None], self.f[:, None]
        for modes in (("zero", "zero"), ("zero",) * 4, None, {"zero"}, 3):
            self.refuse("padding_mode = ", convoy.conv3d, x, f, padding_mode=modes)
        y = convoy.conv2d(self.x, self.f, stride=np.array([1, 2]), padding=np.array([[1, 2]])[0])
        np.testing.assert_array_equal(y, convoy.conv2d(self.x, self.f, stride=(1, 2),
                                                       padding=(1, 2)))

    def test_words_and_numbers(self):
        for kernel in (None, 5, "one\0dnn", "\udcff"):
            self.refuse("kernel = ", convoy.conv2d, self.x, self.f, kernel=kernel)
        for word in (["relu"], {}, np.ones(3), 7):
            for name in ("activation", "rounding", "residual_order", "output_dtype", "kernel"):
                self.refuse(f"{name} = ", convoy.conv2d, self.x, self.f, **{name: word})
            self.refuse("pad_mode = ", convoy.conv2d, self.x, self.f, padding_mode=word)
            self.refuse("activation = ", convoy.group_norm, self.x, 2, activation=word)
            self.refuse("rule = ", convoy.rms_norm, self.x, rule=word)
        for value in ("2", None, 1e300, -1e39, 1j, np.ones(3)):
            for name in ("scale", "beta"):
                self.refuse(f"{name} = ", convoy.conv2d, self.x, self.f, **{name: value})
            if value is not None:
                self.refuse("parameter_a = ", convoy.conv2d, self.x, self.f, activation="clamp",
                            parameter_a=value)
            self.refuse("epsilon = ", convoy.group_norm, self.x, 2, epsilon=value)
        self.refuse("no keyword 'cache'", convoy.conv2d, self.x, self.f, cache=self.x,
                    kind=TypeError)
        self.refuse("no keyword 'next_cache'", convoy.conv2d, self.x, self.f, next_cache=True,
                    kind=TypeError)

    def test_problems_and_options_of_other_types(self):
        conv, norm = convoy.Conv2d(1, 8, 8, 4, 8), convoy.GroupNorm(1, 64, 8, 2)
        for call in (convoy.Plan, convoy.supports, convoy.candidates):
            for problem in (None, 5, "n1h8w8c4k8", norm, convoy.Conv2d):
                self.refuse("problem is a ", call, problem, convoy.Options())
            for options in (None, "bf16", convoy.NormOptions()):
                self.refuse("options is a ", call, conv, options)
        self.refuse("problem is a Conv2d; legal: GroupNorm or RmsNorm", convoy.NormPlan, conv,
                    convoy.NormOptions())

    def test_a_library_that_is_none_of_ours(self):
        for path, reason in (("libc.so.6", "is no libconvoy of this version"),
                             (__file__, "could not be loaded")):
            done = subprocess.run([sys.executable, "-c", "import convoy"], capture_output=True,
                                  text=True, env={**os.environ, "CONVOY_LIBRARY": path})
            self.assertIn("ImportError", done.stderr)
            self.assertIn(reason, done.stderr)

    def test_arrays(self):
        masked = np.ma.masked_array(self.x, mask=self.x > 0)
        self.refuse("x is a masked array", convoy.conv2d, masked, self.f)
        self.refuse("x is a masked array", convoy.rms_norm, masked)
        self.refuse("out is a masked array", convoy.conv2d, self.x, self.f,
                    out=np.ma.zeros((1, 4, 4, 3), np.float32))

        class Elsewhere:
            def __dlpack__(self, **_):
                raise BufferError("in the memory of a GPU")

            def __dlpack_device__(self):
                return (2, 0)

        self.refuse("in the memory of a GPU", convoy.conv2d, Elsewhere(), self.f)
        self.refuse("bytes could not be reserved", convoy.conv2d, self.x, self.f, padding=4 * 10**5,
                    kind=convoy.OutOfMemory)

    def test_copies_of_plans_live_by_themselves(self):
        options = convoy.Options(dtype="fp32", device="cpu", packed_filter=True)
        memory = np.zeros(1 << 16, np.float32)
        base = memory.ctypes.data + -memory.ctypes.data % 64
        memory[...] = 1
        for take in (copy.copy, copy.deepcopy):
            plan = convoy.Plan(convoy.Conv2d(1, 8, 8, 64, 8, filter=(3, 3)), options)
            packed = plan.pack_filter(base, "KRSC")
            plan, packed = take(plan), take(packed)
            gc.collect()
            plan.run(base + (1 << 16), base, packed)
            self.assertEqual(memory[(base - memory.ctypes.data + (1 << 16)) // 4], 576)
        for thing in (plan, packed):
            self.refuse("cannot be pickled", pickle.dumps, thing, kind=TypeError)

    def test_the_interpreter_ends(self):
        # Exit handlers and threads that outlive the main one still convolve.
        head = ("import convoy, numpy as np\n"
                "x, f = np.ones((1, 8, 8, 6), np.float32), np.ones((4, 3, 3, 6), np.float32)\n")
        handler = ("import atexit\n"
                   "atexit.register(lambda: print(convoy.conv2d(x, f)[0, 0, 0, 0]))\n"
                   "convoy.conv2d(x, f)\n")
        threads = ("import threading, time\n"
                   "def work():\n"
                   "    while True: convoy.conv2d(x, f, padding=1)\n"
                   "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
                   "time.sleep(0.2)\n"
                   "print(54.0)\n")
        for code in (handler, threads, threads):
            done = subprocess.run([sys.executable, "-c", head + code], capture_output=True,
                                  text=True)
            self.assertEqual((done.returncode, done.stdout), (0, "54.0\n"), done.stderr)


class Conv3d(unittest.TestCase):
    def test_matches_loops(self):
        x, f = integers((2, 4, 5, 6, 3)), integers((2, 3, 2, 3, 3), seed=1)
        y = convoy.conv3d(x, f, padding=(2, 0, 1, 0, 1, 1), stride=(1, 2, 1))
        np.testing.assert_array_equal(
            y, reference(x, f, (2, 1, 1), (0, 0, 1), (1, 2, 1), (1, 1, 1))
        )

    def test_chunks_with_cache_equal_the_whole(self):
        x, f = integers((1, 7, 4, 4, 3)), integers((2, 3, 3, 3, 3), seed=1)
        whole = convoy.conv3d(x, f, padding=(2, 0, 1, 1, 1, 1))
        cache, parts = None, []
        for begin, end in ((0, 1), (1, 4), (4, 5), (5, 7)):
            front = 2 if cache is None else 0
            y, cache = convoy.conv3d(
                x[:, begin:end], f, padding=(front, 0, 1, 1, 1, 1), cache=cache, next_cache=True
            )
            self.assertEqual(cache.shape, (1, 2, 4, 4, 3))
            parts.append(y)
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


class Norms(unittest.TestCase):
    def test_group_norm(self):
        x = np.random.default_rng(0).normal(5, 2, (2, 4, 3, 12)).astype(np.float32)
        scale, bias = integers((12,), seed=1), integers((12,), seed=2)
        grouped = x.astype(np.float64).reshape(2, 12, 3, 4)
        mean = grouped.mean(axis=(1, 3), keepdims=True)
        variance = grouped.var(axis=(1, 3), keepdims=True)
        normed = ((grouped - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape) * scale + bias
        y = convoy.group_norm(x, 3, scale=scale, bias=bias, epsilon=1e-3)
        np.testing.assert_allclose(y, normed, rtol=1e-5, atol=1e-5)
        y = convoy.group_norm(x, 3, scale=scale, bias=bias, epsilon=1e-3, activation="silu", out=x)
        self.assertIs(y, x)
        np.testing.assert_allclose(y, normed / (1 + np.exp(-normed)), rtol=1e-5, atol=1e-5)

    def test_rms_norm(self):
        x = integers((2, 5, 7), seed=3)
        scale = integers((7,), seed=1)
        norm = np.sqrt((x.astype(np.float64) ** 2).sum(-1, keepdims=True))
        y = convoy.rms_norm(x, scale=scale, epsilon=1e-12, rule="norm_floor")
        expected = x / np.maximum(norm, 1e-12) * np.sqrt(7) * scale
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
        y = convoy.rms_norm(x, epsilon=0.5)
        expected = x / np.sqrt(norm**2 / 7 + 0.5)
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)

    def test_errors_and_empty_batch(self):
        x = integers((1, 4, 4, 8))
        self.assertEqual(convoy.group_norm(x[:0], 2).shape, (0, 4, 4, 8))
        cases = [
            (lambda: convoy.group_norm(x, 3), "groups = 3 does not divide channels = 8"),
            (lambda: convoy.group_norm(x, 2, scale=x[0, 0, 0, :5]), "scale has 5 elements"),
            (lambda: convoy.group_norm(x, 2, epsilon=-1), "epsilon = -1"),
            (lambda: convoy.group_norm(x[0, 0, 0], 2), "x has 1 axes"),
            (lambda: convoy.rms_norm(x, rule="floor"), "rule = 'floor'"),
            (lambda: convoy.rms_norm(x, activation="swish"), "activation = 'swish'"),
            (lambda: convoy.rms_norm(x.astype(np.float64)), "x is float64"),
            (lambda: convoy.rms_norm(x, out=x[:, :2].copy()), "out is float32"),
        ]
        for call, text in cases:
            with self.assertRaises(convoy.InvalidArgument, msg=text) as caught:
                call()
            self.assertIn(text, str(caught.exception))


def aligned(shape):
    spare = np.zeros(int(np.prod(shape)) + 4, np.float32)
    first = -spare.ctypes.data % 16 // 4
    return spare[first : first + int(np.prod(shape))].reshape(shape)


class Planning(unittest.TestCase):
    problem = convoy.Conv2d(1, 8, 8, 4, 8, filter=(3, 3), pad=(1, 1, 1, 1))

    def test_plan_tells_what_it_is(self):
        plan = convoy.Plan(self.problem, convoy.Options(dtype="fp32", device="cpu"))
        self.assertEqual(plan.kernel, "onednn")
        self.assertEqual(plan.output_shape, (1, 8, 8, 8))
        self.assertEqual(plan.flops, 2 * 64 * 8 * 36)
        with self.assertRaises(convoy.InvalidArgument) as caught:
            plan.run(None, None, None)
        self.assertIn("output is null", str(caught.exception))

    def test_prologue(self):
        rng = np.random.default_rng(3)
        x, w, y = aligned((1, 8, 8, 4)), aligned((8, 3, 3, 4)), aligned((1, 8, 8, 8))
        x[:], w[:] = rng.standard_normal(x.shape), rng.standard_normal(w.shape)
        scale, inverse = aligned((4,)), aligned((64,))
        scale[:] = rng.standard_normal(4)
        norm = convoy.NormPlan(
            convoy.RmsNorm(64, 4),
            convoy.NormOptions(dtype="fp32", scale=False, bias=False, device="cpu",
                               result="coefficients"),
        )
        norm.run(inverse.ctypes.data, x.ctypes.data)
        plan = convoy.Plan(
            self.problem,
            convoy.Options(dtype="fp32", device="cpu", prologue_norm="rms",
                           prologue_activation="silu"),
        )
        plan.run(y.ctypes.data, x.ctypes.data, w.ctypes.data,
                 prologue_scale=scale.ctypes.data, inverse_rms=inverse.ctypes.data)
        expected = convoy.conv2d(
            convoy.rms_norm(x, scale=scale, activation="silu"), w, padding=1
        )
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
        with self.assertRaises(convoy.InvalidArgument) as caught:
            plan.run(y.ctypes.data, x.ctypes.data, w.ctypes.data)
        self.assertIn("prologue.scale is null", str(caught.exception))
        with self.assertRaises(convoy.InvalidArgument) as caught:
            convoy.Plan(self.problem, convoy.Options(device="cpu", prologue_norm="layer"))
        self.assertIn("prologue_norm = 'layer'", str(caught.exception))

    def test_shuffle(self):
        plan = convoy.Plan(
            self.problem,
            convoy.Options(dtype="fp32", device="cpu", residual=True, shuffle=(1, 2, 2),
                           shuffle_residual="interleaved", residual_channels=4),
        )
        self.assertEqual(plan.output_shape, (1, 16, 16, 2))
        self.assertEqual(plan.residual_shape, (1, 8, 8, 4))
        with self.assertRaises(convoy.InvalidArgument) as caught:
            convoy.Plan(self.problem, convoy.Options(device="cpu", shuffle=(1, 3, 1)))
        self.assertIn("out_channels = 8 does not divide", str(caught.exception))
        with self.assertRaises(convoy.InvalidArgument) as caught:
            convoy.Plan(self.problem, convoy.Options(device="cpu", shuffle_order="inner"))
        self.assertIn("shuffle_order = 'inner'", str(caught.exception))

    def test_statistics(self):
        rng = np.random.default_rng(4)
        x, w, y = aligned((1, 8, 8, 4)), aligned((8, 3, 3, 4)), aligned((1, 8, 8, 8))
        x[:], w[:] = rng.standard_normal(x.shape), rng.standard_normal(w.shape)
        plan = convoy.Plan(
            self.problem, convoy.Options(dtype="fp32", device="cpu", statistics_groups=4))
        self.assertEqual(plan.statistics, "pass")
        found = aligned((1, 4, 2))
        plan.run(y.ctypes.data, x.ctypes.data, w.ctypes.data, statistics=found.ctypes.data)
        groups = y.reshape(1, -1, 4, 2).transpose(0, 2, 1, 3).reshape(1, 4, -1)
        np.testing.assert_allclose(found, np.stack((groups.mean(-1), groups.var(-1)), -1),
                                   rtol=1e-5, atol=1e-6)
        with self.assertRaises(convoy.InvalidArgument) as caught:
            plan.run(y.ctypes.data, x.ctypes.data, w.ctypes.data)
        self.assertIn("statistics is null", str(caught.exception))
        line = convoy.candidates(self.problem, plan.options)[0]
        self.assertTrue(line["statistics"].startswith("pass: "))

    def test_words_that_are_no_flags(self):
        for name in ("allow_tf32", "packed_filter", "residual"):
            for value in ("yes", "0", None, 2, -1, 1.0, [], float("nan")):
                with self.assertRaises(convoy.InvalidArgument, msg=(name, value)) as caught:
                    convoy.Plan(self.problem, convoy.Options(device="cpu", **{name: value}))
                self.assertIn(f"{name} = {value!r} is not legal; legal: True, False",
                              str(caught.exception))
            for value in (True, False, 0, 1, np.bool_(True), np.int8(1)):
                convoy.Plan(self.problem, convoy.Options(device="cpu", **{name: value}))

    def test_support_and_candidates(self):
        options = convoy.Options(device="cpu")
        self.assertEqual(convoy.supports(self.problem, options), (True, ""))
        lines = convoy.candidates(self.problem, options)
        self.assertTrue(lines[0]["chosen"])
        self.assertEqual(lines[0]["reason"], "")
        wide = convoy.Conv2d(1, 1, 65536, 1, 65536)
        supported, reason = convoy.supports(wide, options)
        self.assertFalse(supported)
        self.assertIn("output row", reason)
        with self.assertRaises(convoy.Unsupported):
            convoy.Plan(wide, options)

    def test_version(self):
        self.assertRegex(convoy.version(), r"^\d+\.\d+\.\d+ \(git ")
        self.assertEqual(convoy.__version__, convoy.version().split()[0])

    def test_types_are_told(self):
        folder = pathlib.Path(convoy.__file__).parent
        self.assertTrue((folder / "py.typed").exists())
        for function in (convoy.conv2d, convoy.conv3d, convoy.group_norm, convoy.rms_norm):
            hints = function.__annotations__
            parameters = inspect.signature(function).parameters
            self.assertEqual(set(hints) - {"return"}, set(parameters), function.__name__)


if __name__ == "__main__":
    unittest.main()
