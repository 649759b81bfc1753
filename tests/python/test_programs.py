# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate on random programs: convolutions, norms and what models do between them, views
and in-place writes among it. Each program's values are compared with PyTorch's, in two calls.

CONVOY_PROGRAMS=0:2000 runs those seeds; a program that fails is printed, without the steps that it
fails without.
"""

import copy
import itertools
import os
import random
import unittest

import convoy
import torch
import torch.nn.functional as F
from convoy._memory import is_dense
from convoy._strides import iterated
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

FIRST, LAST = map(int, os.environ.get("CONVOY_PROGRAMS", "0:40").split(":"))
CHANNELS = 8


class Model(nn.Module):
    """What programs are made of, for pictures or for frames."""

    def __init__(self, axes):
        super().__init__()
        c, conv, self.axes = CHANNELS, (nn.Conv2d, nn.Conv3d)[axes - 2], axes
        self.convs = nn.ModuleList([
            conv(c, c, 3, padding=1), conv(c, c, 1), conv(c, c, 3, padding=1, groups=2),
            conv(c, c, 3, padding=1, padding_mode="replicate")])
        self.wider, self.narrower = conv(c, 4 * c, 1), conv(4 * c, c, 1)
        self.joint = conv(2 * c, c, 3, padding=1)
        self.causal = nn.Conv3d(c, c, 3, padding=(0, 1, 1))
        self.strided = conv(c, c, 3, 2, 1)
        self.group, self.batch = nn.GroupNorm(2, c), (nn.BatchNorm2d, nn.BatchNorm3d)[axes - 2](c)
        self.instance = (nn.InstanceNorm2d, nn.InstanceNorm3d)[axes - 2](c, affine=True)
        self.linear, self.layer = nn.Linear(c, c), nn.LayerNorm(c)
        self.weight = nn.Parameter(torch.randn(1, c, *(1,) * axes))
        self.batch.running_mean.normal_()
        self.program = None

    def forward(self, x):
        return self.program(self, x)


def last(run):
    """With channels as the last axis."""
    return lambda m, r, a, b: run(m, a.movedim(1, -1)).movedim(-1, 1)


def written(run):
    def step(m, r, a, b):
        run(m, r, a, b)

    return step


def halves(a):
    first, second = a.chunk(2, 1)
    return torch.cat([second, first], 1)


def small(run):
    """Unless the extents have grown."""
    return lambda m, r, a, b: run(m, r, a, b) if a.shape[-1] < 20 else a


def causal(m, a, b):
    """Frames behind those of another tensor."""
    if a.dim() == 4:
        return m.joint(torch.cat([a, b], 1))
    return m.causal(torch.cat([b[:, :, -2:], a], 2)) if b.shape[2] > 1 else a


def set_entries(a):
    a[:, 0] = 0.5


def add_to_contiguous(m, r, a, b):
    made = a.permute(0, *range(2, a.dim()), 1).contiguous()
    made += 0.25
    return made.movedim(-1, 1)


# Functions of (model, random numbers, a value, another of its shape) to a new value, or None.
STEPS = {
    "conv": lambda m, r, a, b: r.choice(m.convs)(a),
    "conv again": lambda m, r, a, b: r.choice(m.convs)(a),
    "group_norm": lambda m, r, a, b: m.group(a),
    "batch_norm": lambda m, r, a, b: m.batch(a),
    "instance_norm": lambda m, r, a, b: m.instance(a) if a[0, 0].numel() > 1 else a,
    "block": lambda m, r, a, b: m.convs[0](F.silu(m.group(a))) + a,
    "silu": lambda m, r, a, b: F.silu(a),
    "swish": lambda m, r, a, b: a * torch.sigmoid(a),
    "relu": lambda m, r, a, b: F.relu(a, inplace=r.random() < 0.5),
    "leaky_relu": lambda m, r, a, b: F.leaky_relu(a, 0.2, inplace=r.random() < 0.5),
    "hardtanh": lambda m, r, a, b: F.hardtanh(a, -1, 1, inplace=r.random() < 0.5),
    "tanh": lambda m, r, a, b: torch.tanh(a),
    "add": lambda m, r, a, b: a + b,
    "add alpha": lambda m, r, a, b: torch.add(a, b, alpha=0.5),
    "add_": written(lambda m, r, a, b: a.add_(b)),
    "mul number": lambda m, r, a, b: a * r.choice((1, 2, 0.5)),
    "mul_ number": written(lambda m, r, a, b: a.mul_(0.5)),
    "mul weight": lambda m, r, a, b: m.weight * a,
    "add weight": lambda m, r, a, b: a + m.weight,
    "clamp_": written(lambda m, r, a, b: a.clamp_(-2, 2)),
    "copy_": written(lambda m, r, a, b: b.copy_(a)),
    "write to half": written(lambda m, r, a, b: a.chunk(2, 1)[0].mul_(0.5)),
    "write to rows": written(lambda m, r, a, b: a[..., 1:, :].sub_(0.25)),
    "write entries": written(lambda m, r, a, b: set_entries(a)),
    "write to a copy": add_to_contiguous,
    "clone": lambda m, r, a, b: a.clone(),
    "detach": lambda m, r, a, b: a.detach(),
    "contiguous": lambda m, r, a, b: a.contiguous(),
    "cast and back": lambda m, r, a, b: a.double().to(a.dtype),
    "interpolate": small(lambda m, r, a, b: F.interpolate(a, scale_factor=2)),
    "pad": small(lambda m, r, a, b: F.pad(a, (1, 0, 0, 1) + (1, 0) * (a.dim() - 4),
                                          r.choice(("constant", "replicate")))),
    "rows": lambda m, r, a, b: a[..., 1:, :] if a.shape[-2] > 2 else a,
    "frames": lambda m, r, a, b: a[:, :, -2:],
    "frames twice": lambda m, r, a, b: torch.cat([a[:, :, :1], a], 2) if a.shape[2] < 20 else a,
    "causal": lambda m, r, a, b: causal(m, a, b),
    "there and back": last(lambda m, a: a.contiguous()),
    "linear": last(lambda m, a: m.linear(a)),
    "layer_norm": last(lambda m, a: m.layer(a)),
    "tokens": lambda m, r, a, b: a.flatten(2).transpose(1, 2).reshape(
        a.shape[0], *a.shape[2:], CHANNELS).movedim(-1, 1),
    "pixels": small(lambda m, r, a, b: F.pixel_shuffle(m.wider(a), 2) if a.dim() == 4 else a),
    "wide": lambda m, r, a, b: m.narrower(F.gelu(m.wider(a))),
    "joint": lambda m, r, a, b: m.joint(torch.cat([a, b], 1)),
    "strided": lambda m, r, a, b: m.strided(a),
    "normalize": lambda m, r, a, b: F.normalize(a, dim=1) * 2 * m.weight,
    "rms": lambda m, r, a, b: a * torch.rsqrt(a.pow(2).mean(1, keepdim=True) + 1e-3),
    "halves": lambda m, r, a, b: halves(a),
    "repeat": lambda m, r, a, b: a.split(4, 1)[0].repeat(1, 2, *(1,) * (a.dim() - 2)),
    "repeat_interleave": lambda m, r, a, b: a.repeat_interleave(2, 2)[:, :, :a.shape[2]],
    "centre": lambda m, r, a, b: a - a.mean((-2, -1), keepdim=True),
    "dropout": lambda m, r, a, b: F.dropout(a, 0.3, False),
    "where": lambda m, r, a, b: torch.where(a > 0, a, a * 0.1),
    "flip": lambda m, r, a, b: a.unflatten(1, (2, 4)).flip(1).flatten(1, 2),
    "shuffle": lambda m, r, a, b: a.reshape(a.shape[0], 2, 4, *a.shape[2:]).transpose(
        1, 2).reshape(a.shape),
    "stack": lambda m, r, a, b: torch.stack([a, b], 2).mean(2),
    "expand": lambda m, r, a, b: a[:, :1].expand(a.shape).contiguous(),
    "mT": lambda m, r, a, b: a.mT.contiguous().mT,
}
NAMES = list(STEPS)


def program(seed, without, log, strides=None):
    """A model's forward(). log: gets the steps that it takes, and `strides` how what each gives or
    writes to lies, without axes of one."""

    def run(model, x):
        values = [x]
        log.clear()
        for step in range(random.Random(seed).randint(4, 16)):
            r = random.Random(1000 * seed + step)
            if step in without:
                continue
            at = r.randrange(max(len(values) - 4, 0), len(values))
            a, name = values[at], r.choice(NAMES)
            alike = [i for i, value in enumerate(values) if value.shape == a.shape]
            other = r.choice(alike)
            made = STEPS[name](model, r, a, values[other])
            log.append(f"v{len(values) if made is not None else at} = {name}(v{at}, v{other})")
            if made is not None:
                values.append(made)
            if strides is not None:
                value = a if made is None else made
                strides.append([s for s, n in zip(value.stride(), value.shape) if n > 1])
        return tuple(value + 0 for value in values[1:])

    return run


def channels_last(tensor, axes):
    memory_format = (torch.channels_last, torch.channels_last_3d)[axes - 2]
    return tensor.to(memory_format=memory_format) if tensor.dim() == axes + 2 else tensor


class Programs(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.models = {}
        for axes in (2, 3):
            model = Model(axes).eval()
            self.models[axes, False] = model
            self.models[axes, True] = copy.deepcopy(model)
            for parameter in self.models[axes, True].parameters():
                parameter.data = channels_last(parameter.data, axes)

    def case(self, seed):
        """(model, input): one in three is of frames, one in two has channels innermost, and of
        these every other one its weights too."""
        model = self.models[3 if seed % 3 == 0 else 2, seed % 8 > 5]
        generator = torch.Generator("cpu").manual_seed(seed)
        extents = (2 + seed % 3, 5, 4 + seed % 4)[-model.axes:]
        x = torch.randn((1 + seed % 2, CHANNELS, *extents), generator=generator, device="cpu")
        x = x.to(model.weight.device)
        return model, channels_last(x, model.axes) if seed % 4 > 1 else x

    def fault(self, seed, without, log):
        """What is wrong with this program, accelerated; "" where it is as without."""
        model, x = self.case(seed)
        model.program = program(seed, without, log)
        try:
            expected = model(x.clone())
        except RuntimeError:  # PyTorch refuses a write.
            return ""
        convoy.accelerate(model, probe=False, quality="exact" if seed % 5 == 0 else "fast")
        try:
            for _ in range(2):
                for i, (ours, theirs) in enumerate(zip(model(x.clone()), expected)):
                    scale = float(theirs.abs().max()) if theirs.numel() else 0.0
                    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3 * (scale + 1e-2),
                                               msg=lambda text, i=i: f"v{i + 1}: {text}")
        except Exception as error:  # Whatever it is, the program is to be told.
            return f"{type(error).__name__}: {error}"
        finally:
            convoy.restore(model)
        return ""

    @torch.no_grad()
    def test_random_programs(self):
        for seed in range(FIRST, LAST):
            with self.subTest(seed=seed):
                log, without = [], set()
                found = self.fault(seed, without, log)
                if found:
                    for step in range(16):
                        if self.fault(seed, without | {step}, log):
                            without.add(step)
                    found = self.fault(seed, without, log)
                    self.fail("\n".join([found, *log]))

    @torch.no_grad()
    def test_stand_ins_say_how_pytorch_s_tensors_lie(self):
        """stride() at each step."""
        for seed in range(FIRST, LAST):
            with self.subTest(seed=seed):
                model, x = self.case(seed)
                log, theirs, ours = [], [], []
                model.program = program(seed, (), log, theirs)
                try:
                    model(x.clone())
                except RuntimeError:  # PyTorch refuses a write.
                    continue
                model.program = program(seed, (), log, ours)
                convoy.accelerate(model, probe=False)
                try:
                    model(x.clone())
                finally:
                    convoy.restore(model)
                for step, (got, expected) in enumerate(zip(ours, theirs)):
                    self.assertEqual(got, expected, "\n".join(log[:step + 1]))


class LayoutsTest(unittest.TestCase):
    """What stand-ins say of how results of single functions lie, beside PyTorch's own."""

    @torch.no_grad()
    def test_each_function(self):
        for axes in (2, 3):
            conv, transposed = ((F.conv2d, F.conv_transpose2d), (F.conv3d, F.conv_transpose3d))[
                axes - 2]
            ones, eights = (1,) * axes, torch.ones(8)
            weight, narrow = torch.randn(8, 8, *(3,) * axes), torch.randn(8, 1, *(3,) * axes)
            point, whole = torch.randn(8, 8, *ones), torch.randn(2, 8, *(6,) * axes)
            inner = channels_last(weight, axes)
            functions = {
                "conv": lambda a: conv(a, weight), "pointwise": lambda a: conv(a, point),
                "inner weight": lambda a: conv(a, inner),
                "inner pointwise": lambda a: conv(a, channels_last(point, axes)),
                "unbatched": lambda a: conv(a[0], inner),
                "depthwise": lambda a: conv(a, narrow, groups=8),
                "strided": lambda a: conv(a, weight, stride=2),
                "transposed": lambda a: transposed(a, weight),
                "group_norm": lambda a: F.group_norm(a, 2),
                "batch_norm": lambda a: F.batch_norm(a, eights, eights, eights, eights),
                "instance_norm": F.instance_norm, "normalize": lambda a: F.normalize(a, dim=1),
                **{mode: lambda a, mode=mode: F.pad(a, (1, 0) * axes, mode)
                   for mode in ("constant", "replicate", "reflect", "circular")},
                "interpolate": lambda a: F.interpolate(a, scale_factor=2),
                "linear": lambda a: F.interpolate(
                    a, scale_factor=2, mode=("bilinear", "trilinear")[axes - 2]),
                "max_pool": lambda a: (F.max_pool2d, F.max_pool3d)[axes - 2](a, 2),
                "avg_pool": lambda a: (F.avg_pool2d, F.avg_pool3d)[axes - 2](a, 2),
                "adaptive": lambda a: (
                    F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[axes - 2](a, 2),
                "cat": lambda a: torch.cat([a, a], 1), "rows": lambda a: torch.cat([a, a], -1),
                "cat others": lambda a: torch.cat([a, whole[:len(a)]], 1),
                **{f"stack {i}": lambda a, i=i: torch.stack([a, a], i) for i in (2, -1)},
                "slice": lambda a: a[..., 1:], "slice conv": lambda a: conv(a[..., 1:], weight),
                "channels": lambda a: a[:, 2:6] + 0, "frames": lambda a: a[:, :, -2:].clone(),
                "add": lambda a: a + whole[:len(a)],
                "to whole": lambda a: whole[:len(a)] + a, "doubled": lambda a: a + a,
                "scaled": lambda a: a * 2, "square": lambda a: a**2,
                "to inner": lambda a: channels_last(whole[:len(a)], axes) + a,
                "weighted": lambda a: eights.view(1, 8, *ones) * a,
                "gated": lambda a: a.mean(tuple(range(2, axes + 2)), keepdim=True) * a,
                "clone": lambda a: a.clone(), "silu": F.silu, "flip": lambda a: a.flip(1),
                "double": lambda a: a.double(), "repeat": lambda a: a.repeat(1, 2, *ones),
                "glu": lambda a: F.glu(a, 1), "contiguous": lambda a: a.contiguous(),
                "as inner": lambda a: channels_last(a, axes),
                "turned": lambda a: a.transpose(-1, -2), "turned conv": lambda a: conv(
                    a.transpose(-1, -2), weight),
                "blocks": lambda a: a.unflatten(-1, (2, 3)), "softmax": lambda a: a.softmax(1),
                "roll": lambda a: a.roll(1, 2), "where": lambda a: torch.where(a > 0, a, a * 0.1),
                "interleave": lambda a: a.repeat_interleave(2, 2),
            }
            if axes == 2:
                functions |= {"shuffle": lambda a: F.pixel_shuffle(a, 2),
                              "unshuffle": lambda a: F.pixel_unshuffle(a, 2)}

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.conv = (nn.Conv2d, nn.Conv3d)[axes - 2](8, 8, 1)

                def forward(self, x):
                    y = function(x)
                    return y.stride(), y

            model = convoy.accelerate(Net().eval(), probe=False)
            # Attention's rows of pixels, seen as a picture: the first axis' stride is 8.
            rows = channels_last(whole[:1], axes).permute(0, *range(2, axes + 2), 1).reshape(
                1, -1, 8).transpose(1, 2).reshape(1, *whole.shape[1:])
            for x in (whole, channels_last(whole, axes), whole[:1], channels_last(whole[:1], axes),
                      rows):
                for name, function in functions.items():
                    with self.subTest(name, axes=axes, strides=x.stride()):
                        expected = function(x)
                        within, result = model(x)
                        self.assertEqual(within, expected.stride())
                        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
                        if not is_dense(expected.shape, expected.stride()):
                            expected = expected.contiguous()
                        self.assertEqual(result.stride(), expected.stride())

    @unittest.skipIf(os.environ.get("CONVOY_TEST_DEVICE") == "cuda", "of the CPU's threads")
    @torch.no_grad()
    def test_volumes_on_one_thread(self):
        """PyTorch convolves some volumes by another library where it has one thread."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for batch, taps, options in itertools.product(
                    (1, 2, 16), (1, 3), ({}, {"stride": 2}, {"dilation": 2}, {"groups": 2})):
                options = {"padding": taps // 2 * options.get("dilation", 1), **options}
                layer = nn.Conv3d(8, 8, taps, **options)

                class Net(nn.Module):
                    def __init__(self, layer=layer):
                        super().__init__()
                        self.conv = layer

                    def forward(self, x):
                        y = self.conv(x)
                        return y.stride(), y

                x = channels_last(torch.randn(batch, 8, 4, 6, 6), 3)
                with self.subTest(batch=batch, taps=taps, **options):
                    expected = layer(x)
                    within, result = convoy.accelerate(Net().eval(), probe=False)(x)
                    self.assertEqual(within, expected.stride())
                    self.assertEqual(result.stride(), expected.stride())
        finally:
            torch.set_num_threads(threads)

    def test_results_of_operands_in_any_order(self):
        r = random.Random(7)

        def operand(shape):
            way, rank = r.randrange(6), len(shape)
            t = torch.empty(shape)
            if way == 1 and rank > 3:
                return channels_last(t, rank - 2)
            if way == 2:
                order = r.sample(range(rank), rank)
                return torch.empty([shape[i] for i in order]).permute(
                    [order.index(i) for i in range(rank)])
            if way == 3:
                return torch.empty([n + 1 for n in shape])[tuple(slice(1, None) for _ in shape)]
            if way == 4:
                return torch.empty([n if r.random() < 0.6 else 1 for n in shape])
            if way == 5 and rank == 4:
                n, c, h, w = shape
                return torch.empty(n, h * w, c).transpose(1, 2).reshape(shape)
            return t

        for i in range(3000):
            shape = [r.choice((1, 1, 2, 3, 4)) for _ in range(r.choice((3, 4, 5)))]
            operands = [operand(shape) for _ in range(r.randrange(1, 4))]
            seen = tuple((t.shape, t.stride()) for t in operands)
            if len(operands) == 1 and i % 2:
                made, seen = operands[0] * 2, (*seen, (torch.Size(()), ()))
            elif len(operands) == 1:
                made = F.silu(*operands)
            else:
                made = (torch.add, torch.addcmul)[len(operands) - 2](*operands)
            contiguous = torch.empty(made.shape, device="meta").stride()
            self.assertEqual(iterated(made.shape, seen) or contiguous, made.stride(), seen)


class RandomNumbersTest(unittest.TestCase):
    """They are drawn in the order of memory, which is that of PyTorch's own tensors."""

    @torch.no_grad()
    def test_each_order_of_input_and_weight(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(8, 8, 3, padding=1)

            def forward(self, x):
                y = self.conv(x)
                return (torch.randn_like(y), torch.rand_like(x) + y, F.dropout(y, 0.5, True),
                        y.clone().normal_(), torch.bernoulli(torch.sigmoid(y)))

        for of_input, of_weight in itertools.product((False, True), repeat=2):
            with self.subTest(input=of_input, weight=of_weight):
                torch.manual_seed(0)
                model, x = Net().eval(), torch.randn(2, 8, 5, 6)
                if of_weight:
                    model.to(memory_format=torch.channels_last)
                x = channels_last(x, 2) if of_input else x
                torch.manual_seed(1)
                expected = model(x)
                convoy.accelerate(model, probe=False)
                torch.manual_seed(1)
                for got, drawn in zip(model(x), expected):
                    torch.testing.assert_close(got, drawn, rtol=1e-4, atol=1e-4)


class WrappedWeightsTest(unittest.TestCase):
    """Weights that wrap other tensors have no numbers of their own to pack."""

    def test_each_weight_of_a_model(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2, 2)
                self.group, self.batch = nn.GroupNorm(2, 8), nn.BatchNorm2d(8)
                self.rms, self.skip = nn.RMSNorm(8), nn.Parameter(torch.randn(1, 8, 6, 6))
                self.factor = nn.Parameter(torch.randn(1, 8, 1, 1))

            def forward(self, x):
                h = self.group(self.batch(self.conv(x))) + self.skip
                h = F.normalize(h, dim=1) * self.factor
                return self.up(self.rms(h.movedim(1, -1)).movedim(-1, 1))

        torch.manual_seed(0)
        plain, x = Net().eval(), torch.randn(2, 8, 6, 6)
        for name, _ in plain.named_parameters():
            with self.subTest(name), torch.no_grad():
                model = copy.deepcopy(plain)
                owner, _, leaf = name.rpartition(".")
                weight = model.get_parameter(name).detach()
                setattr(model.get_submodule(owner), leaf,
                        nn.Parameter(TwoTensor(weight, weight * 2), requires_grad=False))
                expected = model(x)
                got = convoy.accelerate(model, probe=False)(x)
                self.assertIs(type(got), TwoTensor)
                torch.testing.assert_close(got.a, expected.a, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(got.b, expected.b, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
