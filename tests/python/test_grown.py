# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate on grown models: modules of any number of axes, channels, groups, strides and
padding modes, one after the other, each on what came before; functions between them; state that a
call leaves for the next. Each model is called with several shapes, types and modes of autograd, and
after its weights have changed; errors are judged against fp64.

CONVOY_GROWN=0:2000 runs those seeds; a model that fails is printed, as far as it needs to be.
CONVOY_GROWN_WAY=compile has them compiled by convoy.dynamo_backend in place of accelerated, and
graphed, on a GPU, as CUDA graphs too.
"""

import copy
import functools
import math
import os
import random
import unittest
import warnings

import convoy
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from support import clock, measured, use_test_device
from torch import nn

use_test_device()
torch.set_num_threads(1)  # NOTE: tensors are small, and processes may run beside each other.
FIRST, LAST = map(int, os.environ.get("CONVOY_GROWN", "0:40").split(":"))
WAY = os.environ.get("CONVOY_GROWN_WAY", "accelerate")
MOST_ELEMENTS = 60_000
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
MODES = (("nearest", "linear"), ("nearest", "bilinear", "nearest-exact"), ("nearest", "trilinear"))


# ---- Modules -------------------------------------------------------------------------------------


class Causal(nn.Module):
    """Keeps the last frames of a call for the next one, as streaming decoders do."""

    def __init__(self, channels, filters, axes):
        super().__init__()
        self.conv = CONVS[axes - 1](channels, filters, 3, padding=(0, *(1,) * (axes - 1)))
        self.kept = None

    def forward(self, x):
        front = self.kept
        if front is None or front.shape[:2] + front.shape[3:] != x.shape[:2] + x.shape[3:]:
            front = x[:, :, :1].repeat(1, 1, 2, *(1,) * (x.dim() - 3))
        joined = torch.cat([front.to(x.dtype), x], 2)
        self.kept = joined[:, :, -2:].detach().clone()
        return self.conv(joined)


class Excited(nn.Module):
    """Channels scaled by what they are in the mean."""

    def __init__(self, channels, axes):
        super().__init__()
        self.axes = tuple(range(2, axes + 2))
        self.down, self.up = (CONVS[axes - 1](a, b, 1) for a, b in (
            (channels, max(channels // 2, 1)), (max(channels // 2, 1), channels)))

    def forward(self, x):
        return x * self.up(F.relu(self.down(x.mean(self.axes, keepdim=True)))).sigmoid()


class Attention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x):
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for t in self.qkv(tokens).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


class Scaled(nn.Module):
    """A convolution whose weight is computed in each call."""

    def __init__(self, conv):
        super().__init__()
        self.conv, self.gain = conv, nn.Parameter(torch.rand(()) + 0.5)

    def forward(self, x):
        given = self.conv
        weight = given.weight * self.gain
        run = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
        return run(x, weight, given.bias, given.stride, given.padding, given.dilation, given.groups)


class RootMean(nn.Module):
    def __init__(self, channels, axes, rule):
        super().__init__()
        self.rule = rule
        self.weight = nn.Parameter(torch.rand(channels, *(1,) * axes) + 0.5)

    def forward(self, x):
        if self.rule:
            return F.normalize(x, dim=1) * x.shape[1]**0.5 * self.weight
        return x * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-3).to(x.dtype) * (
            self.weight)


class ChannelNorm(nn.Module):
    """LayerNorm of channels, which go to the end for it."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class Counted(nn.Module):
    """Adds how often it was called: state, as a number in Python."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + 0.125 * self.calls


class Remembered(nn.Module):
    """A running mean in a buffer, as some norms keep in evaluation too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.detach().mean() * 0.5)
        return x - self.mean.to(x.dtype)


def filters_of(r):
    return r.choice((1, 2, 3, 4, 6, 8, 12, 16, 16, 24, 32))


def convolution(r, x):
    axes, channels = x.dim() - 2, x.shape[1]
    groups = r.choice([g for g in (1, 1, 1, 2, 4, channels) if channels % g == 0])
    filters = groups * max(filters_of(r) // groups, 1)
    size = tuple(r.choice((1, 1, 2, 3, 3, 3, 4, 5, 7)) for _ in range(axes))
    if r.random() < 0.7:
        size = (r.choice((1, 3, 3, 5)),) * axes
    mode = r.choice(("zeros",) * 5 + ("reflect", "replicate", "circular"))
    stride = 1 if r.random() < 0.7 else tuple(r.choice((1, 2, 2, 3)) for _ in range(axes))
    dilation = 1 if r.random() < 0.85 else tuple(r.choice((1, 2, 3)) for _ in range(axes))
    padding = r.choice((
        tuple(s // 2 for s in size), tuple(s // 2 for s in size), 0, 1, 2, "valid",
        "same" if stride == 1 else 0))
    conv = CONVS[axes - 1](channels, filters, size, stride, padding, dilation, groups,
                           r.random() < 0.7, mode)
    if r.random() < 0.08:
        conv = nn.utils.parametrizations.weight_norm(conv)
    elif r.random() < 0.08 and mode == "zeros":
        conv = Scaled(conv)
    elif r.random() < 0.1:
        conv = conv.to(memory_format=torch.channels_last) if axes == 2 else conv
    return conv


def transposed(r, x):
    axes, channels = x.dim() - 2, x.shape[1]
    groups = r.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    stride = r.choice((1, 2, 2, 3))
    return TRANSPOSED[axes - 1](
        channels, groups * max(filters_of(r) // groups, 1), r.choice((1, 2, 3, 4)), stride,
        r.choice((0, 0, 1)), r.choice((0, 0, 1)) if stride > 1 else 0, groups, r.random() < 0.7)


def batch_norm(r, x):
    norm = BATCH_NORMS[x.dim() - 3](x.shape[1], affine=r.random() < 0.8)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm


def group_norm(r, x):
    channels = x.shape[1]
    return nn.GroupNorm(r.choice([g for g in (1, 2, 4, 8, channels) if channels % g == 0]),
                        channels, affine=r.random() < 0.8)


def activation(r, x):
    inplace = r.random() < 0.3
    return r.choice((
        lambda: nn.ReLU(inplace), lambda: nn.SiLU(inplace), nn.GELU, lambda: nn.GELU("tanh"),
        lambda: nn.LeakyReLU(0.1, inplace), lambda: nn.ELU(inplace=inplace), nn.Tanh, nn.Sigmoid,
        lambda: nn.Hardswish(inplace), lambda: nn.ReLU6(inplace), lambda: nn.PReLU(x.shape[1]),
        nn.Mish, nn.Softplus, lambda: nn.Hardtanh(-1, 2, inplace), nn.Identity,
        lambda: nn.Dropout(0.5), lambda: nn.GLU(1)))()


def pooling(r, x):
    axes = x.dim() - 2
    kind = r.choice(((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
                     (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)))[axes - 1]
    return kind(r.choice((2, 3)), r.choice((1, 2)), r.choice((0, 1)))


def upsampling(r, x):
    mode = r.choice(MODES[x.dim() - 3])
    return nn.Upsample(scale_factor=r.choice((2, 2, 3)), mode=mode)


def padding(r, x):
    axes = x.dim() - 2
    kinds = ((nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
             (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
             (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
             (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d))
    return r.choice(kinds)[axes - 1](tuple(r.choice((0, 1, 1, 2)) for _ in range(2 * axes)))


def sequence(r, x):
    """Several at once, in a Sequential."""
    made = []
    for _ in range(r.randint(2, 4)):
        part = r.choice((convolution, convolution, batch_norm, group_norm, activation))(r, x)
        x = part(x.clone())
        made.append(part)
    return nn.Sequential(*made)


MODULES = {
    convolution: 10, transposed: 2, batch_norm: 3, group_norm: 3, activation: 6, pooling: 1,
    upsampling: 2, padding: 2, sequence: 4,
    lambda r, x: INSTANCE_NORMS[x.dim() - 3](x.shape[1], affine=r.random() < 0.5): 1,
    lambda r, x: Causal(x.shape[1], filters_of(r), x.dim() - 2): 2,
    lambda r, x: Excited(x.shape[1], x.dim() - 2): 1,
    lambda r, x: Attention(x.shape[1], r.choice([h for h in (1, 2) if x.shape[1] % h == 0])): 1,
    lambda r, x: RootMean(x.shape[1], x.dim() - 2, r.random() < 0.5): 2,
    lambda r, x: ChannelNorm(x.shape[1]): 1,
    lambda r, x: Counted(): 1, lambda r, x: Remembered(): 1,
}

# ---- Functions -----------------------------------------------------------------------------------


def cut(r, a):
    """Some of an axis."""
    axis = r.randrange(1, a.dim())
    begin, step = r.choice((0, 1)), r.choice((1, 1, 1, 2))
    return lambda a, b: a[(slice(None),) * axis + (slice(begin, None, step),)]


def without_end(r, a):
    axis = r.randrange(2, a.dim())
    return lambda a, b: a.narrow(axis, 0, a.shape[axis] - 1)


def padded(r, a):
    mode = r.choice(("constant", "constant", "replicate", "reflect", "circular"))
    # NOTE: PyTorch 2.11 reads what is not there where it cuts off in other modes, on a GPU.
    least = -1 if mode == "constant" else 0
    amounts = tuple(r.choice((least, 0, 0, 1, 2)) for _ in range(2 * (a.dim() - 2)))
    value = r.choice((0, 0, 0.5)) if mode == "constant" else None
    return lambda a, b: F.pad(a, amounts, mode, value)


def joined(r, a):
    axis = r.randrange(1, a.dim())
    return lambda a, b: torch.cat([a, b], axis)


def gated(r, a):
    rule = r.choice((torch.sigmoid, F.silu, torch.tanh, F.gelu))
    return lambda a, b: (lambda u, v: u * rule(v))(*a.chunk(2, 1))


def in_place(r, a):
    return r.choice((
        lambda a, b: a.add_(b), lambda a, b: a.mul_(0.5), lambda a, b: F.relu_(a),
        lambda a, b: a.clamp_(-1.5, 1.5), lambda a, b: a[..., :1].zero_(),
        lambda a, b: a.narrow(1, 0, 1).add_(1.0), lambda a, b: F.silu(a, inplace=True)))


def combined(r, a):
    return r.choice((
        lambda a, b: a + b, lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b,
        lambda a, b: torch.maximum(a, b), lambda a, b: a + 0.5 * b, lambda a, b: (a + b) / 2**0.5,
        lambda a, b: torch.lerp(a, b, 0.25), lambda a, b: torch.where(a > b, a, b),
        lambda a, b: a.addcmul(b, b, value=0.1), lambda a, b: a - b.mean(1, keepdim=True)))


def changed(r, a):
    axis = r.randrange(2, a.dim())
    return r.choice((
        lambda a, b: a * 2, lambda a, b: 1 - a, lambda a, b: a / 3, lambda a, b: -a,
        lambda a, b: a.abs(), lambda a, b: a.exp().clamp(max=4), lambda a, b: a.softmax(1),
        lambda a, b: a.flip(axis), lambda a, b: a.roll(1, axis), lambda a, b: a.contiguous(),
        lambda a, b: a.clone(), lambda a, b: a.detach(), lambda a, b: a.transpose(-1, -2),
        lambda a, b: a.repeat_interleave(2, axis), lambda a, b: a.unbind(axis)[0].unsqueeze(axis),
        lambda a, b: a.flatten(2).unflatten(2, a.shape[2:]), lambda a, b: a.float().to(a.dtype),
        lambda a, b: a.mean(axis, keepdim=True).expand(a.shape), lambda a, b: a.cumsum(axis) * 0.3,
        lambda a, b: torch.stack([a, a * 2], axis).flatten(axis, axis + 1),
        lambda a, b: a.reshape(a.shape[0], -1, *a.shape[2:]), lambda a, b: a[:, [0]] + a,
        lambda a, b: a.amax(1, keepdim=True) * a, lambda a, b: F.avg_pool2d(a, 2) if (
            a.dim() == 4) else a,
        lambda a, b: F.pixel_unshuffle(a, 2), lambda a, b: F.pixel_shuffle(a, 2),
        lambda a, b: F.layer_norm(a, a.shape[1:]), lambda a, b: a.to(torch.float64).to(a.dtype),
        lambda a, b: F.interpolate(a, size=[n + 1 for n in a.shape[2:]]),
        lambda a, b: a * (a.shape[-1] % 3), lambda a, b: a.movedim(1, -1).movedim(-1, 1),
        lambda a, b: a.unsqueeze(2).squeeze(2), lambda a, b: torch.clamp(a, min=-1)))


def standardised(a, groups):
    """A norm as older code writes it."""
    seen = a.reshape(a.shape[0], groups, -1)
    mean, var = seen.mean(-1, keepdim=True), seen.var(-1, keepdim=True, unbiased=False)
    return ((seen - mean) / torch.sqrt(var + 1e-3)).view(a.shape)


def attended(a):
    tokens = a.flatten(2)
    weights = torch.bmm(tokens.transpose(1, 2), tokens).mul(tokens.shape[1]**-0.5).softmax(-1)
    return torch.bmm(tokens, weights.transpose(1, 2)).view(a.shape)


def sampled(a):
    """Where each pixel is, and a little beside it."""
    ways = torch.eye(2, 3, device=a.device, dtype=a.dtype).repeat(a.shape[0], 1, 1)
    return F.grid_sample(a, F.affine_grid(ways * 0.9, a.shape, align_corners=False),
                         align_corners=False)


def rare(r, a):
    axis, channels = r.randrange(2, a.dim()), a.shape[1]
    groups = r.choice([g for g in (1, 2, 4) if channels % g == 0])
    return r.choice((
        lambda a, b: torch.fft.irfft(torch.fft.rfft(a.float(), dim=-1), n=a.shape[-1], dim=-1).to(
            a.dtype),
        lambda a, b: torch.einsum("bc...->b...c", a).movedim(-1, 1),
        lambda a, b: a.index_select(1, torch.arange(a.shape[1] - 1, -1, -1, device=a.device)),
        lambda a, b: a.gather(1, torch.zeros_like(a, dtype=torch.long)),
        lambda a, b: a.masked_fill(b < 0, 0.5), lambda a, b: a.sort(1).values,
        lambda a, b: a.topk(1, 1).values.expand(a.shape) - a,
        lambda a, b: F.fold(F.unfold(a, 3, padding=1), a.shape[2:], 3, padding=1) / 9,
        lambda a, b: sampled(a), lambda a, b: attended(a), lambda a, b: standardised(a, groups),
        lambda a, b: a * (float(a.abs().mean()) + 1), lambda a, b: a if a.shape[-1] > 5 else a * 2,
        lambda a, b: -a if bool(a.isnan().any()) else a.to(torch.float32).to(a.dtype),
        lambda a, b: torch.as_strided(a.contiguous(), a.shape, a.contiguous().stride()),
        lambda a, b: torch.vmap(lambda t: t * 2 + 1)(a), lambda a, b: a.data * 0.5,
        lambda a, b: torch.empty_like(a).copy_(a), lambda a, b: torch.zeros_like(a).add_(b),
        lambda a, b: torch.mul(a, 2, out=torch.empty(0, dtype=a.dtype, device=a.device)),
        lambda a, b: a[torch.arange(a.shape[0] - 1, -1, -1)], lambda a, b: a[:, [0, -1]],
        lambda a, b: a[:, a.mean((0, *range(2, a.dim()))).argsort() >= 0],
        lambda a, b: torch.utils.checkpoint.checkpoint(torch.sin, a, use_reentrant=False),
        lambda a, b: F.local_response_norm(a, 3), lambda a, b: F.normalize(a, dim=axis),
        lambda a, b: F.batch_norm(a, a.new_zeros(channels), a.new_ones(channels)),
        lambda a, b: F.instance_norm(a) * 0.5, lambda a, b: F.channel_shuffle(a, groups),
        lambda a, b: F.adaptive_avg_pool2d(a, (3, 4)), lambda a, b: F.adaptive_max_pool1d(a, 4),
        lambda a, b: F.interpolate(a.float(), scale_factor=0.5, mode="area").to(a.dtype),
        lambda a, b: a - a.logsumexp(1, keepdim=True),
        lambda a, b: a / (a.std(1, keepdim=True) + 1),
        lambda a, b: torch.cat(a.chunk(2, axis)[::-1], axis), lambda a, b: a.diff(dim=axis),
        lambda a, b: torch.stack(a.unbind(axis), axis), lambda a, b: torch.cat((a, b, a), 1),
        lambda a, b: a.view(-1)[:a.numel() // 2 * 2].view(2, -1).sum(0).mean() + a,
        lambda a, b: (a.unfold(axis, 2, 1) * 0.5).sum(-1), lambda a, b: a.swapaxes(1, axis),
        lambda a, b: F.prelu(a, a.new_full((channels,), 0.2)), lambda a, b: a.squeeze(1).sum(
            axis - 2, keepdim=True).unsqueeze(1) if channels == 1 else a[:, :1] * b,
        lambda a, b: torch.addcdiv(a, b, b.abs() + 1, value=0.5), lambda a, b: a.clamp_min(0) + b,
        lambda a, b: torch.nan_to_num(a / (b - b)), lambda a, b: a ** 2 / (1 + a ** 2)))


FUNCTIONS = {rare: 4, combined: 6, changed: 6, joined: 2, cut: 2, without_end: 1, padded: 2,
             gated: 1, in_place: 2}


# ---- Models --------------------------------------------------------------------------------------


class Grown(nn.Module):
    """steps: (name, index of a part or a function, value that it reads, a second one)."""

    def __init__(self, form):
        super().__init__()
        self.parts, self.steps, self.form = nn.ModuleList(), [], form

    def values(self, x):
        values = [x]
        for _, what, first, second in self.steps:
            values.append(self.parts[what](values[first]) if isinstance(what, int)
                          else what(values[first], values[second]))
        return values

    def forward(self, x, *, scale=None):
        values = self.values(x)
        last = values[-1] if scale is None else values[-1] * scale
        if self.form == "tuple":
            return last, values[len(values) // 2]
        if self.form == "dict":
            return {"sample": last, "parts": [values[-1], values[-2]]}
        return last


def weighted(r, table):
    return r.choices(list(table), list(table.values()))[0]


def grown(seed):
    """(model, input): every step was tried on what it is given, and gives finite numbers."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    axes = r.choice((1, 2, 2, 2, 3))
    extents = [r.randint(5, 11) for _ in range(axes)]
    x = torch.randn(r.choice((1, 1, 2, 3)), filters_of(r), *extents)
    model = Grown(r.choice(("tensor", "tensor", "tuple", "dict"))).eval()
    wanted = r.randint(2, 14)
    for _ in range(20 * wanted):
        if len(model.steps) == wanted:
            break
        values = model.values(x.clone())
        forget(model)
        first = len(values) - 1 if r.random() < 0.8 else r.randrange(len(values))
        a = values[first]
        alike = [i for i, value in enumerate(values) if value.shape == a.shape]
        second = r.choice(alike[:-1] or alike)
        count = len(model.parts)
        try:
            if r.random() < 0.62 or not model.steps:
                maker = weighted(r, MODULES)
                part = maker(r, a).eval()
                made = part(a.clone())
                if r.random() < 0.08 and count:  # The same part again, where it fits.
                    again = r.randrange(count)
                    made = model.parts[again](a.clone())
                    step = (f"part {again} again", again, first, second)
                else:
                    model.parts.append(part)
                    step = (str(part).replace("\n", ""), count, first, second)
            else:
                maker = weighted(r, FUNCTIONS)
                function = maker(r, a)
                made = function(a.clone(), values[second].clone())
                step = (f"{maker.__name__} #{r.random():.3f}", function, first, second)
            good = (made.dim() == axes + 2 and made.is_floating_point() and made.isfinite().all()
                    and 0 < made.numel() < MOST_ELEMENTS and made.abs().max() < 1e4)
            if good:
                model.steps.append(step)
                try:
                    model(x.clone())
                except (RuntimeError, ValueError, IndexError):
                    model.steps.pop()
                    good = False
        except (RuntimeError, ValueError, IndexError, TypeError):
            good = False
        if not good:
            del model.parts[count:]
        forget(model)
    return model, x


def forget(model):
    for part in model.modules():
        if isinstance(part, Causal):
            part.kept = None
        if isinstance(part, Counted):
            part.calls = 0
        if isinstance(part, Remembered):
            part.mean.zero_()


def tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = result.values()
    return [t for part in result for t in tensors(part)]


class Wrong(Exception):
    pass


def require(holds, *what):
    if not holds:
        raise Wrong(" ".join(map(str, what)))


def spread_of(model, x, keywords, exact, unit):
    """What each tensor of a result changes by where the input changes by a rounding error."""
    found = []
    for _ in range(4):
        near = copy.deepcopy(model)(x * (1 + unit * torch.randn_like(x)), **keywords)
        found.append([(a - b).abs().max().item() if a.numel() else 0.0
                      for a, b in zip(tensors(near), tensors(exact))])
    return list(map(max, zip(*found)))


class GrownTest(unittest.TestCase):
    def compare(self, what, got, expected, exact, spread=None):
        """spread: gives spread_of."""
        require(type(got) is type(expected), what, "is a", type(got))
        got, expected, exact = map(tensors, (got, expected, exact))
        require(len(got) == len(expected), what, "has", len(got), "tensors")
        for i, (ours, theirs, true) in enumerate(zip(got, expected, exact)):
            require(ours.shape == theirs.shape, what, i, "has shape", ours.shape, "for",
                    theirs.shape)
            require(ours.dtype == theirs.dtype, what, i, "has type", ours.dtype)
            require(ours.requires_grad == theirs.requires_grad, what, i, "wants gradients:",
                    ours.requires_grad)
            if theirs.numel() == 0:
                continue
            true = true.detach()
            scale = true.abs().max().item() + 0.05
            wrong = (ours.detach().double() - true).abs().max().item()
            usual = (theirs.detach().double() - true).abs().max().item()
            unit = 2.0**-7 if theirs.dtype == torch.bfloat16 else 2.0**-19
            if wrong > 8 * usual + unit * scale and spread is not None:
                usual = max(usual, spread()[i])
            require(wrong <= 8 * usual + unit * scale or not math.isfinite(usual), what, i,
                    f"errs by {wrong:.3g}, PyTorch by {usual:.3g}, of {scale:.3g}")

    def calls(self, seed, x):
        """(what, input, keywords, context, change of the model) of each call."""
        r = random.Random(seed + 1)
        shorter = x.narrow(-1, 0, x.shape[-1] - 1)
        other = torch.randn(x.shape[0] + 1, *x.shape[1:])
        calls = [("a first call", x, {}, torch.no_grad, None),
                 ("a second call", x, {}, torch.no_grad, None),
                 ("other extents", shorter, {}, torch.no_grad, None),
                 ("another batch", other, {}, torch.inference_mode, None),
                 ("a keyword", x, {"scale": 0.5}, torch.no_grad, None),
                 ("gradients", x, {}, torch.enable_grad, None)]
        if x.dim() in (4, 5):
            memory_format = (torch.channels_last, torch.channels_last_3d)[x.dim() - 4]
            calls.append(("channels last", x.to(memory_format=memory_format), {}, torch.no_grad,
                          None))
        calls.append(("strides", torch.cat([x, x], 1)[:, ::2] if x.shape[1] > 1 else x, {},
                      torch.no_grad, None))
        calls = calls[:1] + r.sample(calls[1:], 4)

        def scaled(model):
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.75)

        def replaced(model):
            for p in model.parameters():
                p.data = p.data * 1.25

        def loaded(model):
            model.load_state_dict({k: v * 0.5 if v.is_floating_point() else v
                                   for k, v in model.state_dict().items()})

        change = r.choice((scaled, replaced, loaded))
        calls.append((f"weights {change.__name__}", x, {}, torch.no_grad, change))
        return calls

    def fault(self, seed, steps=None):
        """What is wrong with this model, accelerated; "" where it is as without. On the CPU dice
        say which way of a convolution or of a call is quicker, as a GPU's clock does."""
        if torch.get_default_device().type != "cpu":
            return self.found(seed, steps)
        r = random.Random(seed + 3)

        def microseconds(ways, device):
            # NOTE: norms are not PyTorch's: in channels-last memory on the CPU it takes the
            # variance from sums of squares.
            is_norm = set(ways) <= {"fused", "pytorch"}
            return {way: r.random() + (way == "pytorch" and is_norm) for way in ways}

        with measured(microseconds,
                      clock(r.random() * 9, r.random() * 9, r.choice((1.0, 0.6)))):
            return self.found(seed, steps)

    def found(self, seed, steps):
        model, x = grown(seed)
        if steps is not None:
            model.steps = model.steps[:steps]
        r = random.Random(seed + 2)
        on_card = x.is_cuda
        dtype = torch.bfloat16 if on_card and r.random() < 0.6 else torch.float32
        model, x = model.to(dtype), x.to(dtype)
        plain, exact = copy.deepcopy(model), copy.deepcopy(model).double()
        self.log = [f"{i + 1}: {name} of {a}, {b}" for i, (name, _, a, b) in enumerate(model.steps)]
        run, unit = model, 2.0**-7 if dtype == torch.bfloat16 else 2.0**-19
        if WAY == "compile":
            torch._dynamo.reset()
            run = torch.compile(model, backend=convoy.dynamo_backend)
        else:
            try:
                convoy.accelerate(
                    model, probe=r.random() < 0.5,
                    **r.choice(({}, {"upsample_folding": "fast"}, {"quality": "exact"})))
            except convoy.InvalidArgument as error:
                return "" if "no convolution" in str(error) else f"accelerate: {error}"
            if WAY == "graphed":
                # NOTE: what a call leaves in Python's objects, a graph does not repeat.
                if any(isinstance(part, (Causal, Counted)) for part in model.modules()):
                    return ""
                run = convoy.graphed(model)
        try:
            for what, given, keywords, context, change in self.calls(seed, x):
                if change is not None:
                    for one in (model, plain, exact):
                        change(one)
                given = given.detach().to(dtype)
                given, theirs, true = given.clone(), given.clone(), given.double()
                before = given.clone()
                with context():
                    try:
                        expected = plain(theirs, **keywords)
                    except Exception as error:  # The accelerated one is to say the same.
                        try:
                            run(given, **keywords)
                        except Exception as same:
                            require(WAY == "compile" or type(same) is type(error), what,
                                    "raises", repr(same)[:200], "for", repr(error)[:200])
                        else:
                            # NOTE: PyTorch refuses some tensors for how they lie.
                            require("memory format" in str(error) or "view size" in str(error),
                                    what, "does not raise", repr(error)[:200])
                        return ""
                    got = run(given, **keywords)
                    beside = copy.deepcopy(exact)
                    try:
                        exactly = exact(true.clone(), **keywords)
                    except RuntimeError:  # PyTorch checks the extents of fp64 alone.
                        return ""

                    spread = functools.partial(spread_of, beside, true, keywords, exactly, unit)
                    self.compare(what, got, expected, exactly, spread)
                    if WAY == "graphed" and not list(model.buffers()) and (
                            torch.equal(given, before)):
                        for _ in range(2):  # Captured, and replayed.
                            self.compare(f"{what}, again", run(given, **keywords), expected,
                                         exactly, spread)
                    # NOTE: a model that writes to its input writes to a copy, or to the input.
                    require(torch.equal(given, before) or torch.equal(given, theirs),
                            f"the input of {what} is written to")
                self.compare(f"state after {what}", dict(model.named_buffers()),
                             dict(plain.named_buffers()), dict(exact.named_buffers()))
            require(list(model.state_dict()) == list(plain.state_dict()), "state_dict differs")
            for one in (model, plain, exact):  # What accelerated calls left is rounded otherwise.
                forget(one)
            copied = copy.deepcopy(model)
            convoy.restore(model)
            with torch.no_grad():
                expected = plain(x.clone())
                restored = model(x.clone())
                for ours, theirs in zip(tensors(restored), tensors(expected)):
                    # NOTE: cuDNN has algorithms that add up in no fixed order.
                    require(torch.equal(ours, theirs) or ours.isnan().any() or on_card,
                            "restored differs")
                beside = copy.deepcopy(exact)
                exactly = exact(x.double())
                self.compare("a copy", copied(x.clone()), expected, exactly,
                             functools.partial(spread_of, beside, x.double(), {}, exactly, unit))
        except Wrong as wrong:
            return str(wrong)
        except Exception as error:  # Whatever it is, the model is to be told.
            # NOTE: as above; of one channel PyTorch cannot tell them apart.
            is_format = "Unsupported memory format" in str(error)
            return "" if is_format else f"{type(error).__name__}: {error}"
        return ""

    def test_grown_models(self):
        warnings.simplefilter("ignore")
        for seed in range(FIRST, LAST):
            with self.subTest(seed=seed):
                fault = self.fault(seed)
                if fault:
                    for steps in range(1, len(self.log)):  # The fewest that fail.
                        shorter = self.fault(seed, steps)
                        if shorter:
                            fault = shorter
                            break
                    else:
                        self.fault(seed)
                    self.fail("\n".join([f"seed {seed}: {fault}", *self.log]))


if __name__ == "__main__":
    unittest.main()
