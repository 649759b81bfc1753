# SPDX-License-Identifier: Apache-2.0
"""examples/vae_decode on the CPU: small autoencoders of diffusers as .safetensors, its frames
beside diffusers' own, and what it says of files that are not as they must be.

VAE_DECODE names the program."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import diffusers
import PIL.Image
import torch
from convoy.bench import vae_models
from safetensors.torch import save_file

PROGRAM = os.environ["VAE_DECODE"]


class Decoder(unittest.TestCase):
    def setUp(self):
        diffusers.utils.logging.set_verbosity_error()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *words, expect=0):
        result = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result.stderr

    def save(self, name, tensors):
        path = self.folder / name
        save_file({key: value.contiguous() for key, value in tensors.items()}, path)
        return path

    def model(self, name):
        vae = vae_models.BY_NAME[name]
        model = vae.make(small=True)
        torch.manual_seed(3)
        return model, torch.randn(1, *vae.small_latent[1:])

    def frames(self, prefix):
        made = []
        for path in sorted(self.folder.glob(f"{prefix}_*.png")):
            with PIL.Image.open(path) as image:
                pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
                made.append(pixels.reshape(image.height, image.width, 3).int())
        return torch.stack(made)

    def test_frames_are_diffusers_own(self):
        for name, groups, frames in (("flux", 8, 1), ("wan21", 32, 5 + 4), ("qwen", 32, 1)):
            with self.subTest(name):
                model, z = self.model(name)
                if name == "wan21":  # Chunks with caches of one and two frames, and then on.
                    z = torch.randn(1, z.shape[1], 5, *z.shape[3:])
                with torch.no_grad():
                    expected = model.decode(z, return_dict=False)[0]
                expected = expected[None] if expected.dim() == 4 else expected.movedim(1, 2)
                expected = expected.reshape(-1, *expected.shape[-3:]).permute(0, 2, 3, 1)
                expected = ((expected + 1) * 127.5).clamp(0, 255)
                self.assertEqual(expected.shape[0], frames)
                weights = self.save("vae.safetensors", model.state_dict())
                latents = self.save("z.safetensors", {"latents": z})
                common = ("--model", weights, "--latents", latents, "--groups", groups)
                for dtype, bound in (("fp32", 0.502), ("bf16", 12)):
                    self.run_program(*common, "--dtype", dtype, "--output",
                                     self.folder / f"{name}_{dtype}")
                    got = self.frames(f"{name}_{dtype}")
                    self.assertEqual(got.shape, expected.shape)
                    self.assertLess((got - expected).abs().max().item(), bound)
                half = self.save("half.safetensors",
                                 {k: v.bfloat16() for k, v in model.state_dict().items()})
                self.run_program("--model", half, *common[2:], "--output",
                                 self.folder / f"{name}_half")
                self.assertLess((self.frames(f"{name}_half") - expected).abs().max().item(), 12)

    def test_what_is_wrong_is_named(self):
        model, z = self.model("flux")
        state = model.state_dict()
        latents = self.save("z.safetensors", {"latents": z})

        def error(weights, latents=latents, *words, expect=1):
            return self.run_program("--model", weights, "--latents", latents, "--groups", 8,
                                    "--output", self.folder / "x", *words, expect=expect)

        def changed(key, value):
            return self.save("changed.safetensors", {
                k: v for k, v in ({**state, key: value} if value is not None else state).items()
                if value is not None or k != key})

        key = "decoder.mid_block.resnets.1.conv2.weight"
        self.assertIn(f"no tensor {key}; nearest: decoder.mid_block.resnets.",
                      error(changed(key, None)))
        self.assertIn("has shape [7]; legal: [", error(changed("decoder.conv_in.bias",
                                                               torch.zeros(7))))
        self.assertIn("legal: [filters, ", error(changed("decoder.conv_out.weight",
                                                         torch.zeros(3, 5, 3, 3))))
        self.assertIn("is I32; legal: F32, BF16, F16",
                      error(changed(key, state[key].int())))
        whole = self.save("vae.safetensors", state)
        self.assertIn("latents have shape [1, 5, 6, 10]; legal: [1, 4, height, width]",
                      error(whole, self.save("five.safetensors", {"z": torch.zeros(1, 5, 6, 10)})))
        self.assertIn("neither decoder.mid_block", error(latents))
        self.assertIn("legal: one, or one of them named latents", error(whole, whole))
        (self.folder / "cut.safetensors").write_bytes(whole.read_bytes()[:-9])
        self.assertIn("bytes within the file", error(self.folder / "cut.safetensors"))
        (self.folder / "text.safetensors").write_text("no tensors at all")
        self.assertIn("no .safetensors file", error(self.folder / "text.safetensors"))
        self.assertIn("cannot be opened", error(self.folder / "none.safetensors"))
        self.assertIn("--dtype = fp8; legal: bf16, fp32",
                      error(whole, latents, "--dtype", "fp8", expect=2))
        self.assertIn("--groups = x; legal", error(whole, latents, "--groups", "x", expect=2))
        self.assertIn("--output is missing", self.run_program("--model", whole, "--latents",
                                                              latents, expect=2))


if __name__ == "__main__":
    unittest.main()
