# SPDX-License-Identifier: Apache-2.0
"""The decoders of bench/decode: their convolutions are those of bench/shapes, and Convoy's variant
computes what PyTorch's does."""

import collections
import pathlib
import sys
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "decode"))

import layers  # noqa: E402
import models  # noqa: E402


def listed(name):
    counts = collections.Counter()
    for line in (ROOT / "bench" / "shapes" / name).read_text().splitlines():
        if line and not line.startswith("#"):
            shape, count, *_ = line.split()
            counts[shape] += int(count.removeprefix("count="))
    return counts


def recorded(model, z):
    layers.calls = []
    try:
        with torch.no_grad():
            out = model(z)
        return collections.Counter(layers.calls), out
    finally:
        layers.calls = None


def twin(make):
    """The model in PyTorch's layers and in Convoy's, with the same random parameters."""
    torch.manual_seed(0)
    plain = make(layers.TorchLayers).eval()
    for parameter in plain.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    fast = make(layers.convoy_layers(attention_rows=48)).eval()
    fast.load_state_dict(plain.state_dict())
    return plain, fast


class Decoders(unittest.TestCase):
    def test_the_convolutions_are_those_of_the_lists(self):
        with torch.device("meta"):
            counts, out = recorded(
                models.FluxDecoder(layers.TorchLayers), torch.empty(1, 16, 128, 128)
            )
            self.assertEqual(counts, listed("flux1_vae_decode.txt"))
            self.assertEqual(out.shape, (1, 3, 1024, 1024))
            counts, out = recorded(
                models.WanDecoder(layers.TorchLayers), torch.empty(1, 16, 21, 60, 104)
            )
            self.assertEqual(counts, listed("wan21_vae_decode.txt"))
            self.assertEqual(out.shape, (1, 3, 81, 480, 832))

    def compare(self, make, z):
        plain, fast = twin(make)
        counts, expected = recorded(plain, z)
        same_counts, y = recorded(fast, z)
        self.assertEqual(counts, same_counts)
        self.assertEqual(y.shape, expected.shape)
        self.assertGreater(expected.std().item(), 0.01)
        error = ((y - expected).norm() / expected.norm()).item()
        self.assertLess(error, 1e-4)

    def test_flux(self):
        self.compare(
            lambda layers: models.FluxDecoder(layers, (64, 64, 32, 32)), torch.randn(1, 16, 3, 5)
        )

    def test_wan(self):
        self.compare(lambda layers: models.WanDecoder(layers, 8), torch.randn(1, 16, 4, 2, 3))


if __name__ == "__main__":
    unittest.main()
