# SPDX-License-Identifier: Apache-2.0
"""integrations/comfyui, loaded and called as ComfyUI does, on decoders written as those of
comfy/ldm are: weights that a convolution cuts itself, activations in place, frames one by one from
caches."""

import importlib.util
import pathlib
import sys
import unittest

import convoy
import torch
import torch.nn.functional as F
from torch import nn

FOLDER = pathlib.Path(__file__).parents[2] / "integrations" / "comfyui"


def load_as_comfyui():
    """custom_nodes are modules of their paths, not of sys.path."""
    name = "custom_nodes.convoy"
    spec = importlib.util.spec_from_file_location(
        name, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def execute(nodes, name, **inputs):
    """One node: its inputs checked against what it declares, its function, its outputs."""
    kind = nodes.NODE_CLASS_MAPPINGS[name]
    declared = kind.INPUT_TYPES()
    for key, (sort, *more) in declared["required"].items():
        if key not in inputs:
            inputs[key] = (more[0].get("default") if more and "default" in more[0] else sort[0])
        if isinstance(sort, list):
            assert inputs[key] in sort, (key, inputs[key])
    unknown = set(inputs) - set(declared["required"]) - set(declared.get("optional", {}))
    assert not unknown, unknown
    result = getattr(kind(), kind.FUNCTION)(**inputs)
    result = result["result"] if isinstance(result, dict) else result
    assert len(result) == len(kind.RETURN_TYPES)
    return result


class Casting:
    """Weights in the input's type; one frame alone meets the last taps only."""

    def forward(self, x, last_taps=False):
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        if last_taps:
            weight = weight[:, :, -x.shape[2]:]
        return self._conv_forward(x, weight, bias)


class Conv2d(Casting, nn.Conv2d):
    pass


class CausalConv3d(Casting, nn.Conv3d):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.front, self.padding = 2 * self.padding[0], (0, *self.padding[1:])

    def forward(self, x, caches=None, at=None):
        cache = None
        if caches is not None:
            cache, caches[at] = caches[at], None
        if cache is None and x.shape[2] == 1:
            return super().forward(x, last_taps=True)
        missing = self.front - (0 if cache is None else cache.shape[2])
        parts = [] if cache is None else [cache]
        if missing > 0:
            shape = list(x.shape)
            shape[2] = missing
            parts.insert(0, torch.zeros(shape, dtype=x.dtype, device=x.device))
        return super().forward(torch.cat([*parts, x], 2) if parts else x)


class ImageDecoder(nn.Module):
    """As comfy/ldm/modules/diffusionmodules: SiLU in place, nearest upsampling, attention."""

    def __init__(self, c=16):
        super().__init__()
        self.conv_in = Conv2d(4, c, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, c, 1e-6), nn.GroupNorm(4, c, 1e-6)
        self.swish = nn.SiLU(inplace=True)
        self.conv1, self.conv2 = Conv2d(c, c, 3, padding=1), Conv2d(c, c, 3, padding=1)
        self.qkv, self.out = Conv2d(c, 3 * c, 1), Conv2d(c, c, 1)
        self.conv_out = Conv2d(c, 3, 3, padding=1)

    def forward(self, z):
        x = self.conv_in(z)
        h = self.conv1(self.swish(self.norm1(x)))
        x = x + self.conv2(self.swish(self.norm2(h)))
        q, k, v = (t.reshape(*t.shape[:2], -1).transpose(1, 2)[:, None].contiguous()
                   for t in self.qkv(x).chunk(3, dim=1))
        h = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
        x = x + self.out(h)
        return self.conv_out(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class FrameDecoder(nn.Module):
    """As comfy/ldm/wan: a frame at a time, caches that are handed over, recursion over frames."""

    def __init__(self, c=16):
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(c, 1, 1, 1))
        self.conv1 = CausalConv3d(4, c, 3, padding=1)
        self.time_conv = CausalConv3d(c, 2 * c, (3, 1, 1), padding=(1, 0, 0))
        self.conv2, self.head = CausalConv3d(c, c, 3, padding=1), CausalConv3d(c, 3, 3, padding=1)

    def norm(self, x):
        return F.silu(F.normalize(x, dim=1) * x.shape[1]**0.5 * self.gamma.to(x))

    def cached(self, layer, x, caches, at):
        last = x[:, :, -2:].clone()
        y = layer(x, caches, at)
        caches[at] = last
        return y

    def one(self, x, caches, first):
        x = self.cached(self.conv1, x, caches, 0)
        if first:
            caches[1] = "Rep"
        else:
            last = x[:, :, -2:].clone()
            before = None if isinstance(caches[1], str) and caches[1] == "Rep" else caches[1]
            y = self.time_conv(x, [before], 0)
            caches[1] = last
            b, c, t, h, w = x.shape
            y = y.reshape(b, 2, c, t, h, w)
            x = torch.stack((y[:, 0], y[:, 1]), 3).reshape(b, c, 2 * t, h, w)
        out = []
        for i in range(x.shape[2]):
            y = x[:, :, i:i + 1]
            y = y + self.cached(self.conv2, self.norm(y), caches, 2)
            out.append(self.cached(self.head, self.norm(y), caches, 3))
        return out

    def forward(self, z):
        caches, out = [None] * 4, []
        for i in range(z.shape[2]):
            out += self.one(z[:, :, i:i + 1], caches, i == 0)
        return torch.cat(out, 2)


class FirstStage(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def decode(self, z):
        return self.decoder(z)


class VAE:
    """What of comfy.sd.VAE a node sees."""

    def __init__(self, decoder):
        self.first_stage_model = FirstStage(decoder).eval()

    def decode(self, samples):
        with torch.no_grad():
            pixels = self.first_stage_model.decode(samples)
            return torch.clamp((pixels + 1.0) / 2.0, min=0.0, max=1.0).movedim(1, -1)


class Nodes(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.nodes = load_as_comfyui()

    def test_what_comfyui_reads(self):
        names = self.nodes.NODE_CLASS_MAPPINGS
        self.assertEqual(set(names), set(self.nodes.NODE_DISPLAY_NAME_MAPPINGS))
        for kind in names.values():
            self.assertTrue(callable(getattr(kind, kind.FUNCTION)))
            self.assertIn("vae", kind.INPUT_TYPES()["required"])

    def test_decoders_are_taken_and_given_back(self):
        for decoder, z, quality in (
            (ImageDecoder(), torch.randn(2, 4, 6, 5), "fast"),
            (FrameDecoder(), torch.randn(1, 4, 4, 6, 5), "fast"),
            (FrameDecoder(), torch.randn(1, 4, 1, 6, 5), "exact"),
        ):
            with self.subTest(type(decoder).__name__):
                vae = VAE(decoder)
                names, expected = list(vae.first_stage_model.state_dict()), vae.decode(z)
                (same,) = execute(self.nodes, "ConvoyAccelerateVAE", vae=vae, quality=quality)
                self.assertIs(same, vae)
                for _ in range(2):
                    torch.testing.assert_close(vae.decode(z), expected, rtol=1e-5, atol=1e-5)
                report = convoy.report(vae.first_stage_model)
                self.assertFalse(report.left or report.left_calls, str(report))
                taken = {part.operation.split(" ")[0] for part in report.taken}
                self.assertGreaterEqual(len(taken), 2, str(report))
                (text,) = execute(self.nodes, "ConvoyReportVAE", vae=vae)
                self.assertIn("taken over", text)
                execute(self.nodes, "ConvoyAccelerateVAE", vae=vae, enabled=False)
                self.assertTrue(torch.equal(vae.decode(z), expected))
                self.assertEqual(list(vae.first_stage_model.state_dict()), names)

    def test_what_is_no_vae(self):
        with self.assertRaisesRegex(ValueError, "legal: the VAE of a checkpoint"):
            execute(self.nodes, "ConvoyAccelerateVAE", vae=object())
        with self.assertRaisesRegex(convoy.InvalidArgument, "not accelerated"):
            execute(self.nodes, "ConvoyReportVAE", vae=VAE(ImageDecoder()))


if __name__ == "__main__":
    unittest.main()
