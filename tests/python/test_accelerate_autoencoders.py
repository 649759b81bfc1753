# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: autoencoders of diffusers, small and on the CPU, against diffusers' own
output."""

import copy
import unittest

import convoy
import torch
from convoy.bench import vae_models
from support import error, needs_diffusers


@needs_diffusers
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


def _add_classes():
    for vae in vae_models.VAES:
        def test(self, vae=vae):
            self.check(vae, torch.float32, 1e-5)

        setattr(Autoencoders, f"test_{vae.name}", test)


_add_classes()


if __name__ == "__main__":
    unittest.main()
