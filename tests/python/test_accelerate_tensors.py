# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: what a model does to its tensors: writes, views, clones, tensors made of them,
arithmetic that is PyTorch's."""

import copy
import unittest
import unittest.mock

import convoy
import numpy
import torch
import torch.nn.functional as F
from convoy import _axes
from support import Accelerated, Block, Then, error


class _Step(torch.nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def forward(self, x):
        return self.step(x)


class Tensors(Accelerated):
    def test_writing_in_place(self):
        class Writes(Then):
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

    def test_writes_to_rows_from_rows_that_overlap(self):
        """Which of an image with channels innermost follow each other in memory: PyTorch refuses
        that, and takes it where they do not."""
        def step(y):
            y[..., 1:, :].copy_(y[..., :-1, :])
            return y

        model = convoy.accelerate(Then(step).eval(), probe=False)
        with torch.no_grad():
            y = F.conv2d(self.x[:1], model.conv.weight, model.conv.bias, padding=model.conv.padding)
            torch.testing.assert_close(
                model(self.x[:1]), torch.cat([y[..., :1, :], y[..., :-1, :]], -2),
                rtol=1e-4, atol=1e-4)

    def test_writes_to_what_is_not_there_yet(self):
        """Views and copies of what waits: frames of a cat, a pad, repetitions, parts with gaps."""
        def written(view, write=lambda v: v.mul_(3)):
            def step(y):
                write(view(y))
                return y
            return step

        def copied(first, copy, write):
            def step(y):
                p = first(y)
                z = copy(p)
                write(z)
                return z, p
            return step

        def cat(x):
            return torch.cat([x[:, :, :1], x], 2)

        def pad(y):
            return F.pad(y, (1, 1, 1, 1))

        def pad_frames(x):
            return F.pad(x, (0, 0, 0, 0, 2, 0))

        def repeat(y):
            return y.repeat_interleave(2, 1)

        def then(first, step):
            return lambda x: step(first(x))

        for step in (
                then(cat, written(lambda y: y[:, :, :1])),
                then(cat, written(lambda y: y[:, :, 1:])),
                then(cat, written(lambda y: y[:, :, :2], lambda v: F.relu(v, inplace=True))),
                then(cat, written(lambda y: y[:, :, :2][:, :, 0])),
                then(cat, written(lambda y: y[:, :, :3][:, :, :2])),
                then(cat, lambda y: (y[:, :, 1:], y.add_(1))),
                lambda x: (cat(x)[:, :, 1:], x.add_(1)),
                copied(cat, torch.clone, lambda z: z[:, :, :1].fill_(7)),
                copied(cat, torch.clone, lambda z: z[:, :, 0].fill_(7)),
                copied(pad_frames, torch.clone, lambda z: z[:, :, 0].fill_(7)),
                copied(pad_frames, torch.clone, lambda z: z[:, :, :1].fill_(7)),
                copied(lambda x: pad_frames(x)[:, :, 1:], lambda p: p.reshape(2, -1),
                       lambda z: z.mul_(2)),
                lambda x: pad_frames(x)[:, :, 1:].is_contiguous()):
            model = torch.nn.Sequential(torch.nn.Conv3d(4, 4, 3, padding=1), _Step(step))
            self.same(model, torch.randn(2, 4, 3, 5, 6))
        for step in (
                copied(pad, torch.clone, lambda z: z[:, :1].mul_(7)),
                copied(pad, torch.clone, lambda z: z.chunk(2, 1)[0].add_(1)),
                copied(pad, lambda p: p * 1.0, lambda z: z[0].zero_()),
                copied(lambda y: y, lambda y: torch.cat([y.new_zeros(0, *y.shape[1:]), y], 0),
                       lambda z: z[:, 0].mul_(3)),
                lambda y: (torch.cat([y, y[..., :0]], -1), y.add_(1)),
                then(repeat, written(lambda y: y.view(-1))),
                then(repeat, written(lambda y: y.flatten(1))),
                then(repeat, written(lambda y: y.view(2, 16, 2, 8, 10)[:, :, 1])),
                copied(lambda y: y.chunk(2, 1)[0], lambda p: torch.cat([p], 1),
                       lambda z: z.mT.add_(1)),
                copied(lambda y: y.chunk(2, 1)[1], lambda p: torch.cat([p], 1),
                       lambda z: [q.zero_() for q in z.unbind(0)]),
                lambda y: y.cpu().flatten(1),
                lambda y: y.detach().cpu().permute(0, 2, 3, 1).stride(),
                lambda y: y.permute(0, 2, 3, 1).unsqueeze_(0).permute(4, 3, 2, 1, 0).contiguous()):
            self.same(Then(step), self.x)

        def laid(y):
            v = y.permute(0, 2, 3, 1).unsqueeze(1)
            return v.is_contiguous(), v.stride(), v.reshape(-1).add_(1), v

        self.same(torch.nn.Sequential(torch.nn.Conv2d(16, 16, 1), torch.nn.GroupNorm(4, 16),
                                      _Step(laid)), self.x)

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

    def test_tensors_made_of_tensors(self):
        own = torch.as_tensor, torch.tensor, torch.full
        for step in (lambda y: torch.as_tensor(y) + 1, lambda y: torch.asarray(y, dtype=y.dtype),
                     lambda y: torch.tensor([y.mean(), y.max()]) * 2,
                     lambda y: torch.full((2, 3), y.mean()), lambda y: y * torch.scalar_tensor(
                         y.sum())):
            self.same(Then(step), self.x)
            self.assertEqual((torch.as_tensor, torch.tensor, torch.full), own)
        model = convoy.accelerate(Then(lambda y: y.view(3, 5)).eval())
        with torch.no_grad(), self.assertRaises(RuntimeError):
            model(self.x)
        self.assertEqual((torch.as_tensor, torch.tensor, torch.full), own)

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

    def test_arithmetic_of_pytorch(self):
        """What no kernel of ours takes, and keeps what it gets: gradients, transforms, order."""
        forward_ad = torch.autograd.forward_ad

        class Sums(Then):
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

    def test_results_that_are_no_stand_ins_lie_as_pytorch_s(self):
        """Masks, indices, complex numbers, what C++ code gives: they answer view() themselves."""
        steps = (
            lambda y: (y > 0).view(2, -1), lambda y: (y > 0).float().view(2, -1),
            lambda y: torch.gt(input=y, other=0).view(2, -1),
            lambda y: y.sort(1)[1].view(2, -1),
            lambda y: F.max_pool2d(y, 2, return_indices=True)[1].view(2, -1),
            lambda y: y.max(2)[1].view(2, -1), lambda y: (y.mean(1, keepdim=True) < y).view(2, -1),
            lambda y: torch.full_like(y, 2, dtype=torch.int64).view(2, -1),
            lambda y: torch.view_as_real(y * 2j).view(2, -1),
            lambda y: torch.vmap(lambda t: t * 2)(y).view(2, -1),
            lambda y: (y.transpose(2, 3) > 0).transpose(2, 3).view(2, -1),
            lambda y: (y.flatten(2) > 0).view(2, -1),
        )
        for i, step in enumerate(steps):
            with self.subTest(i):
                self.same(Then(step), self.x)
        self.assertTrue((Then(lambda y: y)(self.x) > 0).is_contiguous())
        model = convoy.accelerate(Then(lambda y: (y > 0, y.argmax(2))).eval())
        with torch.no_grad():
            for _ in range(2):
                for result in model(self.x):
                    self.assertTrue(result.is_contiguous())

    def test_sizes_and_axes_as_pytorch_takes_them(self):
        n = numpy.int64
        for i, step in enumerate((
            lambda y: y.reshape(n(2560)), lambda y: y.view(torch.tensor(2560)),
            lambda y: y.repeat(n(1), n(2), 1, 1), lambda y: y.permute(n(0), n(2), n(3), n(1)),
            lambda y: F.interpolate(y, size=(n(16), n(20))).flatten(),
            lambda y: F.interpolate(y, scale_factor=n(2)).flatten(),
            lambda y: y[:1, :1, :1, :1].reshape(()), lambda y: y[:1, :1, :1, :1].view([]),
            lambda y: y.mean().transpose(0, 0), lambda y: y.mean().movedim(0, -1),
            lambda y: F.pad(y, ()) + F.pad(y, []),
        )):
            with self.subTest(i):
                self.same(Then(step), self.x)
        self.same(Then(lambda y: y.reshape(()), filters=1), self.x[:1, :, :1, :1])
        for step in (lambda y: y.movedim(4, 0), lambda y: y.movedim(0, -5),
                     lambda y: y.permute(0, 1, 2, 7)):
            model = convoy.accelerate(Then(step).eval())
            with torch.no_grad(), self.assertRaises(IndexError):
                model(self.x)

    def test_writes_to_lists_of_tensors(self):
        def step(y):
            flat = y.flatten(1)
            torch._foreach_mul_([flat], 2)
            return y, flat

        self.same(Then(step), self.x)

    def test_empty_tensors_count_in_types(self):
        model = Then(lambda y: torch.cat([y, torch.zeros(0)], 1)).eval().bfloat16()
        with torch.no_grad():
            wanted = model(self.x.bfloat16()).dtype
            self.assertEqual(convoy.accelerate(model)(self.x.bfloat16()).dtype, wanted)

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


if __name__ == "__main__":
    unittest.main()
