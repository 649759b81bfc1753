# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: convolutions of every kind, and what becomes a part of one."""

import copy
import itertools
import math
import unittest
import unittest.mock

import convoy
import numpy
import torch
import torch.nn.functional as F
from convoy import _calls, _conv_node, _measure
from convoy._deferred import Deferred
from support import Accelerated, Block, error


class Settings(torch.nn.Module):
    """A convolution whose arguments the test sets, with something in front of it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8, 3, 3))
        self.part = torch.nn.Conv2d(8, 8, 1)  # So that there is a convolution.
        self.front, self.arguments = lambda x: x, {}

    def forward(self, x):
        return F.conv2d(self.front(x), self.weight, **self.arguments)


class Convolutions(Accelerated):
    def test_patterns_without_modules(self):
        report = self.same(Block(), self.x)
        self.assertEqual(report.fused, {"norm and activation": 2, "residual": 2,
                                        "convolution and activation": 2})
        self.assertEqual(sorted(part.operation for part in report.taken), [
            "conv2d + padding + relu", "conv2d + padding + residual", "group_norm + silu"])
        self.assertEqual({part.name for part in report.taken}, {"norm", "conv1", "conv2"})
        self.assertEqual(report.conversions, 2)  # The input, once for each call.
        self.assertIn("3 convolutions and norms", str(report))

    def test_sums_before_and_behind_an_activation(self):
        class Sums(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(16, 16, 3, padding=1)

            def forward(self, x):
                return F.relu(self.conv(x)) + x, F.relu(self.conv(x) + x)

        self.assertEqual(len(self.same(Sums(), self.x).taken), 2)

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
            with unittest.mock.patch.object(_calls, "ConvCall",
                                            side_effect=convoy.Unsupported("not today")):
                _measure.choices.clear()
                report = self.same(Scaled(sums, bias), self.x)
            self.assertEqual([p.operation for p in report.left], [what.format(2)])
            _measure.choices.clear()

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

    def test_a_sum_goes_into_the_later_convolution(self):
        """The earlier one's output is wanted as it is."""
        class Skip(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv1, self.conv2 = (torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
                self.norm = torch.nn.GroupNorm(4, 16)

            def forward(self, x):
                h = self.conv1(x)
                h = h + self.conv2(F.silu(self.norm(h)))
                y = self.conv1(F.silu(h))
                y += self.conv2(self.norm(y))
                return y

        report = self.same(Skip(), self.x)
        operations = {p.operation for p in report.taken if p.name == "conv1"}
        self.assertEqual(operations, {"conv2d + padding"})
        self.assertEqual(report.fused["residual"], 4)

    def test_the_gpu_works_while_the_host_goes_on(self):
        """A convolution is computed, with its residual, once the next one is known; a large one
        waits."""
        class Watched(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv1, self.conv2, self.conv3 = (
                    torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))
                self.norm, self.waits = torch.nn.GroupNorm(4, 16), []

            def forward(self, x):
                h = self.conv1(x) + x
                y = F.silu(self.norm(h))
                self.waits = [self.is_waiting(h)]
                z = self.conv2(y)
                self.waits += [self.is_waiting(h), self.is_waiting(z)]
                return self.conv3(self.norm(z))

            def is_waiting(self, h):
                return type(h) is Deferred and h._node.tensor is None

        for short, waits in ((1 << 27, [True, False, True]), (0, [True, True, True])):
            with self.subTest(short=short), unittest.mock.patch.object(_conv_node, "_SHORT", short):
                model = Watched().eval()
                report = self.same(model, self.x)
                self.assertEqual(model.waits, waits)
                self.assertEqual(report.fused["residual"], 2)

    def test_more_convolutions_than_pythons_stack_has_frames(self):
        convs = [torch.nn.Conv2d(4, 4, 1) for _ in range(600)]
        for short in (1 << 27, 0):
            with unittest.mock.patch.object(_conv_node, "_SHORT", short):
                self.same(torch.nn.Sequential(*convs), self.x[:, :4])


if __name__ == "__main__":
    unittest.main()
