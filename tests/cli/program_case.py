# SPDX-License-Identifier: Apache-2.0
"""What the tests of the program share: files made and read, the program run in a folder.

The first argument of a test is the program; only the standard library is needed.
"""

import base64
import json
import math
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

CONVOY = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "convoy"


# ---- files ----

def bf16_bits(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if math.isnan(value):
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16_value(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def pack(kind, values):
    if kind == "bf16":
        return struct.pack(f"<{len(values)}H", *map(bf16_bits, values))
    return struct.pack(f"<{len(values)}{'e' if kind == 'fp16' else 'f'}", *values)


def unpack(kind, data):
    if kind == "bf16":
        return [bf16_value(b) for b in struct.unpack(f"<{len(data) // 2}H", data)]
    size, letter = (2, "e") if kind == "fp16" else (4, "f")
    return list(struct.unpack(f"<{len(data) // size}{letter}", data))


def npy_bytes(shape, values, kind="fp32", descr=None):
    descr = descr or {"fp32": "<f4", "fp16": "<f2", "bf16": "<V2"}[kind]
    extents = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {extents}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + pack(kind, values)


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<H", data[8:10])
    header = eval(data[10 : 10 + length])  # Written by the program under test.
    kind = {"<f4": "fp32", "<f2": "fp16", "<V2": "bf16"}[header["descr"]]
    return header["shape"], unpack(kind, data[10 + length :]), kind


def safetensors_bytes(tensors):
    header, body = {}, b""
    for name, (shape, values, kind) in tensors.items():
        data = pack(kind, values)
        header[name] = {
            "dtype": {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}[kind],
            "shape": list(shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def png_bytes(width, height, rows, color=2, claim=None):
    """8-bit PNG; `claim` is what the header says where it lies."""
    def chunk(kind, data):
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    size = claim or (width, height)
    head = struct.pack(">IIBBBBB", *size, 8, color, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body)
            + chunk(b"IEND", b""))


# 24 x 16 pixels: red grows by 8 a column from 40, green falls by 10 a row from 200, blue is 90.
JPEG_BASELINE = base64.b64decode(
    "/9j/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqm"
    "x5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSk"
    "pKSkpKSkpKT/wAARCAAQABgDASIAAhEBAxEB/8QAFwAAAwEAAAAAAAAAAAAAAAAAAAMFBP/EABYQAQEBAAAAAAAA"
    "AAAAAAAAAAACA//EABYBAQEBAAAAAAAAAAAAAAAAAAMCBf/EABgRAAMBAQAAAAAAAAAAAAAAAAACAwEh/9oADAMB"
    "AAIRAxEAPwAnU6dUudTp1G0yJSKc6hhnUC2ZoLLh/9k="
)
JPEG_PROGRESSIVE = base64.b64decode(
    "/9j/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqm"
    "x5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSk"
    "pKSkpKSkpKT/wgARCAAQABgDASIAAhEBAxEB/8QAFwAAAwEAAAAAAAAAAAAAAAAAAAIEA//EABUBAQEAAAAAAAAA"
    "AAAAAAAAAAIE/9oADAMBAAIQAxAAAAEeVyaTAFH/xAAVEAEBAAAAAAAAAAAAAAAAAAAAEf/aAAgBAQABBQKqqqr/"
    "xAAWEQEBAQAAAAAAAAAAAAAAAAACAAH/2gAIAQMBAT8BJsN//8QAFxEBAAMAAAAAAAAAAAAAAAAAAAECEv/aAAgB"
    "AgEBPwGasv/EABQQAQAAAAAAAAAAAAAAAAAAACD/2gAIAQEABj8CX//EABUQAQEAAAAAAAAAAAAAAAAAAAAB/9oA"
    "CAEBAAE/IYQhCEP/2gAMAwEAAgADAAAAEAf/AP/EABURAQEAAAAAAAAAAAAAAAAAAAAh/9oACAEDAQE/EHF//8QA"
    "FREBAQAAAAAAAAAAAAAAAAAAAAH/2gAIAQIBAT8QFP/EABQQAQAAAAAAAAAAAAAAAAAAACD/2gAIAQEAAT8QSqv/"
    "2Q=="
)


class ProgramCase(unittest.TestCase):
    """A folder of its own, and the program run in it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.random = random.Random(self.id())

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def write_npy(self, name, shape, values=None, kind="fp32"):
        """Small integers unless values are given; returns the values."""
        if values is None:
            values = [float(self.random.randint(-3, 3)) for _ in range(math.prod(shape))]
        self.write(name, npy_bytes(shape, values, kind))
        return values

    def run_convoy(self, *arguments, limit=None, largest_file=None, preload=None, **variables):
        def limited():
            if limit:
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            if largest_file:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # write() then fails.

        environment = {**os.environ, **variables}
        if preload:
            environment["LD_PRELOAD"] = preload
        return subprocess.run([CONVOY, *map(str, arguments)], capture_output=True, text=True,
                              cwd=self.folder, timeout=300, preexec_fn=limited, env=environment)

    def succeed(self, *arguments):
        done = self.run_convoy(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "", "silent in a pipe")
        return done.stdout

    def refuse(self, reason, *arguments, **limits):
        """One clear line, exit code 2, no file more than before."""
        before = sorted(os.listdir(self.folder))
        done = self.run_convoy(*arguments, **limits)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.strip().split("\n")), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("convoy: error: "), done.stderr)
        self.assertIn(reason, done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before)
