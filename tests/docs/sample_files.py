# SPDX-License-Identifier: Apache-2.0
"""The small files that the pages' `convoy` commands read, written with the standard library."""

import json
import math
import struct
import zlib
from pathlib import Path


def _values(count: int) -> bytes:
    return struct.pack(f"<{count}f", *(math.sin(i) for i in range(count)))


def _npy(*shape: int) -> bytes:
    extents = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {extents}, }}\n".encode()
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
    return magic + header + _values(math.prod(shape))


def _safetensors(name: str, *shape: int) -> bytes:
    body = _values(math.prod(shape))
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, len(body)]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + bytes(3 * width) for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def write(folder: Path, rank: int) -> None:
    """photo.png (9 x 7, RGB), model.safetensors (conv1.weight, KCRS), and .npy files; w.npy is a
    filter of the given rank."""
    folder.mkdir(exist_ok=True)
    (folder / "photo.png").write_bytes(_png(9, 7))
    (folder / "model.safetensors").write_bytes(_safetensors("conv1.weight", 8, 3, 3, 3))
    for name in ("b.npy", "bias.npy"):
        (folder / name).write_bytes(_npy(8))
    (folder / "w.npy").write_bytes(_npy(8, *[3] * (rank + 1)))
    (folder / "x.npy").write_bytes(_npy(1, 7, 9, 3))
    (folder / "frames.npy").write_bytes(_npy(1, 4, 7, 9, 3))
    (folder / "last.npy").write_bytes(_npy(1, 2, 7, 9, 3))
