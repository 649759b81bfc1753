# SPDX-License-Identifier: Apache-2.0
"""Files of rows that are written as they come: a run that ends early loses none, nor does a write
that fails."""

import argparse
import csv
import math
import os
import tempfile


def csv_file(path):
    """--csv: refused before anything is measured, where it cannot be written."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not path:
        raise argparse.ArgumentTypeError(f"{path!r} is a folder; legal: a file")
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"{path!r}: there is no folder {folder!r}; legal: one "
                                         "that is there")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path!r} cannot be written; legal: a file that can")
    return path


def seconds(text):
    """--budget."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}; legal: seconds, above 0")
    return value


def _write(file, fields, rows):
    writer = csv.DictWriter(file, fields)
    writer.writeheader()
    writer.writerows(rows)


def save(path, fields, rows):
    """The file has these rows, or what it had before."""
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):  # A stream.
        with open(path, "w", newline="") as file:
            _write(file, fields, rows)
        return
    handle, part = tempfile.mkstemp(prefix=os.path.basename(path) + ".part-",
                                    dir=os.path.dirname(path))
    try:
        with open(handle, "w", newline="") as file:
            _write(file, fields, rows)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o666 & ~mask)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
