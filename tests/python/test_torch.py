# SPDX-License-Identifier: Apache-2.0
"""The PyTorch operators against PyTorch's own convolutions, on the CPU and on a GPU where there is
one."""

import concurrent.futures
import copy
import os
import pickle
import threading
import time
import unittest
import unittest.mock

import convoy
import convoy.torch
import torch
import torch.nn.functional as F
from convoy import _calls, _operators
from convoy._plan import Plan
from convoy.torch import _known

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
if os.environ.get("CONVOY_TEST_DEVICE"):  # Where the library has no CPU backend: cuda.
    DEVICES = [os.environ["CONVOY_TEST_DEVICE"]]
    torch.set_default_device(DEVICES[0])
    torch.backends.cudnn.allow_tf32 = False


def integers(*shape, dtype=torch.float32, device=DEVICES[0], seed=0):
    generator = torch.Generator("cpu").manual_seed(seed)
    made = torch.randint(-3, 4, shape, generator=generator, device="cpu")
    return made.to(device=device, dtype=dtype)


class Operators(unittest.TestCase):
    def test_conv2d_is_pytorchs(self):
        for device in DEVICES:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                x = integers(2, 16, 9, 8, dtype=dtype, device=device)
                w = integers(8, 8, 3, 3, dtype=dtype, device=device, seed=1)
                b = integers(8, dtype=dtype, device=device, seed=2)
                y = convoy.torch.conv2d(x, w, b, stride=(2, 1), padding=1, dilation=1, groups=2)
                expected = F.conv2d(
                    x.double().cpu(), w.double().cpu(), b.double().cpu(), (2, 1), 1, 1, 2
                )
                self.assertEqual(y.device.type, device)
                self.assertTrue(y.is_contiguous(memory_format=torch.channels_last))
                torch.testing.assert_close(y.cpu(), expected.to(dtype), rtol=0, atol=0)

    def test_conv3d_with_epilogue(self):
        for device in DEVICES:
            x = integers(1, 8, 4, 6, 7, device=device)
            w = integers(16, 8, 3, 3, 3, device=device, seed=1)
            b = integers(16, device=device, seed=2)
            residual = integers(1, 16, 4, 6, 7, device=device, seed=3)
            y = convoy.torch.conv3d(
                x, w, b, padding=(2, 0, 1, 1, 1, 1), activation="relu", residual=residual, beta=0.5
            )
            expected = F.relu(F.conv3d(F.pad(x, (1, 1, 1, 1, 2, 0)), w, b)) + 0.5 * residual
            torch.testing.assert_close(y, expected, rtol=0, atol=0)

    def test_padding_words_and_modes(self):
        x, w = integers(1, 8, 7, 9), integers(4, 8, 3, 4, seed=1)
        for padding in ("same", "valid"):
            torch.testing.assert_close(
                convoy.torch.conv2d(x, w, padding=padding, dilation=(1, 2)),
                F.conv2d(x, w, padding=padding, dilation=(1, 2)), rtol=0, atol=0,
            )
        for mode in ("zeros", "replicate", "reflect"):
            for kind, shape in ((torch.nn.Conv2d, (1, 8, 7, 9)),
                                (torch.nn.Conv3d, (1, 8, 4, 7, 9))):
                for padding in (1, "same"):
                    plain = kind(8, 4, 3, padding=padding, padding_mode=mode)
                    x = torch.randn(shape)
                    with torch.no_grad():
                        expected = plain(x)
                        function = convoy.torch.conv2d if kind is torch.nn.Conv2d else (
                            convoy.torch.conv3d)
                        y = function(x, plain.weight, plain.bias, padding=padding,
                                     padding_mode=mode)
                        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
                        converted = convoy.torch.convert(plain)
                        self.assertIn("forward", vars(converted), "taken over")
                        torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-4)
        with self.assertRaisesRegex(convoy.InvalidArgument, "padding_mode = 'circular'"):
            convoy.torch.conv2d(x[:, :, 0], w, padding_mode="circular")
        with self.assertRaisesRegex(convoy.InvalidArgument, "legal: stride 1"):
            convoy.torch.conv2d(x[:, :, 0], w, padding="same", stride=2)
        convoy.torch.clear_cache()

    def test_upsample_folding_is_checked(self):
        x, w = integers(1, 8, 4, 5), integers(8, 8, 3, 3, seed=1)
        expected = F.conv2d(x.repeat_interleave(2, 2).repeat_interleave(2, 3), w, padding=1)
        for folding in ("exact", "fast"):  # Small integers are exact in both.
            y = convoy.torch.conv2d(x, w, padding=1, upsample=2, upsample_folding=folding)
            torch.testing.assert_close(y, expected, rtol=0, atol=0)
        with self.assertRaisesRegex(convoy.InvalidArgument, "legal: exact, fast"):
            convoy.torch.conv2d(x, w, padding=1, upsample=2, upsample_folding="quick")

    def test_a_second_call_takes_the_short_way(self):
        x, w, b = integers(1, 8, 6, 6), integers(8, 8, 3, 3, seed=1), integers(8, seed=2)
        convoy.torch.clear_cache()
        for _ in range(3):
            for bias, residual, beta in ((None, None, 1.0), (b, None, 1.0), (b, x, 0.5)):
                y = convoy.torch.conv2d(x, w, bias, padding=1, activation="relu",
                                        residual=residual, beta=beta)
                expected = F.relu(F.conv2d(x, w, bias, padding=1))
                if residual is not None:
                    expected = expected + beta * residual
                torch.testing.assert_close(y, expected, rtol=0, atol=0)
        self.assertEqual(len(_known.convolutions), 3)
        with torch.device(x.device):  # A default device changes nothing.
            convoy.torch.conv2d(x, w, padding=1, dilation=1)
        self.assertEqual(len(_known.convolutions), 4)
        for wrong in (x[:, :, :5], x.half()):  # Checked, though the rest is known.
            with self.assertRaises(convoy.InvalidArgument):
                convoy.torch.conv2d(x, w, b, padding=1, activation="relu", residual=wrong)
        with self.assertRaisesRegex(convoy.InvalidArgument, "bias is "):
            convoy.torch.conv2d(x, w, b[:5], padding=1, activation="relu")
        traced = []

        class Records(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                traced.append(func)
                return func(*args, **(kwargs or {}))

        with Records():
            convoy.torch.conv2d(x, w, padding=1, activation="relu")
        self.assertIn(torch.ops.convoy.conv2d.default, traced)

    def test_passes_opcheck(self):
        x, w, b = integers(1, 8, 6, 6), integers(8, 8, 3, 3, seed=1), integers(8, seed=2)
        arguments = (x, w, b, None, [1, 1], [1, 1, 1, 1], [1, 1], 1, "silu", 1.0)
        torch.library.opcheck(
            torch.ops.convoy.conv2d.default, arguments,
            test_utils=("test_schema", "test_faketensor"),
        )

    def test_pixel_shuffle(self):
        for device in DEVICES:
            for dtype in (torch.float32, torch.bfloat16):
                x = integers(2, 16, 5, 6, dtype=dtype, device=device)
                w = integers(32, 16, 3, 3, dtype=dtype, device=device, seed=1)
                b = integers(32, dtype=dtype, device=device, seed=2)
                plain = F.conv2d(x.double(), w.double(), b.double(), padding=1)
                skip = x.double().repeat_interleave(2, 1)
                y = convoy.torch.conv2d(x, w, b, padding=1, pixel_shuffle=2, residual=x, beta=2.0,
                                        repeat_residual=True, packed=True)
                expected = F.pixel_shuffle(plain + 2 * skip, 2)
                self.assertTrue(y.is_contiguous(memory_format=torch.channels_last))
                torch.testing.assert_close(y, expected.to(dtype), rtol=0, atol=0)
                whole = integers(2, 8, 10, 12, dtype=dtype, device=device, seed=3)
                y = convoy.torch.conv2d(x, w, b, padding=1, pixel_shuffle=2, residual=whole,
                                        activation="relu")
                expected = F.relu(F.pixel_shuffle(plain, 2)) + whole.double()
                torch.testing.assert_close(y, expected.to(dtype), rtol=0, atol=0)
        x, w = integers(1, 8, 4, 4), integers(8, 8, 3, 3)
        for refused, text in (
            ({"pixel_shuffle": 3}, "out_channels = 8 does not divide into 1*3*3"),
            ({"pixel_shuffle": 2, "upsample": 2}, "upsample = 2 with pixel_shuffle"),
            ({"pixel_shuffle": 2, "shuffle_order": "outer"}, "shuffle_order = 'outer'"),
            ({"pixel_shuffle": 2, "residual": x}, "residual is (1, 8, 4, 4); legal: (1, 2, 8, 8)"),
        ):
            with self.assertRaises(convoy.InvalidArgument) as caught:
                convoy.torch.conv2d(x, w, padding=1, **refused)
            self.assertIn(text, str(caught.exception))

    def test_frames_interleave(self):
        x, w = integers(1, 8, 3, 4, 5), integers(16, 8, 3, 1, 1, seed=1)
        cache = integers(1, 8, 2, 4, 5, seed=2)
        plain = F.conv3d(torch.cat((cache, x), 2), w).reshape(1, 2, 8, 3, 4, 5)
        expected = torch.stack((plain[:, 0], plain[:, 1]), 3).reshape(1, 8, 6, 4, 5)
        for dropped in (0, 1):
            y = convoy.torch.conv3d(x, w, cache=cache, pixel_shuffle=(2, 1, 1),
                                    shuffle_order="channels_inner", dropped_frames=dropped)
            torch.testing.assert_close(y, expected[:, :, dropped:], rtol=0, atol=0)

    def test_transforms_get_pytorchs_operators(self):
        x, w = integers(2, 8, 4, 5), integers(16, 8, 3, 3)
        forward_ad = torch.autograd.forward_ad

        def rms(t):
            return F.rms_norm(t.movedim(1, -1), (8,), eps=1e-3).movedim(-1, 1)

        for ours, plain in (
                (lambda t: convoy.torch.conv2d(t, w, activation="silu"),
                 lambda t: F.silu(F.conv2d(t, w))),
                (lambda t: convoy.torch.conv2d(t, w, pixel_shuffle=2),
                 lambda t: F.pixel_shuffle(F.conv2d(t, w), 2)),
                (lambda t: convoy.torch.conv3d(t[:, :, None], w[:, :, None], packed=True),
                 lambda t: F.conv3d(t[:, :, None], w[:, :, None])),
                (lambda t: convoy.torch.group_norm(t, 2, eps=1e-3),
                 lambda t: F.group_norm(t, 2, eps=1e-3)),
                (lambda t: convoy.torch.rms_norm(t, eps=1e-3), rms)):
            ours(x)  # From now on it is known.
            tangent = torch.func.jvp(plain, (x,), (x + 1,))[1]
            with forward_ad.dual_level():
                found = forward_ad.unpack_dual(ours(forward_ad.make_dual(x, x + 1))).tangent
                torch.testing.assert_close(found, tangent)
            torch.testing.assert_close(torch.func.jvp(ours, (x,), (x + 1,))[1], tangent)
            torch.testing.assert_close(torch.vmap(ours)(x[:, None]), torch.vmap(plain)(x[:, None]))
            slopes = [torch.func.grad(lambda t, f=f: f(t).square().sum())(x) for f in (ours, plain)]
            torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-3)
        with forward_ad.dual_level(), self.assertRaisesRegex(
                NotImplementedError, "conv3d_next_cache has no forward-mode derivatives"):
            convoy.torch.conv3d(forward_ad.make_dual(x, x)[:, :, None], w[:, :, None],
                                next_cache=True)

    def test_autocast_is_pytorchs(self):
        x, w, b = torch.randn(1, 8, 6, 7), torch.randn(8, 8, 3, 3), torch.randn(8)
        parameter = torch.nn.Parameter(w.clone())
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            expected = F.conv2d(x, w, b)
            self.assertIs(expected.dtype, torch.bfloat16)
            for given in (x, x.bfloat16()):
                for weight in (w, parameter):
                    for packed in (False, True):
                        y = convoy.torch.conv2d(given, weight, b, packed=packed)
                        torch.testing.assert_close(y, expected, rtol=0.02, atol=0.05)
                        if weight is parameter:
                            y.float().sum().backward()  # With autocast on, as some have it.
            with torch.no_grad():
                cast = _calls.cast_weight(parameter, torch.bfloat16)
                convoy.torch.conv2d(x, parameter, b, packed=True)
                self.assertIs(_calls.cast_weight(parameter, torch.bfloat16), cast, "cast once")
                parameter.mul_(2)
                torch.testing.assert_close(convoy.torch.conv2d(x, parameter, b, packed=True),
                                           F.conv2d(x, 2 * w, b), rtol=0.02, atol=0.05)
            cached = convoy.torch.conv3d(x[:, :, None], w[:, :, None].repeat(1, 1, 2, 1, 1),
                                         cache=x[:, :, None])
            self.assertIs(cached.dtype, torch.bfloat16)
        self.assertIs(convoy.torch.conv2d(x, parameter, b).dtype, torch.float32)

    def test_pixel_shuffle_has_gradients(self):
        given = [integers(*shape, seed=i) for i, shape in enumerate(
            ((1, 8, 4, 5), (16, 8, 3, 3), (16,), (1, 4, 8, 10)))]
        ours = [t.clone().requires_grad_() for t in given]
        plain = [t.clone().requires_grad_() for t in given]
        convoy.torch.conv2d(*ours[:3], padding=1, pixel_shuffle=2, residual=ours[3],
                            beta=0.5).square().sum().backward()
        x, w, b, residual = plain
        y = F.pixel_shuffle(F.conv2d(x, w, b, padding=1), 2) + 0.5 * residual
        y.square().sum().backward()
        for a, expected in zip(ours, plain):
            torch.testing.assert_close(a.grad, expected.grad)
        torch.library.opcheck(torch.ops.convoy.shuffled_conv.default, (
            *given[:3], None, [1, 1], [1, 1, 1, 1], [1, 1], 1, "none", 1.0, None, False, "zeros",
            [2, 2], "channels_outer", 0, False))

    def test_upsampling_is_folded(self):
        for device in DEVICES:
            dtype = torch.bfloat16 if device == "cuda" else torch.float32
            x = integers(2, 16, 5, 7, dtype=dtype, device=device)
            w = integers(24, 16, 3, 3, dtype=dtype, device=device, seed=1)
            y = convoy.torch.conv2d(x, w, padding=1, upsample=2)
            big = x.double().cpu().repeat_interleave(2, 2).repeat_interleave(2, 3)
            expected = F.conv2d(big, w.double().cpu(), padding=1)
            torch.testing.assert_close(y.cpu(), expected.to(dtype), rtol=0, atol=0)

    def test_chunks_with_a_cache_are_the_whole(self):
        for device in DEVICES:
            conv = convoy.torch.Conv3d(8, 16, 3, padding=1, causal=True, device=device)
            conv.weight.data = integers(16, 8, 3, 3, 3, device=device, seed=1)
            conv.bias.data = integers(16, device=device, seed=2)
            x = integers(1, 8, 7, 5, 6, device=device)
            expected = F.conv3d(F.pad(x, (1, 1, 1, 1, 2, 0)), conv.weight, conv.bias)
            with torch.no_grad():
                whole = conv(x)
                torch.testing.assert_close(whole, expected, rtol=0, atol=0)
                cache, parts = None, []
                for begin, end in ((0, 1), (1, 4), (4, 5), (5, 7)):
                    y, following = conv(x[:, :, begin:end], cache=cache, next_cache=True)
                    # One frame has been seen: the zeros before it are no cache.
                    cache = following[:, :, -min(end, 2):]
                    parts.append(y)
                torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=0)
                # A view of the last frames is read where it is.
                y = conv(x[:, :, 4:], cache=x[:, :, 2:4])
                torch.testing.assert_close(y, whole[:, :, 4:], rtol=0, atol=0)

    def test_packed_filters_follow_the_weight(self):
        for device in DEVICES:
            x = integers(1, 8, 6, 6, device=device)
            w = integers(8, 8, 3, 3, device=device, seed=1)
            for change in (lambda: None, lambda: w.mul_(2), lambda: w[0].zero_()):
                change()
                for _ in range(2):
                    y = convoy.torch.conv2d(x, w, packed=True)
                    torch.testing.assert_close(y, F.conv2d(x, w), rtol=0, atol=0)
            self.assertIn(id(w), [key[1] for key in _calls._packed])

    def test_plans_of_one_format_share_a_packed_filter(self):
        for device in DEVICES:
            w = integers(8, 8, 3, 3, device=device, seed=1)
            for height in (5, 6, 9):
                x = integers(2, 8, height, 6, device=device)
                for activation in ("none", "relu"):
                    y = convoy.torch.conv2d(x, w, padding=1, packed=True, activation=activation)
                    expected = F.conv2d(x, w, padding=1)
                    expected = F.relu(expected) if activation == "relu" else expected
                    torch.testing.assert_close(y, expected, rtol=0, atol=0)
            formats = [how for how, weight in _calls._packed if weight == id(w)]
            self.assertEqual(len(formats), len(set(formats)))
            if device == "cuda":  # oneDNN has formats of its own for some shapes.
                self.assertEqual(len(formats), 1)

    def test_threads_that_come_together_use_one_packed_filter(self):
        """C++ holds no more than its address: a second one may not take the place of the first."""
        threads, x, packed = 6, torch.randn(1, 8, 6, 6), []

        def slow(own):
            def pack_filter(plan, *arguments):
                packed.append(plan)
                time.sleep(0.005)
                return own(plan, *arguments)

            return pack_filter

        with (unittest.mock.patch.object(Plan, "pack_filter", slow(Plan.pack_filter)),
              unittest.mock.patch.object(_calls._Numbered, "pack_filter",
                                         slow(_calls._Numbered.pack_filter)),
              concurrent.futures.ThreadPoolExecutor(threads) as pool):
            for _ in range(10):
                weight = torch.nn.Parameter(torch.randn(16, 8, 3, 3), requires_grad=False)
                together = threading.Barrier(threads)

                def run(weight=weight, together=together):
                    together.wait()
                    return convoy.torch.conv2d(x, weight, padding=1, packed=True)

                found = [pool.submit(run) for _ in range(threads)]
                for result in found:
                    torch.testing.assert_close(result.result(), F.conv2d(x, weight, padding=1),
                                               rtol=1e-4, atol=1e-4)
                self.assertTrue(packed)
                self.assertEqual(len(packed), len(set(packed)))  # By each plan once.
                packed.clear()

    def test_errors(self):
        x, w = integers(1, 8, 4, 4), integers(8, 8, 3, 3)
        with self.assertRaisesRegex(convoy.InvalidArgument, "weight has 8 channels for 2 groups"):
            convoy.torch.conv2d(x, w, groups=2)
        with self.assertRaisesRegex(convoy.InvalidArgument, "filter_h = 3"):
            convoy.torch.conv2d(x[:, :, :1], w)
        with self.assertRaisesRegex(convoy.InvalidArgument, "weight is torch.float16"):
            convoy.torch.conv2d(x, w.half())
        with self.assertRaisesRegex(convoy.InvalidArgument, "torch.float64"):
            convoy.torch.conv2d(x.double(), w.double())
        self.assertEqual(convoy.torch.supports(x, w, padding=1), (True, ""))


class Compiled(unittest.TestCase):
    """torch.compile without breaks, and what the operators in C++ add where they were built."""

    def test_no_graph_breaks(self):
        w = torch.nn.Parameter(integers(8, 8, 3, 3, seed=1))
        w3, scale = integers(8, 8, 3, 3, 3, seed=2), torch.randn(8)

        def step(x, frames, cache):
            y = convoy.torch.conv2d(x, w, padding=1, activation="silu", packed=True)
            y = convoy.torch.group_norm(y, 4, scale, scale, activation="silu")
            y = convoy.torch.conv2d(y, w, padding=1, upsample=2)
            z, following = convoy.torch.conv3d(frames, w3, padding=(0, 0, 1, 1, 1, 1), cache=cache,
                                               next_cache=True)
            return y, convoy.torch.rms_norm(z, scale, rule="norm_floor"), following

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            for change in (1, 2):
                w.mul_(change)
                for n in (1, 2):
                    given = (integers(n, 8, 6, 7), integers(n, 8, 3, 4, 5),
                             integers(n, 8, 2, 4, 5, seed=3))
                    for got, right in zip(compiled(*given), step(*given)):
                        torch.testing.assert_close(got, right, rtol=0, atol=0)

    @unittest.skipIf(_operators.library is None, _operators.why_not)
    def test_calls_check_what_they_get(self):
        x, w, b = integers(1, 8, 6, 7), integers(16, 8, 3, 3, seed=1), integers(16, seed=2)
        call = torch.ops.convoy._run_conv
        convoy.torch.clear_cache()
        with torch.no_grad():
            y = convoy.torch.conv2d(x, w, b)
            (known,) = _known.convolutions.values()
            number = known.number.value
            torch.testing.assert_close(call(number, 0, x, w, b, None, None), y, rtol=0, atol=0)
            wide = torch.zeros(32)
            torch.testing.assert_close(  # Any memory format, alignment and strides.
                call(number, 0, torch.cat([wide[:1], x.flatten()])[1:].view_as(x), w,
                     b.repeat_interleave(2)[::2], None, None), y, rtol=0, atol=0)
            for arguments, text in (
                ((0, 0, x, w, b, None, None), "no call has the number 0"),
                ((number, 0, x[:, :, 1:], w, b, None, None), r"x is \(1, 8, 5, 7\)"),
                ((number, 0, x.half(), w, b, None, None), "x is of another type"),
                ((number, 0, x, w[1:], b, None, None), r"weight is \(15, 8, 3, 3\)"),
                ((number, 0, x, w.half(), b, None, None), "weight is torch.float16 on "),
                ((number, 0, x, w, b[1:], None, None), r"bias is \(15,\); legal: \(16,\)"),
                ((number, 0, x, w, b.half(), None, None), "bias is"),
                ((number, 0, x, w, b, x, None), "residual is"),
                ((number, 0, x, w, None, None, None), "bias"),
                ((number, 0, x, None, b, None, None), "filter"),
            ):
                with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                    call(*arguments)
            known.number = None  # Forgotten with the last who holds it.
            with self.assertRaisesRegex(RuntimeError, f"no call has the number {number}"):
                call(number, 0, x, w, b, None, None)

    @unittest.skipIf(_operators.library is None, _operators.why_not)
    def test_norm_calls_check_what_they_get(self):
        x, w = integers(1, 8, 6, 7), torch.randn(8)
        convoy.torch.clear_cache()
        with torch.no_grad():
            convoy.torch.group_norm(x, 4, w, w)
            (known,) = _known.norms.values()
            call, number = torch.ops.convoy._run_norm, known.number.value
            torch.testing.assert_close(call(number, x, w[:, None, None], w),
                                       convoy.torch.group_norm(x, 4, w, w), rtol=0, atol=0)
            for arguments, text in (
                ((number + 99, x, w, w), "no call"), ((number, x[..., 1:], w, w), "x is"),
                ((number, x.bfloat16(), w, w), "x is"), ((number, x, w[1:], w), "weight is"),
                ((number, x, w, w.half()), "bias is"), ((number, x, None, w), "scale"),
            ):
                with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                    call(*arguments)

    @unittest.skipIf(_operators.library is None, _operators.why_not)
    def test_plans_are_kept_and_forgotten(self):

        w = integers(8, 8, 3, 3, seed=1)
        operator = torch.ops.convoy.conv2d
        rest = (None, None, [1, 1], [1, 1, 1, 1], [1, 1], 1, "none", 1.0)

        def run(i):
            x = integers(1, 8, 5 + i % 40, 6, seed=i)
            if i % 50 == 49:
                convoy.torch.clear_cache()
            y = operator(x, w, *rest, 1, i % 2 == 0)
            return torch.equal(y, F.conv2d(x, w, padding=1))

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertTrue(all(pool.map(run, range(200))))


def gradients(function, *tensors):
    tensors = [t if t is None else t.detach().requires_grad_() for t in tensors]
    y = function(*tensors)
    generator = torch.Generator(y.device).manual_seed(5)
    y.backward(torch.randn(y.shape, generator=generator, device=y.device))
    return [None if t is None else t.grad for t in tensors]


class Gradients(unittest.TestCase):
    """Against those of the same in PyTorch's operators."""

    def check(self, ours, plain, *tensors):
        for got, expected in zip(gradients(ours, *tensors), gradients(plain, *tensors)):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)

    def test_conv2d(self):
        x, w, b = torch.randn(2, 8, 6, 7), torch.randn(4, 4, 3, 3), torch.randn(4)
        y = torch.randn(2, 4, 4, 8)
        self.check(
            lambda x, w, b, y: convoy.torch.conv2d(
                x, w, b, stride=(2, 1), padding=(1, 2, 1, 2), groups=2, activation="silu",
                residual=y, beta=0.5),
            lambda x, w, b, y: 0.5 * y + F.silu(F.conv2d(
                F.pad(x, (1, 2, 1, 2)), w, b, (2, 1), 0, 1, 2)), x, w, b, y)
        self.check(lambda x, w: convoy.torch.conv2d(x, w, padding=1, padding_mode="reflect",
                                                    dilation=2, activation="leaky_relu", groups=2),
                   lambda x, w: F.leaky_relu(F.conv2d(F.pad(x, (1, 1, 1, 1), "reflect"), w,
                                                      dilation=2, groups=2)), x, w)
        w = torch.randn(4, 8, 3, 3)
        self.check(lambda x, w: convoy.torch.conv2d(x, w, padding=1, upsample=2, packed=True),
                   lambda x, w: F.conv2d(F.interpolate(x, scale_factor=2.0), w, padding=1), x, w)
        w.requires_grad_()  # The input's is not wanted.
        convoy.torch.conv2d(x, w, padding=1).sum().backward()
        self.assertIsNone(x.grad)

    def test_conv3d(self):
        x, w, cache = torch.randn(1, 8, 3, 5, 6), torch.randn(4, 8, 3, 3, 3), torch.randn(
            1, 8, 2, 5, 6)
        self.check(lambda x, w, c: convoy.torch.conv3d(x, w, padding=(0, 1, 1), cache=c),
                   lambda x, w, c: F.conv3d(torch.cat([c, x], 2), w, padding=(0, 1, 1)),
                   x, w, cache)
        self.check(lambda x, w: convoy.torch.conv3d(x, w, padding=(2, 0, 1, 1, 1, 1)),
                   lambda x, w: F.conv3d(F.pad(x, (1, 1, 1, 1, 2, 0)), w), x, w)

    def test_norms(self):
        x, w, b = torch.randn(2, 8, 5, 6), torch.randn(8), torch.randn(8)
        self.check(lambda *t: convoy.torch.group_norm(t[0], 4, *t[1:], 1e-3, activation="silu"),
                   lambda *t: F.silu(F.group_norm(t[0], 4, *t[1:], 1e-3)), x, w, b)
        self.check(lambda x, w: convoy.torch.rms_norm(x, w, eps=1e-3),
                   lambda x, w: F.rms_norm(x.movedim(1, -1), (8,), w, 1e-3).movedim(-1, 1), x, w)
        self.check(lambda x: convoy.torch.rms_norm(x, rule="norm_floor", activation="gelu"),
                   lambda x: F.gelu(F.normalize(x, dim=1) * 8**0.5), x)

    def test_gradients_have_gradients(self):
        x, w = torch.randn(1, 8, 4, 5), torch.randn(8, 8, 3, 3)
        for ours, plain in (
                (lambda t, w: convoy.torch.conv2d(t, w, padding=1, residual=t, activation="silu"),
                 lambda t, w: F.silu(F.conv2d(t, w, padding=1)) + t),
                (lambda t, w: convoy.torch.group_norm(t * w[0, 0, 0, 0], 2, activation="silu"),
                 lambda t, w: F.silu(F.group_norm(t * w[0, 0, 0, 0], 2)))):
            found = []
            for function in (ours, plain):
                t, v = x.clone().requires_grad_(), w.clone().requires_grad_()
                first, = torch.autograd.grad(function(t, v).square().sum(), t, create_graph=True)
                found.append([first, *torch.autograd.grad(first.square().sum(), (t, v))])
            torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)

    def test_a_checkpoint_lets_nobody_ask_twice(self):
        model = convoy.torch.convert(torch.nn.Sequential(
            torch.nn.GroupNorm(2, 8), torch.nn.SiLU(), torch.nn.Conv2d(8, 8, 1)))
        run = torch.utils.checkpoint.checkpoint
        x = torch.randn(1, 8, 4, 5, requires_grad=True)
        run(model, x, use_reentrant=False).sum().backward()
        y = run(convoy.torch.rms_norm, x, use_reentrant=False)
        y.sum().backward()
        self.assertIsNotNone(x.grad)

    def test_a_converted_model_trains_as_the_original_does(self):
        torch.manual_seed(0)
        original = torch.nn.Sequential(
            torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.SiLU(),
            torch.nn.Conv2d(8, 1, 1))
        x = torch.randn(4, 8, 6, 6)
        target = x.mean(1, keepdim=True)

        def losses(model):
            optimizer = torch.optim.SGD(model.parameters(), 0.05)
            for _ in range(20):
                loss = (model(x) - target).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss.item()

        converted = list(losses(convoy.torch.convert(copy.deepcopy(original))))
        torch.testing.assert_close(converted, list(losses(original)), rtol=1e-3, atol=1e-5)
        self.assertLess(converted[-1], 0.75 * converted[0])


class Norms(unittest.TestCase):
    def test_group_norm_is_pytorchs(self):
        for device in DEVICES:
            for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
                for shape in ((2, 24, 9, 5), (1, 64, 3, 4, 5), (2, 10, 6, 6)):
                    x = torch.randn(shape, device=device).to(dtype)
                    w, b = torch.randn(2, shape[1], device=device).to(dtype)
                    y = convoy.torch.group_norm(x, 2, w, b, 1e-6, activation="silu")
                    expected = F.silu(F.group_norm(x.float(), 2, w.float(), b.float(), 1e-6))
                    torch.testing.assert_close(y.float(), expected, rtol=bound, atol=bound)
                    memory = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
                    self.assertTrue(y.is_contiguous(memory_format=memory))
                    torch.testing.assert_close(
                        convoy.torch.group_norm(x, 2).float(), F.group_norm(x.float(), 2),
                        rtol=bound, atol=bound,
                    )

    def test_rms_norm_is_pytorchs(self):
        for device in DEVICES:
            x = torch.randn(2, 96, 4, 5, device=device)
            x[0, :, 0, 0] = 0
            w = torch.randn(96, device=device)
            y = convoy.torch.rms_norm(x, w, eps=1e-12, rule="norm_floor", activation="silu")
            expected = F.silu(F.normalize(x, dim=1) * 96**0.5 * w[:, None, None])
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
            y = convoy.torch.rms_norm(x, w, eps=1e-3)
            expected = F.rms_norm(x.movedim(1, -1), (96,), w, 1e-3).movedim(-1, 1)
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)

    def test_passes_opcheck(self):
        x, w = torch.randn(2, 8, 4, 4), torch.randn(8)
        tests = ("test_schema", "test_faketensor")
        torch.library.opcheck(
            torch.ops.convoy.group_norm.default, (x, 2, w, None, 1e-5, "silu"), test_utils=tests
        )
        torch.library.opcheck(
            torch.ops.convoy.rms_norm.default, (x, w, None, 1e-5, "added", "none"), test_utils=tests
        )
        frames = torch.randn(1, 8, 3, 4, 4)
        torch.library.opcheck(
            torch.ops.convoy.conv3d_next_cache.default,
            (frames, torch.randn(8, 8, 3, 3, 3), w, None, [1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1],
             1, "none", 1.0, frames[:, :, :2]), test_utils=tests,
        )

    def test_errors(self):
        x = torch.randn(1, 8, 4, 4)
        with self.assertRaisesRegex(convoy.InvalidArgument, "groups = 3 does not divide"):
            convoy.torch.group_norm(x, 3)
        with self.assertRaisesRegex(convoy.InvalidArgument, r"weight is \(4,\)"):
            convoy.torch.group_norm(x, 2, torch.ones(4))
        with self.assertRaisesRegex(convoy.InvalidArgument, "x has 3 axes"):
            convoy.torch.rms_norm(x[0])
        with self.assertRaisesRegex(convoy.InvalidArgument, "rule = 'floor'"):
            convoy.torch.rms_norm(x, rule="floor")


@unittest.skipUnless(torch.cuda.is_available(), "no CUDA device")
class Graphs(unittest.TestCase):
    def test_everything_runs_in_a_cuda_graph(self):
        conv = convoy.torch.Conv2d(64, 64, 3, padding=1, upsample=2, device="cuda",
                                   dtype=torch.bfloat16)
        norm = convoy.torch.GroupNorm(32, 64, activation="silu", device="cuda",
                                          dtype=torch.bfloat16)
        rms = convoy.torch.RMSNorm(64, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(1, 64, 32, 32, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            step = lambda: rms(conv(norm(x)))
            step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = step()
            for seed in range(3):
                torch.manual_seed(seed)
                x.normal_()
                graph.replay()
                torch.testing.assert_close(y, step(), rtol=0, atol=0)


class Convert(unittest.TestCase):
    def test_group_norms_and_silus(self):
        block = torch.nn.Sequential(
            torch.nn.GroupNorm(4, 16), torch.nn.SiLU(), torch.nn.Conv2d(16, 16, 3, padding=1),
            torch.nn.GroupNorm(2, 16), torch.nn.Conv2d(16, 8, 1),
        ).eval()
        names = list(block.state_dict())
        x = torch.randn(2, 16, 8, 8)
        with torch.no_grad():
            for norm in (block[0], block[3]):
                norm.weight.normal_()
                norm.bias.normal_()
            expected = block(x)
            convoy.torch.convert(block)
            torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)
        self.assertEqual(list(block.state_dict()), names)
        self.assertIsInstance(block[1], torch.nn.Identity)

    def test_hooks_see_what_they_did(self):
        def block():
            torch.manual_seed(0)
            return torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(4, 8), torch.nn.SiLU())

        class Own(torch.nn.Sequential):
            def forward(self, x):
                return self[2](self[1](self[0](x)) + 1)

        x, expected, found = torch.randn(2, 3, 8, 8), block(), block()
        with torch.no_grad():
            for model in (expected, found):
                model[1].register_forward_hook(lambda module, inputs, output: output + 1)
            torch.testing.assert_close(convoy.torch.convert(found)(x), expected(x))
            torch.testing.assert_close(convoy.torch.convert(Own(*block()))(x), Own(*block())(x))

    def test_what_it_has_not_is_pytorchs(self):
        original = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(4, 8), torch.nn.SiLU(),
            torch.nn.GroupNorm(4, 8, affine=False), torch.nn.Conv2d(8, 4, 3, padding=1)).eval()
        converted, x = convoy.torch.convert(copy.deepcopy(original)), torch.randn(2, 3, 8, 8)
        with torch.no_grad():
            expected = original(x)
            torch.testing.assert_close(converted[0](x[0]), original[0](x[0]))
            y = copy.deepcopy(converted).double()(x.double())
            torch.testing.assert_close(y, original.double()(x.double()), rtol=0, atol=0)
            self.assertTrue(copy.deepcopy(converted).to("meta")(x.to("meta")).is_meta)
            for _ in range(2):  # Both ways of a call, of a packed weight and of tensors.
                y = convoy.torch.conv2d(x.to("meta"), torch.empty(4, 3, 3, 3, device="meta"),
                                        packed=True)
                self.assertEqual(y.shape, (2, 4, 6, 6))
            loaded = pickle.loads(pickle.dumps(converted))
            torch.testing.assert_close(loaded(x), expected)
            self.assertIsNot(loaded[0].forward.args[0], converted[0])
            torch.testing.assert_close(torch.fx.symbolic_trace(converted)(x), expected)

    def test_a_module_gives_the_same(self):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.SiLU(),
            torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2, bias=False),
            torch.nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"),
        ).eval()
        x = torch.randn(2, 3, 16, 16)
        with torch.no_grad():
            expected = model(x)
            self.assertIs(convoy.torch.convert(model), model)
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
