# SPDX-License-Identifier: Apache-2.0
"""python -m convoy.bench: sizes, refusals, the chart, and the whole of it on small models."""

import argparse
import contextlib
import csv
import io
import os
import pathlib
import tempfile
import unittest
from xml.etree import ElementTree

from convoy.bench import __main__, chart, rows, vae_models
from support import needs_diffusers


class Bench(unittest.TestCase):
    def test_sizes(self):
        def latent(name, text):
            vae = vae_models.resized(vae_models.BY_NAME[name], vae_models.size(text))
            return vae.latent, vae.size

        self.assertEqual(latent("wan21", "720x1280x81"), ((1, 16, 21, 90, 160), "81x720x1280"))
        self.assertEqual(latent("wan21", "480x832"), ((1, 16, 21, 60, 104), "81x480x832"))
        self.assertEqual(latent("ltx", "512x768x25"), ((1, 128, 4, 16, 24), "25x512x768"))
        self.assertEqual(latent("flux", "512x770"), ((1, 16, 64, 96), "512x768"))
        self.assertEqual(latent("temporal", "256x512x7"), ((7, 4, 32, 64), "7x256x512"))
        for text in ("480", "ax3", "480x0", "1x2x3x4", "-480x832"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, "HEIGHTxWIDTH"):
                vae_models.size(text)

    def test_every_size_is_its_latents(self):
        for vae in vae_models.VAES:
            if vae.name == "qwen":  # One image of a model for frames.
                continue
            wanted = [int(word) for word in vae.size.split("x")]
            same = vae_models.resized(vae, (*wanted[-2:], wanted[0] if len(wanted) > 2 else None))
            self.assertEqual((same.latent, same.size), (vae.latent, vae.size), vae.name)

    @needs_diffusers
    def test_peaks_are_not_above_pytorchs(self):
        from convoy.bench import peaks

        gigabyte = 10**9
        for name, part, peak, ours, copied in (
            ("cogvideox", "decode", 15.82, 11.7, 15), ("mochi", "decode", 16.82, 12.6, 4.2),
            ("ltx", "decode", 3.29, 1.8, 1.2), ("wan22", "decode", 9.78, 6.7, 19),
            ("flux", "encode", 1.34, 0.83, 0.1), ("hunyuan15", "encode", 9.38, 6.1, 4.5),
        ):
            with self.subTest(name):
                plain, accelerated = peaks.counted(vae_models.BY_NAME[name], part)
                self.assertAlmostEqual(plain.peak / gigabyte, peak, delta=0.01)
                self.assertLess(accelerated.peak, min(ours * gigabyte, plain.peak))
                self.assertLess(accelerated.copied, copied * gigabyte)

    def test_refusals(self):
        for words in (["vae", "flex"], ["vae", "--parts", "both"], ["vae", "--size", "big"],
                      ["vae", "--variants", "eager,fast"], ["peaks", "flex"],
                      ["peaks", "--parts", "both"], ["models", "resnet50"],
                      ["models", "timm:resnet18", "--batch", "many"],
                      *([program, word, *wrong]
                        for program, word in (("models", "timm:a"), ("vae", "flux"))
                        for wrong in (["--csv", "/no/such/folder/x.csv"], ["--csv", "/"],
                                      ["--csv", ""], ["--budget", "-1"], ["--budget", "nan"]))):
            text = io.StringIO()
            with contextlib.redirect_stderr(text), self.assertRaises(SystemExit):
                __main__.main(words)
            self.assertIn("legal", text.getvalue(), words)
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(__main__.main(["vea"]), 2)

    def test_rows_that_cannot_be_written_leave_the_old_ones(self):
        with tempfile.TemporaryDirectory() as root:
            path = pathlib.Path(root, "x.csv")
            link = pathlib.Path(root, "link.csv")
            rows.save(str(path), ("a",), [dict(a=1)])
            path.chmod(0o600)
            link.symlink_to("x.csv")
            rows.save(str(link), ("a",), [dict(a=1), dict(a=2)])
            old = path.read_bytes()
            self.assertEqual(old.split(), [b"a", b"1", b"2"])
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            with self.assertRaises(ValueError):
                rows.save(str(path), ("a",), [dict(a=1), dict(b=2)])
            self.assertEqual(path.read_bytes(), old)
            self.assertEqual(sorted(os.listdir(root)), ["link.csv", "x.csv"])
            self.assertTrue(link.is_symlink())

    def test_bars_are_as_long_as_their_times(self):
        rows = [dict(name="a&b", part="decode", way="eager", median_ms="10", convolution_ms="4",
                     norm_ms="2", copy_ms="2"),
                dict(name="a&b", part="decode", way="convoy", median_ms="5", convolution_ms="9"),
                dict(name="c", part="decode", way="-", median_ms="", note="failed")]
        image = ElementTree.fromstring(chart.drawn(rows))
        bars = [(r.get("fill"), float(r.get("x")), float(r.get("width")))
                for r in image.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "13"]
        eager, ours = bars[:len(bars) // 2], bars[len(bars) // 2:]
        total = sum(width for _, _, width in eager)
        self.assertAlmostEqual({c: w for c, _, w in eager}[chart.KINDS["convolution"]],
                               0.4 * total, delta=0.2)
        self.assertAlmostEqual(sum(width for _, _, width in ours), total / 2, delta=0.5)
        text = "".join(image.itertext())
        self.assertIn("a&b decode", text)
        self.assertNotIn("failed", text)

    @needs_diffusers
    def test_small_models_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            file = pathlib.Path(folder) / "rows.csv"
            self.assertEqual(__main__.main([
                "vae", "tiny", "--small", "--device", "cpu", "--rounds", "2", "--parts",
                "decode,encode", "--variants", "eager,convoy,dynamo", "--csv", str(file)]), 0)
            with open(file, newline="") as opened:
                rows = list(csv.DictReader(opened))
        self.assertEqual([(row["part"], row["way"]) for row in rows],
                         [(part, way) for part in ("decode", "encode")
                          for way in ("eager", "convoy", "dynamo")])
        for row in rows:
            self.assertGreater(float(row["median_ms"]), 0)
            self.assertLess(float(row["error"]), 0.05)


if __name__ == "__main__":
    unittest.main()
