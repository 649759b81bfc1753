#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers of networks that nobody tuned for: a seeded draw from published architectures.

    bench/shapes/wild.py --seeds 0:60 --layers 6 > train.txt
    bench/shapes/wild.py --seeds 1000:1060 --layers 6 > test.txt

A seed is a network (a family and its variant), a resolution, a batch and a type; `--layers` of its
distinct convolutions are drawn, in proportion to how often they run. Lines are those of shape
files, "SHAPE count=N dtype=TYPE epilogue=STEPS name=NETWORK.LAYER", in a random order, so that a
measurement that is cut off has seen a fair part. A seed gives the same lines everywhere.

Seeds below 1000 and from 1,000,000 on are for fitting and tuning. Those between are for judging:
what is fitted, tuned or written for a special case must not have seen them. Published networks have
many layers in common: judge by layers that no fit has seen.

Channels, strides and filters are those of the papers and their reference implementations: ResNet
(He 2015), Wide ResNet, ResNeXt, RegNet (Radosavovic 2020), VGG, Inception-v3, DenseNet, MobileNet v2
and v3, EfficientNet v1 and v2, ConvNeXt, YOLOv5 and v8, RetinaNet, DeepLabv3, HRNet, SegFormer, U-Net,
the VAEs of Stable Diffusion, SDXL, FLUX, DC-AE, Wan, HunyuanVideo and CogVideoX, the diffusion
U-Nets of Stable Diffusion, SDXL and ADM, EDSR, ESRGAN, RAFT, R(2+1)D, I3D, SlowFast, X3D, wav2vec 2,
Whisper, Conformer, HiFi-GAN, EnCodec, patch embeddings of ViT, Swin, DiT, Qwen2-VL and VideoMAE, nnU-Net,
V-Net and MedNeXt. Biases stand for folded batch norms.
"""

import argparse
import random
from dataclasses import dataclass, field
from typing import Any

# What is no use to measure: layers beyond these take long and teach nothing that smaller ones don't.
MOST_FLOPS = 1.5e12
MOST_ELEMENTS = 6e8  # Of input or output.
LEAST_FLOPS = 1e5


@dataclass(frozen=True)
class Layer:
    """A convolution: extents are (depth, height, width)."""

    batch: int
    extent: tuple[int, int, int]
    channels: int
    filters: int
    taps: tuple[int, int, int]
    stride: tuple[int, int, int]
    begin: tuple[int, int, int]
    end: tuple[int, int, int]
    dilation: tuple[int, int, int]
    groups: int
    upsample: int
    cache: int
    is_3d: bool
    epilogue: str
    name: str = field(compare=False)

    def output(self):
        seen = [self.extent[0] + self.cache, *(x * self.upsample for x in self.extent[1:])]
        reach = [(t - 1) * d + 1 for t, d in zip(self.taps, self.dilation, strict=True)]
        return tuple(
            (seen[i] + self.begin[i] + self.end[i] - reach[i]) // self.stride[i] + 1
            for i in range(3)
        )

    def flops(self):
        z, p, q = self.output()
        t, r, s = self.taps
        return 2.0 * self.batch * z * p * q * self.filters * self.channels / self.groups * t * r * s

    def is_measurable(self):
        z, p, q = self.output()
        d, h, w = self.extent
        return (
            min(z, p, q, self.channels, self.filters) > 0
            and LEAST_FLOPS < self.flops() < MOST_FLOPS
            and self.batch * d * h * w * self.channels < MOST_ELEMENTS
            and self.batch * z * p * q * self.filters < MOST_ELEMENTS
        )

    def shape(self):
        """As to_string() of a problem has it."""
        text = f"n{self.batch}"
        axes = range(0 if self.is_3d else 1, 3)
        text += "".join("dhw"[i] + str(self.extent[i]) for i in axes)
        text += f"c{self.channels}k{self.filters}"
        text += "".join("trs"[i] + str(self.taps[i]) for i in axes)
        for i in axes:
            axis = "dhw"[i]
            text += f"p{axis}{self.begin[i]}" if self.begin[i] else ""
            text += f"p{axis}e{self.end[i]}" if self.end[i] != self.begin[i] else ""
            text += f"s{axis}{self.stride[i]}" if self.stride[i] != 1 else ""
            text += f"d{axis}{self.dilation[i]}" if self.dilation[i] != 1 else ""
        text += f"g{self.groups}" if self.groups != 1 else ""
        text += f"up{self.upsample}" if self.upsample != 1 else ""
        text += f"cache{self.cache}" if self.cache else ""
        return text


def triple(value: Any) -> tuple[int, int, int]:
    """3 for every axis; (3, 3) for height and width, 1 along depth; (1, 3, 3) as it is."""
    if isinstance(value, int):
        return (value, value, value)
    return (1, *value) if len(value) == 2 else tuple(value)


class Net:
    """Records convolutions, and the tensor that flows through them."""

    def __init__(self, name, batch, extent, channels, act="relu", rank=2):
        self.name, self.batch, self.channels, self.act, self.rank = name, batch, channels, act, rank
        self.extent = (1, *extent) if len(extent) == 2 else tuple(extent)
        self.layers: dict[Layer, int] = {}

    def conv(self, filters, taps, stride=1, *, pad="same", dilation=1, groups=1, act=None, bias=True,
             residual=False, upsample=1, cache=0, count=1, move=True):
        """`pad`: "same" (half the reach on each side), "causal" (none along depth), "valid", an
        extent, or (begin, end) of height and width. `act`: the network's own; "none" for none.
        `move`: the output is what flows on."""
        taps, stride, dilation = triple(taps), triple(stride), triple(dilation)
        if self.rank == 2:
            taps, stride, dilation = (1, *taps[1:]), (1, *stride[1:]), (1, *dilation[1:])
        half = tuple((t - 1) * d // 2 for t, d in zip(taps, dilation, strict=True))
        begin, end = half, half
        if pad == "causal":
            begin, end = (0, *half[1:]), (0, *half[1:])
        elif pad == "valid":
            begin = end = (0, 0, 0)
        elif isinstance(pad, tuple):
            begin, end = (0, pad[0], pad[0]), (0, pad[1], pad[1])
        elif isinstance(pad, int):
            begin = end = (pad if self.rank == 3 else 0, pad, pad)
        act = self.act if act is None else act
        steps = (["bias"] if bias else []) + ([act] if act != "none" else [])
        steps += ["residual"] if residual else []
        # 1-D layers pad and filter along the width alone.
        if self.extent[1] == 1 and self.rank == 2:
            taps, stride, dilation = (1, 1, taps[2]), (1, 1, stride[2]), (1, 1, dilation[2])
            begin, end = (0, 0, begin[2]), (0, 0, end[2])
        layer = Layer(
            batch=self.batch, extent=self.extent, channels=self.channels, filters=filters,
            taps=taps, stride=stride, begin=begin, end=end, dilation=dilation, groups=groups,
            upsample=upsample, cache=cache, is_3d=self.rank == 3,
            epilogue="+".join(steps) or "none", name=self.name,
        )  # fmt: skip
        if min(layer.output()) < 1:
            return self
        self.layers[layer] = self.layers.get(layer, 0) + count
        if move:
            self.channels, self.extent = filters, layer.output()
        return self

    def pool(self, stride=2):
        stride = triple(stride)
        if self.rank == 2:
            stride = (1, *stride[1:])
        self.extent = tuple(max(1, -(-x // s)) for x, s in zip(self.extent, stride, strict=True))
        return self

    def grow(self, factor=2):
        """Upsampling that is a pass of its own."""
        deep = self.rank == 3
        self.extent = tuple(x * (factor if i > 0 or deep else 1) for i, x in enumerate(self.extent))
        return self

    def at(self, channels, extent=None):
        """Branches and skips: another tensor from here on."""
        self.channels = channels
        if extent is not None:
            self.extent = (1, *extent) if len(extent) == 2 else tuple(extent)
        return self


def divisible(value, by=8):
    return max(by, int(value + by / 2) // by * by)


# ---- Classifiers --------------------------------------------------------------------------------


def resnet(r, batch, size):
    variant = r.choice([(18, 64, 1), (34, 64, 1), (50, 64, 1), (101, 64, 1), (152, 64, 1), (50, 128, 1),
                        (50, 4, 32), (101, 8, 32), (101, 4, 64)])  # fmt: skip
    depth, width, groups = variant
    blocks = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
    net = Net(f"resnet{depth}_w{width}_g{groups}", batch, size, 3)
    net.conv(64, 7, 2).pool()
    for stage, count in enumerate(blocks[depth]):
        base, stride = 64 << stage, 2 if stage else 1
        inner = base * width * groups // 64
        for i in range(count):
            step = stride if i == 0 else 1
            if depth < 50:
                if step == 2:
                    net.conv(base, 1, 2, act="none", move=False)
                net.conv(base, 3, step).conv(base, 3, residual=True)
                continue
            if i == 0:
                net.conv(base * 4, 1, step, act="none", move=False)
            net.conv(inner, 1).conv(inner, 3, step, groups=groups)
            net.conv(base * 4, 1, residual=True)
    return net


def regnet(r, batch, size):
    name, widths, depths, group = r.choice([
        ("x400mf", (32, 64, 160, 400), (1, 2, 7, 12), 16), ("x800mf", (64, 128, 288, 672), (1, 3, 7, 5), 16),
        ("x1.6gf", (72, 168, 408, 912), (2, 4, 10, 2), 24), ("x3.2gf", (96, 192, 432, 1008), (2, 6, 15, 2), 48),
        ("x4gf", (80, 240, 560, 1360), (2, 5, 14, 2), 40), ("x8gf", (80, 240, 720, 1920), (2, 5, 15, 1), 120),
        ("x16gf", (256, 512, 896, 2048), (2, 6, 13, 1), 128), ("x32gf", (336, 672, 1344, 2520), (2, 7, 13, 1), 168),
        ("y400mf", (48, 104, 208, 440), (1, 3, 6, 6), 8), ("y800mf", (64, 144, 320, 784), (1, 3, 8, 2), 16),
        ("y1.6gf", (48, 120, 336, 888), (2, 6, 17, 2), 24), ("y4gf", (128, 192, 512, 1088), (2, 6, 12, 2), 64),
        ("y8gf", (168, 448, 896, 2016), (2, 4, 10, 1), 56), ("y16gf", (224, 448, 1232, 3024), (2, 4, 11, 1), 112),
    ])  # fmt: skip
    net = Net(f"regnet_{name}", batch, size, 3).conv(32, 3, 2)
    for width, depth in zip(widths, depths, strict=True):
        for i in range(depth):
            step = 2 if i == 0 else 1
            if i == 0:
                net.conv(width, 1, 2, act="none", move=False)
            net.conv(width, 1).conv(width, 3, step, groups=width // min(width, group))
            net.conv(width, 1, residual=True)
    return net


def vgg(r, batch, size):
    depth = r.choice([(1, 1, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)])
    net = Net(f"vgg{sum(depth) + 3}", batch, size, 3)
    for stage, count in enumerate(depth):
        for _ in range(count):
            net.conv(min(64 << stage, 512), 3)
        net.pool()
    return net


def inception(r, batch, size):
    net = Net("inception_v3", batch, size, 3)
    taps: Any
    net.conv(32, 3, 2, pad="valid").conv(32, 3, pad="valid").conv(64, 3).pool()
    net.conv(80, 1).conv(192, 3, pad="valid").pool()
    for channels in (192, 256, 288):
        for filters, taps, before in ((64, 1, 0), (64, 5, 48), (96, 3, 64), (96, 3, 96)):
            net.at(before or channels).conv(filters, taps, move=False)
    net.pool()
    for inner in (128, 160, 160, 192):
        for channels, filters, taps in ((768, inner, 1), (inner, inner, (1, 7)), (inner, 192, (7, 1)),
                                        (inner, inner, (7, 1)), (inner, 192, (1, 7)), (768, 192, 1)):  # fmt: skip
            net.at(channels).conv(filters, taps, move=False)
    net.pool()
    for channels, filters, taps in ((1280, 320, 1), (2048, 384, 1), (384, 384, (1, 3)), (384, 384, (3, 1)),
                                    (2048, 448, 1), (448, 384, 3), (2048, 192, 1)):  # fmt: skip
        net.at(channels).conv(filters, taps, move=False)
    return net


def densenet(r, batch, size):
    name, growth, blocks = r.choice([("121", 32, (6, 12, 24, 16)), ("169", 32, (6, 12, 32, 32)),
                                     ("201", 32, (6, 12, 48, 32)), ("161", 48, (6, 12, 36, 24))])  # fmt: skip
    channels = 2 * growth
    net = Net(f"densenet{name}", batch, size, 3).conv(channels, 7, 2).pool()
    for stage, count in enumerate(blocks):
        for i in range(count):
            net.at(channels + i * growth).conv(4 * growth, 1).conv(growth, 3, act="none", bias=False)
        channels += count * growth
        if stage < 3:
            net.at(channels).conv(channels // 2, 1, act="none", bias=False).pool()
            channels //= 2
    return net


def inverted_residual(net, filters, expand, taps, step, act):
    """1x1 up, depthwise, 1x1 down."""
    inner = divisible(net.channels * expand)
    keeps = step == 1 and filters == net.channels
    if expand != 1:
        net.conv(inner, 1, act=act)
    net.conv(inner, taps, step, groups=inner, act=act)
    net.conv(filters, 1, act="none", residual=keeps)


def mobilenet(r, batch, size):
    width = r.choice([0.5, 0.75, 1.0, 1.0, 1.4])
    version = r.choice([2, 3])
    net = Net(f"mobilenet_v{version}_{width}", batch, size, 3, "clamp" if version == 2 else "hardswish")
    if version == 2:
        net.conv(divisible(32 * width), 3, 2)
        for times, filters, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                                               (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):  # fmt: skip
            for i in range(count):
                inverted_residual(net, divisible(filters * width), times, 3, stride if i == 0 else 1, "clamp")
        return net.conv(divisible(1280 * max(width, 1.0)), 1)
    net.conv(16, 3, 2)
    expand: float
    for taps, expand, filters, act, stride in (
        (3, 1, 16, "relu", 1), (3, 4, 24, "relu", 2), (3, 3, 24, "relu", 1), (5, 3, 40, "relu", 2), (5, 3, 40, "relu", 1),
        (3, 6, 80, "hardswish", 2), (3, 2.5, 80, "hardswish", 1), (3, 6, 112, "hardswish", 1), (5, 6, 160, "hardswish", 2),
        (5, 6, 160, "hardswish", 1),
    ):  # fmt: skip
        inverted_residual(net, divisible(filters * width), expand, taps, stride, act)
    return net.conv(divisible(960 * width), 1)


def efficientnet(r, batch, size):
    if r.random() < 0.35:
        name, stages = r.choice([
            ("v2s", ((1, 3, 1, 24, 2), (4, 3, 2, 48, 4), (4, 3, 2, 64, 4), (-4, 3, 2, 128, 6), (-6, 3, 1, 160, 9), (-6, 3, 2, 256, 15))),
            ("v2m", ((1, 3, 1, 24, 3), (4, 3, 2, 48, 5), (4, 3, 2, 80, 5), (-4, 3, 2, 160, 7), (-6, 3, 1, 176, 14), (-6, 3, 2, 304, 18))),
        ])  # fmt: skip
        net = Net(f"efficientnet_{name}", batch, size, 3, "silu").conv(24, 3, 2)
        for expand, taps, stride, filters, count in stages:
            for i in range(count):
                step = stride if i == 0 else 1
                if expand < 0:
                    inverted_residual(net, filters, -expand, taps, step, "silu")
                elif expand == 1:
                    net.conv(filters, 3, step, residual=step == 1)
                else:
                    keeps = step == 1 and filters == net.channels
                    net.conv(net.channels * expand, 3, step).conv(filters, 1, act="none", residual=keeps)
        return net
    b = r.randrange(8)
    width = (1.0, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0)[b]
    net = Net(f"efficientnet_b{b}", batch, size, 3, "silu").conv(divisible(32 * width), 3, 2)
    for expand, taps, stride, filters in ((1, 3, 1, 16), (6, 3, 2, 24), (6, 5, 2, 40), (6, 3, 2, 80), (6, 5, 1, 112),
                                          (6, 5, 2, 192), (6, 3, 1, 320)):  # fmt: skip
        for i in range(2):
            inverted_residual(net, divisible(filters * width), expand, taps, stride if i == 0 else 1, "silu")
    return net.conv(divisible(1280 * width), 1)


def convnext(r, batch, size):
    name, widths = r.choice([("tiny", (96, 192, 384, 768)), ("base", (128, 256, 512, 1024)), ("large", (192, 384, 768, 1536)),
                             ("xlarge", (256, 512, 1024, 2048)), ("nano", (80, 160, 320, 640)), ("femto", (48, 96, 192, 384))])  # fmt: skip
    net = Net(f"convnext_{name}", batch, size, 3, "gelu").conv(widths[0], 4, 4, pad="valid", act="none")
    for stage, width in enumerate(widths):
        if stage:
            net.conv(width, 2, 2, pad="valid", act="none")
        for _ in range(3):
            net.conv(width, 7, groups=width, act="none").conv(4 * width, 1).conv(width, 1, act="none", residual=True)
    return net


# ---- Detectors and segmenters -------------------------------------------------------------------


def c2f(net, filters, count):
    net.conv(filters, 1)
    for _ in range(count):
        net.at(filters // 2).conv(filters // 2, 3).conv(filters // 2, 3, residual=True)
    net.at(filters // 2 * (count + 2)).conv(filters, 1)


def yolo(r, batch, size):
    name, depth, width, most = r.choice([("n", 0.33, 0.25, 1024), ("s", 0.33, 0.5, 1024), ("m", 0.67, 0.75, 768),
                                         ("l", 1.0, 1.0, 512), ("x", 1.0, 1.25, 512)])  # fmt: skip
    five = r.random() < 0.4
    net = Net(f"yolov{5 if five else 8}{name}", batch, size, 3, "silu")
    widths = [divisible(min(64 << i, 1024 if five else most) * width) for i in range(5)]
    net.conv(widths[0], 6 if five else 3, 2, pad=2 if five else 1)
    extents = []
    for stage, filters in enumerate(widths[1:]):
        net.conv(filters, 3, 2)
        count = max(1, round((3, 6, 6, 3)[stage] * depth))
        if five:
            channels = net.channels
            net.conv(filters // 2, 1, move=False).at(filters // 2)
            for _ in range(count):
                net.conv(filters // 2, 1).conv(filters // 2, 3, residual=True)
            net.at(filters).conv(filters, 1)
            assert channels == filters
        else:
            c2f(net, filters, count)
        extents.append(net.extent)
    # The neck from the top, and the heads.
    for level in (2, 1):
        net.at(widths[level + 2] + widths[level + 1], extents[level])
        c2f(net, widths[level + 1], max(1, round(3 * depth)))
    boxes, classes = max(16, widths[2] // 4, 64), max(widths[2], min(80, 100))
    for level in (1, 2, 3):
        net.at(widths[level + 1], extents[level])
        for inner, last in ((boxes, 64), (classes, 80)):
            net.at(widths[level + 1]).conv(inner, 3).conv(inner, 3).conv(last, 1, act="none")
    return net


def retinanet(r, batch, size):
    net = Net("retinanet", batch, size, 3)
    h, w = net.extent[1:]
    for level, channels in ((3, 512), (4, 1024), (5, 2048)):
        extent = (-(-h // 2**level), -(-w // 2**level))
        net.at(channels, extent).conv(256, 1, act="none").conv(256, 3, act="none")
    for level in range(3, 8):
        net.at(256, (-(-h // 2**level), -(-w // 2**level)))
        for _ in range(4):
            net.conv(256, 3)
        net.conv(720, 3, act="none", move=False).conv(36, 3, act="none", move=False)
    return net


def deeplab(r, batch, size):
    net = Net("deeplabv3", batch, tuple(x // 8 for x in size), 1024)
    for dilation in (2, 4):
        net.at(2048).conv(512, 1).conv(512, 3, dilation=dilation).conv(2048, 1, residual=True)
    for dilation in (12, 24, 36):
        net.at(2048).conv(256, 3, dilation=dilation, move=False)
    net.at(2048).conv(256, 1, move=False)
    return net.at(1280).conv(256, 1).conv(256, 3).conv(r.choice([19, 21, 150]), 1, act="none")


def hrnet(r, batch, size):
    width = r.choice([18, 32, 48])
    net = Net(f"hrnet_w{width}", batch, size, 3).conv(64, 3, 2).conv(64, 3, 2)
    h, w = net.extent[1:]
    net.conv(64, 1).conv(64, 3).conv(256, 1, residual=True)
    for branch in range(4):
        extent = (-(-h // 2**branch), -(-w // 2**branch))
        net.at(width << branch, extent).conv(width << branch, 3).conv(width << branch, 3, residual=True)
        if branch:
            net.at(width << branch, extent).conv(width, 1, act="none")
            net.at(width << (branch - 1), (-(-h // 2 ** (branch - 1)), -(-w // 2 ** (branch - 1))))
            net.conv(width << branch, 3, 2, act="none")
    return net.at(15 * width, (h, w)).conv(15 * width, 1).conv(r.choice([17, 19]), 1, act="none")


def segformer(r, batch, size):
    widths, head = r.choice([((32, 64, 160, 256), 256), ((64, 128, 320, 512), 256), ((64, 128, 320, 512), 768)])
    net = Net(f"segformer_{widths[0]}_{head}", batch, size, 3, "none")
    net.conv(widths[0], 7, 4)
    first = net.extent[1:]
    for stage, width in enumerate(widths):
        if stage:
            net.conv(width, 3, 2)
        reduction = 8 >> stage
        if reduction > 1:
            net.conv(width, reduction, reduction, pad="valid", move=False)
        net.conv(4 * width, 1).conv(4 * width, 3, groups=4 * width, act="gelu").at(4 * width).conv(width, 1, residual=True)
    return net.at(4 * head, first).conv(head, 1, act="relu").conv(r.choice([19, 150]), 1)


def unet(r, batch, size):
    base, classes = r.choice([32, 48, 64, 64]), r.choice([1, 2, 4, 19])
    net = Net(f"unet_{base}", batch, size, r.choice([1, 3, 4]))
    extents = []
    for level in range(5):
        net.conv(base << level, 3).conv(base << level, 3)
        extents.append(net.extent)
        net.pool()
    for level in (3, 2, 1, 0):
        net.at(base << (level + 1), extents[level + 1]).conv(base << level, 3, upsample=2, act="none", move=False)
        net.at(base << (level + 1), extents[level]).conv(base << level, 3).conv(base << level, 3)
    return net.conv(classes, 1, act="none")


# ---- Generative image models --------------------------------------------------------------------


def image_vae(r, batch, size):
    encodes = r.random() < 0.5
    latent = r.choice([4, 4, 16, 32])
    base = r.choice([128, 128, 128, 96, 64])
    widths = [base, 2 * base, 4 * base, 4 * base]
    net = Net(f"vae_{'encoder' if encodes else 'decoder'}_{base}_{latent}", batch, size, 3, "none")

    def resnet(filters):
        if net.channels != filters:
            net.conv(filters, 1, move=False)
        net.conv(filters, 3).conv(filters, 3, residual=True)

    if encodes:
        net.conv(base, 3)
        for level, width in enumerate(widths):
            resnet(width)
            resnet(width)
            if level < 3:
                net.conv(width, 3, 2, pad=(0, 1))
        return net.conv(2 * latent, 3).conv(2 * latent, 1)
    net.at(latent, tuple(x // 8 for x in size)).conv(latent, 1).conv(widths[3], 3)
    for level in (3, 2, 1, 0):
        for _ in range(3):
            resnet(widths[level])
        if level:
            net.conv(widths[level], 3, upsample=2)
    return net.conv(3, 3)


def dcae(r, batch, size):
    """The residual and EfficientViT blocks of a deep compression autoencoder."""
    net = Net("dcae", batch, size, 3, "silu").conv(128, 3, act="none")
    for width in (128, 256, 512, 512, 1024, 1024):
        if width <= 512:
            net.at(width).conv(width, 3).conv(width, 3, act="none", residual=True)
        else:
            net.at(width).conv(8 * width, 1, act="none").conv(8 * width, 3, groups=8 * width, act="none")
            net.at(4 * width).conv(width, 1, act="none", residual=True)
        net.at(width).conv(width // 2, 3, act="none", move=False).pool()
    return net


def diffusion_unet(r, batch, size):
    name, widths, channels = r.choice([("sd15", (320, 640, 1280, 1280), 4), ("sdxl", (320, 640, 1280), 4),
                                       ("adm", (192, 384, 576, 768), 3), ("adm_256", (256, 256, 512, 512, 1024), 3),
                                       ("ddpm", (128, 256, 256, 256), 3)])  # fmt: skip
    scale = 4 if channels == 3 else 8
    net = Net(f"unet_{name}", r.choice([1, 2, 2, 4, 8]), tuple(x // scale for x in size), channels, "none")
    net.conv(widths[0], 3)
    skips = [(net.channels, net.extent)]
    for level, width in enumerate(widths):
        for _ in range(2):
            if net.channels != width:
                net.conv(width, 1, move=False)
            net.conv(width, 3).conv(width, 3, residual=True)
            skips.append((net.channels, net.extent))
        if level + 1 < len(widths):
            net.conv(width, 3, 2)
    for level, width in reversed(list(enumerate(widths))):
        for _ in range(2):
            skip, extent = skips.pop()
            net.at(net.channels + skip, extent).conv(width, 1, move=False).conv(width, 3).conv(width, 3, residual=True)
        if level:
            net.conv(width, 3, upsample=2)
    return net.conv(channels, 3)


def super_resolution(r, batch, size):
    if r.random() < 0.5:
        width = r.choice([64, 180, 256])
        net = Net(f"edsr_{width}", batch, size, 3).conv(width, 3, act="none")
        net.conv(width, 3).conv(width, 3, act="none", residual=True).conv(4 * width, 3, act="none")
        return net.at(width).grow(2).conv(3, 3, act="none")
    net = Net("esrgan", batch, size, 3, "leaky_relu").conv(64, 3, act="none")
    for i in range(4):
        net.at(64 + 32 * i).conv(32, 3, move=False)
    net.at(192).conv(64, 3, act="none", residual=True).conv(64, 3, upsample=2)
    return net.conv(64, 3, upsample=2).conv(64, 3).conv(3, 3, act="none")


def raft(r, batch, size):
    net = Net("raft", batch, size, 3).conv(64, 7, 2)
    net.conv(64, 3).conv(64, 3, residual=True).conv(96, 3, 2).conv(96, 3).conv(128, 3, 2).conv(256, 1, act="none")
    for channels, filters, taps, act in ((324, 256, 1, "relu"), (256, 192, 3, "relu"), (2, 128, 7, "relu"), (128, 64, 3, "relu"),
                                         (256, 126, 3, "relu"), (384, 128, (1, 5), "sigmoid"), (384, 128, (5, 1), "tanh"),
                                         (128, 256, 3, "relu"), (256, 2, 3, "none"), (256, 576, 1, "none")):  # fmt: skip
        net.at(channels).conv(filters, taps, act=act, move=False)
    return net


# ---- Video --------------------------------------------------------------------------------------


def video_vae(r, batch, size):
    name, base, latent = r.choice([("wan", 96, 16), ("hunyuan", 128, 16), ("cogvideox", 128, 16), ("small", 64, 8)])
    frames = r.choice([1, 2, 4, 8]) if name == "wan" else r.choice([5, 9, 17])
    encodes = r.random() < 0.5
    net = Net(f"video_vae_{name}_{'encoder' if encodes else 'decoder'}", 1, (frames, *size), 3, "none", rank=3)
    # Chunks after the first find two frames in a cache; others were padded in front beforehand.
    causal = {"pad": "causal", "cache": 2 if name == "wan" else 0}

    def conv(filters, residual=False):
        if name != "wan":
            net.extent = (net.extent[0] + 2, *net.extent[1:])
        net.conv(filters, 3, residual=residual, **causal)

    def resnet(filters):
        if net.channels != filters:
            net.conv(filters, 1, move=False)
        conv(filters)
        conv(filters, residual=True)

    widths = [base, 2 * base, 4 * base, 4 * base]
    if encodes:
        conv(base)
        for level, width in enumerate(widths):
            resnet(width)
            resnet(width)
            if level < 3:
                net.conv(width, (1, 3, 3), (1, 2, 2), pad=(0, 1))
        conv(2 * latent)
        return net
    net.at(latent, (net.extent[0], *(x // 8 for x in size)))
    conv(widths[3])
    for level in (3, 2, 1, 0):
        resnet(widths[level])
        resnet(widths[level])
        if level:
            depth = net.extent[0]
            net.grow(2).extent = (depth, *net.extent[1:])
            net.conv(widths[level] // 2, (1, 3, 3))
    conv(3)
    return net


def video_net(r, batch, size):
    name = r.choice(["r2plus1d", "i3d", "slowfast", "x3d"])
    batch = r.choice([1, 2, 4, 8, 16])
    frames = r.choice([8, 16, 32])
    side = r.choice([112, 160, 182, 224, 256])
    net = Net(f"{name}_{frames}", batch, (frames, side, side), 3, rank=3)
    if name == "r2plus1d":
        net.conv(45, (1, 7, 7), (1, 2, 2)).conv(64, (3, 1, 1))
        for width, inner, stride in ((64, 144, 1), (128, 230, 2), (256, 460, 2), (512, 921, 2)):
            net.conv(inner, (1, 3, 3), (1, stride, stride)).conv(width, (3, 1, 1), (stride, 1, 1), residual=stride == 1)
            net.conv(width * 9 // 4, (1, 3, 3)).conv(width, (3, 1, 1), residual=True)
        return net
    if name == "i3d":
        net.conv(64, 7, 2).pool((1, 2, 2)).conv(64, 1).conv(192, 3).pool((1, 2, 2))
        for channels, branches in ((192, ((96, 128), (16, 32))), (256, ((128, 192), (32, 96))), (480, ((96, 208), (16, 48))),
                                   (528, ((160, 320), (32, 128)))):  # fmt: skip
            for inner, filters in branches:
                net.at(channels).conv(inner, 1, move=False).at(inner).conv(filters, 3, move=False)
            net.pool(2 if channels == 256 else 1)
        return net
    if name == "slowfast":
        fast = r.random() < 0.5
        base = 8 if fast else 64
        net.conv(base, (5 if fast else 1, 7, 7), (1, 2, 2)).pool((1, 2, 2))
        for stage in range(4):
            width, depth = base << stage, 3 if fast or stage > 1 else 1
            for i in range(2):
                step = (1, 2, 2) if stage and i == 0 else (1, 1, 1)
                net.conv(width, (depth, 1, 1)).conv(width, (1, 3, 3), step).conv(4 * width, 1, residual=True)
        return net
    net.conv(24, (1, 3, 3), (1, 2, 2), act="none").conv(24, (5, 1, 1), groups=24)
    for width in (24, 48, 96, 192):
        inner = divisible(width * 2.25)
        for step in ((1, 2, 2), (1, 1, 1)):
            net.conv(inner, 1).conv(inner, 3, step, groups=inner, act="silu").conv(width, 1, residual=step == (1, 1, 1))
    return net


# ---- Speech: height 1 ---------------------------------------------------------------------------


def speech(r, batch, size):
    name = r.choice(["wav2vec2", "whisper", "conformer", "hifigan", "encodec"])
    seconds = r.choice([1, 3, 5, 10, 30])
    batch = r.choice([1, 1, 4, 8, 16])
    if name == "wav2vec2":
        net = Net(name, batch, (1, 16000 * seconds), 1, "gelu").conv(512, 10, 5, pad="valid")
        for taps in (3, 3, 3, 3, 2, 2):
            net.conv(512, taps, 2, pad="valid")
        width = r.choice([768, 1024])
        return net.at(width).conv(width, 127 if r.random() < 0.5 else 128, groups=16)
    if name == "whisper":
        width = r.choice([384, 512, 768, 1024, 1280])
        return Net(f"whisper_{width}", batch, (1, 3000), r.choice([80, 80, 128]), "gelu").conv(width, 3).conv(width, 3, 2)
    if name == "conformer":
        width = r.choice([144, 256, 512])
        net = Net(f"conformer_{width}", batch, (1, 25 * seconds), width, "none")
        net.conv(2 * width, 1, move=False).conv(width, r.choice([15, 31]), groups=width, act="silu").conv(width, 1, residual=True)
        return net.at(1, (100 * seconds, 80)).conv(width, 3, 2, act="relu").conv(width, 3, 2, act="relu")
    if name == "hifigan":
        first = r.choice([512, 256])
        net = Net(f"hifigan_{first}", batch, (1, 86 * seconds), 80, "leaky_relu").conv(first, 7)
        for level, factor in enumerate((8, 8, 2, 2)):
            net.at(first >> (level + 1), (1, net.extent[2] * factor))
            for taps in (3, 7, 11):
                for dilation in (1, 3, 5):
                    net.conv(net.channels, taps, dilation=dilation, move=False)
                net.conv(net.channels, taps, act="none", residual=True)
        return net.conv(1, 7, act="tanh")
    net = Net("encodec", batch, (1, 24000 * seconds), 1, "none").conv(32, 7)
    for factor in (2, 4, 5, 8):
        net.conv(net.channels // 2, 3).conv(net.channels * 2, 1, residual=True)
        net.conv(2 * net.channels, 2 * factor, factor, pad=factor // 2)
    return net.conv(128, 7)


# ---- Patch embeddings ---------------------------------------------------------------------------


def patch_embedding(r, batch, size):
    kind = r.choice(["vit", "vit", "swin", "dit", "qwen", "videomae"])
    if kind == "vit":
        patch = r.choice([14, 16, 16, 32])
        side = r.choice([224, 256, 336, 384, 448, 518]) // patch * patch
        net = Net(f"vit_p{patch}", batch, (side, side), 3, "none")
        return net.conv(r.choice([192, 384, 768, 1024, 1152, 1280, 1408]), patch, patch, pad="valid")
    if kind == "swin":
        net = Net("swin", batch, size, 3, "none")
        return net.conv(r.choice([96, 128, 192]), 4, 4, pad="valid")
    if kind == "dit":
        net = Net("dit", batch, tuple(x // 8 for x in size), r.choice([4, 16]), "none")
        return net.conv(r.choice([384, 768, 1152, 1536, 2432]), 2, 2, pad="valid")
    if kind == "qwen":
        net = Net("qwen2_vl", r.choice([256, 1024, 2304, 4096]), (2, 14, 14), 3, "none", rank=3)
        return net.conv(1280, (2, 14, 14), (2, 14, 14), pad="valid", bias=False)
    net = Net("videomae", r.choice([1, 2, 8]), (16, 224, 224), 3, "none", rank=3)
    return net.conv(r.choice([384, 768, 1024]), (2, 16, 16), (2, 16, 16), pad="valid")


# ---- 3-D medical --------------------------------------------------------------------------------


def medical(r, batch, size):
    name = r.choice(["nnunet", "nnunet", "vnet", "mednext", "segresnet"])
    extent = r.choice([(64, 64, 64), (96, 96, 96), (128, 128, 128), (40, 192, 160), (48, 224, 192), (80, 160, 160), (20, 320, 256)])
    batch = r.choice([1, 2, 2])
    channels = r.choice([1, 1, 2, 4])
    if name == "nnunet":
        net = Net(name, batch, extent, channels, "leaky_relu", rank=3)
        thin = extent[0] <= 20
        for level in range(6):
            width = min(32 << level, 320)
            taps = (1, 3, 3) if thin and level < 2 else 3
            net.conv(width, taps, 1 if level == 0 else (1, 2, 2) if thin else 2)
            net.conv(width, taps)
            if level:
                net.at(2 * width).conv(width, taps, move=False).at(width)
        return net.at(32, extent).conv(r.choice([3, 4, 14]), 1, act="none")
    if name == "vnet":
        net = Net(name, batch, extent, channels, "leaky_relu", rank=3)
        for level in range(5):
            width = 16 << level
            net.conv(width, 5 if level == 0 else 2, 1 if level == 0 else 2, pad="same" if level == 0 else "valid")
            net.conv(width, 5, residual=True)
        return net
    if name == "mednext":
        taps = r.choice([3, 5])
        net = Net(f"mednext_{taps}", batch, extent, channels, "gelu", rank=3).conv(32, 1, act="none")
        for level in range(4):
            width = 32 << level
            net.at(width).conv(width, taps, groups=width, act="none").conv(width * 3, 1).conv(width, 1, act="none", residual=True)
            net.conv(width, taps, 2, groups=width, act="none")
        return net
    net = Net(name, batch, extent, channels, rank=3).conv(16, 3, act="none")
    for level in range(4):
        net.conv(16 << level, 3).conv(16 << level, 3, residual=True).conv(32 << level, 3, 2, act="none")
    return net


# ---- The draw -----------------------------------------------------------------------------------

SQUARE = ((160, 160), (192, 192), (224, 224), (224, 224), (224, 224), (256, 256), (288, 288), (384, 384), (448, 448))
SCENE = ((320, 320), (384, 640), (416, 416), (512, 512), (640, 640), (640, 640), (512, 1024), (800, 1333), (768, 1280))
IMAGE = ((256, 256), (512, 512), (512, 768), (768, 768), (832, 1216), (1024, 1024), (1024, 1024), (896, 1152))
VIDEO = ((256, 256), (240, 416), (480, 832), (480, 720), (320, 512))
SMALL = ((96, 128), (180, 320), (192, 192), (270, 480), (360, 640))

# Family, weight, resolutions, batches.
FAMILIES = (
    (resnet, 4, SQUARE, (1, 1, 2, 4, 8, 16, 32, 64)),
    (regnet, 3, SQUARE, (1, 4, 8, 16, 32, 64)),
    (vgg, 1, SQUARE, (1, 4, 16, 32)),
    (inception, 1, ((299, 299),), (1, 8, 32)),
    (densenet, 1, SQUARE, (1, 8, 32)),
    (mobilenet, 3, SQUARE, (1, 1, 4, 16, 64)),
    (efficientnet, 3, SQUARE, (1, 1, 4, 16, 32)),
    (convnext, 3, SQUARE, (1, 2, 8, 16, 64)),
    (yolo, 5, SCENE, (1, 1, 4, 8, 16, 32)),
    (retinanet, 1, SCENE, (1, 2, 4)),
    (deeplab, 1, SCENE, (1, 2, 4)),
    (hrnet, 2, SCENE, (1, 2, 8)),
    (segformer, 2, SCENE, (1, 2, 8)),
    (unet, 2, SCENE, (1, 2, 4, 8)),
    (image_vae, 4, IMAGE, (1, 1, 2, 4)),
    (dcae, 1, IMAGE, (1, 2)),
    (diffusion_unet, 3, ((256, 256), (512, 512), (512, 512), (768, 768), (1024, 1024), (832, 1216)), (2,)),
    (super_resolution, 2, SMALL, (1, 1, 4, 16)),
    (raft, 1, ((368, 496), (440, 1024)), (1, 2)),
    (video_vae, 4, VIDEO, (1,)),
    (video_net, 3, ((0, 0),), (1,)),
    (speech, 3, ((0, 0),), (1,)),
    (patch_embedding, 6, IMAGE, (1, 4, 16, 64)),
    (medical, 3, ((0, 0),), (1,)),
)  # fmt: skip


def network(seed):
    """The network of a seed: its layers with their counts, and its type."""
    r = random.Random(seed)
    make, _, sizes, batches = r.choices(FAMILIES, [weight for _, weight, _, _ in FAMILIES])[0]
    net = make(r, r.choice(batches), r.choice(sizes))
    return net, r.choice(("bf16", "bf16", "bf16", "fp16"))


def draw(seed, layers):
    """Lines for `layers` distinct layers of a seed's network, in proportion to their counts."""
    net, dtype = network(seed)
    r = random.Random(f"layers of {seed}")
    left = [(layer, count) for layer, count in net.layers.items() if layer.is_measurable()]
    lines: list[str] = []
    while left and len(lines) < layers:
        # NOTE: the square root, so that the one layer of a stem is not lost among the repeated.
        at = r.choices(range(len(left)), [count**0.5 for _, count in left])[0]
        layer, count = left.pop(at)
        lines.append(
            f"{layer.shape()} count={count} dtype={dtype} epilogue={layer.epilogue} name={layer.name}.{seed}"
        )
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:60", help="FIRST:LAST, the last left out; test: 1000 to 999,999")
    parser.add_argument("--layers", type=int, default=6, help="of each network, at most")
    parser.add_argument("--plain", action="store_true", help="shapes alone: no types and epilogues")
    args = parser.parse_args()
    first, last = (int(x) for x in args.seeds.split(":"))
    lines: dict[str, str] = {}
    for seed in range(first, last):
        for line in draw(seed, args.layers):
            lines.setdefault(line.rsplit(" name=", 1)[0].replace("count=", ""), line)
    order = list(lines.values())
    random.Random(first).shuffle(order)
    print(f"# bench/shapes/wild.py --seeds {args.seeds} --layers {args.layers}: {len(order)} layers")
    for line in order:
        print(line.split()[0] if args.plain else line)


if __name__ == "__main__":
    main()
