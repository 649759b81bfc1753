# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: autoencoders of diffusers, small and on the CPU, against diffusers' own
output; models that are written in other ways; what a user may do with an accelerated model."""

import contextlib
import copy
import itertools
import math
import pickle
import unittest
import unittest.mock

import convoy
import numpy
import torch
import torch.nn.functional as F
from convoy import _accelerate, _attention, _axes, _layout, _trial
from convoy.bench import vae_models

try:
    import diffusers

    diffusers.utils.logging.set_verbosity_error()
except ImportError:
    diffusers = None


def error(got, expected):
    return ((got.double() - expected.double()).norm() / expected.double().norm()).item()


@unittest.skipIf(diffusers is None, "no diffusers")
class Autoencoders(unittest.TestCase):
    def check(self, vae, dtype, bound, change=lambda model: None, grow=1):
        model = vae.make(small=True, dtype=dtype)
        change(model)
        torch.manual_seed(3)
        z = torch.randn(vae.small_latent).to(dtype)
        x = (torch.rand(vae.small_sample) * 2 - 1).to(dtype)
        z, x = (t.repeat(1, *(1,) * (t.dim() - 3), grow, grow) for t in (z, x))
        with torch.no_grad():
            expected = vae_models.decoded(model, z, vae.small_keywords)
            latent = vae_models.encoded(model, x)
            convoy.accelerate(model)
            got = vae_models.decoded(model, z, vae.small_keywords)
            self.assertIs(type(got), torch.Tensor)
            self.assertLess(error(got, expected), bound)
            # What a first call has learned must not change the second.
            torch.testing.assert_close(
                vae_models.decoded(model, z, vae.small_keywords), got, rtol=0, atol=0)
            self.assertLess(error(vae_models.encoded(model, x), latent), bound)
        report = convoy.report(model)
        self.assertEqual([str(part) for part in report.left], [])
        self.assertFalse(report.left_calls)
        return report

    def test_every_norm_has_its_activation(self):
        report = self.check(vae_models.BY_NAME["wan21"], torch.float32, 1e-5)
        operations = [part.operation for part in report.taken]
        self.assertIn("rms_norm + silu", operations)
        self.assertTrue(any("cache" in o and "residual" in o for o in operations), operations)
        self.assertTrue(any("upsampling" in o for o in operations), operations)

    def test_bf16_is_as_exact_as_diffusers(self):
        for name in ("flux", "wan21", "ltx", "dc", "tiny"):
            with self.subTest(name):
                vae = vae_models.BY_NAME[name]
                model = vae.make(small=True, dtype=torch.bfloat16)
                torch.manual_seed(3)
                z = torch.randn(vae.small_latent).bfloat16()
                with torch.no_grad():
                    exact = vae_models.decoded(copy.deepcopy(model).float(), z.float(),
                                               vae.small_keywords)
                    plain = error(vae_models.decoded(model, z, vae.small_keywords), exact)
                    convoy.accelerate(model)
                    ours = error(vae_models.decoded(model, z, vae.small_keywords), exact)
                self.assertLess(ours, 1.012 * plain)  # 0.1 dB

    def test_tiling_and_slicing(self):
        def tiled(model):
            model.enable_slicing()
            if hasattr(model, "tile_sample_min_height"):
                model.enable_tiling(tile_sample_min_height=32, tile_sample_min_width=32,
                                    tile_sample_stride_height=16, tile_sample_stride_width=16)
            else:
                model.enable_tiling()
                model.tile_sample_min_size, model.tile_latent_min_size = 16, 8
        for name in ("flux", "wan21"):
            with self.subTest(name):
                self.check(vae_models.BY_NAME[name], torch.float32, 1e-5, tiled, grow=2)


def _add_classes():
    for vae in vae_models.VAES:
        def test(self, vae=vae):
            self.check(vae, torch.float32, 1e-5)

        setattr(Autoencoders, f"test_{vae.name}", test)


_add_classes()


class Layouts(unittest.TestCase):
    """Copies with channels innermost, in units of 16 bytes too, as on a GPU."""

    def both(self, check):
        for devices in ({"cuda"}, {"cuda", "cpu"}):
            for channels in (8, 16, 5, 12):
                for dtype in (torch.bfloat16, torch.float32):
                    with (self.subTest(devices=devices, channels=channels, dtype=dtype),
                          unittest.mock.patch.object(_layout, "_wide_devices", devices)):
                        x = torch.randn(2, channels, 3, 5, 6).to(dtype)
                        check(x.contiguous(memory_format=torch.channels_last_3d))
                        check(x)
                        check(x.contiguous(memory_format=torch.channels_last_3d)[:, :, 1:, :, 2:])

    def same(self, got, expected):
        self.assertTrue(_layout.is_inner(got))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)

    def test_pad(self):
        def check(x):
            for modes in (("zero",) * 3, ("replicate",) * 3, ("replicate", "zero", "zero"),
                          ("zero", "reflect", "reflect")):
                begin, end = (1, 2, 0), (0, 1, 3)
                expected = x.float()
                for axis, mode in enumerate(modes):
                    sides = [0] * 6
                    sides[4 - 2 * axis], sides[5 - 2 * axis] = begin[axis], end[axis]
                    expected = F.pad(expected, sides, mode="constant" if mode == "zero" else mode)
                self.same(_layout.pad(x, begin, end, modes), expected.to(x.dtype))

        self.both(check)

    def test_upsample_cat_stack_and_reshape(self):
        def check(x):
            self.same(_layout.upsample(x, (1, 2, 3)), F.interpolate(
                x.float(), scale_factor=(1, 2, 3)).to(x.dtype))
            got = _layout.cat([x[:, :, :1], x, x], 2)
            torch.testing.assert_close(got, torch.cat([x[:, :, :1], x, x], 2), rtol=0, atol=0)
            self.assertEqual(_layout.is_inner(got), x.stride(1) == 1)
            if x.stride(1) == 1:
                self.same(_layout.cat([x, x], 0), torch.cat([x, x], 0))
            got = _layout.stack([x, x + 1], 3)
            torch.testing.assert_close(got, torch.stack([x, x + 1], 3), rtol=0, atol=0)
            self.assertEqual(_layout.is_inner(got), x.stride(1) == 1)
            y = x.permute(0, 2, 1, 3, 4)
            self.same(_layout.reshape(y, (-1, *y.shape[2:])), y.reshape(-1, *y.shape[2:]))
            n, c, d, h, w = x.shape
            z = x[..., :w // 2 * 2].reshape(n, c, d, h, -1, 2).permute(0, 1, 5, 2, 3, 4)
            self.same(_layout.reshape(z, (n, 2 * c, d, h, -1)), z.reshape(n, 2 * c, d, h, -1))

        self.both(check)

    def test_sizes_that_memory_can_be_seen_in(self):
        """As PyTorch answers, of memory in any order, with gaps and repetitions."""
        shapes = ((2, 3, 4), (4, 1, 6), (1, 1), (24,), (), (3, 0, 2), (2, 2, 3, 2))
        sizes = ((24,), (6, 4), (2, 12), (-1,), (-1, 6), (4, -1, 2), (2, 3, 4), (1, 2, 3, 1, 4),
                 (3, 8), (5, -1), (-1, -1), (0, -1), (-2, -12), (1,), (), (0, 5), (12, 2, 1))
        views = 0
        for shape, order in ((s, o) for s in shapes for o in itertools.permutations(range(len(s)))):
            whole = torch.empty(shape).permute(order)
            gaps = torch.empty([2 * n for n in shape])[(slice(None, None, 2),) * len(shape)]
            wider = torch.empty([n + 1 for n in shape])[tuple(slice(n) for n in shape)]
            repeated = torch.empty([1 if i == 0 else n for i, n in enumerate(shape)]).expand(shape)
            for tensor, wanted in itertools.product((whole, gaps, wider, repeated), sizes):
                with self.subTest(shape=tensor.shape, strides=tensor.stride(), sizes=wanted):
                    try:
                        legal = tuple(torch.empty(tensor.shape).reshape(wanted).shape)
                    except RuntimeError:
                        legal = None
                    self.assertEqual(_layout.resolved(tensor.shape, wanted), legal)
                    if legal is None:
                        with self.assertRaises(RuntimeError):
                            _layout.reshape(tensor, wanted)
                        continue
                    try:
                        expected = tensor.view(wanted) is not None
                    except RuntimeError:
                        expected = False
                    got = _layout.is_view(tensor.shape, tensor.stride(), legal)
                    self.assertEqual(got, expected)
                    views += got
        self.assertGreater(views, 100)

    def test_attention_by_rows(self):
        q, k, v = torch.randn(3, 2, 3, 70, 20)
        expected = F.scaled_dot_product_attention(q, k, v)
        got = _attention.attend_by_rows(q, k, v, rows=32)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Block(torch.nn.Module):
    """As older code writes it."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(4, 16)
        self.conv1 = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        h = self.norm(x)
        h = h * torch.sigmoid(h)
        h = self.conv1(h)
        return x + self.conv2(F.relu(h))


class Settings(torch.nn.Module):
    """A convolution whose arguments the test sets, with something in front of it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8, 3, 3))
        self.part = torch.nn.Conv2d(8, 8, 1)  # So that there is a convolution.
        self.front, self.arguments = lambda x: x, {}

    def forward(self, x):
        return F.conv2d(self.front(x), self.weight, **self.arguments)


class Models(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.x = torch.randn(2, 16, 8, 10)

    def same(self, model, *inputs, bound=1e-5):
        model.eval()
        with torch.no_grad():
            expected = model(*copy.deepcopy(inputs))
            convoy.accelerate(model)
            for _ in range(2):
                got = model(*inputs)
                torch.testing.assert_close(got, expected, rtol=bound, atol=bound)
        return convoy.report(model)

    def test_patterns_without_modules(self):
        report = self.same(Block(), self.x)
        self.assertEqual(report.fused, {"norm and activation": 2, "residual": 2,
                                        "convolution and activation": 2})
        self.assertEqual(sorted(part.operation for part in report.taken), [
            "conv2d + padding + relu", "conv2d + padding + residual", "group_norm + silu"])
        self.assertEqual({part.name for part in report.taken}, {"norm", "conv1", "conv2"})
        self.assertEqual(report.conversions, 2)  # The input, once for each call.
        self.assertIn("3 convolutions and norms", str(report))

    def test_arguments_that_change_between_calls(self):
        """The input's shape and the weight's are the same: only the arguments tell them apart."""
        ways = [(lambda x: x, arguments) for arguments in (
            {}, {"padding": 1}, {"padding": (2, 1)}, {"padding": [1, 2]}, {"padding": "same"},
            {"stride": (2, 1)}, {"stride": (1, 2)}, {"dilation": (2, 1)}, {"dilation": (1, 2)})]
        ways += [(lambda x, sides=sides, mode=mode: F.pad(x, sides, mode), {})
                 for sides in ((1, 1, 1, 1), (2, 0, 1, 1), (0, 2, 1, 1), (1, 1, 0, 2))
                 for mode in ("constant", "replicate", "reflect")]
        ways.append((lambda x: F.interpolate(x, scale_factor=2.0), {"padding": 1}))
        torch.manual_seed(0)
        x, model = torch.randn(2, 8, 10, 12), Settings()
        plain, ours = copy.deepcopy(model), convoy.accelerate(model)
        with torch.no_grad():
            for front, arguments in ways + ways[::-1]:
                for run in (plain, ours):
                    run.front, run.arguments = front, arguments
                expected = plain(x)
                self.assertEqual(ours(x).shape, expected.shape)
                self.assertLess(error(ours(x), expected), 1e-5)
            ours.arguments = {}
            with self.assertRaises(RuntimeError):
                ours(x[:, :4])
            ours.arguments = {"groups": 2}
            with self.assertRaises(RuntimeError):
                ours(x)
            # Other numbers, filters and types in the same Parameter.
            for dtype, filters in ((torch.float32, 8), (torch.bfloat16, 8), (torch.float16, 8),
                                   (torch.float64, 8), (torch.float32, 4), (torch.float32, 8)):
                weight = torch.randn(filters, 8, 3, 3).to(dtype)
                for run in (plain, ours):
                    run.weight.data, run.front, run.arguments = weight, lambda x: x, {"padding": 1}
                expected = plain(x.to(dtype))
                self.assertEqual(ours(x.to(dtype)).dtype, dtype)
                self.assertLess(error(ours(x.to(dtype)), expected), 1e-2)
            ours.weight.data = torch.randn(8, 8, 3, 3).double()
            with self.assertRaises(RuntimeError):
                ours(x)  # As PyTorch: the types differ.
        report = convoy.report(ours)
        self.assertGreater(len(report.taken), len(ways) - 4)

    def test_gradients_of_what_is_named(self):
        class Inner(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(16, 4, 3)

            def forward(self, x):
                with torch.enable_grad():
                    y = F.conv2d(x, weight=self.conv.weight, bias=self.conv.bias)
                    return torch.autograd.grad(y.square().mean(), self.conv.weight)[0]

        self.same(Inner(), self.x)

    def test_sums_before_and_behind_an_activation(self):
        class Sums(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(16, 16, 3, padding=1)

            def forward(self, x):
                return F.relu(self.conv(x)) + x, F.relu(self.conv(x) + x)

        self.assertEqual(len(self.same(Sums(), self.x).taken), 2)

    def test_writes_in_place_to_what_is_seen_elsewhere(self):
        """Neither an activation nor a sum may go into a convolution whose memory others see."""
        class Written(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.GroupNorm(2, 4)

            def forward(self, x):
                h = self.norm(x)
                part = h.permute(0, 2, 3, 1)  # It waits, as the norm does.
                F.silu(h, inplace=True)
                g = self.conv(x)
                other = g.unflatten(1, (2, 2))
                g += h
                return part * 2, other + 1, h, g

        torch.manual_seed(0)
        x, model = torch.randn(1, 4, 6, 6), Written()
        with torch.no_grad():
            expected = model(x)
            convoy.accelerate(model)
            for _ in range(2):
                for got, want in zip(model(x), expected):
                    self.assertLess(error(got, want), 1e-5)

    def test_a_plain_output_that_is_wanted_too(self):
        class Both(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(16, 16, 3, padding=1)

            def forward(self, x):
                y = self.conv(x)
                return y + x, F.silu(y), y

        report = self.same(Both(), self.x)
        # The first call found out; the second runs it once, and fuses nothing.
        self.assertEqual(sum(p.calls for p in report.taken if p.operation == "conv2d + padding"), 2)
        self.assertEqual(report.fused["residual"], 1)

    def test_weights_that_are_made_in_each_call(self):
        class Standardised(torch.nn.Module):
            """Weight standardisation: the weights are no parameters, their shapes differ."""

            def __init__(self):
                super().__init__()
                self.convs = torch.nn.ModuleList(
                    torch.nn.Conv2d(16, k, r, padding=r // 2) for k, r in ((16, 1), (8, 1), (8, 3)))

            def forward(self, x):
                made = []
                for conv in self.convs:
                    w = conv.weight
                    w = (w - w.mean((1, 2, 3), True)) * torch.rsqrt(w.var((1, 2, 3), keepdim=True))
                    made.append(F.conv2d(x, w, None, padding=conv.padding))
                return torch.cat(made, 1)

        report = self.same(Standardised(), self.x)
        self.assertEqual([p.calls for p in report.taken], [2, 2, 2])

    def test_writing_in_place(self):
        class Writes(torch.nn.Module):
            def __init__(self, step):
                super().__init__()
                self.conv, self.step = torch.nn.Conv2d(16, 16, 1), step

            def forward(self, x):
                return self.step(self.conv(x), x)

        def views(y, x):
            half, kept = y[:, :8], y.clone()
            waiting = F.group_norm(y, 4)
            half.mul_(2)
            y += 1
            return y, half, kept, waiting

        def slices(y, x):
            y[:, :, 1:3] = 0
            y[:, 3] += 2
            return y

        def relu(y, x):
            z = y
            F.relu(y, inplace=True)
            return z + 1

        def sums(y, x):
            z = y.clone()
            y.add_(z).div_(3)
            z -= y
            return torch.cat([y, z], 1).chunk(2, 1)

        for step in (views, slices, relu, sums):
            with self.subTest(step.__name__):
                self.same(Writes(step), self.x)
        kept = self.x.clone()
        self.same(Writes(lambda y, x: x.add_(y)), self.x.clone())
        torch.testing.assert_close(self.x, kept, rtol=0, atol=0)

    def test_tensors_made_of_tensors(self):
        class Makes(torch.nn.Module):
            def __init__(self, step):
                super().__init__()
                self.conv, self.step = torch.nn.Conv2d(16, 16, 1), step

            def forward(self, x):
                return self.step(self.conv(x))

        own = torch.as_tensor, torch.tensor, torch.full
        for step in (lambda y: torch.as_tensor(y) + 1, lambda y: torch.asarray(y, dtype=y.dtype),
                     lambda y: torch.tensor([y.mean(), y.max()]) * 2,
                     lambda y: torch.full((2, 3), y.mean()), lambda y: y * torch.scalar_tensor(
                         y.sum())):
            self.same(Makes(step), self.x)
            self.assertEqual((torch.as_tensor, torch.tensor, torch.full), own)
        model = convoy.accelerate(Makes(lambda y: y.view(3, 5)).eval())
        with torch.no_grad(), self.assertRaises(RuntimeError):
            model(self.x)
        self.assertEqual((torch.as_tensor, torch.tensor, torch.full), own)

    def test_norms_written_out(self):
        class Norms(torch.nn.Module):
            def __init__(self, step):
                super().__init__()
                self.conv, self.step = torch.nn.Conv2d(16, 16, 1), step
                self.weight = torch.nn.Parameter(torch.randn(16))

            def forward(self, x):
                return self.step(self.conv(x), self.weight)

        def last_axis(y, w):
            y = y.movedim(1, -1)
            y = y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6)
            return F.silu((y * w).movedim(-1, 1))

        def root(y, w):
            return y / torch.sqrt(torch.mean(y**2, dim=1, keepdim=True) + 1e-8)

        def normalised(y, w):
            return F.normalize(y, dim=1) * 3 * w[:, None, None] + 0.0

        def functional(y, w):
            return F.rms_norm(y.permute(0, 2, 3, 1), (16,), w, 1e-6).permute(0, 3, 1, 2)

        for step in (last_axis, root, normalised, functional):
            with self.subTest(step.__name__):
                report = self.same(Norms(step), self.x)
                self.assertEqual([p.operation[:8] for p in report.taken], ["conv2d", "rms_norm"])
        # What only looks like one is left as it is.
        report = self.same(Norms(lambda y, w: y / torch.sqrt(
            torch.mean(y**2, dim=2, keepdim=True) + 1e-8)), self.x)
        self.assertEqual([p.operation for p in report.taken], ["conv2d"])

    def test_batch_norms_are_folded(self):
        class Residual(torch.nn.Module):
            """As classifiers write it."""

            def __init__(self, axes=2, bias=False, affine=True, groups=1):
                super().__init__()
                conv = (torch.nn.Conv2d, torch.nn.Conv3d)[axes - 2]
                norm = (torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)[axes - 2]
                self.conv1 = conv(16, 32, 3, padding=1, bias=bias, groups=groups)
                self.norm1, self.relu = norm(32, affine=affine), torch.nn.ReLU6(inplace=True)
                self.conv2, self.norm2 = conv(32, 16, 1, bias=bias), norm(16, affine=affine)

            def forward(self, x):
                y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
                y += x
                return F.relu(y, inplace=True)

        def vary(model):
            for norm in (m for m in model.modules() if hasattr(m, "running_mean")):
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.2, 3)
                if norm.affine:
                    torch.nn.init.normal_(norm.weight)
                    torch.nn.init.normal_(norm.bias)
            return model

        for axes, bias, affine, groups in itertools.product((2, 3), (False, True), (False, True),
                                                            (1, 16)):
            with self.subTest(axes=axes, bias=bias, affine=affine, groups=groups):
                x = self.x if axes == 2 else self.x.unsqueeze(2).repeat(1, 1, 3, 1, 1)
                report = self.same(vary(Residual(axes, bias, affine, groups)), x)
                self.assertEqual(sorted(p.operation.split(" + ", 1)[1] for p in report.taken),
                                 ["padding + clamp", "residual + relu"])
                self.assertEqual({p.name for p in report.taken}, {"conv1", "conv2"})
                self.assertEqual(report.fused["convolution and batch norm"], 4)
        # Each of the six sources is followed.
        model = vary(Residual(bias=True)).eval()
        plain = copy.deepcopy(model)
        convoy.accelerate(model)
        with torch.no_grad():
            for name in ("conv1.weight", "conv1.bias", "norm1.weight", "norm1.bias",
                         "norm1.running_mean", "norm1.running_var"):
                model(self.x)
                for one in (model, plain):
                    one.state_dict()[name].mul_(1.5).add_(0.1)
                torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            other = vary(Residual(bias=True)).state_dict()
            for one in (model, plain):
                one.load_state_dict(other)
            torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            # Other memory of the same version, and other tensors over the same memory.
            numbers = numpy.ones(32, numpy.float32)
            for i in range(1, 4):
                for name in ("weight", "bias", "running_mean", "running_var"):
                    values = torch.rand(32) + i
                    for one in (model, plain):
                        getattr(one.norm1, name).data = values.clone()
                    torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
                numbers[:] = i * 2
                for one in (model, plain):
                    one.norm1.running_var = torch.from_numpy(numbers)
                torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            numbers = numbers.copy()
            for i in range(1, 4):
                numbers[:] = i * 2
                for one in (model, plain):
                    one.norm1.bias = torch.nn.Parameter(torch.from_numpy(numbers), False)
                torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            # Another norm after the same convolution is another weight.
            model.norm1, plain.norm1 = [copy.deepcopy(vary(m)) for m in (plain.norm1,) * 2]
            model.norm1.load_state_dict(plain.norm1.state_dict())
            torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
        self.assertEqual(list(model.state_dict()), list(plain.state_dict()))
        # Rounded where the model rounds, where that is asked for.
        convoy.accelerate(model, quality="exact")
        with torch.no_grad():
            model(self.x)
        self.assertNotIn("convolution and batch norm", convoy.report(model).fused)

    def test_convolutions_times_a_number(self):
        class Scaled(torch.nn.Module):
            def __init__(self, step, bias=True, axes=2, **arguments):
                super().__init__()
                kind = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[axes - 1]
                self.conv = kind(16, 16, 3, padding=1, bias=bias, **arguments)
                norm = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)[axes - 1]
                self.norm, self.step, self.factor = norm(16), step, 0.2
                torch.nn.init.uniform_(self.norm.running_mean)
                torch.nn.init.uniform_(self.norm.running_var, 0.5, 2)

            def forward(self, x):
                return self.step(self, x)

        sums = lambda m, x: x + m.factor * m.conv(x)
        what = "conv{}d + padding + scale + residual"
        inputs = {1: self.x[:, :, 0], 2: self.x, 3: self.x.unsqueeze(2).repeat(1, 1, 3, 1, 1)}
        for axes, bias, mode in itertools.product((1, 2, 3), (True, False), ("zeros", "reflect")):
            report = self.same(Scaled(sums, bias, axes, padding_mode=mode), inputs[axes])
            self.assertEqual([p.operation for p in report.taken], [what.format(axes)])
            self.assertEqual(report.fused, {"scale": 2, "residual": 2})
        for step, operations in {
            # Behind what a convolution does after its sum, and in front of it.
            lambda m, x: 0.5 * F.relu(m.conv(x)): ["relu"],
            lambda m, x: 0.5 * (m.conv(x) + x): ["residual"],
            lambda m, x: F.leaky_relu(m.conv(x) * -0.5, 0.1): ["scale + leaky_relu"],
            lambda m, x: 2 * (0.5 * m.conv(x)): ["scale"],
            lambda m, x: m.norm(0.5 * m.conv(x)): ["scale"],
            lambda m, x: 0.5 * m.norm(m.conv(x)): ["scale"],
            lambda m, x: math.inf * m.conv(x): [""],
            # Padded by a copy: the library has one mode in two dimensions.
            lambda m, x: 0.5 * F.conv2d(F.pad(x, (1, 1, 0, 0), "replicate"), m.conv.weight,
                                        padding=(1, 0)): ["scale"],
            # A plain output that is wanted too.
            lambda m, x: (lambda y: 0.5 * y + y.exp())(m.conv(x)): ["", "scale"],
            lambda m, x: F.pixel_shuffle(0.5 * m.conv(x), 2): ["depth to space + scale"],
            lambda m, x: 0.5 * F.pixel_shuffle(m.conv(x), 2): ["depth to space"],
        }.items():
            report = self.same(Scaled(step), self.x)
            prefix = "conv2d + padding"
            self.assertEqual(sorted(p.operation for p in report.taken),
                             [" + ".join(filter(None, (prefix, o))) for o in operations])
            # Once it was seen that a plain output is wanted, there is no other.
            self.assertEqual(sum(p.calls for p in report.taken), 1 + len(operations))
        frames = Scaled(lambda m, x: torch.cat(
            [factor * F.conv3d(part, m.conv.weight) for factor, part in (
                (0.5, x[:, :, :4]), (0.7, x[:, :, 2:]))], 2), axes=3)
        self.same(frames, torch.randn(1, 16, 6, 5, 5))
        # The bias, of whatever memory, and the number are followed.
        model = Scaled(sums).eval()
        plain = copy.deepcopy(model)
        convoy.accelerate(model)
        numbers = numpy.ones(16, numpy.float32)

        with torch.no_grad():
            for change in (
                lambda m: m.conv.bias.add_(1), lambda m: m.conv.weight.mul_(2),
                lambda m: setattr(m.conv, "bias", torch.nn.Parameter(torch.ones(16))),
                lambda m: setattr(m.conv.bias, "data", torch.full((16,), 3.0)),
                lambda m: setattr(m, "factor", 0.7), lambda m: setattr(m.conv, "bias", None),
            ):
                for one in (model, plain):
                    change(one)
                torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            for _ in range(4):  # Other tensors of the same address and version.
                numbers *= 2
                model.conv.bias = plain.conv.bias = None  # The next may have its id.
                model.conv.bias = torch.nn.Parameter(torch.from_numpy(numbers), False)
                plain.conv.bias = model.conv.bias
                torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
        # Rounded where the model rounds, and by PyTorch.
        convoy.accelerate(model, quality="exact")
        with torch.no_grad():
            model(self.x)
        self.assertEqual(convoy.report(model).fused, {})
        for bias in (True, False):
            with unittest.mock.patch.object(_accelerate._calls, "ConvCall",
                                            side_effect=convoy.Unsupported("not today")):
                _accelerate._choices.clear()
                report = self.same(Scaled(sums, bias), self.x)
            self.assertEqual([p.operation for p in report.left], [what.format(2)])
            _accelerate._choices.clear()

    def test_arithmetic_of_pytorch(self):
        """What no kernel of ours takes, and keeps what it gets: gradients, transforms, order."""
        forward_ad = torch.autograd.forward_ad

        class Sums(torch.nn.Module):
            def __init__(self, step):
                super().__init__()
                self.conv, self.step = torch.nn.Conv2d(16, 16, 1), step

            def forward(self, x):
                return self.step(self.conv(x).exp())

        def gradients(x):
            factor = torch.ones(1, requires_grad=True)
            with torch.enable_grad():
                y = x * factor
                self.assertIs(type(y), torch.Tensor)
                y.sum().backward()
            return factor.grad

        def tangents(x):
            with forward_ad.dual_level():
                y = x * forward_ad.make_dual(torch.ones(1), torch.ones(1))
                self.assertIs(type(y), torch.Tensor)
                return forward_ad.unpack_dual(y).tangent

        def complex_numbers(x):
            y = x * (1 + 2j)
            self.assertIs(type(y), torch.Tensor)
            return y

        for step in (
            gradients, tangents, complex_numbers,
            lambda x: torch.func.vmap(lambda row: x - row * 2)(torch.arange(3.0)),
            lambda x: torch.cat([x, x * 3, 1 / x], 1) ** 2,
            lambda x: torch.cat([x, x.clone()], 1).mul_(2) + 1,
            lambda x: torch.cat([x, x[:, :0], x - x], 1),
            lambda x: torch.cat([x * 1.5], 1),
            lambda x: torch.cat([x * 1.5, x], 3),
            lambda x: torch.cat([x, torch.ones_like(self.x)], 1),
            lambda x: (lambda y: (y.contiguous().add_(1), y)[1])(x.permute(0, 2, 3, 1) - 1),
            lambda x: torch.sub(x, x + 1, alpha=3) + torch.add(x, 2, alpha=2),
            lambda x: x * numpy.float32(2) - x * torch.ones(3, 1, 1, 1, 1),
            lambda x: x * torch.ones(1, dtype=torch.float64),
        ):
            self.same(Sums(step), self.x)
        model = convoy.accelerate(Sums(lambda x: torch.cat([x, x[:, :, :1]], 1)))
        with torch.no_grad(), self.assertRaisesRegex(RuntimeError, "Sizes of tensors must match"):
            model(self.x)

    def test_instance_norms(self):
        class Instance(torch.nn.Module):
            def __init__(self, affine=True, tracks=False):
                super().__init__()
                self.conv = torch.nn.Conv2d(16, 16, 1)
                self.norm = torch.nn.InstanceNorm2d(16, affine=affine, track_running_stats=tracks)

            def forward(self, x):
                return F.leaky_relu(self.norm(self.conv(x)), 0.1)

        for affine in (False, True):
            report = self.same(Instance(affine), self.x)
            self.assertEqual([p.operation for p in report.taken],
                             ["conv2d", "group_norm + leaky_relu"])
        model = Instance(tracks=True)
        torch.nn.init.normal_(model.norm.running_mean)
        report = self.same(model, self.x)
        self.assertEqual([p.operation for p in report.taken], ["conv2d + leaky_relu"])
        # Statistics that are kept change in training mode.
        model.norm.train()
        before = model.norm.running_mean.clone()
        with torch.no_grad():
            model(self.x)
        self.assertFalse(torch.equal(model.norm.running_mean, before))

    def test_batch_norms_that_cannot_be_folded(self):
        class Both(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = torch.nn.Conv2d(16, 16, 1), torch.nn.BatchNorm2d(16)

            def forward(self, x):
                y = self.conv(x)
                return self.norm(y), self.norm(self.norm(x)), y

        report = self.same(Both(), self.x)  # The first call finds out.
        self.assertEqual(report.fused, {"convolution and batch norm": 1})
        self.assertEqual(sorted(p.calls for p in report.taken), [1, 2])
        # Pixels in place of filters have other channels than the weight.
        report = self.same(torch.nn.Sequential(
            torch.nn.Conv2d(16, 16, 1), torch.nn.PixelShuffle(2), torch.nn.BatchNorm2d(4)), self.x)
        self.assertEqual(report.fused, {"depth to space": 2})
        # In fp16 the folded weight would be infinite; the norm's output is not.
        model = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 1, bias=False),
                                    torch.nn.BatchNorm2d(16, eps=1e-8)).half().eval()
        with torch.no_grad():
            model[0].weight.fill_(1e-3)
            model[1].running_var.zero_()
            model[1].weight.fill_(6e4)
            x = torch.full((1, 16, 2, 2), 1e-3, dtype=torch.float16)
            expected = model(x)
            convoy.accelerate(model)
            for _ in range(2):  # The second finds what the first has folded.
                torch.testing.assert_close(model(x), expected, rtol=1e-2, atol=0)
        self.assertTrue(expected.isfinite().all())
        self.assertEqual(convoy.report(model).fused, {})

    def test_a_norm_of_slices_is_one(self):
        class Slices(torch.nn.Module):
            def __init__(self, order):
                super().__init__()
                self.conv, self.norm = torch.nn.Conv2d(16, 16, 1), torch.nn.GroupNorm(4, 16)
                self.order = order

            def forward(self, x):
                parts = self.conv(x).split(2)
                return F.silu(torch.cat([self.norm(parts[i]) for i in self.order]))

        x = torch.randn(5, 16, 6, 5)
        for order, norms in (((0, 1, 2), 1), ((1, 0, 2), 2), ((0, 1), 1), ((0, 0, 1, 2), 2)):
            report = self.same(Slices(order), x)
            found = [p for p in report.taken if p.operation.startswith("group_norm")]
            self.assertEqual(len(found), norms, order)
            whole = any(p.shape[0] == 5 and p.operation.endswith("silu") for p in found)
            self.assertEqual(whole, order == (0, 1, 2))

    def test_caches_of_any_length(self):
        class Causal(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv3d(16, 16, 3, padding=(0, 1, 1))

            def forward(self, x, cache, frames):
                parts = torch.cat([cache, x], 2)
                y = self.conv(F.pad(parts, (0, 0, 0, 0, frames, 0)))
                return y, parts[:, :, -2:], parts[:, :, 1:3].sum()

        x, cache = torch.randn(2, 1, 16, 5, 6, 7)
        for frames, cached in ((0, 2), (1, 1), (0, 3), (2, 4)):
            with self.subTest(frames=frames, cached=cached):
                self.same(Causal(), x[None, 0], cache[None, 0, :, :cached], frames)

    def test_pieces_of_frames_are_one(self):
        class Pieces(torch.nn.Module):
            """A convolution in pieces that overlap, as CogVideoX and Mochi stay below a limit."""

            def __init__(self, front, stride=1, overlap=2, spoil=lambda y: y):
                super().__init__()
                self.conv = torch.nn.Conv3d(16, 16, 3, stride=(stride, 1, 1), padding=(0, 1, 1))
                self.front, self.overlap, self.spoil = front, overlap, spoil

            def forward(self, x):
                y = self.front(x)
                parts = torch.chunk(y, 3, dim=2)
                parts = [parts[0], *(torch.cat([a[:, :, -self.overlap:], b], 2)
                                     for a, b in itertools.pairwise(parts))]
                outputs = [self.conv(part) for part in parts]
                return torch.cat([self.spoil(y) for y in outputs], 2) + x

        x = torch.randn(1, 16, 9, 5, 6)
        replicated = lambda x: F.pad(x, (0, 0, 0, 0, 2, 0), mode="replicate")
        cached = lambda x: torch.cat([x[:, :, :1], x[:, :, :1], x], 2)
        shifted = lambda x: torch.cat([x[:, :, :2], x], 2) * 1
        for front in (replicated, cached, shifted):
            report = self.same(Pieces(front), x)
            self.assertEqual((len(report.taken), report.fused), (1, {
                "pieces of frames": 2, "residual": 2}))
        # What is no whole: pieces that do not overlap as they must, or are not alike.
        report = self.same(Pieces(lambda x: F.pad(x, (0, 0, 0, 0, 4, 0), mode="replicate"),
                                  overlap=1), x)
        self.assertNotIn("pieces of frames", report.fused)
        report = self.same(Pieces(replicated, spoil=lambda y: y * 2), x)
        self.assertNotIn("pieces of frames", report.fused)

    def test_frames_repeated_at_both_ends_are_a_padding(self):
        class Ends(torch.nn.Module):
            def __init__(self, join):
                super().__init__()
                self.conv, self.join = torch.nn.Conv3d(16, 16, 3, padding=(0, 1, 1)), join

            def forward(self, x):
                y = F.silu(x)
                return self.conv(torch.cat(self.join(y), 2)), y * 2

        x = torch.randn(2, 16, 4, 5, 6)
        once, more = (1, 1, 1, 1, 1), (1, 1, 2, 1, 1)
        for join, found in (
            (lambda y: [y[:, :, :1].repeat(once), y, y[:, :, -1:].repeat(once)], 1),
            (lambda y: [y[:, :, :1].repeat(more), y, y[:, :, -1:].repeat(once)], 1),
            (lambda y: [y[:, :, 1:2].repeat(once), y, y[:, :, -1:].repeat(once)], 0),
            (lambda y: [y[:, :, :1].repeat(once), y + 1, y[:, :, -1:].repeat(once)], 0),
        ):
            (part,) = self.same(Ends(join), x).taken
            self.assertEqual(part.shape[2], 4 if found else 6, part.operation)

    def test_repeated_frames_keep_their_values(self):
        class Writes(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv3d(16, 16, 1)

            def forward(self, x):
                y = self.conv(x)
                kept = y[:, :, :1].repeat(1, 1, 1, 1, 1)
                chunks = F.pad(y, (0, 0, 0, 0, 1, 0), mode="replicate").chunk(2, 2)
                y.mul_(2)
                chunks[0][:, :, :1] += 1
                return torch.cat([kept, y, kept], 2), chunks[0], torch.cat(chunks, 2)

        self.same(Writes(), torch.randn(1, 16, 5, 4, 6))

    def test_quality(self):
        model = Block().eval().bfloat16()
        x = self.x.bfloat16()
        with torch.no_grad():
            exact, fast = (convoy.accelerate(copy.deepcopy(model), quality=quality)
                           for quality in ("exact", "fast"))
            wide = copy.deepcopy(model).float()(x.float())
            self.assertLess(error(fast(x), wide), error(exact(x), wide))
            self.assertLess(error(exact(x), model(x)), error(fast(x), model(x)))
        kinds = [sorted(part.operation for part in convoy.report(m).taken) for m in (exact, fast)]
        self.assertIn("group_norm", kinds[0])
        self.assertIn("group_norm + silu", kinds[1])
        with self.assertRaisesRegex(convoy.InvalidArgument, "legal: fast, exact"):
            convoy.accelerate(model, quality="best")
        with self.assertRaisesRegex(convoy.InvalidArgument, "upsample_folding = 'fast'"):
            convoy.accelerate(model, quality="exact", upsample_folding="fast")

    @unittest.skipIf(diffusers is None, "no diffusers")
    def test_helpers_of_models(self):
        from convoy import _helpers
        from diffusers.models.autoencoders import autoencoder_kl_hunyuanvideo15 as module

        own = module.HunyuanVideo15AttnBlock.prepare_causal_attention_mask
        for batch in (None, 2):
            arguments = (3, 4, torch.float32, torch.device("cpu"), batch)
            torch.testing.assert_close(_helpers.causal_mask(*arguments), own(*arguments),
                                       rtol=0, atol=0)
        model = vae_models.BY_NAME["hunyuan15"].make(small=True)
        blocks = [m for m in model.modules() if hasattr(m, "prepare_causal_attention_mask")]
        convoy.accelerate(model)
        self.assertTrue(blocks)
        for block in blocks:
            self.assertIs(block.prepare_causal_attention_mask, _helpers.causal_mask)
        convoy.restore(model)
        for block in blocks:
            self.assertIs(block.prepare_causal_attention_mask, own)

    def test_odd_upsamplings_and_paddings(self):
        class Odd(torch.nn.Module):
            def __init__(self, step, kind=torch.nn.Conv2d, **keywords):
                super().__init__()
                self.conv, self.step = kind(16, 8, 3, **keywords), step

            def forward(self, x):
                return self.conv(self.step(x))

        frames = torch.randn(1, 16, 3, 5, 6)
        three = torch.nn.Conv3d
        for model, x in (
            (Odd(lambda x: F.interpolate(x, scale_factor=3.0)), self.x),
            (Odd(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")), self.x),
            (Odd(lambda x: F.interpolate(x, size=(16, 20), mode="nearest-exact"), padding=1),
             self.x),
            (Odd(lambda x: F.pad(x, (0, 1, 0, 1)), stride=2), self.x),
            (Odd(lambda x: F.pad(x, (-1, 2, 3, 0))), self.x),
            (Odd(lambda x: F.pad(x, (1, 2, 3, 0)), padding=(1, 2)), self.x),
            (Odd(lambda x: F.pad(x, (1, 2, 3, 0), value=1.0)), self.x),
            (Odd(lambda x: F.pad(x, (1, 2, 3, 0), mode="circular")), self.x),
            (Odd(lambda x: F.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate"), three), frames),
            (Odd(lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="reflect"), three), frames),
            (Odd(lambda x: F.pad(F.pad(x, (0, 0, 0, 0, 2, 0), mode="replicate"), (1, 1, 1, 1)),
                 three), frames),
            (Odd(lambda x: F.interpolate(x, scale_factor=(1, 2, 2)), three, padding=1), frames),
            (Odd(lambda x: x, three, padding=1, padding_mode="replicate"), frames),
            (Odd(lambda x: x, padding="same", dilation=2), self.x),
        ):
            with self.subTest(str(model)):
                self.same(model, x)

    def test_what_is_slower_is_left(self):
        block = Block().eval()
        for ways, kernels in (({"fused": 5.0, "unfused": 7.0, "pytorch": 2.0}, {"pytorch"}),
                              ({"pytorch": 2.0}, {"pytorch"}),  # Convoy's could not run.
                              ({"fused": 2.0, "unfused": 7.0, "pytorch": 5.0}, None),
                              ({"fused": 2.0}, None)):  # PyTorch's could not.
            def spent(given, device, ways=ways):
                return {name: ways[name] for name in given if name in ways}

            _accelerate._choices.clear()
            with (self.subTest(ways), unittest.mock.patch.object(_accelerate, "_measured", {"cpu"}),
                  unittest.mock.patch.object(_accelerate, "_microseconds", spent)):
                report = self.same(copy.deepcopy(block), self.x)
                parts = report.left if kernels else report.taken
                self.assertEqual(sorted(part.name for part in parts), ["conv1", "conv2", "norm"])
                self.assertEqual(len(report.left) + len(report.taken), 3)
                if kernels:
                    self.assertIn("left to PyTorch: conv1 conv2d + padding + relu [2, 16, 8, 10]: "
                                  "PyTorch is quicker here: 2 µs", str(report))
        _accelerate._choices.clear()

    @unittest.skipUnless(torch.cuda.is_available(), "no CUDA device")
    def test_each_shape_is_measured_on_a_gpu(self):
        model, x = Block().eval().cuda().bfloat16(), self.x.cuda().bfloat16()
        with torch.no_grad():
            expected = model(x)
            convoy.accelerate(model)
            torch.testing.assert_close(model(x), expected, rtol=5e-2, atol=5e-2)
            report = convoy.report(model)
            for part in report.taken + report.left:
                self.assertLess(0, part.microseconds["pytorch"])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = model(x)
            x.normal_()
            graph.replay()
            with _trial.accelerated():
                torch.testing.assert_close(y, model(x), rtol=0, atol=0)

    def trial(self, model, x, plain, accelerated, host=1.0):
        """(outputs of two calls of the accelerated model, how often its forward() was called, its
        report), where calls take this many ms, and the host this share of them."""
        calls, forward = [], model.forward

        def counted(*args):
            calls.append(_trial.settled())
            return forward(*args)

        def timed(run, device):
            took = {"plain": plain, "accelerated": accelerated}[_trial.settled()]
            return run(), took * host, took

        model.forward = counted
        convoy.accelerate(model)
        _accelerate._choices.clear()
        with (unittest.mock.patch.object(_accelerate, "_measured", {"cpu"}), torch.no_grad(),
              unittest.mock.patch.object(_accelerate, "_microseconds",
                                         lambda ways, device: dict.fromkeys(ways, 1.0)),
              unittest.mock.patch.object(_trial, "_milliseconds", timed)):
            outputs = model(x), model(x)
        _accelerate._choices.clear()
        report = convoy.report(model)
        del model.forward
        return outputs, calls, report

    def test_calls_that_the_host_binds(self):
        block = Block().eval()
        with torch.no_grad():
            expected = block(self.x)
        tried = [None, "accelerated", "plain"] + ["plain"] * 3 + ["accelerated"] * 3
        for plain, accelerated, host, calls, is_plain in (
            (4.0, 6.0, 1.0, [*tried, "plain"], True),
            (4.0, 3.9, 1.0, [*tried, "plain"], True),  # Within what clocks tell.
            (4.0, 3.0, 1.0, [*tried, None], False),
            (4.0, 6.0, 0.6, [*tried, "plain"], True),  # The GPU does, and not for long.
            (400.0, 600.0, 1.0, [*tried, "plain"], True),
            (400.0, 600.0, 0.6, [None, "accelerated", None], False),  # The GPU does.
        ):
            with self.subTest(plain=plain, accelerated=accelerated, host=host):
                model = copy.deepcopy(block)
                outputs, made, report = self.trial(model, self.x, plain, accelerated, host)
                self.assertEqual(made, calls)
                self.assertTrue(torch.equal(*outputs))
                torch.testing.assert_close(outputs[0], expected, rtol=1e-4, atol=1e-5)
                self.assertEqual(torch.equal(outputs[0], expected), is_plain)
                if is_plain:
                    (reason, count), = report.left_calls.items()
                    self.assertIn(f"{accelerated:.2f} ms accelerated, {plain:.2f} ms", reason)
                    self.assertEqual("the host binds" in reason, host == 1.0)
                    self.assertEqual(count, 1)
                    with _trial.accelerated(), torch.no_grad():
                        self.assertFalse(torch.equal(model(self.x), expected))
                    self.assertIsNone(_trial.settled())
                else:
                    self.assertFalse(report.left_calls)

    def test_calls_of_which_convoy_runs_nothing(self):
        model = convoy.accelerate(copy.deepcopy(Block()).eval())
        with (unittest.mock.patch.object(_accelerate, "_measured", {"cpu"}), torch.no_grad(),
              unittest.mock.patch.object(_accelerate, "_microseconds",
                                         lambda ways, device: {"pytorch": 1.0})):
            for _ in range(3):
                model(self.x)
        _accelerate._choices.clear()
        self.assertEqual(convoy.report(model).left_calls, {"Convoy runs nothing of it": 2})

    def test_calls_that_change_a_model_are_tried_on_a_twin(self):
        class Keeps(Block):
            def __init__(self):
                super().__init__()
                self.count, self.kept = 0, [torch.zeros(2, 16, 8, 10)]
                self.inner = torch.nn.ModuleDict({"same": self.conv1})
                self.register_buffer("mean", torch.zeros(1))

            def forward(self, x):
                self.count += 1
                self.mean += 1
                ways.append(_trial.settled())
                self.kept.append(super().forward(x + self.kept[-1]))
                return self.kept[-1]

        for plain, accelerated, last in ((4.0, 6.0, "plain"), (6.0, 4.0, None)):
            def timed(run, device, plain=plain, accelerated=accelerated):
                took = {"plain": plain, "accelerated": accelerated}[_trial.settled()]
                return run(), took, took

            ways, own = [], Keeps().eval()
            with (self.subTest(last), torch.no_grad(),
                  unittest.mock.patch.object(_accelerate, "_measured", {"cpu"}),
                  unittest.mock.patch.object(_accelerate, "_microseconds",
                                             lambda given, device: dict.fromkeys(given, 1.0)),
                  unittest.mock.patch.object(_trial, "_milliseconds", timed)):
                expected = [own(self.x) for _ in range(3)]
                own.count, own.kept = 0, own.kept[:1]
                own.mean.zero_()
                ways.clear()
                model = convoy.accelerate(own)
                got = [model(self.x) for _ in range(3)]
                self.assertEqual(ways[1:3], ["accelerated", "plain"])
                self.assertEqual((ways[0], ways[-2:]), (None, [last] * 2))
                self.assertEqual((model.count, len(model.kept), model.mean.item()), (3, 4, 3))
                for ours, theirs in zip(got, expected):
                    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
                left = convoy.report(model).left_calls
                self.assertEqual(list(left.values()), [2] if last else [])
            _accelerate._choices.clear()

    def test_who_has_no_twin(self):
        block = Block().eval()
        twin = _trial.twin_of(block)
        self.assertIsNot(twin.conv1, block.conv1)
        self.assertIs(twin.conv1.weight, block.conv1.weight)
        looped = [0]
        looped.append(looped)
        for value in (object(), block.forward, lambda: block, looped,
                      torch.empty(1).expand(_trial._MOST_BYTES)):
            holder = copy.deepcopy(block)
            holder.held = value
            with self.subTest(type(value)), contextlib.suppress(RecursionError):
                self.assertIsNone(_trial.twin_of(holder))
        block.forward = block.forward
        self.assertIsNone(_trial.twin_of(block))

    def test_calls_that_change_a_model_are_made_once(self):
        class Keeps(Block):
            def __init__(self, change):
                super().__init__()
                self.count, self.frames, self.change = 0, [None, [None]], change
                self.register_buffer("mean", torch.zeros(1))

            def forward(self, x):
                self.change(self)
                return super().forward(x)

        def counts(model):
            model.count += 1

        for change in (counts, lambda m: m.mean.add_(1), lambda m: m.frames.append(1),
                       lambda m: m.frames[1].append(1),
                       lambda m: m.frames[1].__setitem__(0, torch.ones(1))):
            _, calls, report = self.trial(Keeps(change).eval(), self.x, 4.0, 6.0)
            self.assertEqual(calls, [None, None])
            self.assertFalse(report.left_calls)

        class Caches(Block):
            def forward(self, x, cache=None):
                if cache is not None:
                    cache.append(x)
                return super().forward(x)

        cache = []
        model = convoy.accelerate(Caches().eval())
        with (unittest.mock.patch.object(_accelerate, "_measured", {"cpu"}), torch.no_grad(),
              unittest.mock.patch.object(_accelerate, "_microseconds",
                                         lambda ways, device: dict.fromkeys(ways, 1.0)),
              unittest.mock.patch.object(_trial, "_milliseconds") as timed):
            model(self.x, cache)
        _accelerate._choices.clear()
        self.assertEqual((len(cache), timed.called), (1, False))

    def test_a_trial_leaves_no_trace(self):
        class Noisy(Block):
            def forward(self, x):
                if x.shape[0] == 1:
                    raise ValueError("one")
                return super().forward(F.dropout(x.mul_(0.5), 0.5, True))

        model, x = Noisy().eval(), self.x.clone()
        torch.manual_seed(5)
        self.trial(model, x, 4.0, 6.0)
        left = torch.rand(1)
        torch.manual_seed(5)
        for _ in range(2):
            F.dropout(self.x, 0.5, True)
        self.assertEqual(torch.rand(1), left)
        torch.testing.assert_close(x, self.x * 0.5)  # By the second call, which is PyTorch's.
        for one in (x[:1], x[:1]):
            with torch.no_grad(), self.assertRaisesRegex(ValueError, "one"):
                model(one)
            self.assertIsNone(_trial.settled())

    def test_an_interrupted_call_leaves_no_trace(self):
        class Stops(Block):
            stop = False

            def forward(self, x):
                if self.stop:
                    raise KeyboardInterrupt
                return super().forward(x)

        own = torch.tensor
        for is_plain in (True, False):
            with self.subTest(is_plain=is_plain):
                plain, model = Stops().eval(), Stops().eval()
                if is_plain:
                    self.trial(model, self.x, 4.0, 6.0)
                else:
                    convoy.accelerate(model)
                after = convoy.accelerate(copy.deepcopy(plain))
                with (unittest.mock.patch.object(_accelerate, "_measured", {"cpu"}),
                      unittest.mock.patch.object(
                          _accelerate, "_microseconds",
                          lambda ways, device: dict.fromkeys(ways, 1.0)),
                      torch.no_grad()):
                    model.stop = True
                    with self.assertRaises(KeyboardInterrupt):
                        model(self.x)
                    model.stop = False
                    with unittest.mock.patch.object(
                            _trial, "_milliseconds",
                            lambda run, device: (run(), 1.0, 900.0)):  # The GPU binds it.
                        for _ in range(2):
                            self.assertFalse(torch.equal(after(self.x), plain(self.x)))
                    self.assertFalse(convoy.report(after).left_calls)
                    model(self.x)
                    self.assertIsNone(_trial.settled())
                    self.assertIs(torch.tensor, own)
                _accelerate._choices.clear()

    def test_repeated_channels(self):
        class Repeats(torch.nn.Module):
            def __init__(self, step):
                super().__init__()
                self.conv, self.step = torch.nn.Conv2d(16, 16, 1), step

            def forward(self, x):
                return self.step(self.conv(x))

        def up(x):  # Two channels for each of the result's, and one of them repeated.
            n, _, h, w = x.shape
            x = x.repeat_interleave(2, dim=1).view(n, 8, 2, 2, h, w)
            return x.permute(0, 1, 4, 2, 5, 3).contiguous().view(n, 8, 2 * h, 2 * w)

        for step in (
            up, lambda x: F.pixel_shuffle(x.repeat_interleave(4, dim=1), 2),
            lambda x: F.pixel_shuffle(x.repeat_interleave(2, 1, output_size=32), 2),
            lambda x: x.repeat_interleave(3, dim=1).view(x.shape[0], 2, 24, *x.shape[2:]) + 1,
            lambda x: x.repeat_interleave(3, dim=-1), lambda x: x.repeat(1, 2, 1, 3),
            lambda x: x.repeat_interleave(torch.arange(16), dim=1),
            lambda x: F.pixel_unshuffle(x, 2),
        ):
            self.same(Repeats(step), self.x)

    def test_filters_that_become_pixels(self):
        class Up(torch.nn.Module):
            def __init__(self, axes, filters, step):
                super().__init__()
                kind = torch.nn.Conv2d if axes == 2 else torch.nn.Conv3d
                self.conv, self.step = kind(16, filters, 3, padding=1), step

            def forward(self, x):
                return self.step(self.conv(x), x)

        def dc_ae(y, x):
            return F.pixel_shuffle(y, 2) + F.pixel_shuffle(x.repeat_interleave(2, dim=1), 2)

        def ltx(y, x):
            n, _, d, h, w = y.shape
            y = y.reshape(n, -1, 2, 2, 2, d, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
            return y.flatten(6, 7).flatten(4, 5).flatten(2, 3)[:, :, 1:]

        def inner(y, x):
            n, k, d, h, w = y.shape
            y = y.view(n, 1, 2, 2, k // 4, d, h, w).permute(0, 4, 5, 1, 6, 2, 7, 3)
            return y.reshape(n, k // 4, d, 2 * h, 2 * w) * 2

        def wan(y, x):
            n, k, d, h, w = y.shape
            y = y.reshape(n, 2, k // 2, d, h, w)
            return torch.stack((y[:, 0], y[:, 1, :, :, :, :]), 3).reshape(n, k // 2, 2 * d, h, w)

        volume = torch.randn(2, 16, 3, 4, 5)
        for axes, filters, step, fused in (
            (2, 32, dc_ae, {"depth to space": 2, "residual": 2}),
            (2, 32, lambda y, x: F.silu(F.pixel_shuffle(y, 2)),
             {"depth to space": 2, "convolution and activation": 2}),
            (3, 64, ltx, {"depth to space": 2}), (3, 32, inner, {"depth to space": 2}),
            (3, 32, wan, {"depth to space": 2}),
        ):
            report = self.same(Up(axes, filters, step), self.x if axes == 2 else volume)
            self.assertEqual(report.fused, fused)
            self.assertTrue(all("depth to space" in part.operation for part in report.taken))

    def test_filters_in_other_orders_stay_filters(self):
        class Split(torch.nn.Module):
            def __init__(self, step):
                super().__init__()
                self.conv, self.step = torch.nn.Conv2d(16, 32, 3, padding=1), step

            def forward(self, x):
                return self.step(self.conv(x))

        def both(y):
            return F.pixel_shuffle(y, 2), y

        def written(y):
            view = y.view(y.shape[0], 2, 16, *y.shape[2:])
            view.mul_(2)
            return view.permute(0, 2, 1, 3, 4), y

        for step in (
            lambda y: y.reshape(y.shape[0], 4, 8, -1).transpose(1, 2),
            lambda y: y.view(2, 8, 2, 2, 8, 10).permute(0, 1, 4, 3, 5, 2).reshape(2, 8, 16, 20),
            lambda y: y.view(2, 2, 16, 8, 10)[:, 1] + 1, both, written,
            lambda y: torch.stack((y.view(2, 2, 16, 8, 10)[:, 1], y.view(2, 2, 16, 8, 10)[:, 0])),
            lambda y: y.view(2, 4, 8, 80).softmax(-1),
        ):
            self.same(Split(step), self.x)

    def test_clones_keep_their_values_and_no_more(self):
        class Slices(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv3d(16, 16, 1)

            def forward(self, x, cache):
                y = self.conv(x)
                cache.append(y[:, :, -2:].clone())
                return y * 2

        x = torch.randn(1, 16, 6, 5, 6)
        for large, held in ((1 << 30, 6), (0, 2)):
            with unittest.mock.patch.object(_axes, "_LARGE", large), torch.no_grad():
                cache, model = [], convoy.accelerate(Slices().eval())
                y = model(x, cache)
                torch.testing.assert_close(cache[0] * 2, y[:, :, -2:], rtol=0, atol=0)
                self.assertEqual(cache[0].untyped_storage().nbytes(), held * 16 * 30 * 4)

    def test_state_and_restore(self):
        model = Block().eval()
        names, convolve = list(model.state_dict()), model.conv1.weight
        with torch.no_grad():
            expected = model(self.x)
            self.assertIs(convoy.accelerate(model), model)
            model(self.x)
            self.assertEqual(list(model.state_dict()), names)
            for changed in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                torch.testing.assert_close(changed(self.x), expected, rtol=1e-5, atol=1e-5)
            convolve.mul_(2)
            torch.testing.assert_close(
                model(self.x), convoy.restore(copy.deepcopy(model))(self.x), rtol=1e-5, atol=1e-5)
            other = Block().eval()
            model.load_state_dict(other.state_dict())
            torch.testing.assert_close(model(self.x), other(self.x), rtol=1e-5, atol=1e-5)
            convoy.restore(model)
            self.assertTrue(torch.equal(model(self.x), other(self.x)))
        self.assertFalse(model._forward_hooks or model._forward_pre_hooks)
        with self.assertRaisesRegex(convoy.InvalidArgument, "not accelerated"):
            convoy.report(model)

    def test_what_is_left_to_pytorch(self):
        model = convoy.accelerate(Block())
        x = self.x.requires_grad_()
        model(x).sum().backward()
        self.assertIsNotNone(x.grad)
        self.assertIsNotNone(model.conv1.weight.grad)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(model(self.x).shape, self.x.shape)
            forward_ad = torch.autograd.forward_ad
            with forward_ad.dual_level():
                y = model(forward_ad.make_dual(self.x, self.x))
                self.assertIsNotNone(forward_ad.unpack_dual(y).tangent)
        reasons = " ".join(convoy.report(model).left_calls)
        self.assertIn("forward-mode", reasons)
        self.assertIn("torch.no_grad()", reasons)
        self.assertIn("autocast", reasons)
        with torch.no_grad(), self.assertRaisesRegex(RuntimeError, "input of shape .1, 15, 8, 8"):
            model(torch.randn(1, 15, 8, 8))

    def test_convolutions_of_other_kinds_are_named(self):
        class Other(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.up = torch.nn.ConvTranspose2d(16, 8, 2, stride=2, groups=2)
                self.conv = torch.nn.Conv2d(8, 4, 1)

            def forward(self, x):
                return self.conv(self.up(x))

        report = self.same(Other(), self.x)
        self.assertEqual([p.name for p in report.taken], ["conv"])
        self.assertEqual([(p.name, p.operation, p.calls) for p in report.left],
                         [("up", "conv_transpose2d", 2)])
        self.assertIn("left to PyTorch: up conv_transpose2d [2, 16, 8, 10]: groups = 2, dilation",
                      str(report))

    def test_transposed_convolutions_and_one_dimension(self):
        kinds = {False: (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d),
                 True: (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d,
                        torch.nn.ConvTranspose3d)}

        class Pair(torch.nn.Module):
            def __init__(self, first, axes):
                super().__init__()
                self.first, self.second = first, kinds[False][axes - 1](8, 8, 1)

            def forward(self, x):
                y = F.leaky_relu(self.first(x), 0.1)
                return y + self.second(torch.sin(y)), y

        shape = 2, 6, 7, 5, 4
        for axes, is_transposed, arguments, keywords in (
            (1, False, (5, 2, 2), {}), (1, False, (3, 1, 3, 3), {}), (1, False, (1,), {}),
            (1, False, (4,), dict(groups=2, bias=False)),
            (1, False, (3,), dict(padding=1, padding_mode="reflect")),
            (1, False, (3,), dict(padding="same", padding_mode="replicate")),
            (1, True, (4, 2, 1), {}), (1, True, (7, 3, 2, 1), {}), (1, True, (2, 4), {}),
            (1, True, (16, 8, 4), dict(bias=False)), (1, True, (3,), {}),
            (2, True, (2, 2), {}), (2, True, (3, 2, 1, 1), {}), (2, True, (4, 2, 1), {}),
            (2, True, ((1, 5), (2, 3), (0, 4)), dict(bias=False)),
            (3, True, (2, 2), {}), (3, True, ((3, 4, 2), (1, 2, 2), (1, 1, 0)), {}),
        ):
            first = kinds[is_transposed][axes - 1](6, 8, *arguments, **keywords)
            with self.subTest(str(first)):
                x, model = torch.randn(shape[:2 + axes]), Pair(first, axes)
                report = self.same(model, x)
                self.assertEqual([str(part) for part in report.left], [])
                with torch.no_grad():  # Filters follow the weight.
                    first.weight.mul_(2)
                    if first.bias is not None:
                        first.bias.add_(1)
                    torch.testing.assert_close(model(x)[1], F.leaky_relu(
                        convoy.restore(model).first(x), 0.1), rtol=1e-4, atol=1e-5)

    def test_threads_types_and_modes(self):
        import concurrent.futures

        model = Block().eval()
        inputs = [torch.randn(1, 16, 8 + i % 3, 10) for i in range(12)]
        with torch.no_grad():
            expected = [model(x) for x in inputs]
        convoy.accelerate(model)

        def run(x):
            with torch.inference_mode():
                return model(x).clone()

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for got, right in zip(pool.map(run, inputs), expected):
                torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            compiled = torch.compile(model, backend="eager")
            torch.testing.assert_close(compiled(inputs[0]), expected[0], rtol=1e-5, atol=1e-5)
            half = model.half()(inputs[0].half())
            self.assertEqual(half.dtype, torch.float16)
            torch.testing.assert_close(half.float(), expected[0], rtol=2e-2, atol=2e-2)
            # Rounded weights; a keyword; no batch at all.
            model.float()
            torch.testing.assert_close(model(x=inputs[0]), expected[0], rtol=1e-2, atol=1e-2)
            self.assertEqual(model(torch.empty(0, 16, 8, 8)).shape, (0, 16, 8, 8))

    def test_what_comes_out_are_tensors(self):
        class Outputs(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.kept = torch.nn.Conv2d(16, 16, 1), []

            def forward(self, x, cache):
                y = self.conv(x)
                cache.append(y)
                self.kept.append(y)
                return {"a": y, "b": [F.silu(y)], "c": (y.shape, y.mean())}

        model, cache = convoy.accelerate(Outputs().eval()), []
        with torch.no_grad():
            out = model(self.x, cache)
            expected = F.conv2d(self.x, model.conv.weight, model.conv.bias)
        for got in (out["a"], *out["b"], out["c"][1]):
            self.assertIs(type(got), torch.Tensor)
        torch.testing.assert_close(out["a"], expected, rtol=1e-5, atol=1e-5)
        # What a model keeps to itself passes for a tensor, there and in anybody's hands.
        for kept in (cache[0], model.kept[0]):
            self.assertIsInstance(kept, torch.Tensor)
            torch.testing.assert_close(kept + 0.5, expected + 0.5, rtol=1e-5, atol=1e-5)
            self.assertEqual(kept.numpy().shape, (2, 16, 8, 10))
            self.assertEqual(tuple(torch.stack([kept, expected]).shape), (2, 2, 16, 8, 10))
            self.assertIn("tensor", repr(kept))
            torch.testing.assert_close(copy.deepcopy(kept).cpu() * 1.0, expected, rtol=1e-5,
                                       atol=1e-5)

    def test_split_by_either_name(self):
        class Halves(Block):
            def forward(self, x):
                a, b = self.conv1(x).split(split_size=8, dim=1)
                c, d = torch.split(tensor=a - b, split_size_or_sections=4, dim=1)
                return c * d

        model = Halves().eval()
        with torch.no_grad():
            expected = model(self.x)
            torch.testing.assert_close(convoy.accelerate(model)(self.x), expected, rtol=1e-5,
                                       atol=1e-5)

    def test_what_a_model_holds_after_a_call(self):
        class Holds(torch.nn.Module):
            """As restoration models keep their mean, and streams what came before."""

            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(1, 1, 3, padding=1)
                self.other = torch.nn.Conv2d(1, 1, 1)
                self.register_buffer("ema", torch.zeros(1))
                self.mean, self.log, self.box = torch.zeros(1), [], {}
                self.kept = self.waits = self.waits_too = torch.zeros(1)

            def forward(self, x):
                self.mean = self.mean.type_as(x)
                y = self.conv(x - self.mean) + self.kept + self.waits + self.waits_too
                self.ema = 0.9 * self.ema + y.mean()
                self.kept, self.waits = y.clone(), F.relu(self.other(y))
                self.waits_too = self.other(x)
                self.log.append(y)
                self.box = {"both": (y, x)}
                return y, y.clone(), y * 1

        plain = Holds().eval()
        model = convoy.accelerate(copy.deepcopy(plain))
        x, own = torch.randn(2, 1, 6, 7), torch.randn(2, 1, 6, 7)
        own.copy_(x)

        def tensors():
            return (model.mean, model.kept, model.waits, model.log[0], *model.box["both"])

        with torch.no_grad():
            for i in range(3):
                results, expected = model(own), plain(x)
                self.assertEqual(len({t.data_ptr() for t in results}), 3)
                for got, want in zip(results, expected):
                    torch.testing.assert_close(got, want)
                    got.mul_(i + 2)  # The caller may write to what he has.
                    want.mul_(i + 2)
                own.add_(1)
                x.add_(1)
                self.assertIs(type(model.state_dict()["ema"]), torch.Tensor)
            torch.testing.assert_close(model.ema, plain.ema)
            log = model.log
            with _trial._settled("plain"):  # As where the host binds.
                for got, want in zip(model(own), plain(x)):
                    self.assertIs(type(got), torch.Tensor)
                    torch.testing.assert_close(got, want)
            self.assertEqual({type(t) for t in tensors()}, {torch.Tensor})
            self.assertIs(model.log, log)
            model(own), plain(x)
        model.mean = model.mean.detach()
        result = model(own)[0]  # With gradients.
        self.assertIs(type(result), torch.Tensor)
        self.assertTrue(result.requires_grad)
        with torch.no_grad():
            model(own)
            convoy.restore(model)
            self.assertEqual({type(t) for t in tensors()}, {torch.Tensor})
            self.assertEqual({type(t) for t in model(own)}, {torch.Tensor})

    def test_double_is_pytorchs(self):
        self.same(Block().double(), self.x.double(), bound=1e-12)

    def test_errors(self):
        with self.assertRaisesRegex(convoy.InvalidArgument, "legal: a torch.nn.Module"):
            convoy.accelerate(lambda x: x)
        with self.assertRaisesRegex(convoy.InvalidArgument, "has no convolution"):
            convoy.accelerate(torch.nn.Linear(3, 3))
        with self.assertRaisesRegex(convoy.InvalidArgument, "legal: exact, fast"):
            convoy.accelerate(Block(), upsample_folding="quick")
        for compiled in (torch.compile(Block()), torch.nn.Sequential(torch.compile(Block()))):
            with self.assertRaisesRegex(convoy.InvalidArgument, "is compiled by torch.compile"):
                convoy.accelerate(compiled)
        compiled = torch.nn.Sequential(Block())
        compiled[0].compile()
        with self.assertRaisesRegex(convoy.InvalidArgument, "^0 is compiled by torch.compile"):
            convoy.accelerate(compiled)


if __name__ == "__main__":
    torch.set_num_threads(2)
    unittest.main()
